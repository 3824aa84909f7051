"""Workloads for which nobody named a cluster, on two simulated ones, as people submit them (issue 14 section 2)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from development.stack import Stack, running, until

RUNTIME = "simulation.muster.dev/runtime-seconds"
LONG = ("--annotation", f"{RUNTIME}=3600")
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running(tmp_path_factory.mktemp("up")) as stack:
        done(stack, "cluster", "add", "east", "--simulated", "1x4")
        done(stack, "cluster", "add", "west", "--simulated", "1x2")
        yield stack


def done(stack: Stack, *words: str) -> str:
    told = stack.muster(*words)
    assert told.returncode == 0, (words, told.stderr)
    return told.stdout


def row(stack: Stack, name: str) -> dict[str, Any]:
    return json.loads(done(stack, "training", "describe", name, "-o", "json"))


def runs(stack: Stack, name: str) -> str:
    """Name of the cluster on which it runs, once it does."""
    found = until(lambda: (one := row(stack, name))["phase"] == "Running" and one, 60)
    return found["clusterName"]


def test_each_goes_where_there_is_room_and_none_runs_in_two_places(stack: Stack, tmp_path: Path) -> None:
    done(stack, "training", "submit", "wide", "-i", "busybox", "-g", "4", *LONG)
    assert runs(stack, "wide") == "east"
    file = tmp_path / "pair.yaml"
    spec: dict[str, Any] = {"image": "busybox", "compute": {"gpuDevicesRequest": 1}, "parallelism": 2}
    spec["annotations"] = [{"name": RUNTIME, "value": "3600"}]
    file.write_text(json.dumps({"kind": "Training", "name": "pair", "spec": spec | {"completions": 2}}))
    assert "west-0 of west (2 pods, 2 GPU)" in done(stack, "plan", "-f", str(file))
    done(stack, "apply", "-f", str(file))
    assert runs(stack, "pair") == "west"
    assert "unchanged" in done(stack, "apply", "-f", str(file))

    done(stack, "training", "submit", "late", "-i", "busybox", "-g", "2", *LONG)
    waits = until(lambda: (one := row(stack, "late")).get("phaseReason") == "insufficient_gpu" and one, 60)
    assert waits["clusterName"] is None
    assert "cluster east" in waits["phaseMessage"]
    assert "the same holds for cluster west" in waits["phaseMessage"]
    assert "none yet: the scheduler chooses it when it starts" in done(stack, "training", "describe", "late")

    done(stack, "training", "suspend", "pair")
    assert runs(stack, "late") == "west"
    told = " ".join(done(stack, "training", "describe", "late").split())
    assert "cluster west runs it: nobody named one, and the scheduler chose it" in told


def test_a_program_runs_on_this_machine_where_that_can_run_it(stack: Stack) -> None:
    done(stack, "training", "submit", "hello", "-i", "busybox", "--", "echo", "hi", "there")
    assert until(lambda: (one := row(stack, "hello"))["phase"] == "Completed" and one, 60)["clusterName"] == "local"
    assert "hi there" in done(stack, "training", "logs", "hello")
