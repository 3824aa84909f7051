"""What a command does to a workload: events, nothing where it is already so, or a named refusal. Pure."""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final, assert_never

import msgspec
from msgspec.structs import replace

from events.decision import Context, Decision
from events.ids import incarnation_id, name_suffix, workload_key
from events.phases import (
    BACKOFF_LIMIT_EXCEEDED,
    CLOSING,
    ENDS_AT_ONCE,
    FINISHED,
    IDLE_GPU_LIMIT,
    PENDING_LIMIT,
    PREEMPTED,
    RUNS,
    RUNTIME_LIMIT,
    DesiredPhase,
    Phase,
    PodPhase,
)
from events.refusal import Refusal
from events.workload.at_risk import MOST_MILLI_SECONDS, CheckpointSaved, milli_seconds_at_risk
from events.workload.changes import WorkloadChanged
from events.workload.commands import (
    LIVE_FACTS,
    ChangeWorkload,
    CloseSession,
    CreateWorkload,
    DeleteWorkload,
    EndAtLimit,
    EvictPods,
    LeaveCluster,
    OpenSession,
    PlacePods,
    PodFact,
    ReportPods,
    ResumeWorkload,
    ScaleInference,
    SuspendWorkload,
    TransferWorkload,
    UndoAct,
    WorkloadCommand,
)
from events.workload.edit import Edit
from events.workload.evictions import LEAVES_NODE, PodsEvicted, evictable
from events.workload.fields.inference import MOST_REPLICAS
from events.workload.fields.storage import StorageSpec
from events.workload.gangs import goes_on_without, is_whole
from events.workload.kinds import KINDS
from events.workload.life import (
    ActUndone,
    ClusterChosen,
    WorkloadCompleted,
    WorkloadCreated,
    WorkloadDeleted,
    WorkloadDeletionRequested,
    WorkloadEvent,
    WorkloadFailed,
    WorkloadLimitReached,
    WorkloadQueued,
    WorkloadResumed,
    WorkloadStopped,
    WorkloadSuspended,
    WorkloadTransferred,
    WorkloadWaiting,
    take,
)
from events.workload.lost_cluster import ClusterLeft, LeftPodEnded
from events.workload.places import LONGEST_RETRY_WAIT, bindable_among
from events.workload.pod import (
    POD_TRANSITIONS,
    Pod,
    PodEvent,
    PodFailed,
    PodInterrupted,
    PodRef,
    PodRunning,
    PodsBound,
    PodStarting,
    PodStopped,
    PodSucceeded,
    PodUnreachable,
    PodWarned,
    failures_in_a_row,
    how_it_failed,
    pod_id,
    run_token,
)
from events.workload.sessions import (
    MOST_COMMAND_CHARACTERS,
    MOST_OPEN,
    MOST_PORTS,
    MOST_REASON_CHARACTERS,
    MOST_WORDS,
    SessionClosed,
    SessionOpened,
)
from events.workload.sizes import WorkloadScaled
from events.workload.spec import WHOLE_GPU_MILLI, Distributed, Inference, beside_with_defaults
from events.workload.state import NOT_BEGUN, Workload, is_completed, schedulable
from events.workload.volumes import FetchedFolder

MAX_WARNINGS_OF_RUN: Final = 10
"""Different reasons; a history with more of them tells nobody more."""

SHORTEST_CHECKPOINT_PAUSE: Final = timedelta(minutes=1)
LONGEST_CHECKPOINT_PAUSE: Final = timedelta(minutes=10)
"""A run that saves its work all the time tells of it some 35 times in its first two hours, and six times an hour then.
"""
MOST_EVICTION_WORDS: Final = 1_000
"""Characters that are kept of why pods were evicted."""
MOST_SCALE_WORDS: Final = 300
"""Characters of why the replicas changed."""

WorkloadDecision = Decision[WorkloadEvent]


def final_name(given: str, *, as_prefix: bool, command_id: str) -> str:
    """The name a creation asks for: as given, or with a suffix that the command id fixes (S011, R38)."""
    return f"{given}-{name_suffix(command_id)}" if as_prefix else given


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


