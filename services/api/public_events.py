"""Public events that have happened: lists, one of them, and exports. From FEED, which keeps them for its time; what is
older is not made again for a question.
"""

import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, cast

import msgspec
from starlette.responses import Response

from events.public.cloudevents import Place, place_of
from events.subjects import FEED_STREAM
from services.api import answers
from services.api.context import Call
from services.api.errors import bad_request, not_found
from services.api.event_filters import FILTERS, FROM, Asked, actor_ids, asked, position_from, position_now
from services.api.feed_frames import LAST_NUMBER, Takes, entries_of, everything
from services.api.feed_ring import Entry
from services.api.feed_tail import Cursor, Page
from services.api.issues import BadValueError, Issue, shown
from services.api.log_lines import SINCE
from services.api.moments import parse_as_of
from services.api.operations import Answer, Query, reads
from services.api.paths import PUBLIC_EVENTS
from services.api.streamed import Streamed
from services.runtime.nats.feed import ANY, BEGIN, REQUEST_SECONDS, first_from
from services.runtime.nats.jetstream_api import next_messages, stream_info

MAX_PAGE: Final = 500
PAGE_BYTES: Final = 4 * 1024 * 1024
"""A page ends early beyond it."""
WINDOW: Final = 1_000
"""Messages of FEED that are searched with one question."""
MOST_SEARCHED: Final = 40_000
"""By one request. The next page goes on."""
SEARCH_SECONDS: Final = 3.0
"""That one request searches, also where less was searched by then: well before its deadline."""
GONE_HEADER: Final = "X-Events-Gone"
JSON_LINES: Final = "application/jsonl"
TO: Final = Query(
    name="to",
    read=parse_as_of,
    help="End at this time (RFC 3339) or sequence of the log. Default: now.",
)


def read_place(given: str) -> Place:
    """Raises BadValueError."""
    try:
        place = place_of(given)
    except ValueError:
        place = None
    if place is None or place.seq >= 10**16 or place.number > LAST_NUMBER:
        raise BadValueError(f"{shown(given)} is no `sequence` of an event, such as 4711.0")
    return place


LIST: Final = (
    *FILTERS,
    Query(name="actor", help="Only by this user, account or service: the subject."),
    SINCE,
    FROM,
    TO,
    Query(name="before", read=read_place, help="Go on before the event with this sequence: `next` of the page before."),
    Query(name="limit", type="integer", default=100, least=1, most=MAX_PAGE, help="Events of one page."),
)
EXPORT: Final = (*FILTERS, FROM, TO)


def list_rules(_: Mapping[str, Any], given: AbstractSet[str]) -> Iterator[Issue]:
    if {"since", "from"} <= given:
        yield Issue(field="from", details="does not go with since; leave one of them out")


@reads(
    PUBLIC_EVENTS,
    tag="Events",
    summary="List public events, newest first",
    query=LIST,
    rules=list_rules,
    errors=(404,),
)
async def list_public_events(call: Call) -> Answer[answers.EventRows]:
    search = await _search(call)
    found = await _newest_first(call, search, call.values["limit"])
    events = [await _answer(call, entry) for entry in found.entries]
    return Answer(answers.EventRows(events=events, next=found.next, gone=found.gone))


@reads(
    f"{PUBLIC_EVENTS}/export",
    tag="Events",
    summary="Export public events, oldest first, a CloudEvent a line",
    media=(JSON_LINES,),
    query=EXPORT,
    headers=((GONE_HEADER, "`true`: events before the first one may no longer be kept."),),
    errors=(404,),
)
async def export_public_events(call: Call) -> Response:
    async with AsyncExitStack() as held:
        held.callback(call.take_slot(call.api.exports, "exports"))
        search = await _search(call)
        # The first page is read here, so that whatever is wrong is still answered as an error.
        page = await _page(call, search, search.after, None)
        headers = {
            GONE_HEADER: "true" if page.gone else "false",
            "Content-Disposition": 'attachment; filename="events.jsonl"',
        }
        content = _exported(call, search, page)
        return Streamed(content, media_type=f"{JSON_LINES}; charset=utf-8", held=held.pop_all(), headers=headers)


@reads(
    f"{PUBLIC_EVENTS}/{{sequence}}",
    tag="Events",
    summary="Get a public event by its sequence, such as 4711.0",
    errors=(404,),
)
async def get_public_event(call: Call) -> Answer[answers.EventRow]:
    try:
        place = read_place(call.request.path_params["sequence"])
    except BadValueError as error:
        raise bad_request([Issue(field="sequence", details=str(error))]) from None
    info = await stream_info(call.api.requests, FEED_STREAM, seconds=REQUEST_SECONDS)
    seq = await first_from(call.api.requests, place, info.state)
    for entry in await _window(call, ANY, seq, seq + 1, everything):
        if entry.place == place and call.may_read(entry.project_id):
            return Answer(await _answer(call, entry))
    raise not_found(f"there is no public event {place.seq}.{place.number}, or it is no longer kept")


