"""`muster projections`: how far the tables are, what a rebuild would change, making them anew, and as of a moment."""

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Final

import typer

from muster.cli.command import Session, command, group
from muster.cli.directly import DataDirOption, directly
from muster.cli.exits import ExitCode, Problem, usage
from muster.cli.options import moment_option
from muster.cli.output import Column, Format, plain_text
from muster.cli.progress import progress_bar
from muster.cli.values import Row, format_bytes, format_span, number_of, parse_time, row_of, rows_of, text_of

if TYPE_CHECKING:
    from pathlib import Path

    from services.projector.verify import Difference
    from services.runtime.identity.actors import Actors
    from services.runtime.log.jetstream import JetStreamEventStore

    type Work = Callable[[JetStreamEventStore, Actors, str], Awaitable[None]]

STATUS_COLUMNS: Final = (
    Column("SCHEMA", "schema"),
    Column("SHAPE", "shape"),
    Column("SEQUENCE", "sequence"),
    Column("LOG", "logSequence"),
    Column("LAG", "lag"),
    Column("LAG-SECONDS", "lagSeconds"),
    Column("SIZE", "bytes"),
    Column("SINCE", "since", time=True),
    Column("HALTED", "halted"),
    Column("REBUILDING", "rebuilding.schema"),
)
OTHER_COLUMNS: Final = (
    Column("SCHEMA", "schema"),
    Column("STATE", "state"),
    Column("SEQUENCE", "sequence"),
    Column("SIZE", "bytes", show=lambda row: format_bytes(number_of(row, "bytes"))),
    Column("SINCE", "since", time=True),
)
DIFFERENCE_COLUMNS: Final = (
    Column("TABLE", "table"),
    Column("KEY", "key"),
    Column("COLUMN", "column"),
    Column("LOG-SAYS", "expected"),
    Column("TABLE-SAYS", "actual"),
)
REBUILT_COLUMNS: Final = (
    Column("SCHEMA", "schema"),
    Column("SEQUENCE", "sequence"),
    Column("EVENTS", "events"),
    Column("SECONDS", "seconds"),
)
MOST_DIFFERENCES: Final = 10_000

UntilOption = Annotated[
    str | None,
    typer.Option(
        "--until",
        metavar="MOMENT",
        help="Make a shadow that shows this moment, and leave the tables in use as they are: a time, a time "
        "ago (2h, 7d) or a sequence of the log. `muster projections drop` removes it.",
    ),
]
LimitOption = Annotated[int, typer.Option("--limit", min=1, max=MOST_DIFFERENCES, help="Differences to show at most.")]


def add_projections(root: typer.Typer) -> None:
    app = group("projections")

    @command(
        app, "status", examples="muster projections status\nmuster projections status -o json", columns=STATUS_COLUMNS
    )
    def status(session: Session) -> None:
        """Show how far the projections have followed the log, their size, and tables beside those in use."""
        row = session.api.get("/projections")
        session.out.one(row, lambda: _status(session, row), name="schema", columns=STATUS_COLUMNS)

    @command(
        app,
        "rebuild",
        examples="""
        muster projections rebuild
        muster projections rebuild --data-dir /srv/muster
        muster projections rebuild --until 7d      # a shadow: tables as of a week ago, beside those in use
        """,
        columns=REBUILT_COLUMNS,
    )
    def rebuild(
        session: Session,
        *,
        until: UntilOption = None,
        data_dir: DataDirOption = None,
    ) -> None:
        """Rebuild every projection from the log beside the old one, then swap them. Queries still work meanwhile."""
        if until is None:
            _rebuild(session, data_dir)
        else:
            _make_shadow(session, data_dir, moment_option("--until", until))

    @command(
        app,
        "diff",
        examples="muster projections diff\nmuster projections diff --limit 100 -o jsonl",
        columns=DIFFERENCE_COLUMNS,
    )
    def diff(
        session: Session,
        *,
        limit: LimitOption = 20,
        data_dir: DataDirOption = None,
    ) -> int:
        """Show what a rebuild would change, without changing it: the first differences. Exit 1 if there are any."""
        return _diff(session, data_dir, limit)

    @command(app, "drop", output=False, examples="muster projections drop muster_until_4711")
    def drop(
        session: Session,
        schema: Annotated[str, typer.Argument(metavar="SCHEMA", help="As `muster projections status` shows it.")],
        *,
        data_dir: DataDirOption = None,
    ) -> None:
        """Drop a shadow, or tables that a rebuild replaced or did not end. Never those in use."""
        from services.projector.shadow import drop as drop_schema

        async def work(_: "JetStreamEventStore", __: "Actors", postgres_url: str) -> None:
            await drop_schema(postgres_url, schema)

        _on_tables(session, data_dir, work)
        session.out.talk(f"{schema} is gone")

    root.add_typer(app, name="projections")


