"""An empty log and an empty FEED for each test, and the service on them."""

from collections.abc import AsyncGenerator

import pytest

from development.servers import NatsServer
from tests.support.subscribing import Given, given_on, serving


@pytest.fixture
async def given(fresh_log: NatsServer) -> AsyncGenerator[Given]:
    async with given_on(fresh_log) as scene:
        yield scene


@pytest.fixture
async def served(given: Given) -> AsyncGenerator[Given]:
    """With one instance of the service."""
    async with serving(given.server):
        yield given
