"""`muster calendar window`: at which times workloads of a project may start, or it may go over its quota."""

from typing import Annotated, Final

import typer

from muster.cli.command import MusterGroup, Session, command
from muster.cli.exits import usage
from muster.cli.names import find_project
from muster.cli.options import IdempotencyOption, ProjectArgument
from muster.cli.output import Column
from muster.cli.values import Row, rows_of, text_of


def windows_told(row: Row) -> str:
    windows = row.get("windows")
    return ", ".join(map(str, windows)) if isinstance(windows, list) and windows else "at any time"


WINDOW_COLUMNS: Final = (
    Column("PROJECT", "projectName"),
    Column("WINDOWS", "windows", show=windows_told),
    Column("ZONE", "zone"),
    Column("OPEN", "open"),
    Column("CHANGES-AT", "changesAt", exact=True),
    Column("ENDS-RUNNING", "endsRunning"),
    Column("OVER-QUOTA-ONLY", "overQuotaOnly"),
)


def add_windows(app: typer.Typer) -> None:
    below = typer.Typer(
        cls=MusterGroup,
        help="Windows: at which times workloads of a project may start. List, show, set, delete.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    _add_verbs(below)
    app.add_typer(below, name="window")


def window_rows(session: Session) -> list[Row]:
    """Those of all projects that have any."""
    return rows_of(session.api.get("/calendar/windows"), "windows")


def _add_verbs(app: typer.Typer) -> None:
    @command(app, "list", examples="muster calendar window list", columns=WINDOW_COLUMNS)
    def list_(session: Session) -> None:
        """List the windows of all projects that have any: whether they are open, and until when."""
        session.out.rows(window_rows(session), WINDOW_COLUMNS, name="projectName", empty="no project has windows")

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
        muster calendar window set vision '20:00-06:00' --over-quota-only
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
        over_quota_only: Annotated[
            bool,
            typer.Option("--over-quota-only", help="Start within the quota at any time, and beyond it in the windows."),
        ] = False,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        """Let workloads of a project start only at these times; what waits then starts when the next window opens.

        What runs goes on. With --ends-running what is preemptible is told to end when a window closes, and goes on in
        the next one. With --over-quota-only workloads start at any time within the project's quota, and in the windows
        beyond it, too.
        """
        if not windows:
            raise usage("give at least one window")
        body: Row = {"zone": zone, "windows": [*windows], "endsRunning": ends_running}
        body["overQuotaOnly"] = over_quota_only
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
