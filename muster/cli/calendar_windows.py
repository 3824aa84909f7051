"""`muster calendar window`: at which times workloads of a project may start."""

from typing import Annotated, Final

import typer

from muster.cli.command import MusterGroup, Session, command
from muster.cli.exits import usage
from muster.cli.names import find_project
from muster.cli.options import IdempotencyOption, ProjectArgument
from muster.cli.output import Column
from muster.cli.values import Row, text_of


def _windows(row: Row) -> str:
    windows = row.get("windows")
    return ", ".join(map(str, windows)) if isinstance(windows, list) and windows else "at any time"


WINDOW_COLUMNS: Final = (
    Column("PROJECT", "projectName"),
    Column("WINDOWS", "windows", show=_windows),
    Column("ZONE", "zone"),
    Column("OPEN", "open"),
    Column("CHANGES-AT", "changesAt", exact=True),
    Column("ENDS-RUNNING", "endsRunning"),
)


def add_windows(app: typer.Typer) -> None:
    below = typer.Typer(
        cls=MusterGroup,
        help="Windows: at which times workloads of a project may start. Show, set, delete.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    _add_verbs(below)
    app.add_typer(below, name="window")


def _add_verbs(app: typer.Typer) -> None:
    @command(app, "show", examples="muster calendar window show vision", columns=WINDOW_COLUMNS)
    def show(session: Session, project: ProjectArgument) -> None:
        """Show at which times workloads of a project may start, whether they may now, and until when."""
        row = session.api.get(_path(find_project(session.api, project)))
        session.out.rows([row], WINDOW_COLUMNS, name="projectName", empty="no windows")

    @command(
        app,
        "set",
        output=False,
        examples="""
        muster calendar window set vision 'Mon-Fri 20:00-06:00' 'Sat,Sun 00:00-24:00' --zone Europe/Berlin
        muster calendar window set vision '22:00-05:00' --ends-running
        """,
    )
    def set_(
        session: Session,
        project: ProjectArgument,
        windows: Annotated[
            list[str],
            typer.Argument(metavar="WINDOW", help="Days and times, such as 'Mon-Fri 20:00-06:00'. Repeatable."),
        ],
        *,
        zone: Annotated[
            str, typer.Option("--zone", metavar="ZONE", help="By whose clock, such as Europe/Berlin.")
        ] = "UTC",
        ends_running: Annotated[
            bool,
            typer.Option("--ends-running", help="End preemptible workloads that run when a window closes."),
        ] = False,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        """Let workloads of a project start only at these times; what waits then starts when the next window opens.

        What runs goes on. With --ends-running what is preemptible is told to end when a window closes, and goes on in
        the next one.
        """
        if not windows:
            raise usage("give at least one window")
        body: Row = {"zone": zone, "windows": [*windows], "endsRunning": ends_running}
        _put(session, project, body, idempotency_key)

    @command(app, "delete", output=False, examples="muster calendar window delete vision")
    def delete(session: Session, project: ProjectArgument, *, idempotency_key: IdempotencyOption = None) -> None:
        """Let workloads of a project start at any time."""
        _put(session, project, {"windows": []}, idempotency_key)


def _put(session: Session, project: str, body: Row, idempotency_key: str | None) -> None:
    found = find_project(session.api, project)
    done = session.api.mutate("PUT", _path(found), body, idempotency_key=idempotency_key)
    session.out.talk(text_of(done.body, "message").replace(text_of(found, "id"), text_of(found, "name")))


def _path(project: Row) -> str:
    return f"/org-unit/projects/{text_of(project, 'id')}/start-windows"
