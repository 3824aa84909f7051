"""`muster workload`, and the verbs that `muster training` shares with it."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

import typer

from events.nearest import did_you_mean
from muster.cli.anywhere import any_cluster
from muster.cli.command import Session, command, group
from muster.cli.conditions import USUAL, condition_of, conditions, wait_for
from muster.cli.connections import CONNECTION_COLUMNS, add_connections
from muster.cli.exits import ExitCode, Problem, usage
from muster.cli.explain import deletion_waits_for, expected_start, work_at_risk
from muster.cli.log_options import (
    AttemptOption,
    ContainerOption,
    FollowOption,
    LimitBytesOption,
    PodOption,
    PreviousOption,
    RunOption,
    SinceOption,
    SinceTimeOption,
    TailOption,
    TimestampsOption,
    WaitTimeoutOption,
    check_container,
    log_parameters,
)
from muster.cli.log_stream import Limited, follow_logs, print_logs
from muster.cli.names import find_project, workload_filters, workload_id
from muster.cli.options import (
    FilterOption,
    FollowTimeoutOption,
    FromOption,
    OffsetOption,
    PageSizeOption,
    ProjectOption,
    RowsOption,
    SearchOption,
    SelectorOption,
    SomeWorkloadsArgument,
    StatusOption,
    ToOption,
    WatchOption,
    WatchTimeoutOption,
    WorkloadArgument,
    WorkloadSortOption,
    duration_option,
    phase_filters,
    span,
)
from muster.cli.output import Column, Format, Output, plain_text
from muster.cli.repeats import folded
from muster.cli.submission import request_of
from muster.cli.values import Row, format_number, format_utc, number_of, printable, row_of, rows_of, text_of
from muster.cli.watch import watch_rows
from muster.cli.ways import add_ways
from muster.cli.workload_acts import add_acts, add_marks, add_set
from muster.cli.workload_columns import (
    HISTORY_COLUMNS,
    METRIC_COLUMNS,
    POD_COLUMNS,
    RESULT_COLUMNS,
    columns_of_one_kind,
    gpus,
    pod_columns,
    pods,
    results_by_run,
    runs,
    shown_phase,
    sortable,
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
_SHOWN_VALUES: Final = 10
"""Of one parameter of a sweep."""
METRIC_TYPES: Final = ("CPU_USAGE_CORES", "CPU_MEMORY_USAGE_BYTES", "GPU_UTILIZATION", "GPU_MEMORY_USAGE_BYTES")
_BEFORE_PODS: Final = frozenset({"Creating", "Pending", "Resuming"})
_LIST_ROWS: Final = 100
"""Rows of a list where nothing else is asked for: Run:ai's page."""


_EverythingOption = Annotated[bool, typer.Option("--all", "-A", help="List those of all projects you may see.")]


_LIST_EXAMPLES: Final = """
        muster {noun} list
        muster {noun} list -A --status Pending -o wide
        muster {noun} list -l 'team=vision,stage in (dev,test)'
        muster {noun} list --filter 'gpuAllocated>=1' --sort phase,-createdAt --columns name,phase,createdAt
        muster {noun} list --as-of 7d
        muster {noun} list -w
        """
_LISTS: Final = {
    "Training": "List standard trainings. `muster workload list` shows distributed ones, too.",
    "Distributed": "List distributed trainings with {framework}.",
    "Workspace": "List workspaces.",
    "Inference": "List inferences.",
}
"""What a list of one kind says that it does."""


