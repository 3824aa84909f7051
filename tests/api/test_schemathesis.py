"""Requests made from the served OpenAPI document, two per operation; tests/faults draws more and asks at the edges."""

from collections.abc import Sequence
from itertools import batched
from typing import Any

import pytest

from tests.support.api import Served
from tests.support.described import OPERATION_IDS, ask, drawn, made_for

EXAMPLES = 2
"""Per operation, so that `make test` stays short."""
TOGETHER = 6
"""Operations in one test."""


@pytest.mark.parametrize(
    "of", tuple(batched(OPERATION_IDS, TOGETHER)), ids=lambda of: f"{of[0]} and {len(of) - 1} more"
)
def test_no_request_breaks_an_operation_or_is_answered_otherwise_than_described(
    of: Sequence[str], served: Served, subtests: pytest.Subtests
) -> None:
    @drawn(EXAMPLES)
    def asked(case: Any) -> None:
        ask(case, served)

    for name, test in made_for(of, asked):
        with subtests.test(name):
            test()
