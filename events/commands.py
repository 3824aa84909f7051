"""What a person can ask for: one line per command.

From the table follow where a command is decided, what permission it takes and within what, which commands make
something new, what a nearly full log still takes, and which service may give a command past the gate. What a command
does is said by its aggregate's `decide`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from events.asset import (
    AssetCommand,
    ChangeAsset,
    ChangeCredential,
    CreateAsset,
    CreateCredential,
    DeleteAsset,
    DeleteCredential,
    OfferDataVolume,
    asset_key,
)
from events.authorize import Permission
from events.budgets import NoteBudgetUse, RemoveBudget, SetBudget
from events.capacity import CancelCapacityReservation, ReserveCapacity
from events.cluster import (
    AddCluster,
    RemoveCluster,
    RemoveNodePool,
    SetNodePool,
    SetOwnershipProtection,
    UserClusterCommand,
)
from events.department import (
    ChangeDepartment,
    CreateDepartment,
    DeleteDepartment,
    DepartmentCommand,
    department_key,
)
from events.hours import NoteHours, hours_key
from events.ids import TENANT_KEY, cluster_key, key_of_id, node_key, project_key, workload_key
from events.maintenance import CancelMaintenance, PlanMaintenance
from events.node import CordonNode, DrainNode, UncordonNode, UserNodeCommand
from events.policy import DeletePolicy, PolicyCommand, SetPolicy
from events.prices import PRICES_KEY, PriceCommand, RemovePrice, SetPrice
from events.project import (
    ChangeProject,
    CreateProject,
    DeleteProject,
    GrantProjectRole,
    MoveLostProject,
    ProjectCommand,
    RevokeProjectRole,
)
from events.service_accounts import (
    CreateServiceAccount,
    DeleteServiceAccount,
    NoteServiceAccountUse,
    RotateServiceAccount,
)
from events.simulated import (
    AddSimulatedNodes,
    ChangeSimulatedNode,
    DisconnectSimulatedCluster,
    ReconnectSimulatedCluster,
    RemoveSimulatedNodes,
    node_names,
    shown_names,
)
from events.subscriptions import CreateSubscription, DeleteSubscription
from events.tenant import GrantTenantRole, RevokeTenantRole, TenantCommand
from events.time_limits import SetTimeLimits
from events.void import VoidCommand, VoidMessage
from events.webhooks import ChangeWebhook, CreateWebhook, DeleteWebhook, DisableWebhook, RotateWebhookKey
from events.windows import SetStartWindows
from events.workload.commands import (
    ChangeWorkload,
    CloseSession,
    CreateWorkload,
    DeleteWorkload,
    EndAtLimit,
    OpenSession,
    ResumeWorkload,
    ScaleInference,
    SuspendWorkload,
    TransferWorkload,
    UndoAct,
    UserWorkloadCommand,
)

UserCommand = (
    UserWorkloadCommand
    | UserClusterCommand
    | UserNodeCommand
    | ProjectCommand
    | DepartmentCommand
    | TenantCommand
    | PriceCommand
    | NoteHours
    | VoidCommand
    | AssetCommand
    | PolicyCommand
)
"""Everything a person can ask for."""


class Scope(StrEnum):
    """Within what the permission must be held."""

    TENANT = "tenant"
    PROJECT = "project"
    """Of the project that the command names as `project_id`; everywhere, where it names none."""
    WORKLOAD = "workload"
    """Of the project of the workload that the command names as `workload_id`; ownership protection holds, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandType:
    """What holds for every command of one type."""

    type: type[Any]
    aggregate: str
    """That decides it."""
    key: Callable[[Any], str | None]
    """Of the aggregate, from the command; None where it names an id that is none of ours."""
    permission: Permission
    scope: Scope = Scope.TENANT
    target: Callable[[Any], str]
    """What the command is about, as the audit shows it."""
    creates: bool = False
    """It makes something new: its answer has an id, and it is refused while the log is nearly full."""
    gives_role: bool = False
    """It gives the role `role` to somebody: `target` says to whom."""
    in_full_log: bool = False
    """A nearly full log takes it from anybody: it makes room, takes a right away, or repairs the log."""
    service: str | None = None
    """The service that may give it past the gate; None: no service may."""


