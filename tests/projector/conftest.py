"""A prepared database, and a projector that runs beside the test."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from projections.postgres import Pool
from projections.queries import Queries
from services.projector.engine import open_pool
from services.projector.service import Projector
from services.runtime.log.store import EventStore
from services.runtime.process.host import Health

Run = Callable[[EventStore], AbstractAsyncContextManager[Projector]]


@pytest.fixture
def database(prepared_database: str) -> str:
    return prepared_database


@pytest.fixture
async def pool(database: str) -> AsyncIterator[Pool]:
    pool = await open_pool(database)
    yield pool
    pool.terminate()


@pytest.fixture
async def queries(database: str) -> AsyncIterator[Queries]:
    queries = Queries(database).within(None)
    yield queries
    await queries.close()


@pytest.fixture
def running(database: str) -> Run:
    """`async with running(store) as projector`: ended, with its connections, at the end."""

    @asynccontextmanager
    async def run(store: EventStore) -> AsyncGenerator[Projector]:
        pool = await open_pool(database)
        projector = Projector(store, pool, Health("projector"), asyncio.Event())
        task = asyncio.create_task(projector.run())
        try:
            yield projector
        finally:
            projector.stop.set()
            try:
                await asyncio.wait_for(task, 60)
            finally:
                pool.terminate()

    return run
