"""The log in large batches up to a moment, as rebuilds, shadows and replays take it in. Atomic batches stay whole."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from events.commit import Commit
from services.runtime.log.store import EventReader

BATCH_COMMITS: Final = 5_000
"""More commits at once than the projector takes: a workload's row is written once for several of its events, and
nobody waits for these rows."""
IDLE_SECONDS: Final = 0.2
STALLED_SECONDS: Final = 60.0
"""The log has more, but nothing came for so long."""


class MomentError(ValueError):
    """What was given is no moment of this log; the message says what would be."""


class StalledError(Exception):
    """The log gave nothing more, though it has more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Until:
    """A moment of the log: a sequence, and a time where one was given. What is within an atomic batch means the one
    before the batch.
    """

    seq: int
    """The last sequence; with a time, that of the log's end when it was asked for."""
    at: datetime | None = None
    """The last time: before the first commit that was decided later."""
    aim: int
    """About where that is, for a progress bar."""


async def moment(store: EventReader, given: str) -> Until:
    """A moment of the past, from a sequence or an RFC 3339 time. Raises MomentError, LogUnavailableError."""
    end = await store.last_seq()
    if given.isascii() and given.isdigit():
        if int(given) > end:
            raise MomentError(f"must be a moment of the past: the log ends at {end}, got {given}")
        return Until(seq=int(given), aim=int(given))
    try:
        at = datetime.fromisoformat(given)
    except ValueError:
        raise MomentError(f"{given!r} is neither a time such as 2030-01-31T12:00:00Z nor a sequence") from None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    if at > (now := datetime.now(UTC)):
        raise MomentError(f"must be a moment of the past: it is {now:%Y-%m-%dT%H:%M:%SZ} now, got {given}")
    return Until(seq=end, at=at, aim=await store.sequence_at(at))


def at_seq(seq: int) -> Until:
    return Until(seq=seq, aim=seq)


class Arrivals:
    """A reader of the log, from behind `after` on. Keeps what came beyond the moment that was asked for: at most a
    batch, and what the follower hands out at once.
    """

    def __init__(self, commits_of: AsyncGenerator[list[Commit], None], after: int = 0) -> None:
        self._commits_of = commits_of
        self._waiting: list[Commit] = []
        self._read = after

    async def take(self, until: Until, *, most: int = BATCH_COMMITS) -> list[Commit]:
        """The next whole atomic batches up to a moment, about `most` commits; none: it is reached. Raises
        StalledError, and what the store raises.
        """
        await self._read_on(until.seq, most)
        whole = self._whole(until, most)
        taken, self._waiting = self._waiting[:whole], self._waiting[whole:]
        return taken

    async def next_time(self, until: Until) -> datetime | None:
        """When the next commit was decided; None: the moment is reached. Raises as `take`."""
        await self._read_on(until.seq, 1)
        return self._waiting[0].record.occurred_at if self._whole(until, 1) else None

    def _whole(self, until: Until, most: int) -> int:
        """How many commits that wait are whole atomic batches up to the moment; about `most` at most."""
        whole = 0
        for number, commit in enumerate(self._waiting, start=1):
            late = until.at is not None and commit.record.occurred_at > until.at
            if commit.seq > until.seq or late:
                break
            if commit.ends_batch:
                whole = number
                if whole >= most:
                    break
        return whole

    async def _read_on(self, until_seq: int, most: int) -> None:
        clock = asyncio.get_running_loop().time
        heard = clock()
        while len(self._waiting) < most and self._read < until_seq:
            if commits := await anext(self._commits_of):
                self._waiting.extend(commits)
                self._read, heard = commits[-1].seq, clock()
            elif clock() - heard > STALLED_SECONDS:
                raise StalledError(
                    f"the log has {until_seq} commits, but nothing came after {self._read} for {STALLED_SECONDS:.0f} s"
                )


@asynccontextmanager
async def arrivals(store: EventReader, after: int = 0) -> AsyncGenerator[Arrivals]:
    commits_of = store.follow(after, idle_seconds=IDLE_SECONDS)
    try:
        yield Arrivals(commits_of, after)
    finally:
        await commits_of.aclose()
