"""Who uses what now, as one statement: sums by project, user, node pool, node or workload. Runs no query.

What is allocated is what the scheduler counts: the reservations that stand in the nodes' own records. A pod that is
told to go holds its reservation until it is gone and the scheduler has released it; a workload that waits, is suspended
or has ended holds none. What is really used are the newest samples of the runs that hold one. All three tables hold
only what is there now, or are read by an index, so nothing here grows with what is over.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import (
    CTE,
    ColumnElement,
    Double,
    FromClause,
    Numeric,
    Select,
    and_,
    case,
    cast,
    distinct,
    func,
    literal,
    null,
    select,
    true,
    tuple_,
    union_all,
)
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.sql.base import ReadOnlyColumnCollection

from events.phases import Phase
from projections.filters import MAX_LIMIT, MAX_OFFSET, MEASURED, SUBJECTS, WAITING_PHASES, submitter
from projections.tables import clusters, nodes, projects, reservations, usage_samples, workloads

PLACED_PHASES: Final = tuple(
    phase.value for phase in (Phase.INITIALIZING, Phase.RUNNING, Phase.UNKNOWN, Phase.DEGRADED, Phase.UPDATING)
)
"""Phases of a workload that counts as running: it has nodes, and is to keep them."""
MILLI: Final = 1000


class By(StrEnum):
    """What the sums are of."""

    PROJECT = "project"
    USER = "user"
    NODE_POOL = "nodePool"
    NODE = "node"
    WORKLOAD = "workload"


PLACES: Final = frozenset({By.NODE_POOL, By.NODE})
"""They have a capacity; what waits is in none of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UseQuery:
    """Which sums, in which order."""

    projects: frozenset[str] | None
    """Ids of the projects that the asker may read; None: all."""
    by: By
    project_id: str | None = None
    """Only what this one holds."""
    cluster_id: str | None = None
    """Only what is in this one."""
    sort_by: str = "gpu_milli"
    """A column of the statement."""
    descending: bool = True
    subjects: Mapping[str, str] = field(default_factory=dict[str, str])
    """What people call whom an actor id means: users are named, and put in order, by that."""
    offset: int = 0
    limit: int = MAX_LIMIT

    def __post_init__(self) -> None:
        assert self.sort_by in COLUMNS, self.sort_by
        assert 0 <= self.offset <= MAX_OFFSET, self.offset
        assert 1 <= self.limit <= MAX_LIMIT, self.limit


_TEXTS: Final = ("name", "project_name", "cluster_name", "submitted_by", "phase")
_COUNTED: Final = (
    "running", "pending", "ending", "pods", "gpu_milli", "firm_gpu_milli", "gpu_memory_bytes", "cpu_milli",
    "memory_bytes", "measured_pods",
)  # fmt: skip
"""Of nothing they are 0."""
_MEASURED: Final = ("used_cpu_milli", "used_memory_bytes", "used_gpu_memory_bytes", "busy_milli", "watched_milli")
"""Unknown where nothing measures them. The last two: how busy GPUs are, weighted by the shares that are held of them,
and the sum of those shares.
"""
_THERE: Final = tuple(
    f"{kind}_{what}"
    for kind in ("capacity", "free")
    for what in ("gpu_milli", "gpu_memory_bytes", "cpu_milli", "memory_bytes")
)
_NUMBERS: Final = (*_COUNTED, *_MEASURED, *_THERE)
SUMMED: Final = (*_NUMBERS, "gpu_utilization_percent")
COLUMNS: Final = (*_TEXTS, *SUMMED, "gpu_quota_milli")
"""What a row of the statement has, beside `id` (of the project, user or workload; else of the cluster)."""

type Keys = tuple[ColumnElement[Any], ...]
"""What rows are grouped by: two columns at most."""

_w, _n, _r, _c = workloads.c, nodes.c, reservations.c, clusters.c
_NO_KEY: Final = cast(null(), _w.id.type)
_KEYS: Final = {By.PROJECT: "project_id", By.USER: "submitted_by", By.WORKLOAD: "id"}
"""Columns of workloads."""


