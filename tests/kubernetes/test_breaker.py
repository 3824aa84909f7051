"""What a broken API server lists is not believed by an agent that has just begun, either."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from muster.embedded.control_plane import ControlPlane
from services.agent.backends.interface import BackendError
from services.agent.backends.kubernetes.breaker import Breaker
from services.agent.backends.kubernetes.informer import ListResult
from tests.kubernetes.given import open_kubernetes
from tests.kubernetes.proxy import Mode, proxied
from tests.support.kube import client_of

pytestmark = [pytest.mark.anyio, pytest.mark.kubernetes]


async def test_an_agent_that_begins_does_not_believe_that_nothing_is_there(control_plane: ControlPlane) -> None:
    nothing: ListResult[Any] = ListResult({}, "1")
    async with proxied(control_plane) as proxy, client_of(control_plane, url=proxy.url) as client:
        breaker = Breaker(client, "muster-system")
        await breaker.check(ours={}, listed_pods=nothing, nodes=(), listed_nodes=nothing)
        proxy.mode = Mode.EMPTY_LIST
        with pytest.raises(BackendError, match="lists no namespaces"):
            await breaker.check(ours={}, listed_pods=nothing, nodes=(), listed_nodes=nothing)


async def test_a_run_is_not_refused_because_its_node_was_not_listed(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    async with proxied(control_plane) as proxy:
        proxy.only = lambda request: request.path.startswith("/api/v1/nodes?")
        proxy.mode = Mode.EMPTY_LIST
        cluster = await open_kubernetes(control_plane, tmp_path, kubeconfig=control_plane.kubeconfig(url=proxy.url))
        try:
            with pytest.raises(BackendError, match="did not list it yet"):
                await cluster.backend.apply(cluster.pod())
            proxy.mode = Mode.PASS
            await cluster.backend.list_all()
            await cluster.backend.apply(cluster.pod())
            assert len(await asyncio.to_thread(cluster.pods)) == 1
        finally:
            await cluster.close()
