"""Projects, and who has which role where."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

from events.aggregate import TENANT
from events.authorize import Permission
from events.commands import UserCommand
from events.department import DEFAULT_DEPARTMENT, DEFAULT_DEPARTMENT_ID, Department
from events.fields.declare import Body, Limits
from events.fields.values import NonEmpty, Uuid
from events.ids import TENANT_KEY, key_of_id
from events.project import (
    ChangeProject,
    CreateProject,
    DeleteProject,
    GrantProjectRole,
    PodSecurity,
    Project,
    RevokeProjectRole,
    name_taken,
)
from events.tenant import GrantTenantRole, RevokeTenantRole
from projections.project_use import ProjectUse
from services.api import answers
from services.api.check import check
from services.api.clusters import pools_there_are
from services.api.context import MIN_SEQ, Call, Look, if_answered, read_answer, version_header
from services.api.departments import (
    PAGE,
    SEARCH,
    NodeTypes,
    Pools,
    is_named,
    page_of,
    setting_issues,
    use_answer,
)
from services.api.errors import bad_request, not_found
from services.api.event_filters import read_uuid
from services.api.issues import Issue, PolicyRule, fault, shown
from services.api.moments import AS_OF, MOMENT_HEADERS, moment_headers, moment_of
from services.api.operations import Answer, Query, changes, reads
from services.api.paths import PROJECT, PROJECTS, RULES, V1
from services.api.places import (
    directory_caught_up,
    directory_fresh,
    find_department,
    project_at,
    projects_at,
    readable_project,
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
from services.api.rules import check_name, free_name

TENANT_ROLES: Final = ("administrator", "researcher", "viewer")
PROJECT_ROLES: Final = ("project-admin", "researcher", "viewer")
RULE: Final = (
    Query(name="subjectId", help="Subject of the token."),
    Query(name="roleName", help="Name of the role."),
    Query(name="scopeType", help="tenant or project."),
    Query(name="scopeId", help="Id of the project."),
)

_A_RULE: Final = {
    "subjectId": "ada",
    "roleName": "researcher",
    "scopeType": "project",
    "scopeId": "7d1c2b3a-0000-8000-8000-000000000000",
}


class ProjectCreation(Body, frozen=True, kw_only=True):
    name: NonEmpty
    """Unique in the tenant."""
    gpu_quota: GpuQuota | None = None
    """GPUs that its non-preemptible workloads may hold. Null: no limit."""
    node_pools: Pools = ()
    """Order in which node pools are tried if a workload names none. Empty: all pools, by name."""
    pod_security: PodSecurity | None = None
    """Minimum Pod Security Standard for its pods on Kubernetes. Null: the cluster decides."""
    privileged: bool = False
    """Whether its workloads may have what Pod Security baseline forbids, such as host paths and the host's network."""
    gpu_limit: GpuQuota | None = None
    """GPUs that all its workloads may hold. Null: no limit."""
    minimum_runtime_seconds: MinimumRuntime | None = None
    """Seconds that its workloads run before their place may be taken for another. Null: as its department says."""
    cluster_lost_seconds: ClusterLost | None = None
    """Seconds for which a cluster is lost before its workloads leave it. Null: as its department says; 0: never."""
    over_quota_weight: Weight | None = None
    """Weight by which it shares what is left of node pools beyond the quotas, 0 to 1000. Null: 1."""
    node_pool_quotas: PoolQuotas = ()
    """Bounds in single node pools, beside those."""
    node_types: NodeTypes = ()
    """Node types of which new workloads must name one. Empty: they may name any, or none."""
    department_id: Uuid | None = None
    """Id of the department that it stands in. Null: the default one."""


