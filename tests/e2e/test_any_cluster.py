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


def test_a_cluster_that_is_cut_off_is_lost_and_a_workload_leaves_it_as_its_project_says(stack: Stack) -> None:
    """Given simulated clusters that one agent serves, when one is cut off as people do it, then what they see and what
    becomes of workloads is as where a real agent is away.
    """

    def seen(name: str, **fields: str) -> dict[str, Any]:
        def as_awaited() -> dict[str, Any] | None:
            one = row(stack, name)
            return one if all(one.get(key) == value for key, value in fields.items()) else None

        return until(as_awaited, 150)

    def status(name: str) -> str:
        return json.loads(done(stack, "cluster", "describe", name, "-o", "json"))["status"]

    refused = stack.muster("cluster", "disconnect", "local", "-y")
    assert refused.returncode != 0
    assert "only a simulated cluster can be cut off" in refused.stderr
    for name in ("red", "blue"):
        done(stack, "cluster", "add", name, "--simulated", "1x64")
    done(stack, "training", "submit", "moves", "-i", "busybox", "-g", "48", "--preemptibility", "preemptible", *LONG)
    old = runs(stack, "moves")
    other = {"red": "blue", "blue": "red"}[old]
    done(stack, "training", "submit", "stays", "-i", "busybox", "-g", "1", "--cluster", old, *LONG)
    assert runs(stack, "stays") == old

    done(stack, "cluster", "disconnect", old, "-y")
    assert "Cut off" in done(stack, "cluster", "describe", old)
    until(lambda: status(old) == "Disconnected", 150)
    assert until(lambda: row(stack, "stays")["clusterLostSince"], 60)
    assert "Running, lost" in done(stack, "training", "list")
    assert seen("moves")["clusterName"] == old, "its project does not say that it leaves"

    done(stack, "project", "set", "default", "--cluster-lost-after", "1s")
    assert seen("moves", phase="Running", clusterName=other)["attempt"] == 2
    done(stack, "cluster", "reconnect", old)
    until(lambda: status(old) == "Connected", 150)
    until(lambda: row(stack, "stays")["clusterLostSince"] is None, 60)
    assert "Cut off" not in done(stack, "cluster", "describe", old)
    # What the old pod held is free again: it was told to end.
    done(stack, "training", "submit", "next", "-i", "busybox", "-g", "60", "--cluster", old, *LONG)
    assert runs(stack, "next") == old
    assert seen("stays", phase="Running", clusterName=old)["attempt"] == 1


def test_a_program_runs_on_this_machine_where_that_can_run_it(stack: Stack) -> None:
    done(stack, "training", "submit", "hello", "-i", "busybox", "--", "echo", "hi", "there")
    assert until(lambda: (one := row(stack, "hello"))["phase"] == "Completed" and one, 60)["clusterName"] == "local"
    assert "hi there" in done(stack, "training", "logs", "hello")
