"""Nodes as columns of numbers, kept row by row as the log moves on. No decisions."""

from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Final

import msgspec
import numpy as np

from events.aggregate import NODE
from events.node import Node, Taint
from services.scheduler.node_labels import NodeLabels
from services.scheduler.snapshot import Closing, Cordon, Integers, NodeTable

FIRST_ROWS: Final = 64
"""Columns double from here, so that a thousand nodes cost five copies."""
FIRST_DEVICES: Final = 8
"""The usual most GPUs of a node; more widen the column."""
REFUSING_EFFECTS: Final = frozenset({"NoSchedule", "NoExecute"})
"""Taints that keep a pod away which tolerates nothing."""
SOFT_EFFECT: Final = "PreferNoSchedule"
"""Taints that keep none away; other nodes are better."""
_EFFECTS: Final = REFUSING_EFFECTS | {SOFT_EFFECT}
LARGEST: Final = 2**62
"""What is more, or less than its negative, counts as this: sums and differences of two still fit 64 bits."""

_NUMBERS: Final = (
    "pool",
    "free_cpu_milli",
    "free_memory_bytes",
    "free_pods",
    "free_devices",
    "taints",
    "gpu_memory_bytes",
    "capacity_cpu_milli",
    "capacity_memory_bytes",
    "capacity_pods",
    "capacity_devices",
)


