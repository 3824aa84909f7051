"""The command line in this process, with its own home, and a server that answers it."""

from collections.abc import Callable, Iterator
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from muster.cli.main import command_line, run
from tests.support.shapes import WORKLOAD_ID, Ran, Reply, ShapeServer, workload_row


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home: no context, no variables of ours."""
    for name in ("URL", "TOKEN", "CONTEXT", "PROJECT", "DATA_DIR", "CA_FILE", "KEY_FILE", "NATS_URL", "POSTGRES_URL"):
        monkeypatch.delenv(f"MUSTER_{name}", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NO_COLOR", "1")
    return tmp_path


@cache
def declared(*words: str) -> Any:
    """The commands behind these words. To declare them takes longer than most commands, and nothing of a call stays."""
    return command_line(*words)


def commands_for(arguments: tuple[str, ...]) -> Any:
    """As a call of its own declares them; behind a second word, also those that stand beside the one of a third."""
    words = tuple(takewhile(lambda word: not word.startswith("-"), arguments))
    return declared(*words[:2]) if words else command_line(*arguments)


@pytest.fixture
def muster(home: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    def call(*arguments: str) -> Ran:
        capsys.readouterr()
        code = run(commands_for(arguments), list(arguments))
        said = capsys.readouterr()
        return Ran(int(code), said.out, said.err)

    return call


@pytest.fixture
def api(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ShapeServer]:
    """A server with one project, one cluster and one running workload, and the environment that leads to it."""
    server = ShapeServer()
    monkeypatch.setenv("MUSTER_URL", server.url)
    monkeypatch.setenv("MUSTER_TOKEN", "secret-token")
    project = {
        "id": "p-1",
        "name": "default",
        "gpuQuota": 4.0,
        "nodePools": ["a"],
        "podSecurity": "restricted",
        "privileged": False,
        "use": {"gpuAllocated": 1.0},
    }
    server.on("GET", "/org-unit/projects", Reply(body={"projects": [project]}))
    server.on("GET", "/org-unit/projects/p-1", Reply(body=project, headers={"X-Version": "7"}))
    server.on("GET", "/clusters", Reply(body={"clusters": [{"id": "c-1", "name": "local", "kind": "local"}]}))
    server.on("GET", "/nodes", Reply(body={"nodes": [{"name": "another-machine"}]}))
    server.on("GET", "/workloads", Reply(body={"workloads": [workload_row()], "next": None}))
    server.on("GET", f"/workloads/{WORKLOAD_ID}", Reply(body=workload_row()))
    server.on(
        "POST",
        "/workloads/trainings",
        Reply(202, {"name": "hello", "workloadId": WORKLOAD_ID, "actualPhase": "Creating"}),
    )
    yield server
    server.close()
