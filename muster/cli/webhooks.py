"""`muster webhook`: addresses that the public events of a project are posted to."""

from typing import Annotated, Final

import typer

from muster.cli.command import Session, command, group
from muster.cli.exits import ExitCode, Problem, usage
from muster.cli.names import default_project, find_in_project, find_project
from muster.cli.options import IdempotencyOption, ProjectOption, YesOption, confirm
from muster.cli.output import Column
from muster.cli.values import Row, rows_of, text_of, texts_of


def _state(row: Row) -> str:
    if row.get("enabled"):
        return "enabled"
    return f"disabled: {text_of(row, 'disabledBecause').replace('_', ' ')}"


def _types(row: Row) -> str:
    return ", ".join(texts_of(row, "types")) or "all"


def _last(row: Row) -> str:
    """What came of the last try, for people."""
    tries = rows_of(row, "tries")
    if not tries:
        return "-"
    last = tries[-1]
    status = "no answer" if last.get("status") is None else str(last["status"])
    return ": ".join(part for part in (status, text_of(last, "error") or text_of(last, "excerpt")) if part)


PATH: Final = "/webhooks"
_WHY_DISABLED: Final = {
    "by_request": "somebody disabled it",
    "gone": "its receiver answered 410",
    "failing": "a delivery was given up after its last try, and nothing else was delivered meanwhile",
    "too_many_waiting": "too many events waited for its receiver",
}
"""By the API's code."""
WEBHOOK_COLUMNS: Final = (
    Column("NAME", "name"),
    Column("PROJECT", "projectName"),
    Column("STATE", "enabled", show=_state),
    Column("TYPES", "types", show=_types),
    Column("URL", "url", rest=True),
    Column("CREATED", "createdAt", time=True),
    Column("BY", "createdBy", wide=True),
    Column("ID", "id", wide=True),
)
SECRET_COLUMNS: Final = (Column("ID", "id"), Column("NAME", "name"), Column("URL", "url"), Column("SECRET", "secret"))
DELIVERY_COLUMNS: Final = (
    Column("NUMBER", "number"),
    Column("TYPE", "type"),
    Column("STATE", "state"),
    Column("CREATED", "createdAt", time=True),
    Column("TRIES", "tries", show=lambda row: str(len(rows_of(row, "tries")))),
    Column("NEXT", "dueAt", time=True),
    Column("LAST", "last", show=_last, rest=True),
    Column("EVENT", "eventId", wide=True),
)
WebhookArgument = Annotated[str, typer.Argument(metavar="WEBHOOK", help="Name in the project, or id.")]
TypeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--type",
        metavar="TYPE",
        help="Post only events of this type, such as WorkloadFailed or 'Workload*'. May be given several times. "
        "Default: all.",
    ),
]


def add_webhooks(root: typer.Typer) -> None:
    app = group("webhook")
    _add_create(app)
    _add_reads(app)
    _add_change(app)
    _add_deliveries(app)
    _add_test(app)
    _add_delete(app)
    root.add_typer(app, name="webhook")


