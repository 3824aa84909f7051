"""Where tokens are kept: `muster login`, `logout`, and contexts with a keyring and without one."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keyring
import pytest
from keyring.backends import fail, null

from muster.cli import keyrings
from muster.cli.contexts import config_file, write_context
from tests.support.keyring_in_memory import KeyringInMemory
from tests.support.shapes import Reply, ShapeServer


@pytest.fixture
def system() -> Iterator[KeyringInMemory]:
    """A system with a keyring."""
    before, own = keyring.get_keyring(), KeyringInMemory()
    keyring.set_keyring(own)
    yield own
    own.hangs.set()
    keyring.set_keyring(before)


@pytest.fixture
def there(api: ShapeServer, muster: Any, monkeypatch: pytest.MonkeyPatch) -> ShapeServer:
    """A server that knows everybody, and a context for it without a token."""
    api.on("GET", "/me", Reply(body={"subject": "ann", "tenantRoles": [], "projectRoles": {}}))
    monkeypatch.delenv("MUSTER_URL")
    monkeypatch.delenv("MUSTER_TOKEN")
    assert muster("context", "add", "lab", "--url", api.url, "--use").code == 0
    return api


def typed(monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(token + "\n"))


def in_file(home: Path) -> str:
    return config_file({"XDG_CONFIG_HOME": str(home / "config")}).read_text()


def bearers(server: ShapeServer) -> set[str]:
    return {request.headers.get("authorization", "") for request in server.requests}


def test_a_token_is_kept_in_the_keyring_and_every_command_finds_it_there(
    there: ShapeServer, system: KeyringInMemory, muster: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch, "my-token")
    ran = muster("login", "--token-stdin")
    assert (ran.code, "logged in to lab as ann" in ran.err, "in the keyring" in ran.err) == (0, True, True), ran.err
    assert system.held == {("muster", f"lab {there.url}"): "my-token"}
    assert "my-token" not in in_file(home)

    assert muster("token", "show").out == "my-token\n"
    there.requests.clear()
    assert muster("workload", "list").code == 0
    assert bearers(there) == {"Bearer my-token"}
    assert muster("context", "list", "-o", "json").json()[0]["token"] == "keyring"
    assert muster("context", "show", "-o", "json").json()["token"] == "keyring"
    monkeypatch.setenv("MUSTER_TOKEN", "another")
    assert muster("token", "show").out == "another\n"
    assert muster("token", "show", "--context", "lab").out == "my-token\n", "a context that a flag names goes first"
    monkeypatch.delenv("MUSTER_TOKEN")

    assert muster("logout").code == 0
    assert system.held == {}
    assert muster("token", "show").code == 4
    assert "has no token" in muster("logout").err


def test_a_token_that_is_not_accepted_is_not_kept(
    there: ShapeServer, system: KeyringInMemory, muster: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there.on(
        "GET", "/me", Reply(401, {"code": 401, "message": "the token has expired", "details": "not_authenticated"})
    )
    typed(monkeypatch, "old-token")
    ran = muster("login", "--token-stdin")
    assert (ran.code, "the token has expired" in ran.err) == (4, True), ran.err
    assert (system.held, "old-token" in in_file(home)) == ({}, False)
    ran = muster("login")
    assert (ran.code, "--token-stdin" in ran.err) == (2, True), "nobody is there to be asked"


@pytest.mark.usefixtures("there", "system")
@pytest.mark.parametrize("backend", [fail.Keyring, null.Keyring])
def test_without_a_keyring_it_is_kept_in_the_file_and_said(muster: Any, home: Path, backend: Any) -> None:
    keyring.set_keyring(backend())
    ran = muster("login", "--token", "my-token")
    assert (ran.code, "this system has no keyring" in ran.err, "you alone can read" in ran.err) == (0, True, True)
    assert 'token = "my-token"' in in_file(home)
    assert muster("token", "show").out == "my-token\n"
    assert muster("logout").code == 0
    assert "my-token" not in in_file(home)


def test_a_keyring_that_is_locked_or_hangs_ends_with_what_would_do(
    there: ShapeServer, system: KeyringInMemory, muster: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert muster("login", "--token", "my-token").code == 0
    system.locked = True
    for words in (("token", "show"), ("workload", "list")):
        ran = muster(*words)
        assert (ran.code, "Failed to unlock" in ran.err, "MUSTER_TOKEN" in ran.err) == (4, True, True), ran.err
    ran = muster("logout")
    assert (ran.code, "stays there" in ran.err) == (1, True), ran.err
    assert muster("context", "list").code == 0, "which needs no token"
    system.locked = False

    monkeypatch.setattr(keyrings, "ANSWER_SECONDS", 0.2)
    system.hangs.clear()
    ran = muster("login", "--token", "new")
    assert (ran.code, "did not answer within" in ran.err) == (0, True), ran.err
    assert 'token = "new"' in in_file(home)
    system.hangs.set()


def test_contexts_that_are_added_changed_and_removed_take_their_tokens_along(
    there: ShapeServer, system: KeyringInMemory, muster: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch, "far-token")
    assert muster("context", "add", "far", "--url", "http://far", "--token-stdin").code == 0
    assert system.held == {("muster", "far http://far"): "far-token"}
    assert muster("context", "add", "far", "--default-project", "p").code == 0
    assert muster("token", "show", "--context", "far").out == "far-token\n"
    ran = muster("context", "add", "far", "--url", "http://elsewhere")
    assert ("is forgotten" in ran.err, system.held) == (True, {}), "a token goes to its own URL only"
    assert muster("context", "add", "far", "--token", "t").code == 0
    assert muster("context", "remove", "far").code == 0
    assert system.held == {}

    assert muster("login", "--token", "my-token").code == 0
    write_context("lab", there.url, "of-muster-up", home, "default")
    assert muster("token", "show").out == "of-muster-up\n", "`muster up` keeps its own in the file"
