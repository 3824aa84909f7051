"""Who used what in a span of time: sums of the hours, from the projections."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from events.hours import MILLI_SECONDS_PER_HOUR
from events.money import amount_text
from projections.unanswered import TooManyRowsError
from projections.use_hours import (
    MICROS_PER_HOUR,
    MILLI_MICROS_PER_HOUR,
    MOST_SPANS,
    OF_NODES,
    Amount,
    By,
    Group,
    HoursQuery,
)
from services.api import answers
from services.api.clusters import require_some_role
from services.api.context import MIN_SEQ, Call, read_answer, rfc3339
from services.api.errors import bad_request
from services.api.issues import Issue, shown
from services.api.moments import parse_moment
from services.api.operations import Answer, Query, reads
from services.api.paths import USE_HOURS
from services.api.places import directory_fresh
from services.api.workloads import PAGE

HOUR: Final = timedelta(hours=1)
FIRST: Final = datetime(1, 1, 1, 1, tzinfo=UTC)
"""The end of the first span that there can be."""
PER: Final = ("hour", "day", "month")
_DIGITS: Final = 6
"""Of hours after the point: a millionth of an hour is 3.6 ms."""

WHAT: Final = (
    Query(name="by", type="choice", options=tuple(By), default=By.PROJECT, help="What each row is the sum of."),
    Query(
        name="from",
        read=parse_moment,
        help="Beginning of the span (RFC 3339), rounded down to the hour. Default: the beginning of its month.",
    ),
    Query(name="to", read=parse_moment, help="End of the span, rounded up to the hour; at most now. Default: now."),
    Query(
        name="per",
        type="choice",
        options=PER,
        help=f"Also give the sums of each hour, day or month (UTC), at most {MOST_SPANS:,} of them.",
    ),
    Query(name="projectId", help="Only what this project used."),
    Query(name="owner", help="Only what workloads of this user used (subject)."),
    Query(name="clusterId", help="Only what was in this cluster."),
)


def _rules(values: Mapping[str, Any], _: AbstractSet[str]) -> Iterator[Issue]:
    begin, end = values["from"], values["to"]
    if begin is not None and end is not None and begin >= end:
        details = f"must be before `to`, which is {rfc3339(end)}, got {rfc3339(begin)}"
        yield Issue(field="from", details=details, rule="max", involves=frozenset({"to"}))


@reads(
    USE_HOURS,
    tag="Organisation",
    summary="Get who used what in a span of time: by project, department, user, node pool, priority, cluster or model",
    query=(*WHAT, *PAGE, MIN_SEQ),
    rules=_rules,
    errors=(403,),
)
async def list_use_hours(call: Call) -> Answer[answers.UseHours]:
    require_some_role(call)
    headers = await directory_fresh(call) | await call.fresh()
    values, by = call.values, By(call.values["by"])
    begin, end = _span(values["from"], values["to"], datetime.now(UTC))
    prices, periods = call.api.directory.prices, _borders(begin, end, values["per"])
    query = HoursQuery(
        by=by,
        borders=periods,
        prices=prices,
        projects=call.grants.readable_projects,
        project_id=_project(call),
        owners=_owners(call),
        cluster_id=values["clusterId"],
    )
    try:
        found = await call.queries.use_hours(query)
    except TooManyRowsError as error:
        details = f"is more than can be added up at once: {error}; ask for a shorter time, or longer periods"
        raise bad_request([Issue(field="from", details=details, rule="max", involves=frozenset({"per"}))]) from None
    sums = await asyncio.to_thread(_sums, found.amounts)
    order = sorted(sums, key=lambda group: (-sums[group].whole.reserved, -sums[group].whole.waiting, group))
    if by in OF_NODES:
        # What only waits has no node yet.
        order = [group for group in order if sums[group].whole.reserved or sums[group].whole.runs]
    offset, limit = values["offset"], values["limit"]
    page = order[offset : offset + limit]
    named = _Names(
        by,
        found.names,
        await call.api.actors.subjects_of({group[0] for group in page if by is By.USER}),
        bool(prices.currency),
    )
    total = Amount()
    for one in sums.values():
        total.add(one.whole)
    answer = answers.UseHours(
        begins=begin,
        ends=end,
        rows=[_row(named, group, sums[group], periods if values["per"] else ()) for group in page],
        total=answers.HoursSum(**_amounts(total, waits=True, priced=named.priced)),
        currency=prices.currency or None,
        unpriced_models=sorted({model for (_, _, model), amount in found.amounts.items() if amount.unpriced}),
        next=offset + limit if len(order) > offset + limit else None,
    )
    return read_answer(answer, found.seq, headers)


# -- the span --------------------------------------------------------------------------------------------------------


def _span(begin: datetime | None, end: datetime | None, now: datetime) -> tuple[datetime, datetime]:
    """Whole hours, but for an end that is now. Raises 400 of the future, and of what ends before it begins."""
    if end is None or end > now:
        end = now
    elif end != _full_hour(end):
        end = min(_full_hour(end) + HOUR, now)
    if begin is None:
        # The month that ends here, at the border of two; before the first year there is none.
        last = max(end, FIRST) - timedelta(microseconds=1)
        begin = datetime(last.year, last.month, 1, tzinfo=UTC)
    begin = _full_hour(begin)
    if begin >= end:
        details = f"must be a time before the end of the span, which is {rfc3339(end)}, got {rfc3339(begin)}"
        raise bad_request([Issue(field="from", details=details, rule="max", involves=frozenset({"to"}))])
    return begin, end


def _full_hour(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)


def _borders(begin: datetime, end: datetime, per: str | None) -> tuple[datetime, ...]:
    """Raises 400 where there are too many periods."""
    borders = [begin]
    while per is not None and (following := _next(borders[-1], per)) < end:
        borders.append(following)
        if len(borders) > MOST_SPANS:
            details = f"makes more than {MOST_SPANS:,} periods of this span; ask for a shorter time, or longer periods"
            raise bad_request([Issue(field="per", details=details, rule="max", involves=frozenset({"from"}))])
    return (*borders, end)


def _next(moment: datetime, per: str) -> datetime:
    """When the period after the one of this moment begins."""
    match per:
        case "hour":
            return moment + HOUR
        case "day":
            return moment.replace(hour=0) + timedelta(days=1)
        case _:
            return (moment.replace(day=1, hour=0) + timedelta(days=32)).replace(day=1)


def _project(call: Call) -> str | None:
    """Raises 400 of one that the caller may not read, or that never was. A deleted one has a past."""
    project: str | None = call.values["projectId"]
    if project is not None and not call.may_read(project):
        details = f"there is no project {shown(project)} that you may read; give its id"
        raise bad_request([Issue(field="projectId", details=details)])
    return project


def _owners(call: Call) -> frozenset[str] | None:
    """Ids of the people who are called so, one for each issuer; of a forgotten one, the id is the name."""
    owner: str | None = call.values["owner"]
    if owner is None:
        return None
    return frozenset({owner} | {id_ for id_, subject in call.api.actors.subjects.items() if subject == owner})


# -- sums ------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Sums:
    """Of one group: everything, and by number of the period."""

    whole: Amount
    periods: dict[int, Amount]


def _sums(amounts: Mapping[tuple[Group, int, str], Amount]) -> dict[Group, _Sums]:
    """Of all GPU models."""
    sums: dict[Group, _Sums] = {}
    for (group, period, _), amount in amounts.items():
        one = sums.setdefault(group, _Sums(Amount(), {}))
        one.whole.add(amount)
        one.periods.setdefault(period, Amount()).add(amount)
    return sums


@dataclass(frozen=True, slots=True)
class _Names:
    """What groups are called."""

    by: By
    names: Mapping[str, str]
    """Of projects, departments or clusters, by id."""
    subjects: Mapping[str, str]
    priced: bool
    """Whether there are prices at all."""

    def of(self, group: Group) -> tuple[str, str | None, str | None]:
        """(name, id, cluster's name)."""
        match self.by:
            case By.PROJECT | By.DEPARTMENT | By.CLUSTER:
                return self.names.get(group[0], group[0]), group[0], None
            case By.USER:
                return self.subjects.get(group[0], group[0]), None, None
            case By.NODE_POOL:
                return group[1], None, self.names.get(group[0], group[0])
            case By.PRIORITY | By.GPU_MODEL:
                return group[0], None, None


def _row(named: _Names, group: Group, sums: _Sums, periods: Sequence[datetime]) -> answers.HoursRow:
    """`periods`: their borders; empty where the sums of periods are not asked for."""
    name, id_, cluster = named.of(group)
    waits = named.by not in OF_NODES
    return answers.HoursRow(
        name=name,
        id=id_,
        cluster_name=cluster,
        periods=[
            answers.HoursPeriod(
                begins=periods[number], ends=periods[number + 1], **_amounts(amount, waits=waits, priced=named.priced)
            )
            for number, amount in sorted(sums.periods.items())
            if periods
        ],
        **_amounts(sums.whole, waits=waits, priced=named.priced),
    )


def _amounts(amount: Amount, *, waits: bool, priced: bool) -> dict[str, Any]:
    """Fields of a HoursSum."""
    all_unpriced = not priced or (amount.unpriced and amount.unpriced == amount.reserved)
    return {
        "reserved_gpu_hours": round(amount.reserved / MILLI_MICROS_PER_HOUR, _DIGITS),
        "used_gpu_hours": round(amount.used / MILLI_SECONDS_PER_HOUR, _DIGITS) if amount.measured else None,
        "measured_gpu_hours": round(amount.measured / MILLI_SECONDS_PER_HOUR, _DIGITS),
        "waiting_hours": round(amount.waiting / MICROS_PER_HOUR, _DIGITS) if waits else None,
        "runs": amount.runs,
        "cost": None if all_unpriced else amount_text(amount.cost_micros),
        "unpriced_gpu_hours": round(amount.unpriced / MILLI_MICROS_PER_HOUR, _DIGITS),
    }
