"""Any events that can be decoded, in any order: no fold raises, the rows are what the aggregates' fold says, and
Postgres can hold them. What the rows cannot follow is seen so by those who judge messages, and is void from then on.
"""

from collections.abc import Mapping
from datetime import UTC
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from sqlalchemy import ARRAY, BigInteger, DateTime, Text

from projections.tables import SUMS, derived
from tests.support.any_events import Readers, commits
from tests.support.draws import draws
from tests.support.tables import Tables, differences

MAX_BIGINT = 2**63
SATURATES = 2**62


@pytest.mark.filterwarnings("ignore:Generating overly large repr")
@settings(
    max_examples=draws(40),
    deadline=None,
    phases=(Phase.generate,),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(log=st.lists(commits(), min_size=8, max_size=24))
def test_no_event_in_any_order_stops_a_reader(log: list[Any]) -> None:
    readers = Readers()
    for drawn in log:
        commit = readers.commit(*drawn)
        if commit is not None:
            readers.take(commit)
    readers.look()
    assert_postgres_can_hold(readers.tables)
    expected, actual = readers.expected.tables(), readers.tables.plain()
    if any(abs(number) >= SATURATES for table in SUMS for row in expected[table].values() for number in ints(row)):
        # Sums over workloads stop at the largest number, and do not come down from there by what is taken away.
        for table in SUMS:
            expected[table], actual[table] = {}, {}
    assert differences(expected, actual) == []


def ints(row: Mapping[str, Any]) -> list[int]:
    return [value for value in row.values() if isinstance(value, int)]


def assert_postgres_can_hold(tables: Tables) -> None:
    for name, rows in tables.rows.items():
        for row in rows.values():
            for column in derived.tables[f"projection.{name}"].columns:
                value = getattr(row, column.name)
                for one in value if isinstance(column.type, ARRAY) else (value,):
                    match one:
                        case None:
                            assert column.nullable, (name, column.name)
                        case bool():
                            pass
                        case int():
                            assert isinstance(column.type, BigInteger | ARRAY), (name, column.name)
                            assert -MAX_BIGINT <= one < MAX_BIGINT, (name, column.name, one)
                        case str():
                            assert "\x00" not in one, (name, column.name)
                        case _:
                            assert isinstance(column.type, DateTime), (name, column.name, one)
                            one.astimezone(UTC)
                if isinstance(column.type, Text):
                    assert isinstance(value, str)
