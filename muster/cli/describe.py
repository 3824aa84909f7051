"""`muster workload describe`, and the same of each kind."""

from typing import Annotated, Final

import typer

from events.nearest import did_you_mean
from muster.cli.anywhere import any_cluster
from muster.cli.command import Session, command
from muster.cli.connections import CONNECTION_COLUMNS
from muster.cli.exits import Problem, usage
from muster.cli.explain import deletion_waits_for, expected_start, work_at_risk
from muster.cli.names import workload_id
from muster.cli.options import (
    ProjectOption,
    WorkloadArgument,
)
from muster.cli.output import Format, Output, plain_text
from muster.cli.repeats import folded
from muster.cli.spec_lines import lines_of
from muster.cli.submission import request_of
from muster.cli.values import Row, format_number, number_of, printable, row_of, rows_of, text_of
from muster.cli.workload_columns import (
    HISTORY_COLUMNS,
    POD_COLUMNS,
    RESULT_COLUMNS,
    gpus,
    pods,
    results_by_run,
    runs,
    shown_phase,
    told_phase,
    why,
    workload_columns,
)

SECTIONS: Final = ("general", "spec", "compute", "storage", "connections", "pods", "history")
"""Parts of a description, in their order. `compute` and `storage` are parts of the spec."""
_SHOWN_RECORDS: Final = 10
"""Newest records that a description shows."""
_SHOWN_RUNS: Final = 100
"""Runs of a sweep, likewise; `pods` lists all."""
BEFORE_PODS: Final = frozenset({"Creating", "Pending", "Resuming"})


def add_describe(app: typer.Typer, noun: str) -> None:
    @command(
        app,
        "describe",
        examples=f"""
        muster {noun} describe hello
        muster {noun} describe hello --explain               # who set each field: a policy, a template, an asset
        muster {noun} describe hello --as-of 2030-01-31T12:00:00Z
        muster {noun} describe hello --section pods,history
        muster {noun} describe @latest -o yaml > again.yaml    # as `submit -f` takes it
        """,
        columns=workload_columns,
        past=True,
    )
    def describe(
        session: Session,
        workload: WorkloadArgument,
        *,
        project: ProjectOption = None,
        explain: Annotated[bool, typer.Option("--explain", help="Say who set each field of the spec.")] = False,
        sections: Annotated[
            list[str] | None,
            typer.Option(
                "--section",
                metavar="A,B",
                help=f"Show only these parts: {', '.join(SECTIONS)}. Repeatable. Default: all.",
                autocompletion=section_names,
            ),
        ] = None,
    ) -> None:
        """Show a workload: its spec, its phase and the reason, its pods and its latest history."""
        asked = sections_of(sections)
        if sections and session.out.style.format not in {Format.TABLE, Format.WIDE}:
            raise usage(
                "--section is for what people read", todo="-o jsonpath='{.spec.compute}' takes a part of the JSON"
            )
        identifier = workload_id(session, workload, project, deleted=True)
        row = session.api.get(f"/workloads/{identifier}", [("explain", "true")] if explain else [])
        if session.out.style.format is Format.YAML:
            write_request(session.out, row)
            return
        session.out.one(row, lambda: _describe(session, identifier, row, asked), columns=workload_columns())


def standing(row: Row) -> str:
    """In a sentence: its phase, and why."""
    return f"{text_of(row, 'name')} is {told_phase(row)}" + (f": {why(row)}" if why(row) else "")


def history_records(session: Session, path: str, limit: int, filters: list[tuple[str, str]] | None = None) -> list[Row]:
    """Each with a key of its own. `limit` 0: all of them."""
    records, _ = session.api.pages(path, "records", filters or [], most=limit)
    # A commit may hold several events: together, sequence and index name one.
    return [{**record, "key": f"{record.get('sequence')}/{record.get('index')}"} for record in records]


