"""`muster calendar`, and maintenance of nodes."""

from typing import Annotated, Final

import typer

from muster.cli.calendar_options import (
    EXACTLY_COLUMNS,
    Entries,
    FromOption,
    LabelOption,
    LeadOption,
    NewFromOption,
    NewToOption,
    NodeOption,
    PoolOption,
    ToOption,
    done_there,
    given_nodes,
    made_there,
    time_of,
    which_nodes,
)
from muster.cli.calendar_reservations import RESERVATIONS, add_reservations, what_of, whose
from muster.cli.calendar_windows import add_windows, window_rows, windows_told
from muster.cli.command import MusterGroup, Session, command, group
from muster.cli.exits import usage
from muster.cli.names import default_cluster
from muster.cli.options import ClusterOption, CreatedOnOption, IdempotencyOption, YesOption, confirm, switch_option
from muster.cli.output import Column
from muster.cli.values import Row, exact_span, number_of, row_of, text_of

MAINTENANCE: Final = Entries("maintenance", "maintenance")


MAINTENANCE_COLUMNS: Final = (
    Column("NAME", "name"),
    Column("CLUSTER", "clusterName"),
    Column("STATE", "state"),
    Column("FROM", "startsAt", exact=True),
    Column("TO", "endsAt", exact=True),
    Column("NODES", "nodes", show=which_nodes),
    Column("LEAD", "leadSeconds", show=lambda row: exact_span(int(number_of(row, "leadSeconds")))),
    Column("FORCE", "force"),
    Column("PLANNED-BY", "plannedBy", wide=True),
    Column("ID", "id", wide=True),
    *EXACTLY_COLUMNS,
)

