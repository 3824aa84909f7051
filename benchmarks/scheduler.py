"""What a plan costs: state in memory in, bindings and reasons out; nothing is stored.

Nodes of 8 GPUs. First pods of five requests in turn, from a quarter of a GPU to four; beside it, the bare way to place
as many: one column of free GPUs, the first node with enough. Then what clusters are judged by: more pods of one GPU
than fit, by filters and best fit alone and by the whole policy; a gang as wide as the cluster; a large job that takes
back what others hold beyond their quota; a plan where nothing changed.
"""

import gc
import resource
from dataclasses import replace
from itertools import cycle
from typing import Final

import numpy as np

from benchmarks.report import Figure, Report
from benchmarks.snapshots import (
    EIGHT_GPUS,
    GIB,
    GPU_NODE,
    ONE_GPU,
    entry,
    gang,
    nodes,
    queue,
    reclaim,
    seconds,
    singles,
    snapshot,
)
from events.workload.spec import PodRequest
from services.runtime.process.host import GC_ALLOCATIONS
from services.scheduler.plan import plan
from services.scheduler.policy.filters import cpu, gpu, memory, pods, takes_pods
from services.scheduler.policy.phases import place
from services.scheduler.policy.registry import POLICY
from services.scheduler.policy.scores import free_gpus
from services.scheduler.snapshot import NodeTable, Pending, Queue, Snapshot

REQUESTS = tuple(
    PodRequest(cpu_milli=1_000, memory_bytes=GIB, gpu_devices=devices, gpu_milli=milli)
    for devices, milli in ((1, 1000), (1, 500), (2, 1000), (1, 250), (4, 1000))
)


def mixed(table: NodeTable, many: int) -> Snapshot:
    """So many workloads of one pod, whose requests came in turn."""
    entries: dict[PodRequest, list[Pending]] = {request: [] for request in REQUESTS}
    for number, request in zip(range(many), cycle(REQUESTS)):
        entries[request].append(entry(f"{number:06d}", number, 1))
    return snapshot(table, [queue("p", request, of) for request, of in entries.items() if of])


def bare(count: int, many: int) -> int:
    """How many find a node by one column alone."""
    free = np.full(count, 8_000)
    placed = 0
    for _, request in zip(range(many), cycle(REQUESTS)):
        need = request.gpu_devices * request.gpu_milli
        node = int((free >= need).argmax())
        if free[node] >= need:
            free[node] -= need
            placed += 1
    return placed


BARE: Final = replace(
    POLICY,
    filters=(takes_pods.FILTER, gpu.FILTER, cpu.FILTER, memory.FILTER, pods.FILTER),
    scores=(free_gpus.SCORE,),
    phases=(place.PHASE,),
)
"""What a plan is without fair turns that count, quotas, values of room and reasons."""


def run(report: Report, *, short: bool) -> None:
    gc.collect()
    gc.freeze()  # as the scheduler's process does
    gc.set_threshold(GC_ALLOCATIONS, 20, 20)
    count, many = (1_000, 2_000) if short else (10_000, 20_000)
    table = nodes(count, GPU_NODE)
    full, one, none = mixed(table, many), mixed(table, 1), mixed(table, 0)
    placed = len(plan(full, max_pods=many).bindings)
    beside = seconds(lambda: bare(count, many)) / many
    took = seconds(lambda: plan(full, max_pods=many)) / placed
    of = f"{count:,} nodes of 8 GPUs"
    report.add(Figure(name=f"pods placed, {many:,} pending, {of}", value=1 / took, unit="/s", baseline=1 / beside))
    report.add(Figure(name=f"a plan for one pod, {of}", value=1000 * seconds(lambda: plan(one)), unit="ms"))
    report.add(
        Figure(name=f"an idle plan, {of}", value=1000 * seconds(lambda: plan(none)), unit="ms", goal=5, at_most=True)
    )
    _wide(report, sizes=(1_000,) if short else (1_000, 10_000))
    wide = snapshot(nodes(512, GPU_NODE), [gang("p", EIGHT_GPUS, key="gang", pods=512)])
    _at_most(report, "a gang of 512 x 8 GPUs, 512 nodes", seconds(lambda: plan(wide, max_pods=512)), goal=0.5)
    taken = reclaim(1_000, pods=250)
    _at_most(report, "2,000 GPUs are taken back, 1,000 nodes", seconds(lambda: plan(taken)), goal=2)


def _wide(report: Report, *, sizes: tuple[int, ...]) -> None:
    """Ten pods of one GPU for each node, of which eight fit."""
    at_sizes: dict[str, list[float]] = {}
    for count in sizes:
        waiting, goals = snapshot(nodes(count, GPU_NODE), [_new(singles("p", 10 * count))]), count == 10_000
        for words, policy, goal in (("filters and best fit", BARE, 1), ("the whole policy", POLICY, 3)):
            took = seconds(
                lambda policy=policy, waiting=waiting: plan(
                    waiting, policy=policy, max_pods=10 * waiting.nodes.pool.size
                )
            )
            at_sizes.setdefault(words, []).append(took)
            _at_most(report, f"{10 * count:,} pods, {count:,} nodes, {words}", took, goal=goal if goals else None)
    for words, (first, *_, last) in ((words, took) for words, took in at_sizes.items() if len(took) > 1):
        name = f"{sizes[-1] // sizes[0]} times the nodes and pods, {words}: the time"
        report.add(Figure(name=name, value=last / first, unit="times"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    report.add(Figure(name="memory of all that, at most", value=peak, unit="MiB", goal=2_000, at_most=True))


def _new(entries: list[Pending]) -> Queue:
    """Workloads of which the log says nothing yet: a plan says of each that finds no room why it waits."""
    new = tuple(replace(each, queued=False, reported="") for each in entries)
    return replace(queue("p", ONE_GPU, new), unreported=new)


def _at_most(report: Report, name: str, took: float, *, goal: float | None) -> None:
    report.add(Figure(name=name, value=took, unit="s", goal=goal, at_most=True))
