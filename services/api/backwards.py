"""The log from its end backwards, in bounded steps: a page looks at so many commits and says where the next begins."""

from collections import deque
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from events.codec import EARLIEST
from events.commit import Commit
from services.api.shown_events import workload_ids
from services.runtime.log.store import EventReader

MOST_SEARCHED: Final = 5_000
"""Commits that one page looks at: about a second."""
FIRST_STEP: Final = 200
"""Commits of the first step back: most pages find enough there. Each further one is twice as long."""

CLOCKS_APART: Final = timedelta(minutes=1)
"""How far the clock of whoever wrote a commit may be ahead of the server's that stored it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which commits are asked for."""

    type: str | None = None
    actors: frozenset[str] | None = None
    """Ids, any of them."""
    since: datetime | None = None
    workload_id: str | None = None

    def wants(self, commit: Commit) -> bool:
        record = commit.record
        return (
            (self.type is None or any(event.type == self.type for event in record.events))
            and (self.actors is None or record.actor.id in self.actors)
            and (self.since is None or record.occurred_at >= self.since)
            and (self.workload_id is None or self.workload_id in workload_ids(commit))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    commits: Sequence[Commit]
    """Newest first."""
    next: int | None
    """Before which to go on; None where nothing older is there, or asked for."""


async def newest_first(store: EventReader, selection: Selection, *, before: int, limit: int, most_bytes: int) -> Found:
    """The newest commits before a sequence. Raises what a follower raises, LogUnavailableError among it."""
    since = selection.since
    oldest = 1
    if since is not None and since > EARLIEST:
        oldest = await store.sequence_at(since - CLOCKS_APART) + 1
    found: list[Commit] = []
    end, step, searched, left_bytes = before, FIRST_STEP, 0, most_bytes
    while end > oldest and searched < MOST_SEARCHED:
        begin = max(end - step, oldest)
        kept = _Kept(limit - len(found), left_bytes)
        await _look_between(store, begin, end, selection, kept)
        found += reversed(kept.commits)
        left_bytes = kept.left_bytes
        if kept.full or len(found) == limit:
            return Found(commits=found, next=found[-1].seq if found[-1].seq > oldest else None)
        searched += end - begin
        end, step = begin, max(min(2 * step, MOST_SEARCHED - searched), 1)
    return Found(commits=found, next=end if end > oldest else None)


class _Kept:
    """The newest of the commits that it is given, oldest first: so many, and so many bytes, but one at least."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self.commits: deque[Commit] = deque()
        self.left_bytes = most_bytes
        self.full = False
        """Whether older ones were let go of."""
        self._most = most

    def take(self, commit: Commit) -> None:
        self.commits.append(commit)
        self.left_bytes -= _bytes(commit)
        while len(self.commits) > self._most or (self.left_bytes < 0 and len(self.commits) > 1):
            self.left_bytes += _bytes(self.commits.popleft())
            self.full = True


def _bytes(commit: Commit) -> int:
    return sum(len(bytes(event.data)) for event in commit.record.events)


async def _look_between(store: EventReader, begin: int, end: int, selection: Selection, kept: _Kept) -> None:
    """At the commits from `begin` on and before `end`; both are sequences of the log, or just behind it."""
    async with aclosing(store.follow(begin - 1)) as batches:
        async for batch in batches:
            for commit in batch:
                if commit.seq >= end:
                    return
                if selection.wants(commit):
                    kept.take(commit)
                if commit.seq == end - 1:
                    return
