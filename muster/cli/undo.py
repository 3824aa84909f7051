"""`muster undo`: take back what was done to workloads."""

import json
from typing import Annotated, Final

import typer

from muster.cli.command import Session, command
from muster.cli.exits import ExitCode, Problem, usage
from muster.cli.names import workload_told
from muster.cli.options import (
    AllOption,
    DryRunOption,
    FilterOption,
    ProjectOption,
    SearchOption,
    SelectorOption,
    SomeWorkloadsArgument,
    StatusOption,
    YesOption,
    confirm,
)
from muster.cli.output import Column
from muster.cli.report import report
from muster.cli.submission import send_again
from muster.cli.values import Row, number_of, row_of, text_of
from muster.cli.workload_acts import Chosen, chosen_rows

_DOES: Final = {"suspend": "suspend", "resume": "resume", "change": "change back", "resubmit": "submit again"}
UNDO_COLUMNS: Final = (
    Column("NAME", "name"),
    Column("RESULT", "result"),
    Column("SEQUENCE", "undoes.sequence"),
    Column("UNDOES", "undoes.message"),
    Column("ID", "id", wide=True),
    Column("WHY", "why", rest=True),
)


def add_undo(root: typer.Typer) -> None:
    """Declares `muster undo`."""

    @command(
        root,
        "undo",
        examples="""
        muster undo hello                       # the newest act that stands; again, and it is the one before
        muster undo hello --sequence 4711       # that act, as `muster workload history hello` numbers them
        muster undo -l team=vision -p vision --dry-run
        """,
        columns=UNDO_COLUMNS,
    )
    def undo(
        session: Session,
        workloads: SomeWorkloadsArgument = None,
        *,
        project: ProjectOption = None,
        sequence: Annotated[
            int | None,
            typer.Option("--sequence", metavar="N", help="Undo this act, as the history numbers it. For one workload."),
        ] = None,
        everything: AllOption = False,
        status: StatusOption = None,
        conditions: FilterOption = None,
        selector: SelectorOption = None,
        search: SearchOption = None,
        dry_run: DryRunOption = False,
        yes: YesOption = False,
    ) -> int:
        """Undo a suspension, resumption or change of workloads.

        A deleted workload is submitted again as a new one. An act is not undone alone where a later one changed the
        same thing: the refusal names that one.
        """
        chosen = Chosen(
            all=everything,
            status=status,
            conditions=conditions,
            selector=selector,
            search=search,
            dry_run=dry_run,
            kind=None,
            framework="",
        )
        rows = _rows(session, workloads, project, chosen)
        if sequence is not None and (chosen.given or len(rows) != 1):
            raise usage("--sequence goes with one workload that is named", todo="leave it out, or name one")
        planned = [_planned(session, row, sequence) for row in rows]
        todo = [row for row, _ in planned if row["result"] != "refused"]
        if todo and not dry_run:
            confirm("; ".join(f"{text_of(row, 'name')}: {row['result']}" for row in todo) + "?", yes=yes)
        done = planned if dry_run else [_done(session, row, code) for row, code in planned]
        session.out.rows([row for row, _ in done], UNDO_COLUMNS)
        if dry_run:
            session.out.talk("dry run: nothing was done")
        return next((code for _, code in done if code), ExitCode.OK)


def _rows(session: Session, workloads: list[str] | None, project: str | None, chosen: Chosen) -> list[Row]:
    """Raises Problem."""
    if chosen.given and workloads:
        raise usage("name workloads, or choose them with --all and filters", todo="leave one of them out")
    if chosen.given:
        return [{"id": row["id"], "name": row["name"]} for row in chosen_rows(session, "undo", project, chosen)]
    if not workloads:
        raise usage(
            "of which workloads is something to undo?",
            todo="name them, or choose them with --all, --status, --filter, -l, --search",
        )
    named = [workload_told(session, one, project, deleted=True) for one in workloads]
    return [{"id": identifier, "name": told} for identifier, told in named]


def _planned(session: Session, row: Row, sequence: int | None) -> tuple[Row, ExitCode]:
    """What undoing would do, and the code of its refusal."""
    body: Row = {"dryRun": True}
    if sequence is not None:
        body["sequence"] = sequence
    try:
        told = session.api.mutate("POST", f"/workloads/{text_of(row, 'id')}/undo", body).body
    except Problem as problem:
        return row | {"result": "refused", "why": problem.what}, problem.code
    result = f"would {_result(told)}" if told.get("changed") else "unchanged"
    told_of: Row = {"result": result, "undoes": row_of(told, "undoes"), "action": text_of(told, "action")}
    return row | told_of, ExitCode.OK


def _result(told: Row) -> str:
    action, then = text_of(told, "action"), row_of(told, "then")
    values = ", ".join(f"{name} {_value(value)}" for name, value in then.items())
    return _DOES[action] + (f" to {values}" if values else "")


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _done(session: Session, row: Row, code: ExitCode) -> tuple[Row, ExitCode]:
    if row["result"] in ("refused", "unchanged"):
        return row, code
    try:
        if row["action"] == "resubmit":
            made = send_again(session, text_of(row, "id"))
            return row | {"result": "submitted again", "id": text_of(made, "workloadId")}, ExitCode.OK
        body: Row = {"sequence": int(number_of(row_of(row, "undoes"), "sequence"))}
        session.api.mutate("POST", f"/workloads/{text_of(row, 'id')}/undo", body)
    except Problem as problem:
        report(problem, session.out.stderr, debug=session.connection.debug)
        return row | {"result": "refused", "why": problem.what}, problem.code
    return row | {"result": "undone"}, ExitCode.OK
