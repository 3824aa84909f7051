"""A log to back up, and a server to restore into."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from nats.aio.client import Client

from development.servers import EVERYTHING, NatsServer
from services.runtime.backup import seal
from services.runtime.nats.connection import connect

CHEAP_N = 2**10


@pytest.fixture(autouse=True)
def _cheap_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """To make a key takes half a second of a processor on purpose, and most tests make two or three."""
    monkeypatch.setattr(seal, "SCRYPT_N", CHEAP_N)


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