def add_list(app: typer.Typer, noun: str, *, kind: str | None, framework: str = "") -> None:
    """Declares `list`; `kind` keeps it to one kind of workload, `framework` to one of distributed trainings."""
    declare = command(
        app,
        "list",
        examples=_LIST_EXAMPLES.format(noun=noun),
        columns=workload_columns,
        past=True,
    )

    def list_(
        session: Session,
        *,
        project: ProjectOption = None,
        everything: _EverythingOption = False,
        status: StatusOption = None,
        conditions: FilterOption = None,
        selector: SelectorOption = None,
        search: SearchOption = None,
        deleted: Annotated[bool, typer.Option("--deleted", help="List deleted workloads instead.")] = False,
        sort: WorkloadSortOption = None,
        desc: Annotated[bool, typer.Option("--desc", help="Sort in descending order.")] = False,
        limit: RowsOption = _LIST_ROWS,
        offset: OffsetOption = 0,
        page_size: PageSizeOption = None,
        watch: WatchOption = False,
        timeout: WatchTimeoutOption = None,
    ) -> None:
        if everything and project:
            raise usage("--all and --project cannot be used together", todo="leave one of them out")
        patience = session.patience(timeout, waits=watch)
        shown = columns_of_one_kind if kind else workload_columns
        scope = None if everything else session.project(project)
        parameters = workload_filters(scope)
        parameters += [("filterBy", f"type=={kind}")] if kind else []
        parameters += [("filterBy", f"distributedFramework=={framework}")] if framework else []
        parameters += phase_filters(status) if status else []
        parameters += [("filterBy", condition) for condition in conditions or ()]
        parameters += [("labelSelector", selector)] if selector else []
        parameters += [("search", search)] if search else []
        parameters += [("deleted", "true")] if deleted else []
        parameters += [("sortBy", sort_fields(sort) if sort else "createdAt")]
        parameters += [("sortOrder", "desc" if desc or not sort else "asc")]

        def fetch() -> tuple[list[Row], bool]:
            return session.api.pages(
                "/workloads", "workloads", parameters, most=limit, at_once=page_size, offset=offset
            )

        if watch:
            _check_project(session, scope)
            watch_rows(
                patience,
                session.out,
                lambda: fetch()[0],
                shown(),
                deleted=lambda row: _deleted(session, row),
            )
        rows, more = fetch()
        if not rows:
            _check_project(session, scope)
        chosen = any((status, conditions, selector, search, deleted))
        maker = "training" if noun == "workload" else noun
        empty = "no such workloads" if chosen else f"no workloads; `muster {maker} submit` makes one, -A shows all"
        session.out.rows(rows, shown(), empty=empty)
        if more:
            session.out.talk(f"there are more: --offset {offset + len(rows)} shows the next, --limit 0 shows all")

    list_.__doc__ = _LISTS.get(kind or "", "List workloads.").format(framework=framework)
    declare(list_)


def sort_fields(given: str) -> str:
    """Columns of --sort, by heading or field, as the API takes them; what is none of them the API refuses."""
    known = sortable()
    fields: list[str] = []
    for name in (part.strip() for part in given.split(",")):
        field = name.removeprefix("-")
        fields.append(("-" if name.startswith("-") else "") + known.get(field.lower(), field))
    return ",".join(fields)


def _deleted(session: Session, listed: Row) -> Row | None:
    """A row that left the list of the living, as it is now; None where it only answers to no filter any more."""
    row = session.api.get(f"/workloads/{text_of(listed, 'id')}")
    return {key: row.get(key) for key in {**listed, "deletedAt": ""}} if text_of(row, "deletedAt") else None


def _check_project(session: Session, given: str | None) -> None:
    """Of a project whose name is wrong there are no workloads, either. Raises Problem."""
    if given:
        find_project(session.api, given)


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


def add_logs(app: typer.Typer, noun: str) -> None:
    @command(
        app,
        "logs",
        output=False,
        examples=f"""
        muster {noun} logs hello
        muster {noun} logs hello -f --tail 20
        muster {noun} logs hello --since 10m --timestamps --pod POD
        muster {noun} logs hello --previous                  # why the run before this one ended
        muster {noun} logs hello --attempt 1 --run 1         # `pods` lists attempts and runs
        muster {noun} logs hello --wait-timeout 5m --limit-bytes 100000
        """,
    )
    def logs(
        session: Session,
        workload: WorkloadArgument,
        *,
        project: ProjectOption = None,
        follow: FollowOption = False,
        tail: TailOption = -1,
        since: SinceOption = None,
        since_time: SinceTimeOption = None,
        timestamps: TimestampsOption = False,
        pod: PodOption = None,
        previous: PreviousOption = False,
        attempt: AttemptOption = None,
        run: RunOption = None,
        container: ContainerOption = None,
        limit_bytes: LimitBytesOption = None,
        wait_timeout: WaitTimeoutOption = None,
        timeout: FollowTimeoutOption = None,
    ) -> int | None:
        """Print the output of a workload's pods. It is kept after the pods are gone."""
        check_container(container)
        limit = duration_option("--wait-timeout", wait_timeout) if wait_timeout is not None else None
        parameters = log_parameters(
            follow=follow,
            tail=tail,
            since=since,
            since_time=since_time,
            timestamps=timestamps,
            pod=pod,
            previous=previous,
            attempt=attempt,
            run=run,
        )
        patience = session.patience(timeout, waits=follow, flags="--follow")
        identifier = workload_id(session, workload, project, deleted=True)
        path = f"/workloads/{identifier}/logs"
        if limit is not None:
            started = condition_of("started", "--wait-timeout")
            if code := wait_for(session.api, identifier, session.out, started, timeout_seconds=limit):
                return code
        elif follow:
            _tell_what_waits(session, identifier)
        write = session.out.write if limit_bytes is None else Limited(session.out, limit_bytes).write
        came = (
            follow_logs(session, patience, path, parameters, write)
            if follow
            else print_logs(session, path, parameters, write)
        )
        if not came:
            row = session.api.get(f"/workloads/{identifier}")
            chosen = any(name not in {"follow", "timestamps"} for name, _ in parameters)
            session.out.talk(f"{'nothing such' if chosen else 'nothing'} was written; {_standing(row)}")
        return None


