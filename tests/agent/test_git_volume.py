"""Repositories that are cloned for pods of this machine, from a real server and by the real git."""

import asyncio
import base64
import functools
import http.server
import os
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from events.cluster_protocol import Login, SealedValues
from events.workload.volumes import ClonedFolder, FolderLogin
from tests.agent.given import KEY, Watched, log_text, open_local, run_pod

pytestmark = pytest.mark.anyio

PLACE = "/muster-test-src"


class Files(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (of the base)
        pass


class Silent(Files):
    asked: ClassVar[threading.Event] = threading.Event()

    def do_GET(self) -> None:
        self.asked.set()
        self.rfile.read(1)


class Repository:
    """With a branch beside main, a tag, and an older commit."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.git("init", "-q", "-b", "main")
        self.old = self.commit("one")
        self.git("tag", "v1")
        self.commit("two")
        self.git("branch", "side")
        self.commit("three")
        self.git("checkout", "-q", "side")
        self.commit("side")
        self.git("checkout", "-q", "main")
        self.git("update-server-info")

    def git(self, *words: str) -> str:
        who = {f"GIT_{who}_{what}": "a@example.com" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        done = subprocess.run(
            ["git", *words],
            cwd=self.folder,
            env={"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": "/dev/null", **who},
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.stdout.strip()

    def commit(self, text: str) -> str:
        (self.folder / "file").write_text(f"{text}\n")
        self.git("add", "file")
        self.git("commit", "-q", "-m", text)
        return self.git("rev-parse", "HEAD")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    return Repository(tmp_path_factory.mktemp("repository"))


@pytest.fixture(params=[Files])
def url(request: pytest.FixtureRequest, repository: Repository) -> Iterator[str]:
    """Of a server that gives files, and knows nothing of git: what is told to it is the least that a server can do."""
    handler = functools.partial(request.param, directory=str(repository.folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/.git"
        server.shutdown()
        thread.join()


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[Watched]:
    watched = await open_local(tmp_path / "data")
    yield watched
    await watched.close()


async def apply(local: Watched, url: str, script: str = f"cat {PLACE}/file", **more: Any) -> None:
    volume = ClonedFolder(mount_path=PLACE, repository=url, **more)
    await local.backend.apply(run_pod(node_name=local.node, arguments=("/bin/sh", "-ec", script), volumes=(volume,)))


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({}, "three"),
        ({"branch": "side"}, "side"),
        ({"revision": "v1"}, "one"),
        ({"branch": "side", "revision": "v1"}, "one"),
    ],
)
async def test_a_pod_finds_what_it_asked_for(local: Watched, url: str, asked: dict[str, str], found: str) -> None:
    """S057, R34."""
    await apply(local, url, **asked)
    assert (await local.until("succeeded", "failed")).kind == "succeeded"
    assert await log_text(local.backend) == [found]


async def test_a_commit_is_found_by_its_id_and_the_pod_starts_within_the_repository(
    local: Watched, url: str, repository: Repository
) -> None:
    volume = ClonedFolder(mount_path=PLACE, repository=url, revision=repository.old)
    pod = run_pod(node_name=local.node, arguments=("cat", "file"), volumes=(volume,), working_dir=PLACE)
    await local.backend.apply(pod)
    assert (await local.until("succeeded", "failed")).kind == "succeeded"
    assert await log_text(local.backend) == ["one"]


@pytest.mark.parametrize("asked", [{"branch": "no-such"}, {"revision": "0123456789"}], ids=["branch", "revision"])
async def test_what_is_not_there_fails_the_run_and_says_so(local: Watched, url: str, asked: dict[str, str]) -> None:
    await apply(local, url, **asked)
    end = await local.until("succeeded", "failed")
    assert (end.kind, end.reason, end.started_at) == ("failed", "git", None)
    assert f"could not clone {url}" in end.message
    assert any(asked.get("branch", asked.get("revision", "")) in line for line in await log_text(local.backend))


@pytest.mark.parametrize("address", ["file://{folder}", "{folder}", "ext::touch {folder}/touched"])
async def test_a_repository_names_no_file_and_no_program(local: Watched, repository: Repository, address: str) -> None:
    """Whoever got it past the rules."""
    await apply(local, address.format(folder=repository.folder))
    assert (await local.until("succeeded", "failed")).reason == "git"
    assert not (repository.folder / "touched").exists()


@pytest.mark.parametrize("url", [Silent], indirect=True)
async def test_a_pod_that_is_told_to_go_while_it_waits_for_a_repository_goes(local: Watched, url: str) -> None:
    await apply(local, url)
    assert await asyncio.to_thread(Silent.asked.wait, 60)
    assert (await local.until("starting", "failed")).kind == "starting"
    await local.backend.delete(KEY, 1, 5)
    assert (await local.until("stopped", "failed")).kind == "stopped"


# -- with a login ------------------------------------------------------------------------------------------------------

LOGIN = Login(user="ann", password="marker-2c9f $HOME `id` \"'\\")


class Private(Files):
    """Asks for the login, and notes what it is told; `/moved` sends git on to another server, which asks, too."""

    told: ClassVar[list[str]] = []
    elsewhere: ClassVar[str] = ""

    def do_GET(self) -> None:
        given = self.headers.get("Authorization", "")
        if given:
            self.told.append(base64.b64decode(given.removeprefix("Basic ")).decode())
        if self.path.startswith("/moved"):
            self.send_response(302)
            self.send_header("Location", self.elsewhere + self.path.removeprefix("/moved"))
            self.end_headers()
        elif given and self.told[-1] == f"{LOGIN.user}:{LOGIN.password}":
            super().do_GET()
        else:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="code"')
            self.end_headers()


async def clone(local: Watched, address: str, login: Login | None) -> None:
    volume = ClonedFolder(mount_path=PLACE, repository=address, login=FolderLogin(name="mine", credential=True))
    script = f"cat {PLACE}/file; ! grep -r 'marke[r]-' {PLACE}/.git; env"
    pod = run_pod(node_name=local.node, arguments=("/bin/sh", "-ec", script), volumes=(volume,))
    await local.backend.apply(pod, SealedValues(logins={} if login is None else {PLACE: login}))


@pytest.mark.parametrize("url", [Private], indirect=True)
async def test_a_private_repository_is_cloned_and_its_password_stands_nowhere(
    local: Watched, url: str, tmp_path: Path
) -> None:
    """S057, R34: in no file of the run, not in the repository, and not with the pod's own program."""
    await clone(local, url, LOGIN)
    end = await local.until("succeeded", "failed")
    said = await log_text(local.backend)
    assert (end.kind, said[0]) == ("succeeded", "three"), said
    assert "marker-" not in "".join(said)
    for file in (tmp_path / "data").rglob("*"):
        assert not file.is_file() or b"marker-" not in file.read_bytes(), file


@pytest.mark.parametrize("url", [Private], indirect=True)
@pytest.mark.parametrize("login", [None, Login(user="ann", password="marker-wrong")], ids=["none", "wrong"])
async def test_without_the_right_login_the_run_fails_and_does_not_tell_what_it_was(
    local: Watched, url: str, login: Login | None
) -> None:
    await clone(local, url, login)
    end = await local.until("succeeded", "failed")
    assert (end.kind, end.reason) == ("failed", "git")
    assert "marker-" not in f"{end}{await log_text(local.backend)}"


@pytest.mark.parametrize("url", [Private], indirect=True)
async def test_a_login_is_told_to_the_repositorys_own_server_and_to_none_that_it_names(
    local: Watched, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Private, "told", [])
    # By another name it is another server.
    monkeypatch.setattr(Private, "elsewhere", url.removesuffix("/.git").replace("127.0.0.1", "localhost"))
    await clone(local, url.replace("/.git", "/moved/.git"), LOGIN)
    assert (await local.until("succeeded", "failed")).kind == "failed"
    assert Private.told == []


async def test_a_secret_of_a_namespace_is_nothing_that_a_local_cluster_has(local: Watched, url: str) -> None:
    volume = ClonedFolder(mount_path=PLACE, repository=url, login=FolderLogin(name="of-the-team"))
    await local.backend.apply(run_pod(node_name=local.node, arguments=("true",), volumes=(volume,)))
    end = await local.until("succeeded", "failed")
    assert (end.kind, end.reason, "of-the-team" in end.message) == ("failed", "no_volume", True)
