"""The work of other schedulers' own benchmarks on ours: state in memory in, a plan with bindings and reasons out.

The peers' figures were measured on a machine of two cores with their own programs, in memory, without an API server
(within a fifth). Ours is the CPU time of `plan`: orders, quotas and fair turns, filters, scores, devices, victims, the
reason of what waits. What stores the plan is not in it; `batch` and `store` measure that.

`Y`: YuniKorn, two queues. `A1` to `A3`: Armada, a gang and full rounds. `K1` to `K3`: KAI, single pods, gangs, reclaim.
`T`: Kueue, a gang that preempts.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Final

import numpy as np

from benchmarks.report import Figure, Report
from benchmarks.scheduler import GIB, NOW, seconds
from events.node import Node, NodeFacts, NodeRegistered, evolve
from events.workload.pod import DeviceShare, Placement, PodRef, PodRunning, PodsBound
from events.workload.spec import WHOLE_GPU_MILLI, ComputeSpec, PodRequest, TrainingSpec
from events.workload.state import Workload, WorkloadCreated, WorkloadQueued, fold
from services.scheduler.columns import Columns
from services.scheduler.plan import plan
from services.scheduler.snapshot import (
    Bound,
    ClusterView,
    GangPart,
    NodeTable,
    Pending,
    Plan,
    PodClass,
    ProjectView,
    Queue,
    Snapshot,
)

ONE_GPU: Final = PodRequest(cpu_milli=1_000, memory_bytes=GIB, gpu_devices=1, gpu_milli=WHOLE_GPU_MILLI)
LOW, HIGH = 0, 3
"""Ranks of priorities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One measured plan.

    Attributes:
        name: the peer's benchmark, and its size.
        snapshot: what is planned; made before the clock starts.
        pods: how many find a place, which is checked.
        evicted: how many pods must go for them, at least; 0 where none does.
        peer: pods a second of the peer.
        goal: our rate as a multiple of the peer's; None: none is set.
    """

    name: str
    snapshot: Snapshot
    pods: int
    peer: float
    goal: float | None
    evicted: int = 0


def run(report: Report, *, short: bool) -> None:
    for make in _works(short=short):
        work = make()
        _check(work, _plan(work))
        took = seconds(partial(_plan, work))
        report.add(
            Figure(
                name=f"{work.name}: pods planned",
                value=work.pods / took,
                unit="/s",
                baseline=work.peer,
                goal_ratio=work.goal,
            )
        )


def _plan(work: Work) -> Plan:
    return plan(work.snapshot, max_pods=1_000_000)


def _check(work: Work, planned: Plan) -> None:
    """What a benchmark that does other work than it says would hide."""
    evicted = sum(len(each.pods) for each in planned.evictions)
    placed = len(planned.bindings) if not work.evicted else work.pods * bool(planned.evictions)
    assert placed == work.pods, f"{work.name}: {placed} pods have a place, not {work.pods}"
    assert evicted >= work.evicted, f"{work.name}: {evicted} pods are evicted, not {work.evicted}"


def _works(*, short: bool) -> Iterator[Callable[[], Work]]:
    sizes = (500,) if short else (500, 1_000, 2_000, 5_000)
    yield from (partial(yunikorn, count) for count in sizes)
    if not short:
        yield armada_gang
        yield partial(armada_round, 32_000, 2.0)
        yield partial(armada_round, 320_000, 4.1)
        yield armada_queues
    for count, jobs, took in ((100, 500, 0.22), (500, 4_000, 5.1), (1_000, 8_000, 18.2))[: 1 if short else 3]:
        yield partial(kai_jobs, count, jobs, took)
    if not short:
        yield kai_gangs
    for count, took in ((100, 0.35), (200, 1.25), (500, 14.2), (1_000, 100.0))[: 1 if short else 4]:
        yield partial(kai_reclaim, count, took)
    yield kueue


# -- YuniKorn ----------------------------------------------------------------------------------------------------------


def yunikorn(count: int) -> Work:
    """Two fair queues of 5,000 pods each on nodes that hold them all."""
    each = 10_000 // count + 1
    table = _nodes(count, NodeFacts(cpu_milli=each * 1_000, memory_bytes=each * 10 * GIB, max_pods=each + 1))
    request = PodRequest(cpu_milli=1_000, memory_bytes=10 * GIB)
    queues = [_queue(f"q{number}", request, _singles(f"q{number}", 5_000, start=number)) for number in range(2)]
    return Work(name=f"Y, {count:,} nodes", snapshot=_snapshot(table, queues), pods=10_000, peer=3_000, goal=10)


# -- Armada ------------------------------------------------------------------------------------------------------------

ARMADA_NODE: Final = NodeFacts(cpu_milli=32_000, memory_bytes=256 * GIB, max_pods=250)
ARMADA_POD: Final = PodRequest(cpu_milli=1_000, memory_bytes=4 * GIB)


def armada_gang() -> Work:
    """One gang that fills the cluster."""
    queue = _gang("p", ARMADA_POD, key="gang", pods=32_000)
    snapshot = _snapshot(_nodes(1_000, ARMADA_NODE), [queue])
    return Work(name="A1, a gang of 32,000", snapshot=snapshot, pods=32_000, peer=39_600, goal=2)


def armada_round(jobs: int, took: float) -> Work:
    """One queue, of which 32,000 fit."""
    snapshot = _snapshot(_nodes(1_000, ARMADA_NODE), [_queue("p", ARMADA_POD, _singles("p", jobs))])
    return Work(name=f"A2, {jobs:,} jobs", snapshot=snapshot, pods=32_000, peer=32_000 / took, goal=2)


def armada_queues() -> Work:
    """Ten queues, of which 3,200 pods fit."""
    queues = [
        _queue(f"q{number}", ARMADA_POD, _singles(f"q{number}", 32_000, start=number, step=10)) for number in range(10)
    ]
    snapshot = _snapshot(_nodes(100, ARMADA_NODE), queues)
    return Work(name="A3, ten queues of 32,000", snapshot=snapshot, pods=3_200, peer=3_200 / 0.82, goal=2)


# -- KAI ---------------------------------------------------------------------------------------------------------------

GPU_NODE: Final = NodeFacts(
    cpu_milli=96_000, memory_bytes=512 * GIB, gpu_count=8, gpu_memory_bytes=80 * GIB, max_pods=250
)


def kai_jobs(count: int, jobs: int, took: float) -> Work:
    """Pods of one GPU from four projects in two departments."""
    queues = [
        _queue(f"q{number}", ONE_GPU, _singles(f"q{number}", jobs // 4, start=number, step=4)) for number in range(4)
    ]
    projects = {f"q{number}": _project(f"q{number}", 2_000 * count, f"d{number % 2}") for number in range(4)}
    snapshot = _snapshot(_nodes(count, GPU_NODE), queues, projects)
    goal = 30 if count >= 500 else None
    return Work(name=f"K1, {count:,} nodes, {jobs:,} jobs", snapshot=snapshot, pods=jobs, peer=jobs / took, goal=goal)


def kai_gangs() -> Work:
    """A thousand gangs of four pods."""
    gangs = [_entry(f"gang-{number:05d}", number, 4) for number in range(1_000)]
    part = GangPart(pools=(), request=ONE_GPU, pods=4, needed=4)
    snapshot = _snapshot(_nodes(500, GPU_NODE), [_queue("p", ONE_GPU, gangs, gang=(part,))])
    return Work(name="K2, 1,000 gangs of 4", snapshot=snapshot, pods=4_000, peer=4_000 / 4.4, goal=30)


def kai_reclaim(count: int, took: float) -> Work:
    """A gang of pods of eight GPUs takes back a tenth of a cluster that is full of a project without a quota."""
    table = _nodes(count, GPU_NODE)
    request = PodRequest(cpu_milli=1_000, memory_bytes=GIB, gpu_devices=8, gpu_milli=WHOLE_GPU_MILLI)
    compute = ComputeSpec(cpu_core_request=1, cpu_memory_request="1Gi", gpu_devices_request=1)
    running = tuple(
        _running(f"old-{row:05d}-{device}", "greedy", compute, [_placed(table, row, device=device)])
        for row in range(count)
        for device in range(8)
    )
    pods = count // 10
    snapshot = replace(
        _snapshot(
            _full(table, cpu_milli=8_000, memory_bytes=8 * GIB, pods=8, devices=8),
            [_gang("mine", request, key="new", pods=pods)],
            {"greedy": _project("greedy", 0), "mine": _project("mine", 8_000 * count)},
        ),
        running={"greedy": running},
        held_milli={("greedy", "", True): 8_000 * count, ("greedy", "", False): 8_000 * count},
    )
    goal = 30 if count >= 500 else None
    return Work(
        name=f"K3, {count:,} nodes, a gang of {pods} x 8 GPUs reclaims",
        snapshot=snapshot,
        pods=pods,
        peer=pods / took,
        goal=goal,
        evicted=8 * pods,
    )


# -- Kueue -------------------------------------------------------------------------------------------------------------


def kueue() -> Work:
    """A gang of 200 preempts in a pool of 132 nodes, which is full; 87 workloads of 1,415 pods run."""
    table = _nodes(1_000, NodeFacts(cpu_milli=10_000, memory_bytes=100 * GIB, max_pods=110), block=132)
    places = [row for row in range(132) for _ in range(2)]
    places += [row for row in range(132, 1_000) for _ in range(2)][: 1_415 - len(places)]
    compute = ComputeSpec(cpu_core_request=5, cpu_memory_request="50Gi")
    workloads = tuple(
        _running(f"old-{number:02d}", "p", compute, [_placed(table, row) for row in places[number::87]])
        for number in range(87)
    )
    taken = np.bincount(places, minlength=1_000)
    full = replace(
        table,
        free_cpu_milli=table.free_cpu_milli - 5_000 * taken,
        free_memory_bytes=table.free_memory_bytes - 50 * GIB * taken,
        free_pods=table.free_pods - taken,
    )
    request = PodRequest(cpu_milli=5_000, memory_bytes=50 * GIB)
    queue = _gang("p", request, key="new", pods=200, rank=HIGH, pools=("block",))
    snapshot = replace(_snapshot(full, [queue], pools=("default", "block")), running={"p": workloads})
    return Work(name="T, a gang of 200 preempts", snapshot=snapshot, pods=200, peer=200 / 0.12, goal=1, evicted=200)


# -- what they are made of ---------------------------------------------------------------------------------------------


def _nodes(count: int, facts: NodeFacts, *, block: int = 0) -> NodeTable:
    """So many alike; the first `block` are in a pool of that name."""
    columns = Columns()
    for row in range(count):
        name = f"node-{row:05d}"
        mine = facts if row >= block else _in_block(facts)
        columns.set(name, evolve(Node(), NodeRegistered(cluster_id="c", name=name, facts=mine)), reachable=True)
    return columns.frozen()


def _in_block(facts: NodeFacts) -> NodeFacts:
    return NodeFacts(cpu_milli=facts.cpu_milli, memory_bytes=facts.memory_bytes, max_pods=facts.max_pods, pool="block")


def _full(table: NodeTable, *, cpu_milli: int, memory_bytes: int, pods: int, devices: int) -> NodeTable:
    """The same nodes with so much of each taken, and none of these devices free."""
    device_milli = table.free_device_milli.copy()
    device_milli[:, :devices] = 0
    return replace(
        table,
        free_cpu_milli=table.free_cpu_milli - cpu_milli,
        free_memory_bytes=table.free_memory_bytes - memory_bytes,
        free_pods=table.free_pods - pods,
        free_devices=table.free_devices - devices,
        free_device_milli=device_milli,
    )


def _snapshot(
    table: NodeTable,
    queues: Sequence[Queue],
    projects: dict[str, ProjectView] | None = None,
    pools: tuple[str, ...] = ("default",),
) -> Snapshot:
    return Snapshot(
        now=NOW,
        nodes=table,
        clusters={"c": ClusterView(name="c", exists=True, connected=True, problem="", pools=pools)},
        projects=projects or {},
        held_milli={},
        queues=tuple(queues),
        not_schedulable=(),
        releases=(),
    )


def _project(name: str, quota_milli: int, department: str = "") -> ProjectView:
    quota = Bound(holder=f"project {name}", id=name, pool="", firm=True, milli=quota_milli)
    return ProjectView(name=name, exists=True, department_id=department, pools=(), bounds=(quota,))


def _queue(
    project: str,
    request: PodRequest,
    entries: Sequence[Pending],
    *,
    gang: tuple[GangPart, ...] = (),
    pools: tuple[str, ...] = (),
) -> Queue:
    pod_class = PodClass(project_id=project, cluster_id="c", pools=pools, request=request, preemptible=True, gang=gang)
    return Queue(pod_class=pod_class, entries=tuple(entries), unreported=(), blocked=None, report_again=False)


def _gang(
    project: str, request: PodRequest, *, key: str, pods: int, rank: int = LOW, pools: tuple[str, ...] = ()
) -> Queue:
    part = GangPart(pools=pools, request=request, pods=pods, needed=pods)
    return _queue(project, request, [_entry(key, 0, pods, rank)], gang=(part,), pools=pools)


def _singles(project: str, count: int, *, start: int = 0, step: int = 2) -> list[Pending]:
    """Workloads of one pod; those of several projects came in turn."""
    return [_entry(f"{project}-{number:06d}", start + step * number, 1) for number in range(count)]


def _entry(key: str, came: float, pods: int, rank: int = LOW) -> Pending:
    return Pending(
        order=((float(-rank), float(came)), key, 0),
        rank=rank,
        key=key,
        workload_id=key,
        name=key,
        pods=tuple(PodRef(pod_set="main", index=index, attempt=1, try_=0) for index in range(pods)),
        queued=True,
        idle=True,
        reported="insufficient_cpu",
    )


def _placed(table: NodeTable, row: int, device: int | None = None) -> Placement:
    return Placement(
        pod=PodRef(pod_set="main", index=0, attempt=1, try_=0),
        node_key=table.keys[row],
        node_name=table.names[row],
        pool="default",
        devices=() if device is None else (DeviceShare(device=device, milli=WHOLE_GPU_MILLI),),
    )


def _running(name: str, project: str, compute: ComputeSpec, places: Sequence[Placement]) -> Workload:
    """Of the lowest priority, with its pods there for an hour."""
    placements = tuple(
        Placement(
            pod=PodRef(pod_set="main", index=index, attempt=1, try_=0),
            node_key=each.node_key,
            node_name=each.node_name,
            pool=each.pool,
            devices=each.devices,
        )
        for index, each in enumerate(places)
    )
    many = len(placements)
    began = NOW - timedelta(hours=1)
    return fold(
        Workload(),
        [
            WorkloadCreated(
                workload_id=name,
                name=name,
                requested_name=name,
                kind="Training",
                project_id=project,
                cluster_id="c",
                owner="alice",
                spec=TrainingSpec(image="i", compute=compute, priority_class="low", parallelism=many, completions=many),
                at=began,
            ),
            WorkloadQueued(),
            PodsBound(placements=placements, token=1),
            *(PodRunning(pod=each.pod, at=began) for each in placements),
        ],
    )