def _tell_what_waits(session: Session, identifier: str) -> None:
    """Who follows what cannot start would else look at nothing, for as long as they like."""
    row = session.api.get(f"/workloads/{identifier}")
    if told_phase(row) in _BEFORE_PODS:
        session.out.talk(f"{_standing(row)}; what its pods write comes here once they run")


def _standing(row: Row) -> str:
    return f"{text_of(row, 'name')} is {told_phase(row)}" + (f": {why(row)}" if why(row) else "")


def add_views(app: typer.Typer) -> None:
    """Declares history, pods, metrics and wait."""
    _add_wait(app)
    _add_history(app)
    _add_pods(app)
    _add_metrics(app)


def _add_wait(app: typer.Typer) -> None:
    @command(
        app,
        "wait",
        output=False,
        examples="""
        muster workload wait hello                           # until it has completed
        muster workload wait hello --for running --timeout 5m
        muster workload wait hello other --for deleted
        muster workload wait hello --for jsonpath='{.runningPods}'=2
        """,
    )
    def wait(
        session: Session,
        workloads: SomeWorkloadsArgument = None,
        *,
        for_: Annotated[
            str | None,
            typer.Option(
                "--for",
                metavar="CONDITION",
                help="completed, started, ended, deleted, a phase such as running, or jsonpath='{.field}'=VALUE. "
                "Default: completed; of an inference, running.",
                autocompletion=conditions,
            ),
        ] = None,
        project: ProjectOption = None,
        timeout: Annotated[
            str | None,
            typer.Option(
                "--timeout",
                metavar="DURATION",
                help="Exit 7 after this time, such as 5m, for all of them together. "
                "Default: no limit, but exit 9 if the server is away for 2m.",
            ),
        ] = None,
    ) -> int:
        """Wait until workloads are as you say. Exit 0 if they are, 8 if one can be so no more, 7 on timeout.

        started also holds if the workload has ended since; running only while it is in this phase. A suspended
        workload does not complete.
        """
        if not workloads:
            raise usage("which workloads to wait for?", todo="name them")
        condition = USUAL if for_ is None else condition_of(for_, "--for")
        patience = session.patience(timeout, flags="--for")
        found = [workload_id(session, one, project, deleted=True) for one in workloads]
        codes = [
            wait_for(session.api, one, session.out, condition, timeout_seconds=patience.remaining()) for one in found
        ]
        return next((code for code in codes if code), ExitCode.OK)


def _add_history(app: typer.Typer) -> None:
    @command(
        app,
        "history",
        examples="""
        muster workload history hello
        muster workload history hello -o jsonl
        muster workload history hello --utc -o wide
        muster workload history hello --type 'Pod*' --text memory --from 2d
        """,
        columns=HISTORY_COLUMNS,
        past=True,
    )
    def history(
        session: Session,
        workload: WorkloadArgument,
        *,
        project: ProjectOption = None,
        types: Annotated[
            list[str] | None,
            typer.Option(
                "--type",
                metavar="TYPE",
                help="Only records of this type, such as PodFailed or 'Pod*'. Repeatable.",
            ),
        ] = None,
        text: Annotated[
            str | None, typer.Option("--text", metavar="TEXT", help="Only records with this text, in any case.")
        ] = None,
        from_: FromOption = None,
        to: ToOption = None,
        limit: Annotated[
            int, typer.Option("--limit", metavar="N", help="Maximum number of records; 0 shows all.", min=0)
        ] = 0,
        watch: WatchOption = False,
        timeout: WatchTimeoutOption = None,
    ) -> None:
        """Show what happened to a workload: one sentence per event, oldest first."""
        patience = session.patience(timeout, waits=watch)
        filters = [*(("type", name) for name in types or []), *([("text", text)] if text else []), *span(from_, to)]
        path = f"/workloads/{workload_id(session, workload, project, deleted=True)}/history"
        if watch:
            watch_rows(
                patience,
                session.out,
                lambda: _records(session, path, limit, filters),
                HISTORY_COLUMNS,
                key=lambda record: text_of(record, "key"),
                name="message",
            )
        session.out.rows(_records(session, path, limit, filters), HISTORY_COLUMNS, name="message")


