"""One running API for each module of tests of the contract."""

from collections.abc import Iterator

import pytest

from development.servers import NatsServer, PostgresServer
from tests.support.api import Served, serving


@pytest.fixture(scope="module")
def served(
    nats_server: NatsServer, postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    with serving(nats_server, postgres_server, tmp_path_factory.mktemp("api")) as running:
        yield running
