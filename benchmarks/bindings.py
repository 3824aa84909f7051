"""What is bound for good: from workloads that wait in a scheduler's fold to bindings in the log.

One scheduler on a NATS server, as its process runs it: a cycle takes the snapshot, plans 2,000 pods with the whole
policy, decides workloads and nodes on their newest states, and commits them in atomic batches. The baseline is a bare
nats-py loop that commits atomic batches of as many messages on the same server, in turn with the cycles. That workloads
came is taken in before, as it would be while they come, and told apart. On a machine with other work the CPU of both
sides tells more than their rates.
"""

import gc
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from uuid import uuid4

import psutil
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
    began_cpu = time.process_time()
    fold.snapshot(datetime.now(UTC))
    taken_in = time.process_time() - began_cpu
    took = baseline = 0.0
    ours, bare_cpu, messages = _Cpu(server), _Cpu(server), 0.0
    cycles = pods // MAX_PODS_PER_PLAN
    async with bare_client(server) as bare:
        for _ in range(cycles):
            with bare_cpu:
                began = time.perf_counter()
                rate = await batches(bare, size=BATCH_MESSAGES, seconds=BARE_SECONDS)
                messages += rate * (time.perf_counter() - began)
            baseline += rate / cycles
            with ours:
                began = time.perf_counter()
                await scheduler.cycle()
                took += time.perf_counter() - began
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
    for whose, here, there in (
        ("the scheduler's", ours.own / pods, bare_cpu.own / messages),
        ("the server's", ours.server / pods, bare_cpu.server / messages),
    ):
        name = f"  {whose} CPU for one pod, beside a bare message's"
        report.add(Figure(name=name, value=1e6 * here, unit="us", baseline=1e6 * there))
    name = "  before that, one workload that came is taken in: CPU"
    report.add(Figure(name=name, value=1e6 * taken_in / pods, unit="us"))


class _Cpu:
    """What this process and the server work while it is entered, in seconds."""

    def __init__(self, server: NatsServer) -> None:
        assert isinstance(server.process, subprocess.Popen), "the server is a child of this process"
        self._server = psutil.Process(server.process.pid)
        self.own = self.server = 0.0

    def __enter__(self) -> None:
        own, server = self._now()
        self.own, self.server = self.own - own, self.server - server

    def __exit__(self, *_: object) -> None:
        own, server = self._now()
        self.own, self.server = self.own + own, self.server + server

    def _now(self) -> tuple[float, float]:
        times = self._server.cpu_times()
        return time.process_time(), times.user + times.system


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
