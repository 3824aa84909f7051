"""Postgres that ends in a crash and recovers by itself: read models are away meanwhile, and nothing worse."""

import asyncio
import contextlib
from pathlib import Path

import asyncpg
import pytest

from development.servers import PostgresServer
from projections.migrate import prepare
from projections.queries import Queries
from projections.unanswered import ProjectionsUnavailableError

pytestmark = pytest.mark.anyio

CRASHES = 3


async def test_while_postgres_recovers_from_a_crash_the_tables_are_away_and_nothing_worse(server_folder: Path) -> None:
    server = PostgresServer(server_folder / "crashing")
    await asyncio.to_thread(server.start)
    queries = Queries(server.url()).within(None)
    try:
        await prepare(server.url())
        for _ in range(CRASHES):
            await queries.status()
            killed = await _crash(server)
            async with asyncio.timeout(60):
                await _until_back(queries, server, killed)
    finally:
        await queries.close()
        await asyncio.to_thread(server.kill)


async def _crash(server: PostgresServer) -> int | None:
    """One of its processes is killed, its pid is the answer: it ends all others, and recovers. A program of its own
    does it, since it may be in a container.
    """
    connection = await asyncpg.connect(server.url())
    writer = await _writer(connection)
    await connection.execute("CHECKPOINT")  # the servers of tests do not write at once what they acknowledge
    with contextlib.suppress(asyncpg.PostgresError, OSError):
        await connection.execute(f"COPY (SELECT 1) TO PROGRAM 'kill -9 {writer}'")
    connection.terminate()
    return writer


async def _until_back(queries: Queries, server: PostgresServer, killed: int | None) -> None:
    """Asks without pause; all that is ever said is that the tables are away."""
    while True:
        with contextlib.suppress(ProjectionsUnavailableError):
            await queries.status()
            with contextlib.suppress(asyncpg.PostgresError, OSError):
                connection = await asyncpg.connect(server.url())
                writer = await _writer(connection)
                connection.terminate()
                if writer not in (None, killed):
                    return


async def _writer(connection: asyncpg.Connection) -> int | None:
    return await connection.fetchval("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'")
