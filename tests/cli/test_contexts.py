"""The contexts file, and which of flag, environment and file wins."""

import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from muster.cli.contexts import (
    Context,
    Contexts,
    ContextsError,
    config_file,
    read_contexts,
    resolve,
    save_contexts,
    with_context,
    write_context,
)
from muster.embedded.certificates import authority_in
from tests.support.shapes import ShapeServer

TWO = Contexts(
    current="local",
    contexts={
        "local": Context(url="http://127.0.0.1:8080", token="t-local", project="default", data_dir="/data"),
        "far": Context(url="https://far.example", token="t-far", cluster="big", ca_file="/far.crt"),
        "bare": Context(url="http://bare"),
    },
)


@pytest.mark.parametrize(
    ("flags", "environ", "url", "token"),
    [
        ({}, {}, "http://127.0.0.1:8080", "t-local"),
        ({"context": "far"}, {}, "https://far.example", "t-far"),
        ({}, {"MUSTER_CONTEXT": "far"}, "https://far.example", "t-far"),
        ({"context": "local"}, {"MUSTER_CONTEXT": "far"}, "http://127.0.0.1:8080", "t-local"),
        ({}, {"MUSTER_TOKEN": "t-env"}, "http://127.0.0.1:8080", "t-env"),
        ({"token": "t-flag"}, {"MUSTER_TOKEN": "t-env"}, "http://127.0.0.1:8080", "t-flag"),
        ({}, {"MUSTER_URL": "http://127.0.0.1:8080/"}, "http://127.0.0.1:8080", "t-local"),
        ({"url": "http://other"}, {"MUSTER_URL": "http://env"}, "http://other", ""),
        ({"context": "far"}, {"MUSTER_URL": "http://env", "MUSTER_TOKEN": "t-env"}, "https://far.example", "t-far"),
        ({"context": "bare"}, {"MUSTER_URL": "http://env", "MUSTER_TOKEN": "t-env"}, "http://bare", "t-env"),
        ({"context": "far", "url": "http://other"}, {"MUSTER_TOKEN": "t-env"}, "http://other", "t-env"),
    ],
)
def test_a_flag_wins_over_the_environment_and_that_over_the_file(
    flags: dict[str, str], environ: dict[str, str], url: str, token: str
) -> None:
    target = resolve(TWO, environ, **flags)
    assert (target.url, target.token) == (url, token)


@pytest.mark.parametrize(
    ("flags", "environ", "ca_file"),
    [
        ({"context": "far"}, {}, "/far.crt"),
        ({"context": "far"}, {"MUSTER_CA_FILE": "/env.crt"}, "/far.crt"),
        ({"context": "bare"}, {"MUSTER_CA_FILE": "/env.crt"}, "/env.crt"),
        ({}, {"MUSTER_CONTEXT": "far", "MUSTER_CA_FILE": "/env.crt"}, "/env.crt"),
        ({"context": "far", "ca_file": "/flag.crt"}, {"MUSTER_CA_FILE": "/env.crt"}, "/flag.crt"),
        ({}, {}, ""),
        ({"context": "far", "url": "https://elsewhere"}, {}, ""),
    ],
)
def test_whose_certificates_are_trusted_follows_the_same_order(
    flags: dict[str, str], environ: dict[str, str], ca_file: str
) -> None:
    assert resolve(TWO, environ, **flags).ca_file == ca_file


def test_a_context_keeps_its_authority_by_its_whole_path(
    muster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    authority_in(tmp_path)
    assert muster("context", "add", "lab", "--url", "https://muster.lab", "--ca-file", "ca.crt", "--use").code == 0
    assert muster("context", "add", "lab", "--default-project", "p").code == 0
    assert muster("context", "show", "-o", "json").json()["caFile"] == str(tmp_path / "ca.crt")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("--url https://lab --ca-file nowhere.crt", "nowhere.crt cannot be used: No such file or directory"),
        ("--url https://lab --ca-file odd.crt", "odd.crt cannot be used: does not hold a certificate in PEM"),
        ("--url http://lab:8080 --ca-file ca.crt", "--url https://lab:8080, or leave --ca-file out"),
    ],
)
def test_an_authority_that_would_protect_nothing_is_not_kept(
    muster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    authority_in(tmp_path)
    (tmp_path / "odd.crt").write_text("odd")
    ran = muster("context", "add", "lab", *given.split())
    assert (ran.code, told in ran.err) == (2, True), ran.err
    assert muster("context", "list", "-o", "json").json() == []


def test_a_token_is_never_sent_to_another_url_than_its_context_s() -> None:
    target = resolve(TWO, {"MUSTER_URL": "http://elsewhere"})
    assert target.token == ""
    assert target.project == ""
    assert target.data_dir == ""


def test_the_environment_names_project_and_data_folder() -> None:
    target = resolve(TWO, {"MUSTER_PROJECT": "vision", "MUSTER_DATA_DIR": "/elsewhere"})
    assert (target.project, target.data_dir) == ("vision", "/elsewhere")


def test_an_unknown_context_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ContextsError, match="known are: local, far"):
        resolve(TWO, {}, context="lokal")


