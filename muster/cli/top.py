"""`muster top`: who uses what now."""

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Annotated, Final

import typer

from muster.cli.command import Session, command
from muster.cli.complete import columns, project_names
from muster.cli.names import find_cluster, project_id
from muster.cli.options import ClusterOption, WatchOption, WatchTimeoutOption
from muster.cli.output import Column, Format, find_column
from muster.cli.values import Row, format_number, number_of, row_of, rows_of, text_of
from muster.cli.watch import watch_rows

_LIST_ROWS: Final = 100
"""As of the other lists."""
_PAGE_ROWS: Final = 500
"""The most that one answer holds."""
_GREATEST_FIRST: Final = "desc"
_TEXTS: Final = frozenset({"name", "clusterName", "projectName", "submittedBy", "phase"})
"""Columns that are sorted from A to Z."""


class What(StrEnum):
    PROJECTS = "projects"
    USERS = "users"
    POOLS = "pools"
    NODES = "nodes"
    WORKLOADS = "workloads"


_BY: Final = {
    What.PROJECTS: "project",
    What.USERS: "user",
    What.POOLS: "nodePool",
    What.NODES: "node",
    What.WORKLOADS: "workload",
}
"""As the API calls them."""
_EMPTY: Final = {
    What.PROJECTS: "no projects that you may see",
    What.USERS: "nobody has anything that runs or waits",
    What.POOLS: "no node pools with nodes",
    What.NODES: "no nodes",
    What.WORKLOADS: "nothing runs or waits; `muster training submit` submits a training",
}


def _gpus(row: Row) -> str:
    """Allocated, where there is a capacity of it."""
    used, capacity = format_number(number_of(row_of(row, "allocated"), "gpus")), row_of(row, "capacity")
    return f"{used}/{format_number(number_of(capacity, 'gpus'))}" if capacity else used


def _quota(row: Row) -> str:
    """What counts against the quota, of it."""
    if row.get("gpuQuota") is None:
        return "none"
    held = number_of(row_of(row, "allocated"), "nonPreemptibleGpus")
    return f"{format_number(held)}/{format_number(number_of(row, 'gpuQuota'))}"


def _cores(key: str) -> Callable[[Row], str]:
    def show(row: Row) -> str:
        cores = row_of(row, key).get("cpuCores")
        return format_number(cores) if isinstance(cores, int | float) else ""

    return show


def _bytes(key: str, field: str) -> Callable[[Row], str]:
    """Empty where it is not known: not measured, or GPUs of which no memory is known."""

    def show(row: Row) -> str:
        from events.quantities import format_bytes

        amounts = row_of(row, key)
        value = amounts.get(field)
        if not isinstance(value, int | float) or (field == "gpuMemoryBytes" and not value and amounts.get("gpus")):
            return ""
        return format_bytes(int(value))

    return show


def _busy(row: Row) -> str:
    percent = row_of(row, "used").get("gpuUtilizationPercent")
    return f"{percent:.0f}%" if isinstance(percent, int | float) else ""


_RUNNING: Final = Column("RUNNING", "running")
_PENDING: Final = Column("PENDING", "pending")
_PODS: Final = Column("PODS", "pods", yields=1)
_GPU: Final = Column("GPU", "allocated.gpus", show=_gpus)
_AMOUNTS: Final = (
    Column("GPU-UTIL", "used.gpuUtilizationPercent", show=_busy, yields=3),
    Column("GPU-MEM", "allocated.gpuMemoryBytes", show=_bytes("allocated", "gpuMemoryBytes"), yields=4),
    Column("CPU", "allocated.cpuCores", show=_cores("allocated"), yields=5),
    Column("MEM", "allocated.memoryBytes", show=_bytes("allocated", "memoryBytes"), yields=6),
    Column("GPU-MEM-USED", "used.gpuMemoryBytes", show=_bytes("used", "gpuMemoryBytes"), yields=9),
    Column("CPU-USED", "used.cpuCores", show=_cores("used"), yields=7),
    Column("MEM-USED", "used.memoryBytes", show=_bytes("used", "memoryBytes"), yields=8),
    Column("NON-PREEMPTIBLE", "allocated.nonPreemptibleGpus", wide=True),
    Column("MEASURED", "used.pods", wide=True),
)
_ENDING: Final = Column("ENDING", "ending", wide=True)
_ROOM: Final = (
    Column("CPU-FREE", "free.cpuCores", show=_cores("free"), wide=True),
    Column("MEM-FREE", "free.memoryBytes", show=_bytes("free", "memoryBytes"), wide=True),
    Column("CPU-CAPACITY", "capacity.cpuCores", show=_cores("capacity"), wide=True),
    Column("MEM-CAPACITY", "capacity.memoryBytes", show=_bytes("capacity", "memoryBytes"), wide=True),
)
_NAME: Final = Column("NAME", "name")
_PLACES: Final = (
    _NAME,
    Column("CLUSTER", "clusterName", yields=2),
    _RUNNING,
    _PODS,
    _GPU,
    Column("GPU-FREE", "free.gpus"),
    *_AMOUNTS,
    _ENDING,
    *_ROOM,
)
TOP_COLUMNS: Final[dict[What, tuple[Column, ...]]] = {
    What.PROJECTS: (
        _NAME,
        _RUNNING,
        _PENDING,
        _PODS,
        _GPU,
        Column("QUOTA", "gpuQuota", show=_quota, yields=2),
        *_AMOUNTS,
        _ENDING,
        Column("ID", "id", wide=True),
    ),
    What.USERS: (_NAME, _RUNNING, _PENDING, _PODS, _GPU, *_AMOUNTS, _ENDING),
    What.POOLS: _PLACES,
    What.NODES: _PLACES,
    What.WORKLOADS: (
        _NAME,
        Column("PROJECT", "projectName", yields=2),
        Column("OWNER", "submittedBy", yields=3),
        Column("PHASE", "phase"),
        _PODS,
        _GPU,
        *_AMOUNTS,
        Column("CLUSTER", "clusterName", wide=True),
        Column("ID", "id", wide=True),
    ),
}
_EVERY_COLUMN: Final = tuple({column.key: column for shown in TOP_COLUMNS.values() for column in shown}.values())


