"""Nodes in the order of their keys, of which a few change at a time. Pure.

A key is several numbers that are compared one after the other. The first is known of each node; the others take time to
find out, and are asked for only where the first leaves nodes alike. Where all are alike, the node with the lowest index
goes first.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final

import numpy as np

from services.scheduler.snapshot import Integers

NO_ROOM: Final = np.iinfo(np.int64).max
"""First number of the key of a node that cannot be chosen."""
UNKNOWN: Final = -1
"""Stands for a number that was not found out yet; it comes before all others."""
MOST_STALE: Final = 64
"""So many more entries than nodes are kept of keys that have changed, and then all nodes are put in order anew."""

type Key = tuple[int, ...]
type Entry = tuple[int, ...]
"""A key, then the index of its node. Entries compare as their nodes do, as far as their keys are known."""


class Ranking:
    """Mutable. Nodes that did not change stand in a list in order, the others in a heap.

    Args:
        first: of each node.
        rest: finds out the other numbers of some nodes as they are now, one column each.
        columns: how many those are.
    """

    __slots__ = (
        "_at",
        "_columns",
        "_entries",
        "_group",
        "_group_at",
        "_group_first",
        "_group_rest",
        "_heap",
        "_moved",
        "_order",
        "_rest",
        "_sorted",
        "_unknown",
    )

    def __init__(self, first: Integers, rest: Callable[[Integers], Sequence[Integers]], columns: int) -> None:
        self._rest, self._columns = rest, columns
        self._unknown: Key = (UNKNOWN,) * columns
        order = np.argsort(first, kind="stable")
        keys = first[order]
        stop = int(keys.searchsorted(NO_ROOM))
        self._order: list[int] = order[:stop].tolist()
        self._sorted: list[int] = keys[:stop].tolist()
        self._moved = bytearray(len(order))
        """By index, whether it does not count in the list any more."""
        self._at = 0
        """Of the list: before it are those of the group, and those that were taken."""
        self._group: list[int] = []
        """Indexes of those whose first number is the same and the least, in order."""
        self._group_first = NO_ROOM
        self._group_rest: list[list[int]] = []
        """The other numbers of those in the group, one column each; empty where they were not found out."""
        self._group_at = 0
        self._heap: list[Entry] = []
        self._entries: dict[int, Entry] = {}
        """By index: the entry that counts of those in the heap. Each other one there is stale."""

    def put(self, index: int, key: Key) -> None:
        """A node has this key now, of which only the first number may be known; it is in the order, if it was not."""
        self._moved[index] = True
        if key[0] == NO_ROOM:
            self._entries.pop(index, None)
            return
        entry = (*key, *self._unknown, index) if len(key) == 1 else (*key, index)
        self._entries[index] = entry
        heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._moved) + MOST_STALE:
            self._heap = [*self._entries.values()]
            heapify(self._heap)

    def pop(self) -> Entry | None:
        """The node that goes first is out of the order until it is put again; None where none has room.

        Where its first number alone decides, the others may be unknown.
        """
        heap, entries = self._heap, self._entries
        listed = self._listed()
        while heap:
            entry = heap[0]
            index = entry[-1]
            if entries.get(index) is not entry:
                heappop(heap)
                continue
            if listed is not None and listed[0] == entry[0]:
                listed = self._known(listed)
            if listed is not None and listed < entry:
                break
            if self._columns and entry[1] == UNKNOWN:
                if (listed is None or listed[0] != entry[0]) and not self._another_like(entry):
                    heappop(heap)
                    del entries[index]
                    return entry
                known = self._known(entry)
                entries[index] = known
                heapreplace(heap, known)
                continue
            heappop(heap)
            del entries[index]
            return entry
        if listed is not None:
            self._moved[listed[-1]] = True
        return listed

    def least(self) -> Entry:
        """No node that is in the order comes before this; it need not be the entry of one."""
        heap, entries = self._heap, self._entries
        while heap and entries.get(heap[0][-1]) is not heap[0]:
            heappop(heap)
        least: Entry = heap[0] if heap else (NO_ROOM,)
        self._skip()
        if self._group_at < len(self._group):
            return min(least, self._of_group())
        return min(least, (self._sorted[self._at],)) if self._at < len(self._order) else least

    def _another_like(self, entry: Entry) -> bool:
        """Whether another one in the heap may have the same first number: it is one of the two below the top."""
        heap = self._heap
        return any(heap[at][0] == entry[0] for at in (1, 2) if at < len(heap))

    def _known(self, entry: Entry) -> Entry:
        if self._columns and entry[1] == UNKNOWN:
            index = entry[-1]
            return (entry[0], *(int(column[0]) for column in self._rest(np.array([index]))), index)
        return entry

    def _skip(self) -> None:
        """Pass over what has moved."""
        moved, group, order = self._moved, self._group, self._order
        while self._group_at < len(group) and moved[group[self._group_at]]:
            self._group_at += 1
        if self._group_at == len(group):
            while self._at < len(order) and moved[order[self._at]]:
                self._at += 1

    def _of_group(self) -> Entry:
        at, first = self._group_at, self._group_first
        if not self._group_rest:
            return (first, *self._unknown, self._group[at])
        return (first, *(column[at] for column in self._group_rest), self._group[at])

    def _listed(self) -> Entry | None:
        """The first of those that did not change."""
        self._skip()
        if self._group_at == len(self._group):
            if self._at == len(self._order):
                return None
            self._next_group()
        return self._of_group()

    def _next_group(self) -> None:
        at = self._at
        self._group_first = self._sorted[at]
        self._at = bisect_right(self._sorted, self._group_first, lo=at)
        moved, order = self._moved, self._order
        group = [index for index in order[at : self._at] if not moved[index]]
        self._group_at, self._group, self._group_rest = 0, group, []
        if len(group) > 1 and self._columns:
            indexes = np.array(group)
            columns = self._rest(indexes)
            sorted_ = np.lexsort(tuple(reversed(columns)))
            self._group = indexes[sorted_].tolist()
            self._group_rest = [column[sorted_].tolist() for column in columns]
