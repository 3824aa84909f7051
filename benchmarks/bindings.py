"""What is bound for good: from workloads that wait in a scheduler's fold to bindings in the log.

One scheduler on a NATS server, as its process runs it: a cycle takes the snapshot, plans 2,000 pods with the whole
policy, decides workloads and nodes on their newest states, and commits them in atomic batches. The baseline is a bare
nats-py loop that commits atomic batches of as many messages on the same server, in turn with the cycles.
"""

import gc
import time
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from uuid import uuid4

import uvloop

from benchmarks.bare import bare_client, batches, server_with_bare_account
from benchmarks.report import Figure, Report
from benchmarks.snapshots import GPU_NODE
from development.servers import EVERYTHING, NatsServer
from development.streams import recreate_streams
from events.aggregate import AGGREGATES, Chain, Draft, draft
from events.cluster import AddCluster, ReportCluster
from events.commit import Actor
from events.decision import Context
from events.ids import cluster_key, node_key, project_key, workload_key
from events.node import ReportNode
from events.project import CreateProject
from events.refusal import Refusal
from events.workload.commands import CreateWorkload
from events.workload.spec import ComputeSpec, TrainingSpec
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.log.store import Committed, EventStore
from services.runtime.nats.connection import connect
from services.runtime.process.host import GC_ALLOCATIONS
from services.scheduler.fold import SchedulingState
from services.scheduler.plan import MAX_PODS_PER_PLAN
from services.scheduler.service import BATCH_MESSAGES, Scheduler

ACTOR: Final = Actor(id="alice")
PODS_PER_NODE: Final = 8
GOAL_PER_SECOND: Final = 10_000
GOAL_RATIO: Final = 0.5
BARE_SECONDS: Final = 0.5


def run(report: Report, *, short: bool) -> None:
    """Print how many pods are bound a second."""
    with TemporaryDirectory(prefix="muster-bench-") as folder:
        server = server_with_bare_account(Path(folder))
        server.start()
        try:
            uvloop.run(_measure(report, server, pods=MAX_PODS_PER_PLAN * (1 if short else 5)))
        finally:
            server.stop()


async def _measure(report: Report, server: NatsServer, *, pods: int) -> None:
    await recreate_streams(server.settings(EVERYTHING))
    client = await connect(server.settings(EVERYTHING), EVERYTHING)
    store, fold = JetStreamEventStore(client), SchedulingState()
    await _fill(store, fold, pods=pods)
    gc.collect()
    gc.freeze()  # as the scheduler's process does
    gc.set_threshold(GC_ALLOCATIONS, 20, 20)
    scheduler = Scheduler(store, fold)
    took = cpu = baseline = 0.0
    cycles = pods // MAX_PODS_PER_PLAN
    async with bare_client(server) as bare:
        for _ in range(cycles):
            baseline += await batches(bare, size=BATCH_MESSAGES, seconds=BARE_SECONDS) / cycles
            began, began_cpu = time.perf_counter(), time.process_time()
            await scheduler.cycle()
            took += time.perf_counter() - began
            cpu += time.process_time() - began_cpu
    bound = sum(len(chain.state.reservations) for chain in fold.nodes.values())
    assert bound == pods, f"{bound} pods are bound, not {pods}"
    await client.close()
    report.add(
        Figure(
            name="pods bound for good, beside messages of bare batches",
            value=pods / took,
            unit="/s",
            goal=GOAL_PER_SECOND,
            baseline=baseline,
            goal_ratio=GOAL_RATIO,
        )
    )
    report.add(Figure(name="  of that the scheduler's CPU for one pod", value=1e6 * cpu / pods, unit="us"))


async def _fill(store: EventStore, fold: SchedulingState, *, pods: int) -> None:
    """A cluster that is free, and as many workloads of one pod as it holds."""
    name = "local"
    await _append(store, fold, [_decided(fold, "cluster", cluster_key(name), AddCluster(name=name, kind="local"))])
    cluster_id = fold.chains["cluster"][cluster_key(name)].state.cluster_id
    connected = ReportCluster(cluster_id=cluster_id, connected=True)
    await _append(store, fold, [_decided(fold, "cluster", cluster_key(name), connected)])
    await _append(store, fold, [_decided(fold, "project", project_key(name), CreateProject(name=name))])
    project_id = fold.chains["project"][project_key(name)].state.project_id
    nodes = [f"node-{number:05d}" for number in range(pods // PODS_PER_NODE)]
    made = [
        _decided(fold, "node", node_key(cluster_id, each), ReportNode(cluster_id=cluster_id, name=each, facts=GPU_NODE))
        for each in nodes
    ]
    spec = TrainingSpec(image="python:3.13", command="python train.py", compute=ComputeSpec(gpu_devices_request=1))
    for number in range(pods):
        train = f"train-{number:06d}"
        command = CreateWorkload(
            kind="Training",
            name=train,
            requested_name=train,
            project_id=project_id,
            cluster_id=cluster_id,
            spec=spec,
        )
        made.append(_decided(fold, "workload", workload_key(project_id, train), command))
    for start in range(0, len(made), BATCH_MESSAGES):
        await _append(store, fold, made[start : start + BATCH_MESSAGES])


def _decided(fold: SchedulingState, aggregate: str, key: str, command: Any) -> Draft:
    kind, now = AGGREGATES[aggregate], datetime.now(UTC)
    chain: Chain[Any] = fold.chains[aggregate].get(key) or Chain(state=kind.initial)
    command_id = uuid4().hex
    context = Context(now=now, actor=ACTOR, command_id=command_id, version=chain.version)
    events = kind.decide(command, chain.state, context)
    assert not isinstance(events, Refusal), events
    return draft(kind, key, chain, events, command_id=command_id, actor=ACTOR, now=now)


async def _append(store: EventStore, fold: SchedulingState, drafts: list[Draft]) -> None:
    outcome = await store.append_batch(drafts)
    assert isinstance(outcome, Committed), outcome
    for commit in outcome.commits:
        fold.apply(commit)
