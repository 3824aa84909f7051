"""One reading of the log for all who follow it in one process: its messages are fetched and decoded once.

Whoever is at the end of what was read reads on, for all; there is no task that reads. So one who is cancelled, slow or
gone stops nobody, and leaves nothing behind. What was read is kept for those who are behind, up to a bound. Who falls
out of that, or begins somewhere else, reads alone until the two meet. What a commit means is the followers' business.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Final, Protocol

from nats.aio.client import Client

from events.aggregate import VOID
from events.commit import Commit
from services.runtime.log.voids import Voids

READ_AT_ONCE: Final = 1_000
"""As many as a follower hands out in one go."""
HELD_COMMITS: Final = 4_000
"""For those who are behind: some 10 MB."""
KEPT_COMMITS: Final = 500
"""Kept although all have taken them: who reads alone and comes near is met here."""
WAIT_SECONDS: Final = 0.2
"""How long one who would push out what another has not taken waits for that one: at a start all begin together, and who
falls out reads alone."""

type Filters = tuple[str, ...]


class Source(Protocol):
    """One reader's place in the log."""

    async def next(self, idle_seconds: float) -> list[Commit]:
        """What has arrived since, or nothing after `idle_seconds`; may be cancelled, and asked again."""
        ...

    async def close(self) -> None: ...


class Readings:
    """The readings of one process, by what they are of."""

    def __init__(self, *, held_commits: int = HELD_COMMITS) -> None:
        self.held_commits = held_commits
        self._shared: dict[Filters, _Shared] = {}

    def of(self, filters: Filters) -> "_Shared | None":
        return self._shared.get(filters)

    def begin(self, filters: Filters, source: Source, nc: Client, after_seq: int) -> "_Shared":
        shared = self._shared[filters] = _Shared(source, nc, after_seq, self.held_commits)
        return shared

    def retire(self, shared: "_Shared") -> None:
        """Nobody joins it any more."""
        for filters in [filters for filters, known in self._shared.items() if known is shared]:
            del self._shared[filters]


READINGS: Final[ContextVar[Readings | None]] = ContextVar("readings", default=None)
"""Of the process that runs services (`process.host`); where there are none, everybody reads alone."""


