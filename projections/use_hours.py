"""What was reserved and waited for in spans of time, by project, user, node pool, priority, cluster or GPU model.

Two statements give what changed in each span, and what is reserved and waits now; the rest is arithmetic with whole
numbers. What stood at the end of the last span follows from now, less what changed since, and so on backwards: so only
rows from the first span on are read. Runs no query.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import pairwise
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    DateTime,
    Numeric,
    Select,
    Table,
    and_,
    cast,
    extract,
    func,
    literal,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import ARRAY

from events.money import rounded
from events.prices import ANY_MODEL, Prices
from projections.hours.changes import EPOCH, MICROSECOND
from projections.tables import use_hours, use_rates

MILLI_MICROS_PER_HOUR: Final = 3_600_000_000 * 1000
"""One GPU for an hour, in thousandths of a GPU times microseconds."""
MICROS_PER_HOUR: Final = 3_600_000_000
MOST_SPANS: Final = 1_000
"""Periods that somebody may ask for; prices that change within them cut these into more spans."""
MOST_ROWS: Final = 200_000
"""Of one statement: some 100 MB."""


class By(StrEnum):
    """What the sums are of."""

    PROJECT = "project"
    DEPARTMENT = "department"
    """In which each project stands now."""
    USER = "user"
    NODE_POOL = "nodePool"
    PRIORITY = "priority"
    CLUSTER = "cluster"
    GPU_MODEL = "gpuModel"


OF_NODES: Final = frozenset({By.NODE_POOL, By.GPU_MODEL})
"""What waits has none of these yet."""

_KEYS: Final = {
    By.PROJECT: ("project_id",),
    # Hours say no department: their projects do (`of_departments`).
    By.DEPARTMENT: ("project_id",),
    By.USER: ("owner",),
    By.NODE_POOL: ("cluster_id", "pool"),
    By.PRIORITY: ("priority_class",),
    By.CLUSTER: ("cluster_id",),
    By.GPU_MODEL: ("gpu_model",),
}

NO_PRICES: Final = Prices()

type Group = tuple[str, ...]
"""Values of the columns that rows are grouped by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HoursQuery:
    """Which sums."""

    by: By
    borders: tuple[datetime, ...]
    """Where periods begin, in order, and where the last one ends: beginnings of hours, but for an end that is now."""
    prices: Prices = NO_PRICES
    """What hours cost."""
    projects: frozenset[str] | None
    """Ids of the projects that the asker may read; None: all."""
    project_id: str | None = None
    """Only of this one; likewise the two below."""
    owners: frozenset[str] | None = None
    """Actor ids of one person."""
    cluster_id: str | None = None

    def __post_init__(self) -> None:
        assert 1 <= len(self.borders) - 1 <= MOST_SPANS, len(self.borders)
        assert all(begin < end for begin, end in pairwise(self.borders)), self.borders

    @property
    def cuts(self) -> tuple[datetime, ...]:
        """The borders, and wherever a price begins or ends between them: within each span every price is one."""
        within = {moment for moment in self.prices.changes() if self.borders[0] < moment < self.borders[-1]}
        return tuple(sorted({*self.borders, *within}))


@dataclass(slots=True)
class Amount:
    """What one group comes to in one period, of one GPU model."""

    reserved: int = 0
    """Thousandths of a GPU times microseconds."""
    waiting: int = 0
    """Workloads times microseconds."""
    runs: int = 0
    cost: int = 0
    """Of what is reserved and has a price: thousandths of a GPU times microseconds times millionths of the currency."""
    unpriced: int = 0
    """What is reserved and has none: thousandths of a GPU times microseconds."""
    measured: int = 0
    """What is reserved and known to have been busy or not: thousandths of a GPU times seconds."""
    used: int = 0
    """That, each part times how busy the GPU was."""

    def add(self, other: "Amount") -> None:
        self.reserved += other.reserved
        self.waiting += other.waiting
        self.runs += other.runs
        self.cost += other.cost
        self.unpriced += other.unpriced
        self.measured += other.measured
        self.used += other.used

    @property
    def cost_micros(self) -> int:
        """Millionths of the currency."""
        return rounded(self.cost, MILLI_MICROS_PER_HOUR)

    @property
    def empty(self) -> bool:
        return not (self.reserved or self.waiting or self.runs or self.measured)


type Amounts = dict[tuple[Group, int, str], Amount]
"""By (group, number of the period, GPU model)."""


