"""Messages that no reader of the log can read, put there by the user who may do everything."""

from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from nats.aio.client import Client

from events.codec import encode_commit
from events.commit import Actor, BatchPart, CommitRecord, EventRecord

NOW: Final = datetime(2026, 1, 2, tzinfo=UTC)


async def put(nc: Client, subject: str, payload: bytes) -> int:
    """Store a message without any guard; its sequence."""
    answer = await nc.request(subject, payload, timeout=60)
    ack: dict[str, Any] = msgspec.json.decode(answer.data)
    assert "error" not in ack, ack
    return int(ack["seq"])


def record(*events: tuple[str, int, bytes], parent: int, batch: BatchPart | None = None) -> bytes:
    """A commit record of (type, version, fields) as no decider would write it."""
    return encode_commit(
        CommitRecord(
            commit_id="forged",
            command_id="forged",
            actor=Actor(id="mallory"),
            occurred_at=NOW,
            parent_seq=parent,
            events=tuple(EventRecord(type=name, version=v, data=msgspec.Raw(data)) for name, v, data in events),
            batch=batch,
        )
    )


UNDECODABLE_JSON: Final[dict[str, bytes]] = {
    "no JSON": b"{nonsense",
    "no UTF-8": b'{"type":"\xff"}',
    "deeply nested": b'{"x":' * 50_000,
}
"""Each of these makes a decoder raise something else."""

VIEWER: Final = ("TenantRoleGranted", 1, b'{"actor":"mallory","role":"viewer"}')

UNREADABLE: Final[dict[str, bytes]] = {
    "nothing": b"",
    "no JSON": b"\xff\xfe not JSON",
    "an answer of the server": b'{"type":"io.nats.jetstream.api.v1.stream_info_response","total":0}',
    "deeply nested": b"[" * 100_000,
    "an unknown type": record(("NoSuchEvent", 1, b"{}"), parent=0),
    "a later version": record(("TenantRoleGranted", 99, b"{}"), parent=0),
    "a version below any": record(("TenantRoleGranted", -7, b"{}"), parent=0),
    "fields of another shape": record(("TenantRoleGranted", 1, b"[1]"), parent=0),
    "no events": record(parent=0),
    "an event of another aggregate": record(("NodeRemoved", 1, b"{}"), parent=0),
    "a batch beyond all bounds": record(VIEWER, parent=0, batch=BatchPart(id="b", index=2**62, count=-(2**62))),
}
"""Nobody can decode these, on a subject of the tenant."""
