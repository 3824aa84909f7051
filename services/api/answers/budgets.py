"""Prices of GPUs, and budgets of projects. Pure."""

from typing import Literal

from services.api.answers.forms import Form, Uuid
from services.api.answers.workloads import Moment

BudgetState = Literal["open", "warned", "exhausted"]


class Price(Form, frozen=True, kw_only=True):
    """What an hour of a GPU of one model costs from a moment on."""

    gpu_model: str
    """As nodes name it; `*` for all models without a price of their own."""
    amount: str | None
    """For an hour of a whole GPU, as a decimal. Null: from here on the model has no price of its own."""
    holds_from: Moment
    """The full hour from which on it holds."""
    holds_until: Moment | None
    """When the next price of the model takes its place. Null: until further notice."""


class Prices(Form, frozen=True, kw_only=True):
    """All prices, past and future."""

    currency: str | None
    """Of all of them. Null if there never was one."""
    prices: list[Price]
    """By model and time."""


class Budget(Form, frozen=True, kw_only=True):
    """What a project may use in a month, and what it has used."""

    project_id: Uuid
    """Id of the project."""
    project_name: str
    """Its name."""
    per: Literal["month"]
    """The period: a month of UTC."""
    gpu_hours: float | None
    """GPU hours that may be reserved. Null if the budget is in money."""
    amount: str | None
    """What they may cost, as a decimal. Null if the budget is in GPU hours."""
    currency: str | None
    """Of the amount."""
    warn_percent: int
    """Share of the budget from which on the project is warned."""
    state: BudgetState
    """`warned`: so much is used that the project was warned. `exhausted`: nothing new is taken; what runs or waits goes
    on."""
    period: Moment
    """When the month began."""
    renews_at: Moment
    """When the next one begins."""
    used: str | None
    """What was used up to now, in what the budget is in, as a decimal. Null while the lists cannot be read, and for a
    moment of the past."""
    unpriced_gpu_hours: float | None
    """Reserved GPU hours without a price. A budget in money does not count them. Null where `used` is."""


class Budgets(Form, frozen=True, kw_only=True):
    """The budgets of the projects that the caller may read."""

    budgets: list[Budget]
    """By name of the project; projects without a budget are not there."""
