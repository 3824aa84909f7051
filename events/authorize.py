"""Who may do what: roles, their permissions, and the rule. Pure; used by the gate for every command and by the api for
every read (log.md section 6.2). What is not granted is refused.
"""

from enum import StrEnum
from typing import Final

import msgspec

from events.refusal import Refusal


class Permission(StrEnum):
    READ = "read"
    """See workloads, nodes, history and logs within the scope."""
    SUBMIT = "submit"
    """Create workloads."""
    OPERATE = "operate"
    """Suspend, resume, change and delete workloads; whose, ownership protection decides."""
    EXEC = "exec"
    """Run commands in pods, attach to them and reach their ports; into whose, ownership protection decides."""
    OVERRIDE_OWNERSHIP = "override_ownership"
    GRANT_PROJECT_ROLES = "grant_project_roles"
    MANAGE_SUBSCRIPTIONS = "manage_subscriptions"
    """See, create and delete the subscriptions of a project."""
    MANAGE_WEBHOOKS = "manage_webhooks"
    """See, create, change and delete the webhooks of a project, and their deliveries."""
    MANAGE_ASSETS = "manage_assets"
    """Create, change and delete environments, compute resources and templates."""
    MANAGE_POLICIES = "manage_policies"
    """Set and delete policies."""
    MANAGE_PROJECTS = "manage_projects"
    MANAGE_BUDGETS = "manage_budgets"
    """Set budgets of projects, and prices of GPUs."""
    MANAGE_CLUSTERS = "manage_clusters"
    GRANT_TENANT_ROLES = "grant_tenant_roles"
    READ_AUDIT = "read_audit"
    VOID_MESSAGES = "void_messages"
    """Declare a message of the log void that nobody can read."""


ROLE_PERMISSIONS: Final[dict[str, frozenset[Permission]]] = {
    "administrator": frozenset(Permission),
    "project-admin": frozenset(
        {
            Permission.READ,
            Permission.SUBMIT,
            Permission.OPERATE,
            Permission.EXEC,
            Permission.GRANT_PROJECT_ROLES,
            Permission.MANAGE_SUBSCRIPTIONS,
            Permission.MANAGE_WEBHOOKS,
            Permission.MANAGE_ASSETS,
            Permission.MANAGE_POLICIES,
        }
    ),
    "researcher": frozenset({Permission.READ, Permission.SUBMIT, Permission.OPERATE, Permission.EXEC}),
    "viewer": frozenset({Permission.READ}),
}
"""Bound to an actor for the tenant (everywhere) or for one project."""

_ACTS: Final[dict[Permission, str]] = {
    Permission.READ: "look at this",
    Permission.SUBMIT: "submit workloads",
    Permission.OPERATE: "suspend, resume, change or delete workloads",
    Permission.EXEC: "open a way into pods",
    Permission.OVERRIDE_OWNERSHIP: "change workloads of other users",
    Permission.GRANT_PROJECT_ROLES: "grant or revoke roles of this project",
    Permission.MANAGE_SUBSCRIPTIONS: "see, create or delete subscriptions of this project",
    Permission.MANAGE_WEBHOOKS: "see, create, change or delete webhooks of this project",
    Permission.MANAGE_ASSETS: "create, change or delete environments, compute resources, data sources and templates",
    Permission.MANAGE_POLICIES: "set or delete policies",
    Permission.MANAGE_PROJECTS: "create, change or delete departments and projects",
    Permission.MANAGE_BUDGETS: "set budgets of projects, or prices",
    Permission.MANAGE_CLUSTERS: "add, change or remove clusters and node pools",
    Permission.GRANT_TENANT_ROLES: "grant or revoke roles that hold everywhere",
    Permission.READ_AUDIT: "read the log and the audit",
    Permission.VOID_MESSAGES: "declare messages of the log void",
}
"""What a permission lets somebody do, in their words."""


ACCOUNT_PERMISSIONS: Final = frozenset({Permission.READ, Permission.SUBMIT, Permission.OPERATE})
"""All that a service account ever does, whatever roles somebody manages to give it."""


class Grants(msgspec.Struct, frozen=True, kw_only=True):
    """The roles of one actor, from the folds of the tenant and of the projects."""

    tenant_roles: tuple[str, ...] = ()
    project_roles: dict[str, tuple[str, ...]] = {}
    """By project id."""

    def roles_in(self, project_id: str | None) -> tuple[str, ...]:
        ours = self.project_roles.get(project_id, ()) if project_id is not None else ()
        return (*self.tenant_roles, *ours)

    def allows(self, permission: Permission, project_id: str | None) -> bool:
        return any(permission in ROLE_PERMISSIONS[role] for role in self.roles_in(project_id))

    @property
    def readable_projects(self) -> frozenset[str] | None:
        """Ids of the projects whose workloads the actor may see; None: of all."""
        if self.allows(Permission.READ, None):
            return None
        return frozenset(project for project in self.project_roles if self.allows(Permission.READ, project))


def authorize(grants: Grants, permission: Permission, project_id: str | None) -> Refusal | None:
    """None where the actor may; else `not_in_project` (no role there at all) or `not_permitted`.

    Args:
        project_id: the project that the thing belongs to; None for what belongs to the tenant.
    """
    if grants.allows(permission, project_id):
        return None
    if project_id is not None and not grants.roles_in(project_id):
        return Refusal(code="not_in_project", message="you have no role in this project; ask one of its administrators")
    *others, last = sorted(role for role, may in ROLE_PERMISSIONS.items() if permission in may)
    roles = f"{', '.join(others)} or {last}" if others else last
    return Refusal(
        code="not_permitted",
        message=f"you have no role here that lets you {_ACTS[permission]}; ask an administrator for one that does: "
        f"{roles}",
    )


def heir_refusal(subject: str, grants: Grants, project_id: str | None) -> Refusal | None:
    """Why somebody cannot become the owner of a workload of this project; None where they can.

    Args:
        grants: theirs.
    """
    if grants.allows(Permission.SUBMIT, project_id):
        return None
    return Refusal(
        code="heir_not_permitted",
        field="owner",
        message=f"{subject!r} has no role in this project that lets them submit workloads, so they cannot own one; ask "
        "an administrator of the project to give them one, such as researcher, and try again",
    )
