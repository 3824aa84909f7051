"""What a plan costs: state in memory in, bindings and reasons out; nothing is stored.

Nodes of 8 GPUs; pods of five requests in turn, from a quarter of a GPU to four. Beside it, the bare way to place as
many: one column of free GPUs, the first node with enough.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import cycle

import numpy as np

from benchmarks.report import Figure, Report
from events.node import Node, NodeFacts, NodeRegistered, evolve
from events.workload.pod import PodRef
from events.workload.spec import PodRequest
from services.scheduler.columns import Columns
from services.scheduler.plan import plan
from services.scheduler.snapshot import ClusterView, NodeTable, Pending, PodClass, Queue, Snapshot

GIB = 1024**3
NOW = datetime(2026, 1, 1, tzinfo=UTC)
REQUESTS = tuple(
    PodRequest(cpu_milli=1_000, memory_bytes=GIB, gpu_devices=devices, gpu_milli=milli)
    for devices, milli in ((1, 1000), (1, 500), (2, 1000), (1, 250), (4, 1000))
)
TIMES = 3
"""The least of so many counts."""


def nodes(count: int) -> NodeTable:
    columns = Columns()
    facts = NodeFacts(cpu_milli=96_000, memory_bytes=512 * GIB, gpu_count=8, gpu_memory_bytes=80 * GIB, max_pods=250)
    for number in range(count):
        name = f"node-{number:05d}"
        columns.set(name, evolve(Node(), NodeRegistered(cluster_id="c", name=name, facts=facts)), reachable=True)
    return columns.frozen()


def snapshot(table: NodeTable, pods: int) -> Snapshot:
    """So many workloads of one pod, which came in turn."""
    entries: dict[PodRequest, list[Pending]] = {request: [] for request in REQUESTS}
    for number, request in zip(range(pods), cycle(REQUESTS)):
        key = f"{number:06d}"
        entries[request].append(
            Pending(
                order=((float(number),), key, 0),
                rank=0,
                key=key,
                workload_id=key,
                name=key,
                pods=(PodRef(pod_set="main", index=0, attempt=1, try_=0),),
                queued=True,
                idle=True,
                reported="insufficient_gpu",
            )
        )
    queues = tuple(
        Queue(
            pod_class=PodClass(project_id="p", cluster_id="c", pools=(), request=request, preemptible=True),
            entries=tuple(of),
            unreported=(),
            blocked=None,
            report_again=False,
            pods=len(of),
        )
        for request, of in entries.items()
        if of
    )
    return Snapshot(
        now=NOW,
        nodes=table,
        clusters={"c": ClusterView(name="c", exists=True, connected=True, problem="", pools=("default",))},
        projects={},
        held_milli={},
        queues=queues,
        not_schedulable=(),
        releases=(),
    )


def bare(count: int, pods: int) -> int:
    """How many find a node by one column alone."""
    free = np.full(count, 8_000)
    placed = 0
    for _, request in zip(range(pods), cycle(REQUESTS)):
        need = request.gpu_devices * request.gpu_milli
        node = int((free >= need).argmax())
        if free[node] >= need:
            free[node] -= need
            placed += 1
    return placed


def seconds(work: Callable[[], object]) -> float:
    """CPU time, which other programs on the machine change least."""
    found: list[float] = []
    for _ in range(TIMES):
        begun = time.process_time()
        work()
        found.append(time.process_time() - begun)
    return min(found)


def run(report: Report, *, short: bool) -> None:
    count, pods = (1_000, 2_000) if short else (10_000, 20_000)
    table = nodes(count)
    full, one, none = snapshot(table, pods), snapshot(table, 1), snapshot(table, 0)
    placed = len(plan(full, max_pods=pods).bindings)
    beside = seconds(lambda: bare(count, pods)) / pods
    took = seconds(lambda: plan(full, max_pods=pods)) / placed
    of = f"{count:,} nodes of 8 GPUs"
    report.add(Figure(name=f"pods placed, {pods:,} pending, {of}", value=1 / took, unit="/s", baseline=1 / beside))
    report.add(Figure(name=f"a plan for one pod, {of}", value=1000 * seconds(lambda: plan(one)), unit="ms"))
    report.add(
        Figure(name=f"an idle plan, {of}", value=1000 * seconds(lambda: plan(none)), unit="ms", goal=5, at_most=True)
    )
