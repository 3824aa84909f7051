"""The path of a command, from a client like the api's to the log, for tests on a real server."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from development.commands import CommandPath, command_path, furnish
from development.servers import NatsServer


@pytest.fixture
async def path(fresh_log: NatsServer, tmp_path: Path) -> AsyncIterator[CommandPath]:
    async with command_path(fresh_log, tmp_path, services=()) as made:
        yield made


@pytest.fixture
async def place(path: CommandPath) -> tuple[str, str]:
    """A project with people and a cluster: their ids. The services run."""
    return await furnish(path)
