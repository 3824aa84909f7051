"""One running API for each module of tests of the api."""

from collections.abc import Iterator

import pytest

from development.servers import NatsServer, PostgresServer
from tests.support.api import Served, credential_keys, serving, webhook_key


@pytest.fixture(scope="module")
def served(
    nats_server: NatsServer, postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("api")
    with serving(
        nats_server, postgres_server, folder, webhook_key_file=webhook_key(folder), **credential_keys(folder)
    ) as running:
        yield running
