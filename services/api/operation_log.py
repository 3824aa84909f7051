"""For administrators: the log itself and its repair, what was refused, and how far the projections have come."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from events.aggregate import NODE, WORKLOAD
from events.audit import AuditRecord
from events.authorize import Permission
from events.codec import REGISTRY, UNDECODABLE
from events.commit import Commit
from events.fields.declare import Body, Limits
from events.refusal import Refusal
from events.subjects import AUDIT_STREAM, EVENTS_STREAM, REFUSALS_STREAM
from events.void import VoidMessage
from events.workload.life import WorkloadCreated
from projections.schemas import Note
from services.api import answers
from services.api.backwards import Selection, newest_first
from services.api.context import Call, Look, if_answered, read_answer
from services.api.errors import bad_request
from services.api.event_filters import actor_ids
from services.api.follows import followed_answer
from services.api.issues import Issue
from services.api.log_lines import SINCE
from services.api.operations import JSON, MAX_BIGINT, Answer, Query, changes, reads
from services.api.paths import EVENTS, V1
from services.api.shown_events import shown_event, workload_ids
from services.runtime.log.store import UnreadableMessageError
from services.runtime.nats.fullness import ALARM_SHARE, fullness
from services.runtime.nats.jetstream_api import StoredMessage, message_at, stream_info

MAX_EVENTS: Final = 1000
"""Commits of one page."""
MAX_PAGE_BYTES: Final = 4 * 1024 * 1024
"""A page ends early beyond it: a thousand of the largest commits are half a gigabyte."""
PIECE_BYTES: Final = 64 * 1024
"""A follower is sent pieces of about this size, so that one that reads slowly keeps little in memory."""
MAX_AUDIT: Final = 500
STREAM_API_SECONDS: Final = 2.0
EVENT_NAMES: Final = tuple(sorted({name for name, _ in REGISTRY}))
EVENTS_QUERY: Final = (
    Query(name="after", type="integer", default=0, most=MAX_BIGINT, help="Sequence after which to begin."),
    Query(
        name="limit",
        type="integer",
        default=100,
        least=1,
        most=MAX_EVENTS,
        help="Commits of one answer; fewer where they are large.",
    ),
    Query(name="follow", type="boolean", default=False, help="One JSON object a line, for as long as you listen."),
    Query(
        name="order",
        type="choice",
        options=("asc", "desc"),
        default="asc",
        help="Oldest first, after `after`; or newest first, before `before`, and only then with the filters below.",
    ),
    Query(name="before", type="integer", least=1, help="With order=desc: sequence before which to begin."),
    Query(name="type", type="choice", options=EVENT_NAMES, help="With order=desc: only commits with such an event."),
    Query(name="actor", help="With order=desc: only by this user, account or service: the subject."),
    SINCE,
    Query(name="workloadId", help="With order=desc: only commits that concern this workload."),
)
BACKWARDS: Final = ("before", "type", "actor", "since", "workloadId")
"""What goes with order=desc alone."""
AUDIT_AT_ONCE: Final = 50
"""Records that are asked for together."""
MOST_SEARCHED: Final = 20_000
"""Records of each stream that one request looks at: some two seconds."""
_AUDIT_DECODER: Final = msgspec.json.Decoder(AuditRecord)
_AUDIT_STREAMS: Final = {"admitted": AUDIT_STREAM, "refused": REFUSALS_STREAM}
"""Kept apart: however much is refused, what administrators did stays."""
AUDIT: Final = (
    Query(
        name="outcome",
        type="choice",
        options=("admitted", "refused"),
        help="Only administrative acts that were admitted, or only refusals. Default: both.",
    ),
    SINCE,
    Query(name="actor", help="Only what this user asked for: the subject of their token."),
    Query(name="type", type="choice", options=answers.COMMAND_NAMES, help="Only this kind of command."),
    Query(name="limit", type="integer", default=100, least=1, most=MAX_AUDIT, help="Newest records, 1 to 500."),
)


def follow_rules(values: Mapping[str, Any], given: AbstractSet[str]) -> Iterator[Issue]:
    if values["follow"] and "limit" in given:
        yield Issue(field="limit", details="does not go with follow, which has no end; leave one of them out")
    for name in sorted(given & {"follow", "after"} if values["order"] == "desc" else given & set(BACKWARDS)):
        other = "asc" if values["order"] == "desc" else "desc"
        yield Issue(field=name, details=f"goes with order={other} only", involves=frozenset({"order"}))


class VoidDeclaration(Body, frozen=True, kw_only=True):
    sequence: Annotated[int, Limits(least=1, most=MAX_BIGINT)]
    """Sequence of the message, as the alarm shows it."""
    reason: Annotated[str, Limits(shortest=1, longest=500)]
    """Your words, kept in the log for ever."""


@changes(
    "POST",
    f"{EVENTS}/voids",
    tag="Log",
    summary="Declare a message void that cannot be read",
    body=VoidDeclaration,
    example={"sequence": 4711, "reason": "a disk wrote it wrong; nothing is lost"},
    errors=(403, 404),
)
async def void_message(call: Call) -> Answer[answers.HttpResponse]:
    given = call.fields(VoidDeclaration)
    if not given.reason.isprintable():
        raise bad_request([Issue(field="reason", details="has control characters; write one line")])
    reply = await call.send(VoidMessage(seq=given.sequence, reason=given.reason))
    return call.accepted(reply, f"message {given.sequence} is void: every reader passes it by")


@reads(
    EVENTS,
    tag="Log",
    summary="List or follow the commits of the log, the view of operators",
    media=(JSON, "application/x-ndjson"),
    query=EVENTS_QUERY,
    rules=follow_rules,
    errors=(403,),
)
async def list_events(call: Look) -> Answer[answers.Events] | Response:
    call.require(Permission.READ_AUDIT, None)
    after: int = call.values["after"]
    if call.values["follow"]:
        return followed_answer(
            call,
            _followed(call, after),
            media_type="application/x-ndjson",
            permission=Permission.READ_AUDIT,
            project_id=None,
            last_line=_last_line,
        )
    limit: int = call.values["limit"]
    last = await call.api.store.last_seq()
    if call.values["order"] == "desc":
        before = min(call.values["before"] or last + 1, last + 1)
        found = await newest_first(
            call.api.store, _selection(call), before=before, limit=limit, most_bytes=MAX_PAGE_BYTES
        )
        return read_answer(answers.Events(events=await _answers(call, found.commits), next=found.next), last, {})
    taken: list[Commit] = []
    reached, size = after, 0
    if after < last:
        try:
            async with aclosing(_commits(call, after)) as commits:
                async for commit in commits:
                    taken.append(commit)
                    reached, size = commit.seq, size + sum(len(event.data) for event in commit.record.events)
                    if len(taken) >= limit or size >= MAX_PAGE_BYTES or reached >= last:
                        break
        except UnreadableMessageError:
            if not taken:
                raise  # the page that begins with it says so
    events = await _answers(call, taken)
    return read_answer(answers.Events(events=events, next=reached if reached < last else None), last, {})


async def _commits(call: Look, after: int) -> AsyncGenerator[Commit]:
    async with aclosing(call.api.store.follow(after)) as batches:
        async for batch in batches:
            for commit in batch:
                yield commit


async def _followed(call: Look, after: int) -> AsyncGenerator[bytes]:
    try:
        async with aclosing(call.api.store.follow(after)) as batches:
            async for batch in batches:
                piece, names = bytearray(), await _names(call, batch)
                for commit in batch:
                    piece += msgspec.json.encode(await commit_answer(call, commit, names)) + b"\n"
                    if len(piece) >= PIECE_BYTES:
                        yield bytes(piece)
                        piece.clear()
                if piece:
                    yield bytes(piece)
    except UnreadableMessageError as error:
        yield _last_line(Refusal(code="log_unreadable", message=f"{error}; {error.todo}"))


def _last_line(reason: Refusal) -> bytes:
    """No commit: it has no sequence."""
    return msgspec.json.encode({"end": reason.code, "message": reason.message}) + b"\n"


def _selection(call: Look) -> Selection:
    """What the filters ask for."""
    actor: str | None = call.values["actor"]
    return Selection(
        type=call.values["type"],
        actors=None if actor is None else actor_ids(call, actor),
        since=call.values["since"],
        workload_id=call.values["workloadId"],
    )


async def _answers(call: Look, commits: Sequence[Commit]) -> list[answers.Commit]:
    names = await _names(call, commits)
    return [await commit_answer(call, commit, names) for commit in commits]


async def _names(call: Look, commits: Sequence[Commit]) -> dict[str, str]:
    """Names by id of the workloads that these are about, as far as the lists can be read, projects and clusters."""
    about = (commit.record.about.id for commit in commits if commit.aggregate == WORKLOAD.name)
    ids = {id_ for id_ in about if id_ is not None}
    named = await if_answered(call.queries.workload_names(sorted(ids))) if ids else {}
    directory = call.api.directory
    clusters = (*directory.clusters.values(), *directory.removed_clusters())
    return (
        (named or {})
        | {project.project_id: project.name for project in directory.projects.values()}
        | {cluster.cluster_id: cluster.name for cluster in clusters}
        | {event.workload_id: event.name for c in commits for event in c.events if isinstance(event, WorkloadCreated)}
    )


async def commit_answer(call: Look, commit: Commit, names: Mapping[str, str]) -> answers.Commit:
    """A commit as people read it: ids and names instead of keys, who acted by name; events keep actor ids."""
    record = commit.record
    await call.api.actors.subjects_of((record.actor.id,))
    person = call.api.actors.person(record.actor.id)
    return answers.Commit(
        sequence=commit.seq,
        at=record.occurred_at.astimezone(UTC),
        aggregate=commit.aggregate,
        id=record.about.id,
        name=names.get(record.about.id or ""),
        node=await call.api.node_names.of(commit) if commit.aggregate == NODE.name else None,
        cluster_id=record.about.cluster_id,
        project_id=record.about.project_id,
        workload_ids=workload_ids(commit),
        actor=answers.Actor(iss=person.issuer, sub=person.subject, kind=record.actor.kind),
        command_id=record.command_id,
        correlation_id=record.correlation_id or None,
        events=[shown_event(event) for event in commit.events],
        batch=record.batch,
    )


@reads(
    f"{V1}/audit",
    tag="Log",
    summary="List administrative acts and refused requests, newest first",
    query=AUDIT,
    errors=(403,),
)
async def list_audit(call: Call) -> Answer[answers.Audit]:
    """The newest administrative acts and refusals, newest first."""
    call.require(Permission.READ_AUDIT, None)
    outcome: str | None = call.values["outcome"]
    streams = [stream for name, stream in _AUDIT_STREAMS.items() if outcome in (None, name)]
    limit: int = call.values["limit"]
    since: datetime | None = call.values["since"]
    newest = [await _newest(call, stream, since, limit) for stream in streams]
    found = sorted((record for of in newest for record in of.records), key=lambda record: record.at, reverse=True)
    searched = max((of.searched_back_to for of in newest if of.searched_back_to is not None), default=None)
    return Answer(answers.Audit(records=found[:limit], searched_back_to=searched))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Newest:
    records: list[answers.AuditEntry]
    """Those that were asked for, newest first."""
    searched_back_to: datetime | None = None
    """None where nothing older could be among them."""


async def _newest(call: Call, stream: str, since: datetime | None, limit: int) -> _Newest:
    requests = call.api.requests
    state = (await stream_info(requests, stream, seconds=STREAM_API_SECONDS)).state
    first = max(state.first_seq, 1, state.last_seq - MOST_SEARCHED + 1)
    records: list[answers.AuditEntry] = []
    oldest: datetime | None = None
    for newest in range(state.last_seq, first - 1, -AUDIT_AT_ONCE):
        sequences = range(newest, max(newest - AUDIT_AT_ONCE, first - 1), -1)
        asked = (message_at(requests, stream, seq, seconds=STREAM_API_SECONDS) for seq in sequences)
        for stored in await asyncio.gather(*asked):
            if stored is None:
                continue
            if len(records) == limit or (since is not None and stored.time < since):
                return _Newest(records=records)
            record = _audited(stored)
            oldest = stored.time
            if _is_wanted(call, record):
                records.append(record)
    whole = first <= max(state.first_seq, 1) or len(records) == limit
    return _Newest(records=records, searched_back_to=None if whole else oldest)


def _is_wanted(call: Look, record: answers.AuditEntry) -> bool:
    actor: str | None = call.values["actor"]
    kind: str | None = call.values["type"]
    sub = record.actor.sub if isinstance(record.actor, answers.Actor) else None
    return kind in {None, record.command} and actor in {None, sub}


def _audited(stored: StoredMessage) -> answers.AuditEntry:
    """The record; where nobody can read it, that, at the time at which it was stored: it must not hide the others."""
    try:
        record = _AUDIT_DECODER.decode(stored.data)
        speaker = record.actor
        return answers.AuditEntry(
            sequence=stored.seq,
            at=record.at.astimezone(UTC),
            outcome=record.outcome,
            command=record.command,
            command_id=record.command_id,
            actor=UNSET if speaker is None else answers.Actor(iss=speaker.iss, sub=speaker.sub),
            target=record.target,
            project_id=record.project_id,
            code=record.code,
            message=record.message,
            correlation_id=record.correlation_id,
        )
    except (*UNDECODABLE, OverflowError) as error:
        return answers.AuditEntry(
            sequence=stored.seq,
            at=stored.time,
            outcome="unreadable",
            command="",
            command_id="",
            message=f"no record of the audit: {error}",
        )


@reads(f"{V1}/projections", tag="Log", summary="Get how far the projections have followed the log")
async def projection_status(call: Call) -> Answer[answers.ProjectionStatus]:
    status = await call.queries.status()
    log_seq = await call.api.store.last_seq()
    rebuilding = None
    if status.rebuilding_schema is not None:
        rebuilding = answers.Rebuild(
            schema=status.rebuilding_schema, sequence=status.rebuild_seq, target_sequence=status.rebuild_target_seq
        )
    current = next(one for one in status.schemas if one.state == "current")
    body = answers.ProjectionStatus(
        schema=status.schema,
        sequence=status.seq,
        log_sequence=log_seq,
        lag=max(log_seq - status.seq, 0),
        lag_seconds=await _lag_seconds(call, status.seq, log_seq),
        shape=status.shape,
        since=None if current.note is None else current.note.ready_at,
        bytes=current.bytes,
        last_rebuild=_last_rebuild(current.note),
        halted=status.halted,
        rebuilding=rebuilding,
        others=[
            answers.ProjectionSchema(
                schema=one.name,
                state=one.state,
                sequence=one.note.seq if one.state == "shadow" and one.note else None,
                since=one.note.ready_at if one.note else None,
                bytes=one.bytes,
            )
            for one in status.schemas
            if one.state != "current"
        ],
    )
    return read_answer(body, status.seq, {})


async def _lag_seconds(call: Call, seq: int, log_seq: int) -> float:
    """How long the first commit that the tables lack has been in the log."""
    if log_seq <= seq:
        return 0.0
    first = await message_at(call.api.requests, EVENTS_STREAM, seq + 1, seconds=STREAM_API_SECONDS)
    return 0.0 if first is None else max((datetime.now(UTC) - first.time).total_seconds(), 0.0)


def _last_rebuild(note: Note | None) -> answers.LastRebuild | None:
    if note is None or note.by != "rebuild" or note.ready_at is None:
        return None
    return answers.LastRebuild(seconds=(note.ready_at - note.began_at).total_seconds(), events=note.events)


@reads(
    f"{V1}/streams",
    tag="Log",
    summary="Get how full the streams are. A full stream accepts nothing more",
    errors=(403,),
)
async def stream_status(call: Call) -> Answer[answers.Streams]:
    """How full the streams are that take nothing more once they are full."""
    call.require(Permission.READ_AUDIT, None)
    streams = [
        answers.Stream(
            name=one.stream,
            bytes=one.bytes,
            max_bytes=one.max_bytes,
            fullness=round(one.share, 4),
            nearly_full=one.share >= ALARM_SHARE,
        )
        for one in await fullness(call.api.requests)
    ]
    return Answer(answers.Streams(streams=streams))
