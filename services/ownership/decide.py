"""May this actor give this command? The whole rule, as one pure function from facts to an admission or a refusal.

Roles and scope first, then ownership protection: where the workload's cluster has it switched on, only the creator, or
somebody whose role overrides ownership, may delete, suspend, resume or change it (S084, C14).
"""

from typing import Final

import msgspec

from events.authorize import Grants, Permission, authorize
from events.cluster import AddCluster, RemoveCluster, RemoveNodePool, SetNodePool, SetOwnershipProtection
from events.commit import About
from events.envelope import UserCommand, WorkloadIdCommand
from events.project import ChangeProject, CreateProject, GrantProjectRole, RevokeProjectRole
from events.refusal import Refusal
from events.tenant import GrantTenantRole, RevokeTenantRole
from events.void import VoidMessage
from events.workload.commands import ChangeWorkload, CreateTraining, DeleteWorkload, ResumeWorkload, SuspendWorkload

NEEDED: Final[dict[type[UserCommand], Permission]] = {
    CreateTraining: Permission.SUBMIT,
    SuspendWorkload: Permission.OPERATE,
    ResumeWorkload: Permission.OPERATE,
    DeleteWorkload: Permission.OPERATE,
    ChangeWorkload: Permission.OPERATE,
    AddCluster: Permission.MANAGE_CLUSTERS,
    RemoveCluster: Permission.MANAGE_CLUSTERS,
    SetOwnershipProtection: Permission.MANAGE_CLUSTERS,
    SetNodePool: Permission.MANAGE_CLUSTERS,
    RemoveNodePool: Permission.MANAGE_CLUSTERS,
    CreateProject: Permission.MANAGE_PROJECTS,
    ChangeProject: Permission.MANAGE_PROJECTS,
    GrantProjectRole: Permission.GRANT_PROJECT_ROLES,
    RevokeProjectRole: Permission.GRANT_PROJECT_ROLES,
    GrantTenantRole: Permission.GRANT_TENANT_ROLES,
    RevokeTenantRole: Permission.GRANT_TENANT_ROLES,
    VoidMessage: Permission.VOID_MESSAGES,
}
"""What each command takes. One that is not here is refused: the table test walks the union of all commands."""

_IN_PROJECT: Final = (CreateTraining, GrantProjectRole, RevokeProjectRole)
"""Commands that name the project they belong to; the rest belongs to the tenant."""
_GIVES_ROLE: Final = (GrantProjectRole, GrantTenantRole)


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What the decision stands on."""

    grants: Grants
    about: About | None = None
    """Of the named workload's last commit; None where there is none, or the command names no workload."""
    protection: bool | None = None
    """Of the workload's cluster; None where nobody knows the cluster, and then it counts as on."""
    shared_pods: bool = False
    """There is a local cluster whose pods can read Muster's keys, and nobody has accepted that."""


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """The command may go on, with this stamped on it."""

    protected: bool = False
    """Ownership protection was on for the workload's cluster."""
    override: bool = False
    """The actor is an administrator here: may act on workloads of others all the same, and while the log is nearly
    full."""
    special_right: Permission | None = None
    """What the audit must tell: a right beyond everyday work that this took."""
    others_unprotected: bool = False
    """The workload is somebody else's, and only protection being off lets the actor at it."""


def decide(command: UserCommand, subject: str, facts: Facts) -> Admission | Refusal:
    """Whether `subject` may give the command. Default is no."""
    needed = NEEDED.get(type(command))
    if needed is None:
        return Refusal(code="not_permitted", message=f"nobody may give {type(command).__name__}")
    if isinstance(command, WorkloadIdCommand):
        return _of_workload(command, subject, needed, facts)
    project_id = command.project_id if isinstance(command, _IN_PROJECT) else None
    if refusal := authorize(facts.grants, needed, project_id):
        return refusal
    if facts.shared_pods and isinstance(command, _GIVES_ROLE) and command.subject != subject:
        return Refusal(
            code="pods_not_isolated",
            message=f"{command.subject!r} could become an administrator: this machine's kernel refuses namespaces, so "
            "pods of the local cluster can read Muster's keys; remove that cluster, or accept it with "
            "`muster up --accept-shared-pods`",
        )
    return Admission(
        special_right=None if needed is Permission.SUBMIT else needed,
        override=facts.grants.allows(Permission.OVERRIDE_OWNERSHIP, project_id),
    )


def _of_workload(command: WorkloadIdCommand, subject: str, needed: Permission, facts: Facts) -> Admission | Refusal:
    about = facts.about
    not_found = Refusal(code="not_found", message=f"there is no workload {command.workload_id}")
    if about is None or about.id != command.workload_id:
        # Never there: its name, if it has one, belongs to another workload, perhaps of somebody else.
        return not_found
    if not facts.grants.roles_in(about.project_id):
        # Another project's workloads are not to be told from none.
        return not_found
    if refusal := authorize(facts.grants, needed, about.project_id):
        return refusal
    protected = facts.protection is not False
    override = facts.grants.allows(Permission.OVERRIDE_OWNERSHIP, about.project_id)
    if subject == about.owner:
        return Admission(protected=protected, override=override)
    if override:
        return Admission(
            protected=protected,
            override=True,
            special_right=Permission.OVERRIDE_OWNERSHIP if protected else None,
        )
    if protected:
        return Refusal(
            code="not_owner",
            message=f"ownership protection is on for this workload's cluster: only its creator {about.owner!r}, or "
            "somebody who may override ownership, can do this",
        )
    return Admission(others_unprotected=True)