def add_top(root: typer.Typer) -> None:
    @command(
        root,
        "top",
        examples="""
        muster top                              # by project, the most GPUs first
        muster top users -p vision
        muster top nodes --cluster demo -o wide
        muster top workloads --sort GPU-UTIL
        muster top -w
        """,
        columns=_EVERY_COLUMN,
    )
    def top(
        session: Session,
        what: Annotated[What, typer.Argument(metavar="WHAT", help="What each row is the sum of.")] = What.PROJECTS,
        *,
        project: Annotated[
            str | None,
            typer.Option(
                "--project", "-p", help="Only what this project uses (name or id).", autocompletion=project_names
            ),
        ] = None,
        cluster: ClusterOption = None,
        sort: Annotated[
            str,
            typer.Option(
                "--sort",
                "--sort-by",
                metavar="COLUMN",
                help="Column to sort by: numbers from the greatest on, names from A to Z.",
                autocompletion=columns,
            ),
        ] = _GPU.key,
        limit: Annotated[int, typer.Option("--limit", help="Maximum number of rows; 0 shows all.", min=0)] = _LIST_ROWS,
        watch: WatchOption = False,
        timeout: WatchTimeoutOption = None,
    ) -> None:
        """Show who uses what now: GPUs, CPU and memory by project, user, pool, node or workload.

        GPU, GPU-MEM, CPU (in cores) and MEM are allocated: what nodes reserve for pods, by the scheduler's own count.
        A pod that is being stopped counts until it is gone and released. A workload that waits, is suspended or has
        ended counts nothing.

        GPU-UTIL and the columns ending in -USED are what pods really used, by the newest measurement of each in the
        last two minutes. They are empty if nothing was measured. MEASURED counts the pods with a measurement.

        RUNNING counts workloads that have nodes, PENDING those that wait for nodes, ENDING those that are stopped,
        deleted or finished and whose pods still hold something. QUOTA shows the GPUs of non-preemptible workloads and
        the project's quota; NON-PREEMPTIBLE shows these GPUs alone. GPU-FREE is what nobody holds, on nodes that take
        new pods.

        You see sums of the projects that you may read. The default project of your context does not limit them.
        """
        shown = TOP_COLUMNS[what]
        by = find_column(shown, sort).key
        patience = session.patience(timeout, waits=watch)
        parameters: list[tuple[str, str | int]] = [("by", _BY[what]), ("sortBy", by)]
        parameters += [("sortOrder", "asc" if by in _TEXTS else _GREATEST_FIRST)]
        parameters += [("projectId", project_id(session.api, project))] if project else []
        parameters += [("clusterId", text_of(find_cluster(session.api, cluster), "id"))] if cluster else []
        if watch:
            fetch = partial(_fetch, session, parameters, limit)
            watch_rows(patience, session.out, lambda: fetch()[0], shown, key=_identity)
        rows, more, total = _fetch(session, parameters, limit)
        session.out.rows(rows, shown, empty=_EMPTY[what])
        if more:
            session.out.talk(f"there are more than {limit}; --limit 0 shows all")
        if rows and session.out.style.format in {Format.TABLE, Format.WIDE}:
            session.out.talk(told_total(total))


def _fetch(session: Session, parameters: list[tuple[str, str | int]], most: int) -> tuple[list[Row], bool, Row]:
    """The rows, whether there are more than `most` (0: no bound), and the sum of all."""
    rows: list[Row] = []
    while True:
        size = min(_PAGE_ROWS, most - len(rows)) if most else _PAGE_ROWS
        page = session.api.get("/usage", [*parameters, ("offset", len(rows)), ("limit", size)])
        rows += rows_of(page, "rows")
        more = page.get("next") is not None
        if not more or (most and len(rows) >= most):
            return rows, more, row_of(page, "total")


def _identity(row: Row) -> str:
    return "/".join(text_of(row, key) for key in ("id", "clusterName", "name"))


def told_total(total: Row) -> str:
    """One sentence for all rows. What is neither allocated in them nor free is named, so that the sum is right."""
    allocated, capacity, free = (number_of(row_of(total, key), "gpus") for key in ("allocated", "capacity", "free"))
    running, pending = int(number_of(total, "running")), int(number_of(total, "pending"))
    rest = round(capacity - allocated - free, 3)
    elsewhere = f", {format_number(rest)} held by others or on nodes that take no new pods" if rest > 0 else ""
    return (
        f"in all: {format_number(allocated)} of {format_number(capacity)} GPUs allocated, {format_number(free)} free"
        f"{elsewhere}; {running} {'workload' if running == 1 else 'workloads'} running, {pending} pending"
    )
