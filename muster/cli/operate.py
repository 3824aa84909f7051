"""`muster projections` and `muster log`: how far the read models are, making them anew, and comparing them to the log.

Rebuild and verify work on NATS and Postgres directly, with the operator's credential, so that they also do where the
api or the projector is what is broken.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from muster.cli.command import Session, command, group
from muster.cli.exits import ExitCode, Problem
from muster.cli.operator_settings import operator_settings
from muster.cli.output import Column, Format, plain_text
from muster.cli.progress import progress_bar
from muster.cli.values import Row, number_of, row_of

if TYPE_CHECKING:
    from services.runtime.identity.actors import Actors
    from services.runtime.log.jetstream import JetStreamEventStore

OPERATOR: Final = "operator"
"""The NATS user of these verbs: it reads the log, and can write nothing."""

DataDirOption = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="DIR", help="Data folder of `muster up` on this machine. [env MUSTER_DATA_DIR]"),
]
STATUS_COLUMNS: Final = (
    Column("SCHEMA", "schema"),
    Column("SEQUENCE", "sequence"),
    Column("LOG", "logSequence"),
    Column("LAG", "lag"),
    Column("HALTED", "halted"),
    Column("REBUILDING", "rebuilding.schema"),
)

DIFFERENCE_COLUMNS: Final = (
    Column("TABLE", "table"),
    Column("KEY", "key"),
    Column("COLUMN", "column"),
    Column("LOG-SAYS", "expected"),
    Column("TABLE-SAYS", "actual"),
)


def add_projections(root: typer.Typer) -> None:
    app = group("projections")

    @command(
        app, "status", examples="muster projections status\nmuster projections status -o json", columns=STATUS_COLUMNS
    )
    def status(session: Session) -> None:
        """Show how far the projections have followed the log."""
        row = session.api.get("/projections")
        session.out.one(row, lambda: _status(session, row), name="schema", columns=STATUS_COLUMNS)

    @command(
        app,
        "rebuild",
        output=False,
        examples="""
        muster projections rebuild
        muster projections rebuild --data-dir /srv/muster
        """,
    )
    def rebuild(session: Session, *, data_dir: DataDirOption = None) -> None:
        """Rebuild every projection from the log beside the old one, then swap them. Queries still work meanwhile."""
        from services.projector.rebuild import RebuildError
        from services.projector.rebuild import rebuild as rebuild_all

        async def work(store: "JetStreamEventStore", _: "Actors", postgres_url: str) -> None:
            with progress_bar(session.out, "rebuild") as report:
                done = await rebuild_all(store, postgres_url, report)
            rate = done.events / max(done.seconds, 0.001)
            session.out.talk(f"{done.events:,} events in {done.seconds:.1f} s ({rate:,.0f}/s); {done.schema} is in use")

        try:
            _directly(session, data_dir, work)
        except RebuildError as error:
            raise Problem("nothing was changed", why=(str(error),), code=ExitCode.FAILURE) from error

    root.add_typer(app, name="projections")


def add_log(root: typer.Typer) -> None:
    app = group("log")

    @command(
        app,
        "void",
        output=False,
        examples='muster log void 1234 --reason "written by the forged credential of 3 May"',
    )
    def void(
        session: Session,
        sequence: Annotated[int, typer.Argument(metavar="SEQUENCE", min=1, help="The sequence that the alarm shows.")],
        *,
        reason: Annotated[str, typer.Option("--reason", help="Why. The reason stays in the log for ever.")],
    ) -> None:
        """Declare a message void that cannot be read, so that every reader skips it. For administrators."""
        session.api.mutate("POST", "/events/voids", {"sequence": sequence, "reason": reason})
        session.out.talk(f"message {sequence} is void; readers go on within seconds. `muster doctor` tells")

    @command(app, "verify", examples="muster log verify\nmuster log verify --data-dir /srv/muster -o jsonl")
    def verify(session: Session, *, data_dir: DataDirOption = None) -> int:
        """Compute every table again from the log, and compare row by row. Exit 1 on a difference."""
        from services.projector.verify import verify as verify_all

        differences: list[Row] = []
        voids: list[str] = []
        compared, end = 0, 0

        async def work(store: "JetStreamEventStore", actors: "Actors", postgres_url: str) -> None:
            nonlocal compared, end
            with progress_bar(session.out, "verify") as report:

                def heard(done: int, total: int) -> None:
                    nonlocal compared
                    compared = total
                    report(done, total)

                found = await verify_all(store, postgres_url, heard)
            end = await store.last_seq()
            await actors.subjects_of(store.voids.declared_by())
            voids.extend((*store.voids.told(actors.subject), *store.voids.doubted(actors.subject)))
            differences.extend(
                {
                    "table": one.table,
                    "key": one.key,
                    "column": one.column,
                    "expected": one.expected,
                    "actual": one.actual,
                }
                for one in found
            )

        _directly(session, data_dir, work)
        for told in voids:
            session.out.talk(told)
        if differences or session.out.style.format not in {Format.TABLE, Format.WIDE}:
            session.out.rows(differences, DIFFERENCE_COLUMNS, name="key")
        if differences:
            session.out.talk(f"{len(differences)} differences; `muster projections rebuild` makes the tables anew")
            return ExitCode.FAILURE
        part = (
            f" up to {compared}; the log goes on to {end}: `muster projections status` shows how far the tables are"
            if compared < end
            else ""
        )
        session.out.talk(f"no difference: every row follows from the log{part}")
        return ExitCode.OK

    root.add_typer(app, name="log")


def _directly(
    session: Session, data_dir: Path | None, work: Callable[["JetStreamEventStore", "Actors", str], Awaitable[None]]
) -> None:
    """Does the work with a connection of the operator's. Raises Problem."""
    import asyncpg

    from events.aggregate import BrokenChainError
    from services.runtime.identity.actors import Actors
    from services.runtime.log.jetstream import JetStreamEventStore
    from services.runtime.log.store import LogGapError, LogUnavailableError, UnreadableMessageError
    from services.runtime.nats.connection import ConnectionLostError, connect
    from services.runtime.nats.requests import Requests
    from services.runtime.process.host import run_loop

    folder = data_dir or (Path(session.target.data_dir) if session.target.data_dir else None)
    settings = operator_settings(folder)
    log_to_stderr(session)

    async def run() -> None:
        connection = await connect(settings, OPERATOR)
        try:
            actors = Actors(connection, Requests(connection))
            await work(JetStreamEventStore(connection), actors, settings.database_url)
        finally:
            await connection.close()

    try:
        run_loop(run())
    except UnreadableMessageError as error:
        raise Problem(
            "the log has a message that cannot be read", why=(str(error),), todo=error.todo, code=ExitCode.FAILURE
        ) from error
    except (ConnectionLostError, LogUnavailableError, OSError, asyncpg.PostgresConnectionError) as error:
        raise Problem(
            "the log or the database cannot be reached",
            why=(str(error) or type(error).__name__,),
            todo="is `muster up` running, and --data-dir its folder?",
            code=ExitCode.UNREACHABLE,
        ) from error
    except asyncpg.PostgresError as error:
        raise Problem("the database refused a query", why=(str(error),), code=ExitCode.FAILURE) from error
    except (LogGapError, BrokenChainError) as error:
        raise Problem(
            "the log has a gap",
            why=(str(error),),
            todo="stop every service, and restore the log from a backup",
            code=ExitCode.FAILURE,
        ) from error


def log_to_stderr(session: Session) -> None:
    """The shared parts log; a command's stdout is data."""
    import structlog

    level = "debug" if session.connection.debug else "error"
    structlog.configure(
        logger_factory=structlog.PrintLoggerFactory(session.out.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(level),
    )


def _status(session: Session, row: Row) -> None:
    rebuilding = row_of(row, "rebuilding")
    progress = ""
    if rebuilding:
        target = number_of(rebuilding, "targetSequence")
        progress = (
            f"{plain_text(rebuilding.get('schema'))}, {plain_text(rebuilding.get('sequence'))} of {plain_text(target)}"
        )
    session.out.pairs(
        [
            ("Schema", plain_text(row.get("schema"))),
            ("Sequence", f"{plain_text(row.get('sequence'))} of {plain_text(row.get('logSequence'))} in the log"),
            ("Behind", plain_text(row.get("lag")) + " commits"),
            ("Halted", plain_text(row.get("halted"))),
            ("Rebuilding", progress),
        ]
    )
