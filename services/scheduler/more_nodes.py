"""Nodes that a cluster has not, as they are tried in a plan. Pure."""

from dataclasses import dataclass, replace

import numpy as np

from events.quantities import format_bytes
from events.workload.spec import WHOLE_GPU_MILLI
from services.scheduler.plan import MAX_PODS_PER_PLAN
from services.scheduler.planning import Planning, pools_to_try
from services.scheduler.policy.phases import release
from services.scheduler.policy.pools import pools_of
from services.scheduler.scene import Scene
from services.scheduler.snapshot import PodClass, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A node that is just large enough for one of some pods."""

    pool: str
    parts: tuple[tuple[PodClass, int], ...]
    """Of the pods that need such a node, and how many of each must find a place."""

    @property
    def part(self) -> PodClass:
        """All its parts ask for the same of a node."""
        return self.parts[0][0]

    @property
    def pods(self) -> int:
        return sum(count for _, count in self.parts)

    @property
    def asks_for_more_than_a_place(self) -> bool:
        request = self.part.request
        return bool(request.gpu_devices or request.cpu_milli or request.memory_bytes or request.extended)

    def lacking(self, scene: Scene, snapshot: Snapshot) -> int:
        """About how many of its pods find no place in that world, if all others left them what is free."""
        planning = scene.planning
        if snapshot is not scene.snapshot:
            planning = Planning(replace(snapshot, queues=()), planning.policy, MAX_PODS_PER_PLAN)
            release.run(planning)
        # Pods that ask for the same share the room.
        free = [
            sum(each.fitting_in_all(self.pods, enough=self.pods) for _, each in pools_of(planning, part))
            for part, _ in self.parts
        ]
        return max(0, self.pods - max(free))

    def labels(self) -> dict[str, str]:
        """That it must have."""
        request = self.part.request
        labels = {"run.ai/type": request.node_type} if request.node_type else {}
        labels |= {request.topology_key: "any"} if request.topology_key else {}
        for each in request.node_terms[0].match_expressions if request.node_terms else ():
            first = each.values[0] if each.values else ""
            match each.operator:
                case "In":
                    labels[each.key] = first
                case "Exists":
                    labels.setdefault(each.key, "any")
                case "Gt":
                    labels[each.key] = str(int(first) + 1)
                case "Lt":
                    labels[each.key] = str(int(first) - 1)
                case _:
                    pass
        return labels

    def has(self) -> dict[str, object]:
        """What it must have free, and its labels."""
        request = self.part.request
        extended = {each.resource: each.amount for each in request.extended}
        return {
            "gpus": request.gpu_devices,
            "gpuMemory": format_bytes(request.gpu_memory_bytes) if request.gpu_memory_bytes else 0,
            "cpuCores": request.cpu_milli / 1000,
            "memory": format_bytes(request.memory_bytes) if request.memory_bytes else 0,
            **extended,
            "labels": self.labels(),
        }


def shapes_of(scene: Scene) -> list[Shape]:
    """One for all pods that need such a node, the largest first; none where a part has no pool."""
    found: dict[object, list[tuple[PodClass, int]]] = {}
    for part, count in scene.parts:
        pools = pools_to_try(scene.snapshot, part)
        if not pools:
            return []
        request, shape = part.request, Shape(pool=pools[0], parts=((part, count),))
        labels = tuple(sorted(shape.labels().items()))
        extended = tuple(sorted((each.resource, each.amount) for each in request.extended))
        asked = request.gpu_devices, request.gpu_memory_bytes, request.cpu_milli, request.memory_bytes, extended
        found.setdefault((asked, labels, pools[0], part.cluster_id), []).append((part, count))
    shapes = [Shape(pool=pools_to_try(scene.snapshot, of[0][0])[0], parts=tuple(of)) for of in found.values()]

    def size(shape: Shape) -> tuple[int, int, int]:
        request = shape.part.request
        return request.gpu_devices, request.cpu_milli, request.memory_bytes

    return sorted(shapes, key=size, reverse=True)


def with_nodes(of: Snapshot, shape: Shape, count: int, *, pods: int) -> Snapshot:
    """So many nodes more. `pods`: of all shapes together; a node takes as many as it has room for."""
    table, request, place = of.nodes, shape.part.request, (shape.part.cluster_id, shape.pool)
    labels, pods = shape.labels(), pods if shape.asks_for_more_than_a_place else 1
    numbers = table.pool_numbers | {place: table.pool_numbers.get(place, len(table.pool_numbers))}

    def more(column: np.ndarray, *, value: int) -> np.ndarray:
        return np.concatenate((column, np.full(count, value, dtype=column.dtype)))

    width = max(table.free_device_milli.shape[1], request.gpu_devices)
    devices = np.full((len(table.keys) + count, width), -1, dtype=np.int64)
    devices[: len(table.keys), : table.free_device_milli.shape[1]] = table.free_device_milli
    devices[len(table.keys) :, : request.gpu_devices] = WHOLE_GPU_MILLI
    wanted = {each.resource: each.amount for each in request.extended}
    names = {*wanted, *table.free_extended}
    none = np.zeros(len(table.keys), dtype=np.int64)
    untainted = next((n for n, each in enumerate(table.taint_sets) if not each), len(table.taint_sets))
    nodes = replace(
        table,
        keys=(*table.keys, *(f"+{len(table.keys) + n}" for n in range(count))),
        names=(*table.names, *("",) * count),
        gpu_models=(*table.gpu_models, *("",) * count),
        pool_numbers=numbers,
        pool=more(table.pool, value=numbers[place]),
        present=more(table.present, value=1),
        usable=more(table.usable, value=1),
        taints=more(table.taints, value=untainted),
        taint_sets=(*table.taint_sets, ()) if untainted == len(table.taint_sets) else table.taint_sets,
        labels=table.labels.with_more((labels,) * count),
        cordoned=more(table.cordoned, value=0),
        closings=tuple(each._replace(rows=more(each.rows, value=0)) for each in table.closings),
        free_cpu_milli=more(table.free_cpu_milli, value=request.cpu_milli),
        free_memory_bytes=more(table.free_memory_bytes, value=request.memory_bytes),
        free_pods=more(table.free_pods, value=pods),
        free_devices=more(table.free_devices, value=request.gpu_devices),
        free_device_milli=devices,
        gpu_memory_bytes=more(table.gpu_memory_bytes, value=request.gpu_memory_bytes),
        capacity_cpu_milli=more(table.capacity_cpu_milli, value=request.cpu_milli),
        capacity_memory_bytes=more(table.capacity_memory_bytes, value=request.memory_bytes),
        capacity_pods=more(table.capacity_pods, value=pods),
        capacity_devices=more(table.capacity_devices, value=request.gpu_devices),
        free_extended={name: more(table.free_extended.get(name, none), value=wanted.get(name, 0)) for name in names},
        capacity_extended={
            name: more(table.capacity_extended.get(name, none), value=wanted.get(name, 0)) for name in names
        },
    )
    return replace(of, nodes=nodes)
