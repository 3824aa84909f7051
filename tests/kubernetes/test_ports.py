"""Services of ports follow from the pods, and a node port that another Service has is the end of a run."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from development.kubernetes.control_plane import ControlPlane
from events.workload.exposure import FIRST_NODE_PORT, LAST_NODE_PORT
from events.workload.pod_sets import ContainerPort
from services.agent.backends.kubernetes.act.node_ports import NodePorts, NodePortTakenError
from services.agent.backends.kubernetes.read.nodes import Readiness
from services.agent.backends.kubernetes.read.view import View
from tests.agent.given import KEY
from tests.kubernetes.given import KubernetesWatched, open_kubernetes
from tests.support.kube import client_of

pytestmark = [pytest.mark.anyio, pytest.mark.kubernetes]

OTHER = "bcdefghijklm-main-0"
TAKEN = 32_001


@pytest.fixture
async def cluster(control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[KubernetesWatched]:
    opened = await open_kubernetes(control_plane, tmp_path)
    yield opened
    await opened.close()


async def services(cluster: KubernetesWatched) -> dict[str, dict[str, Any]]:
    """Specs, by type."""
    path = f"/api/v1/namespaces/{cluster.namespace}/services"
    found = (await asyncio.to_thread(cluster.plane.admin, "GET", path))["items"]
    return {one["spec"]["type"]: one["spec"] for one in found}


async def test_the_ports_of_a_pod_have_services_that_go_with_it(
    cluster: KubernetesWatched, control_plane: ControlPlane
) -> None:
    """S030, S031."""
    ports = (
        ContainerPort(container=6006, service="ClusterIP", external=81),
        ContainerPort(container=8080, service="LoadBalancer"),
        ContainerPort(container=8888, service="NodePort", external=TAKEN),
        ContainerPort(container=8889, service="NodePort"),
        ContainerPort(container=8890),
    )
    await cluster.backend.apply(cluster.pod(seconds=60, ports=ports))
    async with asyncio.timeout(60):
        while (seen := await cluster.until("running")).address is None:
            await asyncio.sleep(0.05)
    assert seen.address is not None
    chosen = {one.container: one.external for one in seen.address.ports}
    assert chosen[8888] == TAKEN
    assert FIRST_NODE_PORT <= chosen[8889] <= LAST_NODE_PORT
    made = await services(cluster)
    assert made.keys() == {"ClusterIP", "LoadBalancer", "NodePort"}
    assert [(port["port"], port["targetPort"]) for port in made["ClusterIP"]["ports"]] == [(81, 6006)]
    assert [port["nodePort"] for port in made["NodePort"]["ports"]] == [TAKEN, chosen[8889]]
    # Another workload asks for the same one.
    same = (ContainerPort(container=80, service="NodePort", external=TAKEN),)
    await cluster.backend.apply(cluster.pod(pod_key=OTHER, workload_id="w-2", workload_name="other", ports=same))
    failed = await cluster.until("failed", key=OTHER)
    assert (failed.reason, failed.exit_code) == ("node_port_taken", None)
    assert f"node port {TAKEN} of the cluster is in use" in failed.message
    # Two that ask in the same moment, before anything of either is there: the server would tell both that it is free.
    view = View(
        "c", fence=lambda _: 0, readiness=Readiness(not_ready_seconds=5, lost_seconds=5), is_place=lambda _: True
    )
    at_once = (ContainerPort(container=80, service="NodePort", external=TAKEN + 1),)
    one, two = (cluster.pod(workload_id=f"w-{name}", workload_name=name, ports=at_once) for name in ("one", "two"))
    async with client_of(control_plane) as client:
        node_ports = NodePorts(client, view, "c")
        answers = await asyncio.gather(
            *(node_ports.chosen(run, cluster.namespace) for run in (one, two, one)), return_exceptions=True
        )
    assert [isinstance(answer, NodePortTakenError) for answer in answers] == [False, True, False]
    # A second pod of the first one shares its Services.
    await cluster.backend.apply(cluster.pod(pod_key=f"{KEY[:-1]}1", ports=ports))
    assert {one.external for one in (await cluster.until("running", key=f"{KEY[:-1]}1")).address.ports} == set(  # pyright: ignore[reportOptionalMemberAccess]
        chosen.values()
    )
    for key in (KEY, f"{KEY[:-1]}1"):
        await cluster.backend.delete(key, 1, 0)
        await cluster.until("stopped", "succeeded", "failed", key=key)
        await cluster.backend.forget(key, 1)
    assert await services(cluster) == {}
