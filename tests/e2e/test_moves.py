"""A gang that gets in since a pod is moved for it, end to end on a simulated cluster of one machine."""

from pathlib import Path
from typing import Any

import pytest

from development.stack import Api, running, until

pytestmark = [pytest.mark.e2e, pytest.mark.one_in(2)]
RUNS: dict[str, Any] = {"annotations": [{"name": "simulation.muster.dev/runtime-seconds", "value": "600"}]}


def on(api: Api, workload_id: str) -> list[str]:
    """The nodes on which its pods run."""
    pods = api.get(f"/workloads/{workload_id}/pods")["pods"]
    return sorted(pod["node"] for pod in pods if pod["phase"] == "Running")


def test_a_gang_gets_in_as_a_pod_moves_for_it_and_both_run(tmp_path: Path) -> None:
    with running(tmp_path) as stack:
        assert stack.muster("cluster", "add", "sim", "--simulated", "2x4").returncode == 0
        api = stack.api()

        def small(name: str, gpus: int) -> str:
            compute = {"gpuDevicesRequest": gpus}
            id_: str = api.submit(name, cluster="sim", compute=compute, terminationGracePeriodSeconds=1, **RUNS)[
                "workloadId"
            ]
            api.wait(id_, "Running")
            return id_

        large, one, two = small("large", 3), small("one", 1), small("two", 1)
        assert on(api, large) == on(api, one) != on(api, two)
        assert api.act("delete", large).status_code == 202

        words = ("--no-master", "--workers", "3", "-g", "2", "--cluster", "sim")
        told = stack.muster("training", "pytorch", "submit", "wide", "-i", "x", *words)
        assert told.returncode == 0, told.stderr
        (row,) = api.get("/workloads", filterBy="name==wide")["workloads"]
        until(
            lambda: (
                len(on(api, row["id"])) == 3
                and len(on(api, one)) == len(on(api, two)) == 1
                and on(api, one) == on(api, two)
            ),
            120,
            lambda: f"{api.story(row['id'])} {api.story(one)} {api.story(two)}",
        )
        moved = [told for id_ in (one, two) for told in api.story(id_) if "moved to make room for wide" in told]
        assert len(moved) == 1, "one of them, once"