# -- what is asked for -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    asked: Asked
    projects: frozenset[str] | None
    """Those that the caller may read; None: all."""
    after: Place
    until: Place
    """The last one that is wanted."""
    actors: frozenset[str] | None = None
    """Ids; None: of everybody."""

    @property
    def subject(self) -> str | None:
        return self.asked.subject(self.projects)

    def takes(self, entry: Entry) -> bool:
        """Of those that the subject and `asked` let through."""
        return self.after < entry.place <= self.until and (
            self.actors is None or _read(entry).data.actor.id in self.actors
        )


class _Actor(msgspec.Struct, frozen=True):
    id: str = ""


class _Data(msgspec.Struct, frozen=True):
    actor: _Actor = _Actor()


class _Read(msgspec.Struct, frozen=True):
    data: _Data = _Data()


_READ: Final = msgspec.json.Decoder(_Read)


def _read(entry: Entry) -> _Read:
    return _READ.decode(entry.event)


async def _search(call: Call) -> _Search:
    values = call.values
    which = await asked(call, values["projectId"] or "", values["workloadId"] or "", values["type"] or ())
    begin: datetime | int | None = values["from"] if values["from"] is not None else values.get("since")
    after = BEGIN if begin is None else (await position_from(call, begin)).place
    end: datetime | int | None = values["to"]
    if end is None:
        until = (await position_now(call)).place
    else:
        until = Place(end if isinstance(end, int) else await call.api.store.sequence_at(end), LAST_NUMBER)
    if until < after:
        details = "must be the later moment: nothing lies between from and to"
        raise bad_request([Issue(field="to", details=details, rule="min", involves=frozenset({"from"}))])
    search = _Search(asked=which, projects=which.projects(call), after=after, until=until)
    actor: str | None = values.get("actor")
    return search if actor is None else replace(search, actors=actor_ids(call, actor))


# -- lists -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    entries: list[Entry]
    """Newest first."""
    next: str | None
    """Before which the search goes on."""
    gone: bool


async def _newest_first(call: Call, search: _Search, limit: int) -> _Found:
    requests, subject, until = call.api.requests, search.subject, time.monotonic() + SEARCH_SECONDS
    if subject is None:
        return _Found(entries=[], next=None, gone=False)
    wanted = search.asked.takes(search.projects)
    state = (await stream_info(requests, FEED_STREAM, seconds=REQUEST_SECONDS)).state
    before: Place = call.values["before"] or _behind(search.until)
    low = await first_from(requests, _behind(search.after), state)
    high = await first_from(requests, min(before, _behind(search.until)), state)
    found, size, least = list[Entry](), 0, max(low, high - MOST_SEARCHED)
    while high > least:
        begin = max(least, high - WINDOW)
        for entry in reversed(await _window(call, subject, begin, high, wanted)):
            if search.takes(entry):
                found.append(entry)
                size += len(entry.frame)
                if len(found) >= limit or size >= PAGE_BYTES:
                    return _Found(entries=found, next=entry.place.text(), gone=False)
        high = begin
        if time.monotonic() >= until:
            break
    if high == low:
        return _Found(entries=found, next=None, gone=1 < low <= state.first_seq)
    (last,) = await _window(call, ANY, high, high + 1, everything)
    return _Found(entries=found, next=last.place.text(), gone=False)


def _behind(place: Place) -> Place:
    return Place(place.seq, place.number + 1)


async def _window(call: Call, subject: str, begin: int, end: int, wanted: Takes) -> list[Entry]:
    """What FEED holds of a subject from one of its sequences up to another and is wanted, in order."""
    found: list[Entry] = []
    more = 1
    while begin < end and more:
        messages, more = await next_messages(
            call.api.requests,
            FEED_STREAM,
            subject,
            begin,
            min(end - begin, WINDOW),
            seconds=REQUEST_SECONDS,
            most_bytes=PAGE_BYTES,
        )
        if not messages:
            break
        found += entries_of((message for message in messages if message.seq < end), wanted)
        begin = messages[-1].seq + 1
    return found


async def _answer(call: Call, entry: Entry) -> answers.EventRow:
    actor = _read(entry).data.actor.id
    project = call.api.directory.project(entry.project_id)
    return answers.EventRow(
        event=cast("Any", msgspec.Raw(entry.event)),
        project_name=None if project is None else project.name,
        actor=(await call.api.actors.subjects_of((actor,)))[actor],
    )


# -- exports ---------------------------------------------------------------------------------------------------------


async def _exported(call: Call, search: _Search, page: Page) -> AsyncGenerator[bytes]:
    while True:
        lines = b"".join(entry.event + b"\n" for entry in page.entries if search.takes(entry))
        if lines:
            yield lines
        if page.at_end or page.reached >= search.until:
            return
        page = await _page(call, search, page.reached, page.next)


async def _page(call: Call, search: _Search, place: Place, cursor: Cursor | None) -> Page:
    subject = search.subject
    if subject is None:
        return Page([], search.until, None, at_end=True)
    return await call.api.feed.page(place, cursor, subject, search.asked.takes(search.projects))
