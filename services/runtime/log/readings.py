"""One reading of the log for all who follow it in one process: its messages are fetched and decoded once.

Whoever is at the end of what was read reads on, for all; there is no task that reads. So one who is cancelled, slow or
gone stops nobody, and leaves nothing behind. What was read is kept for those who are behind, up to a bound. Who falls
out of that, or begins somewhere else, begins another reading, until the two meet. What a commit means is the followers'
business.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Final, Protocol

from nats.aio.client import Client

from events.aggregate import AGGREGATES, VOID
from events.commit import Commit
from events.subjects import aggregate_filter
from services.runtime.log.store import UnreadableMessageError
from services.runtime.log.voids import Voids

READ_AT_ONCE: Final = 1_000
"""As many as a follower hands out in one go."""
HELD_COMMITS: Final = 4_000
"""For those who are behind: some 10 MB."""
KEPT_COMMITS: Final = 500
"""Kept although all have taken them: who reads elsewhere and comes near is met here."""
WAIT_SECONDS: Final = 0.2
"""How long one who would push out what another has not taken waits for that one: who falls out reads for itself."""
WAIT_AT_A_START_SECONDS: Final = 2.0
"""The same while there is much to read. Then all hurry, and share one processor or less: who is behind only waits for
its turn, or for Postgres, and would be far behind as soon as it read alone."""
NEAR_COMMITS: Final = 20_000
"""At a start all begin within a second, but not at once, and two who hurry on never meet. So a reading that has much to
read waits for another that is no further behind than this…"""
PATIENCE_SECONDS: Final = 5.0
"""…but no longer than this in all: nobody is to depend on how another does."""

type Filters = tuple[str, ...]

WHOLE_LOG: Final[Filters] = ()
_AGGREGATE_OF: Final = {aggregate_filter(name): name for name in AGGREGATES}


class Source(Protocol):
    """One reader's place in the log."""

    @property
    def pending(self) -> int:
        """So many messages are known to be still to come."""
        ...

    async def next(self, idle_seconds: float) -> list[Commit]:
        """What has arrived since, or nothing after `idle_seconds`; may be cancelled, and asked again."""
        ...

    async def close(self) -> None: ...


class Readings:
    """The readings of one process, by what they are of."""

    def __init__(self, *, held_commits: int = HELD_COMMITS) -> None:
        self.held_commits = held_commits
        self._shared: dict[Filters, list[_Shared]] = {}
        """The oldest first."""

    @property
    def unread(self) -> int:
        """So many messages at least are still to be read by who is furthest behind."""
        return max((one.source.pending for several in self._shared.values() for one in several), default=0)

    def at(self, filters: Filters, position: int) -> "_Shared | None":
        """One that can be joined there."""
        return next((shared for shared in self._shared.get(filters, ()) if shared.holds(position)), None)

    def begin(self, filters: Filters, source: Source, nc: Client, after_seq: int) -> "_Shared":
        shared = _Shared(self, filters, source, nc, after_seq)
        self._shared.setdefault(filters, []).append(shared)
        return shared

    def retire(self, shared: "_Shared") -> None:
        """Nobody joins it any more."""
        known = self._shared.get(shared.filters, [])
        if shared in known:
            known.remove(shared)
        if not known:
            self._shared.pop(shared.filters, None)

    def whole_log_at(self, position: int) -> "_Shared | None":
        """One of all kinds that is further than there."""
        of_all = self._shared.get(WHOLE_LOG, ())
        return next((shared for shared in of_all if shared.holds(position) and shared.end > position), None)

    def instead_of(self, shared: "_Shared") -> "_Shared | None":
        """Another one to go on from its end: one that is further or, where both are as far, the older one."""
        older = True
        for other in self._shared.get(shared.filters, ()):
            if other is shared:
                older = False
            elif other.holds(shared.end) and (older or other.end > shared.end):
                return other
        return None

    def close_behind(self, shared: "_Shared") -> "_Shared | None":
        """Another one that may come near soon."""
        for other in self._shared.get(shared.filters, ()):
            if other.end < shared.start and shared.end - other.end <= NEAR_COMMITS:
                return other
        return None


READINGS: Final[ContextVar[Readings | None]] = ContextVar("readings", default=None)
"""Of the process that runs services (`process.host`); where there are none, everybody reads alone."""


