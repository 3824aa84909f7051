"""Values that Postgres can hold, whatever stands in the log."""

import pytest

from projections.values import fit


@pytest.mark.parametrize("number", [0, -1, 2**63 - 1, 2**63, 2**80, -(2**63), -(2**80)])
def test_any_number_becomes_one_that_a_bigint_holds(number: int) -> None:
    assert -(2**63) <= fit(number) < 2**63
    assert fit(number) == number or abs(number) > 2**62
