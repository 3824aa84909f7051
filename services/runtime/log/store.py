"""The event store as its callers see it: load and follow, and append. `jetstream.py` and `memory.py` implement it, and
pass the same contract suite.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import datetime
from typing import Any, Final, Protocol

import msgspec

from events.aggregate import Aggregate, Chain, Draft
from events.commit import Commit
from events.void import Unreadable

MAX_BATCH: Final = 1_000
"""Messages of one atomic batch; the server's own limit."""


class Committed(msgspec.Struct, frozen=True):
    """Durable: written to disk by the server (and by a majority, where it is replicated) before it answered."""

    commits: tuple[Commit, ...]


class Conflict(msgspec.Struct, frozen=True):
    """Somebody else appended first: nothing was stored, and with this guard nothing ever will be."""


class Rejected(msgspec.Struct, frozen=True):
    """The server will not take it, for another reason than the guard; nothing was stored."""

    code: int
    message: str


class Unknown(msgspec.Struct, frozen=True):
    """The deadline passed without a definite answer: it may have been stored, or may still be."""

    message: str


Outcome = Committed | Conflict | Rejected | Unknown


class LogUnavailableError(Exception):
    """The log could not be read just now: the asker may try again."""


class LogGapError(Exception):
    """A sequence is missing, or the stream is not the one it was: halt, never skip."""


class UnreadableMessageError(LogUnavailableError):
    """A message of the log cannot be decoded, or does not follow from what stands before it: halt, never skip.

    An administrator may declare it void (`muster log void`); then it is passed by.
    """

    def __init__(self, seq: int, subject: str, cause: str) -> None:
        super().__init__(f"message {seq} of the log ({subject}) cannot be read: {cause}")
        self.seq = seq
        self.subject = subject
        self.cause = cause

    @property
    def todo(self) -> str:
        return (
            "run the version of Muster that wrote it, or, where none did, declare it void: "
            f"muster log void {self.seq} --reason …"
        )


def check_batch(drafts: Sequence[Draft]) -> None:
    """Raises ValueError where the drafts cannot be one atomic batch: one commit per aggregate, 1 to MAX_BATCH."""
    if not 1 <= len(drafts) <= MAX_BATCH:
        raise ValueError(f"an atomic batch holds 1 to {MAX_BATCH} commits, not {len(drafts)}: split it")
    if len({(draft.aggregate, draft.key) for draft in drafts}) < len(drafts):
        raise ValueError("an atomic batch holds one commit per aggregate: merge those of the same one")


type OnStanding = Callable[[UnreadableMessageError | None], None]
"""Told what a reader stands before, and None when it goes on."""


class EventReader(Protocol):
    """The log as readers see it. Every method has a deadline; none retries for ever, but for `follow`.

    What reads (`load`, `load_at`, `last_seq`) raises LogUnavailableError where no answer comes, and
    UnreadableMessageError where a message that it takes cannot be read.
    """

    async def load[S](
        self, aggregate: Aggregate[S], key: str, until: int | None = None, *, min_seq: int = 0, seconds: float = 5.0
    ) -> Chain[S]:
        """The aggregate's newest fold, as the stream's leader has it: with all that this store has seen of it, and all
        up to `min_seq`. With `until`, its fold as of that sequence, which the log must have come to. Raises
        StaleLogError where nothing as new answers within `seconds`.
        """
        ...

    async def sequence_at(self, time: datetime) -> int:
        """Where the log stood at a time: the last sequence that the server had stored by then, never within an atomic
        batch; 0: before the first.
        """
        ...

    def saw(self, aggregate: str, key: str, seq: int) -> None:
        """A commit of this aggregate is known to be in the log: no later read answers from before it."""
        ...

    def seen(self, aggregate: str, key: str) -> int:
        """The newest sequence that this store has seen of an aggregate; 0: none, or long ago."""
        ...

    async def load_at[S](self, aggregate: Aggregate[S], key: str, workload_id: str) -> Chain[S] | None:
        """The fold of an earlier incarnation (workloads): up to its last commit; None where it never was."""
        ...

    def commits(
        self, aggregate: Aggregate[Any], key: str, *, after_seq: int, until_seq: int
    ) -> AsyncGenerator[list[Commit], None]:
        """One chain's commits after a sequence and up to another, at which it has one, some hundreds at a time."""
        ...

    @property
    def known_seq(self) -> int:
        """A sequence that the log is known to have come to, without asking; 0: nothing is known of it."""
        ...

    async def last_seq(self, *, aggregates: Sequence[str] = ()) -> int:
        """Sequence of the newest message (of these kinds, where some are named), as the leader has it; 0: none."""
        ...

    async def stand_before(self, unreadable: UnreadableMessageError, on_standing: OnStanding) -> None:
        """Alarm, and wait until the message was declared void; a follower that begins before it then passes it by."""
        ...

    async def examine(self, seq: int) -> Unreadable | None:
        """Why the message of this sequence cannot be read; None where it can be, or was declared void. Raises KeyError
        where there is none.
        """
        ...

    def follow(
        self, after_seq: int, *, aggregates: Sequence[str] = (), idle_seconds: float = 1.0
    ) -> AsyncGenerator[list[Commit], None]:
        """Commits after a sequence, in order, for ever; never the front part of an atomic batch.

        Yields what has arrived (at most some thousands), or an empty list when nothing came for `idle_seconds`, so that
        a follower can do what is due. With `aggregates`, only those kinds. Survives restarts of the server; raises
        LogGapError on a gap, and UnreadableMessageError before a message that cannot be read, once all that stands in
        front of it was yielded. Close it (`contextlib.aclosing`) where the loop is left before its end.
        """
        ...


class EventStore(EventReader, Protocol):
    """The log as those see it who also append."""

    async def append(self, draft: Draft, *, deadline_seconds: float = 5.0) -> Outcome:
        """Append one commit, guarded by its parent. An answer that was lost is looked up until the deadline."""
        ...

    async def append_batch(self, drafts: Sequence[Draft], *, deadline_seconds: float = 5.0) -> Outcome:
        """Append up to 1,000 commits of different aggregates, all or none. The store fills in `batch`.

        Raises ValueError where two drafts name one aggregate, or there are none or too many.
        """
        ...
