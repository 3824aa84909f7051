"""What an agent makes of what its backend says: ends are for ever, and nothing is tried that may not be done now."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import msgspec
import pytest
from msgspec.structs import replace
from nats.aio.client import Client

from development.servers import NatsServer
from events.cluster_protocol import ObservedPod, RunPod, SealedValues, WantedCluster
from events.simulated import packed
from events.workload.commands import PodFactKind
from services.agent.agent import Agent
from services.agent.backends.interface import NO_VALUES, BackendError
from services.agent.backends.simulated import SimulatedBackend
from services.agent.clock import RealClock
from services.agent.wanted import Wanted, Whole
from services.runtime.nats.connection import connect
from tests.agent.given import CLUSTER, KEY, NODES, WORKLOAD, ref, run_pod, start_pod
from tests.support.recipes import answering

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

    async def apply(self, pod: RunPod, values: SealedValues = NO_VALUES) -> None:
        self.asked += 1
        await super().apply(pod, values)


@pytest.fixture
async def nc(fresh_log: NatsServer) -> AsyncIterator[Client]:
    client = await connect(fresh_log.settings("agent"), "agent")
    yield client
    await client.close()


async def test_an_end_is_for_ever_whatever_a_watch_that_lags_says_later(nc: Client) -> None:
    cluster = WantedCluster(cluster_id=CLUSTER, name="c", kind="simulated", packed_nodes=packed(NODES))
    agent = Agent(cluster, NotNow(), nc, Wanted(), version="1")
    pod = ObservedPod(
        pod_key=KEY, token=1, workload_id=WORKLOAD, pod=ref(), kind="running", at=datetime(2026, 1, 2, tzinfo=UTC)
    )
    kinds: tuple[PodFactKind, ...] = ("running", "succeeded", "running", "unreachable", "failed")
    for kind in kinds:
        agent._see_pod(replace(pod, kind=kind))
    assert [run.kind for run in agent._known[KEY].runs] == ["succeeded"]


async def test_runs_that_may_not_be_started_now_are_started_as_soon_as_they_may(
    nc: Client, fresh_log: NatsServer
) -> None:
    backend, wanted, stop = NotNow(), Wanted(), asyncio.Event()
    cluster = WantedCluster(cluster_id=CLUSTER, name="c", kind="simulated", packed_nodes=packed(NODES))
    running = asyncio.create_task(Agent(cluster, backend, nc, wanted, version="1").run(stop))
    pods = [run_pod(pod_key=f"k{number}-main-0") for number in range(PODS)]
    async with answering(fresh_log, pods):
        wanted.put(Whole({pod.pod_key: msgspec.json.encode(start_pod(pod)) for pod in pods}))
        await asyncio.sleep(2.5)
        assert backend.asked == 0
        backend.its_turn = True
        async with asyncio.timeout(60):
            while backend.asked < PODS:
                await asyncio.sleep(0.05)
    stop.set()
    await running


class Full(SimulatedBackend):
    """One on which nothing can be started for a while."""

    def __init__(self) -> None:
        super().__init__(NODES, RealClock())
        self.full = True

    async def apply(self, pod: RunPod, values: SealedValues = NO_VALUES) -> None:
        if self.full:
            raise BackendError("no space left on device")
        await super().apply(pod, values)


async def test_a_run_that_cannot_be_started_says_why_once(
    nc: Client, fresh_log: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its workload would be Initializing for ever, and nobody would know why."""
    monkeypatch.setattr("services.agent.agent.FIRST_RETRY_SECONDS", 0.05)
    monkeypatch.setattr("services.agent.agent.TOLD_AFTER_SECONDS", 0.2)
    backend, wanted, stop = Full(), Wanted(), asyncio.Event()
    cluster = WantedCluster(cluster_id=CLUSTER, name="c", kind="simulated", packed_nodes=packed(NODES))
    agent = Agent(cluster, backend, nc, wanted, version="1")
    told: list[ObservedPod] = []
    say = agent._reports.pod

    def heard(pod: ObservedPod) -> None:
        told.append(pod)
        say(pod)

    monkeypatch.setattr(agent._reports, "pod", heard)
    running = asyncio.create_task(agent.run(stop))
    async with answering(fresh_log, [run_pod()]):
        wanted.put(Whole({KEY: msgspec.json.encode(start_pod(run_pod()))}))
        async with asyncio.timeout(60):
            while not told:
                await asyncio.sleep(0.02)
        (pod,) = told
        assert (pod.kind, pod.token) == ("starting", 1)
        (warning,) = pod.warnings
        assert warning.reason == "not_started"
        assert "no space left on device" in warning.message
        await asyncio.sleep(1)
        assert len(told) == 1
        backend.full = False
        async with asyncio.timeout(60):
            while len(told) == 1:
                await asyncio.sleep(0.02)
        assert told[1].warnings == ()
    stop.set()
    await running
