"""The tables of the small world, once for all tests that only read them."""

import asyncio
import secrets

import pytest

from development.servers import PostgresServer
from tests.projections.small_world import fill

READER = f"reader_{secrets.token_hex(4)}"


@pytest.fixture(scope="session")
def database(postgres_server: PostgresServer) -> str:
    """Its URL, as the owner."""
    name = f"filters_{secrets.token_hex(4)}"
    asyncio.run(fill(postgres_server, name, as_reader(postgres_server.url(name))))
    return postgres_server.url(name)


@pytest.fixture(scope="session")
def reader_database(database: str) -> str:
    """Its URL, as the api's role."""
    return as_reader(database)


def as_reader(url: str) -> str:
    return f"postgresql://{READER}:it's%20a%20secret@{url.rpartition('@')[2]}"
