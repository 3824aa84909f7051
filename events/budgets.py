"""Budgets: what a project may reserve in a month, in GPU hours or in money.

A part of the project aggregate. What was used is measured outside of the log and told to it as a command; what follows
from it is decided here. A project whose budget is exhausted gets nothing new until the month is over (UTC), or the
budget is raised. What runs or waits then goes on.
"""

from datetime import MAXYEAR, UTC, datetime, timedelta
from typing import Final, Literal, assert_never

import msgspec
from msgspec.structs import replace

from events.decision import Context, Decision
from events.event import Event
from events.money import CURRENCY_PATTERN, MICROS, MOST_AMOUNT, amount_text
from events.refusal import Refusal

Per = Literal["month"]
"""A month of UTC."""
ReopenedBecause = Literal["new_period", "changed", "measured_again"]
"""`changed`: the budget was raised or removed, or is of another kind now. `measured_again`: less was used
than was told before.
"""
MOST_GPU_HOURS: Final = 1_000_000_000
MILLI: Final = 1_000
WARN_PERCENT: Final = 80
CLOCKS_DIFFER: Final = timedelta(minutes=1)
"""Between services. What was measured further ahead is not believed."""

BELIEVED: Final = timedelta(minutes=5)
"""How old a measurement may be that opens what is exhausted. One takes two minutes at most; one that stood still since
then knows less than what exhausted it.
"""

# -- events ----------------------------------------------------------------------------------------------------------


class _Event(Event, frozen=True, kw_only=True):
    at: datetime
    """When it was decided."""


class BudgetSet(_Event, frozen=True, kw_only=True):
    """The project has this budget from now on. It is in GPU hours or in money."""

    per: Per
    """The period for which it holds."""
    gpu_milli_hours: int | None = None
    """Thousandths of GPU hours that may be reserved in a period."""
    micros: int | None = None
    """What they may cost, in millionths of the currency."""
    currency: str = ""
    """Of the money; empty for GPU hours."""
    warn_percent: int = WARN_PERCENT
    """Share of it from which on the project is warned."""


class BudgetRemoved(_Event, frozen=True, kw_only=True):
    """The project has no budget any more."""


class _Measured(_Event, frozen=True, kw_only=True):
    period: datetime
    """When the period begins."""
    used: int
    """What was used in it: thousandths of GPU hours, or millionths of the currency."""
    limit: int
    """What may be used, likewise."""


class BudgetWarned(_Measured, frozen=True, kw_only=True):
    """So much of the budget is used that the project is warned: once in a period."""


class BudgetExhausted(_Measured, frozen=True, kw_only=True):
    """The budget is used up: nothing new is taken until the period is over."""


class BudgetReopened(_Measured, frozen=True, kw_only=True):
    """An exhausted budget is open again."""

    reason: ReopenedBecause
    """Why."""


BudgetEvent = BudgetSet | BudgetRemoved | BudgetWarned | BudgetExhausted | BudgetReopened

# -- state -----------------------------------------------------------------------------------------------------------


class Budget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    per: Per = "month"
    gpu_milli_hours: int | None = None
    """None: it is in money."""
    micros: int | None = None
    currency: str = ""
    warn_percent: int = WARN_PERCENT
    period: datetime | None = None
    """Of the last measurement that changed anything; what follows is of it."""
    used: int = 0
    warned: bool = False
    exhausted: bool = False

    @property
    def limit(self) -> int:
        """Thousandths of GPU hours, or millionths of the currency."""
        return (self.gpu_milli_hours if self.micros is None else self.micros) or 0

    def told(self, amount: int) -> str:
        """For people: `12.5 GPU hours`, `12.50 EUR`."""
        if self.micros is not None:
            return f"{amount_text(amount)} {self.currency}"
        return f"{amount_text(amount * MILLI).removesuffix('.00')} GPU hours"

    def warns_at(self, used: int) -> bool:
        return used * 100 >= self.limit * self.warn_percent

    def stops_at(self, used: int) -> bool:
        return used >= self.limit

    def is_exhausted(self, now: datetime) -> bool:
        """In the period of this moment. A new one opens it, whether anybody measures or not."""
        return self.exhausted and self.period == period_of(now)


def period_of(moment: datetime) -> datetime:
    """When the month (UTC) of a moment begins."""
    return moment.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def next_period(period: datetime) -> datetime:
    """When the one after it begins; behind the last one that has a date, itself."""
    return period if period.year == MAXYEAR else period_of(period + timedelta(days=32))


def evolve_budget(budget: Budget | None, event: BudgetEvent) -> Budget | None:
    """The budget after one event; the very same where it does not fit it."""
    if isinstance(event, BudgetSet):
        return _set(budget, event)
    if budget is None:
        return None
    match event:
        case BudgetRemoved():
            return None
        case BudgetWarned():
            same = budget.period == event.period
            return replace(
                budget, period=event.period, used=event.used, warned=True, exhausted=same and budget.exhausted
            )
        case BudgetExhausted():
            same = budget.period == event.period
            return replace(budget, period=event.period, used=event.used, exhausted=True, warned=same and budget.warned)
        case BudgetReopened():
            same = budget.period == event.period
            return replace(budget, period=event.period, used=event.used, exhausted=False, warned=same and budget.warned)
        case _:
            assert_never(event)


