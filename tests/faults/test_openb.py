"""Real input: pods of a production trace on its own 1,213 nodes, through the API (section 6, 6 and 8).

The trace is data of others and no part of the project: without it these tests say so.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from development.stack import Api, running, training, until
from development.stack_check import check_stack
from tests.support import openb
from tests.support.second import second

DOUBLED = ("scheduler", "cluster_sync", "projector")

pytestmark = [pytest.mark.faults, pytest.mark.one_in(2)]


def trace_pods(count: int) -> Iterator[dict[str, Any]]:
    """The first pods of the default list as specs; GPU models are left out."""
    for row in islice(openb.rows("openb_pod_list_default"), count):
        gpus, milli = int(row["num_gpu"]), int(row["gpu_milli"])
        compute: dict[str, Any] = {
            "cpuCoreRequest": int(row["cpu_milli"]) / 1000,
            "cpuMemoryRequest": f"{row['memory_mib']}Mi",
        }
        if gpus:
            compute["gpuDevicesRequest"] = gpus
        if gpus and milli < 1000:
            compute |= {"gpuRequestType": "portion", "gpuPortionRequest": milli / 1000}
        yield {"name": row["name"], "spec": {"compute": compute}}


def submit_all(api: Api, cluster: str, count: int) -> dict[str, str]:
    """Submit the trace's pods, eight at a time; the acknowledged ids by name."""
    project, cluster_id = api.project(), api.cluster(cluster)

    def submit(pod: dict[str, Any]) -> tuple[str, str]:
        answer = api.http.post("/workloads/trainings", json=training(pod["name"], project, cluster_id, **pod["spec"]))
        assert answer.status_code == 202, answer.text
        return pod["name"], answer.json()["workloadId"]

    with ThreadPoolExecutor(8) as pool:
        return dict(pool.map(submit, trace_pods(count)))


def all_complete(api: Api, count: int, timeout_seconds: float) -> None:
    def done() -> bool:
        return api.get("/workloads/count", filterBy="phase==Completed")["count"] >= count

    until(done, timeout_seconds, lambda: str(api.get("/workloads", filterBy="phase!=Completed", limit=5)))


def all_run(folder: Path, count: int, doubled: tuple[str, ...]) -> None:
    """Submit this many pods of the trace to its own nodes, beside second instances of these services; check it all."""
    with running(folder) as stack, second(stack, *doubled):
        nodes = openb.FOLDER / f"{openb.NODES}.csv"
        added = stack.muster("cluster", "add", "openb", "--nodes-csv", str(nodes))
        assert added.returncode == 0, added.stderr
        api = stack.api()
        until(lambda: len(api.get("/nodes", clusterId=api.cluster("openb"))["nodes"]) == 1213 or None, 60)
        acknowledged = submit_all(api, "openb", count)
        assert len(acknowledged) == count
        all_complete(api, count, 300)
        report = check_stack(stack, acknowledged)
        assert set(acknowledged.values()) == report.completed
        assert (report.bindings, report.left_reserved, report.left_live) == (count, 0, 0)
        for command in (("log", "verify"), ("projections", "rebuild"), ("log", "verify")):
            done = stack.muster(*command, timeout_seconds=240)
            assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("doubled", [(), DOUBLED], ids=["single", "doubled"])
def test_pods_of_the_trace_all_complete_and_no_node_is_ever_over_capacity(
    tmp_path: Path, doubled: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    all_run(tmp_path, 500 if request.config.option.short else 2000, doubled)
