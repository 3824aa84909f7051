"""Budgets of a project: what a measurement makes of them, once, and what opens them again."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from events.aggregate import PROJECT
from events.budgets import (
    BudgetExhausted,
    BudgetRemoved,
    BudgetReopened,
    BudgetSet,
    BudgetWarned,
    NoteBudgetUse,
    RemoveBudget,
    SetBudget,
    exhausted_refusal,
    next_period,
)
from events.project import CreateProject, DeleteProject, Project
from events.refusal import REFUSALS, Refusal
from tests.events.given import NOW, context

JANUARY = datetime(2026, 1, 1, tzinfo=UTC)
FEBRUARY = datetime(2026, 2, 1, tzinfo=UTC)


class Given:
    """A project, and what is done to it."""

    def __init__(self) -> None:
        self.state: Project = PROJECT.initial
        self.now = NOW
        self.do(CreateProject(name="vision"))
        self.id = self.state.project_id

    def do(self, command: Any) -> tuple[Any, ...]:
        events = PROJECT.decide(command, self.state, context(now=self.now))
        assert not isinstance(events, Refusal), events
        self.state = PROJECT.after(self.state, events)
        return events

    def hours(self, limit: int, **more: Any) -> tuple[Any, ...]:
        return self.do(SetBudget(project_id=self.id, gpu_milli_hours=limit, **more))

    def used(self, used: int, *, period: datetime = JANUARY, in_money: bool = False) -> list[str]:
        """What is said after a measurement."""
        note = NoteBudgetUse(project_id=self.id, period=period, until=self.now, in_money=in_money, used=used)
        return [type(event).__name__ for event in self.do(note)]

    @property
    def refusal(self) -> Refusal | None:
        refusal = exhausted_refusal(self.state.budget, self.state.name, self.now)
        assert refusal is None or refusal.code in REFUSALS
        return refusal


@pytest.fixture
def given() -> Given:
    return Given()


def test_it_warns_once_and_is_exhausted_once(given: Given) -> None:
    given.hours(1000, warn_percent=80)
    said = [given.used(used) for used in (0, 799, 800, 900, 999, 1000, 1001, 5000)]
    assert said == [[], [], ["BudgetWarned"], [], [], ["BudgetExhausted"], [], []]


def test_what_goes_past_both_at_once_is_told_of_both(given: Given) -> None:
    given.hours(1000)
    assert given.used(2000) == ["BudgetWarned", "BudgetExhausted"]
    assert given.used(2000) == []


def test_what_was_measured_stands_in_the_events(given: Given) -> None:
    given.do(SetBudget(project_id=given.id, micros=7, currency="EUR"))
    note = NoteBudgetUse(project_id=given.id, period=JANUARY, until=NOW, in_money=True, used=8)
    assert given.do(note) == (
        BudgetWarned(period=JANUARY, used=8, limit=7, at=NOW),
        BudgetExhausted(period=JANUARY, used=8, limit=7, at=NOW),
    )


def test_it_refuses_while_it_is_exhausted_and_says_what_would_do(given: Given) -> None:
    given.do(SetBudget(project_id=given.id, micros=5_000_000_000, currency="EUR"))
    assert given.refusal is None
    given.used(5_012_500_000, in_money=True)
    refusal = given.refusal
    assert refusal is not None
    assert refusal.code == "budget_exhausted"
    for said in ("'vision'", "5012.50 EUR", "5000.00 EUR", "2026-01", "2026-02-01T00:00:00Z", "muster budget set"):
        assert said in refusal.message
    assert refusal.retry_seconds == (FEBRUARY - NOW).total_seconds()


def test_gpu_hours_are_told_as_such(given: Given) -> None:
    given.hours(1500)
    given.used(2000)
    assert given.refusal is not None
    assert "2 GPU hours of its 1.50 GPU hours" in given.refusal.message


def test_a_new_month_opens_it_also_where_nobody_measures(given: Given) -> None:
    given.hours(1000)
    given.used(1000)
    given.now = FEBRUARY - timedelta(microseconds=1)
    assert given.refusal is not None
    given.now = FEBRUARY
    assert given.refusal is None
    assert given.used(10, period=FEBRUARY) == ["BudgetReopened"]
    assert given.used(10, period=FEBRUARY) == []
    assert given.used(1000, period=FEBRUARY) == ["BudgetWarned", "BudgetExhausted"]
    assert given.refusal is not None


def test_who_was_only_warned_is_warned_again_in_the_next_month(given: Given) -> None:
    given.hours(1000)
    assert given.used(900) == ["BudgetWarned"]
    given.now = FEBRUARY
    assert given.used(0, period=FEBRUARY) == []
    assert given.used(900, period=FEBRUARY) == ["BudgetWarned"]


def test_a_month_that_begins_exhausted_says_all_of_it(given: Given) -> None:
    given.hours(1000)
    given.used(1000)
    given.now = FEBRUARY
    assert given.used(1000, period=FEBRUARY) == ["BudgetReopened", "BudgetWarned", "BudgetExhausted"]


def test_raising_it_opens_it_at_once(given: Given) -> None:
    given.hours(1000)
    given.used(1000)
    (was_set, reopened) = given.hours(1500)
    assert isinstance(was_set, BudgetSet)
    assert reopened == BudgetReopened(period=JANUARY, used=1000, limit=1500, reason="changed", at=NOW)
    assert given.refusal is None
    assert given.used(1200) == ["BudgetWarned"], "of the larger budget it was not warned yet"
    assert given.used(1600) == ["BudgetExhausted"]


def test_one_that_is_raised_too_little_stays_exhausted(given: Given) -> None:
    given.hours(1000)
    given.used(1000)
    assert [type(event) for event in given.hours(1000, warn_percent=50)] == [BudgetSet]
    given.used(1200)
    assert given.refusal is not None
    assert given.used(1300) == []


def test_lowering_it_is_noticed_with_the_next_measurement(given: Given) -> None:
    given.hours(1000)
    given.used(500)
    given.hours(400)
    assert given.refusal is None
    assert given.used(500) == ["BudgetWarned", "BudgetExhausted"]


def test_another_kind_of_budget_begins_anew(given: Given) -> None:
    given.hours(1000)
    given.used(1000)
    events = given.do(SetBudget(project_id=given.id, micros=1, currency="EUR"))
    assert [type(event) for event in events] == [BudgetSet, BudgetReopened]
    assert given.used(1000) == [], "that was measured for the budget before"
    assert given.used(1, in_money=True) == ["BudgetWarned", "BudgetExhausted"]


def test_nothing_at_all_may_be_used(given: Given) -> None:
    given.hours(0)
    assert given.used(0) == ["BudgetWarned", "BudgetExhausted"]


def test_less_than_before_opens_it(given: Given) -> None:
    given.hours(1000)
    given.used(1000)
    assert given.used(900) == ["BudgetReopened"]
    assert given.refusal is None


def test_one_who_measured_long_ago_and_stood_still_opens_nothing(given: Given) -> None:
    """Given a measurement from before it was exhausted, which arrives when another one has exhausted it."""
    given.hours(1000)
    given.now = NOW + timedelta(hours=1)
    given.used(1000)
    note = NoteBudgetUse(project_id=given.id, period=JANUARY, until=NOW, in_money=False, used=900)
    assert given.do(note) == ()
    assert given.refusal is not None


def test_the_same_budget_again_changes_nothing(given: Given) -> None:
    given.hours(1000)
    given.used(1000)
    assert given.hours(1000) == ()


def test_without_a_budget_nothing_is_refused_and_nothing_measured(given: Given) -> None:
    assert given.used(10**9) == []
    given.hours(1)
    given.used(1)
    reopened = BudgetReopened(period=JANUARY, used=1, limit=1, reason="changed", at=NOW)
    assert given.do(RemoveBudget(project_id=given.id)) == (reopened, BudgetRemoved(at=NOW))
    assert given.refusal is None
    refused = PROJECT.decide(RemoveBudget(project_id=given.id), given.state, context())
    assert isinstance(refused, Refusal)
    assert refused.code == "not_found"


def test_it_ends_with_its_project(given: Given) -> None:
    given.hours(1)
    given.do(DeleteProject(project_id=given.id))
    given.do(CreateProject(name="vision"))
    assert given.state.budget is None


@pytest.mark.parametrize(
    ("period", "until"),
    [
        (datetime(2025, 12, 1, tzinfo=UTC), NOW),
        (FEBRUARY, NOW),
        (JANUARY, NOW + timedelta(minutes=2)),
    ],
)
def test_what_a_wrong_clock_measured_says_nothing(given: Given, period: datetime, until: datetime) -> None:
    given.hours(1000)
    note = NoteBudgetUse(project_id=given.id, period=period, until=until, in_money=False, used=10**9)
    assert given.do(note) == ()


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"gpu_milli_hours": 1, "micros": 1, "currency": "EUR"},
        {"gpu_milli_hours": -1},
        {"gpu_milli_hours": 10**18},
        {"gpu_milli_hours": 1, "currency": "EUR"},
        {"micros": 1},
        {"micros": -1, "currency": "EUR"},
        {"gpu_milli_hours": 1, "warn_percent": 0},
        {"gpu_milli_hours": 1, "warn_percent": 101},
    ],
)
def test_a_budget_that_cannot_be_is_none(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"no |in GPU hours or in money"):
        SetBudget(project_id="p", **fields)


def test_months_follow_each_other() -> None:
    assert next_period(datetime(2026, 12, 1, tzinfo=UTC)) == datetime(2027, 1, 1, tzinfo=UTC)
    assert next_period(JANUARY) == FEBRUARY
