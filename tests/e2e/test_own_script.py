"""A day's work with a script of one's own: it is found where it was typed, and its log is whole, whatever restarts.

Every test types what a person types.
"""

import contextlib
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from development.stack import Api, Stack, running, until

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running(tmp_path_factory.mktemp("up")) as stack:
        yield stack


@pytest.fixture(scope="module")
def api(stack: Stack) -> Api:
    return stack.api()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a script that prints what its configuration, beside it, says."""
    (tmp_path / "src").mkdir()
    (tmp_path / "greeting.txt").write_text("hello\n")
    (tmp_path / "src" / "greeting.txt").write_text("hello from src\n")
    (tmp_path / "train.py").write_text("print(open('greeting.txt').read().strip())\n")
    return tmp_path


def typed(stack: Stack, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command of `muster`, typed in that folder."""
    return subprocess.run(
        [sys.executable, "-m", "muster.cli.main", *words],
        capture_output=True,
        text=True,
        env=stack.environment | {"PYTHONPATH": str(Path.cwd())},
        cwd=folder,
        timeout=90,
        check=False,
    )


@contextlib.contextmanager
def typing(stack: Stack, *words: str) -> Generator[subprocess.Popen[str]]:
    """A command that goes on."""
    command = [sys.executable, "-m", "muster.cli.main", *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=stack.environment
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("flags", "script", "said"),
    [
        ((), "train.py", "hello\n"),
        (("--working-dir", "src"), "../train.py", "hello from src\n"),
        (("--working-dir", "./src/.."), "train.py", "hello\n"),
    ],
)
def test_a_script_runs_from_the_folder_in_which_it_was_typed(
    stack: Stack, folder: Path, flags: tuple[str, ...], script: str, said: str
) -> None:
    name = f"mine-{len(flags)}-{len(said)}-{len(flags[-1]) if flags else 0}"
    words = ("-i", "python:3.13", *flags, "--wait", "--", sys.executable, script)
    ran = typed(stack, folder, "training", "submit", name, *words)
    log = typed(stack, folder, "training", "logs", name)
    assert (ran.returncode, log.stdout) == (0, said), (ran.stderr, log.stdout, log.stderr)


def test_what_waits_says_why_and_its_log_goes_on_by_itself_once_it_runs(stack: Stack, folder: Path) -> None:
    waits = ("training", "submit", "waits", "-i", "x", "-g", "64", "--", sys.executable, "train.py")
    assert typed(stack, folder, *waits).returncode == 0
    until(lambda: "GPU" in typed(stack, folder, "training", "logs", "waits").stderr or None, 60)
    told = typed(stack, folder, "training", "logs", "waits")
    assert "waits is Pending: " in told.stderr, told.stderr
    with typing(stack, "training", "logs", "waits", "-f") as following:
        assert following.stderr is not None
        assert "what its pods write comes here once they run" in following.stderr.readline()
        typed(stack, folder, "training", "delete", "waits", "--yes")
        assert following.wait(60) is not None


def test_a_follower_misses_no_run_however_short(stack: Stack, api: Api) -> None:
    """Six pods one after the other, each of some milliseconds; and a pod that fails five times."""
    made = api.submit("short", command="/bin/sh", args="-c 'echo run $JOB_COMPLETION_INDEX'", completions=6)
    with api.http.stream("GET", f"/workloads/{made['workloadId']}/logs", params={"follow": "true"}) as answer:
        lines = sorted(answer.iter_lines())
    assert lines == [f"main-{index}: run {index}" for index in range(6)]
    script = "-c 'echo run $MUSTER_RUN; exit 1'"
    made = api.submit("again", command="/bin/sh", args=script, backoffLimit=2)
    with api.http.stream("GET", f"/workloads/{made['workloadId']}/logs", params={"follow": "true"}) as answer:
        lines = list(answer.iter_lines())
    assert lines == ["run 1", "run 2", "run 3"]


def test_a_suspend_loses_nothing_that_was_written(stack: Stack, api: Api, folder: Path) -> None:
    (folder / "slow.py").write_text("import time\nprint('first')\nprint('second', end='')\ntime.sleep(600)\n")
    submit = ("training", "submit", "slow", "-i", "x", "--termination-grace-period", "1s")
    assert typed(stack, folder, *submit, "--", sys.executable, "slow.py").returncode == 0
    until(lambda: "first" in typed(stack, folder, "training", "logs", "slow").stdout or None, 60)
    time.sleep(0.2)
    assert typed(stack, folder, "training", "suspend", "slow", "--wait").returncode == 0
    assert typed(stack, folder, "training", "logs", "slow").stdout == "first\nsecond\n"


