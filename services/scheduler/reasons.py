"""Why a kind of pods waits: one dominant code with numbers. Pure.

Codes are split into *cannot ever fit as written* and *waiting* (events/phases.py).
"""

from dataclasses import dataclass

import numpy as np

from events.phases import WaitingReason
from events.quantities import format_bytes
from events.workload.spec import WHOLE_GPU_MILLI, PodRequest
from services.scheduler.room import Room
from services.scheduler.snapshot import Booleans, ClusterView, Integers, Kind, Snapshot, Waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """What stopped a pod: the quota, where nodes would have had room; else the nodes."""

    quota_need_milli: int = 0
    """The least that such a node would have given it."""
    quota_used_milli: int = 0


def pools_to_try(snapshot: Snapshot, kind: Kind) -> tuple[str, ...]:
    """The workload's pools, else its project's, else all; only those that the cluster has."""
    cluster = snapshot.clusters.get(kind.cluster_id)
    if cluster is None:
        return ()
    wanted = _wanted_pools(snapshot, kind)
    return tuple(pool for pool in wanted if pool in cluster.pools) if wanted else cluster.pools


def why(snapshot: Snapshot, room: Room, kind: Kind, shortfall: Shortfall) -> Waiting:
    """The dominant reason. What a person must change comes before what only time changes."""
    cluster = snapshot.clusters.get(kind.cluster_id)
    if cluster is None or not cluster.exists:
        return Waiting(
            reason=WaitingReason.CLUSTER_DISCONNECTED,
            message="its cluster was removed; delete the workload and submit it to another cluster",
        )
    pools = pools_to_try(snapshot, kind)
    if not pools:
        return Waiting(
            reason=WaitingReason.NO_SUCH_NODE_POOL,
            message=f"cluster {cluster.name} has no node pool {_listed(_wanted_pools(snapshot, kind))}; "
            f"it has {_listed(cluster.pools)}",
        )
    if waiting := _quota_too_small(snapshot, kind):
        return waiting
    if not cluster.connected:
        return Waiting(
            reason=WaitingReason.CLUSTER_DISCONNECTED,
            message=f"cluster {cluster.name} cannot be worked with: {cluster.problem}"
            if cluster.problem
            else f"the agent of cluster {cluster.name} is not heard from",
        )
    places = [snapshot.nodes.places[kind.cluster_id, p] for p in pools if (kind.cluster_id, p) in snapshot.nodes.places]
    rows = np.flatnonzero(np.isin(snapshot.nodes.place, places) & snapshot.nodes.present)
    if waiting := _of_nodes(room, kind.request, rows, _where(pools, cluster)):
        return waiting
    if shortfall.quota_need_milli:
        least = kind.request.gpu_devices * int(room.share_milli(kind.request, rows).min())
        return _quota_used(snapshot, kind, shortfall, least, _where(pools, cluster))
    return _of_free_room(room, kind.request, rows, _where(pools, cluster))


def _of_nodes(room: Room, request: PodRequest, rows: Integers, where: str) -> Waiting | None:
    """What no free room would mend."""
    if not len(rows):
        return Waiting(reason=WaitingReason.NO_NODES, message=f"{where} has no nodes")
    large_enough = _fits_empty(room, request, rows)
    if not large_enough.any():
        return Waiting(
            reason=WaitingReason.NO_MATCHING_NODE,
            message=f"{_all_too_small(len(rows), where)} even when empty: {_too_large(room, request, rows)}",
        )
    if not (large_enough & room.usable(request)[rows]).any():
        return Waiting(
            reason=WaitingReason.NO_NODES,
            message=f"{_closed(int(large_enough.sum()), where)} (not ready, cordoned or tainted)",
        )
    return None


def _of_free_room(room: Room, request: PodRequest, present: Integers, where: str) -> Waiting:
    large_enough = _fits_empty(room, request, present)
    rows = present[large_enough & room.usable(request)[present]]
    too_small = len(present) - int(large_enough.sum())
    closed = len(present) - too_small - len(rows)
    gpu, cpu, memory, pods = room.lacks(request, rows)
    most_memory = format_bytes(max(int(room.memory[rows].max()), 0))
    need_memory = f"need {format_bytes(request.memory_bytes)}, most free {most_memory}"
    lacking: list[tuple[WaitingReason, Booleans, str]] = [
        (WaitingReason.INSUFFICIENT_GPU, gpu, f"without free GPU ({_gpu_need(room, request, rows)})"),
        (
            WaitingReason.INSUFFICIENT_CPU,
            cpu,
            f"without CPU (need {_cores(request.cpu_milli)}, most free {_cores(int(room.cpu[rows].max()))})",
        ),
        (WaitingReason.INSUFFICIENT_MEMORY, memory, f"without memory ({need_memory})"),
        (WaitingReason.INSUFFICIENT_PODS, pods, "full of pods"),
    ]
    parts = [f"{int(mask.sum())} {text}" for _, mask, text in lacking if mask.any()]
    if too_small:
        parts.append(f"{too_small} too small even when empty")
    if closed:
        parts.append(f"{closed} taking no new pods")
    everywhere = [reason for reason, mask, _ in lacking if mask.all()]
    return Waiting(
        reason=everywhere[0] if everywhere else WaitingReason.INSUFFICIENT_RESOURCES,
        message=f"{_nodes(len(present))} of {where}: {', '.join(parts)}",
    )