class ProjectSettings(Body, frozen=True, kw_only=True):
    """All settings, as they shall be."""

    gpu_quota: GpuQuota | None = None
    """GPUs that its non-preemptible workloads may hold. Null: no limit."""
    node_pools: Pools = ()
    """Order in which node pools are tried if a workload names none. Empty: all pools, by name."""
    pod_security: PodSecurity | None = None
    """Minimum Pod Security Standard for its pods on Kubernetes. Null: the cluster decides."""
    privileged: bool = False
    """Whether its workloads may have what Pod Security baseline forbids, such as host paths and the host's network."""
    gpu_limit: GpuQuota | None = None
    """GPUs that all its workloads may hold. Null: no limit."""
    minimum_runtime_seconds: MinimumRuntime | None = None
    """Seconds that its workloads run before their place may be taken for another. Null: as its department says."""
    cluster_lost_seconds: ClusterLost | None = None
    """Seconds for which a cluster is lost before its workloads leave it. Null: as its department says; 0: never."""
    over_quota_weight: Weight | None = None
    """Weight by which it shares what is left of node pools beyond the quotas, 0 to 1000. Null: 1."""
    node_pool_quotas: PoolQuotas = ()
    """Bounds in single node pools, beside those."""
    node_types: NodeTypes = ()
    """Node types of which new workloads must name one. Empty: they may name any, or none."""
    department_id: Uuid | None = None
    """Id of the department to move it into. Null: it stays where it is."""


class AccessRule(Body, frozen=True, kw_only=True):
    subject_id: Annotated[str, Limits(shortest=1, longest=256)]
    """Subject of their tokens."""
    role_name: Literal["administrator", "project-admin", "researcher", "viewer"]
    """`administrator` only for the tenant, `project-admin` only for a project."""
    scope_type: Literal["tenant", "project"]
    """Everywhere, or in one project."""
    scope_id: str | None = None
    """Id of the project."""


@reads(
    PROJECTS,
    tag="Organisation",
    summary="List the projects that you may read, and what they use",
    query=(
        SEARCH,
        Query(name="name", help="The whole name."),
        Query(name="departmentId", read=read_uuid, help="Only those in this department."),
        *PAGE,
        AS_OF,
        MIN_SEQ,
    ),
    headers=MOMENT_HEADERS,
)
async def list_projects(call: Look) -> Answer[answers.Projects]:
    department: str | None = call.values["departmentId"]
    if (moment := await moment_of(call)) is not None:
        every = await projects_at(call, moment)
        seq, headers = moment.seq, moment_headers(moment)
    else:
        headers = await directory_fresh(call)
        every, seq = _listed(call, department), call.api.directory.seq
    wanted = [p for p in every if department in (None, p.department_id) and is_named(call, p.name)]
    page, following = page_of(call, sorted(wanted, key=lambda project: project.name))
    ids = frozenset(p.project_id for p in page)
    uses = await _uses(call, ids) if moment is None else (await call.queries.as_of(moment).project_use(ids)).projects
    shown_page = [_project_answer(p, uses) for p in page]
    return read_answer(answers.Projects(projects=shown_page, next=following), seq, headers)


def _listed(call: Look, department: str | None) -> list[Project]:
    """Those that the caller may read, of one department where one is asked for."""
    directory, readable = call.api.directory, call.grants.readable_projects
    if department is not None:
        ids = directory.projects_in(department)
    else:
        ids = directory.projects if readable is None else readable
    known = (directory.project(id_) for id_ in ids if readable is None or id_ in readable)
    return [project for project in known if project is not None]


@reads(
    PROJECT,
    tag="Organisation",
    summary="Get a project",
    query=(AS_OF, MIN_SEQ),
    errors=(404,),
    headers=MOMENT_HEADERS,
)
async def get_project(call: Look) -> Answer[answers.Project]:
    if (moment := await moment_of(call)) is not None:
        was = await project_at(call, moment)
        if was is None or not call.may_read(call.id):
            raise not_found("there was no such project then")
        held = await call.queries.as_of(moment).project_use(frozenset({call.id}))
        headers = version_header(was.version) | moment_headers(moment)
        return read_answer(_project_answer(was.state, held.projects), moment.seq, headers)
    headers = await directory_fresh(call)
    chain = await readable_project(call)
    project = chain.state
    uses = await _uses(call, frozenset({project.project_id}))
    headers = version_header(chain.version) | headers
    return read_answer(_project_answer(project, uses), call.api.directory.seq, headers)


