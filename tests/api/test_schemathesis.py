"""Requests made from the served OpenAPI document, two per operation, of a third of the operations, others in each run.
tests/faults draws more of all of them, and asks at the edges.
"""

import random
from collections.abc import Sequence
from itertools import batched
from typing import Any, Final

import pytest

from tests.support.api import Served
from tests.support.operations import OPERATION_IDS

EXAMPLES = 2
"""Per operation, so that `make test` stays short."""
TOGETHER = 6
"""Operations in one test."""
ONE_IN: Final = 3


@pytest.mark.parametrize(
    "of", tuple(batched(OPERATION_IDS, TOGETHER)), ids=lambda of: f"{of[0]} and {len(of) - 1} more"
)
def test_no_request_breaks_an_operation_or_is_answered_otherwise_than_described(
    of: Sequence[str], served: Served, subtests: pytest.Subtests, chance: random.Random
) -> None:
    from tests.support.described import ask, drawn, made_for  # what it imports takes a second in each process

    @drawn(EXAMPLES)
    def asked(case: Any) -> None:
        ask(case, served)

    for name, test in made_for(chance.sample(of, max(1, len(of) // ONE_IN)), asked):
        with subtests.test(name):
            test()
