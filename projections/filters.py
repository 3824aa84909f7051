"""What a list of workloads can be asked for: fields, operators, order and bounds, checked before Postgres sees them.

A question that cannot be answered is an InvalidQueryError that names the field, the rule, what was given and what would
do. Nothing here runs a query.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from datetime import UTC, datetime, timedelta
from functools import partial
from math import isfinite
from typing import Any, Final, Literal

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    DateTime,
    Double,
    FromClause,
    Text,
    and_,
    any_,
    bindparam,
    case,
    exists,
    func,
    literal,
    not_,
    or_,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import JSONB

from events.nearest import did_you_mean
from events.phases import CLUSTER_LOST, FINISHED, RUNS, Phase, PodPhase
from events.workload.kinds import INFERENCE
from events.workload.spec import WHOLE_GPU_MILLI
from projections.columns import Column, Type, columns_of
from projections.selectors import Requirement, selected
from projections.tables import clusters, pods, projects, usage_samples, workloads
from projections.workloads.rows import WorkloadRow

MAX_LIMIT: Final = 500
"""Rows of one page (public-api.md)."""
MAX_OFFSET: Final = 10_000_000
"""Deeper pages are nobody's reading; the export has no bound."""
MAX_SORTED: Final = 5
"""Fields to sort by in one query."""
MAX_FILTERS: Final = 32
MAX_VALUE_CHARACTERS: Final = 1000
"""Of a filter's value or of the search; no column that is searched holds longer ones."""
MAX_BIGINT: Final = 2**63 - 1

OPERATORS: Final = ("==", "!=", "<=", ">=", "=@", "!@", "=^", "=$")
"""Equal, not equal, at most, at least, contains, does not contain, starts with, ends with. The last four do not look
at the case of the letters a to z."""

WAITING_PHASES: Final = (Phase.CREATING.value, Phase.PENDING.value, Phase.RESUMING.value)
"""Phases that count as pending time: it should run and has no node."""