def difference_rows(found: "Iterable[Difference]") -> list[Row]:
    return [
        {"table": one.table, "key": one.key, "column": one.column, "expected": one.expected, "actual": one.actual}
        for one in found
    ]


def _rebuild(session: Session, data_dir: "Path | None") -> None:
    from services.projector.rebuild import rebuild

    row: Row = {}

    async def work(store: "JetStreamEventStore", _: "Actors", postgres_url: str) -> None:
        with progress_bar(session.out, "rebuild") as report:
            done = await rebuild(store, postgres_url, report)
        row.update(schema=done.schema, sequence=done.seq, events=done.events, seconds=round(done.seconds, 3))

    _on_tables(session, data_dir, work)
    rate = number_of(row, "events") / max(number_of(row, "seconds"), 0.001)
    session.out.talk(f"{row['events']:,} events in {row['seconds']:.1f} s ({rate:,.0f}/s); {row['schema']} is in use")
    session.out.one(row, lambda: None, name="schema", columns=REBUILT_COLUMNS)


def _make_shadow(session: Session, data_dir: "Path | None", moment: str) -> None:
    from services.projector.shadow import make_until

    row: Row = {}

    async def work(store: "JetStreamEventStore", _: "Actors", postgres_url: str) -> None:
        with progress_bar(session.out, "shadow") as report:
            name, note = await make_until(store, postgres_url, moment, report)
        took = 0.0 if note.ready_at is None else (note.ready_at - note.began_at).total_seconds()
        row.update(schema=name, sequence=note.seq, events=note.events, seconds=round(took, 3))

    _on_tables(session, data_dir, work)
    session.out.talk(f"{row['schema']} shows the log up to {row['sequence']}; the tables in use are as they were")
    session.out.one(row, lambda: None, name="schema", columns=REBUILT_COLUMNS)


def _diff(session: Session, data_dir: "Path | None", limit: int) -> int:
    from services.projector.diff import compare

    rows: list[Row] = []
    seq, more = 0, False

    async def work(store: "JetStreamEventStore", _: "Actors", postgres_url: str) -> None:
        nonlocal seq, more
        with progress_bar(session.out, "diff") as report:
            compared = await compare(store, postgres_url, report, most=limit)
        rows.extend(difference_rows(compared.differences))
        seq, more = compared.seq, compared.more

    _on_tables(session, data_dir, work)
    if rows or session.out.style.format not in {Format.TABLE, Format.WIDE}:
        session.out.rows(rows, DIFFERENCE_COLUMNS, name="key")
    if not rows:
        session.out.talk(f"no difference at {seq}: a rebuild would make the same tables")
        return ExitCode.OK
    count = f"the first {len(rows)} differences; --limit shows more" if more else f"{len(rows)} differences"
    session.out.talk(f"{count}, at {seq}; `muster projections rebuild` makes the tables as the log says")
    return ExitCode.FAILURE


def _on_tables(session: Session, data_dir: "Path | None", work: "Work") -> None:
    """Raises Problem."""
    from services.projector.arrivals import MomentError, StalledError
    from services.projector.shadow import RebuildError

    try:
        directly(session, data_dir, work)
    except MomentError as error:
        raise usage(f"--until: {error}") from error
    except (RebuildError, StalledError) as error:
        raise Problem("nothing was changed", why=(str(error),), code=ExitCode.FAILURE) from error


def _status(session: Session, row: Row) -> None:
    out = session.out
    behind = plain_text(row.get("lag")) + " commits"
    if number_of(row, "lagSeconds"):
        behind += f", for {format_span(number_of(row, 'lagSeconds'))}"
    out.pairs(
        [
            ("Schema", plain_text(row.get("schema"))),
            ("Shape", plain_text(row.get("shape"))),
            ("Sequence", f"{plain_text(row.get('sequence'))} of {plain_text(row.get('logSequence'))} in the log"),
            ("Behind", behind),
            ("Size", format_bytes(number_of(row, "bytes"))),
            ("In use", _since(session, row)),
            ("Halted", plain_text(row.get("halted"))),
            ("Rebuilding", _progress(row_of(row, "rebuilding"))),
        ]
    )
    if others := rows_of(row, "others"):
        out.heading("Beside it")
        out.table(others, OTHER_COLUMNS)


def _since(session: Session, row: Row) -> str:
    since = text_of(row, "since")
    if parse_time(since) is None:
        return ""
    rebuilt = row_of(row, "lastRebuild")
    if not rebuilt:
        return f"since {session.out.time(since)}"
    took = format_span(number_of(rebuilt, "seconds"))
    return f"since {session.out.time(since)}; rebuilt in {took} from {number_of(rebuilt, 'events'):,.0f} events"


def _progress(rebuilding: Row) -> str:
    if not rebuilding:
        return ""
    target = number_of(rebuilding, "targetSequence")
    return f"{plain_text(rebuilding.get('schema'))}, {plain_text(rebuilding.get('sequence'))} of {plain_text(target)}"