def _set(before: Budget | None, event: BudgetSet) -> Budget:
    made = Budget(
        per=event.per,
        gpu_milli_hours=event.gpu_milli_hours,
        micros=event.micros,
        currency=event.currency,
        warn_percent=event.warn_percent,
    )
    if before is None or (before.micros is None) != (made.micros is None):
        return made
    return replace(
        made,
        period=before.period,
        used=before.used,
        # Who was warned of a smaller budget is warned again of this one.
        warned=before.warned and made.warns_at(before.used),
        exhausted=before.exhausted,
    )


# -- commands and decide ---------------------------------------------------------------------------------------------


class _Command(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    project_id: str


class SetBudget(_Command, frozen=True, kw_only=True):
    per: Per = "month"
    gpu_milli_hours: int | None = None
    micros: int | None = None
    currency: str = ""
    """Of the prices: `commands` looks."""
    warn_percent: int = WARN_PERCENT

    def __post_init__(self) -> None:
        """Raises ValueError where these cannot be: nobody but the api has looked at them before."""
        if (self.gpu_milli_hours is None) == (self.micros is None):
            raise ValueError("a budget is in GPU hours or in money")
        if not 0 <= (self.gpu_milli_hours or 0) <= MOST_GPU_HOURS * MILLI:
            raise ValueError("no GPU hours")
        if not 0 <= (self.micros or 0) <= MOST_AMOUNT * MICROS:
            raise ValueError("no amount")
        if bool(CURRENCY_PATTERN.match(self.currency)) != (self.micros is not None):
            raise ValueError("no currency")
        if not 1 <= self.warn_percent <= 100:  # noqa: PLR2004 (percent)
            raise ValueError("no share to warn at")


class RemoveBudget(_Command, frozen=True, kw_only=True):
    pass


class NoteBudgetUse(_Command, frozen=True, kw_only=True):
    """By the service that measures."""

    period: datetime
    """When it begins."""
    until: datetime
    """Up to when it was measured."""
    in_money: bool
    used: int
    """Thousandths of GPU hours, or millionths of the currency."""


BudgetCommand = SetBudget | RemoveBudget | NoteBudgetUse


def decide_on_budget(
    command: BudgetCommand, budget: Budget | None, project_name: str, context: Context
) -> Decision[BudgetEvent]:
    match command:
        case SetBudget():
            return _decide_set(command, budget, context.now)
        case RemoveBudget():
            if budget is None:
                return Refusal(code="not_found", message=f"project {project_name!r} has no budget")
            return (*_reopened(budget, budget, context.now), BudgetRemoved(at=context.now))
        case NoteBudgetUse():
            if budget is None or command.in_money != (budget.micros is not None):
                return ()  # measured for the budget before this one
            if period_of(context.now) != command.period or command.until > context.now + CLOCKS_DIFFER:
                return ()
            opens = budget.is_exhausted(context.now) and not budget.stops_at(command.used)
            if opens and command.until < context.now - BELIEVED:
                return ()
            return measured(budget, command.period, command.used, context.now)
        case _:
            assert_never(command)


def _decide_set(command: SetBudget, budget: Budget | None, now: datetime) -> Decision[BudgetEvent]:
    event = BudgetSet(
        per=command.per,
        gpu_milli_hours=command.gpu_milli_hours,
        micros=command.micros,
        currency=command.currency,
        warn_percent=command.warn_percent,
        at=now,
    )
    after = _set(budget, event)
    if after == budget:
        return ()
    # What is used by now is measured in a moment, and may exhaust it again.
    still = after.exhausted and after.stops_at(after.used)
    return (event,) if budget is None or still else (event, *_reopened(budget, after, now))


def _reopened(before: Budget, after: Budget, now: datetime) -> tuple[BudgetReopened, ...]:
    """That a budget which was exhausted is no longer, because somebody changed it; nothing of one that was not."""
    if not before.exhausted or before.period is None:
        return ()
    return (BudgetReopened(period=before.period, used=after.used, limit=after.limit, reason="changed", at=now),)


def measured(budget: Budget, period: datetime, used: int, now: datetime) -> tuple[BudgetEvent, ...]:
    """What follows from what was used in the period of now; nothing where all of it stands in the log."""
    same = budget.period == period
    was_exhausted, was_warned = budget.exhausted, same and budget.warned
    exhausted = budget.stops_at(used)
    events: list[BudgetEvent] = []
    if was_exhausted and not (same and exhausted):
        reason: ReopenedBecause = "measured_again" if same else "new_period"
        events.append(BudgetReopened(period=period, used=used, limit=budget.limit, reason=reason, at=now))
    if budget.warns_at(used) and not was_warned:
        events.append(BudgetWarned(period=period, used=used, limit=budget.limit, at=now))
    if exhausted and not (same and was_exhausted):
        events.append(BudgetExhausted(period=period, used=used, limit=budget.limit, at=now))
    return tuple(events)


def exhausted_refusal(budget: Budget | None, project_name: str, now: datetime) -> Refusal | None:
    """Why nothing new is taken in a project; None where it is."""
    if budget is None or budget.period is None or not budget.is_exhausted(now):
        return None
    renews = next_period(budget.period)
    return Refusal(
        code="budget_exhausted",
        message=f"project {project_name!r} has used {budget.told(budget.used)} of its {budget.told(budget.limit)} for "
        f"{budget.period:%Y-%m} (UTC), so nothing new runs in it; what runs or waits goes on. The budget renews at "
        f"{renews:%Y-%m-%dT%H:%M:%SZ}; until then an administrator can raise it: `muster budget set`",
        retry_seconds=max(int((renews - now).total_seconds()), 1),
    )
