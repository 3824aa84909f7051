"""`muster workload`, and the verbs that `muster training` shares with it."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

import typer

from muster.cli.command import Session, command, group
from muster.cli.conditions import USUAL, condition_of, conditions, wait_for
from muster.cli.connections import add_connections
from muster.cli.describe import BEFORE_PODS, add_describe, history_records, standing
from muster.cli.exits import ExitCode, usage
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
from muster.cli.output import Column, Format, Output
from muster.cli.values import Row, format_utc, number_of, rows_of, text_of
from muster.cli.watch import watch_rows
from muster.cli.ways import add_ways
from muster.cli.workload_acts import add_acts, add_marks, add_set
from muster.cli.workload_columns import (
    HISTORY_COLUMNS,
    METRIC_COLUMNS,
    POD_COLUMNS,
    columns_of_one_kind,
    pod_columns,
    sortable,
    told_phase,
    workload_columns,
)

METRIC_TYPES: Final = ("CPU_USAGE_CORES", "CPU_MEMORY_USAGE_BYTES", "GPU_UTILIZATION", "GPU_MEMORY_USAGE_BYTES")
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
            session.out.talk(f"{'nothing such' if chosen else 'nothing'} was written; {standing(row)}")
        return None


def _tell_what_waits(session: Session, identifier: str) -> None:
    """Who follows what cannot start would else look at nothing, for as long as they like."""
    row = session.api.get(f"/workloads/{identifier}")
    if told_phase(row) in BEFORE_PODS:
        session.out.talk(f"{standing(row)}; what its pods write comes here once they run")


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
                lambda: history_records(session, path, limit, filters),
                HISTORY_COLUMNS,
                key=lambda record: text_of(record, "key"),
                name="message",
            )
        session.out.rows(history_records(session, path, limit, filters), HISTORY_COLUMNS, name="message")


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
