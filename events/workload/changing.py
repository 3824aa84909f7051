"""What is decided of changes of a workload while it lives."""

from datetime import timedelta

from msgspec.structs import replace

from events.decision import Context
from events.phases import FINISHED, DesiredPhase
from events.refusal import Refusal
from events.workload.changes import WorkloadChanged, changeable
from events.workload.commands import ChangeWorkload
from events.workload.fields.storage import StorageSpec
from events.workload.life import WorkloadDecision
from events.workload.refusals import deleted_refusal, uses_credentials
from events.workload.state import Workload


def change(command: ChangeWorkload, state: Workload, context: Context) -> WorkloadDecision:
    if state.desired is DesiredPhase.DELETED:
        return deleted_refusal(state, "changed")
    seconds = command.auto_deletion_time_after_completion_seconds
    if seconds == state.spec.auto_deletion_time_after_completion_seconds:
        seconds = None
    spec = state.spec
    priority = command.priority_class if command.priority_class != spec.priority_class else None
    labels = command.labels if command.labels != spec.labels else None
    annotations = command.annotations if command.annotations != spec.annotations else None
    volumes = {
        name: asked
        for name in ("storage", "master_storage")
        if (asked := getattr(command, name)) is not None and asked != changeable(name, spec, state.distributed)
    }
    if all(one is None for one in (seconds, priority, labels, annotations)) and not volumes:
        return ()
    for name, after in volumes.items():
        if refusal := _fixed_volumes(name, after, state) or _others_volumes(state, context):
            return refusal
    if seconds is not None and state.inference is not None:
        return Refusal(
            code="never_ends",
            field="autoDeletionTimeAfterCompletionSeconds",
            message=f"{state.name!r} is an inference, which never ends by itself, so nothing would delete it; its "
            "priority, labels and annotations can be changed",
        )
    if priority is not None and state.phase in FINISHED:
        return Refusal(
            code="workload_finished",
            field="priorityClass",
            message=f"{state.name!r} is {state.phase} and will not be scheduled again, so its priority cannot be "
            "changed; its auto-deletion, labels and annotations can",
        )
    delete_at = None
    if seconds is not None and state.completed_at is not None:
        delete_at = max(state.completed_at + timedelta(seconds=seconds), context.now)
    return (
        WorkloadChanged(
            priority_class=priority,
            auto_deletion_time_after_completion_seconds=seconds,
            delete_at=delete_at,
            labels=labels,
            annotations=annotations,
            **volumes,
        ),
    )


def _fixed_volumes(name: str, after: StorageSpec, state: Workload) -> Refusal | None:
    """Why the volumes of a workload, or of its master, cannot become these (R30)."""
    field = "masterSpec.storage" if name == "master_storage" else name
    before = changeable(name, state.spec, state.distributed)
    if state.phase in FINISHED:
        return Refusal(
            code="workload_finished",
            field=field,
            message=f"{state.name!r} is {state.phase} and will not run again, so its volumes stay where they are",
        )
    if before is None or _without_paths(after) != _without_paths(before):
        message = (
            "of volumes only the path of a claim, and the mount path and default mode of a Secret can be changed; look "
            "again, somebody may have changed them since"
        )
        return Refusal(code="volumes_fixed", field=field, message=message)
    return None


def _others_volumes(state: Workload, context: Context) -> Refusal | None:
    """Why this actor may not lay volumes elsewhere: programs on one could take the place of the pod's own, and would
    find the values of its owner's credentials.
    """
    if not uses_credentials(state) or context.actor.id == state.owner == state.created_by:
        return None
    return Refusal(
        code="holds_credentials",
        field="storage",
        message=f"pods of {state.name!r} get values of its owner's credentials: nobody else can change where its "
        "volumes are, administrators neither",
    )


def _without_paths(storage: StorageSpec) -> StorageSpec:
    return replace(
        storage,
        pvc=tuple(replace(one, path=None) for one in storage.pvc),
        secret_volume=tuple(replace(one, mount_path=None, default_mode=None) for one in storage.secret_volume),
    )
