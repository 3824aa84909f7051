"""Requests at and beyond the edge of every field of the served OpenAPI document: a hundred for each operation.

`--short` asks of one operation in nine, others for each seed. `make test` asks of all, with fewer requests.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from development.servers import NatsServer, PostgresServer
from tests.support.api import Served, serving
from tests.support.described import ask, described, drawn

pytestmark = pytest.mark.faults

EXAMPLES = 20
"""Per operation, beside those at the edges."""


@pytest.fixture(scope="module")
def served(
    nats_server: NatsServer, postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    with serving(nats_server, postgres_server, tmp_path_factory.mktemp("api")) as running:
        yield running


@described(edges=True, one_in=9).parametrize()
@drawn(EXAMPLES)
def test_no_request_at_an_edge_breaks_an_operation_or_is_answered_otherwise_than_described(
    case: Any, served: Served
) -> None:
    ask(case, served)
