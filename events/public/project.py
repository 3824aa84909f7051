"""Public events of a project itself. Pure."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final, Literal

from events import budgets
from events.budgets import MILLI, ReopenedBecause
from events.money import amount_text
from events.project import Project, ProjectEvent, evolve
from events.public.shape import MOST_NAME_CHARACTERS, Happening, PublicEvent, Told, cut, fit, fit_or_none


class OfProject(PublicEvent, frozen=True, kw_only=True, rename="camel"):
    """About the project."""

    project_id: str
    """UUID."""
    name: str
    """Name of the project."""


class ProjectSettings(OfProject, frozen=True, kw_only=True, rename="camel"):
    """Its settings, as they are now."""

    gpu_quota_milli: int | None
    """Limit on non-preemptible workloads, in thousandths of a GPU. Null: no limit."""
    node_pools: list[str]
    """The order in which node pools are tried where a workload names none. Empty: all pools, by name."""
    pod_security: str | None
    """The loosest Pod Security Standard of its pods on Kubernetes. Null: the setting of the cluster."""
    privileged: bool
    """Whether its workloads may have what Pod Security `baseline` forbids."""
    gpu_limit_milli: int | None
    """Limit on all workloads, in thousandths of a GPU. Null: no limit."""
    node_types: list[str]
    """Node types of which new workloads must name one. Empty: they may name any, or none."""
    department_id: str
    """UUID of the department that it stands in."""
    department_name: str
    """Name of that department."""


class ProjectCreated(ProjectSettings, frozen=True, kw_only=True, rename="camel"):
    """An administrator created the project."""

    at: datetime | None
    """When it was created."""


class ProjectChanged(ProjectSettings, frozen=True, kw_only=True, rename="camel"):
    """Its quota or another setting was changed, also in single node pools, or it was moved into another department."""


class ProjectDeleted(OfProject, frozen=True, kw_only=True, rename="camel"):
    """The project was deleted. Its workloads are deleted after it."""

    at: datetime | None
    """When it was deleted."""


class OfBudget(OfProject, frozen=True, kw_only=True, rename="camel"):
    """About its budget."""

    period: datetime
    """When the month (UTC) begins that this is about."""
    unit: Literal["gpuHours", "money"]
    """What the budget is in."""
    currency: str | None
    """Of the money. Null for GPU hours."""
    used: str
    """What was used of it in the month, as a decimal."""
    limit: str
    """What may be used, as a decimal."""


class BudgetWarned(OfBudget, frozen=True, kw_only=True, rename="camel"):
    """So much of the budget of the month is used that the project is warned."""

    warn_percent: int
    """Share of the budget from which on it is."""


class BudgetExhausted(OfBudget, frozen=True, kw_only=True, rename="camel"):
    """The budget of the month is used up. Nothing new is taken; what runs or waits goes on."""

    renews_at: datetime
    """When the next month begins."""


class BudgetReopened(OfBudget, frozen=True, kw_only=True, rename="camel"):
    """The budget was exhausted, and is open again."""

    reason: ReopenedBecause
    """`new_period`: a month began. `changed`: it was raised or removed, or is of another kind now. `measured_again`:
    less was used than was told before."""


EVENTS: Final[tuple[type[PublicEvent], ...]] = (
    ProjectCreated,
    ProjectChanged,
    ProjectDeleted,
    BudgetWarned,
    BudgetExhausted,
    BudgetReopened,
)

MOST_POOLS: Final = 100
"""In one event; likewise node types."""


def tell(happening: Happening[Project]) -> Iterator[Told]:
    """The public events of a commit of a project."""
    state = happening.before
    for index, event in enumerate(happening.commit.events):
        was, state = state, evolve(state, event)
        told = _told(happening, was, state, event)
        if told is not None:
            yield Told(index, told, state.project_id)


def _told(happening: Happening[Project], was: Project, now: Project, event: ProjectEvent) -> PublicEvent | None:
    of: dict[str, Any] = {
        "actor": happening.actor,
        "project_id": now.project_id,
        "name": cut(now.name, MOST_NAME_CHARACTERS),
    }
    if was.exists and not now.exists:
        return ProjectDeleted(at=now.deleted_at, **of)
    settings: dict[str, Any] = {
        "gpu_quota_milli": fit_or_none(now.gpu_quota_milli),
        "node_pools": [cut(pool, MOST_NAME_CHARACTERS) for pool in now.node_pools[:MOST_POOLS]],
        "pod_security": now.pod_security,
        "privileged": now.privileged,
        "gpu_limit_milli": fit_or_none(now.gpu_limit_milli),
        "node_types": [cut(word, MOST_NAME_CHARACTERS) for word in now.node_types[:MOST_POOLS]],
        "department_id": cut(now.department_id, MOST_NAME_CHARACTERS),
        "department_name": cut(now.department_name, MOST_NAME_CHARACTERS),
    }
    if now.project_id != was.project_id:
        return ProjectCreated(at=now.created_at, **settings, **of)
    if now.exists and _settings(now) != _settings(was):
        return ProjectChanged(**settings, **of)
    return None if now.budget is was.budget or now.budget is None else _of_budget(event, now.budget, of)


def _settings(state: Project) -> tuple[object, ...]:
    own = (state.gpu_quota_milli, state.node_pools, state.pod_security, state.privileged, state.node_types)
    beyond = (state.gpu_limit_milli, state.pool_quotas, state.over_quota_weight, state.minimum_runtime_seconds)
    return (*own, state.department_id, *beyond, state.cluster_lost_seconds)


def _of_budget(event: ProjectEvent, budget: budgets.Budget, of: dict[str, Any]) -> PublicEvent | None:
    match event:
        case budgets.BudgetWarned():
            return BudgetWarned(warn_percent=fit(budget.warn_percent), **_measured(event, budget), **of)
        case budgets.BudgetExhausted():
            renews = budgets.next_period(event.period)
            return BudgetExhausted(renews_at=renews, **_measured(event, budget), **of)
        case budgets.BudgetReopened():
            return BudgetReopened(reason=event.reason, **_measured(event, budget), **of)
        case _:
            return None


def _measured(
    event: budgets.BudgetWarned | budgets.BudgetExhausted | budgets.BudgetReopened, budget: budgets.Budget
) -> dict[str, Any]:
    money = budget.micros is not None
    times = 1 if money else MILLI
    return {
        "period": event.period,
        "unit": "money" if money else "gpuHours",
        "currency": cut(budget.currency, MOST_NAME_CHARACTERS) if money else None,
        "used": amount_text(fit(event.used) * times),
        "limit": amount_text(fit(event.limit) * times),
    }
