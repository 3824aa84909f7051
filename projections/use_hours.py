"""What was reserved and waited for in spans of time, by project, user, node pool, priority, cluster or GPU model.

Two statements give what changed in each span, and what is reserved and waits now; the rest is arithmetic with whole
numbers. What stood at the end of the last span follows from now, less what changed since, and so on backwards: so only
rows from the first span on are read. Runs no query.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
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
from events.prices import MAX_PRICES, Prices
from projections.hours.changes import EPOCH, MICROSECOND
from projections.tables import use_hours, use_rates

MILLI_MICROS_PER_HOUR: Final = 3_600_000_000 * 1000
"""One GPU for an hour, in thousandths of a GPU times microseconds."""
MICROS_PER_HOUR: Final = 3_600_000_000
MOST_SPANS: Final = 1_000
"""That somebody may ask for; prices that change within them make more."""
MOST_ROWS: Final = 200_000
"""Of one statement: some 100 MB."""


class By(StrEnum):
    """What the sums are of."""

    PROJECT = "project"
    USER = "user"
    NODE_POOL = "nodePool"
    PRIORITY = "priority"
    CLUSTER = "cluster"
    GPU_MODEL = "gpuModel"


OF_NODES: Final = frozenset({By.NODE_POOL, By.GPU_MODEL})
"""What waits has none of these yet."""

_KEYS: Final = {
    By.PROJECT: ("project_id",),
    By.USER: ("owner",),
    By.NODE_POOL: ("cluster_id", "pool"),
    By.PRIORITY: ("priority_class",),
    By.CLUSTER: ("cluster_id",),
    By.GPU_MODEL: ("gpu_model",),
}

type Group = tuple[str, ...]
"""Values of the columns that rows are grouped by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HoursQuery:
    """Which sums."""

    by: By
    borders: tuple[datetime, ...]
    """Where spans begin, in order, and where the last one ends: beginnings of hours, but for an end that is now."""
    projects: frozenset[str] | None
    """Ids of the projects that the asker may read; None: all."""
    project_id: str | None = None
    """Only of this one; likewise the two below."""
    owners: frozenset[str] | None = None
    """Actor ids of one person."""
    cluster_id: str | None = None

    def __post_init__(self) -> None:
        assert 1 <= len(self.borders) - 1 <= MOST_SPANS + MAX_PRICES, len(self.borders)
        assert all(begin < end for begin, end in pairwise(self.borders)), self.borders


@dataclass(slots=True)
class Amount:
    """What one group comes to in one span, of one GPU model."""

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
"""By (group, number of the span, GPU model)."""


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
    borders = literal(list(query.borders), ARRAY(DateTime(timezone=True)))
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
    """What the rows of the two statements come to. Nothing is left out but what is zero."""
    borders = [(border - EPOCH) // MICROSECOND for border in query.borders]
    spans = len(borders) - 1
    now: dict[tuple[Group, str], list[int]] = {}
    for row in rates:
        now[_group(query.by, row), row["model"]] = [int(row["milli"]), int(row["waiting"])]
    by_span: dict[tuple[Group, str], dict[int, _Changed]] = defaultdict(dict)
    for row in changed:
        names = ("milli", "milli_moment", "waiting", "waiting_moment", "runs", "measured", "used")
        by_span[_group(query.by, row), row["model"]][row["span"]] = _Changed(*(int(row[name]) for name in names))
    found: Amounts = {}
    for of in now.keys() | by_span.keys():
        milli, waiting = now.get(of, (0, 0))
        changes = by_span.get(of, {})
        group, model = of
        if (after := changes.get(spans)) is not None:
            milli, waiting = milli - after.milli, waiting - after.waiting
        for n in range(spans - 1, -1, -1):
            begin, end = borders[n], borders[n + 1]
            change = changes.get(n, _NOTHING)
            milli, waiting = milli - change.milli, waiting - change.waiting
            amount = Amount(
                reserved=milli * (end - begin) + change.milli * end - change.milli_moment,
                waiting=waiting * (end - begin) + change.waiting * end - change.waiting_moment,
                runs=change.runs,
                measured=change.measured,
                used=change.used,
            )
            if not amount.empty:
                found[group, n, model] = amount
    return found


_NOTHING: Final = _Changed()


def _group(by: By, row: Mapping[Any, Any]) -> Group:
    return tuple(row[f"k{n}"] for n in range(len(_KEYS[by])))


# -- prices ----------------------------------------------------------------------------------------------------------


def with_changes(borders: tuple[datetime, ...], prices: Prices) -> tuple[datetime, ...]:
    """The same span, cut also wherever a price begins or ends: within each part every price is one."""
    within = {moment for moment in prices.changes() if borders[0] < moment < borders[-1]}
    return tuple(sorted({*borders, *within}))


def add_costs(found: Amounts, borders: tuple[datetime, ...], prices: Prices) -> None:
    """What the amounts of these spans cost, each with the price that holds at its beginning."""
    known: dict[tuple[int, str], int | None] = {}
    for (_, span, model), amount in found.items():
        at = (span, model)
        if at not in known:
            known[at] = prices.at(model, borders[span])
        micros = known[at]
        if micros is None:
            amount.unpriced = amount.reserved
        else:
            amount.cost = amount.reserved * micros
