"""Lives of workloads as the deciders tell them: a log in memory, for tests and benchmarks of whoever reads one.

Every commit is what the real decider answered; nothing is made up by hand.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from events.aggregate import AGGREGATES, Chain, Draft, apply, draft
from events.cluster import AddCluster
from events.commit import Actor, BatchPart, Commit, service_actor
from events.decision import Context
from events.ids import cluster_key, node_key, project_key, workload_key
from events.node import NodeFacts, ReportNode, Reservation, ReserveOnNode, reservation_id
from events.project import CreateProject
from events.refusal import Refusal
from events.workload.commands import CreateWorkload, PlacePods, PodFact, ReportPods
from events.workload.pod import DeviceShare, Placement, PodRef
from events.workload.spec import ComputeSpec, TrainingSpec
from services.runtime.log.memory import MemoryEventStore

BEGIN = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
ALICE = Actor(id="alice")
SCHEDULER = service_actor("scheduler")
CLUSTER_SYNC = service_actor("cluster_sync")


@dataclass
class World:
    """A log that grows by commands, and the folds of all its aggregates."""

    commits: list[Commit] = field(default_factory=list[Commit])
    chains: dict[tuple[str, str], Chain[Any]] = field(default_factory=dict[tuple[str, str], Chain[Any]])
    now: datetime = BEGIN

    def chain(self, aggregate: str, key: str) -> Chain[Any]:
        return self.chains.get((aggregate, key)) or Chain(state=AGGREGATES[aggregate].initial)

    def state(self, aggregate: str, key: str) -> Any:
        return self.chain(aggregate, key).state

    def decide(
        self, aggregate: str, key: str, command: Any, actor: Actor = ALICE, *, override: bool = False
    ) -> Draft | Refusal | None:
        """What the decider answers: a commit to append, nothing, or a refusal."""
        chain = self.chain(aggregate, key)
        command_id = f"command-{len(self.commits) + 1}-{aggregate}-{key}"
        context = Context(now=self.now, actor=actor, command_id=command_id, version=chain.version, override=override)
        events = AGGREGATES[aggregate].decide(command, chain.state, context)
        if isinstance(events, Refusal):
            return events
        if not events:
            return None
        return draft(
            AGGREGATES[aggregate],
            key,
            chain,
            events,
            command_id=command_id,
            actor=actor,
            now=self.now,
            body_hash=f"hash-{command_id}" if actor.kind == "user" else "",
        )

    def append(self, drafts: Sequence[Draft | Refusal | None]) -> list[Commit]:
        """Append what is to be appended, as one batch where it is several."""
        good = [d for d in drafts if isinstance(d, Draft)]
        batch_id = f"batch-{len(self.commits) + 1}"
        made: list[Commit] = []
        for index, one in enumerate(good, start=1):
            part = BatchPart(id=batch_id, index=index, count=len(good))
            commit = (one if len(good) == 1 else one.in_batch(part)).committed(len(self.commits) + 1)
            self.commits.append(commit)
            key = (one.aggregate, one.key)
            self.chains[key] = apply(AGGREGATES[one.aggregate], self.chain(*key), commit)
            made.append(commit)
        return made

    def do(self, aggregate: str, key: str, command: Any, actor: Actor = ALICE) -> Refusal | None:
        answer = self.decide(aggregate, key, command, actor)
        if isinstance(answer, Refusal):
            return answer
        self.append([answer])
        return None

    def later(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    # What most tests need.

    def cluster(self, name: str = "local") -> str:
        self.do("cluster", cluster_key(name), AddCluster(name=name, kind="simulated"))
        return self.state("cluster", cluster_key(name)).cluster_id

    def project(self, name: str = "default") -> str:
        self.do("project", project_key(name), CreateProject(name=name, gpu_quota_milli=8000))
        return self.state("project", project_key(name)).project_id

    def node(self, cluster_id: str, name: str, *, gpus: int = 8) -> str:
        key = node_key(cluster_id, name)
        facts = NodeFacts(
            cpu_milli=128_000, memory_bytes=2**40, gpu_count=gpus, gpu_memory_bytes=80 * 2**30, max_pods=1000
        )
        self.do("node", key, ReportNode(cluster_id=cluster_id, name=name, facts=facts), CLUSTER_SYNC)
        return key

    def training(self, name: str, project_id: str, cluster_id: str, spec: TrainingSpec | None = None) -> str:
        """The workload's key."""
        key = workload_key(project_id, name)
        spec = spec or TrainingSpec(
            image="pytorch", compute=ComputeSpec(gpu_devices_request=1, cpu_core_request=2, cpu_memory_request="4Gi")
        )
        command = CreateWorkload(
            kind="Training", name=name, requested_name=name, project_id=project_id, cluster_id=cluster_id, spec=spec
        )
        assert self.do("workload", key, command) is None
        return key

    def place(self, placed: Sequence[tuple[str, PodRef, str, int]]) -> None:
        """Bind (workload key, pod, node key, device) in one atomic batch, one message per aggregate."""
        by_workload: dict[str, list[Placement]] = {}
        by_node: dict[str, list[Reservation]] = {}
        for key, pod, node, device in placed:
            state, shares = self.state("workload", key), (DeviceShare(device=device, milli=1000),)
            name, memory = self.state("node", node).name, self.state("node", node).facts.gpu_memory_bytes
            by_workload.setdefault(key, []).append(
                Placement(
                    pod=pod, node_key=node, node_name=name, pool="default", devices=shares, gpu_memory_bytes=memory
                )
            )
            by_node.setdefault(node, []).append(
                Reservation(
                    id=reservation_id(state.workload_id, pod.pod_set, pod.index, pod.attempt, pod.try_),
                    workload_id=state.workload_id,
                    workload_key=key,
                    cpu_milli=2000,
                    memory_bytes=4 * 2**30,
                    devices=shares,
                )
            )
        drafts = [
            self.decide(
                "workload",
                key,
                PlacePods(workload_id=self.state("workload", key).workload_id, placements=tuple(placements)),
                SCHEDULER,
            )
            for key, placements in by_workload.items()
        ]
        drafts += [
            self.decide("node", node, ReserveOnNode(reserve=tuple(reserved)), SCHEDULER)
            for node, reserved in by_node.items()
        ]
        assert all(isinstance(d, Draft) for d in drafts), drafts
        self.append(drafts)

    def release(self, node: str, ids: Sequence[str]) -> None:
        self.do("node", node, ReserveOnNode(release=tuple(ids)), SCHEDULER)

    def report(self, key: str, pod: PodRef, kind: Any, *, exit_code: int | None = None) -> None:
        fact = PodFact(pod=pod, kind=kind, at=self.now, exit_code=exit_code)
        command = ReportPods(workload_id=self.state("workload", key).workload_id, facts=(fact,))
        self.do("workload", key, command, CLUSTER_SYNC)