def decide(command: WorkloadCommand, state: Workload, context: Context) -> WorkloadDecision:
    if isinstance(command, CreateWorkload):
        return _create(command, state, context)
    if not state.exists or command.workload_id != state.workload_id:
        # The name lives on in a newer incarnation, or the id was never given out.
        return Refusal(code="not_found", message=f"there is no workload {command.workload_id}")
    match command:
        case PlacePods():
            return _place(command, state, context)
        case EvictPods():
            return _evict(command, state, context)
        case LeaveCluster():
            return _leave(command, state, context)
        case ReportPods():
            return _report(command, state, context)
        case TransferWorkload():
            return _transfer(command, state, context)
        case ScaleInference():
            return _rescale(command, state)
        case EndAtLimit():
            return _end_at_limit(command, state, context)
        case CloseSession():
            return _close(command, state, context)
        case _:
            pass
    if refusal := _not_owner(state, context):
        return refusal
    match command:
        case SuspendWorkload():
            return _suspend(state, context)
        case ResumeWorkload():
            return _resume(state)
        case DeleteWorkload():
            return _delete(command, state, context)
        case ChangeWorkload():
            return _change(command, state, context)
        case UndoAct():
            return _undo(command, state, context)
        case OpenSession():
            return _open(command, state, context)
        case _:
            assert_never(command)


def retry_wait(earlier: int) -> timedelta:
    """How long a run waits after `earlier` earlier failures: 1, 2, 4… s, at most LONGEST_RETRY_WAIT."""
    return min(timedelta(seconds=2 ** min(earlier, 16)), LONGEST_RETRY_WAIT)


def _not_owner(state: Workload, context: Context) -> Refusal | None:
    if not context.protected or context.override or context.actor.kind == "service":
        return None
    if context.actor.id == state.owner:
        return None
    return Refusal(
        code="not_owner",
        message=f"ownership protection is on for this cluster: only the owner of {state.name!r} or an "
        "administrator can do this",
    )


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
    if refusal := _ended(state, "suspended"):
        return refusal
    if state.desired is DesiredPhase.STOPPED:
        return ()
    if state.pods.live:
        return (WorkloadSuspended(),)
    return (WorkloadSuspended(), WorkloadStopped(at=context.now))


def _resume(state: Workload) -> WorkloadDecision:
    if refusal := _ended(state, "resumed"):
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


def _change(command: ChangeWorkload, state: Workload, context: Context) -> WorkloadDecision:
    if state.desired is DesiredPhase.DELETED:
        return _deleted_refusal(state, "changed")
    seconds = command.auto_deletion_time_after_completion_seconds
    if seconds == state.spec.auto_deletion_time_after_completion_seconds:
        seconds = None
    spec = state.spec
    priority = command.priority_class if command.priority_class != spec.priority_class else None
    labels = command.labels if command.labels != spec.labels else None
    annotations = command.annotations if command.annotations != spec.annotations else None
    storage = command.storage if command.storage != spec.storage else None
    if all(one is None for one in (seconds, priority, labels, annotations, storage)):
        return ()
    if storage is not None and (refusal := _fixed_volumes(storage, state) or _others_volumes(state, context)):
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
            storage=storage,
        ),
    )


def _fixed_volumes(after: StorageSpec, state: Workload) -> Refusal | None:
    """Why the volumes of a workload cannot become these (R30)."""
    if state.phase in FINISHED:
        return Refusal(
            code="workload_finished",
            field="storage",
            message=f"{state.name!r} is {state.phase} and will not run again, so its volumes stay where they are",
        )
    if _without_paths(after) != _without_paths(state.spec.storage):
        message = (
            "of volumes only the path of a claim, and the mount path and default mode of a Secret can be changed; look "
            "again, somebody may have changed them since"
        )
        return Refusal(code="volumes_fixed", field="storage", message=message)
    return None


def _others_volumes(state: Workload, context: Context) -> Refusal | None:
    """Why this actor may not lay volumes elsewhere: programs on one could take the place of the pod's own, and would
    find the values of its owner's credentials.
    """
    if not _uses_credentials(state) or context.actor.id == state.owner == state.created_by:
        return None
    return Refusal(
        code="holds_credentials",
        field="storage",
        message=f"pods of {state.name!r} get values of its owner's credentials: nobody else can change where its "
        "volumes are, administrators neither",
    )


