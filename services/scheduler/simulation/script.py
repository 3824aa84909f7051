"""What a simulation plays: where it begins, what people and clusters do and when, and how long each run takes.

All of it is plain data, so that a simulation can run in another process.
"""

from datetime import datetime
from typing import Any, Final, Literal

import msgspec

from events.aggregate import AGGREGATES, Chain
from events.codec import decode_event, encode_event
from events.commit import EventRecord
from services.scheduler.fold import FOLDED, SchedulingState
from services.scheduler.simulation.change import NO_CHANGE, Change

STOP_SECONDS: Final = 30.0
"""From being told to end until a pod has ended, where nothing is known of it: the usual grace period."""
USUAL_SECONDS: Final = 3_600.0
"""That a run lasts of which nothing is known, and of none like it."""

End = Literal["succeeded", "failed", "interrupted", "refused"]
DoneTo = Literal["suspend", "resume", "delete", "priority", "scale", "limit"]


class Run(msgspec.Struct, frozen=True, array_like=True):
    """How one run of a pod goes, if nothing comes between."""

    lasts: float | None
    """Seconds from its beginning (from when it was bound, where it never begins) until it ends. None: until it is told
    to end.
    """
    starts_after: float | None = 0.0
    """Seconds from when it is bound until its process runs. None: it ends without."""
    ends: End = "succeeded"
    exit_code: int = 0
    before: float = 0.0
    """Seconds that it ran before, in runs that were evicted."""
    went_on: bool = False
    """Whether it evidently went on where those were: one of them lasted longer than it did."""


class Runs(msgspec.Struct, frozen=True, array_like=True):
    """The runs of the pods of one workload."""

    usual: Run = Run(USUAL_SECONDS)
    """Of pods of which nothing is known, and of those that run more often than is known."""
    of: dict[str, tuple[Run, ...]] = {}
    """By `POD_SET-INDEX`: its runs, one after the other."""
    bound: dict[str, datetime] = {}
    """Likewise, of pods that hold a node when it begins: since when."""
    assumed: bool = False
    """Whether how long it runs is only assumed, since it never ran in the log."""

    def run(self, pod: str, number: int) -> Run:
        known = self.of.get(pod, ())
        return known[number] if number < len(known) else self.usual


class Act(msgspec.Struct, frozen=True):
    """Something that happens from outside: events as they are, or something that is done to a workload."""

    at: datetime
    aggregate: str
    key: str
    events: tuple[EventRecord, ...] = ()
    does: DoneTo | None = None
    workload_id: str = ""
    value: str = ""
    """With `priority` the class, with `scale` the number of replicas, with `limit` the kind of limit."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What is assumed of pods."""

    goes_on: bool = False
    """Whether an evicted pod goes on where it was, as with a checkpoint. Otherwise it begins anew."""
    saves_every_seconds: float = 0.0
    """With it: how long a pod runs from one checkpoint to the next. What it did since the last one is lost."""
    stop_seconds: float = STOP_SECONDS
    """From being told to end until a pod has ended."""

    def lost(self, seconds: float) -> float:
        """Of so many that a pod ran before it was evicted: what it has to do again."""
        if not self.goes_on:
            return seconds
        return seconds % self.saves_every_seconds if self.saves_every_seconds else 0.0


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """All of one simulation but for what is changed."""

    begin: datetime
    end: datetime | None
    """None: when nothing moves any more."""
    loaded_until: datetime
    """Until then use and shares are measured: behind it nobody submits anything."""
    seq: int = 0
    """Of the last commit before it."""
    chains: dict[str, bytes] = {}
    """What there is when it begins, by kind of aggregate."""
    beside: bytes = b""
    """As the scheduler's fold keeps it beside its chains."""
    acts: list[Act] = []
    """In order."""
    runs: dict[str, Runs] = {}
    """By id of the workload."""
    settings: Settings = Settings()


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One simulation."""

    script: Script
    change: Change = NO_CHANGE


def act(at: datetime, aggregate: str, key: str, *events: msgspec.Struct) -> Act:
    return Act(at=at, aggregate=aggregate, key=key, events=tuple(encode_event(event) for event in events))


def events_of(of: Act) -> tuple[Any, ...]:
    return tuple(decode_event(record) for record in of.events)


def stored(fold: SchedulingState) -> dict[str, bytes]:
    """The chains of a fold."""
    encode = msgspec.msgpack.Encoder().encode
    return {name: encode(dict(chains)) for name, chains in fold.chains.items()}


def restored(script: Script) -> dict[str, dict[str, Chain[Any]]]:
    chains: dict[str, dict[str, Chain[Any]]] = {aggregate.name: {} for aggregate in FOLDED}
    for name, data in script.chains.items():
        kind: Any = dict[str, Chain[AGGREGATES[name].state]]
        chains[name] = msgspec.msgpack.decode(data, type=kind)
    return chains
