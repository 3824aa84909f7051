"""The log up to a position that moves on: all of the log that a sandbox knows. It reads, and has nothing that appends.

What stands behind the position does not exist for whoever asks here: `last_seq` is the position, and a follower waits
there as it waits at the end of the log.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import Any

from events.aggregate import Aggregate, Chain
from events.commit import Commit
from events.void import Unreadable
from services.runtime.log.store import EventReader, OnStanding, UnreadableMessageError


class PlayedLog:
    """An EventReader on another one.

    Attributes:
        position: the last sequence that was played; never within an atomic batch.
        at: the time of the log there; None before the first commit.
    """

    def __init__(self, log: EventReader) -> None:
        self._log = log
        self.position = 0
        self.at: datetime | None = None
        self._newest: dict[str, int] = {}
        """The last sequence up to the position, by kind of aggregate."""
        self._moved = asyncio.Event()

    def move(self, position: int, at: datetime | None, newest: Mapping[str, int]) -> None:
        """Played up to here. `newest`: sequences by kind of aggregate, of the kinds that were played meanwhile."""
        self.position, self.at = position, at
        self._newest.update(newest)
        self._moved.set()
        self._moved = asyncio.Event()

    async def load[S](
        self, aggregate: Aggregate[S], key: str, until: int | None = None, *, min_seq: int = 0, seconds: float = 5.0
    ) -> Chain[S]:
        _ = min_seq  # nobody can know of more than the position
        end = self.position if until is None else min(until, self.position)
        if not end:
            return Chain(state=aggregate.initial)
        return await self._log.load(aggregate, key, end, seconds=seconds)

    async def load_at[S](self, aggregate: Aggregate[S], key: str, workload_id: str) -> Chain[S] | None:
        """Of one that is not the newest at the position: its last commit is then before it, or it is still to come."""
        found = await self._log.load_at(aggregate, key, workload_id)
        return found if found is not None and found.version <= self.position else None

    def commits(
        self, aggregate: Aggregate[Any], key: str, *, after_seq: int, until_seq: int
    ) -> AsyncGenerator[list[Commit], None]:
        return self._log.commits(aggregate, key, after_seq=after_seq, until_seq=until_seq)

    def saw(self, aggregate: str, key: str, seq: int) -> None:
        """Nothing to be remembered: every read is of the position."""

    def seen(self, aggregate: str, key: str) -> int:
        _ = aggregate, key
        return 0

    @property
    def known_seq(self) -> int:
        return self.position

    async def last_seq(self, *, aggregates: Sequence[str] = ()) -> int:
        if not aggregates:
            return self.position
        return max((self._newest.get(name, 0) for name in aggregates), default=0)

    async def sequence_at(self, time: datetime) -> int:
        return min(await self._log.sequence_at(time), self.position)

    async def stand_before(self, unreadable: UnreadableMessageError, on_standing: OnStanding) -> None:
        await self._log.stand_before(unreadable, on_standing)

    async def examine(self, seq: int) -> Unreadable | None:
        if seq > self.position:
            raise KeyError(seq)
        return await self._log.examine(seq)

    async def follow(
        self, after_seq: int, *, aggregates: Sequence[str] = (), idle_seconds: float = 1.0
    ) -> AsyncGenerator[list[Commit], None]:
        """As the log's own; what it handed out too early waits here."""
        async with aclosing(self._log.follow(after_seq, aggregates=aggregates, idle_seconds=idle_seconds)) as arrivals:
            async for commits in arrivals:
                waiting = commits
                while True:
                    played = [commit for commit in waiting if commit.seq <= self.position]
                    waiting = waiting[len(played) :]
                    yield played
                    if not waiting:
                        break
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(idle_seconds):
                            await self._moved.wait()
