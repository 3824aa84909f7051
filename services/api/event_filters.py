"""Which public events are asked for: the parameters that all readers of them share, and whose events those are."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final, NamedTuple

from events.actors import SERVICE_PREFIX
from events.public.cloudevents import Place
from events.public.registry import PUBLIC_EVENTS
from events.subjects import EVENTS_STREAM, feed_filter
from events.webhooks import fits
from services.api.context import Call, Look
from services.api.errors import bad_request, not_found
from services.api.feed_frames import LAST_NUMBER, NO_MARK, Position, Takes, mark_in, read_position
from services.api.feed_ring import Wanted
from services.api.issues import BadValueError, Issue, none_of, shown
from services.api.moments import parse_as_of
from services.api.operations import Query
from services.api.places import find_project
from services.runtime.nats.feed import REQUEST_SECONDS
from services.runtime.nats.jetstream_api import message_at

EVENT_TYPES: Final = tuple(sorted(PUBLIC_EVENTS))
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def read_type(given: str) -> str:
    """A type, or what stands for several, as webhooks take it. Raises BadValueError."""
    if not any(fits(name, given) for name in EVENT_TYPES):
        raise BadValueError(none_of(given, EVENT_TYPES), "options")
    return given


def read_uuid(given: str) -> str:
    """Raises BadValueError."""
    if not _UUID.fullmatch(given):
        raise BadValueError(f"must be a UUID in lower case, got {shown(given)}")
    return given


TYPE_HELP: Final = "Only of this type, such as WorkloadSubmitted; `*` and `?` stand for any characters. Repeatable."
FILTERS: Final = (
    Query(name="projectId", read=read_uuid, help="Only of this project. Default: of all that you may read."),
    Query(name="workloadId", read=read_uuid, help="Only about this workload."),
    Query(name="type", type="texts", read=read_type, help=TYPE_HELP),
)
FROM: Final = Query(
    name="from",
    read=parse_as_of,
    help="Begin with the events from this time (RFC 3339) or sequence of the log on.",
)


def actor_ids(call: Look, subject: str) -> frozenset[str]:
    """Ids of whom people call so."""
    # Services and accounts are called by their ids, or by what follows the prefix of ours.
    ids = {known for known, name in call.api.actors.subjects.items() if name == subject}
    return frozenset({*ids, subject, f"{SERVICE_PREFIX}{subject}"})


class Asked(NamedTuple):
    """What a reader asked for."""

    project_id: str
    """Empty: of all that they may read."""
    wanted: Wanted

    def subject(self, projects: frozenset[str] | None) -> str | None:
        """In FEED, where everything that is asked for of these projects stands, and perhaps more: `takes` says. None:
        nothing can be.
        """
        if projects is not None and not projects:
            return None
        types = self.wanted.types
        return feed_filter(
            next(iter(projects)) if projects is not None and len(projects) == 1 else "*",
            workload_id=self.wanted.workload_id or "*",
            event=next(iter(types)) if len(types) == 1 else "*",
        )

    def takes(self, projects: frozenset[str] | None) -> Takes:
        """Which messages of FEED are asked for, by their subject: what is of others is not even read."""
        fits = self.wanted.fits
        if projects is None:
            return lambda _, workload_id, type_: fits(workload_id, type_)
        return lambda project_id, workload_id, type_: project_id in projects and fits(workload_id, type_)

    def projects(self, call: Call) -> frozenset[str] | None:
        """Those whose events the caller may be told now. None: of all."""
        readable = call.api.directory.grants(call.actor).readable_projects
        if not self.project_id:
            return readable
        mine = readable is None or self.project_id in readable
        return frozenset({self.project_id} if mine else ())


async def asked(call: Call, project_id: str, workload_id: str, types: tuple[str, ...]) -> Asked:
    """Raises 404 of a project that is not there, or that the caller may not read."""
    if project_id and (not call.may_read(project_id) or await find_project(call, project_id) is None):
        raise not_found("there is no such project")
    named = frozenset(name for name in EVENT_TYPES if any(fits(name, pattern) for pattern in types))
    return Asked(project_id, Wanted(workload_id, named))


async def position_now(call: Call) -> Position:
    """Behind all that the log holds."""
    return await _behind(call, await call.api.store.last_seq())


async def position_from(call: Call, moment: datetime | int) -> Position:
    """Before the events from that moment on. Raises 400 of a moment that has not come."""
    end = await call.api.store.last_seq()
    if isinstance(moment, int):
        if moment > end + 1:
            raise _too_late(f"the log ends at {end}, got {moment}")
        return await _behind(call, max(moment - 1, 0))
    if moment > datetime.now(UTC):
        raise _too_late(f"{moment.isoformat()} is in the future")
    return await _behind(call, await call.api.store.sequence_at(moment))


def _too_late(why: str) -> Exception:
    details = f"must be a moment that has come: {why}; leave it out for all that is new"
    return bad_request([Issue(field="from", details=details, rule="max")])


async def _behind(call: Call, seq: int) -> Position:
    return Position(Place(seq, LAST_NUMBER), await _mark_at(call, seq) or NO_MARK)


async def _mark_at(call: Call, seq: int) -> str | None:
    if seq == 0:
        return NO_MARK
    message = await message_at(call.api.requests, EVENTS_STREAM, seq, seconds=REQUEST_SECONDS)
    return None if message is None else mark_in(message)


async def position_behind(call: Call, given: str, field: str) -> Position:
    """Behind the event with this id. Raises 400 where the log has no such event."""
    try:
        position = read_position(given)
    except BadValueError as error:
        raise bad_request([Issue(field=field, details=str(error))]) from None
    if await _mark_at(call, position.place.seq) != position.mark:
        details = (
            f"{shown(given)} is not of this log: it is of another installation, or of a time that a restore lost. Look "
            "at things as they are now, and begin without it"
        )
        raise bad_request([Issue(field=field, details=details)])
    return position


def place_rules(given: frozenset[str]) -> Iterator[Issue]:
    """Where it is said twice where to begin."""
    if {"from", "lastEventId"} <= given:
        details = "does not go with lastEventId, which says where to go on; leave one of them out"
        yield Issue(field="from", details=details)