def test_only_its_owner_can_read_the_file(tmp_path: Path) -> None:
    path = tmp_path / "muster" / "config.toml"
    save_contexts(path, TWO)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert read_contexts(path) == TWO
    assert [entry.name for entry in path.parent.iterdir()] == ["config.toml"]


@drawn(st.text(max_size=40), st.text(max_size=40))
def test_any_text_comes_back_from_the_file(token: str, project: str) -> None:
    from tempfile import TemporaryDirectory

    if any("\ud800" <= sign <= "\udfff" for sign in token + project):
        return
    with TemporaryDirectory() as folder:
        path = Path(folder) / "config.toml"
        save_contexts(path, with_context(Contexts(), "a.b", Context(url="u", token=token, project=project), use=True))
        assert read_contexts(path).contexts["a.b"] == Context(url="u", token=token, project=project)


def test_what_up_writes_leaves_what_its_user_chose(home: Path) -> None:
    """Given other defaults and another current context, when `muster up` starts again, then they stay."""
    path = write_context("local", "http://127.0.0.1:1", "t1", home / "data", "default")
    chosen = Context(url="u", token="t1", data_dir=str(home / "data"), project="vision", cluster="demo")
    both = with_context(
        with_context(read_contexts(path), "local", chosen, use=False), "far", Context(url="f"), use=True
    )
    save_contexts(path, both)
    write_context("local", "http://127.0.0.1:2", "t2", home / "data", "default")
    known = read_contexts(path)
    assert known.current == "far"
    assert known.contexts["local"] == replace(chosen, url="http://127.0.0.1:2", token="t2")
    write_context("local", "http://127.0.0.1:2", "t3", home / "another", "default")
    assert (read_contexts(path).contexts["local"].project, read_contexts(path).contexts["local"].cluster) == (
        "default",
        "",
    )


def test_what_up_writes_first_becomes_current(home: Path) -> None:
    path = write_context("local", "http://127.0.0.1:1", "t1", home / "data", "default")
    assert read_contexts(path).current == "local"


def test_what_up_writes_is_kept_where_it_is_looked_for(home: Path) -> None:
    path = write_context("local", "http://127.0.0.1:1", "t1", home / "data", "default")
    assert path == config_file({"XDG_CONFIG_HOME": str(home / "config")})
    known = read_contexts(path)
    kept = with_context(
        known, "local", Context(url="http://127.0.0.1:1", data_dir=str(home / "data"), cluster="demo"), use=True
    )
    save_contexts(path, kept)
    write_context("local", "http://127.0.0.1:2", "t2", home / "data", "default")
    context = read_contexts(path).contexts["local"]
    assert (context.url, context.token, context.cluster) == ("http://127.0.0.1:2", "t2", "demo")


@pytest.mark.parametrize("text", ["not toml", "contexts = 3", "[contexts]\na = 3", "\udcff"])
def test_a_broken_file_is_named_and_not_overwritten(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ContextsError, match=str(path)):
        read_contexts(path)


def test_the_token_in_use_can_be_had_for_other_programs(muster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (none := muster("token", "show")).code == 4, none.err
    muster("context", "add", "far", "--url", "https://far.example", "--token", "t-far", "--use")
    assert muster("token", "show").out == "t-far\n"
    monkeypatch.setenv("MUSTER_TOKEN", "t-other")
    assert muster("token", "show").out == "t-other\n"


def test_contexts_are_added_listed_used_and_removed(muster: Any) -> None:
    assert muster("context", "add", "one", "--url", "http://127.0.0.1:1", "--token", "t1").code == 0
    assert muster("context", "add", "two", "--url", "http://127.0.0.1:2", "--default-project", "vision").code == 0
    assert [row["name"] for row in muster("context", "list", "-o", "json").json()] == ["one", "two"]
    assert "t1" not in muster("context", "list", "-o", "wide").out
    assert muster("context", "use", "two").code == 0
    assert muster("context", "show", "-o", "json").json()["project"] == "vision"
    assert muster("context", "use", "tow").code == 3
    assert "did you mean 'two'?" in muster("context", "use", "tow").err
    assert muster("context", "remove", "two").code == 0
    assert muster("context", "show", "-o", "json").json()["name"] == "one"
    assert muster("context", "add", "bad/name", "--url", "http://x").code == 2
    assert muster("context", "add", "three").code == 2


def test_a_default_that_is_gone_is_told_with_where_its_name_comes_from(
    api: ShapeServer, muster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody typed it: the message alone would not say what to change."""
    kept = ("--url", api.url, "--token", "t", "--default-project", "gone", "--default-cluster", "lost", "--use")
    assert muster("context", "add", "mine", *kept).code == 0
    submit = ("training", "submit", "hello", "-i", "python:3.13")
    project = muster(*submit, "--", "true")
    assert project.code == 3
    assert "there is no project 'gone'" in project.err
    assert "the context 'mine', as its default project" in project.err
    assert "muster project set NAME" in project.err
    cluster = muster(*submit, "-p", "default", "--", "true")
    assert cluster.code == 3
    assert "the context 'mine', as its default cluster" in cluster.err
    assert "context" not in muster(*submit, "-p", "nope", "--", "true").err
    monkeypatch.setenv("MUSTER_PROJECT", "away")
    assert "the name comes from MUSTER_PROJECT" in muster(*submit, "--", "true").err
