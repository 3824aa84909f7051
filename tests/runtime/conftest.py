"""What tests of the runtime begin with."""

from collections.abc import AsyncIterator

import pytest
from nats.aio.client import Client

from development.servers import EVERYTHING, NatsServer
from services.runtime.nats.connection import connect


@pytest.fixture
async def client(fresh_log: NatsServer) -> AsyncIterator[Client]:
    made = await connect(fresh_log.settings(EVERYTHING), EVERYTHING)
    yield made
    await made.close()
