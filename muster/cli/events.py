"""`muster events`: public events, what happened to workloads and projects."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Final

import typer

from muster.cli.command import Session, command, group
from muster.cli.complete import project_names, workload_names
from muster.cli.exits import ExitCode, Problem
from muster.cli.names import project_id, workload_id
from muster.cli.names import project_names as names_of_projects
from muster.cli.options import FollowTimeoutOption, FromOption, ToOption, moment_option, span
from muster.cli.output import Column
from muster.cli.values import Row, row_of, rows_of, text_of

if TYPE_CHECKING:
    from muster.cli.http import Parameters, Stream
    from muster.cli.outage import Patience

PATH: Final = "/events/public"
_PAGE: Final = 500
"""The most that the API gives in one answer."""
_SILENCE_SECONDS: Final = 90.0
"""A stream that says nothing for so long is gone: the server says at least once a minute that it lives."""
_GO_ON: Final = frozenset({"stalled", "stopping", "roles_changed"})
"""Ends of a stream after which another one may begin where it was."""


def type_names(incomplete: str) -> list[str]:
    # Only the table that shells complete from is made of it.
    from events.public.registry import PUBLIC_EVENTS

    return sorted(name for name in PUBLIC_EVENTS if name.startswith(incomplete))


def _type(row: Row) -> str:
    return text_of(row_of(row, "event"), "type").removeprefix("muster.").rpartition(".")[0]


def _name(row: Row) -> str:
    """Of the workload, or the id where its event does not name it."""
    event = row_of(row, "event")
    return text_of(row_of(event, "data"), "name") or text_of(event, "subject")


def _what(row: Row) -> str:
    data = row_of(row_of(row, "event"), "data")
    said = [text_of(data, name) for name in ("phase", "outcome", "reason", "message")]
    return ": ".join(dict.fromkeys(filter(None, said)))


EVENT_COLUMNS: Final = (
    Column("SEQUENCE", "event.sequence", show=lambda row: short(text_of(row_of(row, "event"), "sequence"))),
    Column("WHEN", "event.time", time=True),
    Column("TYPE", "event.type", show=_type),
    Column("PROJECT", "projectName"),
    Column("WORKLOAD", "event.subject", show=_name, yields=1),
    Column("WHAT", "event.data", show=_what, rest=True),
    Column("WHO", "actor", wide=True),
    Column("ID", "event.id", wide=True),
)
ProjectFilter = Annotated[
    str | None,
    typer.Option("--project", "-p", help="Only this project (name or id).", autocompletion=project_names),
]
WorkloadFilter = Annotated[
    str | None,
    typer.Option(
        "--workload", metavar="WORKLOAD", help="Only events about this workload.", autocompletion=workload_names
    ),
]
TypeFilter = Annotated[
    list[str] | None,
    typer.Option(
        "--type",
        metavar="TYPE",
        help="Only events of this type, such as WorkloadSubmitted or 'Workload*'. Repeatable.",
        autocompletion=type_names,
    ),
]


def add_events(root: typer.Typer) -> None:
    app = group("events")
    _add_list(app)
    _add_tail(app)
    _add_get(app)
    _add_export(app)
    root.add_typer(app, name="events")


def _filters(session: Session, project: str | None, workload: str | None, types: list[str] | None) -> "Parameters":
    found: list[tuple[str, str | int]] = [("projectId", project_id(session.api, project))] if project else []
    found += [("workloadId", workload_id(session, workload, project, deleted=True))] if workload else []
    return [*found, *(("type", name) for name in types or ())]


def _add_list(app: typer.Typer) -> None:
    @command(
        app,
        "list",
        examples="""
        muster events list
        muster events list --workload train --type PodStarted --type PodEnded
        muster events list -p vision --actor ann --since 2h
        muster events list --from 2030-01-31T12:00:00Z --to 2030-01-31T13:00:00Z --limit 0 -o jsonl
        """,
        columns=EVENT_COLUMNS,
    )
    def list_(
        session: Session,
        *,
        project: ProjectFilter = None,
        workload: WorkloadFilter = None,
        types: TypeFilter = None,
        actor: Annotated[
            str | None, typer.Option("--actor", metavar="USER", help="Only by this user, service account or service.")
        ] = None,
        since: Annotated[
            str | None, typer.Option("--since", metavar="DURATION", help="Only what is newer than this, such as 10m.")
        ] = None,
        from_: FromOption = None,
        to: ToOption = None,
        before: Annotated[
            str | None,
            typer.Option("--before", metavar="SEQUENCE", help="Begin with the event before the one of this sequence."),
        ] = None,
        limit: Annotated[
            int, typer.Option("--limit", metavar="N", help="Maximum number of events; 0 shows all.", min=0)
        ] = 100,
    ) -> None:
        """List public events, newest first. They are kept for 30 days."""
        filters = [*_filters(session, project, workload, types), *span(from_, to)]
        filters += [("actor", actor)] if actor else []
        filters += [("since", moment_option("--since", since))] if since else []
        rows: list[Row] = []
        position = before
        gone = False
        while True:
            size = min(_PAGE, limit - len(rows)) if limit else _PAGE
            begin: Parameters = [] if position is None else [("before", position)]
            page = session.api.get(PATH, [*filters, *begin, ("limit", size)])
            rows += rows_of(page, "events")
            position, gone = text_of(page, "next") or None, page.get("gone") is True
            if position is None or (limit and len(rows) >= limit):
                break
        session.out.rows(rows, EVENT_COLUMNS, name="event.sequence", empty="no such events")
        if position is not None:
            session.out.talk(f"there are more: --before {short(position)}, or --limit 0")
        elif gone:
            session.out.talk("older events are no longer kept")


def short(sequence: str) -> str:
    """As people write it: 4711.0."""
    seq, _, number = sequence.partition(".")
    return f"{int(seq)}.{int(number)}" if seq.isdecimal() and number.isdecimal() else sequence


def _add_get(app: typer.Typer) -> None:
    @command(app, "get", examples="muster events get 4711.0\nmuster events get 4711.0 -o json", columns=EVENT_COLUMNS)
    def get(
        session: Session,
        sequence: Annotated[str, typer.Argument(metavar="SEQUENCE", help="Its sequence, such as 4711.0.")],
    ) -> None:
        """Show a public event."""
        # A sequence has digits and a dot; what has not is refused by the API, and must not lead elsewhere.
        if not sequence.replace(".", "").isdecimal():
            raise Problem(f"{sequence!r} is no sequence of an event, such as 4711.0", code=ExitCode.USAGE)
        row = session.api.get(f"{PATH}/{sequence}")
        event = row_of(row, "event")
        session.out.one(
            row,
            lambda: session.out.pairs(
                [
                    ("Sequence", short(text_of(event, "sequence"))),
                    ("Time", text_of(event, "time")),
                    ("Type", _type(row)),
                    ("Project", text_of(row, "projectName")),
                    ("Workload", _name(row)),
                    ("By", text_of(row, "actor")),
                    ("What", _what(row)),
                    ("Id", text_of(event, "id")),
                ]
            ),
            name="event.sequence",
            columns=EVENT_COLUMNS,
        )


def _add_export(app: typer.Typer) -> None:
    @command(
        app,
        "export",
        output=False,
        examples="""
        muster events export > events.jsonl
        muster events export -p vision --from 7d --to 1d > vision.jsonl
        """,
    )
    def export(
        session: Session,
        *,
        project: ProjectFilter = None,
        workload: WorkloadFilter = None,
        types: TypeFilter = None,
        from_: FromOption = None,
        to: ToOption = None,
    ) -> None:
        """Write public events to standard output, oldest first: one CloudEvent in JSON a line."""
        filters = [*_filters(session, project, workload, types), *span(from_, to)]
        with session.api.stream(f"{PATH}/export", filters, accept="application/jsonl") as response:
            if response.headers.get("X-Events-Gone") == "true":
                session.out.talk("older events are no longer kept")
            for text in response.texts():
                session.out.write(text)


def _add_tail(app: typer.Typer) -> None:
    @command(
        app,
        "tail",
        examples="""
        muster events tail
        muster events tail -p vision --type WorkloadFailed -o jsonl
        muster events tail --from 1h                          # the last hour, and then what comes
        """,
        columns=EVENT_COLUMNS,
    )
    def tail(
        session: Session,
        *,
        project: ProjectFilter = None,
        workload: WorkloadFilter = None,
        types: TypeFilter = None,
        from_: FromOption = None,
        timeout: FollowTimeoutOption = None,
    ) -> None:
        """Follow public events until Ctrl-C. If the server restarts, it goes on after the last one that it printed."""
        patience = session.patience(timeout)
        filters = _filters(session, project, workload, types)
        projects = names_of_projects(session.api)
        first = True
        for event in _followed(session, patience, filters, span(from_, None)):
            row = _as_listed(session, event, projects)
            session.out.each([row], EVENT_COLUMNS, name="event.sequence", headers=first)
            first = False


def _as_listed(session: Session, event: Row, projects: dict[str, str]) -> Row:
    """As `list` shows it, but for people, who are told by their ids."""
    project = text_of(event, "source").rpartition("/")[2]
    if project not in projects:
        projects |= {project: ""} | names_of_projects(session.api)
    actor = text_of(row_of(row_of(event, "data"), "actor"), "id")
    return {"event": event, "projectName": projects[project] or None, "actor": actor.removeprefix("muster.")}


def _followed(session: Session, patience: "Patience", filters: "Parameters", begin: "Parameters") -> Iterator[Row]:
    """Public events from there on, for ever. Raises Problem where the server stays away, and when the time is over."""
    from muster.cli.event_messages import messages

    while True:
        try:
            with session.api.stream("/events/stream", [*filters, *begin], accept="text/event-stream") as response:
                _expect(response, patience)
                for message in messages(response.lines()):
                    patience.back()
                    if message.id:
                        begin = [("lastEventId", message.id)]
                    if message.data is not None and not message.name:
                        yield message.data
                    elif message.data is not None:
                        _about_stream(session, message.name, message.data)
                    patience.check("followed")
                    _expect(response, patience)
        except Problem as problem:
            patience.check("followed")
            patience.lost(problem)
        # A server that stops ends it in good order.
        patience.ask(lambda: session.api.read("/me"))


def _expect(response: "Stream", patience: "Patience") -> None:
    remaining = patience.remaining()
    response.end_after(_SILENCE_SECONDS if remaining is None else min(_SILENCE_SECONDS, remaining))


def _about_stream(session: Session, name: str, said: Row) -> None:
    """Tells what the stream says of itself. Raises Problem where no other may begin."""
    if name != "end":
        session.out.talk(text_of(said, "message"))
    elif text_of(said, "code") not in _GO_ON:
        raise Problem(text_of(said, "message"), why=(text_of(said, "code"),), code=ExitCode.DENIED)