def use_statement(query: UseQuery) -> Select[Any]:
    """One page, and one row more where another follows, each beside the sum of everything (`total_…`). Where the page
    is empty there is one row, of which `place` is null.
    """
    parts = [_held(query), _counted(query), _there(query)]
    if query.by is By.PROJECT:
        parts.append(_projects(query))
    merged = union_all(*parts).subquery("merged")
    sums = (
        select(
            merged.c.k1,
            merged.c.k2,
            *(func.coalesce(func.sum(merged.c[name]), 0).label(name) for name in _COUNTED),
            *(func.sum(merged.c[name]).label(name) for name in (*_MEASURED, *_THERE)),
        )
        .group_by(merged.c.k1, merged.c.k2)
        .cte("sums")
    )
    total, page = _total(sums), _page(query, sums)
    return (
        select(*page.c, *(total.c[name].label(f"total_{name}") for name in SUMMED))
        .select_from(total.outerjoin(page, true()))
        .order_by(page.c.place)
        .params({SUBJECTS: dict(query.subjects)})
    )


def _total(sums: CTE) -> FromClause:
    return select(*(sums.c[name] for name in _NUMBERS), _busy(sums)).where(sums.c.k1.is_(None)).subquery("total")


def _page(query: UseQuery, sums: CTE) -> FromClause:
    named, source = _named(query.by, sums)
    rows = (
        select(sums.c.k1.label("id"), *(sums.c[name] for name in _NUMBERS), *named, _busy(sums))
        .select_from(source)
        .where(sums.c.k1.is_not(None))
        .subquery("found")
    )
    by = rows.c[query.sort_by].desc() if query.descending else rows.c[query.sort_by].asc()
    order = (by.nulls_last(), rows.c.name, rows.c.cluster_name, rows.c.project_name, rows.c.id)
    return (
        select(rows, func.row_number().over(order_by=order).label("place"))
        .order_by("place")
        .offset(query.offset)
        .limit(query.limit + 1)
        .subquery("page")
    )


def _busy(sums: CTE) -> ColumnElement[Any]:
    # Not as doubles: there, a quotient that is too small for one is an error.
    return (sums.c.busy_milli / func.nullif(sums.c.watched_milli, 0)).label("gpu_utilization_percent")


def _keys(query: UseQuery, of_workloads: ReadOnlyColumnCollection[str, Any] | None = None) -> Keys:
    """What a row belongs to; none where the part knows only the sum of everything.

    Args:
        of_workloads: columns of the workloads in the part, where it has any.
    """
    if of_workloads is not None and query.by not in PLACES:
        return (of_workloads[_KEYS[query.by]],)
    return () if query.by not in PLACES else (_n.cluster_id, _n.pool if query.by is By.NODE_POOL else _n.name)


def _part(keys: Keys, given: dict[str, ColumnElement[Any]], source: FromClause) -> Select[Any]:
    """Some of the numbers, by key and of everything: there both keys are null. The others are another part's."""
    match keys:
        case (one,):
            names = (one, case((func.grouping(one) == 0, literal("")), else_=null()))
        case (one, other):
            names = (one, other)
        case _:
            return select(*_columns((_NO_KEY, _NO_KEY), given)).select_from(source)
    sets = func.grouping_sets(tuple_(*keys), tuple_())
    return select(*_columns(names, given)).select_from(source).group_by(sets)


def _columns(
    keys: tuple[ColumnElement[Any], ColumnElement[Any]], given: dict[str, ColumnElement[Any]]
) -> list[ColumnElement[Any]]:
    numbers = (cast(given.get(name, null()), Numeric).label(name) for name in _NUMBERS)
    return [keys[0].label("k1"), keys[1].label("k2"), *numbers]


