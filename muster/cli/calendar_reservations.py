"""`muster calendar reservation`: nodes that are kept for a project for a time."""

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
    time_of,
    which_nodes,
)
from muster.cli.command import MusterGroup, Session, command
from muster.cli.exits import usage
from muster.cli.names import cluster_id, find_project
from muster.cli.options import ClusterOption, IdempotencyOption, YesOption, confirm, switch_option
from muster.cli.output import Column
from muster.cli.values import Row, exact_span, number_of, row_of, text_of

RESERVATIONS: Final = Entries("reservations", "reservation")


def _gpus(row: Row) -> str:
    return "all" if row.get("gpus") is None else f"{int(number_of(row, 'gpus'))}"


RESERVATION_COLUMNS: Final = (
    Column("NAME", "name"),
    Column("CLUSTER", "clusterName"),
    Column("PROJECT", "projectName"),
    Column("STATE", "state"),
    Column("FROM", "startsAt", exact=True),
    Column("TO", "endsAt", exact=True),
    Column("WEEKLY", "weekly"),
    Column("GPUS", "gpus", show=_gpus),
    Column("NODES", "nodes", show=which_nodes),
    Column("LEAD", "leadSeconds", show=lambda row: exact_span(int(number_of(row, "leadSeconds")))),
    Column("RESERVED-BY", "reservedBy", wide=True),
    Column("ID", "id", wide=True),
    *EXACTLY_COLUMNS,
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the reservation in its cluster.")]
_GpusOption = Annotated[
    str | None,
    typer.Option(
        "--gpus",
        metavar="N|all",
        help="So many GPUs of these nodes: whole nodes, in the order of their names, until they have as many. "
        "Default: all.",
    ),
]
_ForOption = Annotated[str, typer.Option("--for", metavar="PROJECT", help="Project that alone may use them meanwhile.")]


def add_reservations(app: typer.Typer) -> None:
    below = typer.Typer(
        cls=MusterGroup,
        help="Reservations: nodes that are kept for a project for a time. Create, list, describe, change, delete.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    _add_reads(below)
    _add_create(below)
    _add_set(below)
    _add_delete(below)
    app.add_typer(below, name="reservation")


def _add_reads(app: typer.Typer) -> None:
    @command(
        app,
        "list",
        examples="muster calendar reservation list\nmuster calendar reservation list --cluster demo --all",
        columns=RESERVATION_COLUMNS,
        past=True,
    )
    def list_(
        session: Session,
        *,
        cluster: ClusterOption = None,
        everything: Annotated[bool, typer.Option("--all", help="Also what was over less than 30 days ago.")] = False,
    ) -> None:
        """List reservations of capacity that are planned or go on."""
        rows = [row for row in RESERVATIONS.rows(session, cluster) if everything or text_of(row, "state") != "Over"]
        session.out.rows(rows, RESERVATION_COLUMNS, empty="no reservations")

    @command(app, "describe", examples="muster calendar reservation describe bench", past=True)
    def describe(session: Session, name: NameArgument, *, cluster: ClusterOption = None) -> None:
        """Show a reservation: when it is, of which nodes, and for which project."""
        row = RESERVATIONS.find(session, name, cluster)
        session.out.one(row, lambda: _describe(session, row), columns=RESERVATION_COLUMNS)


def _describe(session: Session, row: Row) -> None:
    session.out.pairs(
        [
            ("Name", text_of(row, "name")),
            ("Cluster", text_of(row, "clusterName")),
            ("Project", text_of(row, "projectName")),
            ("State", text_of(row, "state")),
            ("From", session.out.cell(row, RESERVATION_COLUMNS[4])),
            ("To", session.out.cell(row, RESERVATION_COLUMNS[5])),
            ("Weekly", "yes" if row.get("weekly") else "no"),
            ("GPUs", _gpus(row)),
            ("Nodes", which_nodes(row)),
            ("Lead", exact_span(int(number_of(row, "leadSeconds")))),
            ("Reserved by", text_of(row, "reservedBy")),
        ]
    )


def _add_create(app: typer.Typer) -> None:
    @command(
        app,
        "create",
        output=False,
        examples="""
        muster calendar reservation create bench --for vision --pool h100 --gpus 16 --from 2027-01-09 --to 2027-01-10
        muster calendar reservation create demo --for ai --node gpu-7 --weekly --from 2027-01-09T08Z --to 2027-01-09T10Z
        """,
    )
    def create(
        session: Session,
        name: NameArgument,
        *,
        for_: _ForOption,
        from_: FromOption,
        to: ToOption,
        node: NodeOption = None,
        pool: PoolOption = None,
        label: LabelOption = None,
        gpus: _GpusOption = None,
        weekly: Annotated[bool, typer.Option("--weekly", help="Again 168 hours later, until it is deleted.")] = False,
        lead: LeadOption = None,
        cluster: ClusterOption = None,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        """Keep nodes for a project: those to which all fits that --node, --pool and --label say, or some of them.

        When it begins, pods of other projects that are preemptible are told to end there, and until it is over only the
        project may use the nodes.
        """
        if not (node or pool or label):
            raise usage("give at least one of --node, --pool and --label")
        body: Row = {
            "clusterId": cluster_id(session, cluster),
            "name": name,
            "projectId": text_of(find_project(session.api, for_), "id"),
            "startsAt": time_of("--from", from_),
            "endsAt": time_of("--to", to),
            "weekly": weekly,
            **given_nodes(node, pool, label, lead),
            **_given_gpus(gpus),
        }
        done = session.api.mutate("POST", RESERVATIONS.path, body, idempotency_key=idempotency_key)
        session.out.talk(text_of(done.body, "message"))


def _add_set(app: typer.Typer) -> None:
    @command(
        app,
        "set",
        output=False,
        examples="""
        muster calendar reservation set bench --to 2027-01-11
        muster calendar reservation set demo --weekly off
        """,
    )
    def set_(
        session: Session,
        name: NameArgument,
        *,
        for_: Annotated[
            str | None, typer.Option("--for", metavar="PROJECT", help="Project that alone may use them meanwhile.")
        ] = None,
        from_: NewFromOption = None,
        to: NewToOption = None,
        node: NodeOption = None,
        pool: PoolOption = None,
        label: LabelOption = None,
        gpus: _GpusOption = None,
        weekly: Annotated[
            str | None, typer.Option("--weekly", metavar="on|off", help="Whether it comes again 168 hours later.")
        ] = None,
        lead: LeadOption = None,
        cluster: ClusterOption = None,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        """Change a reservation that is planned or goes on; what is not given stays.

        Of --node, --pool and --label all that there were are replaced by those that are given.
        """
        changes: Row = given_nodes(node, pool, label, lead) | _given_gpus(gpus)
        changes |= {"projectId": text_of(find_project(session.api, for_), "id")} if for_ is not None else {}
        changes |= {"startsAt": time_of("--from", from_)} if from_ is not None else {}
        changes |= {"endsAt": time_of("--to", to)} if to is not None else {}
        changes |= {"weekly": switch_option("--weekly", weekly)} if weekly is not None else {}
        if not changes:
            raise usage(
                "give at least one of --for, --from, --to, --node, --pool, --label, --gpus, --weekly and --lead"
            )
        row = RESERVATIONS.find(session, name, cluster)
        same = ("projectId", "startsAt", "endsAt", "nodes", "nodePools", "gpus", "weekly", "leadSeconds")
        kept: Row = {key: row[key] for key in same}
        kept["labels"] = [{"name": key, "value": value} for key, value in row_of(row, "labels").items()]
        done = session.api.mutate("PUT", RESERVATIONS.path_of(row), kept | changes, idempotency_key=idempotency_key)
        session.out.talk(done_there(text_of(done.body, "message"), row))


def _add_delete(app: typer.Typer) -> None:
    @command(
        app,
        "delete",
        output=False,
        examples="muster calendar reservation delete demo\nmuster calendar reservation delete demo --cluster lab -y",
    )
    def delete(
        session: Session,
        name: NameArgument,
        *,
        yes: YesOption = False,
        cluster: ClusterOption = None,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        """Cancel a reservation. Everybody may use its nodes again."""
        row = RESERVATIONS.find(session, name, cluster)
        confirm(f"Cancel reservation {name} of cluster {text_of(row, 'clusterName')}?", yes=yes)
        done = session.api.mutate("DELETE", RESERVATIONS.path_of(row), idempotency_key=idempotency_key)
        session.out.talk(done_there(text_of(done.body, "message"), row))


def _given_gpus(gpus: str | None) -> Row:
    if gpus is None:
        return {}
    if gpus.lower() == "all":
        return {"gpus": None}
    if not (gpus.isascii() and gpus.isdigit()):
        raise usage(f"--gpus: {gpus!r} is no number of GPUs", todo="write a whole number, or all")
    return {"gpus": int(gpus)}
