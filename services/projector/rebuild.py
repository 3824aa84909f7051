"""Fills a new projection schema beside the current one, from the log's beginning, and swaps them in one transaction.

Queries and projectors go on meanwhile. The swap waits until the new schema is as far as the old one, so no reader sees
time run backwards, and retires the old checkpoint, so a projector that still writes there is fenced off and moves over.
The old schema stays until the next rebuild, for readers that are in it. One rebuild runs at a time; one that was killed
leaves a schema that is not the current one, which the next rebuild drops before it starts.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import asyncpg
import structlog

from events.commit import Commit
from projections.migrate import (
    CHECKPOINT_NAME,
    create_indexes,
    create_schema,
    drop_schema,
    next_schema_name,
    projection_schemas,
)
from projections.postgres import Connection, Pool, connect
from projections.tables import PAST, REBUILD_LOCK, SHAPE
from services.projector.engine import Engine, open_pool
from services.projector.writer import RETIRED, Writer
from services.runtime.log.store import EventStore

REBUILD_BATCH_COMMITS: Final = 5_000
"""More commits at once than the projector takes: a workload's row is written once for several of its events, and
nobody waits for these rows."""
CACHED_ENTRIES: Final = 50_000
"""Some 100 MB: what is living in the log at one time is then never read back."""
IDLE_SECONDS: Final = 0.2
SWAP_LAG_COMMITS: Final = 2_000
"""So close to the log's end the indexes are made and the swap is tried."""
INDEX_TIMEOUT_SECONDS: Final = 3600
LOCK_TIMEOUT_SECONDS: Final = 10
CONNECT_TIMEOUT_SECONDS: Final = 10
STALLED_SECONDS: Final = 60.0
"""The log has more, but nothing came for so long: give up, with the old schema untouched."""

log = structlog.get_logger(__name__)


class RebuildError(Exception):
    """The rebuild was given up; the current schema is as it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    schema: str
    """The current one now."""
    seq: int
    events: int
    seconds: float


Progress = Callable[[int, int], None]
"""Told (sequence reached, sequence aimed at)."""


async def rebuild(store: EventStore, postgres_url: str, progress: Progress) -> Rebuilt:
    """Rebuild all projections from the log. Raises RebuildError, LogGapError, and what asyncpg raises."""
    connection = await connect(postgres_url, timeout_seconds=CONNECT_TIMEOUT_SECONDS, command_timeout_seconds=None)
    try:
        if not await connection.fetchval("SELECT pg_try_advisory_lock($1)", REBUILD_LOCK):
            raise RebuildError("another rebuild is running; wait for it to end")
        old = await connection.fetchval("SELECT schema_name FROM muster.current_projection")
        if old is None:
            raise RebuildError("the database has no projection schema yet; run the setup service")
        schema = await _new_schema(connection, old)
        pool = await open_pool(postgres_url)
        try:
            return await _fill_and_swap(store, connection, pool, schema, progress)
        except BaseException:
            await _forget(connection, schema)
            raise
        finally:
            pool.terminate()
    finally:
        # Closing gives the advisory lock back, also after an error in mid-statement.
        await connection.close(timeout=CONNECT_TIMEOUT_SECONDS)


async def _new_schema(connection: Connection, old: str) -> str:
    """An empty schema; whatever is neither it nor the current one (half built, or retired) is dropped."""
    async with connection.transaction():
        for name in await projection_schemas(connection):
            if name != old:
                await drop_schema(connection, name)
        schema = await next_schema_name(connection)
        await create_schema(connection, schema)
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
            await _note(connection, None, None)
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        log.warning("rebuild_not_cleaned_up", schema=schema, error=str(error))


async def _fill_and_swap(
    store: EventStore, connection: Connection, pool: Pool, schema: str, progress: Progress
) -> Rebuilt:
    clock = asyncio.get_running_loop().time
    began = clock()
    writer = Writer(pool, schema)
    engine = Engine(
        store, writer, await writer.checkpoint(), cached_entries=CACHED_ENTRIES, batch_commits=REBUILD_BATCH_COMMITS
    )
    events = 0
    try:
        async with _batches(store) as batches:
            async for commits, target in batches:
                await engine.apply(commits)
                events += sum(len(commit.events) for commit in commits)
                progress(engine.seq, target)
                await _note(connection, engine.seq, target)
                if target - engine.seq > SWAP_LAG_COMMITS:
                    continue
                await engine.flush()
                await create_indexes(connection, schema, INDEX_TIMEOUT_SECONDS)
                await connection.execute(_analyze(schema), timeout=INDEX_TIMEOUT_SECONDS)
                await _swap(connection, engine, schema, batches)
                return Rebuilt(schema=schema, seq=engine.seq, events=events, seconds=clock() - began)
    finally:
        await engine.discard()
    raise AssertionError("unreachable: followers never end")


@asynccontextmanager
async def _batches(store: EventStore) -> AsyncGenerator[AsyncGenerator[tuple[list[Commit], int], None]]:
    """Large batches of commits with the sequence aimed at; an empty one where the log's end is reached."""
    commits_of = store.follow(0, idle_seconds=IDLE_SECONDS)
    batches = _gathered(store, commits_of)
    try:
        yield batches
    finally:
        await batches.aclose()
        await commits_of.aclose()


