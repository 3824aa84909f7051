"""For administrators: the log itself and its repair, what was refused, and how far the projections have come."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import msgspec
from pydantic import Field
from starlette.responses import Response

from events.audit import AuditRecord
from events.authorize import Permission
from events.codec import UNDECODABLE
from events.commands import COMMANDS
from events.commit import Commit
from events.refusal import Refusal
from events.subjects import AUDIT_STREAM, REFUSALS_STREAM
from events.void import VoidMessage
from projections.row_json import camel_keys
from services.api.context import MAX_BIGINT, Call, Query, json_response, read_response, rfc3339
from services.api.errors import bad_request
from services.api.fields.about import FieldsModel
from services.api.follows import followed_answer
from services.api.issues import Issue
from services.api.log_lines import SINCE
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
EVENTS: Final = (
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
)
_COMMAND_NAMES: Final = tuple(sorted(command.__name__ for command in COMMANDS))
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
    Query(name="type", type="choice", options=_COMMAND_NAMES, help="Only this kind of command."),
    Query(name="limit", type="integer", default=100, least=1, most=MAX_AUDIT, help="Newest records, 1 to 500."),
)


def follow_rules(values: Mapping[str, Any], given: AbstractSet[str]) -> Iterator[Issue]:
    if values["follow"] and "limit" in given:
        yield Issue(field="limit", details="does not go with follow, which has no end; leave one of them out")


class VoidDeclaration(FieldsModel):
    sequence: Annotated[int, Field(ge=1, le=MAX_BIGINT)]
    """Of the message, as the alarm names it."""
    reason: Annotated[str, Field(min_length=1, max_length=500)]
    """Your words, kept in the log for ever."""


async def void_message(call: Call) -> Response:
    given = call.fields(VoidDeclaration)
    if not given.reason.isprintable():
        raise bad_request([Issue(field="reason", details="has control characters; write one line")])
    reply = await call.send(VoidMessage(seq=given.sequence, reason=given.reason))
    return call.accepted(reply, f"message {given.sequence} is void: every reader passes it by")


async def list_events(call: Call) -> Response:
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
    told: list[msgspec.Raw] = []
    reached, size = after, 0
    if after < last:
        try:
            async with aclosing(_commits(call, after)) as commits:
                async for commit in commits:
                    told.append(msgspec.Raw(msgspec.json.encode(await commit_json(call, commit))))
                    reached, size = commit.seq, size + len(bytes(told[-1]))
                    if len(told) >= limit or size >= MAX_PAGE_BYTES or reached >= last:
                        break
        except UnreadableMessageError:
            if not told:
                raise  # the page that begins with it says so
    return read_response({"events": told, "next": reached if reached < last else None}, last, {})


async def _commits(call: Call, after: int) -> AsyncGenerator[Commit]:
    async with aclosing(call.api.store.follow(after)) as batches:
        async for batch in batches:
            for commit in batch:
                yield commit


async def _followed(call: Call, after: int) -> AsyncGenerator[bytes]:
    try:
        async with aclosing(call.api.store.follow(after)) as batches:
            async for batch in batches:
                piece = bytearray()
                for commit in batch:
                    piece += msgspec.json.encode(await commit_json(call, commit)) + b"\n"
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


async def commit_json(call: Call, commit: Commit) -> dict[str, Any]:
    """A commit as people read it: who acted by name; what events say stays as the log has it, with ids."""
    record = commit.record
    await call.api.actors.subjects_of((record.actor.id,))
    person = call.api.actors.person(record.actor.id)
    return {
        "sequence": commit.seq,
        "aggregate": commit.aggregate,
        "key": commit.key,
        "at": rfc3339(record.occurred_at),
        "actor": {"iss": person.issuer, "sub": person.subject, "kind": record.actor.kind},
        "commandId": record.command_id,
        "correlationId": record.correlation_id or None,
        "events": [{"type": event.type, "version": event.version, "data": event.data} for event in record.events],
        "batch": record.batch,
    }


async def list_audit(call: Call) -> Response:
    """The newest administrative acts and refusals, newest first."""
    call.require(Permission.READ_AUDIT, None)
    outcome: str | None = call.values["outcome"]
    streams = [stream for name, stream in _AUDIT_STREAMS.items() if outcome in (None, name)]
    limit: int = call.values["limit"]
    since: datetime | None = call.values["since"]
    newest = [await _newest(call, stream, since, limit) for stream in streams]
    found = sorted((record for of in newest for record in of.records), key=lambda record: record["at"], reverse=True)
    searched = max((of.searched_back_to for of in newest if of.searched_back_to is not None), default=None)
    return json_response({"records": found[:limit], "searchedBackTo": rfc3339(searched)})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Newest:
    records: list[dict[str, Any]]
    """Those that were asked for, newest first."""
    searched_back_to: datetime | None = None
    """None where nothing older could be among them."""


async def _newest(call: Call, stream: str, since: datetime | None, limit: int) -> _Newest:
    requests = call.api.requests
    state = (await stream_info(requests, stream, seconds=STREAM_API_SECONDS)).state
    first = max(state.first_seq, 1, state.last_seq - MOST_SEARCHED + 1)
    records: list[dict[str, Any]] = []
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
                records.append({"sequence": stored.seq, **record})
    whole = first <= max(state.first_seq, 1) or len(records) == limit
    return _Newest(records=records, searched_back_to=None if whole else oldest)


def _is_wanted(call: Call, record: dict[str, Any]) -> bool:
    actor: str | None = call.values["actor"]
    kind: str | None = call.values["type"]
    return kind in {None, record["command"]} and actor in {None, record.get("actor", {}).get("sub")}


def _audited(stored: StoredMessage) -> dict[str, Any]:
    """The record; where nobody can read it, that, at the time at which it was stored: it must not hide the others."""
    try:
        record = _AUDIT_DECODER.decode(stored.data)
        # In one form: they are put in order by it.
        return camel_keys(msgspec.to_builtins(record)) | {"at": rfc3339(record.at.astimezone(UTC))}
    except (*UNDECODABLE, OverflowError) as error:
        said = {"outcome": "unreadable", "message": f"no record of the audit: {error}"}
        return {"at": rfc3339(stored.time), "command": "", "commandId": "", **said}


async def projection_status(call: Call) -> Response:
    status = await call.queries.status()
    log_seq = await call.api.store.last_seq()
    rebuilding = None
    if status.rebuilding_schema is not None:
        rebuilding = {
            "schema": status.rebuilding_schema,
            "sequence": status.rebuild_seq,
            "targetSequence": status.rebuild_target_seq,
        }
    body = {
        "schema": status.schema,
        "sequence": status.seq,
        "logSequence": log_seq,
        "lag": max(log_seq - status.seq, 0),
        "halted": status.halted,
        "rebuilding": rebuilding,
    }
    return read_response(body, status.seq, {})


async def stream_status(call: Call) -> Response:
    """How full the streams are that take nothing more once they are full."""
    call.require(Permission.READ_AUDIT, None)
    streams = [
        {
            "name": one.stream,
            "bytes": one.bytes,
            "maxBytes": one.max_bytes,
            "fullness": round(one.share, 4),
            "nearlyFull": one.share >= ALARM_SHARE,
        }
        for one in await fullness(call.api.requests)
    ]
    return json_response({"streams": streams})