ENTRY_COLUMNS: Final = (
    Column("KIND", "kind"),
    Column("NAME", "name"),
    Column("CLUSTER", "clusterName"),
    Column("STATE", "state"),
    Column("FROM", "startsAt", exact=True),
    Column("TO", "endsAt", exact=True),
    Column("ABOUT", "about"),
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the maintenance in its cluster.")]


def add_calendar(root: typer.Typer) -> None:
    app = group("calendar")
    _add_list(app)
    below = typer.Typer(
        cls=MusterGroup,
        help="Maintenance: nodes that are out of service for a time. Plan, list, change, cancel.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    _add_reads(below)
    _add_create(below)
    _add_changes(below)
    app.add_typer(below, name="maintenance")
    add_windows(app)
    add_reservations(app)
    root.add_typer(app, name="calendar")


def _add_list(app: typer.Typer) -> None:
    @command(
        app,
        "list",
        examples="muster calendar list\nmuster calendar list --cluster demo --all",
        columns=ENTRY_COLUMNS,
    )
    def list_(
        session: Session,
        *,
        cluster: ClusterOption = None,
        everything: Annotated[bool, typer.Option("--all", help="Also what was over less than 30 days ago.")] = False,
    ) -> None:
        """List all that the calendar has: maintenance, reservations, and windows of projects.

        What goes on or comes next first. Of a window, from or to is when it opens or closes next. Windows are of
        projects, and so in no cluster: with --cluster there are none.
        """
        rows = [_entry("maintenance", row, which_nodes(row)) for row in MAINTENANCE.rows(session, cluster)]
        reserved = RESERVATIONS.rows(session, cluster)
        rows += [_entry("reservation", row, f"for {whose(row)}: {what_of(row)}") for row in reserved]
        rows = [row for row in rows if everything or row["state"] != "Over"]
        rows += [_window(row) for row in (() if cluster else window_rows(session))]
        session.out.rows(sorted(rows, key=_when), ENTRY_COLUMNS, empty="the calendar is empty")


def _entry(kind: str, row: Row, about: str) -> Row:
    same = ("id", "name", "clusterName", "state", "startsAt", "endsAt")
    return {"kind": kind, **{key: row[key] for key in same}, "about": about}


def _window(row: Row) -> Row:
    changes, opened = row["changesAt"], bool(row["open"])
    about = f"over quota only {windows_told(row)}" if row["overQuotaOnly"] else windows_told(row)
    return {
        "kind": "window",
        "id": row["projectId"],
        "name": row["projectName"],
        "clusterName": None,
        "state": "Open" if opened else "Closed",
        "startsAt": None if opened else changes,
        "endsAt": changes if opened else None,
        "about": f"{about} {text_of(row, 'zone')}",
    }


def _when(row: Row) -> tuple[str, str, str]:
    """What has begun, and is of no known beginning, first."""
    return text_of(row, "startsAt"), text_of(row, "kind"), text_of(row, "name")


def _add_reads(app: typer.Typer) -> None:
    @command(
        app,
        "list",
        examples="muster calendar maintenance list\nmuster calendar maintenance list --cluster demo --all",
        columns=MAINTENANCE_COLUMNS,
        past=True,
    )
    def list_(
        session: Session,
        *,
        cluster: ClusterOption = None,
        everything: Annotated[bool, typer.Option("--all", help="Also what was over less than 30 days ago.")] = False,
    ) -> None:
        """List maintenance of nodes that is planned or goes on."""
        rows = MAINTENANCE.rows(session, cluster)
        rows = [row for row in rows if everything or text_of(row, "state") != "Over"]
        session.out.rows(rows, MAINTENANCE_COLUMNS, empty="no maintenance is planned")

    @command(app, "describe", examples="muster calendar maintenance describe firmware", past=True)
    def describe(session: Session, name: NameArgument, *, cluster: ClusterOption = None) -> None:
        """Show maintenance: when it is, and of which nodes."""
        row = MAINTENANCE.find(session, name, cluster)
        session.out.one(row, lambda: _describe(session, row), columns=MAINTENANCE_COLUMNS)


def _add_create(app: typer.Typer) -> None:
    @command(
        app,
        "create",
        output=False,
        examples="""
        muster calendar maintenance create firmware --pool h100 --from 2027-01-09T06:00:00Z --to 2027-01-09T12:00:00Z
        muster calendar maintenance create rack-4 --label rack=4 --from 2027-01-09 --to 2027-01-10 --lead 3d --force
        muster calendar maintenance create fan --node gpu-7 --from 2027-01-09T08:00:00+01:00 --to 2027-01-09T09:00Z
        """,
    )
    def create(
        session: Session,
        name: NameArgument,
        *,
        from_: FromOption,
        to: ToOption,
        node: NodeOption = None,
        pool: PoolOption = None,
        label: LabelOption = None,
        lead: LeadOption = None,
        force: Annotated[
            bool, typer.Option("--force", help="End pods of non-preemptible workloads, too, when it begins.")
        ] = False,
        cluster: CreatedOnOption = None,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        """Plan maintenance of nodes: those to which all fits that --node, --pool and --label say.

        When it begins they are drained as `muster node drain` does it, and when it is over they take pods again, unless
        somebody else has cordoned them.
        """
        if not (node or pool or label):
            raise usage("give at least one of --node, --pool and --label")
        there = default_cluster(session, cluster)
        body: Row = {
            "clusterId": text_of(there, "id"),
            "name": name,
            "startsAt": time_of("--from", from_),
            "endsAt": time_of("--to", to),
            "force": force,
            **given_nodes(node, pool, label, lead),
        }
        done = session.api.mutate("POST", MAINTENANCE.path, body, idempotency_key=idempotency_key)
        session.out.talk(made_there(text_of(done.body, "message"), there))


def _add_changes(app: typer.Typer) -> None:
    @command(
        app,
        "set",
        output=False,
        examples="""
        muster calendar maintenance set firmware --to 2027-01-09T18:00:00Z
        muster calendar maintenance set firmware --node gpu-7 --node gpu-8 --force on
        """,
    )
    def set_(
        session: Session,
        name: NameArgument,
        *,
        from_: NewFromOption = None,
        to: NewToOption = None,
        node: NodeOption = None,
        pool: PoolOption = None,
        label: LabelOption = None,
        lead: LeadOption = None,
        force: Annotated[
            str | None,
            typer.Option("--force", metavar="on|off", help="Whether pods of non-preemptible workloads are ended, too."),
        ] = None,
        cluster: ClusterOption = None,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        """Change maintenance that is planned or goes on; what is not given stays. Once it has begun, that stays.

        Of --node, --pool and --label all that there were are replaced by those that are given.
        """
        changes: Row = given_nodes(node, pool, label, lead)
        changes |= {"startsAt": time_of("--from", from_)} if from_ is not None else {}
        changes |= {"endsAt": time_of("--to", to)} if to is not None else {}
        changes |= {"force": switch_option("--force", force)} if force is not None else {}
        if not changes:
            raise usage("give at least one of --from, --to, --node, --pool, --label, --lead and --force")
        row = MAINTENANCE.find(session, name, cluster)
        kept: Row = {key: row[key] for key in ("startsAt", "endsAt", "nodes", "nodePools", "leadSeconds", "force")}
        kept["labels"] = [{"name": key, "value": value} for key, value in row_of(row, "labels").items()]
        done = session.api.mutate("PUT", MAINTENANCE.path_of(row), kept | changes, idempotency_key=idempotency_key)
        session.out.talk(done_there(text_of(done.body, "message"), row))

    @command(
        app,
        "delete",
        output=False,
        examples="""
        muster calendar maintenance delete firmware
        muster calendar maintenance delete fan --cluster demo -y
        """,
    )
    def delete(
        session: Session,
        name: NameArgument,
        *,
        yes: YesOption = False,
        cluster: ClusterOption = None,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        """Cancel maintenance. Nodes that it took out of service take pods again."""
        row = MAINTENANCE.find(session, name, cluster)
        confirm(f"Cancel maintenance {name} of cluster {text_of(row, 'clusterName')}?", yes=yes)
        done = session.api.mutate("DELETE", MAINTENANCE.path_of(row), idempotency_key=idempotency_key)
        session.out.talk(done_there(text_of(done.body, "message"), row))


def _describe(session: Session, row: Row) -> None:
    session.out.pairs(
        [
            ("Name", text_of(row, "name")),
            ("Cluster", text_of(row, "clusterName")),
            ("State", text_of(row, "state")),
            ("From", session.out.cell(row, MAINTENANCE_COLUMNS[3])),
            ("To", session.out.cell(row, MAINTENANCE_COLUMNS[4])),
            ("Nodes", which_nodes(row)),
            ("Lead", exact_span(int(number_of(row, "leadSeconds")))),
            ("Non-preemptible", "told to end, too" if row.get("force") else "stay until they end"),
            ("Planned by", text_of(row, "plannedBy")),
        ]
    )