@changes(
    "POST",
    PROJECTS,
    tag="Organisation",
    summary="Create a project",
    body=ProjectCreation,
    example={"name": "vision", "gpuQuota": 16, "nodePools": ["h100", "default"]},
    errors=(403,),
)
async def create_project(call: Call) -> Answer[answers.Created]:
    allowed = call.grants.allows(Permission.MANAGE_PROJECTS, None)
    pools = await pools_there_are(call)

    def wrong(project: ProjectCreation) -> Iterator[Issue]:
        yield from check_name(project.name, as_prefix=False)
        yield from setting_issues(project.node_pools, project.node_types, pools if allowed else None)
        yield from quota_issues(project, pools if allowed else None)
        yield from _security_issues(project)
        yield from _department_issues(project.department_id, department if allowed else DEFAULT_DEPARTMENT)

    def taken(project: ProjectCreation) -> Iterator[Issue]:
        if allowed and is_taken(project.name):
            instead = free_name(project.name, is_taken)
            yield Issue(field="name", details=name_taken(project.name, instead).message)

    def is_taken(name: str) -> bool:
        return call.api.directory.project_named(name) is not None

    department = await _department(call, call.json_object().get("departmentId"))
    given = call.fields(ProjectCreation, wrong, taken)
    command = CreateProject(
        name=given.name,
        gpu_quota_milli=milli(given.gpu_quota),
        node_pools=given.node_pools,
        pod_security=given.pod_security,
        privileged=given.privileged,
        node_types=given.node_types,
        gpu_limit_milli=milli(given.gpu_limit),
        pool_quotas=stored(given.node_pool_quotas),
        minimum_runtime_seconds=given.minimum_runtime_seconds,
        cluster_lost_seconds=given.cluster_lost_seconds,
        over_quota_weight=given.over_quota_weight,
        department_id=DEFAULT_DEPARTMENT_ID if department is None else department.department_id,
        department_name=DEFAULT_DEPARTMENT if department is None else department.name,
    )
    reply = await sent_with_name(call, command, given.name, is_taken, name_taken)
    await directory_caught_up(call, reply)
    return call.created(reply, given.name)


@changes(
    "PUT",
    PROJECT,
    tag="Organisation",
    summary="Set the settings of a project, or move it into another department",
    body=ProjectSettings,
    example={"gpuQuota": 16, "nodePools": ["h100", "default"], "podSecurity": "restricted"},
    errors=(403, 404),
)
async def set_project(call: Call) -> Answer[answers.HttpResponse]:
    project = (await readable_project(call)).state
    # A pool that was removed meanwhile must not stand in the way of what else is changed.
    own = (each.node_pool for each in project.pool_quotas)
    pools = {*await pools_there_are(call), *project.node_pools, *own}
    allowed = call.grants.allows(Permission.MANAGE_PROJECTS, None)

    def wrong(settings: ProjectSettings) -> Iterator[Issue]:
        yield from setting_issues(settings.node_pools, settings.node_types, pools if allowed else None)
        yield from quota_issues(settings, pools if allowed else None)
        yield from _security_issues(settings)
        yield from _department_issues(settings.department_id, department if allowed else DEFAULT_DEPARTMENT)

    department = await _department(call, call.json_object().get("departmentId"))
    given = call.fields(ProjectSettings, wrong)
    command = ChangeProject(
        project_id=call.id,
        gpu_quota_milli=milli(given.gpu_quota),
        node_pools=given.node_pools,
        pod_security=given.pod_security,
        privileged=given.privileged,
        node_types=given.node_types,
        gpu_limit_milli=milli(given.gpu_limit),
        pool_quotas=stored(given.node_pool_quotas),
        minimum_runtime_seconds=given.minimum_runtime_seconds,
        cluster_lost_seconds=given.cluster_lost_seconds,
        over_quota_weight=given.over_quota_weight,
        department_id=None if department is None else department.department_id,
        department_name="" if department is None else department.name,
    )
    reply = await call.send(command)
    await directory_caught_up(call, reply)
    return call.accepted(reply, f"project {call.id} is set")


