"""The newest public events, as many as fit, shared by all who listen. Pure.

A reader's place is that of the last event that it has considered, also where a filter passed it by.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from events.public.cloudevents import Place

RING_EVENTS: Final = 4_096
RING_BYTES: Final = 16 * 1024 * 1024
"""Of their frames; events are some 1 KB, and a few are much larger."""


class Entry(NamedTuple):
    """One public event, ready to be sent."""

    place: Place
    id: str
    """Of the frame: what Last-Event-ID will be."""
    project_id: str
    workload_id: str
    """Empty where it is about none."""
    type: str
    frame: bytes

    @property
    def event(self) -> bytes:
        """As CloudEvents has it in JSON."""
        return self.frame.partition(b"data: ")[2].rstrip(b"\n")


class Wanted(NamedTuple):
    """What a reader asked for."""

    workload_id: str = ""
    """Empty: of all."""
    types: frozenset[str] = frozenset()
    """Empty: all."""

    def takes(self, entry: Entry) -> bool:
        return self.fits(entry.workload_id, entry.type)

    def fits(self, workload_id: str, type_: str) -> bool:
        return (not self.workload_id or workload_id == self.workload_id) and (not self.types or type_ in self.types)


class Ring:
    """Events in the order of the log, behind a place.

    Args:
        start: that place: everything behind it comes in here.
    """

    def __init__(self, start: Place, *, most_events: int = RING_EVENTS, most_bytes: int = RING_BYTES) -> None:
        self.end = start
        """Place of the newest event, with all before it considered."""
        self.end_id = ""
        """Its id; empty while none has come."""
        self._start = start
        self._most_events = most_events
        self._most_bytes = most_bytes
        self._bytes = 0
        self._all = deque[Entry]()
        self._of: dict[str, deque[Entry]] = {}
        """By project, the same ones."""
        self._gone: dict[str, Place] = {}
        """By project, the last one that had to give way."""
        self._last_gone = start

    def add(self, entries: Iterable[Entry]) -> None:
        """In order; what is here already is passed by."""
        for entry in entries:
            if entry.place <= self.end:
                continue
            self._all.append(entry)
            self._of.setdefault(entry.project_id, deque()).append(entry)
            self._bytes += len(entry.frame)
            self.end, self.end_id = entry.place, entry.id
        while len(self._all) > self._most_events or (self._bytes > self._most_bytes and len(self._all) > 1):
            self._let_go()

    def _let_go(self) -> None:
        oldest = self._all.popleft()
        of_project = self._of[oldest.project_id]
        of_project.popleft()
        if not of_project:
            del self._of[oldest.project_id]
        self._bytes -= len(oldest.frame)
        self._gone[oldest.project_id] = self._last_gone = oldest.place

    def covers(self, place: Place, projects: frozenset[str] | None) -> bool:
        """Whether all events of these projects behind a place are here. None: of all projects."""
        if place < self._start:
            return False
        if projects is None:
            return self._last_gone <= place
        return all(self._gone.get(project, place) <= place for project in projects)

    def behind(self, place: Place, projects: frozenset[str] | None, wanted: Wanted) -> list[Entry]:
        """Those behind a place, in order."""
        if projects is None:
            return [entry for entry in _behind(self._all, place) if wanted.takes(entry)][::-1]
        kept = (self._of[project] for project in projects & self._of.keys())
        return sorted(entry for entries in kept for entry in _behind(entries, place) if wanted.takes(entry))


def _behind(entries: deque[Entry], place: Place) -> Iterator[Entry]:
    """Newest first."""
    for entry in reversed(entries):
        if entry.place <= place:
            return
        yield entry
