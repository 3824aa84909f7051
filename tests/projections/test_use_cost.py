"""What hours cost: the sum of a plain loop over hours and prices, however the span is cut."""

from bisect import bisect_right
from datetime import UTC, datetime, timedelta
from typing import Any

import hypothesis.strategies as st
from hypothesis import given

from events.prices import ANY_MODEL, PriceRemoved, Prices, PriceSet, evolve
from projections.hours.changes import EPOCH, MICROSECOND
from projections.use_hours import MILLI_MICROS_PER_HOUR, Amount, By, HoursQuery, amounts

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
HOURS = 20
MODELS = ("H100", "A100", "")

_CHANGES = st.lists(
    st.tuples(st.sampled_from((*MODELS, ANY_MODEL)), st.integers(-5, HOURS + 5), st.none() | st.integers(0, 10**7)),
    max_size=8,
)


def prices_of(changes: list[tuple[str, int, int | None]]) -> Prices:
    """In the order of time, as they are set."""
    prices = Prices()
    for model, hour, micros in sorted(changes, key=lambda change: change[1]):
        holds_from = BEGIN + hour * HOUR
        if micros is None:
            prices = evolve(prices, PriceRemoved(gpu_model=model, holds_from=holds_from))
        else:
            prices = evolve(prices, PriceSet(gpu_model=model, holds_from=holds_from, currency="EUR", micros=micros))
    return prices


def summed(prices: Prices, borders: tuple[datetime, ...], rates: dict[str, int]) -> Amount:
    """Of models of which so many thousandths of a GPU are reserved all the time."""
    query = HoursQuery(by=By.PROJECT, borders=borders, prices=prices, projects=None)
    rows: list[Any] = [{"k0": "p", "model": model, "milli": milli, "waiting": 0} for model, milli in rates.items()]
    found = amounts(query, [], rows)
    total = Amount()
    for amount in found.values():
        total.add(amount)
    return total


@given(
    changes=_CHANGES,
    cuts=st.sets(st.integers(1, HOURS - 1), max_size=5),
    rates=st.dictionaries(st.sampled_from(MODELS), st.integers(1, 16_000), min_size=1),
)
def test_costs_are_those_of_each_hour_however_the_span_is_cut(
    changes: list[tuple[str, int, int | None]], cuts: set[int], rates: dict[str, int]
) -> None:
    prices = prices_of(changes)
    borders = tuple(BEGIN + hour * HOUR for hour in sorted({0, HOURS, *cuts}))
    found = summed(prices, borders, rates)
    cost = unpriced = 0
    for hour in range(HOURS):
        for model, milli in rates.items():
            micros = prices.at(model, BEGIN + hour * HOUR)
            cost += milli * (micros or 0)
            unpriced += milli if micros is None else 0
    assert found.cost * 1000 == cost * MILLI_MICROS_PER_HOUR
    assert found.unpriced * 1000 == unpriced * MILLI_MICROS_PER_HOUR
    assert found.reserved * 1000 == HOURS * sum(rates.values()) * MILLI_MICROS_PER_HOUR


def test_a_part_of_an_hour_costs_its_part() -> None:
    prices = prices_of([(ANY_MODEL, 0, 3_000_000)])
    assert summed(prices, (BEGIN, BEGIN + HOUR / 4), {"": 500}).cost_micros == 375_000
    assert summed(prices, (BEGIN, BEGIN + timedelta(microseconds=1)), {"": 1}).cost_micros == 0


@given(
    changes=_CHANGES,
    cuts=st.sets(st.integers(1, HOURS - 1), max_size=5),
    begun=st.lists(
        st.tuples(st.sampled_from(MODELS), st.integers(0, 60 * HOURS - 1), st.integers(0, 60 * HOURS + 90)), max_size=6
    ),
)
def test_what_begins_and_ends_within_the_hours_costs_its_minutes(
    changes: list[tuple[str, int, int | None]], cuts: set[int], begun: list[tuple[str, int, int]]
) -> None:
    prices = prices_of(changes)
    borders = tuple(BEGIN + hour * HOUR for hour in sorted({0, HOURS, *cuts}))
    query = HoursQuery(by=By.PROJECT, borders=borders, prices=prices, projects=None)
    changed: dict[tuple[int, str], dict[str, Any]] = {}
    cost: dict[tuple[int, str], int] = {}
    for model, begin, length in begun:
        for minute, milli in ((begin, 1000), (begin + length, -1000)):
            moment = BEGIN + minute * MINUTE
            span = bisect_right(query.cuts, moment) - 1
            row = changed.setdefault(
                (span, model),
                {
                    "k0": "p",
                    "model": model,
                    "span": span,
                    "waiting": 0,
                    "waiting_moment": 0,
                    "runs": 0,
                    "measured": 0,
                    "used": 0,
                },
            )
            row["milli"] = row.get("milli", 0) + milli
            row["milli_moment"] = row.get("milli_moment", 0) + milli * ((moment - EPOCH) // MICROSECOND)
        for minute in range(begin, min(begin + length, 60 * HOURS)):
            key = bisect_right(borders, BEGIN + minute * MINUTE) - 1, model
            cost[key] = cost.get(key, 0) + (prices.at(model, BEGIN + minute * MINUTE) or 0)
    found = amounts(query, changed.values(), [])
    assert {(period, model): one.cost for (_, period, model), one in found.items() if one.cost} == {
        key: 1000 * micros * (MINUTE // MICROSECOND) for key, micros in cost.items() if micros
    }


def test_a_thousand_changes_of_prices_make_no_more_sums() -> None:
    """They took seconds of the api's only thread, and a few hundred MB, once for each user."""
    models = [f"model-{number}" for number in range(10)]
    prices = prices_of([(model, hour, hour) for model in models for hour in range(100)])
    query = HoursQuery(by=By.USER, borders=(BEGIN, BEGIN + 100 * HOUR), prices=prices, projects=None)
    rows: list[Any] = [
        {"k0": f"user-{user}", "model": model, "milli": 1000, "waiting": 0} for user in range(3) for model in models
    ]
    found = amounts(query, [], rows)
    assert len(found) == len(rows)
    assert {one.cost_micros for one in found.values()} == {sum(range(100))}
