"""The project aggregate: department, quota, budget, order of node pools, who has which role in it, its service
accounts, subscriptions and webhooks.
"""

from datetime import datetime
from typing import Literal, assert_never

import msgspec
from msgspec.structs import replace

from events.actors import STRANGER, is_account
from events.budgets import (
    Budget,
    BudgetCommand,
    BudgetEvent,
    BudgetExhausted,
    BudgetRemoved,
    BudgetReopened,
    BudgetSet,
    BudgetWarned,
    NoteBudgetUse,
    RemoveBudget,
    SetBudget,
    decide_on_budget,
    evolve_budget,
)
from events.decision import Context, Decision
from events.department import DEFAULT_DEPARTMENT, DEFAULT_DEPARTMENT_ID, fits
from events.event import Event
from events.ids import incarnation_id, project_key
from events.quotas import PoolQuota
from events.refusal import Refusal
from events.roles import not_held, with_role, without_role
from events.service_accounts import (
    Accounts,
    ServiceAccount,
    ServiceAccountCommand,
    ServiceAccountCreated,
    ServiceAccountDeleted,
    ServiceAccountEvent,
    ServiceAccountRotated,
    ServiceAccountUsed,
    decide_on_account,
    evolve_accounts,
)
from events.subscriptions import (
    CreateSubscription,
    DeleteSubscription,
    Subscription,
    SubscriptionCommand,
    SubscriptionCreated,
    SubscriptionDeleted,
    SubscriptionEvent,
    Subscriptions,
    decide_on_subscription,
    evolve_subscriptions,
)
from events.time_limits import SetTimeLimits, TimeLimit, TimeLimitsSet
from events.webhooks import (
    ChangeWebhook,
    CreateWebhook,
    DeleteWebhook,
    DisableWebhook,
    RotateWebhookKey,
    Webhook,
    WebhookChanged,
    WebhookCommand,
    WebhookCreated,
    WebhookDeleted,
    WebhookDisabled,
    WebhookEnabled,
    WebhookEvent,
    WebhookKeyRotated,
    Webhooks,
    decide_on_webhook,
    evolve_webhooks,
)
from events.windows import SetStartWindows, StartWindows, StartWindowsSet

ProjectRole = Literal["project-admin", "researcher", "viewer"]
PodSecurity = Literal["baseline", "restricted"]
"""Levels of Kubernetes' Pod Security Standards that a project may ask for. What is looser, the cluster's administrators
alone allow, namespace by namespace.
"""

# -- events ----------------------------------------------------------------------------------------------------------


class ProjectCreated(Event, frozen=True, kw_only=True):
    """An administrator created a project."""

    project_id: str
    """UUID."""
    name: str
    """Unique in the tenant."""
    at: datetime
    """When it was decided."""
    gpu_quota_milli: int | None = None
    """Limit on non-preemptible workloads, in thousandths of a GPU. None: no limit."""
    node_pools: tuple[str, ...] = ()
    """The order in which node pools are tried if a workload names none. Empty: all pools, by name."""
    pod_security: PodSecurity | None = None
    """The loosest Pod Security Standard of its pods on Kubernetes. None: the setting of the cluster."""
    privileged: bool = False
    """Whether its workloads may have what Pod Security `baseline` forbids, such as paths of nodes."""
    node_types: tuple[str, ...] = ()
    """Node types of which a new workload must name one. Empty: it may name any, or none."""
    gpu_limit_milli: int | None = None
    """Limit on all workloads, in thousandths of a GPU. None: no limit."""
    pool_quotas: tuple[PoolQuota, ...] = ()
    """Bounds in single node pools, beside those."""
    minimum_runtime_seconds: int | None = None
    """So long one of its workloads runs before its place may be taken for another one. None: as its department says."""
    cluster_lost_seconds: int | None = None
    """So long a cluster must have been lost before one of its workloads leaves it for another one. None: as its
    department says; 0: never."""
    over_quota_weight: float | None = None
    """Weight by which it shares what is left of node pools beyond the quotas. None: 1."""
    department_id: str = DEFAULT_DEPARTMENT_ID
    """UUID of the department that it stands in."""
    department_name: str = DEFAULT_DEPARTMENT
    """Name of that department. It never changes."""


class ProjectChanged(Event, frozen=True, kw_only=True):
    """The settings after a change."""

    gpu_quota_milli: int | None = None
    """As in ProjectCreated."""
    node_pools: tuple[str, ...] = ()
    """As in ProjectCreated."""
    pod_security: PodSecurity | None = None
    """As in ProjectCreated."""
    privileged: bool = False
    """As in ProjectCreated."""
    node_types: tuple[str, ...] = ()
    """As in ProjectCreated."""
    gpu_limit_milli: int | None = None
    """As in ProjectCreated."""
    pool_quotas: tuple[PoolQuota, ...] = ()
    """As in ProjectCreated."""
    minimum_runtime_seconds: int | None = None
    """As in ProjectCreated."""
    cluster_lost_seconds: int | None = None
    """As in ProjectCreated."""
    over_quota_weight: float | None = None
    """As in ProjectCreated."""


