"""FEED as this process reads it: one follower for all who listen, and pages for those who are further behind.

It asks a few times a second and keeps nothing at the server, so nothing can be lost there. Where FEED is written anew,
it waits until that has come to where it was, and goes on: places of events, not sequences of FEED, say where that is.
"""

import asyncio
import contextlib
from collections.abc import Generator, Iterable
from typing import Final, NamedTuple

import structlog
from nats.errors import Error as NatsError

from events.public.cloudevents import Place
from events.subjects import FEED_STREAM
from services.api.feed_frames import Takes, UnreadableEventError, entries_of, entry_of, everything
from services.api.feed_ring import Entry, Ring
from services.runtime.log.store import LogUnavailableError
from services.runtime.nats.feed import ANY, BEGIN, REQUEST_SECONDS, first_from, place_in
from services.runtime.nats.jetstream_api import (
    StoredMessage,
    StreamInfo,
    message_at,
    next_message,
    next_messages,
    stream_info,
)
from services.runtime.nats.requests import Requests

POLL_SECONDS: Final = 0.05
"""What comes within it is sent at once: with a thousand readers, that is most of the work saved."""
CHECK_SECONDS: Final = 1.0
"""How often a quiet follower looks whether FEED is still the same."""
PAUSE_SECONDS: Final = 0.25
"""Between tries while FEED is away."""
PAGE_EVENTS: Final = 256
PAGE_BYTES: Final = 1024 * 1024
PAGES_AT_ONCE: Final = 8
"""Of all readers that are behind the ring: each holds some MB meanwhile."""
_AWAY: Final = (LogUnavailableError, NatsError, UnreadableEventError)

log = structlog.get_logger(__name__)


class Listener:
    """Somebody to be woken."""

    def __init__(self) -> None:
        self.woken = asyncio.Event()


class Cursor(NamedTuple):
    """A sequence of one FEED."""

    created: str
    seq: int


class Page(NamedTuple):
    """Events behind a place, in order."""

    entries: list[Entry]
    reached: Place
    """All up to here was considered."""
    next: Cursor | None
    """Where the next page begins; None: find it by the place."""
    at_end: bool
    """Whether FEED holds no more."""
    gone: bool = False
    """Whether some that stood behind the place may have gone from FEED."""