def _uses_credentials(state: Workload) -> bool:
    """Whether values of its owner's credentials come into its pods, as variables or to fetch a volume with."""
    return any(
        any(one.user_credential is not None for one in each.template.environment)
        or any(
            isinstance(one, FetchedFolder) and one.login is not None and one.login.credential
            for one in each.template.volumes
        )
        for each in state.pod_sets
    )


def _without_paths(storage: StorageSpec) -> StorageSpec:
    return replace(
        storage,
        pvc=tuple(replace(one, path=None) for one in storage.pvc),
        secret_volume=tuple(replace(one, mount_path=None, default_mode=None) for one in storage.secret_volume),
    )


def _undo(command: UndoAct, state: Workload, context: Context) -> WorkloadDecision:
    """The opposite of an act, where what the act did still stands."""
    if state.desired is DesiredPhase.DELETED:
        return _deleted_refusal(state, "set back")
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
            follows = _change(back, state, context)
        case _:
            assert_never(command.act)
    return follows if isinstance(follows, Refusal) or not follows else (undone, *follows)


def _moved_on(command: UndoAct, state: Workload) -> str:
    """A field that no longer is what the change made of it; empty where all are."""
    for field in msgspec.structs.fields(command.made):
        made = getattr(command.made, field.name)
        if made is not None and made != getattr(state.spec, field.name):
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
        return _deleted_refusal(state, "transferred")
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
            WorkloadFailed(at=context.now, reason=reason, message=message, delete_at=_delete_at(state, context.now)),
        )
    return (WorkloadLimitReached(at=context.now, reason=reason, message=message),)


def shut_to(state: Workload, context: Context) -> Refusal | None:
    """Why this actor is not let into pods; it is asked while they are in them, too."""
    if refusal := _not_owner(state, context):
        return refusal
    if _uses_credentials(state) and not context.actor.id == state.owner == state.created_by:
        return Refusal(
            code="holds_credentials",
            message=f"pods of {state.name!r} hold values of its owner's credentials: nobody else is let into them, "
            "administrators neither; its logs can be read",
        )
    return None


def _open(command: OpenSession, state: Workload, context: Context) -> WorkloadDecision:
    if any(one.session_id == command.session_id for one in state.sessions):
        return ()
    if refusal := shut_to(state, context):
        return refusal
    pod = state.pods.live.get((command.pod_set, command.index))
    if pod is None or pod.phase is not PodPhase.RUNNING:
        how = "is not there" if pod is None else f"is {pod.phase}"
        return Refusal(
            code="pod_not_running",
            message=f"pod {command.pod_set}-{command.index} of {state.name!r} {how}, and only into a running pod "
            f"anybody is let; the workload is {state.phase}",
        )
    if len(state.sessions) >= MOST_OPEN:
        return Refusal(
            code="too_many_sessions",
            message=f"{len(state.sessions)} sessions lead into pods of {state.name!r} already; end one of them first",
        )
    words = sum(map(len, command.command))
    if len(command.command) > MOST_WORDS or words > MOST_COMMAND_CHARACTERS or len(command.ports) > MOST_PORTS:
        return Refusal(
            code="invalid",
            message=f"a session has a command of at most {MOST_WORDS} words and {MOST_COMMAND_CHARACTERS} characters, "
            f"and at most {MOST_PORTS} ports",
        )
    run = PodRef(pod_set=command.pod_set, index=command.index, attempt=pod.attempt, try_=pod.try_)
    return (
        SessionOpened(
            session_id=command.session_id,
            kind=command.kind,
            pod=run,
            at=context.now,
            ends_at=context.now + timedelta(seconds=max(command.seconds, 1)),
            command=command.command,
            stdin=command.stdin,
            tty=command.tty,
            ports=command.ports,
        ),
    )


def _close(command: CloseSession, state: Workload, context: Context) -> WorkloadDecision:
    if all(one.session_id != command.session_id for one in state.sessions):
        return ()
    return (
        SessionClosed(
            session_id=command.session_id,
            at=context.now,
            reason=command.reason,
            message=command.message[:MOST_REASON_CHARACTERS],
            exit_code=command.exit_code,
            bytes_in=command.bytes_in,
            bytes_out=command.bytes_out,
        ),
    )


