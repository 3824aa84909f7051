"""Sandboxes as the database knows them: a projection schema for each, and who plays into it.

Whoever plays into a sandbox holds an advisory lock on it, by a connection of its own. So whether one is being played is
never a matter of a file or a process id, and `end` reaches the player wherever it runs.
"""

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from projections.migrate import CHECKPOINT_NAME, create_indexes, create_schema, drop_schema
from projections.postgres import Connection, connect
from projections.schemas import SANDBOX_PREFIX, Note, noted, read_note, write_note

NAME: Final = re.compile(r"^[a-z0-9][a-z0-9-]{0,39}\Z")
LOCK: Final = 0x6D757372
"""First key of the advisory lock that a player holds: "musr" in ASCII. The second is a hash of the sandbox's name."""
CONNECT_TIMEOUT_SECONDS: Final = 10
END_SECONDS: Final = 10.0
"""How long a player that was ended may take to be gone."""
LOCK_TIMEOUT_SECONDS: Final = 10


class SandboxError(Exception):
    """A sandbox cannot be what was asked for; the message says why, and what would do."""


class BadReplayError(SandboxError):
    """What was given is wrong, whatever there is."""


class NoSandboxError(SandboxError):
    """There is none of that name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    name: str
    note: Note
    seq: int
    """The last sequence that was played."""
    at: datetime | None
    """The time of the log there."""
    playing: bool
    """Whether a process plays into it or serves it now."""
    bytes: int


def schema_of(name: str) -> str:
    """Raises BadReplayError for what is no name."""
    if NAME.match(name) is None:
        raise BadReplayError(
            f"{name!r} is no name for a sandbox: lower-case letters, digits and '-', at most 40, not '-' at first"
        )
    return SANDBOX_PREFIX + name


@asynccontextmanager
async def connected(postgres_url: str) -> AsyncGenerator[Connection]:
    connection = await connect(postgres_url, timeout_seconds=CONNECT_TIMEOUT_SECONDS, command_timeout_seconds=None)
    try:
        yield connection
    finally:
        await connection.close(timeout=CONNECT_TIMEOUT_SECONDS)


async def hold(connection: Connection, name: str) -> bool:
    """Whether the connection alone may change the sandbox from here on."""
    return bool(await connection.fetchval("SELECT pg_try_advisory_lock($1, hashtext($2))", LOCK, name))


async def held_by(connection: Connection, name: str) -> int | None:
    """The server's process of the connection that holds it."""
    return await connection.fetchval(
        "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND classid = $1::bigint::oid "
        "AND objid = (hashtext($2)::bigint & 4294967295)::oid AND objsubid = 2 "
        "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
        LOCK,
        name,
    )


async def make(connection: Connection, name: str, note: Note) -> None:
    """An empty schema, at the log's beginning."""
    schema = schema_of(name)
    async with connection.transaction():
        await create_schema(connection, schema)
        await write_note(connection, schema, note)


async def index(connection: Connection, name: str, note: Note) -> None:
    """The secondary indexes, once the sandbox is as it stood at its beginning."""
    schema = schema_of(name)
    async with connection.transaction():
        await create_indexes(connection, schema)
        await write_note(connection, schema, note)
    await connection.execute(f'ANALYZE "{schema}".workloads, "{schema}".pods, "{schema}".history, "{schema}".moments')


async def known(connection: Connection, name: str) -> Note | None:
    return await read_note(connection, schema_of(name))


async def place(connection: Connection, name: str) -> tuple[int, datetime | None]:
    """The last sequence that was played, and the time of the log there."""
    schema = schema_of(name)
    seq = await connection.fetchval(
        f'SELECT seq FROM "{schema}".checkpoint WHERE name = $1',  # noqa: S608 (our own names)
        CHECKPOINT_NAME,
    )
    at = await connection.fetchval(f'SELECT max(at) FROM "{schema}".moments')  # noqa: S608
    return int(seq or 0), at


async def newest(connection: Connection, name: str) -> dict[str, int]:
    """The last sequence of each kind of aggregate that lists are made of in memory (`Directory`)."""
    schema = schema_of(name)
    return {
        kind: int(await connection.fetchval(f'SELECT max(version) FROM "{schema}"."{table}"') or 0)  # noqa: S608
        for kind, table in (
            ("cluster", "clusters"),
            ("department", "departments"),
            ("project", "projects"),
            ("prices", "prices"),
        )
    }


async def listed(postgres_url: str) -> list[Sandbox]:
    """Every sandbox, by name."""
    async with connected(postgres_url) as connection:
        rows = await connection.fetch(
            "SELECT n.nspname, obj_description(n.oid, 'pg_namespace') AS note, ("
            " SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c"
            " WHERE c.relnamespace = n.oid AND c.relkind = 'r') AS bytes "
            "FROM pg_namespace n WHERE n.nspname ~ ('^' || $1 || '[a-z0-9-]+$') ORDER BY 1",
            SANDBOX_PREFIX,
        )
        found: list[Sandbox] = []
        for row in rows:
            name, note = row["nspname"].removeprefix(SANDBOX_PREFIX), noted(row["note"])
            if note is None or note.replay is None:
                continue
            seq, at = await place(connection, name)
            playing = await held_by(connection, name) is not None
            found.append(Sandbox(name=name, note=note, seq=seq, at=at, playing=playing, bytes=row["bytes"]))
        return found


async def remove(postgres_url: str, name: str) -> None:
    """End whoever plays into it, and drop it. Raises NoSandboxError, SandboxError."""
    async with connected(postgres_url) as connection:
        if await known(connection, name) is None:
            raise NoSandboxError(f"there is no sandbox {name!r}")
        await _end(connection, name)
        async with connection.transaction():
            await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_SECONDS}s'")
            await drop_schema(connection, schema_of(name))


async def _end(connection: Connection, name: str) -> None:
    clock = asyncio.get_running_loop().time
    give_up_at = clock() + END_SECONDS
    while not await hold(connection, name):
        if (pid := await held_by(connection, name)) is not None:
            await connection.execute("SELECT pg_terminate_backend($1)", pid)
        if clock() > give_up_at:
            raise SandboxError(f"the process that plays into {name!r} did not end within {END_SECONDS:.0f} s")
        await asyncio.sleep(0.1)