def _add_create(app: typer.Typer) -> None:
    @command(
        app,
        "create",
        examples="""
        muster webhook create https://example.com/muster -p vision --name chat
        muster webhook create https://example.com/muster -p vision --type WorkloadCompleted --type WorkloadFailed
        """,
        columns=SECRET_COLUMNS,
    )
    def create(
        session: Session,
        address: Annotated[str, typer.Argument(metavar="URL", help="Where events are posted to.")],
        *,
        project: ProjectOption = None,
        name: Annotated[
            str | None, typer.Option("--name", help="Name, unique in the project. Default: a name is chosen.")
        ] = None,
        types: TypeOption = None,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        """Create a webhook for the public events of a project, and print its secret once."""
        where = default_project(session, project)
        body: Row = {"projectId": where["id"], "url": address}
        if name is not None:
            body["name"] = name
        if types:
            body["types"] = [*types]
        _print_secret(session, session.api.mutate("POST", PATH, body, idempotency_key=idempotency_key).body)

    @command(app, "rotate-key", examples="muster webhook rotate-key chat -p vision", columns=SECRET_COLUMNS)
    def rotate_key(
        session: Session,
        webhook: WebhookArgument,
        *,
        project: ProjectOption = None,
        yes: YesOption = False,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        """Give a webhook a new secret, and print it once. For 24 hours deliveries are signed with the old one, too."""
        row = _find(session, webhook, project)
        confirm(f"give webhook {text_of(row, 'name')} a new secret?", yes=yes)
        path = f"{PATH}/{text_of(row, 'id')}/rotate-key"
        _print_secret(session, session.api.mutate("POST", path, idempotency_key=idempotency_key).body)


def _print_secret(session: Session, row: Row) -> None:
    """Raises Problem where there is none."""
    if not text_of(row, "secret"):
        raise Problem(
            "no secret is shown",
            why=(text_of(row, "message"),),
            todo=f"muster webhook rotate-key {text_of(row, 'name')}",
            code=ExitCode.FAILURE,
        )
    pairs = [(field, text_of(row, field)) for field in ("id", "name", "url", "secret")]
    session.out.one(row, lambda: session.out.pairs(pairs), columns=SECRET_COLUMNS)
    session.out.talk(text_of(row, "message"))


def _add_reads(app: typer.Typer) -> None:
    @command(
        app, "list", examples="muster webhook list\nmuster webhook list -p vision -o wide", columns=WEBHOOK_COLUMNS
    )
    def list_(
        session: Session,
        *,
        project: Annotated[str | None, typer.Option("--project", "-p", help="Only webhooks of this project.")] = None,
    ) -> None:
        """List the webhooks of the projects that you administer."""
        scope = [("projectId", text_of(find_project(session.api, project), "id"))] if project else []
        rows = rows_of(session.api.get(PATH, scope), "webhooks")
        session.out.rows(rows, WEBHOOK_COLUMNS, empty="no webhooks")

    @command(app, "describe", examples="muster webhook describe chat -p vision", columns=WEBHOOK_COLUMNS)
    def describe(session: Session, webhook: WebhookArgument, *, project: ProjectOption = None) -> None:
        """Show a webhook. Its secret is printed only once, when it is created or rotated."""
        row = _find(session, webhook, project)
        session.out.one(row, lambda: _show(session, row), columns=WEBHOOK_COLUMNS)


def _show(session: Session, row: Row) -> None:
    why = text_of(row, "disabledBecause")
    disabled = [("Disabled", session.out.time(row.get("disabledAt"))), ("Because", _WHY_DISABLED.get(why, why))]
    session.out.pairs(
        [
            ("Name", text_of(row, "name")),
            ("Id", text_of(row, "id")),
            ("Project", text_of(row, "projectName")),
            ("URL", text_of(row, "url")),
            ("Types", _types(row)),
            ("State", _state(row)),
            *([] if row.get("enabled") else disabled),
            ("Created", f"{session.out.time(row.get('createdAt'))} by {text_of(row, 'createdBy')}"),
            ("Secret rotated", session.out.time(row.get("secretRotatedAt"))),
        ]
    )


def _add_change(app: typer.Typer) -> None:
    @command(
        app,
        "change",
        output=False,
        examples="""
        muster webhook change chat -p vision --enable
        muster webhook change chat -p vision --address https://example.com/new --type 'Workload*'
        """,
    )
    def change(
        session: Session,
        webhook: WebhookArgument,
        *,
        project: ProjectOption = None,
        address: Annotated[str | None, typer.Option("--address", metavar="URL", help="Post to this address.")] = None,
        types: TypeOption = None,
        all_types: Annotated[bool, typer.Option("--all-types", help="Post events of all types.")] = False,
        enabled: Annotated[
            bool | None, typer.Option("--enable/--disable", help="Post events from now on, or post nothing.")
        ] = None,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        """Change where a webhook posts to, which events, or whether it does."""
        if types and all_types:
            raise usage("--type and --all-types exclude each other")
        body: Row = {}
        if address is not None:
            body["url"] = address
        if types or all_types:
            body["types"] = [*(types or ())]
        if enabled is not None:
            body["enabled"] = enabled
        if not body:
            raise usage("name what to change: --address, --type, --all-types, --enable or --disable")
        row = _find(session, webhook, project)
        path = f"{PATH}/{text_of(row, 'id')}"
        session.out.talk(
            text_of(session.api.mutate("PATCH", path, body, idempotency_key=idempotency_key).body, "message")
        )


def _add_deliveries(app: typer.Typer) -> None:
    @command(
        app,
        "deliveries",
        examples="muster webhook deliveries chat -p vision\nmuster webhook deliveries chat -p vision --parked -o json",
        columns=DELIVERY_COLUMNS,
    )
    def deliveries(
        session: Session,
        webhook: WebhookArgument,
        *,
        project: ProjectOption = None,
        parked: Annotated[bool, typer.Option("--parked", help="Only deliveries that were given up.")] = False,
        waiting: Annotated[bool, typer.Option("--waiting", help="Only deliveries that are to be tried.")] = False,
        limit: Annotated[int, typer.Option("--limit", min=1, max=100, help="At most so many.")] = 50,
        before: Annotated[
            int | None, typer.Option("--before", metavar="NUMBER", min=1, help="Only older ones than this number.")
        ] = None,
    ) -> None:
        """List the deliveries of a webhook, the newest first, and what came of each."""
        if parked and waiting:
            raise usage("--parked and --waiting exclude each other")
        state = "parked" if parked else "waiting" if waiting else ""
        query = [("limit", str(limit))]
        query += [("state", state)] if state else []
        query += [("before", str(before))] if before is not None else []
        row = _find(session, webhook, project)
        found = session.api.get(f"{PATH}/{text_of(row, 'id')}/deliveries", query)
        session.out.rows(rows_of(found, "deliveries"), DELIVERY_COLUMNS, empty="no deliveries")
        if found.get("next") is not None:
            session.out.talk(f"there may be older ones: --before {found['next']}")

    @command(
        app,
        "redeliver",
        output=False,
        examples="muster webhook redeliver chat 4711 4712 -p vision\nmuster webhook redeliver chat --parked -p vision",
    )
    def redeliver(
        session: Session,
        webhook: WebhookArgument,
        numbers: Annotated[
            list[int] | None, typer.Argument(metavar="DELIVERY...", help="Numbers of deliveries.")
        ] = None,
        *,
        parked: Annotated[bool, typer.Option("--parked", help="All that were given up.")] = False,
        project: ProjectOption = None,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        """Deliver again: some deliveries, or all that were given up."""
        if parked == bool(numbers):
            raise usage("name deliveries, or give --parked")
        row = _find(session, webhook, project)
        body: Row = {} if parked else {"deliveries": [*(numbers or ())]}
        path = f"{PATH}/{text_of(row, 'id')}/redeliver"
        done = session.api.mutate("POST", path, body, idempotency_key=idempotency_key).body
        session.out.talk(f"{done['count']} deliveries are made again")


def _add_test(app: typer.Typer) -> None:
    @command(app, "test", examples="muster webhook test chat -p vision", columns=DELIVERY_COLUMNS)
    def test(
        session: Session,
        webhook: WebhookArgument,
        *,
        project: ProjectOption = None,
        idempotency_key: IdempotencyOption = None,
    ) -> int | None:
        """Post a test event to a webhook, once, and show the answer. Exit 1 if it is not taken."""
        row = _find(session, webhook, project)
        path = f"{PATH}/{text_of(row, 'id')}/test"
        done = session.api.mutate("POST", path, idempotency_key=idempotency_key).body
        session.out.one(done, lambda: _show_test(session, done), columns=DELIVERY_COLUMNS)
        return None if text_of(done, "state") == "delivered" else ExitCode.FAILURE


def _show_test(session: Session, row: Row) -> None:
    session.out.pairs([("State", text_of(row, "state")), ("Answer", _last(row)), ("Event", text_of(row, "eventId"))])


def _add_delete(app: typer.Typer) -> None:
    @command(app, "delete", output=False, examples="muster webhook delete chat -p vision")
    def delete(
        session: Session,
        webhook: WebhookArgument,
        *,
        project: ProjectOption = None,
        yes: YesOption = False,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        """Delete a webhook, and forget its deliveries."""
        row = _find(session, webhook, project)
        name = text_of(row, "name")
        confirm(f"delete webhook {name}?", yes=yes)
        session.api.mutate("DELETE", f"{PATH}/{text_of(row, 'id')}", idempotency_key=idempotency_key)
        session.out.talk(f"webhook {name} deleted")


def _find(session: Session, wanted: str, project: str | None) -> Row:
    return find_in_project(session, wanted, project, path=PATH, rows="webhooks", noun="webhook")
