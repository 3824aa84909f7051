"""Departments: groups of projects, and the settings that hold for all projects of one.

Who may read a project may read its department; administrators make, change and delete them.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from events.aggregate import DEPARTMENT, Chain
from events.authorize import Permission
from events.department import (
    DEFAULT_DEPARTMENT_ID,
    NEVER_CHANGED,
    ChangeDepartment,
    CreateDepartment,
    DeleteDepartment,
    Department,
    name_taken,
    shown_as,
)
from events.fields.declare import Body, Limits
from events.fields.values import NonEmpty
from events.ids import key_of_id
from projections.filters import MAX_OFFSET
from projections.project_use import ProjectUse
from services.api import answers
from services.api.clusters import pools_there_are
from services.api.context import MIN_SEQ, Call, Look, if_answered, read_answer, version_header
from services.api.errors import not_found
from services.api.issues import Issue, fault, shown
from services.api.moments import AS_OF, MOMENT_HEADERS, moment_headers, moment_of
from services.api.operations import Answer, Query, changes, reads
from services.api.paths import DEPARTMENT as ONE
from services.api.paths import DEPARTMENTS
from services.api.places import (
    department_at,
    departments_at,
    directory_caught_up,
    directory_fresh,
    projects_at,
    sent_with_name,
)
from services.api.quotas import (
    ClusterLost,
    GpuQuota,
    MinimumRuntime,
    PoolQuotas,
    Weight,
    devices,
    milli,
    quota_issues,
    stored,
    told,
)
from services.api.reservations import reserved_for
from services.api.rules import check_name, free_name, listed_pools
from services.api.simulated_nodes import PoolName

MAX_PAGE: Final = 500
SEARCH: Final = Query(name="search", help="Part of a name, in any case.")
PAGE: Final = (
    Query(name="offset", type="integer", default=0, most=MAX_OFFSET, help="Rows to skip."),
    Query(name="limit", type="integer", default=MAX_PAGE, least=1, most=MAX_PAGE, help="Maximum number of rows."),
)

Pools = Annotated[tuple[PoolName, ...], Limits(longest=100)]
NodeTypes = Annotated[tuple[Annotated[str, Limits(shortest=1, longest=63)], ...], Limits(longest=100)]


class DepartmentSettings(Body, frozen=True, kw_only=True):
    """All settings, as they shall be."""

    node_pools: Pools = ()
    """Order in which node pools are tried if neither a workload nor its project names one. Empty: all, by name."""
    node_types: NodeTypes = ()
    """Node types of which new workloads of its projects must name one. Empty: they may name any, or none."""
    gpu_quota: GpuQuota | None = None
    """GPUs that non-preemptible workloads of its projects may hold together. Null: no limit."""
    gpu_limit: GpuQuota | None = None
    """GPUs that all workloads of its projects may hold together. Null: no limit."""
    minimum_runtime_seconds: MinimumRuntime | None = None
    """Seconds that a workload of its projects runs before its place may be taken for another. Null: no minimum."""
    cluster_lost_seconds: ClusterLost | None = None
    """Seconds for which a cluster is lost before workloads of its projects leave it. Null, or 0: never."""
    over_quota_weight: Weight | None = None
    """Weight by which its projects share what is left of node pools beyond the quotas, 0 to 1000. Null: 1."""
    node_pool_quotas: PoolQuotas = ()
    """Bounds in single node pools, beside those."""


class DepartmentCreation(DepartmentSettings, frozen=True, kw_only=True):
    """A department to be made."""

    name: NonEmpty
    """Unique in the tenant. It cannot be changed."""


@reads(
    DEPARTMENTS,
    tag="Organisation",
    summary="List the departments of the projects that you may read, and what those use",
    query=(SEARCH, Query(name="name", help="The whole name."), *PAGE, AS_OF, MIN_SEQ),
    headers=MOMENT_HEADERS,
)
async def list_departments(call: Look) -> Answer[answers.Departments]:
    moment = await moment_of(call)
    if moment is not None:
        seq, headers, queries = moment.seq, moment_headers(moment), call.queries.as_of(moment)
        every = await departments_at(call, moment)
        projects = _by_department((p.project_id, p.department_id) for p in await projects_at(call, moment))
    else:
        headers = await directory_fresh(call)
        seq, queries = call.api.directory.seq, call.queries
        every, projects = [*call.api.directory.departments.values()], _readable_projects(call)
    found = sorted((d for d in every if _is_seen(call, d, projects)), key=lambda department: department.name)
    page, following = page_of(call, [d for d in found if is_named(call, d.name)])
    wanted = frozenset(id_ for d in page for id_ in projects.get(d.department_id, ()))
    reading = queries.project_use(wanted)
    answer = await reading if moment is not None else await if_answered(reading)
    uses = None if answer is None else answer.projects
    shown_page = [_answer(d, projects.get(d.department_id, ()), uses) for d in page]
    return read_answer(answers.Departments(departments=shown_page, next=following), seq, headers)


@reads(
    ONE,
    tag="Organisation",
    summary="Get a department",
    query=(AS_OF, MIN_SEQ),
    errors=(404,),
    headers=MOMENT_HEADERS,
)
async def get_department(call: Look) -> Answer[answers.Department]:
    moment = await moment_of(call)
    if moment is not None:
        chain = await department_at(call, moment)
        projects = _by_department((p.project_id, p.department_id) for p in await projects_at(call, moment))
        seq, headers = moment.seq, moment_headers(moment)
    else:
        headers = await directory_fresh(call)
        chain, projects, seq = await _newest(call), _readable_projects(call), call.api.directory.seq
    if chain is None or not _is_seen(call, chain.state, projects):
        raise not_found("there is no such department" if moment is None else "there was no such department then")
    own = projects.get(chain.state.department_id, ())
    reading = call.queries.as_of(moment).project_use(frozenset(own))
    answer = await reading if moment is not None else await if_answered(reading)
    found = _answer(chain.state, own, None if answer is None else answer.projects)
    return read_answer(found, seq, version_header(chain.version) | headers)


@changes(
    "POST",
    DEPARTMENTS,
    tag="Organisation",
    summary="Create a department",
    body=DepartmentCreation,
    example={"name": "research", "nodePools": ["h100", "default"]},
    errors=(403,),
)
async def create_department(call: Call) -> Answer[answers.Created]:
    allowed = call.grants.allows(Permission.MANAGE_PROJECTS, None)
    pools = await pools_there_are(call)

    def wrong(department: DepartmentCreation) -> Iterator[Issue]:
        yield from check_name(department.name, as_prefix=False)
        yield from setting_issues(department.node_pools, department.node_types, pools if allowed else None)
        yield from quota_issues(department, pools if allowed else None)

    def taken(department: DepartmentCreation) -> Iterator[Issue]:
        if allowed and _is_named(call)(department.name):
            instead = free_name(department.name, _is_named(call))
            yield Issue(field="name", details=name_taken(department.name, instead).message)

    given = call.fields(DepartmentCreation, wrong, taken)
    command = CreateDepartment(name=given.name, **_settings(given))
    reply = await sent_with_name(call, command, given.name, _is_named(call), name_taken)
    await directory_caught_up(call, reply)
    return call.created(reply, given.name)


@changes(
    "PUT",
    ONE,
    tag="Organisation",
    summary="Set the node pools, node types, quotas and limits of a department",
    body=DepartmentSettings,
    example={"nodePools": ["h100", "default"], "nodeTypes": ["dgx"], "gpuLimit": 64},
    errors=(403, 404),
)
async def set_department(call: Call) -> Answer[answers.HttpResponse]:
    chain = await _newest(call)
    if chain is None or not _is_seen(call, chain.state, _readable_projects(call)):
        raise not_found("there is no such department")
    # A pool that was removed meanwhile must not stand in the way of what else is changed.
    own = (each.node_pool for each in chain.state.pool_quotas)
    pools = {*await pools_there_are(call), *chain.state.node_pools, *own}
    known = pools if call.grants.allows(Permission.MANAGE_PROJECTS, None) else None

    def wrong(settings: DepartmentSettings) -> Iterator[Issue]:
        yield from setting_issues(settings.node_pools, settings.node_types, known)
        yield from quota_issues(settings, known)

    given = call.fields(DepartmentSettings, wrong)
    command = ChangeDepartment(department_id=call.id, **_settings(given))
    reply = await call.send(command)
    await directory_caught_up(call, reply)
    return call.accepted(reply, f"department {call.id} is set")


@changes(
    "DELETE",
    ONE,
    tag="Organisation",
    summary="Delete a department in which no project stands. Its history stays",
    errors=(403, 404),
)
async def delete_department(call: Call) -> Answer[answers.HttpResponse]:
    ends = reserved_for([*call.api.directory.clusters.values()], call.id, datetime.now(UTC))
    reply = await call.send(DeleteDepartment(department_id=call.id))
    await directory_caught_up(call, reply)
    told = f". What was reserved for it has ended: {', '.join(ends)}" if ends else ""
    return call.accepted(reply, f"department {call.id} is deleted{told}")


def _settings(given: DepartmentSettings) -> dict[str, Any]:
    return {
        "node_pools": given.node_pools,
        "node_types": given.node_types,
        "gpu_quota_milli": milli(given.gpu_quota),
        "gpu_limit_milli": milli(given.gpu_limit),
        "pool_quotas": stored(given.node_pool_quotas),
        "minimum_runtime_seconds": given.minimum_runtime_seconds,
        "cluster_lost_seconds": given.cluster_lost_seconds,
        "over_quota_weight": given.over_quota_weight,
    }


# -- shared with projects --------------------------------------------------------------------------------------------


def is_named(call: Look, name: str) -> bool:
    """Whether the query asks for what is named so."""
    wanted: str | None = call.values["name"]
    return (call.values["search"] or "").casefold() in name.casefold() and wanted in (None, name)


def page_of[T](call: Look, rows: list[T]) -> tuple[list[T], int | None]:
    """(the rows of the page that the query asks for, the offset of the next one)."""
    offset, limit = call.values["offset"], call.values["limit"]
    return rows[offset : offset + limit], offset + limit if len(rows) > offset + limit else None


def setting_issues(pools: tuple[str, ...], types: tuple[str, ...], known: Collection[str] | None) -> Iterator[Issue]:
    """What is wrong with lists of node pools and node types; where it is not `known` which pools there are, only that
    in themselves.
    """
    for field, given in (("nodePools", pools), ("nodeTypes", types)):
        for index, word in enumerate(given):
            if word in given[:index]:
                yield Issue(field=f"{field}[{index}]", details=f"{shown(word)} is given twice; leave one out")
            elif field == "nodePools" and known is not None and word not in known:
                details = f"no cluster has a node pool {shown(word)}; there are {listed_pools(sorted(known))}"
                yield fault(f"{field}[{index}]", details, "options")


def summed(uses: Iterable[ProjectUse]) -> ProjectUse:
    """What several projects hold together."""
    every = [*uses]
    phases: Counter[str] = Counter()
    for use in every:
        phases.update(use.phases)
    return ProjectUse(
        project_id="",
        phases=dict(phases),
        pods=sum(use.pods for use in every),
        gpu_milli=sum(use.gpu_milli for use in every),
        non_preemptible_gpu_milli=sum(use.non_preemptible_gpu_milli for use in every),
        cpu_milli=sum(use.cpu_milli for use in every),
        memory_bytes=sum(use.memory_bytes for use in every),
    )


def use_answer(use: ProjectUse) -> answers.ProjectUse:
    return answers.ProjectUse(
        workloads=use.phases,
        pods=use.pods,
        gpu_allocated=use.gpu_milli / 1000,
        gpu_allocated_non_preemptible=use.non_preemptible_gpu_milli / 1000,
        cpu_allocated_cores=use.cpu_milli / 1000,
        cpu_memory_allocated_bytes=use.memory_bytes,
    )


# -- how one is shown ------------------------------------------------------------------------------------------------


async def _newest(call: Look) -> Chain[Department] | None:
    """The department that the path names, from the fold, or from the log where that lags."""
    key = key_of_id(call.id)
    if key is None:
        return None
    chain = call.api.directory.chain(DEPARTMENT, key)
    if shown_as(chain.state, call.id) in (None, NEVER_CHANGED):
        chain = await call.api.store.load(DEPARTMENT, key)
    found = shown_as(chain.state, call.id)
    return None if found is None else Chain(state=found, version=chain.version)


def _is_named(call: Look) -> Callable[[str], bool]:
    """Whether a department has a name."""
    return lambda name: call.api.directory.department_named(name) is not None


def _readable_projects(call: Look) -> Mapping[str, list[str]]:
    """Ids of the projects that the caller may read, by department."""
    directory, readable = call.api.directory, call.grants.readable_projects
    if readable is None:
        return {id_: [*directory.projects_in(id_)] for id_ in directory.departments}
    known = ((id_, directory.project(id_)) for id_ in readable)
    return _by_department((id_, project.department_id) for id_, project in known if project is not None)


def _by_department(projects: Iterable[tuple[str, str]]) -> Mapping[str, list[str]]:
    found: dict[str, list[str]] = {}
    for project_id, department_id in projects:
        found.setdefault(department_id, []).append(project_id)
    return found


def _is_seen(call: Look, department: Department, projects: Mapping[str, Collection[str]]) -> bool:
    return call.grants.readable_projects is None or bool(projects.get(department.department_id))


def _answer(
    department: Department, projects: Collection[str], uses: Mapping[str, ProjectUse] | None
) -> answers.Department:
    use = None if uses is None else summed(uses[id_] for id_ in projects if id_ in uses)
    return answers.Department(
        id=department.department_id,
        name=department.name,
        created_at=department.created_at,
        is_default=department.department_id == DEFAULT_DEPARTMENT_ID,
        node_pools=list(department.node_pools),
        node_types=list(department.node_types),
        gpu_quota=devices(department.gpu_quota_milli),
        gpu_limit=devices(department.gpu_limit_milli),
        node_pool_quotas=told(department.pool_quotas),
        minimum_runtime_seconds=department.minimum_runtime_seconds,
        cluster_lost_seconds=department.cluster_lost_seconds,
        over_quota_weight=department.over_quota_weight,
        projects=len(projects),
        use=None if use is None else use_answer(use),
    )
