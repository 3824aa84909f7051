"""Nodes of a simulated cluster that come, change and go while it runs, and kill -9 in between. S043, S073."""

from pathlib import Path
from typing import Any, Final

import pytest

from development.stack import Api, Stack, until
from development.stack_check import check_stack

pytestmark = pytest.mark.faults

NODES: Final = """\
- {name: cpu-0, cpu: 8, memory: 32Gi}
- {name: hca-0, cpu: 8, memory: 32Gi, gpus: 2, gpuModel: H100, extendedResources: {rdma/hca: 2}, pool: fast}
"""
FOREVER: Final = [{"name": "simulation.muster.dev/runtime-seconds", "value": "100000"}]
HCA: Final = {"cpuCoreRequest": 1, "extendedResources": [{"resource": "rdma/hca", "quantity": "2"}]}


@pytest.fixture
def stack(tmp_path: Path):
    stack = Stack(tmp_path, "--gpus", "1").start()
    yield stack
    stack.close()


def done(stack: Stack, *arguments: str) -> str:
    ran = stack.muster(*arguments)
    assert ran.returncode == 0, ran.stderr
    return ran.stderr


def nodes(api: Api) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in api.get("/nodes", clusterId=api.cluster("demo"))["nodes"]}


def runs_on(api: Api, workload: str) -> str | None:
    """The node of its one pod, once it runs."""
    pods = api.get(f"/workloads/{workload}/pods")["pods"]
    return next((pod["node"] for pod in pods if pod["phase"] == "Running"), None)


def test_nodes_come_change_and_go_and_kills_in_between_lose_nothing(stack: Stack, tmp_path: Path) -> None:
    file = tmp_path / "nodes.yaml"
    file.write_text(NODES)
    done(stack, "cluster", "add", "demo", "--nodes", str(file))
    api = stack.api()
    until(lambda: len(nodes(api)) == 2 or None, 30)
    assert nodes(api)["hca-0"]["nodePool"] == "fast"
    wanted = api.submit("hca", cluster="demo", image="i", compute=HCA, annotations=FOREVER)["workloadId"]
    assert until(lambda: runs_on(api, wanted), 40) == "hca-0"

    # A node with what it needs comes, and the agent is killed before it may have heard of it.
    done(stack, "node", "add", "hca-1", "--cluster", "demo", "--cpu-cores", "8", "--extended-resource", "rdma/hca=2")
    stack.kill("workers")
    until(lambda: "hca-1" in nodes(api) or None, 60)
    until(lambda: runs_on(api, wanted), 60)

    # Given it runs on one of the two, when that one is removed while all is dead, then it runs on the other.
    first = until(lambda: runs_on(api, wanted), 60)
    other = {"hca-0": "hca-1", "hca-1": "hca-0"}[first]
    done(stack, "node", "remove", first, "--cluster", "demo")
    stack.kill_everything()
    stack.start()
    api = stack.api()
    assert until(lambda: runs_on(api, wanted) == other or None, 90)
    assert first not in nodes(api)

    # What it needs is taken away while it runs: it stays. Another one waits, until a node that is added has it.
    done(stack, "node", "set", other, "--cluster", "demo", "--extended-resource", "rdma/hca-", "--label", "zone=b")
    until(lambda: nodes(api)[other]["labels"].get("zone") == "b" or None, 30)
    assert runs_on(api, wanted) == other
    second = api.submit("second", cluster="demo", image="i", compute=HCA, annotations=FOREVER)["workloadId"]
    api.wait(second, "Pending")
    done(stack, "node", "add", "hca-2", "--cluster", "demo", "--extended-resource", "rdma/hca=2")
    assert until(lambda: runs_on(api, second), 40) == "hca-2"
    report = check_stack(stack, {"hca": wanted, "second": second})
    assert report.left_live == 2
