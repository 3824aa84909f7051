"""What somebody can do who has the api's password of Postgres and statements of his own."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from projections.access import READER_SETTINGS, scope_values
from projections.migrate import prepare
from services.projector.engine import open_pool
from services.projector.overlong import end_overlong
from tests.projections.conftest import READER

pytestmark = pytest.mark.anyio


_LOCKED = "SELECT count(*) FROM pg_locks WHERE relation = 'muster.current_projection'::regclass"


@pytest.fixture
async def thief(reader_database: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection with what the role holds, and every switch that a session may turn."""
    connection = await asyncpg.connect(reader_database)
    await connection.execute("SET default_transaction_read_only = off")
    await connection.execute("SET idle_in_transaction_session_timeout = 0")
    await connection.execute("SET statement_timeout = 0")
    await connection.execute(f"SET ROLE {scope_values(None)['role']}")
    yield connection
    connection.terminate()  # it may have been ended


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT pg_advisory_lock(1)",
        "SELECT pg_try_advisory_lock_shared(1, 2)",
        "SELECT pg_advisory_xact_lock(1)",
        "SELECT lo_create(0)",
        "SELECT pg_notify('x', 'y')",
        "SELECT pg_logical_emit_message(false, 'x', repeat('y', 1000))",
        "SELECT lo_from_bytea(0, 'x')",
        "CREATE TEMPORARY TABLE t (n int)",
        "CREATE TABLE public.t (n int)",
        "CREATE SCHEMA s",
        "LOCK TABLE muster_v1.workloads IN ROW EXCLUSIVE MODE",
        "LOCK TABLE muster.current_projection IN ACCESS EXCLUSIVE MODE",
        "SELECT * FROM muster_v1.workloads FOR UPDATE",
        "SET temp_file_limit = -1",
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'postgres'",
    ],
)
async def test_it_may_neither_write_nor_hold_what_others_wait_for(thief: asyncpg.Connection, statement: str) -> None:
    async with thief.transaction():
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            async with thief.transaction():
                await thief.execute(statement)


async def test_it_cannot_take_all_connections(database: str, reader_database: str) -> None:
    owner = await asyncpg.connect(database)
    taken: list[asyncpg.Connection] = []
    try:
        most = await owner.fetchval("SELECT current_setting('max_connections')::int")
        allowed = await owner.fetchval("SELECT rolconnlimit FROM pg_roles WHERE rolname = $1", READER)
        assert 0 < allowed <= most - 16
        for _ in range(allowed):
            taken.append(await asyncpg.connect(reader_database))  # noqa: PERF401 (closed also after an error)
        with pytest.raises(asyncpg.TooManyConnectionsError):
            await asyncpg.connect(reader_database)
        await taken[0].execute("SET default_transaction_read_only = off")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await taken[0].execute(f'ALTER ROLE "{READER}" CONNECTION LIMIT -1')
    finally:
        for connection in taken:
            await connection.close()
        await owner.close()


async def test_a_transaction_of_its_that_lasts_too_long_is_ended_and_no_one_elses(
    database: str, thief: asyncpg.Connection
) -> None:
    pool, owner = await open_pool(database), await asyncpg.connect(database)
    try:
        await owner.execute("BEGIN")
        await thief.execute("BEGIN; LOCK TABLE muster.current_projection IN ACCESS SHARE MODE")
        assert await end_overlong(pool, 3600) == 0
        assert await end_overlong(pool, 0) == 1
        async with asyncio.timeout(60):
            while await owner.fetchval(_LOCKED):
                await asyncio.sleep(0.05)
        assert await owner.fetchval("SELECT 1") == 1
    finally:
        await owner.close()
        pool.terminate()


async def test_its_sessions_begin_with_short_patience(reader_database: str, database: str) -> None:
    await prepare(database, reader_database)  # once more, as at every start
    connection = await asyncpg.connect(reader_database)
    for name, value in READER_SETTINGS.items():
        assert await connection.fetchval("SELECT current_setting($1)", name) == value
    await connection.close()
