"""What a command does to a workload: events, nothing where it is already so, or a named refusal. Pure."""

from typing import Final, assert_never

import msgspec

from events.decision import Context
from events.ids import incarnation_id, name_suffix, workload_key
from events.phases import CLOSING, FINISHED, IDLE_GPU_LIMIT, PENDING_LIMIT, RUNS, RUNTIME_LIMIT, DesiredPhase, Phase
from events.refusal import Refusal
from events.workload.changes import changeable
from events.workload.changing import change
from events.workload.commands import (
    ChangeWorkload,
    CloseSession,
    CreateWorkload,
    DeleteWorkload,
    EndAtLimit,
    EvictPods,
    LeaveCluster,
    OpenSession,
    PlacePods,
    ReportPods,
    ResumeWorkload,
    ScaleInference,
    SuspendWorkload,
    TransferWorkload,
    UndoAct,
    WorkloadCommand,
)
from events.workload.fields.inference import MOST_REPLICAS
from events.workload.kinds import KINDS
from events.workload.letting_in import close_session, open_session
from events.workload.life import (
    ActUndone,
    WorkloadCreated,
    WorkloadDecision,
    WorkloadDeleted,
    WorkloadDeletionRequested,
    WorkloadFailed,
    WorkloadLimitReached,
    WorkloadResumed,
    WorkloadStopped,
    WorkloadSuspended,
    WorkloadTransferred,
)
from events.workload.placing import evict, leave, place
from events.workload.refusals import deleted_refusal, ended_refusal, name_taken, not_owner
from events.workload.reports import report
from events.workload.sizes import WorkloadScaled
from events.workload.spec import Distributed, Inference, beside_with_defaults
from events.workload.state import Workload, delete_at, schedulable

MOST_SCALE_WORDS: Final = 300
"""Characters of why the replicas changed."""


def final_name(given: str, *, as_prefix: bool, command_id: str) -> str:
    """The name a creation asks for: as given, or with a suffix that the command id fixes (S011, R38)."""
    return f"{given}-{name_suffix(command_id)}" if as_prefix else given


def decide(command: WorkloadCommand, state: Workload, context: Context) -> WorkloadDecision:
    if isinstance(command, CreateWorkload):
        return _create(command, state, context)
    if not state.exists or command.workload_id != state.workload_id:
        # The name lives on in a newer incarnation, or the id was never given out.
        return Refusal(code="not_found", message=f"there is no workload {command.workload_id}")
    match command:
        case PlacePods():
            return place(command, state, context)
        case EvictPods():
            return evict(command, state, context)
        case LeaveCluster():
            return leave(command, state, context)
        case ReportPods():
            return report(command, state, context)
        case TransferWorkload():
            return _transfer(command, state, context)
        case ScaleInference():
            return _rescale(command, state)
        case EndAtLimit():
            return _end_at_limit(command, state, context)
        case CloseSession():
            return close_session(command, state, context)
        case _:
            pass
    if refusal := not_owner(state, context):
        return refusal
    match command:
        case SuspendWorkload():
            return _suspend(state, context)
        case ResumeWorkload():
            return _resume(state)
        case DeleteWorkload():
            return _delete(command, state, context)
        case ChangeWorkload():
            return change(command, state, context)
        case UndoAct():
            return _undo(command, state, context)
        case OpenSession():
            return open_session(command, state, context)
        case _:
            assert_never(command)


def _create(command: CreateWorkload, state: Workload, context: Context) -> WorkloadDecision:
    if state.living:
        return name_taken(command.name)
    key, kind = workload_key(command.project_id, command.name), KINDS[command.kind]
    beside = beside_with_defaults(command.beside)
    return (
        WorkloadCreated(
            workload_id=incarnation_id(key, context.command_id),
            name=command.name,
            requested_name=command.requested_name,
            kind=command.kind,
            project_id=command.project_id,
            cluster_id=command.cluster_id,
            among=command.among,
            owner=context.actor.id,
            at=context.now,
            spec=kind.with_defaults(command.spec),
            distributed=beside if isinstance(beside, Distributed) else None,
            inference=beside if isinstance(beside, Inference) else None,
            made_from=command.made_from,
        ),
    )


def _suspend(state: Workload, context: Context) -> WorkloadDecision:
    if refusal := ended_refusal(state, "suspended"):
        return refusal
    if state.desired is DesiredPhase.STOPPED:
        return ()
    if state.pods.live:
        return (WorkloadSuspended(),)
    return (WorkloadSuspended(), WorkloadStopped(at=context.now))


def _resume(state: Workload) -> WorkloadDecision:
    if refusal := ended_refusal(state, "resumed"):
        return refusal
    if state.desired is DesiredPhase.RUNNING:
        return ()
    return (WorkloadResumed(attempt=state.attempt + 1),)


