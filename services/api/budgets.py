"""Budgets: what a project may use in a month, set by the administrators of the installation."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Annotated

from events.budgets import (
    MILLI,
    MOST_GPU_HOURS,
    WARN_PERCENT,
    Budget,
    Per,
    RemoveBudget,
    SetBudget,
    next_period,
    period_of,
)
from events.fields.declare import Body, Limits
from events.money import NO_CURRENCY, amount_text, micros_of, rounded
from events.project import Project
from events.quantities import cores_to_milli
from projections.unanswered import TooManyRowsError
from projections.use_hours import MILLI_MICROS_PER_HOUR, Amount, By, HoursQuery
from services.api import answers
from services.api.answers.budgets import BudgetState
from services.api.context import MIN_SEQ, Call, if_answered, read_answer
from services.api.errors import not_found
from services.api.issues import Issue
from services.api.moments import AS_OF, MOMENT_HEADERS, moment_headers, moment_of
from services.api.operations import Answer, changes, reads
from services.api.paths import BUDGET, BUDGETS
from services.api.places import (
    directory_caught_up,
    directory_fresh,
    project_at,
    projects_at,
    readable_project,
)
from services.api.prices import currency_issues, no_amount

type Used = Mapping[str, Amount]
"""By project id; a project that used nothing is not there."""


class BudgetSetting(Body, frozen=True, kw_only=True):
    per: Per = "month"
    """The period: a month of UTC."""
    gpu_hours: Annotated[float, Limits(least=0, most=MOST_GPU_HOURS)] | None = None
    """GPU hours that may be reserved in it. Give these or `amount`."""
    amount: Annotated[str, Limits(shortest=1, longest=20)] | None = None
    """What they may cost, as a decimal. It needs prices."""
    currency: Annotated[str, Limits(shortest=3, longest=3)] | None = None
    """Of the amount: that of the prices. Null: that one."""
    warn_percent: Annotated[int, Limits(least=1, most=100)] = WARN_PERCENT
    """Share of the budget from which on the project is warned."""


@reads(
    BUDGETS,
    tag="Organisation",
    summary="List the budgets of the projects that you may read, and what of them is used",
    query=(AS_OF, MIN_SEQ),
    headers=MOMENT_HEADERS,
)
async def list_budgets(call: Call) -> Answer[answers.Budgets]:
    if (moment := await moment_of(call)) is not None:
        were = [p for p in await projects_at(call, moment) if p.budget is not None and call.may_read(p.project_id)]
        held = [_answer(project, moment.at or datetime.now(UTC), None) for project in were]
        return read_answer(answers.Budgets(budgets=held), moment.seq, moment_headers(moment))
    headers = await directory_fresh(call)
    projects = [p for p in call.api.directory.projects.values() if p.budget is not None and call.may_read(p.project_id)]
    now = datetime.now(UTC)
    used = await _used(call, now, None) if projects else None
    told = [_answer(project, now, used) for project in sorted(projects, key=lambda project: project.name)]
    return read_answer(answers.Budgets(budgets=told), call.api.directory.seq, headers)


@reads(
    BUDGET,
    tag="Organisation",
    summary="Get the budget of a project, and what of it is used",
    query=(AS_OF, MIN_SEQ),
    errors=(404,),
    headers=MOMENT_HEADERS,
)
async def get_budget(call: Call) -> Answer[answers.Budget]:
    if (moment := await moment_of(call)) is not None:
        was = await project_at(call, moment)
        if was is None or not call.may_read(call.id) or was.state.budget is None:
            raise not_found("there was no such budget then")
        told = _answer(was.state, moment.at or datetime.now(UTC), None)
        return read_answer(told, moment.seq, moment_headers(moment))
    headers = await directory_fresh(call)
    project = (await readable_project(call)).state
    if project.budget is None:
        raise not_found("the project has no budget")
    now = datetime.now(UTC)
    return read_answer(
        _answer(project, now, await _used(call, now, project.project_id)), call.api.directory.seq, headers
    )


@changes(
    "PUT",
    BUDGET,
    tag="Organisation",
    summary="Set what a project may use in a month, in GPU hours or in money",
    body=BudgetSetting,
    example={"amount": "5000", "warnPercent": 80},
    errors=(403, 404, 409),
)
async def set_budget(call: Call) -> Answer[answers.HttpResponse]:
    given = call.fields(BudgetSetting, _issues)
    project = (await readable_project(call)).state
    await directory_fresh(call)
    command = SetBudget(
        project_id=project.project_id,
        per=given.per,
        gpu_milli_hours=None if given.gpu_hours is None else cores_to_milli(given.gpu_hours),
        micros=None if given.amount is None else micros_of(given.amount),
        currency=_currency_of(given, call.api.directory.prices.currency),
        warn_percent=given.warn_percent,
    )
    reply = await call.send(command)
    await directory_caught_up(call, reply)
    word = "has now" if reply.changed else "has already"
    return call.accepted(reply, f"project {project.name} {word} this budget, for each month")


@changes("DELETE", BUDGET, tag="Organisation", summary="Take the budget of a project away", errors=(403, 404))
async def remove_budget(call: Call) -> Answer[answers.HttpResponse]:
    project = (await readable_project(call)).state
    reply = await call.send(RemoveBudget(project_id=project.project_id))
    await directory_caught_up(call, reply)
    return call.accepted(reply, f"project {project.name} has no budget any more")


async def _used(call: Call, now: datetime, project_id: str | None) -> Used | None:
    """What was used in the month, by project; None while the lists cannot be read."""
    begin, prices = period_of(now), call.api.directory.prices
    if begin == now:
        return {}
    query = HoursQuery(
        by=By.PROJECT,
        borders=(begin, now),
        prices=prices,
        projects=call.grants.readable_projects,
        project_id=project_id,
    )
    try:
        found = await if_answered(call.queries.use_hours(query))
    except TooManyRowsError:
        return None
    if found is None:
        return None
    sums: dict[str, Amount] = {}
    for ((id_,), _, _), amount in found.amounts.items():
        sums.setdefault(id_, Amount()).add(amount)
    return sums


def _answer(project: Project, now: datetime, used: Used | None) -> answers.Budget:
    budget, period = project.budget or Budget(), period_of(now)
    amount = None if used is None else used.get(project.project_id, Amount())
    return answers.Budget(
        project_id=project.project_id,
        project_name=project.name,
        per=budget.per,
        gpu_hours=None if budget.gpu_milli_hours is None else budget.gpu_milli_hours / MILLI,
        amount=None if budget.micros is None else amount_text(budget.micros),
        currency=budget.currency or None,
        warn_percent=budget.warn_percent,
        state=_state(budget, now),
        period=period,
        renews_at=next_period(period),
        used=None if amount is None else _told_used(budget, amount),
        unpriced_gpu_hours=None if amount is None else round(amount.unpriced / MILLI_MICROS_PER_HOUR, 6),
    )


def _told_used(budget: Budget, amount: Amount) -> str:
    if budget.micros is not None:
        return amount_text(max(amount.cost_micros, 0))
    return amount_text(max(rounded(amount.reserved, MILLI_MICROS_PER_HOUR // MILLI), 0) * MILLI)


def _state(budget: Budget, now: datetime) -> BudgetState:
    if budget.is_exhausted(now):
        return "exhausted"
    return "warned" if budget.warned and budget.period == period_of(now) else "open"


def _currency_of(setting: BudgetSetting, of_prices: str) -> str:
    """Where there are no prices, the command is refused by that name, whatever its currency."""
    if setting.amount is None:
        return ""
    return setting.currency or of_prices or NO_CURRENCY


def _issues(setting: BudgetSetting) -> Iterator[Issue]:
    if (setting.gpu_hours is None) == (setting.amount is None):
        details = "give gpuHours or amount, and not both"
        yield Issue(field="amount", details=details, rule="required", involves=frozenset({"gpuHours"}))
    if setting.amount and micros_of(setting.amount) is None:
        yield no_amount("amount", setting.amount)
    if setting.currency is not None:
        yield from currency_issues(setting.currency)
        if setting.amount is None:
            yield Issue(field="currency", details="is of an amount, and none is given; leave it out", rule="canAdd")
