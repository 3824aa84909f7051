"""`muster usage`: who used what in a span of time."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Final

import typer

from muster.cli.command import Session, command
from muster.cli.complete import project_names
from muster.cli.exits import usage as wrong_usage
from muster.cli.names import find_cluster, project_id
from muster.cli.options import ClusterOption
from muster.cli.output import Column, Format
from muster.cli.values import (
    Row,
    ValueProblem,
    format_number,
    format_utc,
    number_of,
    parse_ago,
    parse_time,
    row_of,
    rows_of,
    text_of,
    texts_of,
)

_LIST_ROWS: Final = 100
_PAGE_ROWS: Final = 500
"""The most that one answer holds."""


class By(StrEnum):
    PROJECT = "project"
    DEPARTMENT = "department"
    USER = "user"
    POOL = "pool"
    PRIORITY = "priority"
    CLUSTER = "cluster"
    MODEL = "model"


_BY: Final = {By.POOL: "nodePool", By.MODEL: "gpuModel"}
"""As the API calls them, where it is another name."""


class Per(StrEnum):
    HOUR = "hour"
    DAY = "day"
    MONTH = "month"


_THIS_MONTH: Final = "this-month"
_LAST_MONTH: Final = "last-month"
_PERIOD_CHARACTERS: Final = {Per.HOUR: 16, Per.DAY: 10, Per.MONTH: 7}
"""Of the time at which a period begins: what tells it from others."""


def _used(row: Row) -> str:
    """Of what nobody measured it is not known."""
    return "-" if row.get("usedGpuHours") is None else format_number(number_of(row, "usedGpuHours"))


_NAME: Final = Column("NAME", "name")
_CLUSTER: Final = Column("CLUSTER", "clusterName")
_AMOUNTS: Final = (
    Column("GPU-HOURS", "reservedGpuHours"),
    Column("USED-HOURS", "usedGpuHours", show=_used, yields=4),
    Column("MEASURED-HOURS", "measuredGpuHours", yields=3),
    Column("WAITING-HOURS", "waitingHours", yields=2),
    Column("RUNS", "runs", yields=1),
)
_UNPRICED: Final = Column("UNPRICED-HOURS", "unpricedGpuHours", rare=True)
_ID: Final = Column("ID", "id", wide=True)


def _cost(row: Row) -> str:
    """Of what has a price; where part of it has none, it is more."""
    if row.get("cost") is None:
        return "-"
    return f"{'>= ' if number_of(row, 'unpricedGpuHours') else ''}{text_of(row, 'cost')}"


def usage_columns(by: By, per: Per | None, *, priced: bool = False) -> tuple[Column, ...]:
    """Of the table. Where there are no prices, nobody looks for costs."""
    period = Column("PERIOD", "begins", show=lambda row: text_of(row, "begins")[: _PERIOD_CHARACTERS[per or Per.DAY]])
    return (
        *((period, Column("ENDS", "ends", rare=True)) if per else ()),
        _NAME,
        *((_CLUSTER,) if by is By.POOL else ()),
        *_AMOUNTS,
        Column("COST", "cost", show=_cost, rare=not priced),
        _UNPRICED,
        *((_ID,) if by in {By.PROJECT, By.DEPARTMENT, By.CLUSTER} else ()),
    )


def add_usage(root: typer.Typer) -> None:
    @command(
        root,
        "usage",
        examples="""
        muster usage                                    # this month, by project
        muster usage --from last-month --by user -p vision
        muster usage --from 7d --per day
        muster usage --from last-month --per day -o png > usage.png
        muster usage --from 2026-10-01 --to 2026-11-01 --by model -o csv
        """,
        columns=usage_columns(By.POOL, Per.DAY),
        draws=True,
    )
    def usage(
        session: Session,
        *,
        by: Annotated[By, typer.Option("--by", help="What each row is the sum of.")] = By.PROJECT,
        from_: Annotated[
            str,
            typer.Option(
                "--from",
                metavar="TIME",
                help="Beginning: a time, a date, a time ago such as 7d, this-month or last-month.",
            ),
        ] = _THIS_MONTH,
        to: Annotated[
            str | None,
            typer.Option(
                "--to", metavar="TIME", help="End, in the same forms. Default: now; after last-month, its end."
            ),
        ] = None,
        per: Annotated[Per | None, typer.Option("--per", help="A row for each hour, day or month (UTC).")] = None,
        project: Annotated[
            str | None,
            typer.Option(
                "--project", "-p", help="Only what this project used (name or id).", autocompletion=project_names
            ),
        ] = None,
        owner: Annotated[
            str | None, typer.Option("--owner", metavar="USER", help="Only what workloads of this user used.")
        ] = None,
        cluster: ClusterOption = None,
        limit: Annotated[
            int, typer.Option("--limit", help="Maximum number of names; 0 shows all.", min=0)
        ] = _LIST_ROWS,
    ) -> None:
        """Show who used what in a span of time: GPU hours, cost, waiting time and runs.

        GPU-HOURS are reserved: a GPU counts from the moment that a pod gets its node until the pod has ended, also
        while it starts or is being stopped. A share of a GPU counts as its fraction. WAITING-HOURS add up how long
        workloads waited for nodes. What runs or waits now counts up to now. USED-HOURS tell how busy the GPUs were,
        which is known of the MEASURED-HOURS only. An hour is measured soon after its end.

        COST is what the GPU hours cost by the prices of their time (muster price). Where part of it has no price, it is
        at least that (>=).

        The beginning is rounded down, and the end up, to full hours in UTC.

        -o png draws the GPU hours. It needs matplotlib: pip install 'muster[charts]'.

        You see sums of the projects that you may read. The default project of your context does not limit them.
        """
        parameters: list[tuple[str, str | int]] = [("by", _BY.get(by, by.value))]
        parameters += _span(from_, to, now())
        parameters += [("per", per.value)] if per else []
        parameters += [("projectId", project_id(session.api, project))] if project else []
        parameters += [("owner", owner)] if owner else []
        parameters += [("clusterId", text_of(find_cluster(session.api, cluster), "id"))] if cluster else []
        _show(session, parameters, limit, by, per)


def _show(session: Session, parameters: list[tuple[str, str | int]], limit: int, by: By, per: Per | None) -> None:
    found, rows, more = _fetch(session, parameters, limit)
    if session.out.style.format is Format.PNG:
        session.out.picture(_picture(found, rows, by, per))
    else:
        shown = _by_period(rows) if per else rows
        columns = usage_columns(by, per, priced=bool(text_of(found, "currency")))
        session.out.rows(shown, columns, empty="nothing was reserved, and nothing waited")
    if more:
        session.out.talk(f"there are more than {limit} names; --limit 0 shows all")
    if session.out.style.format in {Format.TABLE, Format.WIDE}:
        session.out.talk(told_total(found))
        if text_of(found, "currency") and (unpriced := told_unpriced(found)):
            session.out.talk(unpriced)


def now() -> datetime:
    return datetime.now(UTC)


def _span(begin: str, end: str | None, today: datetime) -> list[tuple[str, str | int]]:
    """The parameters `from` and `to`. Raises Problem (usage)."""
    parameters: list[tuple[str, str | int]] = [("from", format_utc(_time("--from", begin, today)))]
    if end is None and begin == _LAST_MONTH:
        end = _THIS_MONTH
    return parameters if end is None else [*parameters, ("to", format_utc(_time("--to", end, today)))]


def _time(flag: str, given: str, today: datetime) -> datetime:
    month = today.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    if given == _THIS_MONTH:
        return month
    if given == _LAST_MONTH:
        return (month - timedelta(days=1)).replace(day=1)
    if (time := parse_time(given)) is not None:
        return time
    try:
        return today - timedelta(seconds=parse_ago(given))
    except ValueProblem:
        forms = f"a time ago as 7d, {_THIS_MONTH} or {_LAST_MONTH}"
        todo = f"write a date as 2030-01-31, a time as 2030-01-31T12:00:00Z, {forms}"
        raise wrong_usage(f"{flag}: {given!r} is no time", todo=todo) from None


def _fetch(session: Session, parameters: list[tuple[str, str | int]], most: int) -> tuple[Row, list[Row], bool]:
    """The last answer, all rows, and whether there are more than `most` (0: no bound)."""
    rows: list[Row] = []
    while True:
        size = min(_PAGE_ROWS, most - len(rows)) if most else _PAGE_ROWS
        page = session.api.get("/usage/hours", [*parameters, ("offset", len(rows)), ("limit", size)])
        rows += rows_of(page, "rows")
        more = page.get("next") is not None
        if not more or (most and len(rows) >= most):
            return page, rows, more


def _by_period(rows: Sequence[Row]) -> list[Row]:
    """A row for each period and name, in order of time."""
    found = [
        {key: value for key, value in row.items() if key != "periods"} | period
        for row in rows
        for period in rows_of(row, "periods")
    ]
    return sorted(found, key=lambda row: text_of(row, "begins"))


def _picture(found: Row, rows: Sequence[Row], by: By, per: Per | None) -> bytes:
    from muster.cli.picture import bars, stacks

    begins, ends = text_of(found, "begins"), text_of(found, "ends")
    title = f"GPU hours by {by}, from {begins[:16]} to {ends[:16]} UTC"
    if per is None:
        return bars(_summed(rows, by), title=title)
    length = _PERIOD_CHARACTERS[per]
    by_period: dict[str, list[Row]] = {}
    for row in _by_period(rows):
        by_period.setdefault(text_of(row, "begins")[:length], []).append(row)
    sums = {period: _summed(some, by) for period, some in by_period.items()}
    return stacks(_periods(begins, ends, per), sums, title=title)


def _summed(rows: Sequence[Row], by: By) -> dict[str, float]:
    """GPU hours by name: two projects, of which one was deleted, may have the same."""
    sums: dict[str, float] = {}
    for row in rows:
        if amount := number_of(row, "reservedGpuHours"):
            sums[_called(row, by)] = sums.get(_called(row, by), 0) + amount
    return sums


def _called(row: Row, by: By) -> str:
    """Pools of several clusters may have one name."""
    name = text_of(row, "name")
    return f"{name} ({text_of(row, 'clusterName')})" if by is By.POOL else name


def _periods(begins: str, ends: str, per: Per) -> list[str]:
    """All of the span, also those in which nothing was used."""
    moment, end = parse_time(begins), parse_time(ends)
    assert moment is not None, begins
    assert end is not None, ends
    periods: list[str] = []
    while moment < end:
        periods.append(format_utc(moment)[: _PERIOD_CHARACTERS[per]])
        match per:
            case Per.HOUR:
                moment += timedelta(hours=1)
            case Per.DAY:
                moment = moment.replace(hour=0) + timedelta(days=1)
            case Per.MONTH:
                moment = (moment.replace(day=1, hour=0) + timedelta(days=32)).replace(day=1)
    return periods


def _to_the_second(found: Row, key: str) -> str:
    moment = parse_time(text_of(found, key))
    return text_of(found, key) if moment is None else format_utc(moment)


def told_total(found: Row) -> str:
    """One sentence for all rows."""
    total = row_of(found, "total")
    currency = text_of(found, "currency")
    cost = f" for {text_of(total, 'cost')} {currency}" if currency and text_of(total, "cost") else ""
    used = ""
    if measured := number_of(total, "measuredGpuHours"):
        used = f" ({format_number(number_of(total, 'usedGpuHours'))} used of {format_number(measured)} measured)"
    return (
        f"from {_to_the_second(found, 'begins')} to {_to_the_second(found, 'ends')}: "
        f"{format_number(number_of(total, 'reservedGpuHours'))} GPU hours reserved{cost}{used}, "
        f"{format_number(number_of(total, 'waitingHours'))} hours waited, {int(number_of(total, 'runs')):,} runs"
    )


def told_unpriced(found: Row) -> str:
    """What no cost says anything of; empty where all has a price."""
    hours = number_of(row_of(found, "total"), "unpricedGpuHours")
    if not hours:
        return ""
    models = [model or "GPUs of an unknown model" for model in texts_of(found, "unpricedModels")]
    return f"no price for {', '.join(models)}: {format_number(hours)} GPU hours are in no cost (`muster price set`)"
