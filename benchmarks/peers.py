"""The work of other schedulers' own benchmarks on ours: state in memory in, a plan with bindings and reasons out.

The peers' figures were measured on a machine of two cores with their own programs, in memory, without an API server
(within a fifth). Ours is the CPU time of `plan`: orders, quotas and fair turns, filters, scores, devices, victims, the
reason of what waits. What stores the plan is not in it; `batch` and `store` measure that.

`Y`: YuniKorn, two queues. `A1` to `A3`: Armada, a gang and full rounds. `K1` to `K3`: KAI, single pods, gangs, reclaim.
`T`: Kueue, a gang that preempts.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from benchmarks.report import Figure, Report
from benchmarks.snapshots import (
    GIB,
    GPU_NODE,
    HIGH,
    ONE_GPU,
    entry,
    gang,
    nodes,
    placed,
    project,
    queue,
    reclaim,
    running,
    seconds,
    singles,
    snapshot,
)
from events.node import NodeFacts
from events.workload.spec import ComputeSpec, PodRequest
from services.scheduler.plan import plan
from services.scheduler.snapshot import GangPart, Plan, Snapshot


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
    table = nodes(count, NodeFacts(cpu_milli=each * 1_000, memory_bytes=each * 10 * GIB, max_pods=each + 1))
    request = PodRequest(cpu_milli=1_000, memory_bytes=10 * GIB)
    queues = [queue(f"q{number}", request, singles(f"q{number}", 5_000, start=number)) for number in range(2)]
    return Work(name=f"Y, {count:,} nodes", snapshot=snapshot(table, queues), pods=10_000, peer=3_000, goal=10)


# -- Armada ------------------------------------------------------------------------------------------------------------

ARMADA_NODE: Final = NodeFacts(cpu_milli=32_000, memory_bytes=256 * GIB, max_pods=250)
ARMADA_POD: Final = PodRequest(cpu_milli=1_000, memory_bytes=4 * GIB)


def armada_gang() -> Work:
    """One gang that fills the cluster."""
    queue = gang("p", ARMADA_POD, key="gang", pods=32_000)
    made = snapshot(nodes(1_000, ARMADA_NODE), [queue])
    return Work(name="A1, a gang of 32,000", snapshot=made, pods=32_000, peer=39_600, goal=2)


def armada_round(jobs: int, took: float) -> Work:
    """One queue, of which 32,000 fit."""
    made = snapshot(nodes(1_000, ARMADA_NODE), [queue("p", ARMADA_POD, singles("p", jobs))])
    return Work(name=f"A2, {jobs:,} jobs", snapshot=made, pods=32_000, peer=32_000 / took, goal=2)


def armada_queues() -> Work:
    """Ten queues, of which 3,200 pods fit."""
    queues = [
        queue(f"q{number}", ARMADA_POD, singles(f"q{number}", 32_000, start=number, step=10)) for number in range(10)
    ]
    made = snapshot(nodes(100, ARMADA_NODE), queues)
    return Work(name="A3, ten queues of 32,000", snapshot=made, pods=3_200, peer=3_200 / 0.82, goal=2)


# -- KAI ---------------------------------------------------------------------------------------------------------------


def kai_jobs(count: int, jobs: int, took: float) -> Work:
    """Pods of one GPU from four projects in two departments."""
    queues = [
        queue(f"q{number}", ONE_GPU, singles(f"q{number}", jobs // 4, start=number, step=4)) for number in range(4)
    ]
    projects = {f"q{number}": project(f"q{number}", 2_000 * count, f"d{number % 2}") for number in range(4)}
    made = snapshot(nodes(count, GPU_NODE), queues, projects)
    goal = 30 if count >= 500 else None
    return Work(name=f"K1, {count:,} nodes, {jobs:,} jobs", snapshot=made, pods=jobs, peer=jobs / took, goal=goal)


def kai_gangs() -> Work:
    """A thousand gangs of four pods."""
    gangs = [entry(f"gang-{number:05d}", number, 4) for number in range(1_000)]
    part = GangPart(pools=(), request=ONE_GPU, pods=4, needed=4)
    made = snapshot(nodes(500, GPU_NODE), [queue("p", ONE_GPU, gangs, gang=(part,))])
    return Work(name="K2, 1,000 gangs of 4", snapshot=made, pods=4_000, peer=4_000 / 4.4, goal=30)


def kai_reclaim(count: int, took: float) -> Work:
    """A gang takes back a tenth of the cluster."""
    pods = count // 10
    goal = 30 if count >= 500 else None
    return Work(
        name=f"K3, {count:,} nodes, a gang of {pods} x 8 GPUs reclaims",
        snapshot=reclaim(count, pods=pods),
        pods=pods,
        peer=pods / took,
        goal=goal,
        evicted=8 * pods,
    )


# -- Kueue -------------------------------------------------------------------------------------------------------------


def kueue() -> Work:
    """A gang of 200 preempts in a pool of 132 nodes, which is full; 87 workloads of 1,415 pods run."""
    table = nodes(1_000, NodeFacts(cpu_milli=10_000, memory_bytes=100 * GIB, max_pods=110), block=132)
    places = [row for row in range(132) for _ in range(2)]
    places += [row for row in range(132, 1_000) for _ in range(2)][: 1_415 - len(places)]
    compute = ComputeSpec(cpu_core_request=5, cpu_memory_request="50Gi")
    workloads = tuple(
        running(f"old-{number:02d}", "p", compute, [placed(table, row) for row in places[number::87]])
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
    queue = gang("p", request, key="new", pods=200, rank=HIGH, pools=("block",))
    made = replace(snapshot(full, [queue], pools=("default", "block")), running={"p": workloads})
    return Work(name="T, a gang of 200 preempts", snapshot=made, pods=200, peer=200 / 0.12, goal=1, evicted=200)