class Columns:
    """A growing table; `frozen` gives a copy that no later change reaches."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.names: list[str] = []
        self.gpu_models: list[str] = []
        self.rows: dict[str, int] = {}
        self._pools: dict[tuple[str, str], int] = {}
        """Numbers of all pools that nodes were ever in."""
        self._numbers = {name: np.zeros(FIRST_ROWS, dtype=np.int64) for name in _NUMBERS}
        self._present = np.zeros(FIRST_ROWS, dtype=np.bool_)
        self._usable = np.zeros(FIRST_ROWS, dtype=np.bool_)
        self._cordoned = np.zeros(FIRST_ROWS, dtype=np.bool_)
        self._cordons: dict[int, Cordon] = {}
        self._devices = np.full((FIRST_ROWS, FIRST_DEVICES), -1, dtype=np.int64)
        self._labels: list[Mapping[str, str]] = []
        self._labels_frozen: NodeLabels | None = None
        """Made anew once a label changed or a node came: what was found out about them is kept until then."""
        self._taint_sets: dict[tuple[Taint, ...], int] = {}
        """Numbers of the sets of taints; those that no node has any more are forgotten in time."""
        self._nodes: list[Node] = []
        """Row by row, for columns that are made later."""
        self._offered: Counter[str] = Counter()
        """How many nodes have each extended resource."""
        self._free_extended: dict[str, Integers] = {}
        self._capacity_extended: dict[str, Integers] = {}
        """Of what pods wait for, and no more: an agent may name as many resources as it likes."""

    def set(self, key: str, node: Node, *, reachable: bool) -> None:
        """Write a node's row; `reachable`: whether its cluster takes new pods."""
        row = self._row(key)
        self.names[row], self.gpu_models[row] = node.name, node.facts.gpu_model
        facts, numbers = node.facts, self._numbers
        # Since when they are there makes no difference here, and would make a set of each node.
        taints = tuple(
            taint if taint.since is None else msgspec.structs.replace(taint, since=None)
            for taint in facts.taints
            if taint.effect in _EFFECTS
        )
        numbers["taints"][row] = self._taint_sets.setdefault(taints, len(self._taint_sets))
        if len(self._taint_sets) > 2 * len(self.keys) + FIRST_ROWS:
            self._forget_taint_sets()
        if facts.labels is not self._labels[row] and facts.labels != self._labels[row]:
            self._labels[row], self._labels_frozen = facts.labels, None
        numbers["pool"][row] = self._pools.setdefault((node.cluster_id, facts.pool), len(self._pools))
        numbers["free_cpu_milli"][row] = clipped(node.free_cpu_milli)
        numbers["free_memory_bytes"][row] = clipped(node.free_memory_bytes)
        numbers["free_pods"][row] = clipped(node.free_pods)
        numbers["free_devices"][row] = clipped(node.free_devices)
        numbers["gpu_memory_bytes"][row] = clipped(facts.gpu_memory_bytes)
        numbers["capacity_cpu_milli"][row] = clipped(facts.cpu_milli)
        numbers["capacity_memory_bytes"][row] = clipped(facts.memory_bytes)
        numbers["capacity_pods"][row] = clipped(facts.max_pods)
        numbers["capacity_devices"][row] = clipped(facts.gpu_count)
        self._present[row] = node.present
        self._set_extended(row, node)
        self._usable[row] = node.schedulable and reachable
        # A cordon for maintenance is the calendar's to tell.
        self._cordoned[row] = node.cordoned and node.cordoned_for is None
        self._cordons.pop(row, None)
        if node.cordoned_at is not None and node.cordoned_for is None:
            self._cordons[row] = Cordon(node.cordoned_by, node.cordoned_at)
        free = node.free_device_milli
        if len(free) > self._devices.shape[1]:
            wider = np.full((len(self._devices), len(free)), -1, dtype=np.int64)
            wider[:, : self._devices.shape[1]] = self._devices
            self._devices = wider
        self._devices[row] = -1
        self._devices[row, : len(free)] = [clipped(milli) for milli in free]

    def frozen(self, *, extended: Iterable[str] = (), closings: tuple[Closing, ...] = ()) -> NodeTable:
        """Args:
        extended: resources of which columns are wanted.
        closings: by the calendar, of the rows that there are.
        """
        count = len(self.keys)
        self._keep_extended({name for name in extended if name in self._offered})
        if self._labels_frozen is None:
            self._labels_frozen = NodeLabels(tuple(self._labels))
        pool_numbers, pool = self._pools_of_nodes(count)
        return NodeTable(
            keys=tuple(self.keys),
            names=tuple(self.names),
            gpu_models=tuple(self.gpu_models),
            pool_numbers=pool_numbers,
            present=self._present[:count].copy(),
            usable=self._usable[:count].copy(),
            taint_sets=tuple(self._taint_sets),
            labels=self._labels_frozen,
            free_extended={name: column[:count].copy() for name, column in self._free_extended.items()},
            capacity_extended={name: column[:count].copy() for name, column in self._capacity_extended.items()},
            cordoned=self._cordoned[:count].copy(),
            cordons=dict(self._cordons),
            closings=closings,
            free_device_milli=self._devices[:count].copy(),
            **{name: column[:count].copy() for name, column in self._numbers.items()} | {"pool": pool},
        )

    def _pools_of_nodes(self, count: int) -> tuple[dict[tuple[str, str], int], Integers]:
        """Numbers of the pools that have nodes, in the order of their names, and by row that of the node's: whatever
        pools there were before, and in which order they came, a plan is the same.
        """
        rows = self._numbers["pool"][:count]
        used = np.bincount(rows, minlength=len(self._pools)) > 0
        there = sorted(place for place, number in self._pools.items() if used[number])
        renumbered = np.zeros(len(self._pools), dtype=np.int64)
        renumbered[[self._pools[place] for place in there]] = np.arange(len(there))
        return {place: number for number, place in enumerate(there)}, renumbered[rows]

    def _row(self, key: str) -> int:
        row = self.rows.get(key)
        if row is not None:
            return row
        row = self.rows[key] = len(self.keys)
        self.keys.append(key)
        self.names.append("")
        self.gpu_models.append("")
        self._labels.append({})
        self._labels_frozen = None
        self._nodes.append(NODE.initial)
        if row == len(self._present):
            self._numbers = {name: np.concatenate((column, column)) for name, column in self._numbers.items()}
            self._present = np.concatenate((self._present, self._present))
            self._usable = np.concatenate((self._usable, self._usable))
            self._cordoned = np.concatenate((self._cordoned, np.zeros_like(self._cordoned)))
            self._devices = np.concatenate((self._devices, self._devices))
            for columns in (self._free_extended, self._capacity_extended):
                columns |= {name: np.concatenate((column, np.zeros_like(column))) for name, column in columns.items()}
        return row

    def _set_extended(self, row: int, node: Node) -> None:
        before, self._nodes[row] = self._nodes[row], node
        if before.facts is not node.facts and before.facts.extended != node.facts.extended:
            self._offered.update(node.facts.extended.keys())
            uncount(self._offered, before.facts.extended.keys())
        for name, free in self._free_extended.items():
            free[row] = clipped(node.free_extended(name))
            self._capacity_extended[name][row] = clipped(node.facts.extended.get(name, 0))

    def _keep_extended(self, names: AbstractSet[str]) -> None:
        """Have columns of these, and of no others."""
        for gone in self._free_extended.keys() - names:
            del self._free_extended[gone], self._capacity_extended[gone]
        for name in names - self._free_extended.keys():
            free, capacity = np.zeros((2, len(self._present)), dtype=np.int64)
            for row, node in enumerate(self._nodes):
                free[row] = clipped(node.free_extended(name))
                capacity[row] = clipped(node.facts.extended.get(name, 0))
            self._free_extended[name], self._capacity_extended[name] = free, capacity

    def _forget_taint_sets(self) -> None:
        """Number anew those that a node has: else an agent could have each plan look at all that it ever named."""
        sets, column = tuple(self._taint_sets), self._numbers["taints"]
        used = sorted(set(column[: len(self.keys)].tolist()))
        self._taint_sets = {sets[number]: new for new, number in enumerate(used)}
        column[: len(self.keys)] = np.searchsorted(used, column[: len(self.keys)])


def uncount(counter: Counter[str], names: Iterable[str]) -> None:
    """Count each once less, and forget those that are left with nothing."""
    for name in names:
        counter[name] -= 1
        if not counter[name]:
            del counter[name]


def clipped(number: int) -> int:
    """The number, or LARGEST, or its negative, where it is beyond."""
    return max(-LARGEST, min(number, LARGEST))