def _add_pods(app: typer.Typer) -> None:
    @command(
        app,
        "pods",
        examples="""
        muster workload pods hello
        muster workload pods hello -w
        """,
        columns=POD_COLUMNS,
        past=True,
    )
    def pods_(
        session: Session,
        workload: WorkloadArgument,
        *,
        project: ProjectOption = None,
        watch: WatchOption = False,
        timeout: WatchTimeoutOption = None,
    ) -> None:
        """List a workload's pods: their nodes, their GPUs, and how they ended."""
        patience = session.patience(timeout, waits=watch)
        identifier = workload_id(session, workload, project, deleted=True)

        def fetch() -> list[Row]:
            return rows_of(session.api.get(f"/workloads/{identifier}/pods"), "pods")

        if watch:
            watch_rows(patience, session.out, fetch, POD_COLUMNS, key=_run_of)
        found = fetch()
        session.out.rows(found, pod_columns(found), empty="no pods")


def _run_of(pod: Row) -> str:
    """What tells a run from the others: a pod has many."""
    return f"{text_of(pod, 'name')}/{number_of(pod, 'attempt'):g}.{number_of(pod, 'run'):g}"


def _add_metrics(app: typer.Typer) -> None:
    @command(
        app,
        "metrics",
        examples="""
        muster workload metrics hello
        muster workload metrics hello --type GPU_UTILIZATION --since 10m -o csv
        """,
        columns=METRIC_COLUMNS,
    )
    def metrics(
        session: Session,
        workload: WorkloadArgument,
        *,
        project: ProjectOption = None,
        types: Annotated[
            list[str] | None,
            typer.Option("--type", metavar="METRIC", help="Only this metric. Repeatable. Default: all."),
        ] = None,
        since: Annotated[
            str, typer.Option("--since", metavar="DURATION", help="Only what is newer than this, such as 10m.")
        ] = "1h",
        samples: Annotated[
            int,
            typer.Option(
                "--samples", metavar="N", help="Maximum number of samples per metric and pod.", min=1, max=1000
            ),
        ] = 100,
    ) -> None:
        """Show what CPU, memory and GPU a workload used. Tables show a summary; csv and json show every sample."""
        identifier = workload_id(session, workload, project, deleted=True)
        now = datetime.now(UTC)
        start = now - timedelta(seconds=duration_option("--since", since))
        answer = session.api.get(
            f"/workloads/{identifier}/metrics",
            [
                ("metricType", ",".join(types or METRIC_TYPES)),
                ("start", format_utc(start)),
                ("end", format_utc(now)),
                ("numberOfSamples", samples),
            ],
        )
        show_metrics(session.out, rows_of(answer, "measurements"))


def add_workload(root: typer.Typer) -> None:
    app = group("workload")
    add_list(app, "workload", kind=None)
    add_describe(app, "workload")
    add_views(app)
    add_connections(app, "workload")
    add_logs(app, "workload")
    add_acts(app, "workload")
    add_ways(app, "workload")
    add_set(app)
    add_marks(app)
    root.add_typer(app, name="workload")


def show_metrics(out: Output, measurements: list[Row]) -> None:
    """A summary per series as a table; every sample in the formats for programs."""
    if out.style.format in {Format.TABLE, Format.WIDE}:
        out.rows([_summary(series) for series in measurements], METRIC_COLUMNS, empty="no measurements of that time")
        return
    if out.style.format in {Format.JSON, Format.YAML, Format.JSONPATH}:
        out.rows(measurements, METRIC_COLUMNS)
        return
    samples: list[Row] = [
        {"type": series.get("type"), "pod": series.get("pod"), **sample}
        for series in measurements
        for sample in rows_of(series, "values")
    ]
    columns = [Column(key.upper(), key) for key in ("type", "pod", "timestamp", "value")]
    out.rows(samples, columns, name="type")