async def _gathered(
    store: EventStore, commits_of: AsyncGenerator[list[Commit], None]
) -> AsyncGenerator[tuple[list[Commit], int], None]:
    clock = asyncio.get_running_loop().time
    target, seq, heard = await store.last_seq(), 0, clock()
    waiting: list[Commit] = []
    while True:
        commits = await anext(commits_of)
        waiting.extend(commits)
        if commits:
            seq, heard = commits[-1].seq, clock()
        elif clock() - heard > STALLED_SECONDS and seq < target:
            raise RebuildError(
                f"the log has {target} commits, but nothing came after {seq} for {STALLED_SECONDS:.0f} s"
            )
        if reached := seq >= target:
            target = await store.last_seq()
        if reached or len(waiting) >= REBUILD_BATCH_COMMITS:
            yield waiting, max(target, seq)
            waiting = []


async def _swap(
    connection: Connection, engine: Engine, schema: str, batches: AsyncGenerator[tuple[list[Commit], int], None]
) -> None:
    """Make the schema the current one, as soon as it is as far as the one it replaces."""
    async with connection.transaction():
        await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_SECONDS}s'")
        old = await connection.fetchval("SELECT schema_name FROM muster.current_projection FOR UPDATE")
        # The projector cannot move the old checkpoint until this transaction ends, so the last commits are caught up.
        old_seq = await connection.fetchval(
            f'SELECT seq FROM "{old}".checkpoint WHERE name = $1 FOR UPDATE',  # noqa: S608 (our own names)
            CHECKPOINT_NAME,
        )
        while engine.seq < (old_seq or 0):
            commits, _ = await anext(batches)
            await engine.apply(commits)
        await engine.flush()
        await connection.execute(
            f'UPDATE "{old}".checkpoint SET version = $1 WHERE name = $2',  # noqa: S608
            RETIRED,
            CHECKPOINT_NAME,
        )
        await connection.execute(
            "UPDATE muster.current_projection SET schema_name = $1, shape = $2, halted = NULL", schema, SHAPE
        )
        await _note(connection, None, None)


async def _note(connection: Connection, seq: int | None, target_seq: int | None) -> None:
    """What `muster projections status` shows of a rebuild; None: there is none."""
    await connection.execute(
        "UPDATE muster.current_projection SET rebuild_seq = $1, rebuild_target_seq = $2, "
        "rebuilding_schema = CASE WHEN $1::bigint IS NULL THEN NULL ELSE rebuilding_schema END",
        seq,
        target_seq,
    )


def _analyze(schema: str) -> str:
    names = ("workloads", "pods", "history", "due", "moments", *(table.name for table in PAST.values()))
    return "ANALYZE " + ", ".join(f'"{schema}"."{name}"' for name in names)
