"""`muster subscription`: programs that read the public events of one project over NATS."""

from typing import Annotated, Final

import typer

from muster.cli.command import Session, command, group
from muster.cli.exits import ExitCode, Problem, usage
from muster.cli.names import default_project, find_in_project, find_project
from muster.cli.options import IdempotencyOption, ProjectOption, YesOption, confirm, time_option
from muster.cli.output import Column
from muster.cli.values import Row, rows_of, text_of

PATH: Final = "/subscriptions"
SUBSCRIPTION_COLUMNS: Final = (
    Column("NAME", "name"),
    Column("PROJECT", "projectName"),
    Column("PENDING", "pending", show=lambda row: _count(row, "pending")),
    Column("UNACKNOWLEDGED", "unacknowledged", show=lambda row: _count(row, "unacknowledged")),
    Column("LAST-DELIVERED", "lastDeliveredAt", time=True),
    Column("CREATED", "createdAt", time=True),
    Column("BY", "createdBy", wide=True),
    Column("ID", "id", wide=True),
)
CREATED_COLUMNS: Final = (Column("ID", "id"), Column("NAME", "name"), Column("SEED", "seed"))
SubscriptionArgument = Annotated[str, typer.Argument(metavar="SUBSCRIPTION", help="Name in the project, or id.")]


def add_subscriptions(root: typer.Typer) -> None:
    app = group("subscription")
    _add_create(app)
    _add_reads(app)
    _add_delete(app)
    root.add_typer(app, name="subscription")


def _add_create(app: typer.Typer) -> None:
    @command(
        app,
        "create",
        examples="""
        muster subscription create -p vision --name chat -o json > chat.json
        muster subscription create -p vision --from-time 2h -o json
        muster subscription create -p vision --from-time 2026-11-21T09:30:00Z -o json
        """,
        columns=CREATED_COLUMNS,
    )
    def create(
        session: Session,
        *,
        project: ProjectOption = None,
        name: Annotated[
            str | None, typer.Option("--name", help="Name, unique in the project. Default: a name is chosen.")
        ] = None,
        from_time: Annotated[
            str | None,
            typer.Option(
                "--from-time", metavar="TIME", help="Read events from this time on, or a time ago. Default: now."
            ),
        ] = None,
        from_seq: Annotated[
            int | None,
            typer.Option("--from-seq", metavar="SEQUENCE", min=1, help="Read events from this sequence of the log on."),
        ] = None,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        """Create a subscription to the public events of a project, and print once what its reader needs."""
        if from_time is not None and from_seq is not None:
            raise usage("--from-time and --from-seq exclude each other")
        if from_time is not None:
            from_time = time_option("--from-time", from_time)
        where = default_project(session, project)
        body: Row = {"projectId": where["id"]}
        given = {"name": name, "fromTime": from_time, "fromSequence": from_seq}
        body |= {field: value for field, value in given.items() if value is not None}
        row = session.api.mutate("POST", PATH, body, idempotency_key=idempotency_key).body
        if not text_of(row, "seed"):
            raise Problem(
                "no seed is shown",
                why=(text_of(row, "message"),),
                todo=f"muster subscription delete {text_of(row, 'name')} -p {text_of(where, 'name')}",
                code=ExitCode.FAILURE,
            )
        session.out.one(row, lambda: _show_key(session, row), columns=CREATED_COLUMNS)
        session.out.talk(text_of(row, "message"))


def _show_key(session: Session, row: Row) -> None:
    fields = ("id", "name", "url", "seed", "domain", "inboxPrefix", "stream", "consumer")
    pairs = [(field, text_of(row, field)) for field in fields]
    session.out.pairs([*pairs, ("subjects", ", ".join(_subjects(row)))])


def _add_reads(app: typer.Typer) -> None:
    @command(
        app,
        "list",
        examples="muster subscription list\nmuster subscription list -p vision -o wide",
        columns=SUBSCRIPTION_COLUMNS,
    )
    def list_(
        session: Session,
        *,
        project: Annotated[
            str | None, typer.Option("--project", "-p", help="Only subscriptions of this project.")
        ] = None,
    ) -> None:
        """List the subscriptions of the projects that you administer, and how far their readers are."""
        scope = [("projectId", text_of(find_project(session.api, project), "id"))] if project else []
        rows = rows_of(session.api.get(PATH, scope), "subscriptions")
        session.out.rows(rows, SUBSCRIPTION_COLUMNS, empty="no subscriptions")

    @command(app, "describe", examples="muster subscription describe chat -p vision", columns=SUBSCRIPTION_COLUMNS)
    def describe(session: Session, subscription: SubscriptionArgument, *, project: ProjectOption = None) -> None:
        """Show a subscription. Its seed is printed only once, when it is created."""
        row = _find(session, subscription, project)
        session.out.one(row, lambda: _show(session, row), columns=SUBSCRIPTION_COLUMNS)


def _show(session: Session, row: Row) -> None:
    session.out.pairs(
        [
            ("Name", text_of(row, "name")),
            ("Id", text_of(row, "id")),
            ("Project", text_of(row, "projectName")),
            ("Created", f"{session.out.time(row.get('createdAt'))} by {text_of(row, 'createdBy')}"),
            ("From sequence", text_of(row, "fromSequence")),
            ("Pending", _count(row, "pending")),
            ("Unacknowledged", _count(row, "unacknowledged")),
            ("Last delivered", session.out.time(row.get("lastDeliveredAt"))),
            ("URL", text_of(row, "url")),
            ("Stream", text_of(row, "stream")),
            ("Consumer", text_of(row, "consumer")),
            ("Subjects", ", ".join(_subjects(row))),
        ]
    )


def _add_delete(app: typer.Typer) -> None:
    @command(app, "delete", output=False, examples="muster subscription delete chat -p vision")
    def delete(
        session: Session,
        subscription: SubscriptionArgument,
        *,
        project: ProjectOption = None,
        yes: YesOption = False,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        """Delete a subscription. Its reader is cut off at once."""
        row = _find(session, subscription, project)
        name = text_of(row, "name")
        confirm(f"delete subscription {name}?", yes=yes)
        session.api.mutate("DELETE", f"{PATH}/{text_of(row, 'id')}", idempotency_key=idempotency_key)
        session.out.talk(f"subscription {name} deleted")


def _find(session: Session, wanted: str, project: str | None) -> Row:
    return find_in_project(session, wanted, project, path=PATH, rows="subscriptions", noun="subscription")


def _count(row: Row, field: str) -> str:
    """A dash where it is not known."""
    found = row.get(field)
    return "-" if found is None else str(found)


def _subjects(row: Row) -> list[str]:
    found = row.get("subjects")
    return [str(subject) for subject in found] if isinstance(found, list) else []