def _scope(query: UseQuery) -> ColumnElement[bool]:
    """Of workloads; a policy of the tables says the same of what may be read (access.py)."""
    parts: list[ColumnElement[bool]] = [true()]
    if query.projects is not None:
        parts.append(_w.project_id.in_(sorted(query.projects)))
    if query.project_id is not None:
        parts.append(_w.project_id == query.project_id)
    if query.cluster_id is not None:
        parts.append(_w.cluster_id == query.cluster_id)
    return and_(*parts)


def _held(query: UseQuery) -> Select[Any]:
    """What pods hold, and what the newest samples say of them."""
    s, w = _samples(), _by_id(and_(_w.id == _r.workload_id, _scope(query)), "holders")
    going_on = w.c.phase.in_((*PLACED_PHASES, *WAITING_PHASES))
    firm = case((w.c.preemptibility == "non-preemptible", _r.gpu_milli), else_=0)
    watched = case((s.c.gpu_utilization_percent.is_not(None), _r.gpu_milli))
    given: dict[str, ColumnElement[Any]] = {
        "ending": func.count(distinct(w.c.id)).filter(~going_on),
        "pods": func.count(),
        "gpu_milli": func.sum(_r.gpu_milli),
        "firm_gpu_milli": func.sum(firm),
        "gpu_memory_bytes": func.trunc(func.sum(cast(_r.gpu_milli, Numeric) * _n.gpu_memory_bytes / MILLI)),
        "cpu_milli": func.sum(_r.cpu_milli),
        "memory_bytes": func.sum(_r.memory_bytes),
        "measured_pods": func.count(s.c.run),
        "used_cpu_milli": func.sum(s.c.cpu_milli),
        "used_memory_bytes": func.sum(s.c.memory_bytes),
        "used_gpu_memory_bytes": func.sum(s.c.gpu_memory_bytes),
        "busy_milli": func.sum(s.c.gpu_utilization_percent * cast(watched, Double)),
        "watched_milli": func.sum(watched),
    }
    keys = _keys(query, w.c)
    if query.by in PLACES:
        # Of everything they are counted by the workloads themselves.
        given["running"] = case((func.grouping(keys[0]) == 0, func.count(distinct(w.c.id)).filter(going_on)))
    source = (
        reservations.join(nodes, _n.key == _r.node_key)
        .join(w, true())
        .outerjoin(s, and_(s.c.run == _r.id, s.c.cluster_id == _n.cluster_id))
    )
    return _part(keys, given, source)


def _by_id(condition: ColumnElement[bool], name: str) -> FromClause:
    """A workload by its id. By its limit Postgres looks each up: joined, it may read all that there ever were."""
    columns = (_w.id, _w.name, _w.project_id, _w.cluster_id, _w.submitted_by, _w.phase, _w.preemptibility)
    return select(*columns).where(condition).limit(1).lateral(name)


def _samples() -> FromClause:
    """The newest sample of each run, by the id of its reservation (events.node.reservation_id)."""
    u = usage_samples.c
    # The id of a workload first: two of them differ in their first bytes, so sorting is quick.
    of_run = (u.workload_id, u.pod_set, u.index, u.attempt, u.try_, u.cluster_id)
    run = func.concat(u.workload_id, "/", u.pod_set, "-", u.index, "/", u.attempt, ".", u.try_)
    return (
        select(
            run.label("run"), u.cluster_id, u.cpu_milli, u.memory_bytes, u.gpu_utilization_percent, u.gpu_memory_bytes
        )
        .where(u.at.between(func.now() - literal(MEASURED), func.now() + literal(MEASURED)))
        .ext(distinct_on(*of_run))
        .order_by(*of_run, u.at.desc())
        .subquery("samples")
    )


def _counted(query: UseQuery) -> Select[Any]:
    """How many workloads run, and how many wait: those that are over are in no index that this reads."""
    keys = () if query.by in PLACES else _keys(query, _w)
    given: dict[str, ColumnElement[Any]] = {
        "running": func.count().filter(_w.phase.in_(PLACED_PHASES)),
        "pending": func.count().filter(_w.phase.in_(WAITING_PHASES)),
    }
    going_on = and_(_w.deleted_at.is_(None), _w.completed_at.is_(None), _w.phase.in_((*PLACED_PHASES, *WAITING_PHASES)))
    return _part(keys, given, workloads).where(going_on, _scope(query))