@changes(
    "DELETE",
    PROJECT,
    tag="Organisation",
    summary="Delete a project that has no living workloads. Its history stays",
    errors=(403, 404),
)
async def delete_project(call: Call) -> Answer[answers.HttpResponse]:
    ends = reserved_for([*call.api.directory.clusters.values()], call.id, datetime.now(UTC))
    reply = await call.send(DeleteProject(project_id=call.id))
    await directory_caught_up(call, reply)
    told = f". What was reserved for it has ended: {', '.join(ends)}" if ends else ""
    return call.accepted(reply, f"project {call.id} is deleted, with its roles and service accounts{told}")


@reads(RULES, tag="Organisation", summary="List who has which role where", query=(MIN_SEQ,), errors=(403,))
async def list_access_rules(call: Look) -> Answer[answers.AccessRules]:
    headers = await directory_fresh(call)
    allowed = {
        p.project_id
        for p in call.api.directory.projects.values()
        if call.grants.allows(Permission.GRANT_PROJECT_ROLES, p.project_id)
    }
    rules: list[answers.AccessRuleHeld] = []
    if call.grants.allows(Permission.GRANT_TENANT_ROLES, None):
        tenant = (await call.api.store.load(TENANT, TENANT_KEY)).state
        rules += await _rules(call, tenant.roles, "tenant", None)
    elif not allowed:
        call.require(Permission.GRANT_TENANT_ROLES, None)
    for project_id in sorted(allowed):
        rules += await _rules(call, call.api.directory.projects[project_id].roles, "project", project_id)
    return read_answer(answers.AccessRules(access_rules=rules), call.api.directory.seq, headers)


@changes(
    "POST",
    RULES,
    tag="Organisation",
    summary="Give a user a role",
    body=AccessRule,
    example=_A_RULE,
    errors=(403, 404),
)
async def grant_role(call: Call) -> Answer[answers.HttpResponse]:
    rule = _checked(call.json_object())
    command: UserCommand
    if rule.scope_type == "tenant":
        command = GrantTenantRole(subject=rule.subject_id, role=rule.role_name)  # pyright: ignore[reportArgumentType] - checked
    else:
        command = GrantProjectRole(project_id=rule.scope_id or "", subject=rule.subject_id, role=rule.role_name)  # pyright: ignore[reportArgumentType] - checked
    return await _send(call, rule, command, "has", "has already")


@changes(
    "DELETE",
    RULES,
    tag="Organisation",
    summary="Take a role away from a user. The query or the body names it",
    query=RULE,
    body=AccessRule,
    example=_A_RULE,
    errors=(403, 404),
)
async def revoke_role(call: Call) -> Answer[answers.HttpResponse]:
    given = {name: value for name, value in call.values.items() if value is not None}
    in_body = call.raw.strip() not in {b"", b"{}"}
    if in_body and given:
        raise bad_request(
            [Issue(field="body", details="the role is in the query and in the body; send only one of them")]
        )
    rule = _checked(call.json_object() if in_body else given)
    command: UserCommand
    if rule.scope_type == "tenant":
        command = RevokeTenantRole(subject=rule.subject_id, role=rule.role_name)  # pyright: ignore[reportArgumentType] - checked
    else:
        command = RevokeProjectRole(project_id=rule.scope_id or "", subject=rule.subject_id, role=rule.role_name)  # pyright: ignore[reportArgumentType] - checked
    return await _send(call, rule, command, "no longer has", "no longer has")


@reads(f"{V1}/me", tag="Organisation", summary="Get the user of the token, and their roles")
async def who_am_i(call: Look) -> Answer[answers.Me]:
    me = answers.Me(
        issuer=call.identity.iss,
        subject=call.identity.sub,
        tenant_roles=list(call.grants.tenant_roles),
        project_roles={project: list(roles) for project, roles in call.grants.project_roles.items()},
    )
    return read_answer(me, call.api.directory.seq, {})


