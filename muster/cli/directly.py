"""Commands of the operator that work on NATS and Postgres directly, so that they also do where the api or the projector
is what is broken. They sign in as a NATS user that reads the log and can write nothing.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from muster.cli.command import Session
from muster.cli.exits import ExitCode, Problem
from muster.cli.operator_settings import operator_settings

if TYPE_CHECKING:
    from services.runtime.identity.actors import Actors
    from services.runtime.log.jetstream import JetStreamEventStore
    from services.runtime.process.settings import Settings

OPERATOR: Final = "operator"
"""The NATS user of these commands."""

DataDirOption = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="DIR", help="Data folder of `muster up` on this machine. [env MUSTER_DATA_DIR]"),
]


def directly(
    session: Session, data_dir: Path | None, work: Callable[["JetStreamEventStore", "Actors", str], Awaitable[None]]
) -> None:
    """Does the work with connections of the operator's: to the log, and the address of Postgres. Raises Problem."""
    import asyncpg

    from events.aggregate import BrokenChainError
    from services.runtime.identity.actors import Actors
    from services.runtime.log.jetstream import JetStreamEventStore
    from services.runtime.log.store import LogGapError, LogUnavailableError, UnreadableMessageError
    from services.runtime.nats.connection import ConnectionLostError, connect
    from services.runtime.nats.requests import Requests
    from services.runtime.process.failpoints import arm
    from services.runtime.process.host import run_loop

    settings = settings_of(session, data_dir)
    log_to_stderr(session)
    arm(settings.failpoint)

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


def settings_of(session: Session, data_dir: Path | None) -> "Settings":
    """Where the log and the tables are, with the operator's credentials. Raises Problem."""
    folder = data_dir or (Path(session.target.data_dir) if session.target.data_dir else None)
    return operator_settings(folder)


def log_to_stderr(session: Session) -> None:
    """The shared parts log; a command's stdout is data."""
    import structlog

    level = "debug" if session.connection.debug else "error"
    structlog.configure(
        logger_factory=structlog.PrintLoggerFactory(session.out.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(level),
    )