def _there(query: UseQuery) -> Select[Any]:
    """What nodes have, and what of it nobody holds: nothing is free where no new pod may come."""
    held = func.coalesce(
        select(func.sum(func.unnest(_n.used_device_milli).column_valued("milli"))).scalar_subquery(), 0
    )
    takes_pods = and_(_n.ready, ~_n.unschedulable, _n.cordoned_at.is_(None), _c.connected)
    gpus = cast(_n.gpu_count, Numeric) * MILLI
    free_gpus = func.greatest(gpus - cast(_n.foreign_gpus, Numeric) * MILLI - held, 0)
    free: dict[str, ColumnElement[Any]] = {
        "free_gpu_milli": free_gpus,
        "free_gpu_memory_bytes": func.trunc(free_gpus * _n.gpu_memory_bytes / MILLI),
        "free_cpu_milli": func.greatest(cast(_n.cpu_milli, Numeric) - _n.foreign_cpu_milli - _n.used_cpu_milli, 0),
        "free_memory_bytes": func.greatest(
            cast(_n.memory_bytes, Numeric) - _n.foreign_memory_bytes - _n.used_memory_bytes, 0
        ),
    }
    given: dict[str, ColumnElement[Any]] = {
        "capacity_gpu_milli": func.sum(gpus),
        "capacity_gpu_memory_bytes": func.sum(cast(_n.gpu_count, Numeric) * _n.gpu_memory_bytes),
        "capacity_cpu_milli": func.sum(_n.cpu_milli),
        "capacity_memory_bytes": func.sum(_n.memory_bytes),
    }
    given.update({name: func.sum(case((takes_pods, value), else_=0)) for name, value in free.items()})
    keys = _keys(query)
    part = _part(keys, given, nodes.join(clusters, _c.id == _n.cluster_id)).where(_n.present, ~_c.removed)
    if query.cluster_id is not None:
        part = part.where(_n.cluster_id == query.cluster_id)
    return part


def _projects(query: UseQuery) -> Select[Any]:
    """All that there are: one that uses nothing is told of, too."""
    p = projects.c
    part = select(*_columns((p.id, literal("")), {})).where(p.deleted_at.is_(None))
    if query.projects is not None:
        part = part.where(p.id.in_(sorted(query.projects)))
    return part if query.project_id is None else part.where(p.id == query.project_id)


def _named(by: By, sums: CTE) -> tuple[list[ColumnElement[Any]], FromClause]:
    """What a row is called, and the tables that know it."""
    nothing = cast(null(), _w.name.type)
    texts: dict[str, ColumnElement[Any]] = dict.fromkeys(_TEXTS, nothing)
    quota: ColumnElement[Any] = cast(null(), Numeric)
    source: FromClause = sums
    match by:
        case By.PROJECT:
            source = sums.outerjoin(projects, projects.c.id == sums.c.k1)
            texts["name"], quota = func.coalesce(projects.c.name, sums.c.k1), projects.c.gpu_quota_milli
        case By.USER:
            texts["name"] = submitter(sums.c.k1)
        case By.NODE_POOL | By.NODE:
            source = sums.outerjoin(clusters, _c.id == sums.c.k1)
            texts |= {"name": sums.c.k2, "cluster_name": _c.name}
        case By.WORKLOAD:
            w = _by_id(_w.id == sums.c.k1, "named")
            source = (
                sums.join(w, true())
                .outerjoin(projects, projects.c.id == w.c.project_id)
                .outerjoin(clusters, _c.id == w.c.cluster_id)
            )
            texts |= {
                "name": w.c.name,
                "project_name": projects.c.name,
                "cluster_name": _c.name,
                "submitted_by": submitter(w.c.submitted_by),
                "phase": w.c.phase,
            }
    return [*(text.label(name) for name, text in texts.items()), quota.label("gpu_quota_milli")], source