async def _send(
    call: Call, rule: AccessRule, command: UserCommand, done: str, already: str
) -> Answer[answers.HttpResponse]:
    reply = await call.send(command)
    await directory_caught_up(call, reply)
    word = done if reply.changed else already
    where = "everywhere" if rule.scope_type == "tenant" else f"in project {rule.scope_id}"
    return call.accepted(reply, f"{rule.subject_id} {word} role {rule.role_name} {where}")


def _checked(data: dict[str, Any]) -> AccessRule:
    """The rule. Raises 400, also where role and scope do not go together."""
    rule = check(AccessRule, data, _issues_of_rule)
    if isinstance(rule, list):
        raise bad_request(rule)
    return rule


def _issues_of_rule(rule: AccessRule) -> Iterator[Issue]:
    roles = TENANT_ROLES if rule.scope_type == "tenant" else PROJECT_ROLES
    if rule.role_name not in roles:
        details = f"{rule.role_name} is no role of a {rule.scope_type}; possible: {', '.join(roles)}"
        yield Issue(field="roleName", details=details, rule="options")
    if (rule.scope_id is None) == (rule.scope_type == "project"):
        wanted: PolicyRule = "required" if rule.scope_id is None else "canAdd"
        yield Issue(field="scopeId", details="is given where scopeType is project, and only there", rule=wanted)
    elif rule.scope_id is not None and key_of_id(rule.scope_id) is None:
        where = "GET /api/v1/org-unit/projects lists both"
        details = f"must be a project's id, not its name, got {shown(rule.scope_id)}; {where}"
        yield Issue(field="scopeId", details=details)
    if not rule.subject_id.isprintable():
        yield Issue(field="subjectId", details=f"{shown(rule.subject_id)} has control characters")


async def _rules(
    call: Look, roles: dict[str, Any], scope_type: Literal["tenant", "project"], scope_id: str | None
) -> list[answers.AccessRuleHeld]:
    subjects = await call.api.actors.subjects_of(roles)
    return [
        answers.AccessRuleHeld(subject_id=subjects[actor], role_name=role, scope_type=scope_type, scope_id=scope_id)
        for actor, held in sorted(roles.items(), key=lambda item: (subjects[item[0]], item[0]))
        for role in held
    ]


def _security_issues(settings: ProjectCreation | ProjectSettings) -> Iterator[Issue]:
    if settings.privileged and settings.pod_security == "restricted":
        details = "contradicts podSecurity restricted, which forbids all of it; leave one of them out"
        yield Issue(field="privileged", details=details, involves=frozenset({"podSecurity"}))


async def _department(call: Look, given: Any) -> Department | None:
    """The department that a body names; None where it names none, or there is none."""
    return await find_department(call, given.lower()) if isinstance(given, str) else None


def _department_issues(given: str | None, found: object | None) -> Iterator[Issue]:
    """Args: found, what has this id; whoever may not do this learns nothing of departments, and the gate refuses."""
    if given is not None and found is None:
        yield fault("departmentId", f"there is no department {shown(given)}")


async def _uses(call: Look, ids: frozenset[str]) -> dict[str, ProjectUse] | None:
    """What the projects hold; None while the projections are away: the projects themselves are known."""
    answer = await if_answered(call.queries.project_use(ids))
    return None if answer is None else answer.projects


def _project_answer(project: Project, uses: dict[str, ProjectUse] | None) -> answers.Project:
    return answers.Project(
        id=project.project_id,
        name=project.name,
        created_at=project.created_at,
        gpu_quota=devices(project.gpu_quota_milli),
        gpu_limit=devices(project.gpu_limit_milli),
        node_pool_quotas=told(project.pool_quotas),
        minimum_runtime_seconds=project.minimum_runtime_seconds,
        cluster_lost_seconds=project.cluster_lost_seconds,
        over_quota_weight=project.over_quota_weight,
        node_pools=list(project.node_pools),
        pod_security=project.pod_security,
        privileged=project.privileged,
        node_types=list(project.node_types),
        department_id=project.department_id,
        department_name=project.department_name,
        use=None if uses is None else use_answer(uses.get(project.project_id, ProjectUse(project_id=""))),
    )
