"""Scheduler and cluster_sync together on a real NATS, two of each at once, with an agent that only speaks the protocol.

The agent of this test runs nothing: it answers what WANTED says with what a cluster would report.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime

import msgspec
import pytest
from nats.aio.client import Client

from development.checker.log import Report, check
from development.checker.reading import read_log
from development.servers import EVERYTHING, NatsServer
from events.cluster_protocol import ObservedCluster, ObservedNode, ObservedPod, SettledPod, StartPod, StopPod, WantedPod
from events.ids import node_key
from events.node import NodeFacts
from events.subjects import (
    WANTED_STREAM,
    observed_cluster_subject,
    observed_node_subject,
    observed_pod_subject,
    wanted_filter,
)
from events.workload.commands import DeleteWorkload, PodFactKind, ResumeWorkload, SuspendWorkload
from services.cluster_sync import service as cluster_sync
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.log.latest import Latest
from services.runtime.nats.connection import connect
from services.runtime.nats.requests import Requests
from services.runtime.process.host import Health, Run
from services.runtime.process.settings import Settings
from services.scheduler import service as scheduler
from tests.support import openb
from tests.support.people import People, in_flight

pytestmark = pytest.mark.anyio

WAIT_SECONDS = 90.0
AGAIN_SECONDS = 1.0
"""How often the agent repeats what nobody settled."""
NODE = NodeFacts(cpu_milli=32_000, memory_bytes=2**38, gpu_count=8, gpu_memory_bytes=2**36)
_WANTED = msgspec.json.Decoder(WantedPod)


class Agent:
    """One cluster as its agent would tell of it."""

    def __init__(self, nc: Client, cluster_id: str, *, run_seconds: tuple[float, float] = (0.0, 0.02)) -> None:
        self._nc = nc
        self._cluster_id = cluster_id
        self._run_seconds = run_seconds
        self._wanted = Latest(nc, Requests(nc), WANTED_STREAM, wanted_filter(cluster_id))
        self._said: dict[str, ObservedPod] = {}
        self._runs: dict[str, asyncio.Task[None]] = {}
        self._fences: dict[str, int] = {}
        """By pod key: the newest run that was taken up or settled. An instance of cluster_sync that lags behind the
        other may ask for it again, and must not be heard."""
        self.failing: set[str] = set()
        """Keys of workloads whose next run fails."""
        self.live: set[str] = set()
        self.most_live = 0

    async def nodes(self, facts: dict[str, NodeFacts]) -> None:
        for name, of_node in facts.items():
            subject = observed_node_subject(self._cluster_id, node_key(self._cluster_id, name))
            await self._nc.publish(subject, msgspec.json.encode(ObservedNode(name=name, facts=of_node)))

    async def run(self) -> None:
        self._wanted.start()
        again = 0.0
        try:
            while True:
                for message in await self._wanted.next(0.2):
                    if ".pod." in message.subject and message.data:
                        self._take(_WANTED.decode(message.data))
                if time.monotonic() >= again:
                    again = time.monotonic() + AGAIN_SECONDS
                    beat = ObservedCluster(at=datetime.now(UTC), agent_version="test")
                    await self._nc.publish(observed_cluster_subject(self._cluster_id), msgspec.json.encode(beat))
                    for said in list(self._said.values()):
                        await self._publish(said)
        finally:
            for task in self._runs.values():
                task.cancel()
            await asyncio.gather(*self._runs.values(), return_exceptions=True)
            await self._wanted.close()

    def _take(self, word: WantedPod) -> None:
        known = self._said.get(word.pod_key)
        match word:
            case StartPod():
                if self._fences.get(word.pod_key, 0) < word.token:
                    self._fences[word.pod_key] = word.token
                    self._runs[word.pod_key] = asyncio.create_task(self._run_one(word))
            case StopPod():
                if known is not None and known.token == word.token and known.kind in {"succeeded", "failed", "stopped"}:
                    return
                task = self._runs.pop(word.pod_key, None)
                if task is not None:
                    task.cancel()
                self.live.discard(word.pod_key)
                self._fences[word.pod_key] = max(self._fences.get(word.pod_key, 0), word.token)
                self._runs[word.pod_key] = asyncio.create_task(self._say(word, "stopped"))
            case SettledPod():
                self._fences[word.pod_key] = max(self._fences.get(word.pod_key, 0), word.token)
                if known is not None and known.token <= word.token:
                    del self._said[word.pod_key]

    async def _run_one(self, word: StartPod) -> None:
        started_at = datetime.now(UTC)
        self.live.add(word.pod_key)
        self.most_live = max(self.most_live, len(self.live))
        if random.random() < 0.5:
            await self._say(word, "starting")
        await self._say(word, "running", started_at=started_at)
        await asyncio.sleep(random.uniform(*self._run_seconds))
        workload_key = word.pod_key.rsplit("-", 2)[0]
        failed = workload_key in self.failing
        self.failing.discard(workload_key)
        self.live.discard(word.pod_key)
        await self._say(word, "failed" if failed else "succeeded", started_at=started_at)

    async def _say(self, word: StartPod | StopPod, kind: PodFactKind, *, started_at: datetime | None = None) -> None:
        observed = ObservedPod(
            pod_key=word.pod_key,
            token=word.token,
            workload_id=word.workload_id,
            pod=word.pod,
            kind=kind,
            at=datetime.now(UTC),
            exit_code=1 if kind == "failed" else 0 if kind == "succeeded" else None,
            started_at=started_at,
        )
        self._said[word.pod_key] = observed
        await self._publish(observed)

    async def _publish(self, observed: ObservedPod) -> None:
        subject = observed_pod_subject(self._cluster_id, observed.pod_key)
        await self._nc.publish(subject, msgspec.json.encode(observed))


class Plane:
    """The control plane around one log: services that are started and killed, people, and one agent."""

    def __init__(self, server: NatsServer, nc: Client) -> None:
        self.server = server
        self.nc = nc
        self.people = People(JetStreamEventStore(nc))
        self.agent: Agent
        self._stops: list[tuple[asyncio.Event, asyncio.Task[None]]] = []
        self._agent_task: asyncio.Task[None] | None = None

    async def begin(self, facts: dict[str, NodeFacts]) -> None:
        await self.people.cluster("there", "kubernetes")
        await self.people.project()
        self.agent = Agent(self.nc, self.people.cluster_id)
        self._agent_task = asyncio.create_task(self.agent.run())
        await self.agent.nodes(facts)

    async def start(self, name: str, run: Run) -> asyncio.Task[None]:
        health, stop = Health(name), asyncio.Event()
        task = asyncio.ensure_future(serve(run, self.server.settings(name), health, stop))
        self._stops.append((stop, task))
        async with asyncio.timeout(WAIT_SECONDS):
            while not health.serving and not task.done():
                await asyncio.sleep(0.01)
        return task

    async def both_twice(self) -> None:
        for _ in range(2):
            await self.start("scheduler", scheduler.run)
            await self.start("cluster_sync", cluster_sync.run)

    async def kill(self, task: asyncio.Task[None]) -> None:
        """At whatever it is doing, without a chance to finish."""
        self._stops = [(stop, other) for stop, other in self._stops if other is not task]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def check(self) -> Report:
        return check(await read_log(self.nc), self.people.submitted)

    async def end(self) -> None:
        for stop, _ in self._stops:
            stop.set()
        await asyncio.gather(*(task for _, task in self._stops))
        if self._agent_task is not None:
            self._agent_task.cancel()
            await asyncio.gather(self._agent_task, return_exceptions=True)


@pytest.fixture
async def plane(fresh_log: NatsServer) -> AsyncIterator[Plane]:
    nc = await connect(fresh_log.settings(EVERYTHING), EVERYTHING)
    plane = Plane(fresh_log, nc)
    yield plane
    await plane.end()
    await nc.close()


async def serve(run: Run, settings: Settings, health: Health, stop: asyncio.Event) -> None:
    await run(settings, health, stop)


async def until(probe: Callable[[], Awaitable[bool]], what: str, *, every_seconds: float = 0.1) -> None:
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            while not await probe():
                await asyncio.sleep(every_seconds)
    except TimeoutError:
        raise AssertionError(f"not within {WAIT_SECONDS} s: {what}") from None


async def all_over(plane: Plane, *, completed: int) -> Report:
    """Until so many have completed and nothing is held any more."""
    report = Report()

    async def over() -> bool:
        nonlocal report
        report = await plane.check()
        return len(report.completed) >= completed and not report.left_reserved

    await until(over, f"{completed} completions", every_seconds=0.5)
    return report


async def test_everything_completes_with_two_of_each_at_once(plane: Plane):
    """Issue section 6, item 8."""
    await plane.begin({f"n{n}": NODE for n in range(5)})
    await plane.both_twice()
    plane.agent.failing.update(plane.people.key_of(f"w{n}") for n in range(0, 60, 6))
    names = [f"w{n}" for n in range(60)]
    await in_flight([plane.people.submit(n, gpu_devices_request=1, completions=2, parallelism=2) for n in names])
    report = await all_over(plane, completed=60)
    assert not report.violations
    assert len(report.completed) == 60
    assert report.bindings == 60 * 2 + 10
    assert plane.agent.most_live <= 40


async def test_suspended_resumed_and_deleted_under_load_nothing_is_left_behind(plane: Plane):
    await plane.begin({f"n{n}": NODE for n in range(3)})
    await plane.both_twice()
    plane.agent._run_seconds = (0.05, 0.3)

    async def life(n: int) -> None:
        key = await plane.people.submit(f"w{n}", gpu_devices_request=2, completions=3, parallelism=2)
        await asyncio.sleep(random.uniform(0, 0.3))
        if n % 3 == 0:
            await plane.people.command(key, DeleteWorkload)
        elif n % 3 == 1:
            with contextlib.suppress(AssertionError):  # it may have completed meanwhile: refused by name
                await plane.people.command(key, SuspendWorkload)
                await asyncio.sleep(random.uniform(0, 0.2))
                await plane.people.command(key, ResumeWorkload)

    await in_flight([life(n) for n in range(30)], at_once=10)
    report = await all_over(plane, completed=20)
    assert not report.violations
    assert len(report.completed) in range(20, 31)


async def test_killed_again_and_again_every_submission_completes(plane: Plane):
    """Issue section 6, item 7: the share of these two services."""
    await plane.begin({f"n{n}": NODE for n in range(5)})
    chance = random.Random(11)
    names = [f"w{n}" for n in range(80)]
    submitting = asyncio.create_task(
        in_flight([plane.people.submit(name, gpu_devices_request=1) for name in names], at_once=2)
    )
    for _ in range(8):
        tasks = [
            await plane.start("scheduler", scheduler.run),
            await plane.start("cluster_sync", cluster_sync.run),
        ]
        await asyncio.sleep(chance.uniform(0.0, 0.15))
        for task in tasks:
            await plane.kill(task)
    await submitting
    await plane.both_twice()
    report = await all_over(plane, completed=80)
    assert not report.violations
    assert report.bindings == 80


async def test_pods_of_openb_all_complete_within_every_nodes_capacity(plane: Plane):
    """Issue section 6, item 6, without the API; with two of each service (item 8). Two thousand, through the API:
    tests/faults/test_openb.py.
    """
    pods = openb.pods(250)
    await plane.begin(openb.nodes())
    await plane.both_twice()
    await in_flight([plane.people.submit(name, **compute) for name, compute in pods.items()])
    report = await all_over(plane, completed=250)
    assert not report.violations
    assert report.bindings == report.reservations == report.releases == 250
