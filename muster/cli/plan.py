"""`muster plan`: what would happen if the workloads of files were submitted now."""

from typing import Annotated, Final

import typer

from muster.cli.apply import FilesOption, Wanted, place_all, read_workloads
from muster.cli.command import Session, command
from muster.cli.exits import ExitCode, usage
from muster.cli.explain import kept_in_words, of_cluster
from muster.cli.options import ProjectOption, RunsOnOption
from muster.cli.output import Column
from muster.cli.values import Row, counted, format_number, number_of, row_of, rows_of, text_of

MOST_NODES: Final = 3
"""That a table names; other formats have all that the scheduler tells."""


def _where(row: Row) -> str:
    placed = rows_of(row, "placed")
    told = [
        f"{text_of(one, 'node')}{of_cluster(one)} ({_pods(number_of(one, 'pods'))}"
        + (f", {format_number(number_of(one, 'gpus'))} GPU)" if number_of(one, "gpus") else ")")
        for one in placed[:MOST_NODES]
    ]
    more = len(placed[MOST_NODES:]) + int(number_of(row, "moreNodes"))
    return ", ".join(told) + (f" and {counted(more, 'more node')}" if more else "")


def _evicts(row: Row) -> str:
    told = [f"{text_of(one, 'name')} ({text_of(one, 'rule')})" for one in rows_of(row, "evicted")]
    elsewhere = number_of(row, "evictedPodsElsewhere")
    return ", ".join([*told, *([f"{_pods(elsewhere)} of other projects"] if elsewhere else [])])


def _pods(count: float) -> str:
    return f"{int(count)} pod{'s' if count != 1 else ''}"


def _why(row: Row) -> str:
    kept = [f"it may not take the place of {kept_in_words(one)}" for one in rows_of(row, "kept")]
    return "; ".join([text_of(row, "message"), *kept])


COLUMNS: Final = (
    Column("NAME", "name"),
    Column("KIND", "kind"),
    Column("OUTCOME", "outcome"),
    Column("WHERE", "placed", show=_where),
    Column("EVICTS", "evicted", show=_evicts),
    Column("REASON", "reason", wide=True),
    Column("FILE", "file", wide=True),
    Column("WHY", "message", show=_why, rest=True, wraps=True),
)


def add_plan(root: typer.Typer) -> None:
    """Declares `muster plan`."""

    @command(
        root,
        "plan",
        examples="""
        muster plan -f training.yaml
        muster plan -f workloads/ -p vision
        muster training submit hello -i pytorch -g 8 --dry-run=client -o yaml | muster plan -f -
        muster plan -f training.yaml -o jsonpath='{.placed[*].node}'
        """,
        columns=COLUMNS,
    )
    def plan(
        session: Session,
        *,
        files: FilesOption,
        kind: Annotated[
            str | None, typer.Option("--kind", metavar="KIND", help="Kind of documents that name none.")
        ] = None,
        project: ProjectOption = None,
        cluster: RunsOnOption = None,
    ) -> int:
        """Show what would happen if the workloads of files were submitted now. Nothing is stored.

        It says where each would run, why it would wait, and whom it would have told to end. Each is looked at for
        itself, behind all that waits already. A document is what `submit -f` and `apply -f` take. Its kind may be left
        out where --kind says it, or fields that only one kind has. Where a field says an id (projectId, clusterId,
        templateId, assets), a name does, too. The command ends with 6 where a request would be refused.
        """
        if kind is not None:
            _check_kind(kind)
        wanted = read_workloads(files, usual_kind=kind, or_else=", or give --kind")
        if not wanted:
            raise usage("these files hold no workload", todo="a document needs kind, name and spec")
        place_all(session, wanted, project, cluster)
        rows = [_planned(session, one) for one in wanted]
        session.out.rows(rows, COLUMNS)
        session.out.talk("nothing was stored")
        return ExitCode.REJECTED if any(row["outcome"] == "refused" for row in rows) else ExitCode.OK


def _check_kind(kind: str) -> None:
    """Raises Problem (usage)."""
    from events.nearest import did_you_mean
    from events.workload.kinds import KINDS

    if kind not in KINDS:
        todo = did_you_mean(kind, KINDS) or f"kinds: {', '.join(KINDS)}"
        raise usage(f"--kind: there is no kind {kind!r}", todo=todo)


def _planned(session: Session, one: Wanted) -> Row:
    from events.workload.kinds import KINDS

    path = f"/workloads/{KINDS[one.kind].collection}:evaluate"
    found = session.api.examine(path, one.request, [("placement", "true")])
    row: Row = {"name": one.name, "kind": one.kind, "file": one.file}
    if issues := rows_of(found, "issues"):
        why = "; ".join(f"{text_of(issue, 'field')}: {text_of(issue, 'details')}" for issue in issues)
        return {**row, "outcome": "refused", "message": why, "issues": found["issues"]}
    return {**row, **row_of(found, "placement")}
