"""`muster calendar reservation`: nodes, or GPUs of them, that are kept for some for a time."""

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
    label_of,
    made_there,
    time_of,
    which_nodes,
)
from muster.cli.command import MusterGroup, Session, command
from muster.cli.exits import usage
from muster.cli.names import default_cluster, find_department, find_project
from muster.cli.options import ClusterOption, CreatedOnOption, IdempotencyOption, YesOption, confirm, switch_option
from muster.cli.output import Column
from muster.cli.values import Row, exact_span, number_of, row_of, text_of

RESERVATIONS: Final = Entries("reservations", "reservation")


def _gpus(row: Row) -> str:
    if row.get("gpus") is None:
        return "all"
    return f"{'exactly ' if row.get('exact') else ''}{int(number_of(row, 'gpus'))}"


def _which(row: Row) -> str:
    """How many nodes, and of which."""
    of = which_nodes(row)
    if row.get("nodeCount") is None:
        return of
    count = int(number_of(row, "nodeCount"))
    return f"{count} of {of}" if of.startswith("node") else f"{count} node{'s' if count != 1 else ''} of {of}"


def whose(row: Row) -> str:
    """Of whom they are: of a project or department, and with which labels."""
    department = text_of(row, "departmentName")
    found = [f"department {department}" if department else text_of(row, "projectName")]
    found += [f"{key}={value}" for key, value in row_of(row, "workloadLabels").items()]
    return " ".join(each for each in found if each)


