"""The Service of several pods follows from the pods: whoever dies or is refused in between, none is missing or left."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from development.kubernetes.control_plane import ControlPlane
from development.kubernetes.proxy import Mode, Proxy, proxied
from services.agent.backends.interface import BackendError
from services.agent.backends.kubernetes.backend import KubernetesBackend
from tests.kubernetes.given import KubernetesWatched, open_kubernetes, two_agents

pytestmark = [pytest.mark.anyio, pytest.mark.kubernetes]

KEYS = ("abcdefghijkl-main-0", "abcdefghijkl-main-1")


@pytest.fixture
async def proxy(control_plane: ControlPlane) -> AsyncIterator[Proxy]:
    async with proxied(control_plane) as made:
        yield made


@pytest.fixture
async def cluster(control_plane: ControlPlane, proxy: Proxy, tmp_path: Path) -> AsyncIterator[KubernetesWatched]:
    opened = await open_kubernetes(control_plane, tmp_path, kubeconfig=control_plane.kubeconfig(url=proxy.url))
    yield opened
    await opened.close()


async def apply(cluster: KubernetesWatched, index: int, *, seconds: float = 60) -> None:
    ref = msgspec.structs.replace(cluster.pod().pod, index=index)
    await cluster.backend.apply(cluster.pod(pod_key=KEYS[index], pod=ref, pods=2, seconds=seconds))


async def services(cluster: KubernetesWatched) -> list[dict[str, Any]]:
    path = f"/api/v1/namespaces/{cluster.namespace}/services"
    return (await asyncio.to_thread(cluster.plane.admin, "GET", path))["items"]


async def until_there(cluster: KubernetesWatched) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while not (found := await services(cluster)):
            await asyncio.sleep(0.05)
    return found[0]


async def test_one_that_could_not_be_made_with_its_pod_is_made_soon(cluster: KubernetesWatched, proxy: Proxy) -> None:
    proxy.only = lambda request: "/services" in request.path
    proxy.mode = Mode.ERROR
    await apply(cluster, 0)
    assert await services(cluster) == []
    proxy.mode = Mode.PASS
    await until_there(cluster)


async def test_one_that_somebody_deleted_is_made_again_after_the_next_list(cluster: KubernetesWatched) -> None:
    await apply(cluster, 0)
    made = await until_there(cluster)
    path = f"/api/v1/namespaces/{cluster.namespace}/services/{made['metadata']['name']}"
    await asyncio.to_thread(cluster.plane.admin, "DELETE", path)
    await cluster.backend.list_all()
    again = await until_there(cluster)
    assert again["spec"]["selector"] == made["spec"]["selector"]


async def test_it_goes_before_the_last_pod_is_let_go(cluster: KubernetesWatched, proxy: Proxy) -> None:
    """So who dies after the one finds the other, and lets it go again."""
    for index in (0, 1):
        await apply(cluster, index, seconds=0.05)
        await cluster.until("succeeded", key=KEYS[index])
    await cluster.backend.forget(KEYS[0], 1)
    assert len(await services(cluster)) == 1
    proxy.only = lambda request: request.method == "DELETE" and "/pods/" in request.path
    proxy.mode = Mode.ERROR
    with pytest.raises(BackendError):
        await cluster.backend.forget(KEYS[1], 1)
    assert await services(cluster) == []
    assert len(await asyncio.to_thread(cluster.pods)) == 1
    proxy.mode = Mode.PASS
    await cluster.backend.forget(KEYS[1], 1)


async def test_the_last_pod_stays_until_its_service_could_be_deleted(cluster: KubernetesWatched, proxy: Proxy) -> None:
    await apply(cluster, 0, seconds=0.05)
    await cluster.until("succeeded", key=KEYS[0])
    proxy.only = lambda request: request.method == "DELETE" and "/services/" in request.path
    proxy.mode = Mode.ERROR
    with pytest.raises(BackendError):
        await cluster.backend.forget(KEYS[0], 1)
    assert len(await asyncio.to_thread(cluster.pods)) == 1
    proxy.mode = Mode.PASS
    await cluster.backend.forget(KEYS[0], 1)
    assert await services(cluster) == []


async def test_one_that_could_not_be_deleted_keeps_no_pod_and_is_deleted_soon(
    cluster: KubernetesWatched, proxy: Proxy
) -> None:
    """An API server that just began refuses what it allows a moment later."""
    await apply(cluster, 0, seconds=0.05)
    await cluster.until("succeeded", key=KEYS[0])
    proxy.only = lambda request: request.method == "DELETE" and "/services/" in request.path
    proxy.mode = Mode.FORBIDDEN
    await cluster.backend.forget(KEYS[0], 1)
    assert await asyncio.to_thread(cluster.pods) == []
    assert len(await services(cluster)) == 1
    proxy.mode = Mode.PASS
    async with asyncio.timeout(60):
        while await services(cluster):
            await asyncio.sleep(0.05)


async def test_an_agent_that_does_not_act_any_more_makes_and_deletes_none(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    """As one that stood still in the middle of it, while another one became the one that acts."""
    async with two_agents(control_plane, tmp_path) as (acts, late):
        assert isinstance(late.backend, KubernetesBackend)
        await apply(acts, 0)
        made = await until_there(acts)
        await late.until("running", key=KEYS[0])
        pod = late.backend._view.pods[KEYS[0]]
        with pytest.raises(BackendError, match="another agent of this cluster acts"):
            async with late.backend._services.leaving(pod):
                pass
        assert await services(acts) == [made]
        await acts.backend.delete(KEYS[0], 1, 0)
        await acts.until("stopped", key=KEYS[0])
        await acts.backend.forget(KEYS[0], 1)
        with pytest.raises(BackendError, match="another agent of this cluster acts"):
            await late.backend._services.ensure(pod)
        assert await services(acts) == []