def _ended(state: Workload, verb: str) -> Refusal | None:
    if state.desired is DesiredPhase.DELETED:
        return _deleted_refusal(state, verb)
    if state.phase in CLOSING:
        return Refusal(
            code="workload_finished",
            message=f"{state.name!r} is {state.phase} and cannot be {verb}; submit it again as a new workload",
        )
    return None


def _deleted_refusal(state: Workload, verb: str) -> Refusal:
    word = "deleted" if state.deleted_at else "being deleted"
    return Refusal(code="workload_deleted", message=f"{state.name!r} is {word} and cannot be {verb}")


def _place(command: PlacePods, state: Workload, context: Context) -> WorkloadDecision:
    if not schedulable(state):
        return Refusal(code="stale_placement", message=f"{state.name!r} is {state.phase} and takes no placement")
    if refusal := _elsewhere(command, state):
        return refusal
    may_bind = bindable_among(state, (placement.pod for placement in command.placements), context.now)
    placed: dict[PodRef, str] = {}
    for placement in command.placements:
        pod = placement.pod
        if pod not in may_bind:
            return Refusal(code="stale_placement", message=f"{pod} may not be bound (any more)")
        if pod in placed:
            return Refusal(
                code="placed_twice",
                message=f"run {pod.try_} of pod {pod.pod_set}-{pod.index} in attempt {pod.attempt} stands twice in one "
                f"placement: on {placed[pod]} and on {placement.node_name}",
            )
        placed[pod] = placement.node_name
    if gap := _left_out(placed, state):
        return Refusal(code="stale_placement", message=gap)
    together = [pod_set for pod_set in state.pod_sets if pod_set.minimum] if placed else []
    if together and not is_whole(state, Counter(pod.pod_set for pod in placed)):
        message = f"the pods of {state.name!r} start together, and others of them have no node and stand not in it"
        return Refusal(code="stale_placement", message=message)
    events: list[WorkloadEvent] = []
    if not state.queued:
        events.append(WorkloadQueued())
    if command.placements:
        if not state.cluster_id:
            events.append(ClusterChosen(cluster_id=command.cluster_id, name=command.cluster_name))
        events.append(PodsBound(placements=command.placements, token=run_token(context.incarnation, context.version)))
    told = (state.reason, state.message)
    if command.waiting_reason and told != (command.waiting_reason, command.waiting_message):
        events.append(
            WorkloadWaiting(
                reason=command.waiting_reason, message=command.waiting_message, expected_start=command.expected_start
            )
        )
    return tuple(events)


def _elsewhere(command: PlacePods, state: Workload) -> Refusal | None:
    """That these nodes are not of its cluster, or of none of those among which its cluster may be chosen."""
    given = command.cluster_id
    if not command.placements or (state.cluster_id and given in {"", state.cluster_id}):
        return None
    if state.cluster_id:
        message = f"{state.name!r} runs on cluster {state.cluster_id}, and these nodes are of cluster {given}"
        return Refusal(code="stale_placement", message=message)
    if given in state.left:
        message = f"{state.name!r} left cluster {given}, and pods of it may still be there"
        return Refusal(code="stale_placement", message=message)
    if given not in state.among:
        message = f"the cluster of {state.name!r} is one of {', '.join(state.among)}, and not {given or 'left open'}"
        return Refusal(code="stale_placement", message=message)
    return None


def _left_out(placed: Iterable[PodRef], state: Workload) -> str:
    """Which new pods come before these and are not among them; empty where none does. New pods are known by where the
    last one was bound: whoever is left out, as by a batch that was not stored, would never be bound at all.
    """
    new = [pod for pod in placed if (pod.pod_set, pod.index) not in state.pods]
    fresh: dict[str, int] = {}
    for pod in new:
        fresh[pod.pod_set] = fresh.get(pod.pod_set, 0) + 1
    for pod in new:
        first = state.progress.get(pod.pod_set, NOT_BEGUN).next_index
        if pod.index >= first + fresh[pod.pod_set]:
            return f"pods of {pod.pod_set!r} are bound in order, and {first} comes before {pod.index}"
    return ""


