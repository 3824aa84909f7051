"""The event store as its callers see it: append, load, follow. `jetstream.py` and `memory.py` implement it, and pass
the same contract suite.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Final, Protocol

import msgspec

from events.aggregate import Aggregate, Chain, Draft
from events.commit import Commit

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


def check_batch(drafts: Sequence[Draft]) -> None:
    """Raises ValueError where the drafts cannot be one atomic batch: one commit per aggregate, 1 to MAX_BATCH."""
    if not 1 <= len(drafts) <= MAX_BATCH:
        raise ValueError(f"an atomic batch holds 1 to {MAX_BATCH} commits, not {len(drafts)}: split it")
    if len({(draft.aggregate, draft.key) for draft in drafts}) < len(drafts):
        raise ValueError("an atomic batch holds one commit per aggregate: merge those of the same one")


class EventStore(Protocol):
    """The log. Every method has a deadline; none retries for ever, but for `follow`.

    What reads (`load`, `load_at`, `last_seq`) raises LogUnavailableError where no answer comes.
    """

    async def append(self, draft: Draft, *, deadline_seconds: float = 5.0) -> Outcome:
        """Append one commit, guarded by its parent. An answer that was lost is looked up until the deadline."""
        ...

    async def append_batch(self, drafts: Sequence[Draft], *, deadline_seconds: float = 5.0) -> Outcome:
        """Append up to 1,000 commits of different aggregates, all or none. The store fills in `batch`.

        Raises ValueError where two drafts name one aggregate, or there are none or too many.
        """
        ...

    async def load[S](self, aggregate: Aggregate[S], key: str) -> Chain[S]:
        """The aggregate's newest fold, as the stream's leader has it."""
        ...

    async def load_at[S](self, aggregate: Aggregate[S], key: str, workload_id: str) -> Chain[S] | None:
        """The fold of an earlier incarnation (workloads): up to its last commit; None where it never was."""
        ...

    async def last_seq(self, *, aggregates: Sequence[str] = ()) -> int:
        """Sequence of the newest message (of these kinds, where some are named), as the leader has it; 0: none."""
        ...

    def follow(
        self, after_seq: int, *, aggregates: Sequence[str] = (), idle_seconds: float = 1.0
    ) -> AsyncGenerator[list[Commit], None]:
        """Commits after a sequence, in order, for ever; never the front part of an atomic batch.

        Yields what has arrived (at most some thousands), or an empty list when nothing came for `idle_seconds`, so that
        a follower can do what is due. With `aggregates`, only those kinds. Survives restarts of the server; raises
        LogGapError on a gap, and UnknownEventError on an event of a later version. Close it (`contextlib.aclosing`)
        where the loop is left before its end.
        """
        ...