def write_request(out: Output, row: Row) -> None:
    """What `submit -f` takes to make it again; how it stands is said in comments. `-o json` has everything."""
    import yaml

    out.write(f"# {printable(standing(row))}\n# id {text_of(row, 'id')}, version {plain_text(row.get('version'))}\n")
    whole: Row = {"kind": text_of(row, "type"), **request_of(row)}
    out.write(yaml.safe_dump(whole, sort_keys=False, allow_unicode=True))


def _describe(session: Session, identifier: str, row: Row, sections: frozenset[str]) -> None:
    out = session.out
    records = (
        history_records(session, f"/workloads/{identifier}/history", 0) if sections & {"general", "history"} else []
    )
    if "general" in sections:
        _general(session, identifier, row, records)
    setters = row_of(row, "setBy")
    for title, of, known in (
        ("Spec", row_of(row, "spec"), setters),
        ("Spec of the master", row_of(row, "masterSpec"), {}),
    ):
        lines = [(path, value + _set_by(known, path)) for path, value in lines_of(of) if _section_of(path) in sections]
        if lines:
            out.heading(title)
            out.pairs([(f"  {path}", value) for path, value in lines])
    if "connections" in sections and not session.as_of and _is_reached(row_of(row, "spec")):
        reached = rows_of(session.api.get(f"/workloads/{identifier}/connections"), "connections")
        out.heading("Connections")
        out.table(reached, CONNECTION_COLUMNS)
    found = rows_of(session.api.get(f"/workloads/{identifier}/pods"), "pods") if "pods" in sections else []
    if results := results_by_run(found):
        left = len(results) - _SHOWN_RUNS
        out.heading("Results by run" + (f" (the first {_SHOWN_RUNS} of {len(results)})" if left > 0 else ""))
        out.table(results[:_SHOWN_RUNS], RESULT_COLUMNS)
    elif found:
        out.heading("Pods")
        out.table(found, POD_COLUMNS)
    if records and "history" in sections:
        lines = folded(out, records)
        repeats = (
            f", repeats together; all {len(records)}: muster workload history" if len(lines) < len(records) else ""
        )
        older = f"the last {_SHOWN_RECORDS} of {len(lines)}" if len(lines) > _SHOWN_RECORDS else f"{len(lines)} lines"
        out.heading("History" + (f" ({older}{repeats})" if repeats or len(lines) > _SHOWN_RECORDS else ""))
        out.table(lines[-_SHOWN_RECORDS:], HISTORY_COLUMNS)


def _is_reached(spec: Row) -> bool:
    return bool(spec.get("exposedUrls") or spec.get("ports"))


def section_names(incomplete: str) -> list[str]:
    """What a shell offers."""
    return [name for name in SECTIONS if name.startswith(incomplete)]


def sections_of(given: list[str] | None) -> frozenset[str]:
    """The parts to show: all where none are named. Raises Problem (usage)."""
    asked = [name.strip().lower() for one in given or () for name in one.split(",") if name.strip()]
    for name in asked:
        if name not in SECTIONS:
            hint = did_you_mean(name, SECTIONS)
            raise usage(f"--section: there is no section {name!r}", todo=hint or f"sections: {', '.join(SECTIONS)}")
    return frozenset([*(asked or SECTIONS), *(("compute", "storage") if "spec" in asked else ())])


def _section_of(path: str) -> str:
    """By the first word of a field's path."""
    first = path.partition(".")[0]
    return first if first in {"compute", "storage"} else "spec"


def _cluster(row: Row) -> str:
    if text_of(row, "clusterId") == any_cluster():
        return "none yet: the scheduler chooses it when it starts"
    return text_of(row, "clusterName") or text_of(row, "clusterId")


