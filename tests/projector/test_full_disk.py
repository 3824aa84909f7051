"""Postgres that cannot write for a while, because its disk is full or because somebody made it read-only: the projector
waits, and goes on by itself. What stands in the tables can be read meanwhile, or is refused as away.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from development.servers import PostgresServer
from projections.filters import WorkloadQuery
from projections.migrate import prepare
from projections.queries import Queries
from projections.unanswered import ProjectionsUnavailableError
from services.projector.engine import open_pool
from services.projector.service import Projector
from services.projector.verify import verify
from services.runtime.log.memory import MemoryEventStore
from services.runtime.process.host import Health
from tests.projections.happenings import Happenings
from tests.projector.conftest import Run
from tests.projector.test_projector import quiet, reached, until
from tests.support.lives import feed
from tests.support.small_disk import SmallDisk, small_disk

pytestmark = pytest.mark.anyio


@pytest.fixture
async def full_postgres(server_folder: Path) -> AsyncIterator[tuple[PostgresServer, SmallDisk]]:
    """On a disk of its own, started again whenever it ends, as a supervisor would."""
    with small_disk(server_folder / "small", 110) as disk:
        server = PostgresServer(disk.path / "postgres")
        await asyncio.to_thread(server.start)
        keeping = asyncio.create_task(_keep_running(server))
        yield server, disk
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await asyncio.to_thread(server.kill)


async def _keep_running(server: PostgresServer) -> None:
    while True:
        await asyncio.sleep(0.2)
        process = server.process
        if process is not None and process.poll() is not None:
            server.spawn()


async def test_a_full_disk_of_postgres_delays_the_tables_and_no_more(
    full_postgres: tuple[PostgresServer, SmallDisk],
) -> None:
    server, disk = full_postgres
    await prepare(server.url())
    store, happenings = MemoryEventStore(), Happenings(7)
    pool = await open_pool(server.url())
    projector = Projector(store, pool, Health("projector"), asyncio.Event())
    running = asyncio.create_task(projector.run())
    queries = Queries(server.url())
    try:
        await until(lambda: projector.health.serving, "a projector that serves")
        disk.fill()
        taken = 0
        for _ in range(60):
            for _ in range(400):
                happenings.step()
            feed(store, happenings.world.commits[taken:])
            taken = len(happenings.world.commits)
            await asyncio.sleep(0.1)
            if not projector.health.serving:
                break
        assert "is away" in projector.health.reason
        with contextlib.suppress(ProjectionsUnavailableError):  # the API answers 503, as while Postgres is down
            await queries.workloads(WorkloadQuery(projects=None))

        disk.empty()
        await reached(queries, taken)
        assert await verify(store, server.url(), quiet) == []
    finally:
        projector.stop.set()
        await asyncio.wait_for(running, 60)
        pool.terminate()
        await queries.close()


async def test_a_postgres_that_is_read_only_for_a_while_delays_the_tables_and_no_more(
    database: str, queries: Queries, running: Run
) -> None:
    name = database.rpartition("/")[2]
    store, happenings = MemoryEventStore(), Happenings(7)
    for _ in range(200):
        happenings.step()
    feed(store, happenings.world.commits[:50])
    await _set_read_only(database, name, "on")
    async with running(store) as projector:
        await until(lambda: "read-only" in projector.health.reason, "a projector that says what it waits for")
        feed(store, happenings.world.commits[50:])
        await _set_read_only(database, name, "off")
        await reached(queries, len(happenings.world.commits))
    assert await verify(store, database, quiet) == []


async def _set_read_only(database: str, name: str, value: str) -> None:
    connection = await asyncpg.connect(database, server_settings={"default_transaction_read_only": "off"})
    await connection.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = {value}')
    await connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1 AND pid <> pg_backend_pid()", name
    )
    await connection.close()
