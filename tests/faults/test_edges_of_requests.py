"""Requests at and beyond the edge of every field of the served OpenAPI document: a hundred for each operation.

`--short` asks for one operation in four, another four for each seed; `make test` asks for all, with fewer requests.
"""

import random
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from schemathesis.core.result import Ok
from schemathesis.schemas import BaseSchema

from development.servers import NatsServer, PostgresServer
from tests.support.api import Served, serving
from tests.support.described import ask, described, drawn

pytestmark = pytest.mark.faults

EXAMPLES = 20
"""Per operation, beside those at the edges."""
SHORT_SHARE = 4
"""One operation in so many."""


@pytest.fixture
def served(
    nats_server: NatsServer, postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    with serving(nats_server, postgres_server, tmp_path_factory.mktemp("api")) as running:
        yield running


@pytest.fixture
def document(request: pytest.FixtureRequest, chance: random.Random) -> BaseSchema:
    whole = described(edges=True)
    if not request.config.option.short:
        return whole
    labels = sorted(found.ok().label for found in whole.get_all_operations() if isinstance(found, Ok))
    return whole.include(name=chance.sample(labels, len(labels) // SHORT_SHARE))


@schemathesis.pytest.from_fixture("document").parametrize()
@drawn(EXAMPLES)
def test_no_request_at_an_edge_breaks_an_operation_or_is_answered_otherwise_than_described(
    case: Any, served: Served
) -> None:
    ask(case, served)