class FeedTail:
    """For one event loop."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self.ring: Ring | None = None
        """None until FEED was found."""
        self.away = ""
        """Why FEED is not followed now; empty where it is, or nobody listens."""
        self.stopping = False
        self._everything: set[Listener] = set()
        self._of: dict[str, set[Listener]] = {}
        self._listeners = 0
        self._following: asyncio.Task[None] | None = None
        self._pages = asyncio.Semaphore(PAGES_AT_ONCE)

    # -- listeners -------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def listening(self, listener: Listener, projects: frozenset[str] | None) -> Generator[None]:
        """Wakes the listener when something of these projects has come. None: of all."""
        rooms = [self._everything] if projects is None else [self._of.setdefault(one, set()) for one in projects]
        for room in rooms:
            room.add(listener)
        self._listeners += 1
        if self._following is None:
            self._following = asyncio.create_task(self._follow(), name="feed-tail")
        try:
            yield
        finally:
            for room in rooms:
                room.discard(listener)
            for project in projects or ():
                if not self._of.get(project, True):
                    del self._of[project]
            self._listeners -= 1

    def stop(self) -> None:
        """Has all listeners end."""
        self.stopping = True
        self._wake_all()

    async def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)

    def _wake_all(self) -> None:
        for room in (self._everything, *self._of.values()):
            for listener in room:
                listener.woken.set()

    def _wake(self, projects: Iterable[str]) -> None:
        for room in (self._everything, *(self._of.get(project, ()) for project in projects)):
            for listener in room:
                listener.woken.set()

    # -- the follower ----------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Until nobody listens. What it knows of FEED is forgotten then: who comes next begins with what is there."""
        try:
            while self._listeners:
                try:
                    cursor = await self._found()
                    if cursor is not None:
                        self._tell_away("")
                        await self._poll(cursor)
                except _AWAY as error:
                    self._tell_away(str(error) or type(error).__name__)
                await asyncio.sleep(PAUSE_SECONDS)
        finally:
            self._following, self.ring, self.away = None, None, ""

    def _tell_away(self, why: str) -> None:
        if bool(why) != bool(self.away):
            log.info("feed_away" if why else "feed_followed", reason=why or self.away)
            self.away = why
            self._wake_all()

    async def _found(self) -> Cursor | None:
        """Where FEED goes on behind the ring; None where it has not come so far."""
        info = await self._info()
        last = await self._last_place(info)
        if self.ring is None:
            self.ring = Ring(last)
            self._wake_all()
            return Cursor(info.created, info.state.last_seq + 1)
        if last < self.ring.end:
            self._tell_away("public events are written anew")
            return None
        end = self.ring.end
        seq = await first_from(self._requests, Place(end.seq, end.number + 1), info.state)
        return Cursor(info.created, seq)

    async def _poll(self, cursor: Cursor) -> None:
        """Take in what comes; comes back where FEED is no longer what it was."""
        assert self.ring is not None, "it was found"
        clock = asyncio.get_running_loop().time
        seq, check_at = cursor.seq, clock() + CHECK_SECONDS
        while self._listeners:
            messages, more = await next_messages(
                self._requests, FEED_STREAM, ANY, seq, PAGE_EVENTS, seconds=REQUEST_SECONDS, most_bytes=PAGE_BYTES
            )
            if messages or clock() >= check_at:
                check_at = clock() + CHECK_SECONDS
                info = await self._info()
                if info.created != cursor.created or info.state.last_seq < seq - 1:
                    return
            if messages:
                entries = [entry_of(message) for message in messages]
                if messages[0].seq != seq:
                    # What stood between went by its age or size before it was read: readers look for themselves.
                    first = entries[0].place
                    self.ring = Ring(Place(first.seq, first.number - 1))
                self.ring.add(entries)
                seq = messages[-1].seq + 1
                self._wake({entry.project_id for entry in entries})
            if not more:
                await asyncio.sleep(POLL_SECONDS)

    async def _info(self) -> StreamInfo:
        return await stream_info(self._requests, FEED_STREAM, seconds=REQUEST_SECONDS)

    async def _last_place(self, info: StreamInfo) -> Place:
        """Of the last message; BEGIN where there is none."""
        if not info.state.messages:
            return BEGIN
        message = await message_at(self._requests, FEED_STREAM, info.state.last_seq, seconds=REQUEST_SECONDS)
        return BEGIN if message is None else place_in(message)

    # -- readers behind the ring -----------------------------------------------------------------------------------

    async def page(self, place: Place, cursor: Cursor | None, subject: str, takes: Takes = everything) -> Page:
        """What FEED holds of a subject behind a place, bounded. Raises LogUnavailableError, UnreadableEventError.

        Args:
            cursor: of the page before this one, where there was one.
            takes: which of it is wanted; the page holds that alone, and has considered all.
        """
        async with self._pages:
            info = await self._info()
            state, last = info.state, await self._last_place(info)
            if cursor is None or cursor.created != info.created:
                seq = await first_from(self._requests, Place(place.seq, place.number + 1), state)
                gone = 1 < seq <= state.first_seq
            else:
                seq, gone = cursor.seq, cursor.seq < state.first_seq
            messages, more = await next_messages(
                self._requests, FEED_STREAM, subject, seq, PAGE_EVENTS, seconds=REQUEST_SECONDS, most_bytes=PAGE_BYTES
            )
            behind = messages[-1].seq + 1 if messages else seq
            # Who answered may not have the newest; the leader has.
            more = more or await self._next(subject, behind) is not None
            after = await self._info()
            if after.created != info.created or after.state.first_seq > max(seq, state.first_seq):
                # Another FEED, or some went meanwhile: to be looked at again.
                return Page([], place, None, at_end=False)
        entries = entries_of(messages, takes)
        newest = max(place, place_in(messages[-1])) if messages else place
        if more:
            return Page(entries, newest, Cursor(info.created, behind), at_end=False, gone=gone)
        end = Cursor(info.created, max(behind, state.last_seq + 1))
        return Page(entries, max(newest, last), end, at_end=True, gone=gone)

    async def _next(self, subject: str, seq: int) -> StoredMessage | None:
        return await next_message(self._requests, FEED_STREAM, subject, seq, seconds=REQUEST_SECONDS)
