"""An agent that stood still, or was put off, does not make again what another made, ended and let go meanwhile."""

import asyncio
from pathlib import Path

import pytest

from development.kubernetes.control_plane import ControlPlane
from development.kubernetes.proxy import Mode, proxied
from services.agent.backends.interface import BackendError
from services.agent.backends.kubernetes.backend import KubernetesBackend
from tests.agent.given import KEY
from tests.kubernetes.given import open_kubernetes, two_agents

pytestmark = [pytest.mark.anyio, pytest.mark.kubernetes]


async def test_a_run_that_came_and_went_meanwhile_is_not_made_again(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    async with two_agents(control_plane, tmp_path) as (other, late):
        run = other.pod(seconds=0.05)
        await other.backend.apply(run)
        await other.until("succeeded")
        await other.backend.forget(KEY, 1)
        async with asyncio.timeout(60):
            while await asyncio.to_thread(other.pods):
                await asyncio.sleep(0.05)
        assert isinstance(late.backend, KubernetesBackend)
        late.backend._view.forget(KEY, 1)  # as if it had not heard of it yet
        with pytest.raises(BackendError, match="another agent of this cluster acts"):
            await late.backend.apply(run)
        await other.backend.close()
        async with asyncio.timeout(60):
            while not late.backend._lease.held():
                await asyncio.sleep(0.05)
        with pytest.raises(BackendError, match="another agent of this cluster acts"):
            await late.backend.apply(run)
        await late.backend.list_all()
        with pytest.raises(BackendError, match="may not be started any more"):
            await late.backend.apply(run)
        assert await asyncio.to_thread(other.pods) == []


async def test_a_run_whose_creation_was_put_off_is_not_sent_again_without_another_look(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    async with proxied(control_plane) as proxy:
        way = control_plane.kubeconfig(url=proxy.url)
        opened = await open_kubernetes(control_plane, tmp_path, kubeconfig=way)
        try:
            proxy.only = lambda request: request.method == "POST" and "/pods" in request.path
            proxy.mode, proxy.retry_after_seconds = Mode.TOO_MANY, 2
            with pytest.raises(BackendError, match="429") as put_off:
                await opened.backend.apply(opened.pod())
            assert put_off.value.again_seconds == 2
            assert proxy.requests["POST", f"/api/v1/namespaces/{opened.namespace}/pods"] == 1
        finally:
            await opened.close()


async def test_nobody_says_of_a_run_that_it_never_was_where_another_agent_has_made_it(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    async with two_agents(control_plane, tmp_path) as (other, late):
        assert not await late.backend.is_there(KEY, 1)
        await other.backend.apply(other.pod())
        assert await late.backend.is_there(KEY, 1)
        assert not await late.backend.is_there(KEY, 2), "another run of it is no reason to wait"