def _general(session: Session, identifier: str, row: Row, records: list[Row]) -> None:
    session.out.pairs(
        [
            ("Name", text_of(row, "name")),
            ("Id", identifier),
            ("Kind", _kind(row)),
            ("Project", text_of(row, "projectName") or text_of(row, "projectId")),
            ("Cluster", _cluster(row)),
            (
                "Phase",
                shown_phase(row) + (f" (wanted: {text_of(row, 'desiredPhase')})" if _differs(row) else ""),
            ),
            ("Why", _why(session, identifier, row)),
            ("Expected to start", _expected(session, identifier, row)),
            ("Created", _when(session, row, "createdAt") + _by(row)),
            ("Owner", text_of(row, "submittedBy") if _given_away(row) else ""),
            ("Started", _when(session, row, "startedAt")),
            ("Ended", _when(session, row, "completedAt")),
            ("Deleted", _when(session, row, "deletedAt") + _deleted_by(records)),
            ("Deletes itself", _when(session, row, "autoDeleteAt")),
            ("Pods", pods(row) + " running" if "requestedPods" in row and not text_of(row, "completedAt") else ""),
            # Replicas never succeed: none is meant to end.
            ("Runs", runs(row, " succeeded") if "succeededPods" in row and text_of(row, "type") != "Inference" else ""),
            ("GPU", gpus(row)),
            ("Work at risk", work_at_risk(session.out, row)),
            ("Work lost", _lost(row)),
            ("Exit code", plain_text(row.get("exitCode"))),
            ("Version", plain_text(row.get("version"))),
        ]
    )


def _lost(row: Row) -> str:
    """By evictions and interruptions."""
    hours = number_of(row, "lostGpuHours")
    return f"{format_number(hours)} GPU-hours, by evictions and interruptions" if hours else ""


def _why(session: Session, identifier: str, row: Row) -> str:
    """What deletion waits for stands in no table."""
    if session.as_of or told_phase(row) != "Deleting":
        return why(row)
    try:
        return deletion_waits_for(session.api.get(f"/workloads/{identifier}/explain")) or why(row)
    except Problem:
        return why(row)  # all else of a description is told


def _expected(session: Session, identifier: str, row: Row) -> str:
    """When it is expected to start, of what waits now."""
    if session.as_of or told_phase(row) not in BEFORE_PODS:
        return ""
    try:
        return expected_start(session.out, session.api.get(f"/workloads/{identifier}/explain"))
    except Problem:
        return ""  # all else of a description is told


def _set_by(setters: Row, path: str) -> str:
    """Who set this field, or the items of it; nothing of a default."""
    of = f"spec.{path}"
    found = [source for at, source in setters.items() if at == of or at.startswith((f"{of}[", f"{of}."))]
    named = dict.fromkeys(str(source) for source in found if source != "default")
    return f"  ({', '.join(named)})" if named else ""


def _kind(row: Row) -> str:
    """Its kind, and what Run:ai calls it."""
    kind, elsewhere = text_of(row, "type"), text_of(row, "kubernetesType")
    return f"{kind} ({elsewhere})" if kind and elsewhere else kind


def _differs(row: Row) -> bool:
    """Whether what is wanted of it is still to come: what has ended is wanted no more."""
    over = text_of(row, "completedAt") or text_of(row, "deletedAt")
    return not over and text_of(row, "desiredPhase") not in {"", text_of(row, "phase")}


def _deleted_by(records: list[Row]) -> str:
    """Who asked for its deletion last."""
    asked = [record for record in records if text_of(record, "type") == "WorkloadDeletionRequested"]
    return f" by {text_of(row_of(asked[-1], 'actor'), 'sub')}" if asked else ""


def _when(session: Session, row: Row, key: str) -> str:
    return session.out.time(row.get(key))


def _by(row: Row) -> str:
    creator = text_of(row, "createdBy") or text_of(row, "submittedBy")
    return f" by {creator}" if creator else ""


def _given_away(row: Row) -> bool:
    creator = text_of(row, "createdBy")
    return bool(creator) and text_of(row, "submittedBy") not in {"", creator}
