"""May this actor give this command? The whole rule, as one pure function from facts to an admission or a refusal.

Roles and scope first, then ownership protection: where the workload's cluster has it switched on, only the owner, or
somebody whose role overrides ownership, may delete, suspend, resume or change it (S084, C14).
"""

import msgspec

from events.actors import STRANGER, is_account
from events.authorize import ACCOUNT_PERMISSIONS, ROLE_PERMISSIONS, Grants, Permission, authorize, heir_refusal
from events.commands import COMMANDS, CommandType, Scope, UserCommand, named_workload
from events.commit import About
from events.refusal import Refusal
from events.service_accounts import CreateServiceAccount
from events.workload.commands import TransferWorkload


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What the decision stands on."""

    grants: Grants
    about: About | None = None
    """Of the named workload's last commit; None where there is none, or the command names no workload."""
    owner: str = ""
    """Subject of the workload's owner."""
    heir: Grants = Grants()
    """Of whom the command makes the workload's owner; none where it makes nobody."""
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


def decide(command: UserCommand, actor: str, facts: Facts) -> Admission | Refusal:
    """Whether the actor of this id may give the command. Default is no."""
    line = COMMANDS.get(type(command))
    if line is None:
        return Refusal(code="not_permitted", message=f"nobody may give {type(command).__name__}")
    if is_account(actor) and line.permission not in ACCOUNT_PERMISSIONS:
        message = "a service account cannot do this with any role; a person must do it"
        return Refusal(code="not_permitted", message=message)
    if workload_id := named_workload(command):
        if isinstance(command, TransferWorkload):
            return _of_transfer(command, actor, line.permission, facts)
        return _told(_of_workload(workload_id, actor, line.permission, facts), line.permission)
    project_id = getattr(command, "project_id", None) if line.scope is Scope.PROJECT else None
    if refusal := authorize(facts.grants, line.permission, project_id):
        return refusal
    if refusal := _beyond_own_rights(command, facts.grants, project_id):
        return refusal
    if facts.shared_pods and (refusal := _not_shared(line, command, actor)):
        return refusal
    return Admission(
        special_right=None if line.permission in ACCOUNT_PERMISSIONS else line.permission,
        override=facts.grants.allows(Permission.OVERRIDE_OWNERSHIP, project_id),
    )


def _told(verdict: Admission | Refusal, needed: Permission) -> Admission | Refusal:
    """The audit tells of each use of a right beyond everyday work, also on a workload of one's own."""
    if isinstance(verdict, Refusal) or verdict.special_right is not None or needed in ACCOUNT_PERMISSIONS:
        return verdict
    return msgspec.structs.replace(verdict, special_right=needed)


def _of_transfer(command: TransferWorkload, actor: str, needed: Permission, facts: Facts) -> Admission | Refusal:
    about = facts.about
    given = about is not None and command.actor == about.owner
    # What is so already may be asked for again by who had it before: nothing changes, so protection is of no matter.
    admission = _of_workload(
        command.workload_id, actor, needed, msgspec.structs.replace(facts, protection=False) if given else facts
    )
    if isinstance(admission, Refusal) or about is None or given:
        return admission
    if refusal := _not_to_give(command, actor, about, facts):
        return refusal
    # Also where protection is off, nobody but an administrator gives away what is somebody else's.
    special_right = None if actor == about.owner else Permission.OVERRIDE_OWNERSHIP
    return msgspec.structs.replace(admission, special_right=special_right)


def _not_to_give(command: TransferWorkload, actor: str, about: About, facts: Facts) -> Refusal | None:
    """Why the actor, who may act on the workload, may not give it away, or not to this person; None where they may."""
    if actor != about.owner and not facts.grants.allows(Permission.OVERRIDE_OWNERSHIP, about.project_id):
        return Refusal(
            code="not_owner",
            message=f"only the workload's owner {facts.owner!r} or an administrator can give it to another",
        )
    return heir_refusal(command.subject, facts.heir, about.project_id)


def _beyond_own_rights(command: UserCommand, grants: Grants, project_id: str | None) -> Refusal | None:
    """Nobody gives a program rights that they do not have themselves; today's roles never let them."""
    if not isinstance(command, CreateServiceAccount):
        return None
    # An account has no more of a role than accounts may have.
    given = ROLE_PERMISSIONS[command.role] & ACCOUNT_PERMISSIONS
    lacking = {right for right in given if not grants.allows(right, project_id)}
    if not lacking:
        return None
    return Refusal(
        code="not_permitted",
        message=f"an account with the role {command.role} would have rights that you do not have here: "
        f"{', '.join(sorted(lacking))}",
    )


def _not_shared(line: CommandType, command: UserCommand, actor: str) -> Refusal | None:
    """Why nobody else may be given a role while pods can read Muster's keys; None where this gives none."""
    if not line.gives_role or getattr(command, "actor", STRANGER) == actor:
        return None
    return Refusal(
        code="pods_not_isolated",
        message=f"{line.target(command)!r} could become an administrator: this machine's kernel refuses "
        "namespaces, so pods of the local cluster can read Muster's keys; remove that cluster, or accept this with "
        "`muster up --accept-shared-pods`",
    )


def _of_workload(workload_id: str, actor: str, needed: Permission, facts: Facts) -> Admission | Refusal:
    about = facts.about
    not_found = Refusal(code="not_found", message=f"there is no workload {workload_id}")
    if about is None or about.id != workload_id:
        # Never there: its name, if it has one, belongs to another workload, perhaps of somebody else.
        return not_found
    if not facts.grants.roles_in(about.project_id):
        # Another project's workloads are not to be told from none.
        return not_found
    if refusal := authorize(facts.grants, needed, about.project_id):
        return refusal
    protected = facts.protection is not False
    override = facts.grants.allows(Permission.OVERRIDE_OWNERSHIP, about.project_id)
    if actor == about.owner:
        return Admission(protected=protected, override=override)
    if override:
        return Admission(
            protected=protected,
            override=True,
            special_right=Permission.OVERRIDE_OWNERSHIP if protected else None,
        )
    if protected:
        why = "ownership protection is on for this workload's cluster"
        if facts.about is not None and facts.about.cluster_id is None:
            why = "the scheduler has not chosen this workload's cluster yet, and until then it counts as protected"
        return Refusal(
            code="not_owner", message=f"{why}: only its owner {facts.owner!r} or an administrator can do this"
        )
    return Admission(others_unprotected=True)