class _Shared:
    """What was read from one place on: all commits behind `start`, up to `end`."""

    def __init__(self, source: Source, nc: Client, after_seq: int, held_commits: int) -> None:
        self.source, self.nc = source, nc
        self.start = self.end = after_seq
        self.members: set[Reading] = set()
        self._most = held_commits
        self._lists: deque[list[Commit]] = deque()
        self._held = 0
        self._turn = asyncio.Lock()
        """Of the one who reads on."""
        self._moved = asyncio.Event()

    def holds(self, position: int) -> bool:
        """Whether one who is there can go on from here."""
        return self.start <= position <= self.end

    def after(self, position: int) -> list[Commit]:
        """What stands behind a position, some of it where it is much."""
        behind: list[list[Commit]] = []
        for commits in reversed(self._lists):
            if commits[-1].seq <= position:
                break
            behind.append(commits)
        found: list[Commit] = []
        while behind and len(found) < READ_AT_ONCE:
            found.extend(commit for commit in behind.pop() if commit.seq > position)
        return found

    async def read(self, member: "Reading", idle_seconds: float) -> bool:
        """Read on, unless somebody else did. Whether there is more now than the member has taken."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + idle_seconds
        try:
            async with asyncio.timeout(idle_seconds):
                await self._turn.acquire()
        except TimeoutError:
            return False
        try:
            if member.position < self.end:
                return True
            await self._wait_for_the_slowest()
            commits = await self.source.next(max(deadline - clock(), 0.0))
            if commits:
                self._append(commits)
            return bool(commits)
        finally:
            self._turn.release()

    def moved(self) -> None:
        """A member took something, or left: let go of what nobody is to take."""
        slowest = min((member.position for member in self.members), default=self.end)
        lists = self._lists
        while lists and lists[0][-1].seq <= slowest and self._held - len(lists[0]) >= KEPT_COMMITS:
            self._let_go()
        self._moved.set()

    def _append(self, commits: list[Commit]) -> None:
        self._lists.append(commits)
        self._held += len(commits)
        self.end = commits[-1].seq
        while self._held > self._most and len(self._lists) > 1:
            self._let_go()

    def _let_go(self) -> None:
        gone = self._lists.popleft()
        self._held -= len(gone)
        self.start = gone[-1].seq

    async def _wait_for_the_slowest(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WAIT_SECONDS):
                while self._would_lose_one():
                    self._moved.clear()
                    await self._moved.wait()

    def _would_lose_one(self) -> bool:
        if self._held + READ_AT_ONCE <= self._most or not self._lists:
            return False
        return any(self.start <= member.position < self._lists[0][-1].seq for member in self.members)


class Reading:
    """One follower's place, in a shared reading or alone."""

    def __init__(
        self,
        readings: Readings,
        make_source: Callable[[int], Source],
        nc: Client,
        voids: Voids,
        *,
        after_seq: int,
        filters: Sequence[str],
    ) -> None:
        self.position = after_seq
        self._readings = readings
        self._make_source = make_source
        self._nc = nc
        self._voids = voids
        self._filters = tuple(sorted(filters))
        self._shared: _Shared | None = None
        self._alone: Source | None = None

    async def next(self, idle_seconds: float) -> list[Commit]:
        """As a follower's."""
        while True:
            if self._shared is None:
                if self._alone is None:
                    self._begin()
                if self._alone is not None:
                    return await self._read_alone(self._alone, idle_seconds)
            shared = self._shared
            assert shared is not None, "who does not read alone shares a reading"
            if not shared.holds(self.position):
                await self._leave()  # too slow
                self._alone = self._make_source(self.position)
                continue
            if self.position < shared.end:
                return self._taken(shared.after(self.position), shared)
            try:
                more = await shared.read(self, idle_seconds)
            except Exception:
                self._readings.retire(shared)
                if shared.nc.is_closed and not self._nc.is_closed:
                    await self._leave()  # it was read by the connection of a service that has stopped
                    continue
                raise
            if not more:
                return []

    async def close(self) -> None:
        alone, self._alone = self._alone, None
        await self._leave()
        if alone is not None:
            await alone.close()

    def _begin(self) -> None:
        shared = self._readings.of(self._filters)
        if shared is None:
            source = self._make_source(self.position)
            shared = self._readings.begin(self._filters, source, self._nc, self.position)
        if shared.holds(self.position):
            self._join(shared)
        else:
            self._alone = self._make_source(self.position)

    def _join(self, shared: _Shared) -> None:
        self._shared = shared
        shared.members.add(self)

    async def _read_alone(self, alone: Source, idle_seconds: float) -> list[Commit]:
        commits = await alone.next(idle_seconds)
        if commits:
            self.position = commits[-1].seq
        shared = self._readings.of(self._filters)
        if shared is None:
            self._alone = None
            self._join(self._readings.begin(self._filters, alone, self._nc, self.position))
        elif shared.holds(self.position):
            self._alone = None
            self._join(shared)
            await alone.close()
        return commits

    def _taken(self, commits: list[Commit], shared: _Shared) -> list[Commit]:
        self.position = commits[-1].seq
        for commit in commits:
            if commit.aggregate == VOID.name:
                self._voids.learn(commit)  # its reader has learned it only for itself
        shared.moved()
        return commits

    async def _leave(self) -> None:
        """The last one closes what was read from; before that, nobody can join it any more."""
        shared, self._shared = self._shared, None
        if shared is None:
            return
        shared.members.discard(self)
        shared.moved()
        if not shared.members:
            self._readings.retire(shared)
            await shared.source.close()