def _fits_empty(room: Room, request: PodRequest, rows: Integers) -> Booleans:
    nodes = room.nodes
    fits = (nodes.most_pods[rows] >= 1) & (nodes.most_cpu_milli[rows] >= request.cpu_milli)
    fits &= nodes.most_memory_bytes[rows] >= request.memory_bytes
    if request.gpu_devices:
        fits &= nodes.most_devices[rows] >= request.gpu_devices
        fits &= room.share_milli(request, rows) <= WHOLE_GPU_MILLI
    return fits


def _too_large(room: Room, request: PodRequest, rows: Integers) -> str:
    """Which wishes no single node meets, with the most that there is."""
    nodes = room.nodes
    most_gpus = int(nodes.most_devices[rows].max())
    most_cpu = int(nodes.most_cpu_milli[rows].max())
    most_memory = int(nodes.most_memory_bytes[rows].max())
    parts: list[str] = []
    if request.gpu_devices > most_gpus:
        parts.append(f"needs {_count(request.gpu_devices, 'GPU')} on one node (largest has {most_gpus})")
    elif request.gpu_memory_bytes and int(room.share_milli(request, rows).min()) > WHOLE_GPU_MILLI:
        largest = format_bytes(int(nodes.gpu_memory_bytes[rows].max()))
        parts.append(f"needs {format_bytes(request.gpu_memory_bytes)} of GPU memory (largest device has {largest})")
    if request.cpu_milli > most_cpu:
        parts.append(f"needs {_cores(request.cpu_milli)} CPU cores (largest has {_cores(most_cpu)})")
    if request.memory_bytes > most_memory:
        parts.append(f"needs {format_bytes(request.memory_bytes)} of memory (largest has {format_bytes(most_memory)})")
    return "; ".join(parts) or f"no node has {_wish(request)} together"


def _quota_too_small(snapshot: Snapshot, kind: Kind) -> Waiting | None:
    project = snapshot.projects.get(kind.project_id)
    need = kind.request.gpu_devices * kind.request.gpu_milli
    if kind.preemptible or project is None or project.quota_milli is None or need <= project.quota_milli:
        return None
    return Waiting(
        reason=WaitingReason.QUOTA_TOO_SMALL,
        message=f"a pod needs {_gpus(need)}, and the whole quota of project {project.name} for non-preemptible "
        f"workloads is {_gpus(project.quota_milli)}",
    )


def _quota_used(snapshot: Snapshot, kind: Kind, shortfall: Shortfall, least_milli: int, where: str) -> Waiting:
    """`least_milli`: what a pod takes on the node with the largest devices, whether there is room or not."""
    project = snapshot.projects[kind.project_id]
    quota = project.quota_milli or 0
    return Waiting(
        reason=WaitingReason.QUOTA_USED if least_milli <= quota else WaitingReason.QUOTA_TOO_SMALL,
        message=f"a pod needs at least {_gpus(shortfall.quota_need_milli)} where there is room in {where}, and "
        f"non-preemptible workloads of project "
        f"{project.name} hold {_gpus(shortfall.quota_used_milli)} of its quota of {_gpus(quota)}",
    )


def _gpu_need(room: Room, request: PodRequest, rows: Integers) -> str:
    largest = _gpus(room.largest_share_milli(rows))
    if request.gpu_memory_bytes:
        return f"need {format_bytes(request.gpu_memory_bytes)} of a device, largest free share {largest}"
    if request.gpu_milli < WHOLE_GPU_MILLI:
        share = _gpus(request.gpu_milli)
        each = f"need {request.gpu_devices} × {share}" if request.gpu_devices > 1 else f"need {share}"
        return f"{each}, largest free share {largest}"
    most = max(int(room.free_devices[rows].max()), 0)
    return f"need {request.gpu_devices}, largest free {most}"


def _wanted_pools(snapshot: Snapshot, kind: Kind) -> tuple[str, ...]:
    project = snapshot.projects.get(kind.project_id)
    return kind.pools or (project.pools if project else ())


def _where(pools: tuple[str, ...], cluster: ClusterView) -> str:
    return f"{'pool' if len(pools) == 1 else 'pools'} {_listed(pools)} of cluster {cluster.name}"


def _wish(request: PodRequest) -> str:
    parts = [
        _count(request.gpu_devices, "GPU") if request.gpu_devices else "",
        f"{_cores(request.cpu_milli)} CPU cores" if request.cpu_milli else "",
        f"{format_bytes(request.memory_bytes)} of memory" if request.memory_bytes else "",
    ]
    return " and ".join(part for part in parts if part) or "room for a pod"


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "none"


def _all_too_small(count: int, where: str) -> str:
    if count == 1:
        return f"the only node of {where} is too small"
    return f"none of the {_nodes(count)} of {where} is large enough"


def _closed(count: int, where: str) -> str:
    if count == 1:
        return f"the only node of {where} that is large enough takes no new pods"
    return f"the {_nodes(count)} of {where} that are large enough take no new pods"


def _nodes(count: int) -> str:
    return _count(count, "node")


def _count(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def _gpus(milli: int) -> str:
    return f"{milli / WHOLE_GPU_MILLI:g} {'GPU' if milli <= WHOLE_GPU_MILLI else 'GPUs'}"


def _cores(milli: int) -> str:
    return f"{max(milli, 0) / 1000:g}"