Kind = Literal["text", "integer", "number", "time", "texts"]
_KINDS: Final[dict[Type, Kind]] = {
    "text": "text",
    "integer": "integer",
    "number": "number",
    "time": "time",
    "texts": "texts",
}
"""Of what can be compared; a column of another type cannot be public yet."""
_KIND_OPERATORS: Final[dict[Kind, tuple[str, ...]]] = {
    "text": OPERATORS,
    "integer": ("==", "!=", "<=", ">="),
    "number": ("==", "!=", "<=", ">="),
    "time": ("==", "!=", "<=", ">="),
    "texts": ("==", "!=", "=@", "!@", "=^", "=$"),
}
_KIND_WORDS: Final[dict[Kind, str]] = {
    "text": "a text",
    "integer": "a whole number",
    "number": "a number",
    "time": "a time such as 2026-11-21T09:30:00Z",
    "texts": "a text",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidQueryError(Exception):
    """A question that has no answer; nothing was asked of Postgres."""

    field: str
    """Of the request: `filterBy`, `sortBy`, `search`, `limit` or `offset`."""
    rule: str
    given: str
    message: str
    """One sentence: what is wrong, and what would do."""

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    field: str
    op: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadQuery:
    """Which workloads, in which order."""

    projects: frozenset[str] | None
    """Ids of the projects that the asker may read; None: all."""
    deleted: bool = False
    """Deleted ones instead of living ones."""
    filters: tuple[Filter, ...] = ()
    """All of them hold."""
    subjects: Mapping[str, str] = dataclass_field(default_factory=dict[str, str])
    """What people call whom an actor id means: `submittedBy` is asked for, and put in order, by that."""
    labels: tuple[Requirement, ...] = ()
    """All of them hold."""
    search: str | None = None
    """Part of a name, id, owner, project, cluster, phase or image."""
    sort_by: str = "createdAt"
    """Fields with commas between them, the first above all; after a '-' the other way round."""
    descending: bool = True
    offset: int = 0
    limit: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    kind: Kind
    expression: ColumnElement[Any]
    nullable: bool = False
    values: Collection[str] = ()
    """Where only these make sense to ask for."""
    ranks: Mapping[str, int] = dataclass_field(default_factory=dict[str, int])
    """Names for some of its whole numbers."""
    synonyms: Mapping[str, str] = dataclass_field(default_factory=dict[str, str])
    """Other words for some of its values, in small letters."""


NOW: Final = "now"
"""The parameter of a statement that holds the time of which it asks; None: now."""


def _milli(column: ColumnElement[Any]) -> ColumnElement[Any]:
    return column.cast(Double) / 1000.0


def _total_seconds(column: ColumnElement[Any], phases: tuple[str, ...]) -> ColumnElement[Any]:
    """Past stays in these phases, and the present one up to now."""
    now = func.coalesce(bindparam(NOW, value=None, type_=DateTime(timezone=True)), func.now())
    present = func.extract("epoch", now - workloads.c.phase_updated_at)
    going_on = and_(workloads.c.phase.in_(phases), workloads.c.deleted_at.is_(None))
    return column.cast(Double) / 1e6 + case((going_on, func.greatest(present, 0).cast(Double)), else_=0.0)


_w = workloads.c
IDLE: Final = timedelta(minutes=5)
"""After which a GPU that computes nothing counts as idle (S076)."""
MEASURED: Final = timedelta(minutes=2)
"""How old a sample may be to tell of now: agents send one every ten seconds, and of many runs each is kept less often.
And how far ahead: one of a clock that was wrong for a moment would otherwise be the newest for as long as it was ahead.
"""


def _goes_on() -> ColumnElement[bool]:
    """Whether a run with GPUs is one of its workload still. One that was left on a lost cluster has a row that is not
    over before it is known to have ended; but the workload goes on without it, and what it had done counts as lost.
    """
    p = pods.c
    # A suspension may leave runs of an earlier attempt that stop, too. They have other reasons.
    left = and_(p.attempt < _w.attempt, p.phase == PodPhase.STOPPING.value, p.reason == CLUSTER_LOST)
    return and_(p.workload_id == _w.id, p.finished_at.is_(None), p.gpu_milli > 0, not_(left))


def _idle_gpus() -> ColumnElement[Any]:
    """GPUs of runs that were measured all that time, and never found to compute. The past has no runs."""
    p, u, now = pods.c, usage_samples.c, func.now()
    percent = u.gpu_utilization_percent
    told = (
        select(
            func.min(u.at).label("first"),
            func.max(u.at).label("last"),
            func.max(u.at).filter(percent > 0).label("busy"),
        )
        .where(
            u.workload_id == p.workload_id,
            u.cluster_id == _w.cluster_id,
            u.pod_set == p.pod_set,
            u.index == p.index,
            u.attempt == p.attempt,
            u.try_ == p.try_,
            u.at.between(now - literal(IDLE + MEASURED), now + literal(MEASURED)),
            percent.is_not(None),
        )
        .correlate(workloads, pods)
        .lateral("told")
    )
    since = now - literal(IDLE)
    idle = and_(told.c.first <= since, func.coalesce(told.c.busy <= since, true()))
    found = (
        select(func.sum(case((idle, func.json_array_length(p.devices)), else_=0)).cast(BigInteger))
        .select_from(pods.join(told, true()))
        .where(_goes_on())
        .where(told.c.last >= now - literal(MEASURED))
        .correlate(workloads)
        .scalar_subquery()
    )
    # Whatever holds none is not looked at: a list may be put in order by this.
    return case((_w.gpu_allocated_milli > 0, found), else_=0)


def _work_at_risk() -> ColumnElement[Any]:
    """GPU-hours of runs that go on, since the newest checkpoint. The past has no runs."""
    p = pods.c
    since = func.greatest(p.started_at, _w.checkpoint_at)
    seconds = func.greatest(func.extract("epoch", func.now() - since).cast(Double), 0.0)
    found = (
        select(func.sum(p.gpu_milli * seconds) / (WHOLE_GPU_MILLI * 3600.0))
        .where(_goes_on(), p.started_at.is_not(None))
        .correlate(workloads)
        .scalar_subquery()
    )
    return case(
        (_w.type == INFERENCE.name, None),
        (_w.gpu_allocated_milli > 0, func.coalesce(found, 0.0)),
        else_=0.0,
    ).cast(Double)


SUBJECTS: Final = "subjects"
"""The parameter of a statement that holds `WorkloadQuery.subjects`."""


def submitter(actor_id: ColumnElement[Any]) -> ColumnElement[Any]:
    """By name, where the table has an id."""
    named = bindparam(SUBJECTS, value={}, type_=JSONB).op("->>", return_type=Text())(actor_id)
    return func.coalesce(named, actor_id).collate("C")


_submitter: Final = submitter(_w.submitted_by)
total_pending_seconds: Final = _total_seconds(_w.pending_micros, WAITING_PHASES)
total_running_seconds: Final = _total_seconds(_w.running_micros, tuple(sorted(RUNS)))

UNSTORED: Final[dict[str, ColumnElement[Any]]] = {
    "project_name": projects.c.name,
    "department_id": projects.c.department_id,
    "department_name": projects.c.department_name,
    "cluster_name": clusters.c.name,
    "cluster_lost_since": case(
        (and_(_w.live_pods > 0, ~clusters.c.connected, ~clusters.c.removed), clusters.c.connection_changed_at)
    ),
    "total_pending_seconds": total_pending_seconds,
    "total_running_seconds": total_running_seconds,
    "idle_gpus": _idle_gpus(),
    "work_at_risk": _work_at_risk(),
}
"""How a query of workloads makes the columns that their table does not have."""


def _expression(column: Column[Any]) -> ColumnElement[Any]:
    if column.name == _w.submitted_by.name:
        return _submitter
    return workloads.c[column.name] if column.stored else UNSTORED[column.name]


def _fields() -> Iterator[tuple[str, Field]]:
    for column, public in ((column, column.public) for column in columns_of(WorkloadRow)):
        if public is None:
            continue
        expression = _expression(column)
        field = Field(
            kind="number" if column.in_thousandths else _KINDS[column.type],
            expression=_milli(expression) if column.in_thousandths else expression,
            nullable=column.null,
            values=public.values,
            ranks=public.ranks,
            synonyms={word.lower(): value for word, value in public.synonyms.items()},
        )
        yield from ((name, field) for name in (public.name, *public.aliases))


FIELDS: Final[dict[str, Field]] = dict(_fields())
"""What can be filtered and sorted by: every public column of a workload, under each of its names."""
_SEARCHED: Final = tuple(_expression(c) for c in columns_of(WorkloadRow) if c.public is not None and c.public.searched)


def source() -> FromClause:
    """The workloads with the names of their project, department and cluster."""
    return workloads.outerjoin(projects, projects.c.id == _w.project_id).outerjoin(
        clusters, clusters.c.id == _w.cluster_id
    )


def conditions(query: WorkloadQuery) -> ColumnElement[bool]:
    """The WHERE of a query. Raises InvalidQueryError."""
    _check_bounds(query)
    parts: list[ColumnElement[bool]] = [_w.deleted_at.is_not(None) if query.deleted else _w.deleted_at.is_(None)]
    if query.projects is not None:
        parts.append(_w.project_id.in_(sorted(query.projects)))
    parts.extend(_condition(f, query.subjects) for f in query.filters)
    if query.labels:
        parts.append(selected(query.labels, by_function=query.projects is not None))
    if query.search:
        parts.append(_search(query.search))
    return and_(true(), *parts)


def problems(query: WorkloadQuery) -> Iterator[InvalidQueryError]:
    """All for which `conditions` and `order` refuse the query."""
    checks: list[Callable[[], object]] = [partial(_check_bounds, query), partial(order, query)]
    checks += [partial(_condition, given, query.subjects) for given in query.filters[:MAX_FILTERS]]
    if query.search:
        checks.append(partial(_search, query.search))
    for check in checks:
        try:
            check()
        except InvalidQueryError as error:
            yield error


def order(query: WorkloadQuery) -> tuple[ColumnElement[Any], ...]:
    """The ORDER BY of a query: always total, so pages neither repeat nor skip. Raises InvalidQueryError."""
    names = query.sort_by.split(",")
    if len(names) > MAX_SORTED:
        raise InvalidQueryError(
            field="sortBy",
            rule="max_items",
            given=str(len(names)),
            message=f"{len(names)} fields are too many; sort by at most {MAX_SORTED}",
        )
    by = [_ordered(name.strip(), descending=query.descending) for name in names]
    down = query.descending is not names[-1].strip().startswith("-")
    return *by, (_w.id.desc() if down else _w.id.asc())


def _ordered(name: str, *, descending: bool) -> ColumnElement[Any]:
    """By one field; after a '-' the other way round. Raises InvalidQueryError."""
    field = FIELDS.get(name.removeprefix("-"))
    if field is None:
        raise _unknown_field("sortBy", name.removeprefix("-"))
    expression = func.array_to_string(field.expression, ",") if field.kind == "texts" else field.expression
    by = expression.desc() if descending is not name.startswith("-") else expression.asc()
    # Only where it can be null: NULLS LAST would keep the indexes from being read backwards.
    return by.nulls_last() if field.nullable else by


def check_text(field: str, given: str) -> str:
    """The text, where Postgres can hold it. Raises InvalidQueryError."""
    if len(given) > MAX_VALUE_CHARACTERS:
        raise InvalidQueryError(
            field=field,
            rule="max_length",
            given=f"{given[:50]}…",
            message=f"{len(given)} characters are too many; at most {MAX_VALUE_CHARACTERS} are looked for",
        )
    if "\x00" in given or any("\ud800" <= character <= "\udfff" for character in given):
        raise InvalidQueryError(
            field=field,
            rule="text",
            given=repr(given),
            message=f"{given!r} holds what no text can (NUL, or half a surrogate pair); leave it out",
        )
    return given


def _check_bounds(query: WorkloadQuery) -> None:
    for field, given, least, most in (
        ("limit", query.limit, 1, MAX_LIMIT),
        ("offset", query.offset, 0, MAX_OFFSET),
    ):
        if not least <= given <= most:
            raise InvalidQueryError(
                field=field,
                rule="range",
                given=str(given)[:50],
                message=f"{str(given)[:50]} is out of range; give {least} to {most}",
            )
    if len(query.filters) > MAX_FILTERS:
        raise InvalidQueryError(
            field="filterBy",
            rule="max_items",
            given=str(len(query.filters)),
            message=f"{len(query.filters)} filters are too many; give at most {MAX_FILTERS}",
        )


def _unknown_field(parameter: str, given: str) -> InvalidQueryError:
    return InvalidQueryError(
        field=parameter,
        rule="known_field",
        given=given[:100],
        message=f"there is no field {given[:100]!r}; {_hint(given, FIELDS)}"
        f"known fields are {', '.join(sorted(FIELDS))}",
    )


def _hint(given: str, known: Iterable[str]) -> str:
    """`did you mean 'phase'? `, or nothing where no word is near."""
    hint = did_you_mean(given[:100], known)
    return f"{hint} " if hint else ""


def _condition(given: Filter, subjects: Mapping[str, str]) -> ColumnElement[bool]:
    field = FIELDS.get(given.field)
    if field is None:
        raise _unknown_field("filterBy", given.field)
    allowed = _KIND_OPERATORS[field.kind]
    if given.op not in allowed:
        raise InvalidQueryError(
            field="filterBy",
            rule="operator",
            given=given.op[:20],
            message=f"{given.field} is {_KIND_WORDS[field.kind]} and is not compared with {given.op[:20]!r}; "
            f"use one of {' '.join(allowed)}",
        )
    if field.kind == "texts":
        return _any_of_texts(field, given)
    value = _value(field, given)
    if field.expression is _submitter and given.op == "==":
        # By id, as the index has it.
        named = [actor for actor, subject in subjects.items() if subject == value]
        return _w.submitted_by.in_(named if value in subjects else [*named, value])
    return _compare(field.expression, given.op, value)


def _any_of_texts(field: Field, given: Filter) -> ColumnElement[bool]:
    value = check_text("filterBy", given.value)
    if given.op in ("==", "!="):
        held = literal(value) == any_(field.expression)
        return held if given.op == "==" else not_(held)
    elements = func.unnest(field.expression).table_valued("element").render_derived()
    positive = "=@" if given.op == "!@" else given.op
    found = exists(select(literal(1)).select_from(elements).where(_compare(elements.c.element, positive, value)))
    return not_(found) if given.op == "!@" else found


def _compare(column: ColumnElement[Any], op: str, value: object) -> ColumnElement[bool]:
    match op:
        case "==":
            return column == value
        case "!=":
            return column.is_distinct_from(value)
        case "<=":
            return column <= value
        case ">=":
            return column >= value
        case "=@":
            return contains(column, value)
        case "!@":
            return func.coalesce(not_(contains(column, value)), True)
        case "=^":
            return _like(column, f"{_escaped(value)}%")
        case "=$":
            return _like(column, f"%{_escaped(value)}")
        case _:
            raise AssertionError(f"an operator that nobody checked: {op!r}")


def contains(column: ColumnElement[Any], value: object) -> ColumnElement[bool]:
    """Whether a text holds another, in any case."""
    return _like(column, f"%{_escaped(value)}%")


def _like(column: ColumnElement[Any], pattern: str) -> ColumnElement[bool]:
    # Both sides through Postgres' own lower: Python would fold more letters than collation C does.
    return func.lower(column).like(func.lower(pattern), escape="\\")


def _escaped(value: object) -> str:
    return str(value).replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def containing(column: ColumnElement[Any], part: str) -> ColumnElement[bool]:
    """Whether a text has this in it, whatever its case. Raises InvalidQueryError."""
    return _like(column, f"%{_escaped(check_text('search', part))}%")


def _search(given: str) -> ColumnElement[bool]:
    text = check_text("search", given)
    return or_(*(contains(column, text) for column in _SEARCHED))


def _value(field: Field, given: Filter) -> object:
    text = check_text("filterBy", given.value)
    if field.values and given.op in ("==", "!="):
        return _known_value(field, given.field, text)
    if text.lower() in field.ranks:
        return literal(field.ranks[text.lower()], BigInteger)
    try:
        return _PARSERS[field.kind](text)
    except (ValueError, OverflowError):
        raise InvalidQueryError(
            field="filterBy",
            rule=field.kind,
            given=text,
            message=f"{given.field} is compared with {_KIND_WORDS[field.kind]}"
            + (f" or one of {', '.join(field.ranks)}" if field.ranks else "")
            + f", not with {text!r}",
        ) from None


def _known_value(field: Field, name: str, text: str) -> str:
    """One of the field's values, however its capitals were typed."""
    text = field.synonyms.get(text.lower(), text)
    for value in field.values:
        if value.lower() == text.lower():
            return value
    raise InvalidQueryError(
        field="filterBy",
        rule="known_value",
        given=text,
        message=f"{name} is never {text!r}; {_hint(text, field.values)}it is one of {', '.join(field.values)}",
    )


def _integer(text: str) -> ColumnElement[int]:
    value = int(text)
    if abs(value) > MAX_BIGINT:
        raise ValueError(text)
    return literal(value, BigInteger)


def _number(text: str) -> ColumnElement[float]:
    value = float(text)
    if not isfinite(value):
        raise ValueError(text)
    return literal(value, Double)


def _time(text: str) -> datetime:
    value = datetime.fromisoformat(text)
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


_PARSERS: Final[dict[Kind, Callable[[str], object]]] = {
    "text": str,
    "texts": str,
    "integer": _integer,
    "number": _number,
    "time": _time,
}


OVER_OR_GOING: Final = FINISHED | {Phase.DELETING}
"""Phases of what has ended, and of what may have: a Failed workload that is deleted while pods of it still stop."""


def going_on_only(query: WorkloadQuery) -> ColumnElement[bool]:
    """Implied by some filters and added to them, so that the small index of what is going on can be read."""
    over = {phase.lower() for phase in OVER_OR_GOING}
    for given in query.filters:
        if given.field == "phase" and given.op == "==" and given.value.lower() not in over:
            return _w.completed_at.is_(None)
    return true()