class _Shared:
    """What was read from one place on: all commits behind `start`, up to `end`."""

    def __init__(self, readings: Readings, filters: Filters, source: Source, nc: Client, after_seq: int) -> None:
        self.filters, self.source, self.nc = filters, source, nc
        self.start = self.end = after_seq
        self.members: set[Reading] = set()
        self._readings = readings
        self._most = readings.held_commits
        self._patience_seconds = PATIENCE_SECONDS
        self._lists: deque[list[Commit]] = deque()
        self._held = 0
        self._turn = asyncio.Lock()
        """Of the one who reads on."""
        self.gone_on = asyncio.Event()
        """A member has taken something, or left."""

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
            await self._wait_for_those_behind()
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
        self.gone_on.set()

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
        much = self.source.pending > READ_AT_ONCE
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WAIT_AT_A_START_SECONDS if much else WAIT_SECONDS):
                while self._would_lose_one():
                    self.gone_on.clear()
                    await self.gone_on.wait()

    async def _wait_for_those_behind(self) -> None:
        clock = asyncio.get_running_loop().time
        while self.source.pending > READ_AT_ONCE and self._patience_seconds > 0:
            other = self._readings.close_behind(self)
            if other is None:
                return
            began = clock()
            other.gone_on.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._patience_seconds):
                    await other.gone_on.wait()
            self._patience_seconds -= clock() - began

    def _would_lose_one(self) -> bool:
        if self._held + READ_AT_ONCE <= self._most or not self._lists:
            return False
        return any(self.start <= member.position < self._lists[0][-1].seq for member in self.members)


class Reading:
    """One follower's place, in a reading that it shares with whoever comes there."""

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
        self._kinds = frozenset(_AGGREGATE_OF[one] for one in self._filters)
        self._shared: _Shared | None = None
        self._apart = not self._filters
        """Whether it does not go along with a reading of the whole log."""

    async def next(self, idle_seconds: float) -> list[Commit]:
        """As a follower's: what comes of other kinds only is no answer, and gives no more time."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + idle_seconds
        while True:
            shared = self._shared or self._begin()
            if not shared.holds(self.position):
                await self._leave()  # too slow
                continue
            if self.position < shared.end:
                if taken := self._taken(shared.after(self.position), shared):
                    return taken
                continue
            other = self._whole_log() or self._readings.instead_of(shared)
            if other is not None:
                self._join(other)
                await self._close(shared)
                continue
            try:
                more = await shared.read(self, max(deadline - clock(), 0.0))
            except UnreadableMessageError:
                if self._goes_along(shared):
                    self._apart = True  # what others stand before is perhaps of a kind that is not followed here
                    await self._leave()
                    continue
                self._readings.retire(shared)
                raise
            except Exception:
                self._readings.retire(shared)
                if shared.nc.is_closed and not self._nc.is_closed:
                    await self._leave()  # it was read by the connection of a service that has stopped
                    continue
                raise
            if not more:
                return []

    async def close(self) -> None:
        await self._leave()

    def _begin(self) -> _Shared:
        shared = self._whole_log() or self._readings.at(self._filters, self.position)
        if shared is None:
            source = self._make_source(self.position)
            shared = self._readings.begin(self._filters, source, self._nc, self.position)
        self._join(shared)
        return shared

    def _whole_log(self) -> _Shared | None:
        """One to go along with from here."""
        if self._apart or (self._shared is not None and self._goes_along(self._shared)):
            return None
        return self._readings.whole_log_at(self.position)

    def _goes_along(self, shared: _Shared) -> bool:
        return shared.filters != self._filters

    def _join(self, shared: _Shared) -> None:
        self._shared = shared
        shared.members.add(self)

    def _taken(self, commits: list[Commit], shared: _Shared) -> list[Commit]:
        self.position = commits[-1].seq
        for commit in commits:
            if commit.aggregate == VOID.name:
                self._voids.learn(commit)  # its reader has learned it only for itself
        shared.moved()
        return [one for one in commits if one.aggregate in self._kinds] if self._goes_along(shared) else commits

    async def _leave(self) -> None:
        shared, self._shared = self._shared, None
        if shared is not None:
            await self._close(shared)

    async def _close(self, shared: _Shared) -> None:
        """Be no longer of it. The last one closes what was read from; before that, nobody can join it any more."""
        shared.members.discard(self)
        shared.moved()
        if not shared.members:
            self._readings.retire(shared)
            await shared.source.close()
