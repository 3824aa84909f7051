"""A stretch of a real log, made by real services on a simulated cluster, is played again: all start when they did."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from development.stack import Stack, running, until

pytestmark = pytest.mark.e2e
RUNTIME = "simulation.muster.dev/runtime-seconds"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running(tmp_path_factory.mktemp("up")) as stack:
        yield stack


def done(stack: Stack, *words: str) -> str:
    told = stack.muster(*words)
    assert told.returncode == 0, (words, told.stderr)
    return told.stdout


def submit(stack: Stack, name: str, project: str, gpus: int, seconds: int, *more: str, kind: str = "") -> None:
    verb = ("training", kind, "submit") if kind else ("training", "submit")
    where = ("-p", project, "--cluster", "sim", "-g", str(gpus))
    done(stack, *verb, name, "-i", "busybox", *where, "--annotation", f"{RUNTIME}={seconds}", *more)


def rows(told: str) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["measure"], row["of"]): row for row in json.loads(told)}


def test_a_replay_of_what_happened_starts_workloads_when_they_started(stack: Stack, tmp_path: Path) -> None:
    """Two projects share eight GPUs; somebody deletes what waits, suspends what runs, and raises a quota meanwhile."""
    done(stack, "cluster", "add", "sim", "--simulated", "2x4")
    for project in ("vision", "speech"):
        done(stack, "project", "create", project, "--gpu-quota", "4")
    chance = random.Random(3)
    for number in range(14):
        submit(
            stack, f"w{number}", "vision" if number % 3 else "speech", chance.choice((1, 2, 4)), chance.randint(2, 9)
        )
    submit(stack, "gang", "speech", 2, 4, "--workers", "3", "--no-master", kind="pytorch")
    submit(stack, "unwanted", "vision", 4, 5)
    done(stack, "training", "delete", "unwanted", "-p", "vision", "-y")
    done(stack, "training", "suspend", "w13", "-p", "vision")
    done(stack, "project", "set", "speech", "--gpu-quota", "6")
    done(stack, "training", "resume", "w13", "-p", "vision")
    api = stack.api()

    def ended() -> bool:
        found = api.get("/workloads", limit=100)["workloads"]
        return len(found) == 15 and all(row["phase"] == "Completed" for row in found)

    until(ended, 110)
    unchanged = rows(done(stack, "simulate", "-o", "json"))
    assert unchanged["workloads", "all"]["log"] == unchanged["workloads", "all"]["unchanged"] == 16
    assert unchanged["replay error p50", "starts"]["unchanged"] <= 2.0, unchanged
    assert unchanged["started", "all"]["log"] == unchanged["started", "all"]["unchanged"]
    print({key: row for key, row in unchanged.items() if key[1] in {"all", "starts"}})

    picture = tmp_path / "outcome.svg"
    told = stack.muster("simulate", "--set", "limit.vision=2", "-o", "json", "--plot", str(picture))
    assert told.returncode == 0, told.stderr
    assert "replay against the log: starts differ by" in told.stderr
    tighter = rows(told.stdout)
    waiting = tighter["waiting p50", "project vision"]
    assert waiting["changed"] > waiting["unchanged"]
    assert picture.read_text().startswith("<?xml")
    viewer = stack.muster("token", "create", "--user", "nobody")
    refused = stack.muster("--token", viewer.stdout.strip(), "simulate")
    assert refused.returncode == 4, refused.stderr
