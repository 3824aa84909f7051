"""A projection schema that is filled from the log beside the current one: what a rebuild, a comparison and a look at a
moment have in common.

One is filled at a time, by who holds an advisory lock of the database. It goes with its connection, so what stands
half-filled while nobody holds the lock was left by a process that died, and the next one that begins drops it.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import asyncpg
import msgspec
import structlog

from projections.migrate import create_indexes, create_schema, drop_schema, next_schema_name, projection_schemas
from projections.past_views import past_schema
from projections.postgres import Connection, connect
from projections.schemas import SHADOW_PREFIX, Maker, Note, read_note, write_note
from projections.tables import PAST, REBUILD_LOCK, SHAPE
from services.projector.arrivals import BATCH_COMMITS, Arrivals, Until, arrivals, moment
from services.projector.engine import Engine, open_pool
from services.projector.writer import Writer
from services.runtime.log.store import EventStore
from services.runtime.process.failpoints import reached

CACHED_ENTRIES: Final = 50_000
"""Some 100 MB: what is living in the log at one time is then never read back."""
INDEX_TIMEOUT_SECONDS: Final = 3600
LOCK_TIMEOUT_SECONDS: Final = 10
CONNECT_TIMEOUT_SECONDS: Final = 10

log = structlog.get_logger(__name__)

type Progress = Callable[[int, int], None]
"""Told (sequence reached, sequence aimed at)."""


class RebuildError(Exception):
    """It was given up; the current schema is as it was."""


@dataclass(slots=True, kw_only=True)
class Shadow:
    """A schema that is being filled."""

    schema: str
    connection: Connection
    """That holds the lock."""
    engine: Engine
    arrivals: Arrivals
    progress: Progress
    note: Note
    events: int = 0

    async def fill(self, until: Until) -> None:
        """Take in the log up to a moment, until all of it is written. Raises what `Engine.apply` and `take` raise."""
        while commits := await self.arrivals.take(until):
            await self.engine.apply(commits)
            self.events += sum(len(commit.events) for commit in commits)
            self.progress(self.engine.seq, max(until.aim, self.engine.seq))
            await _tell(self.connection, self.engine.seq, until.aim)
        await self.engine.flush()

    async def index(self) -> None:
        """The secondary indexes: made last, which is several times cheaper than keeping them all along."""
        await create_indexes(self.connection, self.schema, INDEX_TIMEOUT_SECONDS)
        await self.analyze()

    async def analyze(self) -> None:
        names = ("workloads", "pods", "history", "due", "moments", *(table.name for table in PAST.values()))
        listed = ", ".join(f'"{self.schema}"."{name}"' for name in names)
        await self.connection.execute(f"ANALYZE {listed}", timeout=INDEX_TIMEOUT_SECONDS)

    def done(self) -> Note:
        """What is to be known of it, once it is whole."""
        return msgspec.structs.replace(self.note, ready_at=datetime.now(UTC), seq=self.engine.seq, events=self.events)


@asynccontextmanager
async def only_one(postgres_url: str) -> AsyncGenerator[tuple[Connection, str]]:
    """A connection that alone may fill schemas, and the name of the current one. Raises RebuildError where another
    process does, or the database is not set up.
    """
    connection = await connect(postgres_url, timeout_seconds=CONNECT_TIMEOUT_SECONDS, command_timeout_seconds=None)
    try:
        # First: without tables of ours it raises, and says so.
        row = await connection.fetchrow(
            "SELECT schema_name, rebuilding_schema, rebuild_seq, rebuild_target_seq FROM muster.current_projection"
        )
        if row is None:
            raise RebuildError("the database has no projection schema yet; run the setup service")
        if not await connection.fetchval("SELECT pg_try_advisory_lock($1)", REBUILD_LOCK):
            at = f"{row['rebuild_seq'] or 0:,} of {row['rebuild_target_seq'] or 0:,}"
            schema = row["rebuilding_schema"] or "a schema"
            raise RebuildError(
                f"another rebuild or comparison is running: it fills {schema} and is at {at}; wait for it to end"
            )
        yield connection, row["schema_name"]
    except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError) as error:
        raise RebuildError(f"the database has no tables of Muster ({error}); run the setup service") from error
    finally:
        # Closing gives the advisory lock back, also after an error in mid-statement.
        await connection.close(timeout=CONNECT_TIMEOUT_SECONDS)


@asynccontextmanager
async def shadow(
    store: EventStore, postgres_url: str, connection: Connection, by: Maker, progress: Progress
) -> AsyncGenerator[Shadow]:
    """An empty schema to be filled. Where it is neither the current one nor named as one of a moment at the end of the
    block, it is dropped.
    """
    note = Note(by=by, shape=SHAPE, began_at=datetime.now(UTC))
    schema = await _new_schema(connection, note)
    reached("shadow_begun")
    pool = await open_pool(postgres_url)
    try:
        writer = Writer(pool, schema)
        engine = Engine(
            store, writer, await writer.checkpoint(), cached_entries=CACHED_ENTRIES, batch_commits=BATCH_COMMITS
        )
        try:
            async with arrivals(store) as read:
                yield Shadow(
                    schema=schema, connection=connection, engine=engine, arrivals=read, progress=progress, note=note
                )
        finally:
            await engine.discard()
    finally:
        pool.terminate()
        await _forget(connection, schema)


async def _new_schema(connection: Connection, note: Note) -> str:
    """An empty schema; whatever is neither it nor the current one (half filled, or retired) is dropped."""
    async with connection.transaction():
        current = await connection.fetchval("SELECT schema_name FROM muster.current_projection")
        for name in await projection_schemas(connection):
            if name != current:
                await drop_schema(connection, name)
        schema = await next_schema_name(connection)
        await create_schema(connection, schema)
        await write_note(connection, schema, note)
        await connection.execute(
            "UPDATE muster.current_projection SET rebuilding_schema = $1, rebuild_seq = 0, rebuild_target_seq = 0",
            schema,
        )
    return schema


async def _forget(connection: Connection, schema: str) -> None:
    try:
        async with connection.transaction():
            if await connection.fetchval("SELECT schema_name FROM muster.current_projection") != schema:
                await drop_schema(connection, schema)
            await untell(connection)
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        log.warning("rebuild_not_cleaned_up", schema=schema, error=str(error))


async def _tell(connection: Connection, seq: int, target_seq: int) -> None:
    """What `muster projections status` shows of what is being filled."""
    await connection.execute(
        "UPDATE muster.current_projection SET rebuild_seq = $1, rebuild_target_seq = $2", seq, max(seq, target_seq)
    )


async def untell(connection: Connection) -> None:
    """Nothing is being filled any more."""
    await connection.execute(
        "UPDATE muster.current_projection SET rebuilding_schema = NULL, rebuild_seq = NULL, rebuild_target_seq = NULL"
    )


# -- shadows as of a moment ------------------------------------------------------------------------------------------


async def make_until(store: EventStore, postgres_url: str, given: str, progress: Progress) -> tuple[str, Note]:
    """A schema as of a moment (a sequence, or an RFC 3339 time), which stays until it is dropped; its name, and what is
    known of it. One that is there already is left as it is. Raises RebuildError, MomentError, StalledError, what the
    store raises and what asyncpg raises.
    """
    until = await moment(store, given)
    async with only_one(postgres_url) as (connection, _):
        name = f"{SHADOW_PREFIX}{until.seq}"
        if until.at is None and (known := await read_note(connection, name)) is not None and known.shape == SHAPE:
            return name, known
        async with shadow(store, postgres_url, connection, "until", progress) as made:
            await made.fill(until)
            await made.index()
            reached("shadow_filled")
            # A moment within an atomic batch, or between two commits, is the one before.
            name, note = f"{SHADOW_PREFIX}{made.engine.seq}", made.done()
            async with connection.transaction():
                await drop_schema(connection, name)
                await connection.execute(f'ALTER SCHEMA "{made.schema}" RENAME TO "{name}"')
                await connection.execute(f'ALTER SCHEMA "{past_schema(made.schema)}" RENAME TO "{past_schema(name)}"')
                await write_note(connection, name, note)
            return name, note


async def drop(postgres_url: str, schema: str) -> None:
    """Drop a schema that is not in use. Raises RebuildError."""
    async with only_one(postgres_url) as (connection, current):
        if schema == current:
            raise RebuildError(f"{schema} is in use; `muster projections rebuild` replaces it")
        known = [*await projection_schemas(connection), *await shadow_names(connection)]
        if schema not in known:
            others = ", ".join(name for name in known if name != current) or "none"
            raise RebuildError(f"there is no schema {schema!r} that could be dropped; there is: {others}")
        async with connection.transaction():
            await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_SECONDS}s'")
            await drop_schema(connection, schema)


async def shadow_names(connection: Connection) -> list[str]:
    rows = await connection.fetch(
        "SELECT nspname FROM pg_namespace WHERE nspname ~ ('^' || $1 || '[0-9]+$')", SHADOW_PREFIX
    )
    return [row["nspname"] for row in rows]
