"""Which clusters changed since the last look. Whoever found something out about one keeps it until its number rises.

A cluster is compared by all that the policy's filters see of its nodes, with what is free once the reservations of runs
that are over are released: nobody has to say what changed, and what is free again as it was is compared like the rest.
"""

from typing import NamedTuple

import numpy as np

from services.scheduler.planning import Planning
from services.scheduler.snapshot import Integers


class Numbers(NamedTuple):
    """Of one cluster; they never come again."""

    built: int
    """Rises when it has other nodes, or others of their properties that no pod changes."""
    free: int
    """Rises when anything else changed, too: what is free, what takes pods, and what is known of the cluster."""


class Seen:
    """Mutable; of one fold, whose rows stay those of the same nodes."""

    def __init__(self) -> None:
        self.number = 0
        """Rises with each number of a cluster, and where a cluster is gone."""
        self._clusters: dict[str, tuple[Numbers, tuple[object, ...], tuple[object, ...]]] = {}
        """By id: what it looked like."""
        self._rows: dict[str, dict[str, Integers]] = {}
        """By id of a cluster, and pool: the rows of its nodes."""

    def look(self, planning: Planning) -> None:
        """Args: planning, of which nothing was placed yet."""
        nodes, clusters = planning.snapshot.nodes, planning.snapshot.clusters
        self._rows = {id_: {} for id_ in clusters}
        for (id_, pool), number in nodes.pool_numbers.items():
            if id_ in self._rows:
                self._rows[id_][pool] = np.flatnonzero((nodes.pool == number) & nodes.present)
        for gone in self._clusters.keys() - clusters.keys():
            del self._clusters[gone]
            self.number += 1
        for id_ in clusters:
            built, free = self._looks(planning, id_)
            before = self._clusters.get(id_)
            if before is None or before[1] != built:
                self.number += 1
                self._clusters[id_] = Numbers(self.number, self.number), built, free
            elif before[2] != free:
                self.number += 1
                self._clusters[id_] = Numbers(before[0].built, self.number), built, free

    def numbers(self, cluster_id: str) -> Numbers:
        return self._clusters[cluster_id][0]

    def rows(self, cluster_id: str, pool: str) -> Integers:
        """Of the nodes that are there."""
        found = self._rows[cluster_id].get(pool)
        return np.zeros(0, dtype=np.int64) if found is None else found

    def _looks(self, planning: Planning, cluster_id: str) -> tuple[tuple[object, ...], tuple[object, ...]]:
        """(what no pod changes, all else), to be compared."""
        room, nodes, view = planning.room, planning.snapshot.nodes, planning.snapshot.clusters[cluster_id]
        by_pool = self._rows[cluster_id]
        rows = np.concatenate([*by_pool.values(), np.zeros(0, dtype=np.int64)])
        built = (
            view.pools,
            tuple((pool, found.tobytes()) for pool, found in by_pool.items()),
            nodes.capacity_cpu_milli[rows].tobytes(),
            nodes.capacity_memory_bytes[rows].tobytes(),
            nodes.capacity_pods[rows].tobytes(),
            nodes.capacity_devices[rows].tobytes(),
            nodes.gpu_memory_bytes[rows].tobytes(),
            tuple((name, column[rows].tobytes()) for name, column in nodes.capacity_extended.items()),
            nodes.labels.of(rows.tolist()),
        )
        taints = nodes.taints[rows]
        sets: list[int] = np.unique(taints).tolist()
        closed = ((number, each.rows[rows]) for number, each in enumerate(nodes.closings))
        free = (
            view,
            nodes.usable[rows].tobytes(),
            nodes.cordoned[rows].tobytes(),
            taints.tobytes(),
            tuple((number, nodes.taint_sets[number]) for number in sets),
            room.cpu[rows].tobytes(),
            room.memory[rows].tobytes(),
            room.pods[rows].tobytes(),
            room.devices.shape[1],
            room.devices[rows].tobytes(),
            room.free_devices[rows].tobytes(),
            room.withheld[rows].tobytes(),
            tuple((name, column[rows].tobytes()) for name, column in room.extended.items()),
            tuple((number, which.tobytes()) for number, which in closed if which.any()),
        )
        return built, free