def _evict(command: EvictPods, state: Workload, context: Context) -> WorkloadDecision:
    """On the scheduler's word, and only while all that it decided by still holds."""
    leaves = command.reason in LEAVES_NODE
    closes = command.reason in {"window_closed", "reserved"}
    shrinks = command.reason == "shrunk"
    moves_for_good = command.reason == "moved" and state.spec.terminate_after_preemption
    if not schedulable(state) or not (state.preemptible or leaves or shrinks) or moves_for_good:
        return Refusal(code="stale_eviction", message=f"{state.name!r} is {state.phase} and gives up no place")
    for ref in command.pods:
        pod = state.pods.live.get(pod_id(ref))
        if pod is None or not pod.is_run(ref) or not evictable(pod):
            return Refusal(code="stale_eviction", message=f"{ref} holds no node (any more)")
    if len(set(map(pod_id, command.pods))) != len(command.pods) or not command.pods:
        return Refusal(code="stale_eviction", message="an eviction names at least one pod, and each once")
    ending = sum(pod.phase is PodPhase.STOPPING for pod in state.pods.live.values())
    staying = state.pods.live.size - ending - len(command.pods)
    if staying and not goes_on_without(state, command.pods):
        message = f"the pods of {state.name!r} live together, and too few of them would be left"
        return Refusal(code="stale_eviction", message=message)
    if shrinks and not (staying and state.elastic):
        message = f"{state.name!r} has no more pods than it needs, and gives up none of them alone"
        return Refusal(code="stale_eviction", message=message)
    evicted = PodsEvicted(
        pods=command.pods,
        attempt=state.attempt if staying else state.attempt + 1,
        reason=command.reason,
        message=command.message[:MOST_EVICTION_WORDS],
        beneficiary=command.beneficiary,
        gpu_seconds_at_risk=_at_risk(command.pods, state, context.now),
    )
    if leaves or shrinks or closes or not state.spec.terminate_after_preemption:
        return (evicted,)
    message = f"ended because it was preempted, as terminateAfterPreemption asks: {evicted.message}"
    return (
        evicted,
        WorkloadFailed(at=context.now, reason=PREEMPTED, message=message, delete_at=_delete_at(state, context.now)),
    )


def _leave(command: LeaveCluster, state: Workload, context: Context) -> WorkloadDecision:
    """On the scheduler's word that it is lost. Who named the cluster stays: nobody said that another will do."""
    there = schedulable(state) and state.cluster_id == command.cluster_id and state.attempt == command.attempt
    if not there or not state.among or not state.preemptible:
        return Refusal(code="stale_leave", message=f"{state.name!r} is {state.phase} and leaves no cluster")
    among = tuple(id_ for id_ in state.among if id_ in command.among)
    if not set(among) - {state.cluster_id} - state.left.keys():
        return Refusal(code="stale_leave", message=f"there is no other cluster on which {state.name!r} could run")
    left = ClusterLeft(
        cluster_id=command.cluster_id,
        name=command.cluster_name,
        at=context.now,
        lost_since=command.lost_since,
        seconds=command.seconds,
        pods=state.pods.live.size,
        attempt=state.attempt + 1,
        among=among,
    )
    why = f"its workload left cluster {command.cluster_name}, which is lost"
    sessions = (
        SessionClosed(session_id=each.session_id, at=context.now, reason="lost", message=why) for each in state.sessions
    )
    return (left, *sessions)


def _at_risk(refs: Iterable[PodRef], state: Workload, now: datetime) -> int:
    """GPUs times seconds."""
    pods = (state.pods.live.get(pod_id(ref)) for ref in refs)
    milli = sum(milli_seconds_at_risk(state, pod, now) for pod in pods if pod is not None)
    return min(milli, MOST_MILLI_SECONDS) // WHOLE_GPU_MILLI


def _report(command: ReportPods, state: Workload, context: Context) -> WorkloadDecision:
    edit = Edit(state)
    events: list[WorkloadEvent] = []
    for fact in sorted(command.facts, key=lambda fact: (fact.pod, fact.at)):
        # Warnings first: they may say why it ended.
        for happened in (
            *_warnings(fact, edit),
            *_saved(fact, edit, context.now),
            *_of_fact(fact, edit, context.now),
            *_of_left(fact, edit),
        ):
            take(edit, happened)
            events.append(happened)
            if isinstance(happened, CheckpointSaved):
                continue
            if (follows := _what_follows(happened, edit, context.now)) is not None:
                take(edit, follows)
                events.append(follows)
    return tuple(events)


