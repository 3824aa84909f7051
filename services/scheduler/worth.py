"""What free room on nodes is worth to the pods that come. Pure; docs/concepts/best-place.md says why it is counted
so.

Two measures. `price` is of one GPU that is shared: what its rest is worth to shares that fit into it. `values` is of
a whole node: for each shape of pods, how much of its free GPU such pods could use, and shapes that find little room
in the cluster weigh most. Neither knows more than which pods have come and what is free.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from events.node import MOST_DEVICES
from events.workload.spec import WHOLE_GPU_MILLI, PodRequest
from services.scheduler.columns import LARGEST
from services.scheduler.mix import Shape, Weighed
from services.scheduler.patterns import Floats, worth_of_rest
from services.scheduler.snapshot import Booleans, Integers, NodeTable

UNHINDERED: Final = 0.3
"""Part of free GPU that counts although CPU or memory may be too little for it: pods of other shapes may take it."""
SPARE: Final = 2.0
"""CPU and memory bind where there is less than so many times what pods of this shape need for all of the free GPU."""
BY_SIZE: Final = 0.6
"""How much less a pod of many GPUs weighs than one: by the power of this."""
BY_SCARCITY: Final = 2.0
"""How much more a shape weighs of which half as many find room: by the power of this."""
LEAST_ROOM: Final = 0.002
"""Of the cluster's GPUs: what has less room than this weighs no more."""
MOST_KINDS: Final = 4
"""Of nodes: by how many GPUs they have, and by the memory of a GPU."""
EXPECTED_PODS: Final = 10.0
"""What is expected weighs as much as so many pods that came."""
PLENTY: Final = 1e9
"""Stands for what CPU serves where nobody asks for any."""
MOST_AT_ONCE: Final = 2_000_000
"""Nodes times sizes times devices: some 20 MB while they are looked at."""
MOST_LOOKED_UP: Final = 100_000
"""Some 30 MB."""
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)
"""An odd number without a pattern: products with it spread over 64 bits."""


class Rooms(NamedTuple):
    """Free room on nodes: element i of each is one."""

    rows: Integers
    """Which nodes."""
    cpu: Integers
    memory: Integers
    devices: Integers
    """Thousandths of each; two-dimensional; -1 where there is none, or none to be had."""

    def at(self, which: Integers) -> "Rooms":
        return Rooms(self.rows[which], self.cpu[which], self.memory[which], self.devices[which])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shapes:
    """Shapes as columns: element t of each is one. A request by GPU memory is several, each for its own nodes."""

    cpu: Floats
    memory: Floats
    sizes: Integers
    """All that there are, in thousandths of a device."""
    size: NDArray[np.intp]
    """Which of the sizes."""
    devices: Integers
    pod: Integers
    """Which of the pods that come."""
    weights: Floats


