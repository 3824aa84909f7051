"""An agent whose cluster may not be acted on at the moment: its turn passes by itself, and nothing is tried in vain."""

import asyncio

import msgspec
import pytest

from events.cluster_protocol import RunPod, WantedCluster
from services.agent.agent import Agent
from services.agent.backends.simulated import SimulatedBackend
from services.agent.clock import RealClock
from services.agent.wanted import Wanted, Whole
from services.runtime.connection import connect
from tests.agent.given import CLUSTER, NODES, run_pod
from tests.support.servers import NatsServer

pytestmark = pytest.mark.anyio

PODS = 200


class NotNow(SimulatedBackend):
    """One that says when runs may be started, and notes who was asked for."""

    def __init__(self) -> None:
        super().__init__(NODES, RealClock())
        self.its_turn = False
        self.asked = 0

    def may_start(self) -> bool:
        return self.its_turn

    async def apply(self, pod: RunPod) -> None:
        self.asked += 1
        await super().apply(pod)


async def test_runs_that_may_not_be_started_now_are_started_as_soon_as_they_may(fresh_log: NatsServer) -> None:
    backend, wanted, stop = NotNow(), Wanted(), asyncio.Event()
    cluster = WantedCluster(cluster_id=CLUSTER, name="c", kind="simulated", simulated_nodes=NODES)
    nc = await connect(fresh_log.settings("agent"), "agent")
    running = asyncio.create_task(Agent(cluster, backend, nc, wanted, version="1").run(stop))
    pods = [run_pod(pod_key=f"k{number}-main-0") for number in range(PODS)]
    wanted.put(Whole({pod.pod_key: msgspec.json.encode(pod) for pod in pods}))
    await asyncio.sleep(2.5)
    assert backend.asked == 0
    backend.its_turn = True
    async with asyncio.timeout(20):
        while backend.asked < PODS:
            await asyncio.sleep(0.05)
    stop.set()
    await running
    await nc.close()