FIRST = PodRef(pod_set="main", index=0, attempt=1, try_=0)


def busy_world(workloads: int, *, nodes: int = 32, at_once: int = 200) -> World:
    """A log in which this many trainings are submitted, placed, run and completed, `at_once` at a time.

    Nine events for each: WorkloadCreated, WorkloadQueued, PodsBound, PodsReserved, PodStarting, PodRunning,
    PodSucceeded, WorkloadCompleted and ReservationsReleased (the last and PodsReserved are shared by a node's pods).
    """
    world = World()
    cluster_id, project_id = world.cluster(), world.project()
    node_keys = [world.node(cluster_id, f"node-{n}") for n in range(nodes)]
    slots = [(node, device) for node in node_keys for device in range(8)]
    at_once = min(at_once, len(slots))
    for start in range(0, workloads, at_once):
        keys = [
            world.training(f"job-{n}", project_id, cluster_id) for n in range(start, min(start + at_once, workloads))
        ]
        world.later(0.1)
        world.place([(key, FIRST, *slot) for key, slot in zip(keys, slots, strict=False)])
        for kind in ("starting", "running", "succeeded"):
            world.later(0.5)
            for key in keys:
                world.report(key, FIRST, kind, exit_code=0 if kind == "succeeded" else None)
        for node in node_keys:
            if held := tuple(world.state("node", node).reservations):
                world.release(node, held)
    return world


def feed(store: MemoryEventStore, commits: Sequence[Commit]) -> None:
    """Append commits as they are, batches whole, to a store in memory that holds those before them."""
    for commit in commits:
        store._log.append(commit)
        store._stored_at.append(commit.record.occurred_at)
        store._chains.setdefault((commit.aggregate, commit.key), []).append(commit)
    store._grown.set()
    store._grown = asyncio.Event()


def pieces(commits: Sequence[Commit], size: int) -> Iterator[Sequence[Commit]]:
    """The commits in pieces of about this size, with batches whole."""
    start = 0
    while start < len(commits):
        end = min(start + size, len(commits))
        while not commits[end - 1].ends_batch:
            end += 1
        yield commits[start:end]
        start = end