class Worth:
    """Of one plan: immutable, and what it is asked costs the same for any node."""

    __slots__ = ("_groups", "_kept", "_open", "_rest", "_rest_of", "_served", "_shapes", "expected", "first")

    def __init__(
        self, nodes: NodeTable, rooms: Rooms, mix: tuple[Weighed, ...], barred: Callable[[PodRequest], Booleans]
    ) -> None:
        """Args:
        rooms: of all nodes, as they are now.
        barred: which nodes the labels bar to a request, one element per node.
        """
        here = nodes.usable & nodes.present & ~nodes.cordoned & (nodes.capacity_devices > 0)
        gpus = int(nodes.capacity_devices[here].sum())
        self._open: Booleans | None = None
        """Which shapes may go to which node, [node, shape]; None: all to all."""
        self._groups: Integers = np.zeros(len(nodes.keys), dtype=np.int64)
        """Nodes of one group are open to the same shapes."""
        self._kept: dict[tuple[int, ...], float] = {}
        """Values that were found out one by one, by group, CPU, memory and devices in order."""
        self._shapes: _Shapes | None = None
        """None where there are no GPUs."""
        self.first: Floats = np.zeros(len(nodes.keys))
        """Value of each node as it is now."""
        self.expected = tuple(_expected(nodes, here, gpus)) if gpus else ()
        """What stands for pods before any have come, beside those that have."""
        weighed = (*mix, *self.expected) if gpus else ()
        shares = list(_shares(nodes, here, weighed))
        self._rest = worth_of_rest(_demand(shares))
        self._rest_of: list[int] = self._rest.tolist()
        self._served = _served(shares, self._rest_of)
        """What shares are worth together that a thousandth of a core serves, in 1/10,000 of a GPU."""
        if gpus:
            shapes, open_ = _columns(nodes, weighed, barred)
            if not open_.all():
                self._open = open_
                self._groups = np.unique(np.packbits(open_, axis=1), axis=0, return_inverse=True)[1].reshape(-1)
            self._weigh(shapes, rooms, here, gpus)

    def group(self, row: int) -> int:
        """Nodes of one group are open to the same shapes."""
        return int(self._groups[row])

    def price_of(self, free: int, share: int) -> int:
        """As `price`, of one device that has the share free."""
        return self._rest_of[min(free, WHOLE_GPU_MILLI)] - self._rest_of[min(free - share, WHOLE_GPU_MILLI)]

    def opened(self, devices: Integers, cpu: Integers) -> Floats:
        """What the rests of shared devices are worth together on each node, in 1/10,000 of a GPU: what its CPU serves.

        Args:
            devices: thousandths that are free, two-dimensional.
        """
        rests = (self._rest.take(devices, mode="clip") * (devices < WHOLE_GPU_MILLI)).sum(axis=1)
        return np.minimum(rests, np.maximum(cpu, 0) * self._served)

    @property
    def untouched(self) -> int:
        """What a device is worth that nobody shares, in 1/10,000 of a GPU."""
        return self._rest_of[WHOLE_GPU_MILLI]

    @property
    def nothing(self) -> bool:
        """Whether there are no GPUs, and each node is worth nothing."""
        return self._shapes is None

    def price(self, free: Integers, share: Integers) -> Integers:
        """What a share costs on a device that has so much free, in 1/10,000 of a GPU; broadcast."""
        return self._rest.take(free, mode="clip") - self._rest.take(free - share, mode="clip")

    def values(self, rooms: Rooms) -> Floats:
        """Of each node with that room, in thousandths of a GPU."""
        if self._shapes is None:
            return np.zeros(len(rooms.rows))
        return self._useful(self._shapes, rooms) @ self._shapes.weights

    def lost(self, before: Rooms, after: Rooms) -> Floats:
        """How much less a few nodes are worth after than before; looked up, as the same room comes again and again."""
        keys = [*self._keys(before), *self._keys(after)]
        unknown = [i for i, key in enumerate(keys) if key not in self._kept]
        if unknown:
            if len(self._kept) >= MOST_LOOKED_UP:
                self._kept.clear()
                unknown = list(range(len(keys)))
            both = Rooms(*(np.concatenate(columns) for columns in zip(before, after, strict=True)))
            values = self.values(both.at(np.array(unknown)) if len(unknown) < len(keys) else both).tolist()
            self._kept.update(zip((keys[i] for i in unknown), values, strict=True))
        found = np.array([self._kept[key] for key in keys])
        return found[: len(before.rows)] - found[len(before.rows) :]

    def _keys(self, rooms: Rooms) -> Iterator[tuple[int, ...]]:
        groups = self._groups[rooms.rows].tolist()
        for group, cpu, memory, devices in zip(
            groups, rooms.cpu.tolist(), rooms.memory.tolist(), rooms.devices.tolist(), strict=True
        ):
            devices.sort()
            yield (group, cpu, memory, *devices)

    def alike(self, rooms: Rooms, share_milli: Integers) -> tuple[Integers, Integers]:
        """(one of each that are alike, which of these each one is): nodes alike in all that counts here."""
        # Devices in any order are alike: so the sum of one number per device. Differences that the sums do not show are
        # one in 2**64.
        mixed = ((rooms.devices + 2).astype(np.uint64) * _MIX) ** np.uint64(3)
        seen = mixed.sum(axis=1)
        for column in (rooms.cpu, rooms.memory, share_milli, self._groups[rooms.rows]):
            seen = (seen ^ (seen >> np.uint64(29))) * _MIX + column.astype(np.uint64)
        _, one, which = np.unique(seen, return_index=True, return_inverse=True)
        return one, which

    def _weigh(self, shapes: _Shapes, rooms: Rooms, here: Booleans, gpus: int) -> None:
        """Weigh the shapes by how little room they find on the nodes `here`."""
        one, which = self.alike(rooms, np.zeros(len(here), dtype=np.int64))
        useful = self._useful(shapes, rooms.at(one))
        times = np.bincount(which[here], minlength=len(one))
        room = np.bincount(shapes.pod, weights=times @ useful)
        scarce = np.maximum(room / (WHOLE_GPU_MILLI * gpus), LEAST_ROOM) ** -BY_SCARCITY
        weights = shapes.weights * scarce[shapes.pod]
        self._shapes = replace(shapes, weights=weights / weights.sum())
        self.first = (useful @ self._shapes.weights)[which]

    def _useful(self, shapes: _Shapes, rooms: Rooms) -> Floats:
        """[node, shape]: how much of the node's free GPU pods of this shape could use, in thousandths."""
        at_once = max(MOST_AT_ONCE // (len(shapes.sizes) * rooms.devices.shape[1]), 1)
        if len(rooms.rows) > at_once:
            parts = (slice(start, start + at_once) for start in range(0, len(rooms.rows), at_once))
            return np.concatenate([self._useful(shapes, Rooms(*(column[part] for column in rooms))) for part in parts])
        # Devices come first: sums over the first axis are the fast ones.
        devices = rooms.devices.T[:, :, None]
        enough = devices >= shapes.sizes
        free = (enough * devices).sum(axis=0, dtype=np.float64)[:, shapes.size]
        fits = enough.sum(axis=0)[:, shapes.size] >= shapes.devices
        fits &= (rooms.cpu[:, None] >= shapes.cpu) & (rooms.memory[:, None] >= shapes.memory)
        if self._open is not None:
            fits &= self._open[rooms.rows]
        asked = SPARE * shapes.sizes[shapes.size] * shapes.devices
        cpu, memory = np.maximum(rooms.cpu, 0)[:, None], np.maximum(rooms.memory, 0)[:, None]
        usable = np.minimum(free, cpu * (asked / np.maximum(shapes.cpu, 1)))
        usable = np.minimum(usable, memory * (asked / np.maximum(shapes.memory, 1)))
        return fits * (UNHINDERED * free + (1 - UNHINDERED) * usable)


def _expected(nodes: NodeTable, here: Booleans, gpus: int) -> Iterator[Weighed]:
    """What is expected before anything has come: a few pods of one GPU, of half a GPU, and of as many GPUs as nodes
    have, with half of the CPU that stands beside them. They soon count for nothing.
    """
    cpu_of_a_gpu = nodes.capacity_cpu_milli[here].astype(np.float64).sum() / gpus
    sizes, times = np.unique(np.minimum(nodes.capacity_devices[here], MOST_DEVICES), return_counts=True)
    wide = sorted(zip(times.tolist(), sizes.tolist(), strict=True), reverse=True)[:MOST_KINDS]
    asked = [
        (1, WHOLE_GPU_MILLI, 0.4),
        (1, WHOLE_GPU_MILLI // 2, 0.4),
        *((size, 1000, 0.2 / len(wide)) for _, size in wide),
    ]
    for devices, share, part in asked:
        cpu = int(min(cpu_of_a_gpu * devices * share / (2 * WHOLE_GPU_MILLI), LARGEST))
        request = PodRequest(cpu_milli=cpu, gpu_devices=devices, gpu_milli=share)
        yield Weighed(Shape(request=request), EXPECTED_PODS * part)


def _kinds(nodes: NodeTable, here: Booleans) -> list[tuple[int, float]]:
    """(GPU memory of a device, its part of all GPUs), of the most frequent; 0 bytes where it is not known."""
    sizes, which = np.unique(nodes.gpu_memory_bytes[here], return_inverse=True)
    counts = np.bincount(which, weights=nodes.capacity_devices[here], minlength=len(sizes))
    found = sorted(zip(sizes.tolist(), (counts / counts.sum()).tolist(), strict=True), key=lambda each: -each[1])
    return found[:MOST_KINDS]


def _share(request: PodRequest, memory_bytes: int) -> int:
    """Of a device of that memory, in thousandths, rounded up; 0 where it has too little."""
    if not request.gpu_memory_bytes:
        return request.gpu_milli
    share = -(-WHOLE_GPU_MILLI * request.gpu_memory_bytes // memory_bytes) if memory_bytes > 0 else 0
    return share if share <= WHOLE_GPU_MILLI else 0


class _Share(NamedTuple):
    """A share of a device that comes."""

    milli: int
    devices: int
    cpu_milli: int
    """Of the pod, beside all of its devices."""
    weight: float


def _shares(nodes: NodeTable, here: Booleans, weighed: tuple[Weighed, ...]) -> Iterator[_Share]:
    """A request by memory is of one size for each kind of device, as often as there are such devices."""
    kinds = _kinds(nodes, here) if weighed else []
    for shape, weight in weighed:
        request = shape.request
        for memory, part in kinds if request.gpu_memory_bytes else [(0, 1.0)]:
            if 0 < (milli := _share(request, memory)) < WHOLE_GPU_MILLI:
                yield _Share(milli, request.gpu_devices, request.cpu_milli, weight * part)


def _demand(shares: list[_Share]) -> dict[int, float]:
    """How many come, by size."""
    demand: dict[int, float] = {}
    for share in shares:
        demand[share.milli] = demand.get(share.milli, 0.0) + share.weight * share.devices
    return demand


def _served(shares: list[_Share], rest: list[int]) -> float:
    asked = sum(share.weight * share.cpu_milli for share in shares)
    return sum(share.weight * share.devices * rest[share.milli] for share in shares) / asked if asked else PLENTY


def _columns(
    nodes: NodeTable, weighed: tuple[Weighed, ...], barred: Callable[[PodRequest], Booleans]
) -> tuple[_Shapes, Booleans]:
    """The shapes, and which node each may go to."""
    found: list[tuple[PodRequest, int, int, float]] = []
    opens: list[Booleans] = []
    kinds = _kinds(nodes, nodes.capacity_devices > 0)
    for pod, (shape, weight) in enumerate(weighed):
        request, open_ = shape.request, _may_go(nodes, shape) & ~barred(shape.request)
        for memory, _ in kinds if request.gpu_memory_bytes else [(-1, 1.0)]:
            if share := _share(request, memory):
                size = share * request.gpu_devices / WHOLE_GPU_MILLI
                found.append((request, share, pod, weight * size**-BY_SIZE))
                opens.append(open_ if memory < 0 else open_ & (nodes.gpu_memory_bytes == memory))
    sizes, which = np.unique(np.array([share for _, share, _, _ in found]), return_inverse=True)
    shapes = _Shapes(
        cpu=np.array([request.cpu_milli for request, *_ in found], dtype=np.float64),
        memory=np.array([request.memory_bytes for request, *_ in found], dtype=np.float64),
        sizes=sizes,
        size=which,
        devices=np.array([request.gpu_devices for request, *_ in found]),
        pod=np.array([pod for _, _, pod, _ in found]),
        weights=np.array([weight for *_, weight in found]),
    )
    return shapes, np.array(opens).T


def _may_go(nodes: NodeTable, shape: Shape) -> Booleans:
    """Which nodes are in its cluster and its pools."""
    allowed = np.array(
        [
            shape.cluster_id in {"", cluster_id} and (not shape.pools or pool in shape.pools)
            for cluster_id, pool in nodes.pool_numbers
        ]
    )
    return allowed[nodes.pool]
