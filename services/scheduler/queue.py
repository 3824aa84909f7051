"""The queue of waiting pods of one class, in order. It costs nothing while it does not change. No decisions."""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from operator import attrgetter
from typing import Final

from services.scheduler.snapshot import OrderKey, Pending, PodClass, Queue, Waiting

_order: Final[Callable[[Pending], OrderKey]] = attrgetter("order")


class WaitingQueue:
    """Mutable; part of the fold."""

    __slots__ = (
        "_blocked",
        "_blocked_at",
        "_blocked_rank",
        "_frozen",
        "_ranks",
        "entries",
        "pod_class",
        "pods",
        "put_off",
        "reported",
        "reported_at",
        "unreported",
    )

    def __init__(self, pod_class: PodClass) -> None:
        self.pod_class = pod_class
        self.entries: list[Pending] = []
        self.pods = 0
        """Of all entries."""
        self.unreported: dict[str, Pending] = {}
        self.put_off = 0
        """How many plans in a row did not get to it."""
        self.reported = ""
        """The reason that was reported last for this queue as a whole."""
        self.reported_at: datetime | None = None
        self._blocked: Waiting | None = None
        self._blocked_at = -1
        self._blocked_rank = -1
        """The highest that was looked at in vain."""
        self._ranks = Counter[int]()
        """How many entries have which rank, of those that may take the place of anybody of a lower one."""
        self._frozen: tuple[Pending, ...] | None = None

    def add(self, entry: Pending) -> None:
        insort(self.entries, entry, key=_order)
        self.pods += len(entry.pods)
        if not entry.gave_way_to:
            self._ranks[entry.rank] += 1
        if entry.rank > self._blocked_rank:
            self._blocked = None  # it may take the place of others, which the rest of the queue may not
        self._frozen = None
        if not entry.queued or (entry.idle and not entry.reported):
            self.unreported[entry.key] = entry

    def remove(self, entry: Pending) -> None:
        at = bisect_left(self.entries, entry.order, key=_order)
        assert self.entries[at] is entry, "an order names the workload and its pod set, so it is there once"
        del self.entries[at]
        self.pods -= len(entry.pods)
        if not entry.gave_way_to:
            self._ranks -= Counter({entry.rank: 1})
        self._frozen = None
        self.unreported.pop(entry.key, None)

    def block(self, waiting: Waiting, freed: int) -> None:
        self._blocked, self._blocked_at = waiting, freed
        self._blocked_rank = max(self._ranks, default=-1)

    def blocked(self, freed: int) -> Waiting | None:
        """Why it waits, where nothing was freed since that was found out."""
        return self._blocked if self._blocked_at == freed else None

    def frozen(self, freed: int, report_again: bool) -> Queue:  # noqa: FBT001 (one caller, beside the count)
        if self._frozen is None:
            self._frozen = tuple(self.entries)
        return Queue(
            pod_class=self.pod_class,
            entries=self._frozen,
            unreported=tuple(self.unreported.values()),
            blocked=self.blocked(freed),
            report_again=report_again,
            pods=self.pods,
            put_off=self.put_off,
        )
