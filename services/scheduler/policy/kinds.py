"""Nodes that no rule tells apart but by their labels, and what is counted once for all of them. Pure.

Most nodes of a cluster are as free as many others, and clusters are often made of the same nodes: what a request finds
on one of them, it finds on all.
"""

from typing import Final, NamedTuple

import numpy as np

from events.workload.spec import PodRequest
from services.scheduler.candidates import refused_by
from services.scheduler.planning import Planning
from services.scheduler.policy.phases import explain
from services.scheduler.room import View
from services.scheduler.snapshot import Booleans, Integers

ALL_AT_ONCE: Final = 1_000
"""Where there are no more kinds, a request is counted on all of them at once: a few cost as much as one."""


class Nodes(NamedTuple):
    """Some nodes, by their kinds."""

    kinds: Integers
    """Numbers, each once."""
    counts: Integers
    """How many nodes are of each."""


class _Counted(NamedTuple):
    """Of one request; element i is of a node of kind i."""

    known: Booleans
    held: Integers
    """How many of its pods such a node could hold when empty."""
    fits: Integers
    """About how many it has room for now; at least 1 where it has any."""


class Kinds:
    """As of one planning of which nothing was placed yet. What is counted is counted when it is first asked for."""

    def __init__(self, planning: Planning) -> None:
        self._planning = planning
        self._number: Integers | None = None
        """Of each node's kind, by row."""
        self._first: Integers = np.zeros(0, dtype=np.int64)
        """By number of a kind: the row of a node of it."""
        self._counted: dict[tuple[PodRequest, tuple[int, ...]], _Counted] = {}

    def of(self, rows: Integers) -> Nodes:
        """Nodes by their rows."""
        if self._number is None:
            self._number = self._numbers()
        return Nodes(*np.unique(self._number[rows], return_counts=True))

    def count(self, nodes: Nodes, request: PodRequest, closings: tuple[int, ...]) -> tuple[int, int]:
        """How many such pods these nodes could hold when empty, and about how many they have room for: at least 1 of
        each that has any.

        Args:
            closings: numbers of those that keep such pods away.
        """
        counted = self._counted.get((request, closings))
        if counted is None:
            many = len(self._first)
            counted = _Counted(np.zeros(many, np.bool_), np.zeros(many, np.int64), np.zeros(many, np.int64))
            self._counted[request, closings] = counted
        kinds, counts = nodes
        if not counted.known[kinds].all():
            new = np.flatnonzero(~counted.known) if len(self._first) <= ALL_AT_ONCE else kinds[~counted.known[kinds]]
            held, fits = self.each(self._first[new], request, closings)
            counted.known[new], counted.held[new], counted.fits[new] = True, held, fits
        return int(counted.held[kinds] @ counts), int(counted.fits[kinds] @ counts)

    def each(self, rows: Integers, request: PodRequest, closings: tuple[int, ...]) -> tuple[Integers, Integers]:
        """(how many of its pods each of these nodes could hold when empty, how many it has room for), by their rows."""
        planning = self._planning
        kept_away = tuple(planning.snapshot.nodes.closings[number] for number in closings)
        view = View(planning.room, request, rows, closings=kept_away)
        filters = [each for each in planning.policy.filters if each.asks(request)]
        small = explain.too_small_in(view, filters)
        full = [check for each in filters for check in (each.closed, each.full) if check is not None]
        fits = np.where(small | refused_by(full, view), 0, np.maximum(_fitting(view), 1))
        return np.where(small, 0, explain.each_holds_when_empty(view)), fits

    def _numbers(self) -> Integers:
        """Nodes are of one kind where all is alike that filters see of them, but their labels: those bar for ever."""
        nodes, room = self._planning.snapshot.nodes, self._planning.room
        columns = (
            *(nodes.capacity_cpu_milli, nodes.capacity_memory_bytes, nodes.capacity_pods, nodes.capacity_devices),
            *(nodes.gpu_memory_bytes, nodes.usable, nodes.cordoned, nodes.taints),
            *nodes.capacity_extended.values(),
            *(room.cpu, room.memory, room.pods, room.free_devices, room.withheld, *room.extended.values()),
            *(each.rows for each in nodes.closings),
        )
        table = np.column_stack((*columns, room.devices)).astype(np.int64, copy=False)
        number_of: dict[bytes, int] = {}
        numbers = np.array([number_of.setdefault(row.tobytes(), len(number_of)) for row in table], dtype=np.int64)
        _, self._first = np.unique(numbers, return_index=True)
        return numbers


def _fitting(view: View) -> Integers:
    request, room, rows = view.request, view.room, view.rows
    counts = room.pods[rows]
    amounts = [(room.cpu, request.cpu_milli), (room.memory, request.memory_bytes)]
    amounts += [
        (free, each.amount) for each in request.extended if (free := room.extended.get(each.resource)) is not None
    ]
    for free, amount in amounts:
        if amount:
            counts = np.minimum(counts, free[rows] // amount)
    if request.gpu_devices:
        shares = np.maximum(room.devices[rows], 0) // np.maximum(view.share_milli, 1)[:, None]
        counts = np.minimum(counts, shares.sum(axis=1) // request.gpu_devices)
    return counts
