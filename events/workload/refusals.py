"""Why what is asked of a workload is not done, where several commands say it."""

from events.decision import Context
from events.phases import CLOSING, DesiredPhase
from events.refusal import Refusal
from events.workload.state import Workload
from events.workload.volumes import FetchedFolder


def name_taken(name: str) -> Refusal:
    return Refusal(
        code="name_taken",
        field="name",
        message=f"the project already has a workload named {name!r}; choose another name, delete that one, "
        "or ask for a name that begins with it (useGivenNameAsPrefix; on the command line --name-prefix)",
    )


def others_refused() -> Refusal:
    return Refusal(
        code="others_refused",
        message="another item was refused, and the batch is all or nothing; mend that one and send the batch again",
    )


def not_owner(state: Workload, context: Context) -> Refusal | None:
    if not context.protected or context.override or context.actor.kind == "service":
        return None
    if context.actor.id == state.owner:
        return None
    return Refusal(
        code="not_owner",
        message=f"ownership protection is on for this cluster: only the owner of {state.name!r} or an "
        "administrator can do this",
    )


def uses_credentials(state: Workload) -> bool:
    """Whether values of its owner's credentials come into its pods, as variables or to fetch a volume with."""
    return any(
        any(one.user_credential is not None for one in each.template.environment)
        or any(
            isinstance(one, FetchedFolder) and one.login is not None and one.login.credential
            for one in each.template.volumes
        )
        for each in state.pod_sets
    )


def ended_refusal(state: Workload, verb: str) -> Refusal | None:
    if state.desired is DesiredPhase.DELETED:
        return deleted_refusal(state, verb)
    if state.phase in CLOSING:
        return Refusal(
            code="workload_finished",
            message=f"{state.name!r} is {state.phase} and cannot be {verb}; submit it again as a new workload",
        )
    return None


def deleted_refusal(state: Workload, verb: str) -> Refusal:
    word = "deleted" if state.deleted_at else "being deleted"
    return Refusal(code="workload_deleted", message=f"{state.name!r} is {word} and cannot be {verb}")