def _newest_run(fact: PodFact, edit: Edit) -> Pod | None:
    """The pod, where this run of it is the newest and holds a node: a fact about any other changes nothing."""
    pod = edit.pods.live.get(pod_id(fact.pod))
    if pod is None or (fact.token and fact.token != pod.token):
        return None
    return pod if pod.is_run(fact.pod) else None


def _warnings(fact: PodFact, edit: Edit) -> tuple[PodWarned, ...]:
    pod = _newest_run(fact, edit)
    if pod is None:
        return ()
    told = list(pod.warned)
    events: list[PodWarned] = []
    for warning in fact.warnings:
        if warning.reason not in told and len(told) < MAX_WARNINGS_OF_RUN:
            told.append(warning.reason)
            events.append(PodWarned(pod=fact.pod, at=warning.at, reason=warning.reason, message=warning.message))
    return tuple(events)


def _saved(fact: PodFact, edit: Edit, now: datetime) -> tuple[CheckpointSaved, ...]:
    """That there is a newer file in the checkpoint folder, where that is worth an event: for a run's first minutes each
    minute, then ever less often; and when it ends. A file may say any time, so none is later than now. When a run began
    is what its workload knows, and no word of an agent: whoever never ran has saved nothing.
    """
    pod, state = _newest_run(fact, edit), edit.state
    if pod is None or fact.checkpoint_at is None or state.spec.checkpoint is None:
        return ()
    at, before = min(fact.checkpoint_at, now), state.checkpoint_at
    begins = fact.kind == "running" and PodPhase.RUNNING in POD_TRANSITIONS[pod.phase]
    began = pod.running_since or (fact.at if begins else None)
    if began is None:
        return ()
    if fact.kind in LIVE_FACTS:
        told = before is not None and before >= began
        if at < began or (told and before is not None and at - before < checkpoint_pause(at - began)):
            return ()
    return (CheckpointSaved(pod=fact.pod, at=at),) if before is None or at > before else ()


def checkpoint_pause(age: timedelta) -> timedelta:
    """How much newer a file must be than the last one that was told, of a run that is so old."""
    return min(max(age / 10, SHORTEST_CHECKPOINT_PAUSE), LONGEST_CHECKPOINT_PAUSE)


def _of_fact(fact: PodFact, edit: Edit, now: datetime) -> tuple[PodEvent, ...]:
    """The cause in one fact; none where it says nothing new of the run."""
    pod = _newest_run(fact, edit)
    if pod is None:
        return ()
    next_phases = POD_TRANSITIONS[pod.phase]
    match fact.kind:
        case "starting":
            starting = PodStarting(pod=fact.pod, at=fact.at, message=fact.message)
            return (starting,) if PodPhase.STARTING in next_phases else ()
        case "running":
            running = PodRunning(pod=fact.pod, at=fact.at, address=fact.address)
            return (running,) if PodPhase.RUNNING in next_phases else ()
        case "unreachable":
            unseen = PodUnreachable(pod=fact.pod, at=fact.at, reason=fact.reason, message=fact.message)
            return (unseen,) if PodPhase.UNKNOWN in next_phases else ()
        # One of an elastic workload that ends well when it is told to has not done the work of all.
        case "succeeded" if edit.state.inference is None and not (
            pod.phase is PodPhase.STOPPING and edit.state.elastic
        ):
            return (PodSucceeded(pod=fact.pod, at=fact.at),)
        # The workload of a pod that outlives it has its end already.
        case "stopped" | "succeeded" | "failed" | "interrupted" | "refused" if (
            pod.phase is PodPhase.STOPPING or edit.state.phase in CLOSING
        ):
            return (PodStopped(pod=fact.pod, at=fact.at, exit_code=fact.exit_code),)
        case "succeeded":
            return (_replica_ended(fact, pod, now),)
        case "failed":
            return (_failed(fact, pod, edit.state, now),)
        case "stopped" | "interrupted" | "refused":
            return (_interrupted(fact, pod.interruptions, now),)
        case _:
            assert_never(fact.kind)