RESERVATION_COLUMNS: Final = (
    Column("NAME", "name"),
    Column("CLUSTER", "clusterName"),
    Column("FOR", "projectName", show=whose),
    Column("STATE", "state"),
    Column("FROM", "startsAt", exact=True),
    Column("TO", "endsAt", exact=True),
    Column("WEEKLY", "weekly"),
    Column("GPUS", "gpus", show=_gpus),
    Column("NODES", "nodes", show=_which),
    Column("LEAD", "leadSeconds", show=lambda row: exact_span(int(number_of(row, "leadSeconds")))),
    Column("RESERVED-BY", "reservedBy", wide=True),
    Column("ID", "id", wide=True),
    *EXACTLY_COLUMNS,
    Column("DEPARTMENT", "departmentName", rare=True),
    Column("WORKLOAD-LABELS", "workloadLabels", rare=True),
    Column("NODE-COUNT", "nodeCount", rare=True),
    Column("EXACT", "exact", rare=True),
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
_CountOption = Annotated[
    str | None,
    typer.Option(
        "--node-count", metavar="N|all", help="So many of these nodes, in the order of their names. Default: all."
    ),
]
_ForOption = Annotated[
    str | None, typer.Option("--for", metavar="PROJECT", help="Project that alone may use them meanwhile.")
]
_ForDepartmentOption = Annotated[
    str | None,
    typer.Option("--for-department", metavar="DEPARTMENT", help="Department whose projects alone may use them."),
]
_ForLabelOption = Annotated[
    list[str] | None,
    typer.Option(
        "--for-label",
        metavar="KEY=VALUE",
        help="A label that workloads must have to use them; alone, workloads of any project. Repeatable.",
    ),
]


def what_of(row: Row) -> str:
    """How much of which nodes."""
    if row.get("gpus") is None:
        return _which(row)
    return f"{_gpus(row)} GPU{'s' if number_of(row, 'gpus') != 1 else ''} of {_which(row)}"


def add_reservations(app: typer.Typer) -> None:
    below = typer.Typer(
        cls=MusterGroup,
        help="Reservations: nodes, or GPUs, that are kept for some for a time. Create, list, describe, change, delete.",
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
        """Show a reservation: when it is, of which nodes, and for whom."""
        row = RESERVATIONS.find(session, name, cluster)
        session.out.one(row, lambda: _describe(session, row), columns=RESERVATION_COLUMNS)


def _describe(session: Session, row: Row) -> None:
    session.out.pairs(
        [
            ("Name", text_of(row, "name")),
            ("Cluster", text_of(row, "clusterName")),
            ("For", whose(row)),
            ("State", text_of(row, "state")),
            ("From", session.out.cell(row, RESERVATION_COLUMNS[4])),
            ("To", session.out.cell(row, RESERVATION_COLUMNS[5])),
            ("Weekly", "yes" if row.get("weekly") else "no"),
            ("GPUs", _gpus(row)),
            ("Nodes", _which(row)),
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
        muster calendar reservation create x --for-label a=b --gpus 4 --exact --pool a --from 2027-01-09 --to 2027-01-10
        """,
    )
    def create(
        session: Session,
        name: NameArgument,
        *,
        for_: _ForOption = None,
        for_department: _ForDepartmentOption = None,
        for_label: _ForLabelOption = None,
        from_: FromOption,
        to: ToOption,
        node: NodeOption = None,
        pool: PoolOption = None,
        label: LabelOption = None,
        gpus: _GpusOption = None,
        exact: Annotated[
            bool,
            typer.Option("--exact", help="Keep no more GPUs of the last node than --gpus says, and not all of it."),
        ] = False,
        node_count: _CountOption = None,
        weekly: Annotated[bool, typer.Option("--weekly", help="Again 168 hours later, until it is deleted.")] = False,
        lead: LeadOption = None,
        cluster: CreatedOnOption = None,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        """Keep nodes for some: those to which all fits that --node, --pool and --label say, or so many of them.

        They are for the workloads to which all fits that --for, --for-department and --for-label say. When it begins,
        preemptible pods of others are told to end there, and until it is over only these workloads may use the nodes.
        """
        if not (node or pool or label):
            raise usage("give at least one of --node, --pool and --label")
        if not (for_ or for_department or for_label):
            raise usage("give at least one of --for, --for-department and --for-label")
        there = default_cluster(session, cluster)
        body: Row = {
            "clusterId": text_of(there, "id"),
            "name": name,
            **_given_holder(session, for_, for_department, for_label),
            "startsAt": time_of("--from", from_),
            "endsAt": time_of("--to", to),
            "weekly": weekly,
            **given_nodes(node, pool, label, lead),
            **_given_counts(gpus, node_count),
            "exact": exact,
        }
        done = session.api.mutate("POST", RESERVATIONS.path, body, idempotency_key=idempotency_key)
        session.out.talk(made_there(text_of(done.body, "message"), there))


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
        for_: _ForOption = None,
        for_department: _ForDepartmentOption = None,
        for_label: _ForLabelOption = None,
        from_: NewFromOption = None,
        to: NewToOption = None,
        node: NodeOption = None,
        pool: PoolOption = None,
        label: LabelOption = None,
        gpus: _GpusOption = None,
        exact: Annotated[
            str | None,
            typer.Option(
                "--exact", metavar="on|off", help="Whether of the last node no more GPUs are kept than wanted."
            ),
        ] = None,
        node_count: _CountOption = None,
        weekly: Annotated[
            str | None, typer.Option("--weekly", metavar="on|off", help="Whether it comes again 168 hours later.")
        ] = None,
        lead: LeadOption = None,
        cluster: ClusterOption = None,
        idempotency_key: IdempotencyOption = None,
    ) -> None:
        """Change a reservation that is planned or goes on; what is not given stays.

        Of --node, --pool and --label all that there were are replaced by those that are given, and so it is with --for,
        --for-department and --for-label. Only one of --gpus and --node-count counts: with one of them the other, and
        with --node-count also --exact, is gone.
        """
        changes: Row = given_nodes(node, pool, label, lead) | _given_counts(gpus, node_count)
        changes |= _given_holder(session, for_, for_department, for_label)
        changes |= {"exact": switch_option("--exact", exact)} if exact is not None else {}
        changes |= {"startsAt": time_of("--from", from_)} if from_ is not None else {}
        changes |= {"endsAt": time_of("--to", to)} if to is not None else {}
        changes |= {"weekly": switch_option("--weekly", weekly)} if weekly is not None else {}
        if not changes:
            raise usage(
                "give at least one of --for, --for-department, --for-label, --from, --to, --node, --pool, --label, "
                "--gpus, --exact, --node-count, --weekly and --lead"
            )
        row = RESERVATIONS.find(session, name, cluster)
        same = ("projectId", "departmentId", "startsAt", "endsAt", "nodes", "nodePools", "gpus", "nodeCount", "exact")
        kept: Row = {key: row[key] for key in (*same, "weekly", "leadSeconds")}
        for labels in ("labels", "workloadLabels"):
            kept[labels] = [{"name": key, "value": value} for key, value in row_of(row, labels).items()]
        done = session.api.mutate(
            "PUT", RESERVATIONS.path_of(row), kept | _instead(changes) | changes, idempotency_key=idempotency_key
        )
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


def _given_holder(session: Session, project: str | None, department: str | None, labels: list[str] | None) -> Row:
    """Whom it is for; nothing where nobody is given."""
    if project is None and department is None and not labels:
        return {}
    if project is not None and department is not None:
        raise usage("--for-department is not given beside --for: a project stands in one department")
    return {
        "projectId": None if project is None else text_of(find_project(session.api, project), "id"),
        "departmentId": None if department is None else text_of(find_department(session.api, department), "id"),
        "workloadLabels": [label_of("--for-label", each) for each in labels or ()],
    }


def _given_counts(gpus: str | None, nodes: str | None) -> Row:
    found: Row = {}
    for flag, field, given in (("--gpus", "gpus", gpus), ("--node-count", "nodeCount", nodes)):
        if given is not None:
            found[field] = _number(flag, given)
    return found


def _instead(changes: Row) -> Row:
    """What is counted otherwise now is not counted as before."""
    if changes.get("nodeCount") is not None:
        return {"gpus": None, "exact": False}
    if "gpus" in changes:
        return {"nodeCount": None} if changes["gpus"] is not None else {"exact": False}
    return {}


def _number(flag: str, given: str) -> int | None:
    if given.lower() == "all":
        return None
    if not (given.isascii() and given.isdigit()):
        what = "GPUs" if flag == "--gpus" else "nodes"
        raise usage(f"{flag}: {given!r} is no number of {what}", todo="write a whole number, or all")
    return int(given)
