"""Requests made from the served OpenAPI document, six for every operation; tests/faults asks at the edges of fields."""

from typing import Any

from tests.support.api import Served
from tests.support.described import ask, described, drawn

EXAMPLES = 6
"""Per operation, so that `make test` stays short."""


@described(edges=False).parametrize()
@drawn(EXAMPLES)
def test_no_request_breaks_an_operation_or_is_answered_otherwise_than_described(case: Any, served: Served) -> None:
    ask(case, served)