def _on_workload(type_: type[Any], *, permission: Permission = Permission.OPERATE, **more: Any) -> CommandType:
    return CommandType(
        type=type_,
        aggregate="workload",
        key=lambda command: key_of_id(command.workload_id),
        permission=permission,
        scope=Scope.WORKLOAD,
        target=lambda command: command.workload_id,
        **more,
    )


def _cluster_id(command: Any) -> str:
    return command.cluster_id


def _on_cluster(type_: type[Any], *, target: Callable[[Any], str] = _cluster_id) -> CommandType:
    return CommandType(
        type=type_,
        aggregate="cluster",
        key=lambda command: key_of_id(command.cluster_id),
        permission=Permission.MANAGE_CLUSTERS,
        target=target,
    )


def _on_node(type_: type[Any]) -> CommandType:
    return CommandType(
        type=type_,
        aggregate="node",
        key=lambda command: node_key(command.cluster_id, command.name),
        permission=Permission.MANAGE_CLUSTERS,
        target=lambda command: f"{command.name}: {command.cluster_id}",
    )


def _on_department(type_: type[Any], **more: Any) -> CommandType:
    return CommandType(
        type=type_,
        aggregate="department",
        key=lambda command: key_of_id(command.department_id),
        permission=Permission.MANAGE_PROJECTS,
        target=lambda command: command.department_id,
        **more,
    )


def _on_project_roles(type_: type[Any], **more: Any) -> CommandType:
    return CommandType(
        type=type_,
        aggregate="project",
        key=lambda command: key_of_id(command.project_id),
        permission=Permission.GRANT_PROJECT_ROLES,
        scope=Scope.PROJECT,
        target=lambda command: f"{command.subject}: {command.role}",
        **more,
    )


def _on_tenant_roles(type_: type[Any], **more: Any) -> CommandType:
    return CommandType(
        type=type_,
        aggregate="tenant",
        key=lambda _: TENANT_KEY,
        permission=Permission.GRANT_TENANT_ROLES,
        target=lambda command: f"{command.subject}: {command.role}",
        **more,
    )


def _on_webhook(type_: type[Any], **more: Any) -> CommandType:
    return CommandType(
        type=type_,
        aggregate="project",
        key=lambda command: key_of_id(command.project_id),
        permission=Permission.MANAGE_WEBHOOKS,
        scope=Scope.PROJECT,
        target=lambda command: command.name if isinstance(command, CreateWebhook) else command.webhook_id,
        **more,
    )


def _on_budget(type_: type[Any], **more: Any) -> CommandType:
    return CommandType(
        type=type_,
        aggregate="project",
        key=lambda command: key_of_id(command.project_id),
        permission=Permission.MANAGE_BUDGETS,
        target=lambda command: command.project_id,
        **more,
    )


def _on_asset(type_: type[Any], *, permission: Permission = Permission.MANAGE_ASSETS, **more: Any) -> CommandType:
    return CommandType(
        type=type_,
        aggregate="asset",
        key=lambda command: key_of_id(command.asset_id),
        permission=permission,
        # The decider sees to it that the project is the asset's own.
        scope=Scope.PROJECT,
        target=lambda command: command.asset_id,
        **more,
    )


def _on_policy(type_: type[Any], **more: Any) -> CommandType:
    return CommandType(
        type=type_,
        aggregate="policy",
        key=lambda command: command.key,
        permission=Permission.MANAGE_POLICIES,
        scope=Scope.PROJECT,
        target=lambda command: f"{command.workload_type} {command.place or 'everywhere'}",
        **more,
    )


def _on_prices(type_: type[Any]) -> CommandType:
    return CommandType(
        type=type_,
        aggregate="prices",
        key=lambda _: PRICES_KEY,
        permission=Permission.MANAGE_BUDGETS,
        target=lambda command: command.gpu_model,
    )


def _on_account(
    type_: type[Any], *, permission: Permission = Permission.GRANT_PROJECT_ROLES, **more: Any
) -> CommandType:
    return CommandType(
        type=type_,
        aggregate="project",
        key=lambda command: key_of_id(command.project_id),
        scope=Scope.PROJECT,
        target=lambda command: command.name,
        permission=permission,
        **more,
    )


