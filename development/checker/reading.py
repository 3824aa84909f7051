"""Reads what the checker looks at from the servers, as it is stored: the log and the tables.

With the clients of NATS and Postgres alone: nothing of the product stands between.
"""

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import asyncpg
from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import APIError

from development.checker.records import RawMessage

READ_MESSAGES = 1_000
FETCH_SECONDS = 10
IDLE_SECONDS = 60
"""After which the server drops a consumer."""
CONSUMERS = 8
"""That one user may have on a stream."""


async def read_log(nc: Client) -> list[RawMessage]:
    """All messages of EVENTS, for a user who may follow it."""
    js = nc.jetstream()
    state = (await js.stream_info("EVENTS")).state
    messages: list[RawMessage] = []
    if not state.messages:
        return messages
    name = await _consumer(nc, "EVENTS")
    subscription = await js.pull_subscribe_bind(consumer=name, stream="EVENTS")
    try:
        while not messages or messages[-1].seq < state.last_seq:
            left = max(state.messages - len(messages), 1)
            fetched = await subscription.fetch(min(READ_MESSAGES, left), timeout=FETCH_SECONDS)
            messages += [RawMessage(m.metadata.sequence.stream, m.subject, m.data) for m in fetched]
    finally:
        await subscription.unsubscribe()
        await js.delete_consumer("EVENTS", name)
    return messages


async def _consumer(nc: Client, stream: str) -> str:
    """A new consumer, under one of the few names that a user has for its own."""
    js, user = nc.jetstream(), nc.options["user"]
    for number in range(CONSUMERS):
        config = ConsumerConfig(
            name=f"{user}-{number}",
            description=secrets.token_hex(8),  # two that are alike would be one
            deliver_policy=DeliverPolicy.ALL,
            ack_policy=AckPolicy.NONE,
            mem_storage=True,
            inactive_threshold=IDLE_SECONDS,
        )
        try:
            return (await js.add_consumer(stream, config)).name
        except APIError:
            continue  # somebody else has it
    raise AssertionError(f"all {CONSUMERS} consumers of {user} on {stream} are in use")


@dataclass(frozen=True)
class Tables:
    """Rows of the read models at one moment."""

    seq: int
    """Of the log, as far as they had followed it."""
    last_commit_id: str
    rows: Mapping[str, list[dict[str, Any]]]
    """By table."""


TABLES = ("workloads", "pods", "due", "nodes", "reservations")
PAST_TABLES = ("workloads", "nodes")
"""Those of them that have views of the past."""


async def read_tables(postgres_url: str) -> Tables:
    """In one transaction that sees one moment."""
    connection = await asyncpg.connect(postgres_url, timeout=FETCH_SECONDS)
    try:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            schema = await connection.fetchval("SELECT schema_name FROM muster.current_projection")
            checkpoint = await connection.fetchrow(f'SELECT seq, last_commit_id FROM "{schema}".checkpoint')
            assert checkpoint is not None
            rows = {
                table: [dict(row) for row in await connection.fetch(f'SELECT * FROM "{schema}"."{table}"')]
                for table in TABLES
            }
            history = await connection.fetch(
                f'SELECT workload_id, count(*) AS count FROM "{schema}".history GROUP BY workload_id'
            )
            rows["history"] = [dict(row) for row in history]
            return Tables(checkpoint["seq"], checkpoint["last_commit_id"], rows)
    finally:
        await connection.close()


async def read_past(postgres_url: str, seq: int) -> Tables:
    """What the views of the past say of a moment, in one transaction."""
    connection = await asyncpg.connect(postgres_url, timeout=FETCH_SECONDS)
    try:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            await connection.execute("SELECT set_config('app.as_of', $1, true)", str(seq))
            past = f"{await connection.fetchval('SELECT schema_name FROM muster.current_projection')}_past"
            rows = {
                table: [dict(row) for row in await connection.fetch(f'SELECT * FROM "{past}"."{table}"')]
                for table in PAST_TABLES
            }
            history = await connection.fetch(
                f'SELECT workload_id, count(*) AS count FROM "{past}".history GROUP BY workload_id'
            )
            rows["history"] = [dict(row) for row in history]
            told = await connection.fetchval(f'SELECT seq FROM "{past}".checkpoint')
            return Tables(told, "", rows)
    finally:
        await connection.close()


async def tables_at(postgres_url: str, seq: int, timeout_seconds: float = 20) -> Tables:
    """The tables, once they have followed the log up to `seq`; as they are where they do not."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_seconds
    while True:
        tables = await read_tables(postgres_url)
        if tables.seq >= seq or loop.time() > deadline:
            return tables
        await asyncio.sleep(0.1)
