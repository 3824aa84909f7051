"""An event store in memory, with the guards, batches and order of the real one: for unit tests and simulations.

It passes the same contract suite as the JetStream store. It keeps nothing and talks to nobody.
"""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from uuid import uuid4

from events.aggregate import Aggregate, Chain, Draft, fold
from events.commit import BatchPart, Commit
from events.void import Unreadable
from services.runtime.log.floors import StaleLogError
from services.runtime.log.store import (
    Committed,
    Conflict,
    LogGapError,
    OnStanding,
    Outcome,
    UnreadableMessageError,
    check_batch,
)

YIELD_COMMITS: Final = 1_000
"""At most so many commits are handed to a follower at once; an atomic batch is never cut."""


class MemoryEventStore:
    """The log as a list. Commits of one store are seen by its followers at once."""

    def __init__(self) -> None:
        self._log: list[Commit] = []
        self._chains: dict[tuple[str, str], list[Commit]] = {}
        self._stored_at: list[datetime] = []
        self._grown = asyncio.Event()

    async def append(self, draft: Draft, *, deadline_seconds: float = 5.0) -> Outcome:
        _ = deadline_seconds  # nothing here waits
        return self._append((draft,))

    async def append_batch(self, drafts: Sequence[Draft], *, deadline_seconds: float = 5.0) -> Outcome:
        _ = deadline_seconds
        check_batch(drafts)
        if len(drafts) == 1:
            return self._append(drafts)
        batch_id = uuid4().hex
        return self._append(
            [
                draft.in_batch(BatchPart(id=batch_id, index=index, count=len(drafts)))
                for index, draft in enumerate(drafts, start=1)
            ]
        )

    def _append(self, drafts: Sequence[Draft]) -> Outcome:
        for draft in drafts:
            chain = self._chains.get((draft.aggregate, draft.key), [])
            if (chain[-1].seq if chain else 0) != draft.record.parent_seq:
                return Conflict()
        commits: list[Commit] = []
        for draft in drafts:
            commit = draft.committed(len(self._log) + 1)
            self._log.append(commit)
            self._stored_at.append(datetime.now(UTC))
            self._chains.setdefault((draft.aggregate, draft.key), []).append(commit)
            commits.append(commit)
        self._grown.set()
        self._grown = asyncio.Event()
        return Committed(tuple(commits))

    def saw(self, aggregate: str, key: str, seq: int) -> None:
        pass  # every read here is of the newest

    async def load[S](
        self, aggregate: Aggregate[S], key: str, until: int | None = None, *, min_seq: int = 0, seconds: float = 5.0
    ) -> Chain[S]:
        _ = seconds
        min_seq = max(min_seq, until or 0)
        if min_seq > len(self._log):
            raise StaleLogError(f"the log ends at {len(self._log)}, before {min_seq}")
        commits = self._chains.get((aggregate.name, key), ())
        return fold(aggregate, (c for c in commits if until is None or c.seq <= until))

    async def sequence_at(self, time: datetime) -> int:
        stood = bisect_right(self._stored_at, time)
        while stood and not self._log[stood - 1].ends_batch:
            stood -= 1
        return stood

    def seen(self, aggregate: str, key: str) -> int:
        chain = self._chains.get((aggregate, key))
        return chain[-1].seq if chain else 0

    async def load_at[S](self, aggregate: Aggregate[S], key: str, workload_id: str) -> Chain[S] | None:
        commits = self._chains.get((aggregate.name, key), [])
        last = max((n for n, commit in enumerate(commits) if commit.record.about.id == workload_id), default=None)
        return None if last is None else fold(aggregate, commits[: last + 1])

    async def commits(
        self, aggregate: Aggregate[Any], key: str, *, after_seq: int, until_seq: int
    ) -> AsyncGenerator[list[Commit], None]:
        chain = self._chains.get((aggregate.name, key), ())
        yield [commit for commit in chain if after_seq < commit.seq <= until_seq]

    async def stand_before(self, unreadable: UnreadableMessageError, on_standing: OnStanding) -> None:
        on_standing(unreadable)
        await asyncio.Event().wait()  # nothing here can be declared void

    async def examine(self, seq: int) -> Unreadable | None:
        if not 1 <= seq <= len(self._log):
            raise KeyError(seq)
        return None

    @property
    def known_seq(self) -> int:
        return len(self._log)

    async def last_seq(self, *, aggregates: Sequence[str] = ()) -> int:
        if not aggregates:
            return len(self._log)
        return max((commit.seq for commit in self._log if commit.aggregate in aggregates), default=0)

    async def follow(
        self, after_seq: int, *, aggregates: Sequence[str] = (), idle_seconds: float = 1.0
    ) -> AsyncGenerator[list[Commit], None]:
        position = after_seq
        if position > len(self._log):
            raise LogGapError(f"the log ends at {len(self._log)}, before position {position}: it is another log")
        while True:
            grown = self._grown
            end = self._end_of_yield(position)
            commits = [c for c in self._log[position:end] if not aggregates or c.aggregate in aggregates]
            position = end
            if commits:
                yield commits
            if position < len(self._log):
                continue
            try:
                await asyncio.wait_for(grown.wait(), idle_seconds)
            except TimeoutError:
                yield []

    def _end_of_yield(self, position: int) -> int:
        end = min(len(self._log), position + YIELD_COMMITS)
        while 0 < end < len(self._log) and not self._log[end - 1].ends_batch:
            end += 1
        return end
