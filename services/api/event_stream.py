"""`GET /events/stream`: public events as server-sent events, for as long as somebody listens, and tickets for browsers.

All readers share one follower of FEED (`feed_tail`). A reader keeps a place in the log and a waiting flag, and nothing
else: who reads slowly falls behind, reads pages of FEED then, and is cut off where they stand still.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from typing import Any, Final

from starlette.responses import Response

from events.authorize import Permission, authorize
from events.fields.declare import Body
from events.fields.values import Uuid
from events.refusal import Refusal
from services.api import answers
from services.api.context import Call
from services.api.errors import unavailable
from services.api.event_filters import (
    FILTERS,
    FROM,
    Asked,
    asked,
    place_rules,
    position_behind,
    position_from,
    position_now,
    read_type,
    read_uuid,
)
from services.api.feed_frames import MEDIA, Position, UnreadableEventError, about_stream, heartbeat, opening, the_end
from services.api.feed_ring import Entry
from services.api.feed_tail import Cursor, Listener
from services.api.follows import CHECK_SECONDS, STALLED, token_refusal
from services.api.issues import BadValueError, Issue
from services.api.operations import Answer, Query, changes, reads
from services.api.paths import EVENT_STREAM, EVENT_TICKETS
from services.api.streamed import Streamed
from services.runtime.log.store import LogUnavailableError

BEHIND_SECONDS: Final = 0.5
"""Between two looks at a FEED that does not hold yet what a reader waits for."""
STEP_EVENTS: Final = 256
"""That a reader takes from what is shared before it is looked again who it is."""
PIECE_BYTES: Final = 64 * 1024
"""A reader is sent pieces of about this size, so that one that reads slowly keeps little in memory."""
STREAM: Final = (
    *FILTERS,
    FROM,
    Query(name="lastEventId", help="Go on behind the event with this id, as the header Last-Event-ID does."),
    Query(
        name="ticket",
        help="In place of the header Authorization: a ticket of POST /api/v1/events/tickets. It brings the filters.",
    ),
)
_GAP: Final = "some events behind this place are no longer kept; look at things as they are now"
_AWAY: Final = about_stream("away", "public events cannot be read now; this stream goes on when they can")
_BACK: Final = about_stream("back", "public events can be read again")
_OF_TICKET: Final = frozenset({"projectId", "workloadId", "type"})


def stream_rules(_: Mapping[str, Any], given: AbstractSet[str]) -> Iterator[Issue]:
    yield from place_rules(frozenset(given))
    if "ticket" in given:
        for name in sorted(_OF_TICKET & given):
            yield Issue(field=name, details="does not go with ticket, which was made with its filters; leave it out")


@reads(
    EVENT_STREAM,
    tag="Events",
    summary="Listen to public events (server-sent events)",
    media=(MEDIA,),
    query=STREAM,
    rules=stream_rules,
    errors=(404,),
    ticketed=True,
)
async def stream_events(call: Call) -> Response:
    ticket, values = call.ticket, call.values
    if ticket is not None:
        which = await asked(call, ticket.project_id, ticket.workload_id, ticket.types)
    else:
        which = await asked(call, values["projectId"] or "", values["workloadId"] or "", values["type"] or ())
    reader = _Reader(call, which, await _begin(call))
    if call.api.streams.full:
        message = f"{call.api.streams.most} streams of events are open here, and no more are served; try again"
        raise unavailable(message, details="too_many_streams")
    held = AsyncExitStack()
    held.callback(call.take_slot(call.api.streams, "streams of events"))
    last_words = the_end(STALLED.code, STALLED.message)
    headers = {"X-Accel-Buffering": "no"}
    return Streamed(reader.pieces(), media_type=MEDIA, held=held, last_words=last_words, headers=headers)


async def _begin(call: Call) -> tuple[Position, bool]:
    """Where, and whether it may be where FEED holds no events any more. A browser that connects again sends the header,
    and the query that it was first given.
    """
    header, query = call.request.headers.get("last-event-id"), call.values["lastEventId"]
    if header:
        return await position_behind(call, header, "Last-Event-ID"), True
    if query:
        return await position_behind(call, query, "lastEventId"), True
    if call.values["from"] is not None:
        return await position_from(call, call.values["from"]), True
    return await position_now(call), False


class _Reader(Listener):
    """One stream."""

    def __init__(self, call: Call, which: Asked, begin: tuple[Position, bool]) -> None:
        super().__init__()
        self._call = call
        self._tail = call.api.feed
        self._which = which
        self._begin, self._behind = begin
        """Where it began, and whether it reads pages of FEED, and not what is shared."""
        self._place = self._begin.place
        self._id = self._begin.text()
        self._cursor: Cursor | None = None
        self._projects: frozenset[str] | None = which.projects(call)
        self._told_away = False

    async def pieces(self) -> AsyncGenerator[bytes]:
        clock, heartbeat_seconds = asyncio.get_running_loop().time, self._call.api.heartbeat_seconds
        yield opening(self._begin)
        beat_at = clock() + heartbeat_seconds
        while True:
            check_at = clock() + CHECK_SECONDS
            with self._tail.listening(self, self._projects):
                while not self._tail.stopping and clock() < check_at:
                    self.woken.clear()
                    async for piece in self._ready(check_at):
                        beat_at = clock() + heartbeat_seconds
                        yield piece
                    if clock() >= beat_at:
                        beat_at = clock() + heartbeat_seconds
                        yield heartbeat(self._id)
                    await self._wait(min(check_at, beat_at, clock() + BEHIND_SECONDS if self._behind else beat_at))
            if (end := await self._end()) is not None:
                yield the_end(end.code, end.message)
                return

    async def _wait(self, until: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self.woken.wait()

    async def _ready(self, until: float) -> AsyncGenerator[bytes]:
        """What there is for the reader now; of a long past, as much as can be read by then."""
        away = bool(self._tail.away)
        if away != self._told_away:
            self._told_away = away
            yield _AWAY if away else _BACK
        if self._behind:
            async for piece in self._pages(until):
                yield piece
        ring = self._tail.ring
        if self._behind or ring is None:
            return
        if not ring.covers(self._place, self._projects):
            self._behind, self._cursor = True, None
            self.woken.set()
            return
        entries = ring.behind(self._place, self._projects, self._which.wanted)
        if len(entries) > STEP_EVENTS:
            # The rest stays in the ring, which all share: who reads slowly would keep it for themselves.
            entries = entries[:STEP_EVENTS]
            self._place, self._id = entries[-1].place, entries[-1].id
            self.woken.set()
        elif ring.end > self._place:
            self._place, self._id = ring.end, ring.end_id
        for piece in _joined(entries):
            yield piece

    async def _pages(self, until: float) -> AsyncGenerator[bytes]:
        subject = self._which.subject(self._projects)
        if subject is None:
            # Whoever may read nothing has no past to read.
            if (ring := self._tail.ring) is not None:
                self._place, self._behind = max(self._place, ring.end), False
            return
        clock = asyncio.get_running_loop().time
        while self._behind and clock() < until and not self._tail.stopping:
            try:
                page = await self._tail.page(self._place, self._cursor, subject, self._which.takes(self._projects))
            except (LogUnavailableError, UnreadableEventError):
                return  # the follower meets it, too, and says so
            if page.gone:
                yield about_stream("gap", _GAP, after=self._place.text())
            entries = [entry for entry in page.entries if entry.place > self._place]
            self._place, self._cursor = page.reached, page.next
            for piece in _joined(entries):
                yield piece
            if entries:
                self._id = entries[-1].id
            ring = self._tail.ring
            if ring is not None and ring.covers(self._place, self._projects):
                self._behind = False
            elif page.at_end:
                return

    async def _end(self) -> Refusal | None:
        """Why it ends now. None where it goes on, with the projects that the caller may read by now."""
        if self._tail.stopping:
            return Refusal(code="stopping", message="this server is stopping; ask again, from where you are")
        if (refusal := await token_refusal(self._call)) is not None:
            return refusal
        before, now = self._projects, self._which.projects(self._call)
        directory = self._call.api.directory
        if self._which.project_id or before is None:
            grants = directory.grants(self._call.actor)
            if (refusal := authorize(grants, Permission.READ, self._which.project_id or None)) is not None:
                return refusal
        elif now is not None and (lost := [one for one in before - now if directory.project(one) is not None]):
            message = f"you may no longer read project {lost[0]}; ask again for what you may read"
            return Refusal(code="roles_changed", message=message)
        self._projects = now
        return None


def _joined(entries: Sequence[Entry]) -> Iterator[bytes]:
    """Frames, in pieces of a bounded size."""
    piece = bytearray()
    for entry in entries:
        piece += entry.frame
        if len(piece) >= PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
    if piece:
        yield bytes(piece)


class TicketRequest(Body, frozen=True, kw_only=True):
    """The filters of the stream that it opens."""

    project_id: Uuid | None = None
    """Only events of this project. Null: of all that you may read."""
    workload_id: Uuid | None = None
    """Only events about this workload. Null: about all."""
    types: tuple[str, ...] = ()
    """Only events of these types, such as WorkloadSubmitted. Empty: all."""


@changes(
    "POST",
    EVENT_TICKETS,
    tag="Events",
    summary="Get a ticket with which a browser opens a stream of public events",
    body=TicketRequest,
    example={"projectId": "7d1c2b3a-0000-8000-8000-000000000000", "types": ["WorkloadSubmitted"]},
    errors=(404,),
)
async def create_ticket(call: Call) -> Answer[answers.EventTicket]:
    given = call.fields(TicketRequest, _ticket_rules)
    which = await asked(call, given.project_id or "", given.workload_id or "", given.types)
    ticket, until = await call.api.tickets.make(
        call.token, project_id=which.project_id, workload_id=which.wanted.workload_id, types=given.types
    )
    told = answers.EventTicket(ticket=ticket, expires_at=datetime.fromtimestamp(until, UTC))
    return Answer(told, status=202)


def _ticket_rules(given: TicketRequest) -> Iterator[Issue]:
    ids = [("projectId", given.project_id, read_uuid), ("workloadId", given.workload_id, read_uuid)]
    for field, text, read in (*ids, *((f"types[{at}]", name, read_type) for at, name in enumerate(given.types))):
        try:
            if text is not None:
                read(text)
        except BadValueError as error:
            yield Issue(field=field, details=str(error), rule=error.rule)
