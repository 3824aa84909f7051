"""Folding the log as it grows, and standing still before what cannot be read or applied: the loop of every follower
that keeps a fold in memory. What a commit means is the fold's own business.
"""

import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Final, Protocol

from events.aggregate import BrokenChainError
from events.commit import Commit
from events.subjects import aggregate_subject
from services.runtime.log.store import EventReader, OnStanding, UnreadableMessageError
from services.runtime.process.turn import Turn

COMMITS_OF_A_TURN: Final = 50
"""At least; after them it is looked whether the turn is over."""


class Folded(Protocol):
    """A fold in memory."""

    seq: int
    """Everything up to here is in it; never within an atomic batch."""
    from_snapshot: bool
    """Whether it began from a stored snapshot: then what cannot be applied may be the snapshot's fault."""

    def apply(self, commit: Commit) -> None:
        """Take over one commit; one that was applied before changes nothing. Raises BrokenChainError."""
        ...


async def follow_into(
    store: EventReader,
    fold: Folded,
    *,
    on_standing: OnStanding | None,
    aggregates: Sequence[str] = (),
    until: int | None = None,
    idle_seconds: float = 1.0,
) -> AsyncGenerator[list[Commit], None]:
    """Yields what `EventReader.follow` does, once it is in the fold. Raises LogGapError, and BrokenChainError where the
    fold began from a snapshot: begin again without it.

    Args:
        on_standing: told what it stands before; None: it does not wait there, but raises UnreadableMessageError.
        until: ends at this sequence, and before an atomic batch that goes beyond it. Only of the whole log: of some
            kinds, nothing tells that the last one has come.
    """
    if until is not None and aggregates:
        raise ValueError("`until` needs all kinds of aggregates")
    while until is None or fold.seq < until:
        try:
            async with contextlib.aclosing(
                store.follow(fold.seq, aggregates=aggregates, idle_seconds=idle_seconds)
            ) as arrivals:
                async for commits in arrivals:
                    wanted = commits if until is None else [c for c in commits if c.batch_end <= until]
                    unreadable = await _take_in_turns(fold, wanted)
                    yield wanted
                    if unreadable is not None:
                        raise unreadable
                    if until is not None and (len(wanted) < len(commits) or fold.seq >= until):
                        return
        except UnreadableMessageError as unreadable:
            if on_standing is None:
                raise
            await store.stand_before(unreadable, on_standing)


async def _take_in_turns(fold: Folded, commits: Sequence[Commit]) -> UnreadableMessageError | None:
    """As `take`, and others work in between, never within an atomic batch: several followers share a process, and one
    that took a thousand commits in one go would have as much more of it than who stops after fewer.
    """
    turn, start = Turn(), 0
    for end, commit in enumerate(commits, start=1):
        if end == len(commits) or (commit.ends_batch and end - start >= COMMITS_OF_A_TURN):
            if (unreadable := take(fold, commits[start:end])) is not None:
                return unreadable
            start = end
            await turn.pass_on()
    return None


def take(fold: Folded, commits: Sequence[Commit]) -> UnreadableMessageError | None:
    """Apply them up to the first that cannot be applied, which is answered."""
    for commit in commits:
        try:
            fold.apply(commit)
        except BrokenChainError as error:
            if fold.from_snapshot:
                raise
            return UnreadableMessageError(commit.seq, aggregate_subject(commit.aggregate, commit.key), str(error))
        if commit.ends_batch:
            fold.seq = commit.seq
    return None