def of_departments(amounts: Amounts, departments: Mapping[str, str]) -> Amounts:
    """What projects came to, by the department of each.

    Args:
        departments: department id by project id.
    """
    found: Amounts = {}
    for ((project_id,), period, model), amount in amounts.items():
        found.setdefault(((departments.get(project_id, ""),), period, model), Amount()).add(amount)
    return found


# -- statements ------------------------------------------------------------------------------------------------------


def changed_statement(query: HoursQuery) -> Select[Any]:
    """What changed in each span, and behind the last one: its number, the group, the GPU model, and sums."""
    h = use_hours.c
    span = _span(query, h.hour)
    micros = cast(extract("epoch", h.hour), Numeric) * 1_000_000
    return (
        select(
            span,
            *_keys(query.by, use_hours),
            h.gpu_model.label("model"),
            func.sum(h.gpu_milli).label("milli"),
            func.sum(h.gpu_milli * micros + h.gpu_weight).label("milli_moment"),
            func.sum(h.waiting).label("waiting"),
            func.sum(h.waiting * micros + h.waiting_weight).label("waiting_moment"),
            func.sum(h.runs).label("runs"),
            func.sum(h.measured).label("measured"),
            func.sum(h.used).label("used"),
        )
        .where(h.hour >= query.borders[0], _scope(query, use_hours))
        .group_by(span, *_keys(query.by, use_hours), h.gpu_model)
        .limit(MOST_ROWS + 1)
    )


def rates_statement(query: HoursQuery) -> Select[Any]:
    """What is reserved, and waits, after all that changed."""
    r = use_rates.c
    return (
        select(
            *_keys(query.by, use_rates),
            r.gpu_model.label("model"),
            func.sum(r.gpu_milli).label("milli"),
            func.sum(r.waiting).label("waiting"),
        )
        .where(_scope(query, use_rates))
        .group_by(*_keys(query.by, use_rates), r.gpu_model)
        .having((func.sum(r.gpu_milli) != 0) | (func.sum(r.waiting) != 0))
        .limit(MOST_ROWS + 1)
    )


def _span(query: HoursQuery, hour: ColumnElement[Any]) -> ColumnElement[Any]:
    borders = literal(list(query.cuts), ARRAY(DateTime(timezone=True)))
    return (func.width_bucket(hour, borders) - 1).label("span")


def _keys(by: By, table: Table) -> list[ColumnElement[Any]]:
    return [table.c[name].label(f"k{n}") for n, name in enumerate(_KEYS[by])]


def _scope(query: HoursQuery, table: Table) -> ColumnElement[bool]:
    parts: list[ColumnElement[bool]] = [true()]
    if query.projects is not None:
        parts.append(table.c.project_id.in_(sorted(query.projects)))
    if query.project_id is not None:
        parts.append(table.c.project_id == query.project_id)
    if query.owners is not None:
        parts.append(table.c.owner.in_(sorted(query.owners)))
    if query.cluster_id is not None:
        parts.append(table.c.cluster_id == query.cluster_id)
    return and_(*parts)


# -- arithmetic ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Changed:
    milli: int = 0
    milli_moment: int = 0
    waiting: int = 0
    waiting_moment: int = 0
    runs: int = 0
    measured: int = 0
    used: int = 0


def amounts(
    query: HoursQuery,
    changed: Iterable[Mapping[Any, Any]],
    rates: Iterable[Mapping[Any, Any]],
) -> Amounts:
    """What the rows of the two statements come to, by period, with what it costs. Nothing is left out but what is zero.

    It takes as long as there are periods and changes, however often a price changed between them.
    """
    cuts = [_micros(cut) for cut in query.cuts]
    # By period, the numbers of the cuts at which it begins and ends.
    periods = [*pairwise(bisect_left(query.cuts, border) for border in query.borders)]
    now: dict[tuple[Group, str], tuple[int, int]] = {}
    for row in rates:
        now[_group(query.by, row), row["model"]] = int(row["milli"]), int(row["waiting"])
    by_span: dict[tuple[Group, str], dict[int, _Changed]] = defaultdict(dict)
    for row in changed:
        names = ("milli", "milli_moment", "waiting", "waiting_moment", "runs", "measured", "used")
        by_span[_group(query.by, row), row["model"]][row["span"]] = _Changed(*(int(row[name]) for name in names))
    costs: dict[str, _Costs] = {}
    found: Amounts = {}
    for of in now.keys() | by_span.keys():
        group, model = of
        if model not in costs:
            costs[model] = _Costs(query.prices, model)
        milli, waiting = now.get(of, (0, 0))
        one = _Backwards(cuts, costs[model], milli, waiting, by_span.get(of, {}))
        for number in range(len(periods) - 1, -1, -1):
            amount = one.over(*periods[number])
            if not amount.empty:
                found[group, number, model] = amount
    return found