class ProjectMoved(Event, frozen=True, kw_only=True):
    """The project was moved into another department. Workloads that there are stay as they are."""

    department_id: str
    """UUID of the department that it stands in now."""
    department_name: str
    """Name of that department."""


class ProjectRoleGranted(Event, frozen=True, kw_only=True):
    """Somebody was given this role in the project."""

    actor: str
    """Id of the person or program."""
    role: ProjectRole
    """What they may do."""


class ProjectRoleRevoked(Event, frozen=True, kw_only=True):
    """This role in the project was revoked."""

    actor: str
    """Id of the person or program."""
    role: ProjectRole
    """The revoked role."""


class ProjectDeleted(Event, frozen=True, kw_only=True):
    """The project was deleted, with its roles, service accounts, subscriptions, webhooks and settings. Its history
    stays, and its name is free.
    """

    at: datetime
    """When it was decided."""


ProjectEvent = (
    ProjectCreated
    | ProjectChanged
    | ProjectMoved
    | ProjectRoleGranted
    | ProjectRoleRevoked
    | ProjectDeleted
    | ServiceAccountEvent
    | SubscriptionEvent
    | WebhookEvent
    | BudgetEvent
    | TimeLimitsSet
    | StartWindowsSet
)

# -- state -----------------------------------------------------------------------------------------------------------