COMMANDS: Final[dict[type[UserCommand], CommandType]] = {
    command.type: command
    for command in (
        CommandType(
            type=CreateWorkload,
            aggregate="workload",
            key=lambda command: workload_key(command.project_id, command.name),
            permission=Permission.SUBMIT,
            scope=Scope.PROJECT,
            target=lambda command: command.name,
            creates=True,
        ),
        _on_workload(SuspendWorkload),
        _on_workload(ResumeWorkload),
        _on_workload(DeleteWorkload, in_full_log=True, service="auto_deletion"),
        _on_workload(ChangeWorkload),
        _on_workload(TransferWorkload),
        _on_workload(UndoAct),
        _on_workload(ScaleInference, service="autoscaler"),
        _on_workload(EndAtLimit, in_full_log=True, service="auto_deletion"),
        _on_workload(OpenSession, permission=Permission.EXEC),
        _on_workload(CloseSession, permission=Permission.EXEC, in_full_log=True, service="api"),
        CommandType(
            type=AddCluster,
            aggregate="cluster",
            key=lambda command: cluster_key(command.name),
            permission=Permission.MANAGE_CLUSTERS,
            target=lambda command: command.name,
            creates=True,
        ),
        _on_cluster(RemoveCluster),
        _on_cluster(SetOwnershipProtection),
        _on_cluster(SetNodePool, target=lambda command: f"{command.pool.name}: {command.cluster_id}"),
        _on_cluster(RemoveNodePool, target=lambda command: f"{command.name}: {command.cluster_id}"),
        _on_cluster(
            AddSimulatedNodes, target=lambda command: f"{shown_names(node_names(command.nodes))}: {command.cluster_id}"
        ),
        _on_cluster(ChangeSimulatedNode, target=lambda command: f"{command.name}: {command.cluster_id}"),
        _on_cluster(RemoveSimulatedNodes, target=lambda command: f"{shown_names(command.names)}: {command.cluster_id}"),
        _on_cluster(DisconnectSimulatedCluster),
        _on_cluster(ReconnectSimulatedCluster),
        _on_cluster(PlanMaintenance, target=lambda command: f"{command.name}: {command.cluster_id}"),
        _on_cluster(CancelMaintenance, target=lambda command: f"{command.name}: {command.cluster_id}"),
        _on_cluster(ReserveCapacity, target=lambda command: f"{command.name}: {command.cluster_id}"),
        _on_cluster(CancelCapacityReservation, target=lambda command: f"{command.name}: {command.cluster_id}"),
        _on_node(CordonNode),
        _on_node(UncordonNode),
        _on_node(DrainNode),
        CommandType(
            type=CreateProject,
            aggregate="project",
            key=lambda command: project_key(command.name),
            permission=Permission.MANAGE_PROJECTS,
            target=lambda command: command.name,
            creates=True,
        ),
        CommandType(
            type=ChangeProject,
            aggregate="project",
            key=lambda command: key_of_id(command.project_id),
            permission=Permission.MANAGE_PROJECTS,
            target=lambda command: command.project_id,
        ),
        CommandType(
            type=DeleteProject,
            aggregate="project",
            key=lambda command: key_of_id(command.project_id),
            permission=Permission.MANAGE_PROJECTS,
            target=lambda command: command.project_id,
        ),
        CommandType(
            type=MoveLostProject,
            aggregate="project",
            key=lambda command: key_of_id(command.project_id),
            permission=Permission.MANAGE_PROJECTS,
            target=lambda command: command.project_id,
            service="auto_deletion",
        ),
        CommandType(
            type=CreateDepartment,
            aggregate="department",
            key=lambda command: department_key(command.name),
            permission=Permission.MANAGE_PROJECTS,
            target=lambda command: command.name,
            creates=True,
        ),
        _on_department(ChangeDepartment),
        _on_department(DeleteDepartment, in_full_log=True),
        _on_account(CreateServiceAccount, gives_role=True),
        _on_account(RotateServiceAccount),
        _on_account(DeleteServiceAccount, in_full_log=True),
        _on_account(NoteServiceAccountUse, permission=Permission.READ),
        CommandType(
            type=CreateSubscription,
            aggregate="project",
            key=lambda command: key_of_id(command.project_id),
            permission=Permission.MANAGE_SUBSCRIPTIONS,
            scope=Scope.PROJECT,
            target=lambda command: command.name,
        ),
        CommandType(
            type=DeleteSubscription,
            aggregate="project",
            key=lambda command: key_of_id(command.project_id),
            permission=Permission.MANAGE_SUBSCRIPTIONS,
            scope=Scope.PROJECT,
            target=lambda command: command.subscription_id,
            in_full_log=True,
        ),
        _on_webhook(CreateWebhook),
        _on_webhook(ChangeWebhook),
        _on_webhook(RotateWebhookKey),
        _on_webhook(DisableWebhook, service="webhooks"),
        _on_webhook(DeleteWebhook, in_full_log=True),
        CommandType(
            type=SetTimeLimits,
            aggregate="project",
            key=lambda command: key_of_id(command.project_id),
            permission=Permission.MANAGE_PROJECTS,
            target=lambda command: command.project_id,
        ),
        CommandType(
            type=SetStartWindows,
            aggregate="project",
            key=lambda command: key_of_id(command.project_id),
            permission=Permission.MANAGE_PROJECTS,
            target=lambda command: command.project_id,
        ),
        _on_budget(SetBudget),
        _on_budget(RemoveBudget),
        _on_budget(NoteBudgetUse, in_full_log=True, service="auto_deletion"),
        _on_prices(SetPrice),
        _on_prices(RemovePrice),
        CommandType(
            type=NoteHours,
            aggregate="hours",
            key=lambda command: hours_key(command.project_id, command.hour),
            permission=Permission.MANAGE_BUDGETS,
            target=lambda command: command.project_id,
            service="auto_deletion",
        ),
        CommandType(
            type=CreateAsset,
            aggregate="asset",
            key=lambda command: asset_key(command.kind, command.scope, command.place, command.name),
            permission=Permission.MANAGE_ASSETS,
            scope=Scope.PROJECT,
            target=lambda command: f"{command.kind} {command.name}",
            creates=True,
        ),
        CommandType(
            type=OfferDataVolume,
            aggregate="asset",
            key=lambda command: command.key,
            permission=Permission.MANAGE_ASSETS,
            # That of the claim, whoever is to use it.
            scope=Scope.PROJECT,
            target=lambda command: f"data-volume {command.name}",
            creates=True,
        ),
        _on_asset(ChangeAsset),
        _on_asset(DeleteAsset, in_full_log=True),
        CommandType(
            type=CreateCredential,
            aggregate="asset",
            key=lambda command: asset_key("credentials", "project", command.project_id, command.name),
            permission=Permission.SUBMIT,
            scope=Scope.PROJECT,
            target=lambda command: f"credentials {command.name}",
            creates=True,
        ),
        _on_asset(ChangeCredential, permission=Permission.SUBMIT),
        _on_asset(DeleteCredential, permission=Permission.SUBMIT, in_full_log=True),
        _on_policy(SetPolicy),
        _on_policy(DeletePolicy, in_full_log=True),
        _on_project_roles(GrantProjectRole, gives_role=True),
        _on_project_roles(RevokeProjectRole, in_full_log=True),
        _on_tenant_roles(GrantTenantRole, gives_role=True),
        _on_tenant_roles(RevokeTenantRole, in_full_log=True),
        CommandType(
            type=VoidMessage,
            aggregate="void",
            key=lambda command: str(command.seq),
            permission=Permission.VOID_MESSAGES,
            target=lambda command: str(command.seq),
            in_full_log=True,
        ),
    )
}
"""The registry: one line per command. A command that is not here is refused."""


def target(command: UserCommand) -> tuple[str, str] | None:
    """(aggregate, key) that a command is about; None where its id is none of ours."""
    line = COMMANDS[type(command)]
    key = line.key(command)
    return None if key is None else (line.aggregate, key)


def creates(command: UserCommand) -> bool:
    return COMMANDS[type(command)].creates


def named_workload(command: UserCommand) -> str | None:
    """Id of the workload that a command names; None where it names none."""
    return getattr(command, "workload_id", None) if COMMANDS[type(command)].scope is Scope.WORKLOAD else None
