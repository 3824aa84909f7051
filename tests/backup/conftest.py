"""A log to back up, and a server to restore into."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from nats.aio.client import Client

from development.servers import EVERYTHING, NatsServer
from services.runtime.nats.connection import connect


@pytest.fixture
async def client(fresh_log: NatsServer) -> AsyncIterator[Client]:
    made = await connect(fresh_log.settings(EVERYTHING), EVERYTHING)
    yield made
    await made.close()


@pytest.fixture
def empty(server_folder: Path, request: pytest.FixtureRequest) -> Iterator[NatsServer]:
    """A server without any stream."""
    server = NatsServer(server_folder / f"empty-{abs(hash(request.node.name))}")
    server.start()
    yield server
    server.stop()
