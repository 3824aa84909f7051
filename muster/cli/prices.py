"""`muster price`: what an hour of a GPU costs."""

from datetime import UTC, datetime
from typing import Annotated, Final

import typer

from muster.cli.command import Session, command, group
from muster.cli.exits import usage
from muster.cli.options import IdempotencyOption, YesOption, confirm
from muster.cli.output import Column
from muster.cli.values import Row, format_utc, parse_time, rows_of, text_of

PATH: Final = "/prices"
PRICE_COLUMNS: Final = (
    Column("MODEL", "gpuModel"),
    Column("AMOUNT", "amount", show=lambda row: text_of(row, "amount") or "no price"),
    Column("CURRENCY", "currency"),
    Column("FROM", "holdsFrom", show=lambda row: text_of(row, "holdsFrom")),
    Column("UNTIL", "holdsUntil", show=lambda row: text_of(row, "holdsUntil") or "-"),
)
ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="GPU model, as nodes name it. '*': all that have no price of their own.")
]
FromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="TIME",
        help="Full hour (UTC) from which on it holds. Default: this hour, or the next one if this one has a price.",
    ),
]


def add_prices(root: typer.Typer) -> None:
    app = group("price")
    _add_list(app)
    _add_changes(app)
    root.add_typer(app, name="price")


def _add_list(app: typer.Typer) -> None:
    @command(
        app, "list", examples="muster price list\nmuster price list --all -o csv", columns=PRICE_COLUMNS, past=True
    )
    def list_(
        session: Session,
        *,
        everything: Annotated[bool, typer.Option("--all", help="Also prices that have ended.")] = False,
    ) -> None:
        """List what an hour of a GPU costs: prices of now, and those that are to come."""
        found = session.api.get(PATH)
        rows: list[Row] = [row | {"currency": found.get("currency")} for row in rows_of(found, "prices")]
        if not everything:
            now = format_utc(session.out.now())
            rows = [row for row in rows if not text_of(row, "holdsUntil") or text_of(row, "holdsUntil") > now]
        session.out.rows(rows, PRICE_COLUMNS, name="gpuModel", empty="no prices")


def _add_changes(app: typer.Typer) -> None:
    @command(
        app,
        "set",
        output=False,
        examples="""
        muster price set 'NVIDIA H100 80GB HBM3' 2.50 --currency EUR
        muster price set '*' 0.80
        muster price set 'NVIDIA H100 80GB HBM3' 2.20 --from 2027-01-01
        """,
    )
    def set_(
        session: Session,
        model: ModelArgument,
        amount: Annotated[str, typer.Argument(metavar="AMOUNT", help="For an hour of a whole GPU, such as 2.50.")],
        *,
        currency: Annotated[
            str | None,
            typer.Option(
                "--currency", metavar="CODE", help="Three letters, such as EUR. Needed once: all prices have the same."
            ),
        ] = None,
        from_: FromOption = None,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        """Set what an hour of a GPU costs from a full hour on.

        What past hours cost never changes. A price can begin in the past only where the hours since had none.
        """
        body: Row = {"gpuModel": model, "amount": amount}
        if currency is not None:
            body["currency"] = currency
        if from_ is not None:
            body["holdsFrom"] = _hour(from_)
        session.out.talk(
            text_of(session.api.mutate("POST", PATH, body, idempotency_key=idempotency_key).body, "message")
        )

    @command(
        app,
        "delete",
        output=False,
        examples="muster price delete 'NVIDIA H100 80GB HBM3'\nmuster price delete '*' --from 2027-01-01 -y",
    )
    def delete(
        session: Session,
        model: ModelArgument,
        *,
        from_: FromOption = None,
        yes: YesOption = False,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        """Let a model have no price of its own from a full hour on. Past hours keep theirs."""
        confirm(f"let {model} have no price of its own any more?", yes=yes)
        which = [("gpuModel", model)]
        which += [("holdsFrom", _hour(from_))] if from_ is not None else []
        done = session.api.mutate("DELETE", PATH, parameters=which, idempotency_key=idempotency_key)
        session.out.talk(text_of(done.body, "message"))


def _hour(given: str) -> str:
    """As the API takes it. Raises Problem (usage)."""
    moment: datetime | None = parse_time(given)
    if moment is None:
        todo = "write a date as 2030-01-31, or a time as 2030-01-31T12:00:00Z"
        raise usage(f"--from: {given!r} is no time", todo=todo)
    return format_utc(moment.astimezone(UTC))
