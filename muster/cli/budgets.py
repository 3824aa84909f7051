"""`muster budget`: what a project may use in a month."""

from enum import StrEnum
from typing import Annotated, Final

import typer

from muster.cli.command import Session, command, group
from muster.cli.exits import usage
from muster.cli.names import find_project
from muster.cli.options import IdempotencyOption, ProjectArgument, YesOption, confirm
from muster.cli.output import Column
from muster.cli.values import Row, ValueProblem, format_number, number_of, parse_number, rows_of, text_of

PATH: Final = "/budgets"
_MOST_PERCENT: Final = 100


class Per(StrEnum):
    MONTH = "month"


def _limit(row: Row) -> str:
    if row.get("gpuHours") is not None:
        return f"{format_number(number_of(row, 'gpuHours'))} GPU hours"
    return f"{text_of(row, 'amount')} {text_of(row, 'currency')}"


def _used(row: Row) -> str:
    """What is used, and what is not in it."""
    if row.get("used") is None:
        return "-"
    unpriced = number_of(row, "unpricedGpuHours")
    if row.get("amount") is None or not unpriced:
        return text_of(row, "used")
    return f"{text_of(row, 'used')}, and {format_number(unpriced)} GPU hours without a price"


def _warns(row: Row) -> str:
    return f"{int(number_of(row, 'warnPercent'))}%"


BUDGET_COLUMNS: Final = (
    Column("PROJECT", "projectName"),
    Column("PER", "per"),
    Column("BUDGET", "amount", show=_limit),
    Column("USED", "used", show=_used),
    Column("STATE", "state"),
    Column("WARNS-AT", "warnPercent", show=_warns, yields=1),
    Column("RENEWS", "renewsAt", time=True, yields=2),
    Column("GPU-HOURS", "gpuHours", rare=True),
    Column("CURRENCY", "currency", rare=True),
    Column("UNPRICED-HOURS", "unpricedGpuHours", rare=True),
    Column("PROJECT-ID", "projectId", wide=True),
)


def add_budgets(root: typer.Typer) -> None:
    app = group("budget")
    _add_reads(app)
    _add_set(app)
    _add_delete(app)
    root.add_typer(app, name="budget")


def _add_reads(app: typer.Typer) -> None:
    @command(app, "list", examples="muster budget list\nmuster budget list -o csv", columns=BUDGET_COLUMNS, past=True)
    def list_(session: Session) -> None:
        """List the budgets of the projects that you may see, and what of them is used in this month (UTC)."""
        rows = rows_of(session.api.get(PATH), "budgets")
        session.out.rows(rows, BUDGET_COLUMNS, name="projectName", empty="no budgets")

    @command(app, "show", examples="muster budget show vision", columns=BUDGET_COLUMNS, past=True)
    def show(session: Session, project: ProjectArgument) -> None:
        """Show the budget of a project, and what of it is used in this month (UTC)."""
        row = session.api.get(_path(session, project))
        session.out.one(row, lambda: _show(session, row), name="projectName", columns=BUDGET_COLUMNS)


def _show(session: Session, row: Row) -> None:
    session.out.pairs(
        [
            ("Project", text_of(row, "projectName")),
            ("Budget", f"{_limit(row)} per {text_of(row, 'per')}"),
            ("Used", _used(row)),
            ("State", text_of(row, "state")),
            ("Warns at", _warns(row)),
            ("Renews", session.out.time(row.get("renewsAt"))),
        ]
    )


def _add_set(app: typer.Typer) -> None:
    @command(
        app,
        "set",
        output=False,
        examples="""
        muster budget set vision --amount 5000
        muster budget set vision --gpu-hours 1000 --warn-at 90%
        """,
    )
    def set_(
        session: Session,
        project: ProjectArgument,
        *,
        per: Annotated[Per, typer.Option("--per", help="Period for which it holds (UTC).")] = Per.MONTH,
        amount: Annotated[
            str | None,
            typer.Option("--amount", help="What reserved GPU hours may cost, in the prices' currency."),
        ] = None,
        gpu_hours: Annotated[
            str | None, typer.Option("--gpu-hours", metavar="N", help="GPU hours that may be reserved.")
        ] = None,
        warn_at: Annotated[
            str | None,
            typer.Option("--warn-at", metavar="PERCENT", help="Share at which the project is warned. Default: 80%."),
        ] = None,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        """Set what a project may use in a month: it is warned, and then gets nothing new.

        When it is used up, nothing new can be submitted or resumed until the next month or until it is raised. What
        runs or waits goes on. For administrators of the installation.
        """
        if (amount is None) == (gpu_hours is None):
            raise usage("give --amount or --gpu-hours, and not both")
        body: Row = {"per": per.value}
        if amount is not None:
            body["amount"] = amount
        if gpu_hours is not None:
            body["gpuHours"] = _number("--gpu-hours", gpu_hours)
        if warn_at is not None:
            body["warnPercent"] = _percent(warn_at)
        done = session.api.mutate("PUT", _path(session, project), body, idempotency_key=idempotency_key)
        session.out.talk(text_of(done.body, "message"))


def _add_delete(app: typer.Typer) -> None:
    @command(app, "delete", output=False, examples="muster budget delete vision")
    def delete(
        session: Session,
        project: ProjectArgument,
        *,
        yes: YesOption = False,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        """Take the budget of a project away: then nothing limits what it uses in a month."""
        path = _path(session, project)
        confirm(f"take the budget of project {project} away?", yes=yes)
        done = session.api.mutate("DELETE", path, idempotency_key=idempotency_key)
        session.out.talk(text_of(done.body, "message"))


def _path(session: Session, project: str) -> str:
    return f"{PATH}/{text_of(find_project(session.api, project), 'id')}"


def _number(flag: str, given: str) -> float:
    try:
        return parse_number(given)
    except ValueProblem as error:
        raise usage(f"{flag}: {error}") from error


def _percent(given: str) -> int:
    number = given.strip().removesuffix("%")
    if not (number.isascii() and number.isdigit() and 1 <= int(number) <= _MOST_PERCENT):
        raise usage(f"--warn-at: {given!r} is no share", todo="write a whole percentage from 1% to 100%, such as 80%")
    return int(number)
