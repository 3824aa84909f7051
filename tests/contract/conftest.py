"""One running API for each module of tests of the contract, and one copy of the program with what is added to it."""

from collections.abc import Iterator, Mapping

import pytest

from development.servers import NatsServer, PostgresServer
from tests.support.api import Served, credential_keys, serving, webhook_key
from tests.support.edited_copy import see


@pytest.fixture(scope="module")
def served(
    nats_server: NatsServer, postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("api")
    with serving(
        nats_server, postgres_server, folder, webhook_key_file=webhook_key(folder), **credential_keys(folder)
    ) as running:
        yield running


@pytest.fixture(scope="session")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """What is wrong with each change, in one copy of the program that has them all."""
    from tests.contract.test_one_line_field import OF_THE_POD, OF_THE_SCHEDULER
    from tests.contract.test_two_edit_event import AN_EVENT

    changes = {"a field of the pod": OF_THE_POD, "a field of the scheduler": OF_THE_SCHEDULER, "an event": AN_EVENT}
    return see(tmp_path_factory.mktemp("edited"), changes)