def _delete(command: DeleteWorkload, state: Workload, context: Context) -> WorkloadDecision:
    if state.desired is DesiredPhase.DELETED:
        return ()
    due = command.generation is not None
    if due and (command.generation != state.generation or state.delete_at is None or state.delete_at > context.now):
        return ()
    if command.cluster_removed and state.phase in FINISHED:
        return ()  # its record stays; nothing of it is on the cluster any more
    reason = "auto_deletion" if due else "user"
    if context.actor.kind == "service":
        reason = (
            "project_deleted" if command.project_deleted else "cluster_removed" if command.cluster_removed else reason
        )
    requested = WorkloadDeletionRequested(reason=reason)
    if state.pods.live or state.left:
        return (requested,)
    return (requested, WorkloadDeleted(at=context.now))


def _undo(command: UndoAct, state: Workload, context: Context) -> WorkloadDecision:
    """The opposite of an act, where what the act did still stands."""
    if state.desired is DesiredPhase.DELETED:
        return deleted_refusal(state, "set back")
    undone = ActUndone(sequence=command.sequence, act=command.act)
    match command.act:
        case "WorkloadSuspended" | "WorkloadResumed":
            suspended = command.act == "WorkloadSuspended"
            stands = state.desired is (DesiredPhase.STOPPED if suspended else DesiredPhase.RUNNING)
            if not stands or state.attempt != command.attempt:
                return _overtaken(command, "somebody suspended or resumed it since")
            follows = _resume(state) if suspended else _suspend(state, context)
        case "WorkloadChanged":
            if moved := _moved_on(command, state):
                return _overtaken(command, f"somebody changed {moved} since")
            back = ChangeWorkload(workload_id=state.workload_id, **msgspec.structs.asdict(command.before))
            follows = change(back, state, context)
        case _:
            assert_never(command.act)
    return follows if isinstance(follows, Refusal) or not follows else (undone, *follows)


def _moved_on(command: UndoAct, state: Workload) -> str:
    """A field that no longer is what the change made of it; empty where all are."""
    for field in msgspec.structs.fields(command.made):
        made = getattr(command.made, field.name)
        if made is not None and made != changeable(field.name, state.spec, state.distributed):
            return field.name.replace("_", " ")
    return ""


def _overtaken(command: UndoAct, why: str) -> Refusal:
    return Refusal(
        code="act_overtaken", message=f"what commit {command.sequence} did stands no longer: {why}; look again"
    )


def _transfer(command: TransferWorkload, state: Workload, context: Context) -> WorkloadDecision:
    """The gate has seen to it that the new owner may submit in the project. What is over can be given away, too: who
    has it may delete it.
    """
    if state.desired is DesiredPhase.DELETED:
        return deleted_refusal(state, "transferred")
    if command.actor == state.owner:
        return ()
    if context.actor.id != state.owner and not context.override:
        # Also where protection is off: whoever may act on it for others shall not make it theirs.
        return Refusal(
            code="not_owner", message=f"only the owner of {state.name!r} or an administrator can give it to another"
        )
    return (WorkloadTransferred(owner=command.actor),)


def _rescale(command: ScaleInference, state: Workload) -> WorkloadDecision:
    """Whoever asks: never beyond what the person set, and never against a number that has changed meanwhile."""
    if state.inference is None:
        return Refusal(code="no_inference", message=f"{state.name!r} is of kind {state.kind} and has no replicas")
    limits = state.inference.serving.autoscaling
    least, most = limits.min_replicas or 0, min(limits.max_replicas or MOST_REPLICAS, MOST_REPLICAS)
    if not least <= command.replicas <= most:
        return Refusal(
            code="replicas_out_of_bounds",
            field="replicas",
            message=f"{state.name!r} has {least} to {most} replicas; {command.replicas} were asked for",
        )
    running = state.desired is DesiredPhase.RUNNING and state.queued and state.phase not in CLOSING
    if not running or command.was != state.inference.replicas or command.replicas == command.was:
        return ()
    message = command.message[:MOST_SCALE_WORDS]
    return (WorkloadScaled(replicas=command.replicas, was=command.was, reason=command.reason, message=message),)


def _end_at_limit(command: EndAtLimit, state: Workload, context: Context) -> WorkloadDecision:
    """Only where it still does what is limited, in the attempt in which that was seen."""
    limited = {Phase.PENDING} if command.limit == "pending" else RUNS
    if not schedulable(state) or state.phase not in limited or state.attempt != command.attempt:
        return ()
    match command.limit:
        case "runtime":
            reason, what = RUNTIME_LIMIT, "it has run for as long as a workload of its kind may"
        case "idle_gpu":
            reason, what = IDLE_GPU_LIMIT, "all its GPUs did nothing for as long as those of its kind may"
        case "pending":
            reason, what = PENDING_LIMIT, "it has waited for as long as a workload of its kind may"
        case _:
            assert_never(command.limit)
    message = f"{what} in this project: {command.seconds} s"
    if not state.pods.live:
        return (
            WorkloadFailed(at=context.now, reason=reason, message=message, delete_at=delete_at(state, context.now)),
        )
    return (WorkloadLimitReached(at=context.now, reason=reason, message=message),)
