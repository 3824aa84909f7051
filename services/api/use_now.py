"""Who uses what now: sums of what the caller's projects hold, from the projections."""

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

from events.phases import Phase
from projections.use_now import PLACES, By, UseQuery
from services.api import answers
from services.api.clusters import require_some_role
from services.api.context import MIN_SEQ, Call, read_answer
from services.api.errors import bad_request
from services.api.issues import Issue, shown
from services.api.operations import Answer, Query, reads
from services.api.paths import USAGE
from services.api.places import directory_fresh
from services.api.workloads import PAGE

SORTED: Final[Mapping[str, str]] = {
    "allocated.gpus": "gpu_milli",
    "allocated.nonPreemptibleGpus": "firm_gpu_milli",
    "allocated.gpuMemoryBytes": "gpu_memory_bytes",
    "allocated.cpuCores": "cpu_milli",
    "allocated.memoryBytes": "memory_bytes",
    "used.gpuUtilizationPercent": "gpu_utilization_percent",
    "used.gpuMemoryBytes": "used_gpu_memory_bytes",
    "used.cpuCores": "used_cpu_milli",
    "used.memoryBytes": "used_memory_bytes",
    "used.pods": "measured_pods",
    "running": "running",
    "pending": "pending",
    "ending": "ending",
    "pods": "pods",
    "gpuQuota": "gpu_quota_milli",
    "capacity.gpus": "capacity_gpu_milli",
    "capacity.gpuMemoryBytes": "capacity_gpu_memory_bytes",
    "capacity.cpuCores": "capacity_cpu_milli",
    "capacity.memoryBytes": "capacity_memory_bytes",
    "free.gpus": "free_gpu_milli",
    "free.gpuMemoryBytes": "free_gpu_memory_bytes",
    "free.cpuCores": "free_cpu_milli",
    "free.memoryBytes": "free_memory_bytes",
    "name": "name",
    "clusterName": "cluster_name",
    "projectName": "project_name",
    "submittedBy": "submitted_by",
    "phase": "phase",
}
"""Fields of a row, and the columns of the query."""
type Row = Mapping[Any, Any]
"""Of the query."""

WHAT: Final = (
    Query(name="by", type="choice", options=tuple(By), default=By.PROJECT, help="What each row is the sum of."),
    Query(name="projectId", help="Only what this project uses."),
    Query(name="clusterId", help="Only what is in this cluster."),
)
ORDER: Final = (
    Query(name="sortBy", type="choice", options=tuple(SORTED), default="allocated.gpus", help="A field of the rows."),
    Query(name="sortOrder", type="choice", options=("asc", "desc"), default="desc", help="Sort direction."),
)


@reads(
    USAGE,
    tag="Organisation",
    summary="Get who uses what now: by project, user, node pool, node or workload",
    query=(*WHAT, *ORDER, *PAGE, MIN_SEQ),
    errors=(403,),
)
async def list_usage(call: Call) -> Answer[answers.UseNow]:
    require_some_role(call)
    headers = await directory_fresh(call) | await call.fresh()
    if issues := list(_unknown(call)):
        raise bad_request(issues)
    by, values = By(call.values["by"]), call.values
    query = UseQuery(
        projects=call.grants.readable_projects,
        by=by,
        project_id=values["projectId"],
        cluster_id=values["clusterId"],
        sort_by=SORTED[values["sortBy"]],
        descending=values["sortOrder"] == "desc",
        subjects=call.api.actors.subjects,
        offset=values["offset"],
        limit=values["limit"],
    )
    page = await call.queries.use_now(query)
    people = {row["id"] for row in page.rows} if by is By.USER else {row["submitted_by"] for row in page.rows} - {None}
    subjects = await call.api.actors.subjects_of(people)
    answer = answers.UseNow(
        rows=[use_row(by, row, subjects) for row in page.rows],
        total=answers.UseSum(**_sum(page.total, waits=True)),
        next=page.next,
    )
    return read_answer(answer, page.seq, headers)


def _unknown(call: Call) -> Iterator[Issue]:
    project, cluster = call.values["projectId"], call.values["clusterId"]
    if project is not None and (call.api.directory.project(project) is None or not call.may_read(project)):
        yield Issue(field="projectId", details=f"there is no project {shown(project)} that you may read; give its id")
    if cluster is not None and call.api.directory.cluster(cluster) is None:
        yield Issue(field="clusterId", details=f"there is no cluster {shown(cluster)}; give its id")


def use_row(by: By, row: Row, subjects: Mapping[str, str]) -> answers.UseRow:
    """A row of the query; `subjects`: what to call those whose ids it has."""
    owner = row["submitted_by"]
    return answers.UseRow(
        name=subjects.get(row["id"], row["name"]) if by is By.USER else row["name"],
        id=row["id"] if by in {By.PROJECT, By.WORKLOAD} else None,
        gpu_quota=None if row["gpu_quota_milli"] is None else float(row["gpu_quota_milli"]) / 1000,
        cluster_name=row["cluster_name"],
        project_name=row["project_name"],
        submitted_by=None if owner is None else subjects.get(owner, owner),
        phase=None if row["phase"] is None else Phase(row["phase"]),
        **_sum(row, waits=by not in PLACES),
    )


def _sum(row: Row, *, waits: bool) -> dict[str, Any]:
    """Fields of a UseSum; `waits`: whether it is of something that workloads can wait in."""
    return {
        "running": int(row["running"]),
        "pending": int(row["pending"]) if waits else None,
        "ending": int(row["ending"]),
        "pods": int(row["pods"]),
        "allocated": answers.Allocated(**_amounts(row, ""), non_preemptible_gpus=_thousandth(row["firm_gpu_milli"])),
        "used": _used(row),
        "capacity": _there(row, "capacity_"),
        "free": _there(row, "free_"),
    }


def _used(row: Row) -> answers.Used | None:
    if not row["measured_pods"]:
        return None
    busy, gpu_memory = row["gpu_utilization_percent"], row["used_gpu_memory_bytes"]
    return answers.Used(
        pods=int(row["measured_pods"]),
        gpu_utilization_percent=None if busy is None else round(float(busy), 1),
        gpu_memory_bytes=None if gpu_memory is None else int(gpu_memory),
        cpu_cores=_thousandth(row["used_cpu_milli"]),
        memory_bytes=int(row["used_memory_bytes"]),
    )


def _there(row: Row, prefix: str) -> answers.Amounts | None:
    return None if row[f"{prefix}gpu_milli"] is None else answers.Amounts(**_amounts(row, prefix))


def _amounts(row: Row, prefix: str) -> dict[str, Any]:
    return {
        "gpus": _thousandth(row[f"{prefix}gpu_milli"]),
        "gpu_memory_bytes": int(row[f"{prefix}gpu_memory_bytes"]),
        "cpu_cores": _thousandth(row[f"{prefix}cpu_milli"]),
        "memory_bytes": int(row[f"{prefix}memory_bytes"]),
    }


def _thousandth(milli: Decimal) -> float:
    return float(milli) / 1000
