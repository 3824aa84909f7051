"""What a list lacks: believed where somebody of ours took it away or nothing is lost by it, else not."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from development.kubernetes.control_plane import ControlPlane
from development.kubernetes.proxy import Mode, proxied
from services.agent.backends.interface import BackendError
from services.agent.backends.kubernetes.breaker import MISSING_AT_MOST, Breaker
from services.agent.backends.kubernetes.read.informer import ListResult
from tests.kubernetes.given import KubernetesWatched, open_kubernetes, two_agents
from tests.support.kube import client_of

pytestmark = [pytest.mark.anyio, pytest.mark.kubernetes]

MANY = MISSING_AT_MOST + 1


def key(number: int) -> str:
    return f"abcdefghijk{number}-main-0"


async def run_many(cluster: KubernetesWatched, **more: Any) -> None:
    for number in range(MANY):
        await cluster.backend.apply(cluster.pod(pod_key=key(number), **more))


async def is_there(cluster: KubernetesWatched) -> int:
    return len(await asyncio.to_thread(cluster.pods))


async def test_an_agent_that_begins_does_not_believe_that_nothing_is_there(control_plane: ControlPlane) -> None:
    nothing: ListResult[Any] = ListResult({}, "1")
    knows_nothing: dict[str, Any] = {
        "ours": (),
        "is_let_go": lambda _: False,
        "listed_pods": nothing,
        "nodes": (),
        "used_nodes": set(),
        "listed_nodes": nothing,
    }
    async with proxied(control_plane) as proxy, client_of(control_plane, url=proxy.url) as client:
        breaker = Breaker(client, "muster-system")
        await breaker.check(**knows_nothing)
        proxy.mode = Mode.EMPTY_LIST
        with pytest.raises(BackendError, match="lists no namespaces"):
            await breaker.check(**knows_nothing)


async def test_a_run_is_not_refused_because_its_node_was_not_listed(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    async with proxied(control_plane) as proxy:
        proxy.only = lambda request: request.path.startswith("/api/v1/nodes?")
        proxy.mode = Mode.EMPTY_LIST
        cluster = await open_kubernetes(control_plane, tmp_path, kubeconfig=control_plane.kubeconfig(url=proxy.url))
        try:
            with pytest.raises(BackendError, match="has not listed it yet"):
                await cluster.backend.apply(cluster.pod())
            proxy.mode = Mode.PASS
            await cluster.backend.list_all()
            await cluster.backend.apply(cluster.pod())
            assert len(await asyncio.to_thread(cluster.pods)) == 1
        finally:
            await cluster.close()


async def test_runs_that_another_agent_ended_and_let_go_meanwhile_are_no_reason_for_doubt(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    """Else an agent that stood still for some seconds would never go on."""
    async with two_agents(control_plane, tmp_path) as (other, late):
        await run_many(other, seconds=0.05)
        for number in range(MANY):
            await late.until("succeeded", key=key(number))
        await late.look_away()
        for number in range(MANY):
            await other.until("succeeded", key=key(number))
            await other.backend.forget(key(number), 1)
        async with asyncio.timeout(60):
            while await is_there(other):
                await asyncio.sleep(0.05)
        assert (await late.backend.list_all()).pods == ()


async def test_runs_that_somebody_else_took_away_all_at_once_are(control_plane: ControlPlane, tmp_path: Path) -> None:
    cluster = await open_kubernetes(control_plane, tmp_path)
    try:
        await run_many(cluster)
        await cluster.look_away()
        for pod in await asyncio.to_thread(cluster.pods):
            path = f"/api/v1/namespaces/{cluster.namespace}/pods/{pod['metadata']['name']}"
            await asyncio.to_thread(control_plane.admin, "PATCH", path, {"metadata": {"finalizers": None}})
            await asyncio.to_thread(control_plane.admin, "DELETE", path, {"gracePeriodSeconds": 0})
        assert not await is_there(cluster)
        with pytest.raises(BackendError, match=f"lists only 0 of {MANY} pods of ours: not believed"):
            await cluster.backend.list_all()
    finally:
        await cluster.close()


async def test_nodes_may_go_where_nothing_of_ours_lives_on_them(control_plane: ControlPlane, tmp_path: Path) -> None:
    """A cluster that grows and shrinks by itself takes away idle nodes, also while nobody could ask."""
    cluster = await open_kubernetes(control_plane, tmp_path, nodes=2 * MANY)
    try:
        nodes = sorted(node.name for node in (await cluster.backend.list_all()).nodes)
        used, idle = nodes[:MANY], nodes[MANY:]
        for number, name in enumerate(used):
            await cluster.backend.apply(cluster.pod(pod_key=key(number), node_name=name))
        await cluster.look_away()
        for name in idle:
            await asyncio.to_thread(control_plane.admin, "DELETE", f"/api/v1/nodes/{name}")
        assert sorted(node.name for node in (await cluster.backend.list_all()).nodes if not node.gone) == used
        for name in used:
            await asyncio.to_thread(control_plane.admin, "DELETE", f"/api/v1/nodes/{name}")
        with pytest.raises(BackendError, match=f"lists only 0 of {MANY} nodes with runs of ours: not believed"):
            await cluster.backend.list_all()
    finally:
        await cluster.close()
