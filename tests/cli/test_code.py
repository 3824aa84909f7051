"""What `--code` would send of a folder: exactly what git would keep, in a repository and outside of one."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from muster.cli.code import listed
from muster.cli.exits import ExitCode, Problem
from tests.support.shapes import Reply, Request, ShapeServer

IGNORED = {
    ".gitignore": "*.log\n/top\nbuild/\n!keep.log\n\\#odd\nsp ace.txt  \ndeep/**/x\n[ab].txt\nnot/\\*.md\n",
    "a.log": "",
    "keep.log": "",
    "top": "",
    "sub/top": "",
    "build/out": "",
    "build/keep.log": "",
    "sub/build": "",
    "#odd": "",
    "sp ace.txt": "",
    "deep/1/2/x": "",
    "deep/x": "",
    "a.txt": "",
    "c.txt": "",
    "sub/.gitignore": "!a.log\nc.*\n",
    "sub/a.log": "",
    "sub/b.log": "",
    "sub/c.txt": "",
    "sub/.hidden": "",
    "né/ü.py": "",
    "not/*.md": "",
    "not/a.md": "",
}
KEPT = [
    ".gitignore", "c.txt", "keep.log", "not/a.md", "né/ü.py", "sub/.gitignore", "sub/.hidden", "sub/a.log",
    "sub/build", "sub/top",
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    place = tmp_path / "folder"
    for path, text in IGNORED.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text(text)
    return place


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "protocol.file.allow=always")
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


@pytest.mark.parametrize("repository", [False, True])
def test_every_gitignore_is_read_as_git_reads_it_in_a_repository_or_not(folder: Path, *, repository: bool) -> None:
    if repository:
        git(folder, "init", "-q")
    assert sorted(listed(folder)) == KEPT
    assert (folder / ".git").exists() == repository


def test_a_folder_of_a_repository_keeps_to_the_rules_above_it(folder: Path) -> None:
    git(folder, "init", "-q")
    assert sorted(listed(folder / "sub")) == [".gitignore", ".hidden", "a.log", "build", "top"]


def test_what_is_committed_is_sent_though_it_is_ignored_and_what_was_deleted_is_not(folder: Path) -> None:
    git(folder, "init", "-q")
    git(folder, "add", "-f", "a.log", "c.txt")
    git(folder, "commit", "-qm", "x")
    (folder / "c.txt").unlink()
    assert set(listed(folder)) == {*KEPT, "a.log"} - {"c.txt"}


def test_a_repository_within_has_rules_of_its_own(folder: Path) -> None:
    """Untracked, and as a submodule."""
    git(folder, "init", "-q")
    inner = folder / "inner"
    inner.mkdir()
    (inner / "b.log").write_text("")
    (inner / ".gitignore").write_text("*.py\n")
    (inner / "x.py").write_text("")
    git(inner, "init", "-q")
    assert [path for path in sorted(listed(folder)) if "inner" in path] == ["inner/.gitignore", "inner/b.log"]
    git(inner, "add", ".")
    git(inner, "commit", "-qm", "x")
    git(folder, "submodule", "add", "-q", "./inner", "inner")
    assert [path for path in sorted(listed(folder)) if "inner" in path] == ["inner/.gitignore", "inner/b.log"]


def test_nothing_that_a_repository_names_is_run(folder: Path, tmp_path: Path) -> None:
    git(folder, "init", "-q")
    hook = tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    git(folder, "config", "core.fsmonitor", str(hook))
    listed(folder)
    assert not (tmp_path / "ran").exists()


def test_without_git_a_folder_is_sent_whole_and_one_that_ignores_something_is_refused(
    api: ShapeServer, muster: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    api.on("GET", "/code", Reply(body={"maxBytes": 10**6, "partBytes": 1024, "kept": False}))
    ran = muster("training", "submit", "x", "-i", "x", "--code", str(folder), "--", "x")
    assert (ran.code, "needs git to read .gitignore" in ran.err) == (2, True), ran.err
    plain = tmp_path / "plain"
    (plain / "sub").mkdir(parents=True)
    (plain / "sub" / "a").touch()
    assert listed(plain) == ["sub/a"]


def test_parts_are_sent_in_order_and_what_is_kept_is_not_sent_again(
    api: ShapeServer, muster: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "a.py").write_text("x" * 3000)
    submit = ("training", "submit", "hello", "-i", "x", "--code", str(folder), "--", "x")
    api.on("GET", "/code", Reply(body={"maxBytes": 10**6, "partBytes": 1024, "kept": False}))
    api.on("POST", "/code", Reply(body={"code": 200, "message": "kept"}))
    assert muster(*submit).code == 0
    sent = [request.body for request in api.asked("POST", "/code")]
    assert [(part["part"], part["parts"]) for part in sent] == [(number, 5) for number in range(5)]
    made = api.asked("POST", "/workloads/trainings")[-1].body["spec"]
    assert made["code"] == sent[0]["digest"]
    assert "workingDir" not in made
    api.on("GET", "/code", lambda request: kept(request, sent[0]["digest"]))
    assert muster(*submit).code == 0
    assert len(api.asked("POST", "/code")) == 5


def kept(request: Request, digest: str) -> Reply:
    return Reply(body={"maxBytes": 10**6, "partBytes": 1024, "kept": request.query.get("digest") == [digest]})


def test_a_dry_run_sends_no_code(api: ShapeServer, muster: Any, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a").touch()
    api.on("GET", "/code", Reply(body={"maxBytes": 10**6, "partBytes": 1024, "kept": False}))
    code = ("--code", str(tmp_path / "code"))
    ran = muster("training", "submit", "hello", "-i", "x", *code, "--dry-run=client", "-o", "json", "--", "x")
    assert (ran.code, len(ran.json()["spec"]["code"])) == (0, 64), ran.err
    assert all(request.method == "GET" for request in api.requests)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--code", "nowhere"), "there is no folder"),
        (("--code", "empty"), "there is nothing to send"),
        (("--code", "out"), "may lead out of the folder"),
        (("--code", "full", "--working-dir", "src"), "with code each run starts in the folder that was sent"),
        (("--code", "full", "--working-dir", "/src"), "with code each run starts in the folder that was sent"),
    ],
)
def test_what_cannot_be_sent_is_refused_before_anything_is(
    api: ShapeServer, muster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, flags: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("empty", "out", "full"):
        (tmp_path / name).mkdir()
    (tmp_path / "out" / "link").symlink_to("/etc/passwd")
    (tmp_path / "full" / "a").touch()
    api.on("GET", "/code", Reply(body={"maxBytes": 10**6, "partBytes": 1024, "kept": False}))
    ran = muster("training", "submit", "hello", "-i", "x", *flags, "--", "x")
    assert (ran.code, said in ran.err) == (2, True), ran.err
    assert all(request.method == "GET" for request in api.requests)


@pytest.mark.parametrize(("kind", "advice"), [("kubernetes", True), ("local", False)])
def test_what_is_too_large_for_a_cluster_says_for_which_and_what_would_do(
    api: ShapeServer, muster: Any, tmp_path: Path, *, kind: str, advice: bool
) -> None:
    api.on("GET", "/clusters", Reply(body={"clusters": [{"id": "c-1", "name": "far", "kind": kind}]}))
    api.on("GET", "/code", Reply(body={"maxBytes": 4096, "partBytes": 1024, "kept": False}))
    (tmp_path / "weights.pt").write_bytes(bytes(10_000))
    (tmp_path / "a.py").touch()
    ran = muster("training", "submit", "hello", "-i", "x", "--code", str(tmp_path), "--", "x")
    assert ran.code == 6, ran.err
    assert f"at most 4.0 KiB may be sent to cluster 'far', of kind {kind}" in ran.err
    assert "9.8 KiB  weights.pt" in ran.err
    assert ("have an image that holds it" in ran.err) is advice
    assert all(request.method == "GET" for request in api.requests)


def test_git_is_there() -> None:
    """The tests above mean little without it."""
    assert shutil.which("git")


def test_a_folder_that_cannot_be_read_is_named_and_is_no_fault_of_the_program(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of `--code /`, where links below /proc cannot be followed: also by who is root."""
    look = Path.is_dir

    def is_dir(path: Path, **more: bool) -> bool:
        if path.name == "né":
            raise PermissionError(13, "Permission denied", str(path))
        return look(path, **more)

    monkeypatch.setattr(Path, "is_dir", is_dir)
    monkeypatch.setattr("muster.cli.code._listed_by", lambda *_: ["c.txt", "né"])
    with pytest.raises(Problem, match="né' cannot be read: Permission denied") as refused:
        listed(folder)
    assert refused.value.code is ExitCode.USAGE