class _Backwards:
    """One group and model: from what is reserved and waits now, back through time."""

    def __init__(
        self, cuts: Sequence[int], costs: "_Costs", milli: int, waiting: int, changes: Mapping[int, _Changed]
    ) -> None:
        self._cuts, self._costs = cuts, costs
        self._milli, self._waiting = milli, waiting
        self._changes = changes
        self._left = sorted(changes)
        """Numbers of the spans with changes that are still before."""
        if self._left and self._left[-1] == len(cuts) - 1:
            after = changes[self._left.pop()]
            self._milli, self._waiting = milli - after.milli, waiting - after.waiting

    def over(self, first: int, until: int) -> Amount:
        """From one cut to another. To be asked of the last one first."""
        total = Amount()
        while self._left and self._left[-1] >= first:
            span = self._left.pop()
            change, end = self._changes[span], self._cuts[span + 1]
            self._unchanged(total, span + 1, until)
            self._milli, self._waiting = self._milli - change.milli, self._waiting - change.waiting
            self._unchanged(total, span, span + 1)
            # Within a span every price is one.
            reserved = change.milli * end - change.milli_moment
            micros = self._costs.at(self._cuts[span])
            total.reserved += reserved
            total.waiting += change.waiting * end - change.waiting_moment
            total.runs += change.runs
            total.measured += change.measured
            total.used += change.used
            total.cost += reserved * (micros or 0)
            total.unpriced += reserved if micros is None else 0
            until = span
        self._unchanged(total, first, until)
        return total

    def _unchanged(self, total: Amount, first: int, until: int) -> None:
        begin, end = self._cuts[first], self._cuts[until]
        if begin == end:
            return
        total.waiting += self._waiting * (end - begin)
        if self._milli:
            cost, unpriced = self._costs.between(begin, end)
            total.reserved += self._milli * (end - begin)
            total.cost += self._milli * cost
            total.unpriced += self._milli * unpriced


def _group(by: By, row: Mapping[Any, Any]) -> Group:
    return tuple(row[f"k{n}"] for n in range(len(_KEYS[by])))


# -- prices ----------------------------------------------------------------------------------------------------------


class _Costs:
    """What a GPU of one model costs from one moment to another. Moments are microseconds since EPOCH."""

    def __init__(self, prices: Prices, model: str) -> None:
        own = (price.holds_from for name in {model, ANY_MODEL} for price in prices.models.get(name, ()))
        changes = sorted(set(own))
        self._since = [_micros(moment) for moment in changes]
        self._micros = [None, *(prices.at(model, moment) for moment in changes)]
        """Of the time before the first change, and from each on."""
        self._sums = [(0, 0)]
        """At each change: cost and unpriced time since the first one."""
        for micros, (begin, end) in zip(self._micros[1:], pairwise(self._since), strict=False):
            cost, unpriced = self._sums[-1]
            self._sums.append((cost + (micros or 0) * (end - begin), unpriced + (end - begin) * (micros is None)))

    def at(self, moment: int) -> int | None:
        """The price, in millionths for an hour."""
        return self._micros[bisect_right(self._since, moment)]

    def between(self, begin: int, end: int) -> tuple[int, int]:
        """Microseconds times millionths, and microseconds without a price."""
        (cost, unpriced), (before, unpriced_before) = self._until(end), self._until(begin)
        return cost - before, unpriced - unpriced_before

    def _until(self, moment: int) -> tuple[int, int]:
        held = bisect_right(self._since, moment)
        if not held:
            # Before the first change nothing has a price; counted from there, it is a time less than none.
            return 0, moment - self._since[0] if self._since else moment
        cost, unpriced = self._sums[held - 1]
        micros, spent = self._micros[held], moment - self._since[held - 1]
        return cost + (micros or 0) * spent, unpriced + spent * (micros is None)


def _micros(moment: datetime) -> int:
    return (moment - EPOCH) // MICROSECOND
