"""Departments, projects, and who has which role where. Pure."""

from datetime import date
from typing import Literal

from events.project import PodSecurity
from events.service_accounts import AccountRole
from services.api.answers.forms import Form, Uuid
from services.api.shown_events import Moment


class ProjectUse(Form, frozen=True, kw_only=True):
    """What the living workloads of a project hold."""

    workloads: dict[str, int]
    """Number of workloads in each phase."""
    pods: int
    """Number of pods that hold a node."""
    gpu_allocated: float
    """GPUs reserved now."""
    gpu_allocated_non_preemptible: float
    """GPUs reserved now for non-preemptible workloads."""
    cpu_allocated_cores: float
    """Cores reserved now."""
    cpu_memory_allocated_bytes: int
    """Memory reserved now."""


class NodePoolQuota(Form, frozen=True, kw_only=True):
    """Bounds in one node pool."""

    node_pool: str
    """Name of the node pool."""
    gpu_quota: float | None
    """GPUs of this pool that non-preemptible workloads may hold. Null: no limit."""
    gpu_limit: float | None
    """GPUs of this pool that all workloads may hold. Null: no limit."""
    over_quota_weight: float | None
    """Weight by which it shares what is left of this pool beyond the quotas. Null: the one that holds everywhere."""


class Department(Form, frozen=True, kw_only=True):
    """A department, its settings, and what its projects use."""

    id: Uuid
    """Id of the department."""
    name: str
    """Name of the department, unique in the tenant."""
    created_at: Moment | None
    """When it was created. Null for the default department while its settings were never changed."""
    is_default: bool
    """Whether it is the department of projects that name none. It cannot be deleted."""
    node_pools: list[str]
    """Order in which node pools are tried if neither a workload nor its project names one. Empty: all, by name."""
    node_types: list[str]
    """Node types of which new workloads of its projects must name one. Empty: they may name any, or none."""
    gpu_quota: float | None
    """GPUs that non-preemptible workloads of its projects may hold together. Null: no limit."""
    gpu_limit: float | None
    """GPUs that all workloads of its projects may hold together. Null: no limit."""
    node_pool_quotas: list[NodePoolQuota]
    """Bounds in single node pools, beside those."""
    minimum_runtime_seconds: int | None
    """Seconds that a workload of its projects runs before its place may be taken for another. Null: no minimum."""
    cluster_lost_seconds: int | None
    """Seconds for which a cluster is lost before workloads of its projects leave it. Null, or 0: never."""
    over_quota_weight: float | None
    """Weight by which its projects share what is left of node pools beyond the quotas. Null: 1."""
    projects: int
    """Number of its projects that the caller may read."""
    use: ProjectUse | None
    """What those use now. Null while the lists cannot be read."""


class Departments(Form, frozen=True, kw_only=True):
    """A page of the departments of the projects that the caller may read."""

    departments: list[Department]
    """By name."""
    next: int | None
    """The offset of the next page; null on the last one."""


class Project(Form, frozen=True, kw_only=True):
    """A project, its settings and its use."""

    id: Uuid
    """Id of the project."""
    name: str
    """Name of the project, unique in the tenant."""
    created_at: Moment | None
    """When it was created."""
    gpu_quota: float | None
    """GPUs that its non-preemptible workloads may hold. Null: no limit."""
    node_pools: list[str]
    """Order in which node pools are tried if a workload names none. Empty: all pools, by name."""
    pod_security: PodSecurity | None
    """Minimum Pod Security Standard for its pods on Kubernetes. Null: the cluster decides."""
    privileged: bool
    """Whether its workloads may have what Pod Security baseline forbids, such as host paths and the host's network."""
    gpu_limit: float | None
    """GPUs that all its workloads may hold. Null: no limit."""
    node_pool_quotas: list[NodePoolQuota]
    """Bounds in single node pools, beside those."""
    minimum_runtime_seconds: int | None
    """Seconds that its workloads run before their place may be taken for another. Null: as its department says."""
    cluster_lost_seconds: int | None
    """Seconds for which a cluster is lost before its workloads leave it. Null: as its department says; 0: never."""
    over_quota_weight: float | None
    """Weight by which it shares what is left of node pools beyond the quotas. Null: 1."""
    node_types: list[str]
    """Node types of which new workloads must name one. Empty: they may name any, or none."""
    department_id: Uuid
    """Id of the department that it stands in."""
    department_name: str
    """Name of that department."""
    use: ProjectUse | None
    """What it uses now. Null while the lists cannot be read."""


class Projects(Form, frozen=True, kw_only=True):
    """A page of the projects that the caller may read."""

    projects: list[Project]
    """By name."""
    next: int | None
    """The offset of the next page; null on the last one."""


class TimeLimit(Form, frozen=True, kw_only=True):
    """Limits of one kind of workloads."""

    kind: str
    """Kind of the workloads."""
    runtime_seconds: int | None
    """How long one may run, in all its attempts together. Null: no limit."""
    idle_gpu_seconds: int | None
    """For how long all its GPUs may do nothing, by what its cluster measures. Null: no limit."""
    pending_seconds: int | None
    """How long one may wait at a time. Null: no limit."""


class TimeLimits(Form, frozen=True, kw_only=True):
    """The limits of a project on the time of its workloads."""

    project_id: Uuid
    """Id of the project."""
    project_name: str
    """Name of the project."""
    time_limits: list[TimeLimit]
    """By kind. A kind that is not there has no limits."""


class AccessRuleHeld(Form, frozen=True, kw_only=True):
    """That somebody has a role."""

    subject_id: str
    """Subject of their tokens."""
    role_name: str
    """The role."""
    scope_type: Literal["tenant", "project"]
    """Everywhere, or in one project."""
    scope_id: str | None
    """Id of the project."""


class AccessRules(Form, frozen=True, kw_only=True):
    """Who has which role where."""

    access_rules: list[AccessRuleHeld]
    """Those of the tenant first."""


class Me(Form, frozen=True, kw_only=True):
    """Who the token speaks for."""

    issuer: str
    """Issuer of the token."""
    subject: str
    """Subject of the token."""
    tenant_roles: list[str]
    """Roles everywhere."""
    project_roles: dict[str, list[str]]
    """Roles by project id."""


class ServiceAccount(Form, frozen=True, kw_only=True):
    """A program that acts in one project."""

    name: str
    """Unique in the project."""
    project_id: Uuid
    """Id of the project that it acts in."""
    project_name: str
    """Name of that project."""
    subject: str
    """Its subject: what other answers call it."""
    role_name: AccountRole
    """What it may do in the project."""
    created_by: str
    """Subject of its creator."""
    created_at: Moment
    """When it was created."""
    rotated_at: Moment | None
    """When it got its current token. Null if that is its first."""
    last_used: date | None
    """The last day, UTC, on which its token was used; null where it never was."""


class ServiceAccounts(Form, frozen=True, kw_only=True):
    """The service accounts that the caller may manage."""

    service_accounts: list[ServiceAccount]
    """By project and name."""


class ServiceAccountToken(Form, frozen=True, kw_only=True):
    """The token of a service account, shown this once."""

    project_id: Uuid
    """Id of the project."""
    name: str
    """Name of the account."""
    token: str | None
    """For `Authorization: Bearer`; null where this request was carried out before, since no token is kept."""
    message: str
    """What to do with it."""
