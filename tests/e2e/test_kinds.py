"""Workspaces and distributed trainings end to end on one machine: real processes that find each other over loopback."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from development.stack import Api, Stack, running, until

pytestmark = pytest.mark.e2e
EXAMPLES = Path("examples")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running(tmp_path_factory.mktemp("up"), "--gpus", "2") as stack:
        yield stack


@pytest.fixture(scope="module")
def api(stack: Stack) -> Api:
    return stack.api()


def made(api: Api, name: str) -> dict[str, Any]:
    """The workload of this name, as any kind is read."""
    (row,) = api.get("/workloads", filterBy=f"name=={name}")["workloads"]
    return api.get(f"/workloads/{row['id']}")


def test_every_pod_of_a_distributed_training_sums_with_all_others(stack: Stack, api: Api) -> None:
    folder = ("--code", str(EXAMPLES / "all-reduce"), "--workers", "2")
    words = ("--command", "--wait", "--timeout", "60s", "--", "python3", "all_reduce.py")
    told = stack.muster("training", "pytorch", "submit", "sum-pytorch", "-i", "python:3.13", *folder, *words)
    assert told.returncode == 0, told.stderr
    found = made(api, "sum-pytorch")
    assert (found["type"], found["kubernetesType"]) == ("Distributed", "DistributedWorkload")
    assert any(line.endswith("rank 0 of 3: the sum is 6") for line in lines(api, found))
    assert found["notYetInForce"] == []


@pytest.mark.parametrize("framework", ["tensorflow", "xgboost", "jax"])
def test_the_example_of_each_framework_sums_over_all_its_pods(stack: Stack, api: Api, framework: str) -> None:
    example = EXAMPLES / f"{framework}.yaml"
    line = re.findall(r"^#   muster (.+)$", example.read_text(), re.MULTILINE)[0]
    told = stack.muster(*line.split(), "--timeout", "60s")
    assert told.returncode == 0, told.stderr
    found = made(api, f"sum-{framework}")
    assert any(line.endswith("rank 0 of 3: the sum is 6") for line in lines(api, found))
    if framework == "jax":
        # All workers end by themselves: with a master, its end may come before they could say theirs.
        assert sum("of 3: the sum is 6" in line for line in lines(api, found)) == 3


def lines(api: Api, found: dict[str, Any]) -> list[str]:
    return api.logs(found["workloadId"]).strip().splitlines()


def test_an_mpi_launcher_starts_processes_in_all_its_workers(stack: Stack, api: Api) -> None:
    """The example, whose launcher waits for its workers and does as `mpirun` does."""
    folder = ("--code", str(EXAMPLES / "mpi"))
    told = stack.muster(
        "training", "mpi", "submit", "-f", str(EXAMPLES / "mpi.yaml"), *folder, "--wait", "--timeout", "60s"
    )
    assert told.returncode == 0, told.stdout + told.stderr
    found = made(api, "ring")
    assert (found["spec"]["slotsPerWorker"], found["spec"]["mpiLauncherCreationPolicy"]) == (2, "WaitForWorkersReady")
    said = lines(api, found)
    for rank in range(6):
        assert any(line.endswith(f"rank {rank} of 6 on worker-{rank // 2}: the sum is 21") for line in said), said
    assert any(line.endswith("launcher: 6 processes on 3 workers ended with [0]") for line in said)
    begun = sorted(
        (record["sequence"], record["message"])
        for record in api.history(found["workloadId"])
        if record["type"] == "PodRunning"
    )
    assert "master" in begun[-1][1], "the launcher began after all workers"


def test_a_rank_that_fails_is_run_again_with_the_same_rank(stack: Stack, api: Api) -> None:
    script = (
        "import os; again = int(os.environ['MUSTER_RUN']) > 1; print('rank', os.environ['RANK'], 'again' * again); "
        "raise SystemExit(0 if again or os.environ['RANK'] != '1' else 3)"
    )
    words = ("--command", "--wait", "--timeout", "60s", "--", "python3", "-c", script)
    told = stack.muster("training", "pytorch", "submit", "again", "-i", "x", "--workers", "2", "--no-master", *words)
    assert told.returncode == 0, told.stderr
    found = made(api, "again")
    assert any(line.endswith("rank 1 again") for line in lines(api, found))
    assert (found["failedRuns"], found["succeededPods"], found["requestedPods"]) == (1, 2, 2)


def test_the_examples_of_each_kind_run_as_they_stand(stack: Stack, api: Api) -> None:
    told = stack.muster("training", "pytorch", "submit", "-f", str(EXAMPLES / "distributed.yaml"), "--wait")
    assert told.returncode == 0, told.stderr
    trio = made(api, "trio")
    assert trio["masterSpec"]["compute"]["cpuCoreRequest"] == 0.2
    assert any(line.endswith("master at 127.0.0.1") for line in lines(api, trio))
    told = stack.muster("workspace", "submit", "-f", str(EXAMPLES / "workspace.yaml"))
    assert told.returncode == 0, told.stderr
    desk = made(api, "desk")
    assert (desk["type"], desk["priorityClassName"], desk["preemptibility"]) == ("Workspace", "high", "non-preemptible")
    until(lambda: made(api, "desk")["actualPhase"] == "Running" or None, 60)
    listed = stack.muster("workspace", "list", "-o", "name")
    assert listed.stdout.split() == ["desk"]
    assert stack.muster("workspace", "suspend", "desk", "--wait", "--timeout", "30s").returncode == 0
    assert stack.muster("workspace", "resume", "desk", "--wait", "--timeout", "30s").returncode == 0
    described = stack.muster("workspace", "describe", "desk")
    assert "Workspace (InteractiveWorkload)" in described.stdout
    answer = api.http.get(f"/workloads/trainings/{desk['workloadId']}")
    assert (answer.status_code, "of kind Workspace" in answer.text) == (404, True)
    assert stack.muster("workspace", "delete", "desk", "-y", "--wait", "--timeout", "30s").returncode == 0
    kinds = {row["name"] for row in api.get("/workloads", filterBy="type==DistributedWorkload")["workloads"]}
    assert "trio" in kinds
    assert "desk" not in kinds


def test_the_kinds_are_listed_with_what_one_gets_that_asks_for_nothing(api: Api) -> None:
    kinds = {kind["name"]: kind for kind in api.get("/workload-types")["workloadTypes"]}
    assert {name: (kind["kubernetesType"], kind["priorityClass"]) for name, kind in kinds.items()} == {
        "Training": ("TrainingWorkload", "low"),
        "Distributed": ("DistributedWorkload", "low"),
        "Workspace": ("InteractiveWorkload", "high"),
        "Inference": ("InferenceWorkload", "very-high"),
    }
    kept = {name for name, kind in kinds.items() if kind["preemptibility"] == "non-preemptible"}
    assert kept == {"Workspace", "Inference"}


def test_a_distributed_training_is_submitted_again_as_it_was(stack: Stack, api: Api) -> None:
    if not api.get("/workloads", filterBy="name==trio")["workloads"]:
        told = stack.muster("training", "pytorch", "submit", "-f", str(EXAMPLES / "distributed.yaml"))
        assert told.returncode == 0, told.stderr
    told = stack.muster("training", "resubmit", "trio", "--name", "trio-2", "--wait", "--timeout", "60s")
    assert told.returncode == 0, told.stderr
    assert made(api, "trio-2")["masterSpec"] == made(api, "trio")["masterSpec"]
