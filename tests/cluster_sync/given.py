"""A log, and the agent's side of one cluster, on a real NATS."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from development.servers import NatsServer
from events.aggregate import WORKLOAD, Aggregate, draft
from events.cluster_protocol import (
    ObservedCluster,
    ObservedPod,
    RecipeRequest,
    RunPod,
    StartPod,
    StopPod,
    WantedPod,
    pod_key,
)
from events.codec import UNDECODABLE
from events.commit import service_actor
from events.decision import Context
from events.ids import cluster_key, incarnation_id, node_key, project_key, workload_key
from events.node import NodeFacts
from events.phases import Phase
from events.refusal import Refusal
from events.subjects import (
    WANTED_STREAM,
    agent_recipes_subject,
    observed_cluster_subject,
    observed_pod_subject,
    recipes_subject,
    wanted_filter,
    wanted_subject,
)
from events.workload.commands import CreateWorkload, PlacePods, PodFactKind
from events.workload.places import bindable
from events.workload.pod import Placement
from events.workload.spec import TrainingSpec
from services.cluster_sync.service import run
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.log.latest import read_latest
from services.runtime.log.store import Committed
from services.runtime.nats.jetstream_api import PubAck, decode_ack, stream_info
from services.runtime.nats.requests import Requests
from services.runtime.process.host import Health
from services.scheduler.plan import MAX_PODS_PER_PLAN

CLUSTER_ID = incarnation_id(cluster_key("c"), "add-c")
PROJECT_ID = incarnation_id(project_key("nlp"), "create-nlp")
KEY = workload_key(PROJECT_ID, "train")
POD = pod_key(KEY, "main", 0)
NODE_KEY = node_key(CLUSTER_ID, "n1")
FACTS = NodeFacts(cpu_milli=4000, memory_bytes=2**30, gpu_count=2, labels={"gpu": "a100"})
WANTED = msgspec.json.Decoder(WantedPod)


async def when(read: Callable[[], Any], test: Callable[[Any], bool]) -> Any:
    """What was read, where the test holds for it."""
    found = await read()
    return found if test(found) else None


class World:
    """The log, and the agent's side of one cluster."""

    def __init__(self, server: NatsServer, nc: Any) -> None:
        self.server = server
        self.nc = nc
        self.requests = Requests(nc)
        self.store = JetStreamEventStore(nc)
        self.actor = service_actor("test")

    async def decide(self, aggregate: Aggregate[Any], key: str, command: Any, command_id: str) -> None:
        chain = await self.store.load(aggregate, key)
        now = datetime.now(UTC)
        actor = self.actor
        context = Context(now=now, actor=actor, command_id=command_id, version=chain.version)
        decision = aggregate.decide(command, chain.state, context)
        assert not isinstance(decision, Refusal), decision
        made = draft(aggregate, key, chain, decision, command_id=command_id, actor=actor, now=now)
        assert isinstance(await self.store.append(made), Committed)

    async def workload(self) -> Any:
        return (await self.store.load(WORKLOAD, KEY)).state

    async def create(self, *, image: str = "i", **spec: Any) -> str:
        command = CreateWorkload(
            kind="Training",
            name="train",
            requested_name="train",
            project_id=PROJECT_ID,
            cluster_id=CLUSTER_ID,
            spec=TrainingSpec(image=image, **spec),
        )
        await self.decide(WORKLOAD, KEY, command, f"create-{datetime.now(UTC).isoformat()}")
        return (await self.workload()).workload_id

    async def bind(self) -> None:
        state = await self.workload()
        placements = [
            Placement(pod=pod, node_key=NODE_KEY, node_name="n1", pool="default")
            for pod in bindable(state, datetime.now(UTC))
        ]
        for start in range(0, len(placements), MAX_PODS_PER_PLAN):
            part = tuple(placements[start : start + MAX_PODS_PER_PLAN])
            command = PlacePods(workload_id=state.workload_id, placements=part)
            await self.decide(WORKLOAD, KEY, command, f"bind-{start}-{datetime.now(UTC).isoformat()}")

    async def say(self, subject: str, message: msgspec.Struct) -> PubAck:
        return decode_ack(await self.requests.ask(subject, msgspec.json.encode(message), seconds=3))

    async def heartbeat(self, protection: bool | None = None, **more: Any) -> None:
        beat = ObservedCluster(at=datetime.now(UTC), agent_version="1", ownership_protection=protection, **more)
        await self.say(observed_cluster_subject(CLUSTER_ID), beat)

    async def report(
        self, word: StartPod | StopPod, kind: PodFactKind, *, at: datetime | None = None, **more: Any
    ) -> PubAck:
        observed = ObservedPod(
            pod_key=word.pod_key,
            token=word.token,
            workload_id=word.workload_id,
            pod=word.pod,
            kind=kind,
            at=at or datetime.now(UTC),
            **more,
        )
        return await self.say(observed_pod_subject(CLUSTER_ID, word.pod_key), observed)

    async def recipe(self, word: StartPod) -> RunPod:
        """What the run is made of, asked for as its agent does."""
        answers = await self.nc.subscribe(agent_recipes_subject(CLUSTER_ID))
        try:
            request = RecipeRequest(pod_key=word.pod_key, token=word.token)
            await self.nc.publish(recipes_subject(CLUSTER_ID), msgspec.json.encode(request))
            return msgspec.json.decode((await answers.next_msg(timeout=60)).data, type=RunPod)
        finally:
            await answers.unsubscribe()

    async def wanted(self, pod: str = POD) -> Any:
        found = await read_latest(self.nc, self.requests, WANTED_STREAM, wanted_filter(CLUSTER_ID))
        payload = found.get(wanted_subject(CLUSTER_ID, pod))
        with contextlib.suppress(*UNDECODABLE):
            return None if payload is None else WANTED.decode(payload)
        return None

    async def wanted_seq(self) -> int:
        """How many words were said in WANTED."""
        return (await stream_info(self.requests, WANTED_STREAM, seconds=3)).state.last_seq

    async def wanted_is(self, kind: type, pod: str = POD) -> Any:
        async def probe() -> Any:
            word = await self.wanted(pod)
            return word if isinstance(word, kind) else None

        return await eventually(probe)

    async def phase_is(self, phase: Phase) -> Any:
        async def probe() -> Any:
            state = await self.workload()
            return state if state.phase is phase else None

        return await eventually(probe)


async def eventually(probe: Callable[[], Any], seconds: float = 60) -> Any:
    async with asyncio.timeout(seconds):
        while True:
            found = await probe()
            if found:
                return found
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def serving(server: NatsServer, **settings: Any) -> AsyncGenerator[None]:
    """cluster_sync with its own password, until the block ends."""
    stop, health = asyncio.Event(), Health("cluster_sync")
    task = asyncio.create_task(run(server.settings("cluster_sync", **settings), health, stop))

    async def up() -> bool:
        if task.done():
            task.result()
        return health.serving

    await eventually(up)
    try:
        yield
    finally:
        stop.set()
        await asyncio.wait_for(task, 60)
