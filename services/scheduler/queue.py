"""The queue of waiting pods of one class, in order. It costs nothing while it does not change. No decisions."""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from operator import attrgetter
from typing import Final

from services.scheduler.snapshot import OrderKey, Pending, PodClass, Queue, Waiting

_order: Final[Callable[[Pending], OrderKey]] = attrgetter("order")
FEW: Final = 16
"""One in so many entries: where less come or go, each is found in its place; else all are gone through once."""


class WaitingQueue:
    """Mutable; part of the fold."""

    __slots__ = (
        "_blocked",
        "_blocked_at",
        "_blocked_rank",
        "_come",
        "_entries",
        "_frozen",
        "_gone",
        "_ranks",
        "mixed",
        "planned",
        "pod_class",
        "pods",
        "put_off",
        "reported",
        "reported_at",
        "unreported",
    )

    def __init__(self, pod_class: PodClass) -> None:
        self.pod_class = pod_class
        self.pods = 0
        """Of all entries."""
        self.unreported: dict[str, Pending] = {}
        self.put_off = 0
        """How many plans in a row did not get to it."""
        self.reported = ""
        """The reason that was reported last for this queue as a whole."""
        self.planned = frozenset[str]()
        """What the calendar had then, and what it had when others of it were told."""
        self.mixed = False
        """Whether others of it were told another reason since."""
        self.reported_at: datetime | None = None
        self._entries: list[Pending] = []
        """In order; what has come and gone since is still to be worked in, all at once."""
        self._come: dict[OrderKey, Pending] = {}
        self._gone: set[OrderKey] = set()
        self._blocked: Waiting | None = None
        self._blocked_at = -1
        self._blocked_rank = -1
        """The highest that was looked at in vain."""
        self._ranks = Counter[int]()
        """How many entries have which rank, of those that may take the place of anybody of a lower one."""
        self._frozen: tuple[Pending, ...] | None = None

    def __bool__(self) -> bool:
        """Whether there is anything in it."""
        return len(self._entries) + len(self._come) > len(self._gone)

    @property
    def first(self) -> OrderKey:
        """Of what is in it."""
        return self._in_order()[0].order

    def add(self, entry: Pending) -> None:
        self._come[entry.order] = entry
        self.pods += len(entry.pods)
        if not entry.gave_way_to:
            self._ranks[entry.rank] += 1
        if self.may_help(entry):
            self._blocked = None
        self._frozen = None
        if not entry.queued or (entry.idle and not entry.reported):
            self.unreported[entry.key] = entry

    def may_help(self, entry: Pending) -> bool:
        """Whether it is looked at although others of its class wait in vain: it may take the place of those of whom the
        rest of the queue may not.
        """
        return entry.rank > self._blocked_rank

    def remove(self, entry: Pending) -> None:
        if self._come.pop(entry.order, None) is None:
            self._gone.add(entry.order)
        self.pods -= len(entry.pods)
        if not entry.gave_way_to:
            self._ranks[entry.rank] -= 1
            if not self._ranks[entry.rank]:
                del self._ranks[entry.rank]
        self._frozen = None
        self.unreported.pop(entry.key, None)

    def _in_order(self) -> list[Pending]:
        entries, gone, come = self._entries, self._gone, self._come
        if gone:
            before = len(entries)
            if len(gone) * FEW < before:
                for order in gone:
                    at = bisect_left(entries, order, key=_order)
                    if entries[at].order == order:
                        del entries[at]
            else:
                entries[:] = [entry for entry in entries if entry.order not in gone]
            assert before - len(entries) == len(gone), "an order names the workload and its pod set: it is there once"
            gone.clear()
        if come:
            if len(come) * FEW < len(entries):
                for entry in come.values():
                    insort(entries, entry, key=_order)
            else:
                entries += come.values()
                entries.sort(key=_order)
            come.clear()
        return entries

    def block(self, waiting: Waiting, freed: int) -> None:
        self._blocked, self._blocked_at = waiting, freed
        self._blocked_rank = max(self._ranks, default=-1)

    def blocked(self, freed: int) -> Waiting | None:
        """Why it waits, where nothing was freed since that was found out."""
        return self._blocked if self._blocked_at == freed else None

    def frozen(self, freed: int, *, report_again: bool, may_report: bool = False) -> Queue:
        if self._frozen is None:
            self._frozen = tuple(self._in_order())
        return Queue(
            pod_class=self.pod_class,
            entries=self._frozen,
            unreported=tuple(self.unreported.values()),
            blocked=self.blocked(freed),
            report_again=report_again,
            may_report=may_report,
            pods=self.pods,
            put_off=self.put_off,
        )