class Project(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    project_id: str = ""
    name: str = ""
    created_at: datetime | None = None
    gpu_quota_milli: int | None = None
    node_pools: tuple[str, ...] = ()
    pod_security: PodSecurity | None = None
    privileged: bool = False
    node_types: tuple[str, ...] = ()
    gpu_limit_milli: int | None = None
    pool_quotas: tuple[PoolQuota, ...] = ()
    minimum_runtime_seconds: int | None = None
    cluster_lost_seconds: int | None = None
    over_quota_weight: float | None = None
    department_id: str = DEFAULT_DEPARTMENT_ID
    department_name: str = DEFAULT_DEPARTMENT
    roles: dict[str, tuple[ProjectRole, ...]] = msgspec.field(default_factory=dict[str, tuple[ProjectRole, ...]])
    """Roles by actor id; those of service accounts, too."""
    accounts: Accounts = msgspec.field(default_factory=dict[str, ServiceAccount])
    subscriptions: Subscriptions = msgspec.field(default_factory=dict[str, Subscription])
    webhooks: Webhooks = msgspec.field(default_factory=dict[str, Webhook])
    budget: Budget | None = None
    time_limits: tuple[TimeLimit, ...] = ()
    start_windows: StartWindows | None = None
    """When its workloads may start; None: at any time."""
    deleted_at: datetime | None = None

    @property
    def exists(self) -> bool:
        return bool(self.project_id) and self.deleted_at is None


def evolve(state: Project, event: ProjectEvent) -> Project:
    """The state after one event; the very same one where the event does not fit it: then it changes nothing."""
    known = event.project_id if isinstance(event, ProjectCreated) else state.exists
    return _evolve(state, event) if known else state


def _evolve(state: Project, event: ProjectEvent) -> Project:
    match event:
        case ProjectCreated():
            return _made(event)
        case ProjectChanged():
            return replace(
                state,
                gpu_quota_milli=event.gpu_quota_milli,
                node_pools=event.node_pools,
                pod_security=event.pod_security,
                privileged=event.privileged,
                node_types=event.node_types,
                gpu_limit_milli=event.gpu_limit_milli,
                pool_quotas=event.pool_quotas,
                minimum_runtime_seconds=event.minimum_runtime_seconds,
                cluster_lost_seconds=event.cluster_lost_seconds,
                over_quota_weight=event.over_quota_weight,
            )
        case ProjectMoved():
            return replace(state, department_id=event.department_id, department_name=event.department_name)
        case ProjectRoleGranted():
            return replace(state, roles=with_role(state.roles, event.actor, event.role))
        case ProjectRoleRevoked():
            roles = without_role(state.roles, event.actor, event.role)
            # An account is nothing without its role.
            kept = {name: account for name, account in state.accounts.items() if account.actor in roles}
            return replace(state, roles=roles, accounts=kept)
        case ProjectDeleted():
            return Project(
                project_id=state.project_id,
                name=state.name,
                created_at=state.created_at,
                department_id=state.department_id,
                department_name=state.department_name,
                deleted_at=event.at,
            )
        case ServiceAccountCreated() | ServiceAccountRotated() | ServiceAccountUsed() | ServiceAccountDeleted():
            return _with_accounts(state, event)
        case SubscriptionCreated() | SubscriptionDeleted():
            subscriptions = evolve_subscriptions(state.subscriptions, event)
            return state if subscriptions is state.subscriptions else replace(state, subscriptions=subscriptions)
        case (
            WebhookCreated()
            | WebhookChanged()
            | WebhookKeyRotated()
            | WebhookDisabled()
            | WebhookEnabled()
            | WebhookDeleted()
        ):
            webhooks = evolve_webhooks(state.webhooks, event)
            return state if webhooks is state.webhooks else replace(state, webhooks=webhooks)
        case BudgetSet() | BudgetRemoved() | BudgetWarned() | BudgetExhausted() | BudgetReopened():
            budget = evolve_budget(state.budget, event)
            return state if budget is state.budget else replace(state, budget=budget)
        case TimeLimitsSet():
            return replace(state, time_limits=event.limits)
        case StartWindowsSet():
            return replace(state, start_windows=event.windows)
        case _:
            assert_never(event)


def _made(event: ProjectCreated) -> Project:
    return Project(
        project_id=event.project_id,
        name=event.name,
        created_at=event.at,
        gpu_quota_milli=event.gpu_quota_milli,
        node_pools=event.node_pools,
        pod_security=event.pod_security,
        privileged=event.privileged,
        node_types=event.node_types,
        gpu_limit_milli=event.gpu_limit_milli,
        pool_quotas=event.pool_quotas,
        minimum_runtime_seconds=event.minimum_runtime_seconds,
        cluster_lost_seconds=event.cluster_lost_seconds,
        over_quota_weight=event.over_quota_weight,
        department_id=event.department_id,
        department_name=event.department_name,
    )


def _with_accounts(state: Project, event: ServiceAccountEvent) -> Project:
    accounts = evolve_accounts(state.accounts, event)
    if accounts is state.accounts:
        return state
    roles = state.roles
    if isinstance(event, ServiceAccountCreated):
        roles = with_role(roles, event.actor, event.role)
    elif isinstance(event, ServiceAccountDeleted):
        gone = state.accounts[event.name].actor
        roles = {actor: held for actor, held in roles.items() if actor != gone}
    return replace(state, accounts=accounts, roles=roles)


# -- commands and decide ---------------------------------------------------------------------------------------------


class _Command(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    pass


class CreateProject(_Command, frozen=True, kw_only=True):
    name: str
    gpu_quota_milli: int | None = None
    node_pools: tuple[str, ...] = ()
    pod_security: PodSecurity | None = None
    privileged: bool = False
    node_types: tuple[str, ...] = ()
    gpu_limit_milli: int | None = None
    pool_quotas: tuple[PoolQuota, ...] = ()
    minimum_runtime_seconds: int | None = None
    cluster_lost_seconds: int | None = None
    over_quota_weight: float | None = None
    department_id: str = DEFAULT_DEPARTMENT_ID
    department_name: str = DEFAULT_DEPARTMENT

    def __post_init__(self) -> None:
        """Raises ValueError where id and name of the department do not go together: the log keeps both."""
        _check_department(self.department_id, self.department_name)


class ChangeProject(_Command, frozen=True, kw_only=True):
    """Set the settings to exactly these."""

    project_id: str
    gpu_quota_milli: int | None = None
    node_pools: tuple[str, ...] = ()
    pod_security: PodSecurity | None = None
    privileged: bool = False
    node_types: tuple[str, ...] = ()
    gpu_limit_milli: int | None = None
    pool_quotas: tuple[PoolQuota, ...] = ()
    minimum_runtime_seconds: int | None = None
    cluster_lost_seconds: int | None = None
    over_quota_weight: float | None = None
    department_id: str | None = None
    """Of the department to move into; None: it stays where it is."""
    department_name: str = ""

    def __post_init__(self) -> None:
        """As CreateProject."""
        if self.department_id is not None:
            _check_department(self.department_id, self.department_name)


class MoveLostProject(_Command, frozen=True, kw_only=True):
    """Move a project whose department was deleted into the department `default`: it was created, or moved there, in the
    moment of that deletion.
    """

    project_id: str
    department_id: str
    """Of the department that was deleted, and that the project stands in."""


class GrantProjectRole(_Command, frozen=True, kw_only=True):
    project_id: str
    subject: str
    """Of their tokens, as whoever asks names them."""
    role: ProjectRole
    """What they may do."""
    actor: str = STRANGER
    """The id of that subject: the gate fills it in."""


class RevokeProjectRole(_Command, frozen=True, kw_only=True):
    project_id: str
    subject: str
    """Of their tokens, as whoever asks names them."""
    role: ProjectRole
    """What they shall no longer do."""
    actor: str = STRANGER
    """The id of that subject: the gate fills it in."""


class DeleteProject(_Command, frozen=True, kw_only=True):
    """Whether workloads still live in it, the log of this aggregate does not say: `commands` looks before."""

    project_id: str


ProjectCommand = (
    CreateProject
    | ChangeProject
    | MoveLostProject
    | GrantProjectRole
    | RevokeProjectRole
    | DeleteProject
    | ServiceAccountCommand
    | SubscriptionCommand
    | WebhookCommand
    | BudgetCommand
    | SetTimeLimits
    | SetStartWindows
)


def decide(command: ProjectCommand, state: Project, context: Context) -> Decision[ProjectEvent]:
    if isinstance(command, CreateProject):
        return _create(command, state, context)
    if not state.exists or command.project_id != state.project_id:
        return Refusal(code="not_found", message=f"there is no project {command.project_id}")
    match command:
        case ChangeProject():
            return _change(command, state)
        case MoveLostProject():
            if state.department_id != command.department_id:
                return ()
            return (ProjectMoved(department_id=DEFAULT_DEPARTMENT_ID, department_name=DEFAULT_DEPARTMENT),)
        case GrantProjectRole():
            if is_account(command.actor):
                return role_is_fixed(command.subject)
            held = command.role in state.roles.get(command.actor, ())
            return () if held else (ProjectRoleGranted(actor=command.actor, role=command.role),)
        case RevokeProjectRole():
            held = state.roles.get(command.actor, ())
            if command.role not in held:
                return not_held(held, command.subject, command.role, f"in project {state.name!r}")
            return (ProjectRoleRevoked(actor=command.actor, role=command.role),)
        case DeleteProject():
            return (ProjectDeleted(at=context.now),)
        case CreateSubscription() | DeleteSubscription():
            return decide_on_subscription(command, state.subscriptions, state.name, context)
        case CreateWebhook() | ChangeWebhook() | RotateWebhookKey() | DisableWebhook() | DeleteWebhook():
            return decide_on_webhook(command, state.webhooks, state.name, context)
        case SetBudget() | RemoveBudget() | NoteBudgetUse():
            return decide_on_budget(command, state.budget, state.name, context)
        case SetTimeLimits():
            return () if command.limits == state.time_limits else (TimeLimitsSet(limits=command.limits),)
        case SetStartWindows():
            same = command.windows == state.start_windows
            return () if same else (StartWindowsSet(at=context.now, windows=command.windows),)
        case _:
            return decide_on_account(command, state.accounts, state.name, context)


def role_is_fixed(subject: str) -> Refusal:
    return Refusal(
        code="not_for_accounts",
        field="subjectId",
        message=f"{subject!r} is a service account, and its role is fixed; create another account with that role",
    )


def name_taken(name: str, instead: str) -> Refusal:
    """Args: instead, a name to propose."""
    return Refusal(
        code="name_taken",
        field="name",
        message=f"a project named {name!r} already exists; choose another name, such as {instead!r}",
    )


def _check_department(department_id: str, name: str) -> None:
    if not fits(department_id, name):
        raise ValueError(f"department {department_id!r} cannot have the name {name!r}")


def _change(command: ChangeProject, state: Project) -> tuple[ProjectEvent, ...]:
    changed = ProjectChanged(
        gpu_quota_milli=command.gpu_quota_milli,
        node_pools=command.node_pools,
        pod_security=command.pod_security,
        privileged=command.privileged,
        node_types=command.node_types,
        gpu_limit_milli=command.gpu_limit_milli,
        pool_quotas=command.pool_quotas,
        minimum_runtime_seconds=command.minimum_runtime_seconds,
        cluster_lost_seconds=command.cluster_lost_seconds,
        over_quota_weight=command.over_quota_weight,
    )
    events: list[ProjectEvent] = [] if evolve(state, changed) == state else [changed]
    if command.department_id is not None and command.department_id != state.department_id:
        events.append(ProjectMoved(department_id=command.department_id, department_name=command.department_name))
    return tuple(events)


def _create(command: CreateProject, state: Project, context: Context) -> Decision[ProjectEvent]:
    if state.exists:
        return name_taken(command.name, f"{command.name}-2")
    return (
        ProjectCreated(
            project_id=incarnation_id(project_key(command.name), context.command_id),
            name=command.name,
            at=context.now,
            gpu_quota_milli=command.gpu_quota_milli,
            node_pools=command.node_pools,
            pod_security=command.pod_security,
            privileged=command.privileged,
            node_types=command.node_types,
            gpu_limit_milli=command.gpu_limit_milli,
            pool_quotas=command.pool_quotas,
            minimum_runtime_seconds=command.minimum_runtime_seconds,
            cluster_lost_seconds=command.cluster_lost_seconds,
            over_quota_weight=command.over_quota_weight,
            department_id=command.department_id,
            department_name=command.department_name,
        ),
    )