def _of_left(fact: PodFact, edit: Edit) -> tuple[LeftPodEnded, ...]:
    """That a run is over which was left on a lost cluster. Whatever came of it, the attempts after it go on."""
    kind = fact.kind
    if kind == "starting" or kind == "running" or kind == "unreachable":  # noqa: PLR1714 (so the type is narrowed)
        return ()
    for cluster_id, pods in edit.state.left.items():
        run = pods.get(pod_id(fact.pod))
        if run is not None and run.is_run(fact.pod) and fact.token in {0, run.token}:
            ended = LeftPodEnded(pod=fact.pod, cluster_id=cluster_id, at=fact.at, how=kind, exit_code=fact.exit_code)
            return (ended,)
    return ()


def _failed(fact: PodFact, pod: Pod, state: Workload, now: datetime) -> PodFailed:
    limit = KINDS[state.kind].backoff_limit(state.spec)
    if limit is None:
        # For ever, and ever more slowly while it does not get going.
        retry_at = now + retry_wait(failures_in_a_row(pod, fact.at) - 1)
    else:
        # S030: whoever has the node port may keep it for ever.
        over = fact.reason in ENDS_AT_ONCE or state.failures >= limit
        retry_at = None if over else now + retry_wait(state.failures)
    return PodFailed(
        pod=fact.pod,
        at=fact.at,
        exit_code=fact.exit_code,
        reason=fact.reason or "exit_code",
        message=fact.message,
        retry_at=retry_at,
    )


def _replica_ended(fact: PodFact, pod: Pod, now: datetime) -> PodFailed:
    """A replica's process ended without an error, though nobody told it to."""
    return PodFailed(
        pod=fact.pod,
        at=fact.at,
        exit_code=0,
        reason="replica_ended",
        message="a replica is to run until it is told to end",
        retry_at=now + retry_wait(failures_in_a_row(pod, fact.at) - 1),
    )


def _interrupted(fact: PodFact, interruptions: int, now: datetime) -> PodInterrupted:
    # The first time at once; a node that refuses again and again is asked ever more slowly.
    retry_at = now + retry_wait(interruptions - 1) if interruptions else None
    return PodInterrupted(
        pod=fact.pod, at=fact.at, reason=fact.reason or fact.kind, message=fact.message, retry_at=retry_at
    )


def _what_follows(event: PodEvent | LeftPodEnded, edit: Edit, now: datetime) -> WorkloadEvent | None:
    """The workload's own end, or stop, where this was the end of the last run that it waited for."""
    state = edit.state
    if state.desired is DesiredPhase.DELETED and isinstance(event, LeftPodEnded):
        return None if edit.pods.live.size or state.left else WorkloadDeleted(at=now)
    if not isinstance(event, PodSucceeded | PodStopped | PodFailed | PodInterrupted) or state.phase in FINISHED:
        return None
    if isinstance(event, PodFailed) and event.retry_at is None:
        return _spent(event, state, now)
    if isinstance(event, PodFailed | PodInterrupted) and not state.elastic:
        return None
    if state.desired is DesiredPhase.DELETED:
        return None if edit.pods.live.size or state.left else WorkloadDeleted(at=now)
    if is_completed(state, edit.pods):
        return WorkloadCompleted(at=now, succeeded=state.succeeded, delete_at=_delete_at(state, now))
    if state.phase is Phase.STOPPING and not edit.pods.live.size:
        return WorkloadStopped(at=now)
    if state.phase is Phase.TERMINATING and not edit.pods.live.size:
        return WorkloadFailed(at=now, reason=state.reason, message=state.message, delete_at=_delete_at(state, now))
    return None


def _spent(event: PodFailed, state: Workload, now: datetime) -> WorkloadFailed:
    if event.reason in ENDS_AT_ONCE:
        return WorkloadFailed(at=now, reason=event.reason, message=event.message, delete_at=_delete_at(state, now))
    runs = "1 failed run" if state.failures == 1 else f"{state.failures} failed runs"
    pod = f"{event.pod.pod_set}-{event.pod.index}"
    limit = KINDS[state.kind].backoff_limit(state.spec) or 0
    return WorkloadFailed(
        at=now,
        reason=BACKOFF_LIMIT_EXCEEDED,
        message=f"pod {pod} {how_it_failed(event)}; {runs}, backoff limit {limit}",
        exit_code=event.exit_code,
        delete_at=_delete_at(state, now),
    )


def _delete_at(state: Workload, now: datetime) -> datetime:
    return now + timedelta(seconds=state.spec.auto_deletion_time_after_completion_seconds)
