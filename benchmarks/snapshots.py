"""Snapshots of clusters for benchmarks of the planner, made without a log."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

from events.node import Node, NodeFacts, NodeRegistered, evolve
from events.workload.life import WorkloadCreated, WorkloadQueued, fold
from events.workload.pod import DeviceShare, Placement, PodRef, PodRunning, PodsBound
from events.workload.spec import WHOLE_GPU_MILLI, ComputeSpec, PodRequest, TrainingSpec
from events.workload.state import Workload
from services.scheduler.columns import Columns
from services.scheduler.snapshot import (
    Bound,
    ClusterView,
    GangPart,
    NodeTable,
    Pending,
    PodClass,
    ProjectView,
    Queue,
    Snapshot,
)

GIB: Final = 1024**3
NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
GPU_NODE: Final = NodeFacts(
    cpu_milli=96_000, memory_bytes=512 * GIB, gpu_count=8, gpu_memory_bytes=80 * GIB, max_pods=250
)
ONE_GPU: Final = PodRequest(cpu_milli=1_000, memory_bytes=GIB, gpu_devices=1, gpu_milli=WHOLE_GPU_MILLI)
EIGHT_GPUS: Final = PodRequest(cpu_milli=1_000, memory_bytes=GIB, gpu_devices=8, gpu_milli=WHOLE_GPU_MILLI)
LOW, HIGH = 0, 3
"""Ranks of priorities."""
TIMES: Final = 3
"""The least of so many counts."""


def seconds(work: Callable[[], object]) -> float:
    """CPU time, which other programs on the machine change least."""
    found: list[float] = []
    for _ in range(TIMES):
        begun = time.process_time()
        work()
        found.append(time.process_time() - begun)
    return min(found)


def reclaim(count: int, *, pods: int) -> Snapshot:
    """A gang of pods of eight GPUs takes back what it needs of a cluster that is full of a project without a quota."""
    table = nodes(count, GPU_NODE)
    compute = ComputeSpec(cpu_core_request=1, cpu_memory_request="1Gi", gpu_devices_request=1)
    old = tuple(
        running(f"old-{row:05d}-{device}", "greedy", compute, [placed(table, row, device=device)])
        for row in range(count)
        for device in range(8)
    )
    waiting = snapshot(
        full(table, cpu_milli=8_000, memory_bytes=8 * GIB, pods=8, devices=8),
        [gang("mine", EIGHT_GPUS, key="new", pods=pods)],
        {"greedy": project("greedy", 0), "mine": project("mine", 8_000 * count)},
    )
    held = {("greedy", "", True): 8_000 * count, ("greedy", "", False): 8_000 * count}
    return replace(waiting, running={"greedy": old}, held_milli=held)


def nodes(count: int, facts: NodeFacts, *, block: int = 0) -> NodeTable:
    """So many alike; the first `block` are in a pool of that name."""
    columns = Columns()
    for row in range(count):
        name = f"node-{row:05d}"
        mine = facts if row >= block else _in_block(facts)
        columns.set(name, evolve(Node(), NodeRegistered(cluster_id="c", name=name, facts=mine)), reachable=True)
    return columns.frozen()


def _in_block(facts: NodeFacts) -> NodeFacts:
    return NodeFacts(cpu_milli=facts.cpu_milli, memory_bytes=facts.memory_bytes, max_pods=facts.max_pods, pool="block")


def full(table: NodeTable, *, cpu_milli: int, memory_bytes: int, pods: int, devices: int) -> NodeTable:
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


def snapshot(
    table: NodeTable,
    queues: Sequence[Queue],
    projects: dict[str, ProjectView] | None = None,
    pools: tuple[str, ...] = ("default",),
) -> Snapshot:
    return Snapshot(
        now=NOW,
        nodes=table,
        clusters={"c": ClusterView(name="c", kind="simulated", exists=True, connected=True, problem="", pools=pools)},
        projects=projects or {},
        held_milli={},
        queues=tuple(queues),
        not_schedulable=(),
        releases=(),
    )


def project(name: str, quota_milli: int, department: str = "") -> ProjectView:
    quota = Bound(holder=f"project {name}", id=name, pool="", firm=True, milli=quota_milli)
    return ProjectView(name=name, exists=True, department_id=department, pools=(), bounds=(quota,))


def queue(
    project: str,
    request: PodRequest,
    entries: Sequence[Pending],
    *,
    gang: tuple[GangPart, ...] = (),
    pools: tuple[str, ...] = (),
) -> Queue:
    pod_class = PodClass(project_id=project, cluster_id="c", pools=pools, request=request, preemptible=True, gang=gang)
    return Queue(
        pod_class=pod_class,
        entries=tuple(entries),
        unreported=(),
        blocked=None,
        report_again=False,
        pods=sum(len(each.pods) for each in entries),
    )


def gang(
    project: str, request: PodRequest, *, key: str, pods: int, rank: int = LOW, pools: tuple[str, ...] = ()
) -> Queue:
    part = GangPart(pools=pools, request=request, pods=pods, needed=pods)
    return queue(project, request, [entry(key, 0, pods, rank)], gang=(part,), pools=pools)


def singles(project: str, count: int, *, start: int = 0, step: int = 2) -> list[Pending]:
    """Workloads of one pod; those of several projects came in turn."""
    return [entry(f"{project}-{number:06d}", start + step * number, 1) for number in range(count)]


def entry(key: str, came: float, pods: int, rank: int = LOW) -> Pending:
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


def placed(table: NodeTable, row: int, device: int | None = None) -> Placement:
    return Placement(
        pod=PodRef(pod_set="main", index=0, attempt=1, try_=0),
        node_key=table.keys[row],
        node_name=table.names[row],
        pool="default",
        devices=() if device is None else (DeviceShare(device=device, milli=WHOLE_GPU_MILLI),),
    )


def running(name: str, project: str, compute: ComputeSpec, places: Sequence[Placement]) -> Workload:
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
