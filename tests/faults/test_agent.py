"""An agent whose NATS is killed: its pods run on, and what it knows is said again."""

import asyncio
import socket
from pathlib import Path

import pytest

from development.servers import EVERYTHING, NatsServer
from development.streams import recreate_streams
from services.runtime.nats.connection import connect
from services.runtime.nats.streams import create_streams
from services.runtime.process.settings import Settings
from tests.agent.control_plane import control_plane, running_service
from tests.agent.given import CLUSTER, KEY, run_pod, settled, stop_pod

pytestmark = [pytest.mark.faults, pytest.mark.anyio]


async def create_missing_streams(settings: Settings) -> None:
    nc = await connect(settings, EVERYTHING)
    try:
        await create_streams(nc, settings.replicas)
    finally:
        await nc.close()


def local(script: str, *, key: str = KEY):
    return run_pod(1, pod_key=key, node_name=socket.gethostname(), arguments=("/bin/sh", "-c", script))


async def test_with_nats_killed_pods_run_on_and_everything_is_said_again_when_it_is_back(
    server_folder: Path, tmp_path: Path
) -> None:
    server = NatsServer(server_folder / "agent-nats")
    server.start()
    await recreate_streams(server.settings(EVERYTHING))
    try:
        async with running_service(server, tmp_path / "data"), control_plane(server, CLUSTER) as plane:
            await plane.want_cluster("local")
            await plane.want(local(f"sleep 2; echo done > {tmp_path}/done; sleep 1000"))
            await plane.want(local("sleep 1; exit 5", key="ends-main-0"))
            await plane.until_pod("running")
            await plane.until_pod("running", key="ends-main-0")
            server.kill()
            await asyncio.sleep(3)
            assert (tmp_path / "done").exists()
            plane.said.clear()
            server.start()
            # One server alone loses memory streams altogether; setup makes them again, empty. Nothing is wanted then,
            # and nothing is ended for that.
            await create_missing_streams(server.settings(EVERYTHING))
            end = await plane.until_pod("failed", key="ends-main-0")
            assert end.exit_code == 5
            await plane.until_pod("running")
            await plane.want_cluster("local")
            await plane.want(settled(key="ends-main-0"), stop_pod(1, grace_seconds=1))
            await plane.until_pod("stopped")
    finally:
        server.stop()
