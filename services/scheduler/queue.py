"""A queue of waiting pods of one kind, in order, that costs nothing while it does not change. No decisions."""

from bisect import bisect_left, insort
from datetime import datetime

from services.scheduler.snapshot import Kind, Order, Pending, Queue, Waiting


class WaitingQueue:
    """Mutable; part of the fold."""

    __slots__ = ("_blocked", "_blocked_at", "_frozen", "entries", "kind", "spoken", "spoken_at", "untold")

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.entries: list[Pending] = []
        self.untold: dict[str, Pending] = {}
        self.spoken = ""
        """The reason that was told last for this queue as a whole."""
        self.spoken_at: datetime | None = None
        self._blocked: Waiting | None = None
        self._blocked_at = -1
        self._frozen: tuple[Pending, ...] | None = None

    def add(self, entry: Pending) -> None:
        insort(self.entries, entry, key=_order)
        self._frozen = None
        if not entry.queued or (entry.idle and not entry.told):
            self.untold[entry.key] = entry

    def remove(self, entry: Pending) -> None:
        at = bisect_left(self.entries, entry.order, key=_order)
        assert self.entries[at] is entry, "an order holds the workload's key, so it is there once"
        del self.entries[at]
        self._frozen = None
        self.untold.pop(entry.key, None)

    def block(self, waiting: Waiting, freed: int) -> None:
        self._blocked, self._blocked_at = waiting, freed

    def blocked(self, freed: int) -> Waiting | None:
        """Why it waits, where nothing was freed since that was found out."""
        return self._blocked if self._blocked_at == freed else None

    def frozen(self, freed: int, retell: bool) -> Queue:  # noqa: FBT001 (one caller, beside the count)
        if self._frozen is None:
            self._frozen = tuple(self.entries)
        return Queue(
            kind=self.kind,
            entries=self._frozen,
            untold=tuple(self.untold.values()),
            blocked=self.blocked(freed),
            retell=retell,
        )


def _order(entry: Pending) -> Order:
    return entry.order