def test_code_is_sent_once_and_each_run_has_a_copy_of_its_own(stack: Stack, api: Api, folder: Path) -> None:
    """Without what .gitignore names; what one run writes, no other sees; the same folder again is not sent again."""
    (folder / ".gitignore").write_text("*.bin\n!small.bin\n")
    (folder / "data.bin").write_bytes(bytes(100_000))
    (folder / "small.bin").write_bytes(b"s" * 300_000)
    program = "import os, pathlib; print(sorted(str(p) for p in pathlib.Path('.').rglob('*'))); open('left', 'w')"
    (folder / "show.py").write_text(program)
    submit = ("-i", "x", "--code", ".", "--wait", "--", sys.executable, "show.py")
    first = typed(stack, folder, "training", "submit", "sent", "--runs", "2", *submit)
    assert (first.returncode, "sending 6 files" in first.stderr) == (0, True), first.stderr
    again = typed(stack, folder, "training", "submit", "sent-again", *submit)
    assert (again.returncode, "sending" in again.stderr) == (0, False), again.stderr
    seen = str([".gitignore", "greeting.txt", "show.py", "small.bin", "src", "src/greeting.txt", "train.py"])
    said = typed(stack, folder, "training", "logs", "sent").stdout
    assert said == f"main-0: {seen}\nmain-1: {seen}\n"
    assert typed(stack, folder, "training", "logs", "sent-again").stdout == f"{seen}\n"
    (spec,) = [row["spec"] for row in [api.training(_id(api, "sent"))]]
    assert len(spec["code"]) == 64
    assert spec["workingDir"] is None


def test_the_example_with_a_script_of_its_own_runs_from_anywhere(stack: Stack, folder: Path) -> None:
    """Where its file reads what lies beside it, and writes its result."""
    code = str(Path(__file__).parents[2] / "examples" / "own-script")
    words = ("-i", "python:3.13", "--code", code, "--wait", "--", sys.executable, "train.py")
    ran = typed(stack, folder, "training", "submit", "example", *words)
    assert ran.returncode == 0, ran.stderr
    assert typed(stack, folder, "training", "logs", "example").stdout.endswith("step 5: error 0.0312\n")
    assert not (Path(code) / "model.txt").exists()


def _id(api: Api, name: str) -> str:
    return next(row["id"] for row in api.get("/workloads", limit=500)["workloads"] if row["name"] == name)


def test_code_that_is_too_large_is_refused_with_the_largest_files(stack: Stack, folder: Path) -> None:
    with (folder / "weights.pt").open("wb") as file:
        file.truncate(40 * 1024 * 1024)
    ran = typed(stack, folder, "training", "submit", "large", "-i", "x", "--code", ".", "--", "x")
    assert ran.returncode == 6, ran.stderr
    assert "at most 32.0 MiB may be sent" in ran.stderr
    assert "40.0 MiB  weights.pt" in ran.stderr
    assert ".gitignore" in ran.stderr


def test_code_of_another_project_is_no_code_for_this_one(stack: Stack, api: Api, folder: Path) -> None:
    """A digest is no key: who knows it may not run it, nor learn that it is kept."""
    submit = ("training", "submit", "mine", "-i", "x", "--code", ".", "--", sys.executable, "train.py")
    assert typed(stack, folder, *submit).returncode == 0
    digest = api.training(_id(api, "mine"))["spec"]["code"]
    other = api.http.post("/org-unit/projects", json={"name": "other"}).json()["id"]
    stranger = stack.api(stack.token("mallory", project="other"))
    place = {"clusterId": api.cluster("local"), "digest": digest}
    asked = until(lambda: _answered(stranger, {"projectId": other, **place}), 60)
    assert asked["kept"] is False
    assert stranger.http.get("/code", params={"projectId": api.project(), **place}).status_code == 403
    spec = {"image": "x", "command": "cat train.py", "code": digest}
    body = {"name": "theft", "projectId": other, "clusterId": api.cluster("local"), "spec": spec}
    refused = stranger.http.post("/workloads/trainings", json=body)
    assert refused.status_code == 400
    assert "is not kept for this project and cluster" in refused.text


def _answered(api: Api, query: dict[str, str]) -> dict[str, object] | None:
    """Once the api knows of a role that was given a moment ago."""
    answer = api.http.get("/code", params=query)
    return answer.json() if answer.status_code == 200 else None
