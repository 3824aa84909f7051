"""A stretch of a real log, made by real services on a simulated cluster, is played again: all start when they did."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from development.stack import Stack, running, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400), pytest.mark.one_in(2)]
RUNTIME = "simulation.muster.dev/runtime-seconds"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running(tmp_path_factory.mktemp("up")) as stack:
        yield stack


def done(stack: Stack, *words: str) -> str:
    told = stack.muster(*words)
    assert told.returncode == 0, (words, told.stderr)
    return told.stdout


def document(name: str, gpus: int, seconds: int, **more: Any) -> str:
    """Of a training, or with workers of a distributed one."""
    compute = {"cpuCoreRequest": 1, "gpuDevicesRequest": gpus}
    annotations = [{"name": RUNTIME, "value": str(seconds)}]
    spec = {"image": "busybox", "compute": compute, "annotations": annotations} | more
    kind = "Distributed" if "numWorkers" in more else "Training"
    return json.dumps({"kind": kind, "name": name, "spec": spec})


def rows(told: str) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["measure"], row["of"]): row for row in json.loads(told)}


def test_a_replay_of_what_happened_starts_workloads_when_they_started(stack: Stack, tmp_path: Path) -> None:
    """Two projects share eight GPUs; somebody deletes what waits, suspends what runs, and raises a quota meanwhile."""
    done(stack, "cluster", "add", "sim", "--simulated", "2x4")
    for project in ("vision", "speech"):
        done(stack, "project", "create", project, "--gpu-quota", "4")
    chance = random.Random(3)
    made: dict[str, list[str]] = {"vision": [], "speech": []}
    for number in range(8):
        seconds = chance.randint(2, 6)
        made["vision" if number % 3 else "speech"].append(document(f"w{number}", chance.choice((1, 2, 4)), seconds))
    workers = {"distributedFramework": "PyTorch", "numWorkers": 3}
    made["speech"].append(document("gang", 2, 5, **workers))
    made["vision"] += [document("long", 1, 12), document("unwanted", 4, 5)]
    for project, documents in made.items():
        file = tmp_path / f"{project}.yaml"
        file.write_text("\n---\n".join(documents))
        done(stack, "apply", "-f", str(file), "-p", project, "--cluster", "sim")
    stack.muster("training", "delete", "unwanted", "-p", "vision", "-y")
    done(stack, "training", "suspend", "long", "-p", "vision")
    done(stack, "project", "set", "speech", "--gpu-quota", "6")
    done(stack, "training", "resume", "long", "-p", "vision")
    api = stack.api()

    def ended() -> bool:
        found = api.get("/workloads", limit=100)["workloads"]
        return len(found) >= 10 and all(row["phase"] == "Completed" for row in found)

    until(ended, 200)
    unchanged = rows(done(stack, "simulate", "-o", "json"))
    assert unchanged["workloads", "all"]["log"] == unchanged["workloads", "all"]["unchanged"] == 11
    # On a busy machine services take their time, which a replay does not: a part of the waits is theirs.
    tolerated = 2.0 + unchanged["waiting p99", "all"]["log"] / 10
    assert unchanged["replay error p50", "starts"]["unchanged"] <= tolerated, unchanged
    assert unchanged["started", "all"]["log"] == unchanged["started", "all"]["unchanged"]
    print({key: row for key, row in unchanged.items() if key[1] in {"all", "starts"}})

    picture = tmp_path / "outcome.svg"
    told = stack.muster("simulate", "--set", "limit.vision=2", "-o", "json", "--plot", str(picture))
    assert told.returncode == 0, told.stderr
    assert "UNCHANGED against the LOG: starts differ by" in told.stderr
    tighter = rows(told.stdout)
    waiting = tighter["waiting p50", "project vision"]
    assert waiting["changed"] > waiting["unchanged"]
    assert picture.read_text().startswith("<?xml")
    viewer = stack.muster("token", "create", "--user", "nobody")
    refused = stack.muster("--token", viewer.stdout.strip(), "simulate")
    assert refused.returncode == 4, refused.stderr
