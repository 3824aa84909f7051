"""An empty log, an empty FEED and an empty database for each test; the services are started by it."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from development.servers import NatsServer
from tests.support.subscribing import given_on
from tests.support.webhooks import Receiver, Scene, receiving, reply, scene_on


@pytest.fixture
async def scene(fresh_log: NatsServer, prepared_database: str, tmp_path: Path) -> AsyncGenerator[Scene]:
    async with given_on(fresh_log) as given, scene_on(given, prepared_database, tmp_path) as scene:
        yield scene


@pytest.fixture
async def receiver() -> AsyncGenerator[Receiver]:
    """`/ok` takes all, `/gone` nothing for ever, `/down` fails, `/hangs` never answers, `/slow` takes the third try."""
    async with receiving(
        gone=lambda _: reply(410),
        down=lambda _: reply(500, "out of order"),
        hangs=lambda _: None,
        slow=lambda number: reply(204) if number > 2 else reply(503, "busy"),
    ) as receiver:
        yield receiver
