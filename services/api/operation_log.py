"""For administrators: the log itself, what was refused and by whom, and how far the projections have come."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, Final

import msgspec
from starlette.responses import Response, StreamingResponse

from events.authorize import Permission
from events.commit import Commit
from events.subjects import AUDIT_STREAM
from services.api.context import MAX_BIGINT, Call, Query, json_response, read_response, rfc3339
from services.runtime.jetstream_api import message_at, stream_info

MAX_EVENTS: Final = 1000
"""Commits of one page."""
MAX_PAGE_BYTES: Final = 4 * 1024 * 1024
"""A page ends early beyond it: a thousand of the largest commits are half a gigabyte."""
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
AUDIT: Final = (
    Query(name="limit", type="integer", default=100, least=1, most=MAX_AUDIT, help="Newest records, 1 to 500."),
)


async def list_events(call: Call) -> Response:
    call.require(Permission.READ_AUDIT, None)
    after: int = call.values["after"]
    if call.values["follow"]:
        return StreamingResponse(_followed(call, after), media_type="application/x-ndjson")
    limit: int = call.values["limit"]
    last = await call.api.store.last_seq()
    told: list[msgspec.Raw] = []
    reached, size = after, 0
    if after < last:
        async with aclosing(_commits(call, after)) as commits:
            async for commit in commits:
                told.append(msgspec.Raw(msgspec.json.encode(commit_json(commit))))
                reached, size = commit.seq, size + len(bytes(told[-1]))
                if len(told) >= limit or size >= MAX_PAGE_BYTES or reached >= last:
                    break
    return read_response({"events": told, "next": reached if reached < last else None}, last, {})


async def _commits(call: Call, after: int) -> AsyncGenerator[Commit]:
    async with aclosing(call.api.store.follow(after)) as batches:
        async for batch in batches:
            for commit in batch:
                yield commit


async def _followed(call: Call, after: int) -> AsyncIterator[bytes]:
    async for batch in call.api.store.follow(after):
        if batch:
            yield b"".join(msgspec.json.encode(commit_json(commit)) + b"\n" for commit in batch)


def commit_json(commit: Commit) -> dict[str, Any]:
    record = commit.record
    return {
        "sequence": commit.seq,
        "aggregate": commit.aggregate,
        "key": commit.key,
        "at": rfc3339(record.occurred_at),
        "actor": {"iss": record.actor.iss, "sub": record.actor.sub, "kind": record.actor.kind},
        "commandId": record.command_id,
        "correlationId": record.correlation_id or None,
        "events": [{"type": event.type, "version": event.version, "data": event.data} for event in record.events],
        "batch": record.batch,
    }


async def list_audit(call: Call) -> Response:
    """The newest refusals and administrative acts, newest first."""
    call.require(Permission.READ_AUDIT, None)
    requests = call.api.requests
    state = (await stream_info(requests, AUDIT_STREAM, seconds=STREAM_API_SECONDS)).state
    records: list[dict[str, Any]] = []
    sequence = state.last_seq
    while sequence >= max(state.first_seq, 1) and len(records) < call.values["limit"]:
        stored = await message_at(requests, AUDIT_STREAM, sequence, seconds=STREAM_API_SECONDS)
        if stored is not None:
            record: dict[str, Any] = msgspec.json.decode(stored.data, type=dict[str, Any])
            records.append({"sequence": stored.seq, **record})
        sequence -= 1
    return json_response({"records": records})


async def projection_status(call: Call) -> Response:
    status = await call.api.queries.status()
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