def _summary(series: Row) -> Row:
    values = [number_of(sample, "value") for sample in rows_of(series, "values")]
    row: Row = {"type": series.get("type"), "pod": series.get("pod"), "samples": len(values)}
    if values:
        row |= {"last": values[-1], "least": min(values), "mean": sum(values) / len(values), "most": max(values)}
    return row


def _records(session: Session, path: str, limit: int, filters: list[tuple[str, str]] | None = None) -> list[Row]:
    records, _ = session.api.pages(path, "records", filters or [], most=limit)
    # A commit may hold several events: together, sequence and index name one.
    return [{**record, "key": f"{record.get('sequence')}/{record.get('index')}"} for record in records]


def write_request(out: Output, row: Row) -> None:
    """What `submit -f` takes to make it again; how it stands is said in comments. `-o json` has everything."""
    import yaml

    out.write(f"# {printable(_standing(row))}\n# id {text_of(row, 'id')}, version {plain_text(row.get('version'))}\n")
    out.write(yaml.safe_dump(request_of(row), sort_keys=False, allow_unicode=True))


def _describe(session: Session, identifier: str, row: Row, sections: frozenset[str]) -> None:
    out = session.out
    records = _records(session, f"/workloads/{identifier}/history", 0) if sections & {"general", "history"} else []
    if "general" in sections:
        _general(session, identifier, row, records)
    setters = row_of(row, "setBy")
    for title, of, known in (
        ("Spec", row_of(row, "spec"), setters),
        ("Spec of the master", row_of(row, "masterSpec"), {}),
    ):
        lines = [(path, value + _set_by(known, path)) for path, value in _flat(of) if _section_of(path) in sections]
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
    if session.as_of or told_phase(row) not in _BEFORE_PODS:
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


def _flat(value: Row, prefix: str = "") -> list[tuple[str, str]]:
    """Leaves of the spec by their paths; items of lists in short."""
    lines: list[tuple[str, str]] = []
    for key, below in value.items():
        match below:
            case dict():
                lines += _flat(below, f"{prefix}{key}.")
            case list() if below and isinstance(below[0], dict):
                joint = " or " if key == "nodeSelectorTerms" else ", "
                lines.append((f"{prefix}{key}", joint.join(map(_item, rows_of(value, key)))))
            case _:
                lines.append((f"{prefix}{key}", plain_text(below)))
    return lines


def _item(entry: Row) -> str:
    """NAME=VALUE, and other items as the flags of submit take them."""
    if "matchExpressions" in entry:
        return " and ".join(map(_item, rows_of(entry, "matchExpressions"))) or "(no expression)"
    if "operator" in entry and "effect" not in entry:
        values = entry.get("values")
        told = " " + ",".join(map(plain_text, values)) if isinstance(values, list) and values else ""
        return f"{text_of(entry, 'key')} {text_of(entry, 'operator')}{told}"
    if "operator" in entry:
        return ",".join(f"{name}={plain_text(value)}" for name, value in entry.items() if value not in (None, False))
    if "resource" in entry:
        return f"{text_of(entry, 'resource')}={text_of(entry, 'quantity')}"
    if "url" in entry and "type" in entry:
        return f"{text_of(entry, 'name') or text_of(entry, 'type')}={text_of(entry, 'url')}"
    if isinstance(swept := entry.get("values"), list):
        shown = [plain_text(value) for value in swept[:_SHOWN_VALUES]]
        more = len(swept) - len(shown)
        return f"{text_of(entry, 'name')}={','.join(shown)}{f',… ({more} more)' if more > 0 else ''}"
    if entry.keys() == {"name"}:
        return text_of(entry, "name")
    if entry.keys() <= {"name", "value", "description"}:
        return f"{text_of(entry, 'name')}={text_of(entry, 'value')}"
    return ",".join(f"{path}={text}" for path, text in _flat(entry) if text not in {"", plain_text(False)})


def _when(session: Session, row: Row, key: str) -> str:
    return session.out.time(row.get(key))


def _by(row: Row) -> str:
    creator = text_of(row, "createdBy") or text_of(row, "submittedBy")
    return f" by {creator}" if creator else ""


def _given_away(row: Row) -> bool:
    creator = text_of(row, "createdBy")
    return bool(creator) and text_of(row, "submittedBy") not in {"", creator}
