"""Prices: which holds when, what may change of the past, and that there is one currency."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from events.aggregate import PRICES
from events.money import amount_text, micros_of, rounded
from events.prices import ANY_MODEL, EARLIEST, MAX_PRICES, Prices, PriceSet, RemovePrice, SetPrice
from events.refusal import REFUSALS, Refusal
from tests.events.given import NOW, context

HOUR = timedelta(hours=1)
H100, A100 = "H100", "A100"


class Given:
    """An installation without prices, at half past twelve."""

    def __init__(self) -> None:
        self.state: Prices = PRICES.initial
        self.now = NOW + timedelta(minutes=30)

    def do(self, command: Any) -> tuple[Any, ...]:
        events = PRICES.decide(command, self.state, context(now=self.now))
        assert not isinstance(events, Refusal), events
        self.state = PRICES.after(self.state, events)
        return events

    def refusal(self, command: Any) -> Refusal:
        refused = PRICES.decide(command, self.state, context(now=self.now))
        assert isinstance(refused, Refusal), refused
        assert refused.code in REFUSALS
        return refused

    def set(self, model: str, micros: int, holds_from: datetime | None = None, currency: str = "EUR") -> Any:
        return self.do(SetPrice(gpu_model=model, micros=micros, currency=currency, holds_from=holds_from))


@pytest.fixture
def given() -> Given:
    return Given()


def test_a_first_price_holds_from_this_hour_on_and_the_next_one_from_the_next(given: Given) -> None:
    assert given.set(H100, 5) == (PriceSet(gpu_model=H100, holds_from=NOW, currency="EUR", micros=5),)
    assert given.set(H100, 6) == (PriceSet(gpu_model=H100, holds_from=NOW + HOUR, currency="EUR", micros=6),)
    assert [given.state.at(H100, NOW + after) for after in (-HOUR, 0 * HOUR, HOUR)] == [None, 5, 6]


def test_the_same_price_again_changes_nothing(given: Given) -> None:
    given.set(H100, 5)
    assert given.set(H100, 5) == ()


def test_a_model_without_a_price_has_that_of_all_others(given: Given) -> None:
    given.set(ANY_MODEL, 2)
    given.set(H100, 5, NOW + HOUR)
    assert [given.state.at(model, NOW + HOUR) for model in (H100, A100, "")] == [5, 2, 2]
    assert given.state.at(H100, NOW) == 2


def test_what_had_no_price_may_get_one_for_the_past(given: Given) -> None:
    long_ago = NOW - 1000 * HOUR
    given.set(H100, 5, long_ago)
    assert given.state.at(H100, long_ago) == 5
    assert given.set(A100, 1, EARLIEST)


@pytest.mark.parametrize("of_all", [False, True])
def test_what_past_hours_cost_never_changes(given: Given, *, of_all: bool) -> None:
    given.set(ANY_MODEL if of_all else H100, 5, NOW - 10 * HOUR)
    for holds_from in (NOW - 20 * HOUR, NOW - HOUR, NOW):
        refused = given.refusal(SetPrice(gpu_model=H100, micros=1, currency="EUR", holds_from=holds_from))
        assert refused.code == "price_in_past"
        assert "2026-01-01T13:00:00Z" in refused.message, "it says from when on it can hold"
        assert given.refusal(RemovePrice(gpu_model=H100, holds_from=holds_from)).code == "price_in_past"


def test_past_hours_after_a_price_that_ended_may_get_one(given: Given) -> None:
    given.set(H100, 5, NOW - 10 * HOUR)
    given.do(RemovePrice(gpu_model=H100))
    given.now += 10 * HOUR
    refused = given.refusal(SetPrice(gpu_model=H100, micros=1, currency="EUR", holds_from=NOW))
    assert (refused.code, "2026-01-01T13:00:00Z" in refused.message) == ("price_in_past", True)
    given.set(H100, 1, NOW + HOUR)
    assert [given.state.at(H100, NOW + hours * HOUR) for hours in (0, 1, 5)] == [5, 1, 1]


def test_without_its_own_price_a_model_has_that_of_all_others_again(given: Given) -> None:
    given.set(ANY_MODEL, 2)
    given.set(H100, 5, NOW + HOUR)
    given.set(H100, 6, NOW + 5 * HOUR)
    given.do(RemovePrice(gpu_model=H100, holds_from=NOW + 2 * HOUR))
    assert [given.state.at(H100, NOW + hours * HOUR) for hours in (0, 1, 2, 9)] == [2, 5, 2, 2]
    assert given.refusal(RemovePrice(gpu_model=H100, holds_from=NOW + 3 * HOUR)).code == "not_found"
    assert given.refusal(RemovePrice(gpu_model=A100)).code == "not_found"


def test_a_price_that_was_set_ahead_can_be_taken_back(given: Given) -> None:
    given.set(H100, 6, NOW + 5 * HOUR)
    given.do(RemovePrice(gpu_model=H100))
    assert given.state.models == {}


def test_there_is_one_currency(given: Given) -> None:
    given.set(H100, 5)
    refused = given.refusal(SetPrice(gpu_model=A100, micros=5, currency="USD"))
    assert (refused.code, refused.field) == ("other_currency", "currency")


def test_a_price_holds_from_this_century_on_and_within_ten_years(given: Given) -> None:
    for holds_from in (NOW + timedelta(days=4000), EARLIEST - HOUR):
        far = SetPrice(gpu_model=H100, micros=5, currency="EUR", holds_from=holds_from)
        assert (given.refusal(far).code, given.refusal(far).field) == ("invalid", "holdsFrom")


def test_there_is_a_limit_of_prices(given: Given) -> None:
    for number in range(MAX_PRICES):
        given.state = PRICES.evolve(
            given.state, PriceSet(gpu_model=f"m{number % 7}", holds_from=NOW + number * HOUR, currency="EUR", micros=1)
        )
    assert given.refusal(SetPrice(gpu_model=H100, micros=5, currency="EUR")).code == "too_many_prices"
    kept = SetPrice(gpu_model="m1", micros=5, currency="EUR", holds_from=NOW + HOUR)
    assert given.do(kept), "what stands in the place of another one is none more"


@pytest.mark.parametrize(
    "fields",
    [
        {"gpu_model": ""},
        {"gpu_model": " H100"},
        {"gpu_model": "H\n100"},
        {"currency": "eur"},
        {"currency": ""},
        {"micros": -1},
        {"micros": 10**18},
        {"holds_from": NOW + timedelta(minutes=1)},
        {"holds_from": NOW.replace(tzinfo=None)},
        {"holds_from": datetime(9999, 12, 31, 23, tzinfo=timezone(-HOUR))},
    ],
)
def test_a_command_that_cannot_be_is_none(fields: dict[str, Any]) -> None:
    given: dict[str, Any] = {"gpu_model": H100, "currency": "EUR", "micros": 1}
    with pytest.raises(ValueError, match="no "):
        SetPrice(**given | fields)


@pytest.mark.parametrize(
    ("text", "micros", "told"),
    [
        ("0", 0, "0.00"),
        ("2.5", 2_500_000, "2.50"),
        ("0.000125", 125, "0.000125"),
        ("1000000000", 10**15, "1000000000.00"),
    ],
)
def test_amounts_are_decimals(text: str, micros: int, told: str) -> None:
    assert micros_of(text) == micros
    assert amount_text(micros) == told
    assert micros_of(told) == micros


@pytest.mark.parametrize("text", ["", "-1", "1.", ".5", "1e3", "01", "1.0000001", "1000000000.000001", "NaN", "1,5"])
def test_what_is_no_amount(text: str) -> None:
    assert micros_of(text) is None


def test_halves_are_rounded_to_the_even_one() -> None:
    assert [rounded(half, 2) for half in (1, 3, 5, -1, -3)] == [0, 2, 2, 0, -2]
    assert [rounded(third, 3) for third in (1, 2, -1, -2)] == [0, 1, 0, -1]


def test_a_moment_without_prices_has_none() -> None:
    assert Prices().at(H100, datetime(2026, 1, 1, tzinfo=UTC)) is None
