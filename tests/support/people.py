"""What people and clusters say, written straight to an event store: for tests of the services that follow the log."""

import asyncio
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from events.aggregate import AGGREGATES, PROJECT, WORKLOAD, Chain, draft
from events.cluster import AddCluster, ClusterKind, ReportCluster
from events.commit import Actor, Commit
from events.decision import Context
from events.ids import cluster_key, node_key, project_key, workload_key
from events.node import NodeFacts, ReportNode
from events.project import CreateProject
from events.refusal import Refusal
from events.simulated import SimulatedNodes
from events.workload.commands import CreateWorkload, PodFact, PodFactKind, ReportPods
from events.workload.pod import PodRef
from events.workload.spec import ComputeSpec, TrainingSpec
from events.workload.state import Workload
from services.runtime.log.store import Committed, EventStore

PERSON = Actor(id="ann")
TRIES = 40


class People:
    """Writes commands to one log, as often as the guards ask for it."""

    def __init__(self, store: EventStore) -> None:
        self.store = store
        self.cluster_id = ""
        self.project_id = ""
        self.submitted: dict[str, str] = {}
        """Workload id by name."""

    async def do(self, aggregate: str, key: str, command: Any) -> Chain[Any]:
        """Decide, append, again where somebody was faster or the outcome is unknown; the chain after it."""
        kind, command_id = AGGREGATES[aggregate], str(uuid4())
        for _ in range(TRIES):
            chain: Chain[Any] = await self.store.load(kind, key)
            if chain.remembered(command_id):
                return chain
            now = datetime.now(UTC)
            context = Context(now=now, actor=PERSON, command_id=command_id, version=chain.version)
            events = kind.decide(command, chain.state, context)
            assert not isinstance(events, Refusal), events
            if not events:
                return chain
            outcome = await self.store.append(
                draft(kind, key, chain, events, command_id=command_id, actor=PERSON, now=now)
            )
            if isinstance(outcome, Committed):
                return await self.store.load(kind, key)
        raise AssertionError(f"{aggregate} {key}: never got through")

    async def cluster(
        self, name: str = "local", kind: ClusterKind = "local", *, nodes: tuple[SimulatedNodes, ...] = ()
    ) -> str:
        chain = await self.do("cluster", cluster_key(name), AddCluster(name=name, kind=kind, simulated_nodes=nodes))
        self.cluster_id = chain.state.cluster_id
        return self.cluster_id

    async def connect(self, name: str = "local", *, connected: bool = True) -> None:
        await self.do("cluster", cluster_key(name), ReportCluster(cluster_id=self.cluster_id, connected=connected))

    async def project(self, name: str = "default", *, quota: int | None = None) -> str:
        chain = await self.do(PROJECT.name, project_key(name), CreateProject(name=name, gpu_quota_milli=quota))
        self.project_id = chain.state.project_id
        return self.project_id

    async def node(self, name: str, facts: NodeFacts) -> str:
        key = node_key(self.cluster_id, name)
        await self.do("node", key, ReportNode(cluster_id=self.cluster_id, name=name, facts=facts))
        return key

    async def nodes(self, facts: dict[str, NodeFacts]) -> None:
        await in_flight([self.node(name, of_node) for name, of_node in facts.items()])

    async def submit(self, name: str, **spec: Any) -> str:
        compute = {field: spec.pop(field) for field in list(spec) if field in ComputeSpec.__struct_fields__}
        command = CreateWorkload(
            kind="Training",
            name=name,
            requested_name=name,
            project_id=self.project_id,
            cluster_id=self.cluster_id,
            spec=TrainingSpec(image="busybox", compute=ComputeSpec(**compute), **spec),
        )
        key = workload_key(self.project_id, name)
        chain = await self.do(WORKLOAD.name, key, command)
        self.submitted[name] = chain.state.workload_id
        return key

    def key_of(self, name: str) -> str:
        return workload_key(self.project_id, name)

    async def workload(self, key: str) -> Workload:
        return (await self.store.load(WORKLOAD, key)).state

    async def command(self, key: str, kind: Any, **fields: Any) -> None:
        state = await self.workload(key)
        await self.do(WORKLOAD.name, key, kind(workload_id=state.workload_id, **fields))

    async def fact(self, key: str, kind: PodFactKind, *, index: int = 0, **fields: Any) -> None:
        """What a cluster would have reported of the newest run of a pod."""
        state = await self.workload(key)
        pod = state.pods["main", index]
        ref = PodRef(pod_set="main", index=index, attempt=pod.attempt, try_=pod.try_)
        fact = PodFact(pod=ref, kind=kind, at=datetime.now(UTC), **fields)
        await self.do(WORKLOAD.name, key, ReportPods(workload_id=state.workload_id, facts=(fact,)))


async def in_flight(work: list[Any], *, at_once: int = 32) -> None:
    room = asyncio.Semaphore(at_once)

    async def one(item: Any) -> None:
        async with room:
            await item

    await asyncio.gather(*(one(item) for item in work))


async def commits_of(store: EventStore) -> list[Commit]:
    """The whole log as it is now."""
    last = await store.last_seq()
    commits: list[Commit] = []
    following = store.follow(0, idle_seconds=1)
    try:
        async for some in following:
            commits.extend(some)
            if not last or (commits and commits[-1].seq >= last):
                return commits
    finally:
        await following.aclose()
    return commits
