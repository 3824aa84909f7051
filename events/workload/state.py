"""A workload's state, and how each event moves it.

Pods that are bound, or wait to be run again, are in `pods`. An index below its set's `next_index` that is not there
has succeeded: ten thousand finished pods cost a workload nothing.
"""

from datetime import datetime
from typing import Final, assert_never

import msgspec
from msgspec.structs import replace

from events.phases import FINISHED, NODE_UNREACHABLE, DesiredPhase, Phase, PodPhase, may_follow, nodes_unreachable
from events.workload.events import (
    DeviceShare,
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
    WorkloadChanged,
    WorkloadCompleted,
    WorkloadCreated,
    WorkloadDeleted,
    WorkloadDeletionRequested,
    WorkloadEvent,
    WorkloadFailed,
    WorkloadQueued,
    WorkloadResumed,
    WorkloadStopped,
    WorkloadSuspended,
    WorkloadWaiting,
    countable,
)
from events.workload.spec import TrainingSpec, pod_sets, with_defaults

PodId = tuple[str, int]
"""(pod set, index)."""


class Pod(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    attempt: int
    try_: int = msgspec.field(name="try")
    phase: PodPhase
    node_key: str = ""
    node_name: str = ""
    pool: str = ""
    devices: tuple[DeviceShare, ...] = ()
    not_before: datetime | None = None
    """A pending pod may not be placed earlier."""
    interruptions: int = 0
    """How often this pod's runs were cut short without fault since it last ran; slows a loop of refusals down."""
    exit_code: int | None = None
    """Of the run before, where it failed."""
    warned: tuple[str, ...] = ()
    """Reasons of the warnings that were told of this run."""
    token: int = 0
    """Orders the runs of one pod key through all incarnations of the name: an agent never starts an older one."""


MOST_PODS: Final = 10_000
"""Of one set at a time: all that the API takes, and further ones wait."""


class SetProgress(msgspec.Struct, frozen=True, kw_only=True):
    next_index: int = 0
    """The lowest index that was never bound."""
    succeeded: int = 0


class Workload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The newest incarnation of a name; `workload_id` is empty where there never was one."""

    workload_id: str = ""
    name: str = ""
    requested_name: str = ""
    kind: str = ""
    project_id: str = ""
    cluster_id: str = ""
    owner: str = ""
    spec: TrainingSpec = TrainingSpec()
    created_at: datetime | None = None
    desired: DesiredPhase = DesiredPhase.RUNNING
    phase: Phase = Phase.CREATING
    queued: bool = False
    """Whether the scheduler has taken up the running attempt."""
    reason: str = ""
    """Code of why it waits or failed; empty otherwise."""
    message: str = ""
    attempt: int = 1
    failures: int = 0
    """Failed runs of the attempt, counted against backoffLimit."""
    pods: dict[PodId, Pod] = msgspec.field(default_factory=dict[PodId, Pod])
    progress: dict[str, SetProgress] = msgspec.field(default_factory=dict[str, SetProgress])
    delete_at: datetime | None = None
    generation: int = 0
    """Of the auto-deletion: a due time counts only while its generation is the newest."""
    completed_at: datetime | None = None
    """When it became Completed or Failed."""
    deletion_reason: str = ""
    deleted_at: datetime | None = None

    @property
    def exists(self) -> bool:
        return bool(self.workload_id)

    @property
    def living(self) -> bool:
        """Whether its name is taken."""
        return self.exists and self.deleted_at is None

    @property
    def succeeded(self) -> int:
        return sum(progress.succeeded for progress in self.progress.values())


LIVE_POD_PHASES = frozenset({PodPhase.BOUND, PodPhase.STARTING, PodPhase.RUNNING, PodPhase.UNKNOWN, PodPhase.STOPPING})
"""Phases in which a pod holds its node."""


def live_pods(state: Workload) -> dict[PodId, Pod]:
    """Pods that hold a node."""
    return {pod_id: pod for pod_id, pod in state.pods.items() if pod.phase in LIVE_POD_PHASES}


def schedulable(state: Workload) -> bool:
    return state.living and state.desired is DesiredPhase.RUNNING and state.phase not in FINISHED


def all_succeeded(state: Workload) -> bool:
    return state.succeeded == sum(pod_set.count for pod_set in pod_sets(state.spec))


def bindable(state: Workload, now: datetime) -> list[PodRef]:
    """The pods that may be given a node now, in order: those to run again first, then new indexes."""
    if not schedulable(state):
        return []
    refs: list[PodRef] = []
    for pod_set in pod_sets(state.spec):
        progress = state.progress.get(pod_set.name, SetProgress())
        open_pods = {index: pod for (name, index), pod in state.pods.items() if name == pod_set.name}
        refs.extend(
            PodRef(pod_set=pod_set.name, index=index, attempt=pod.attempt, try_=pod.try_)
            for index, pod in sorted(open_pods.items())
            if pod.phase is PodPhase.PENDING and (pod.not_before is None or pod.not_before <= now)
        )
        room = min(pod_set.parallelism, MOST_PODS) - len(open_pods)
        fresh = range(progress.next_index, min(progress.next_index + max(room, 0), pod_set.count))
        refs.extend(PodRef(pod_set=pod_set.name, index=i, attempt=state.attempt, try_=0) for i in fresh)
    return refs


def next_retry_at(state: Workload) -> datetime | None:
    """When the next waiting pod may be placed; None where none waits for a time."""
    if not schedulable(state):
        return None
    times = [pod.not_before for pod in state.pods.values() if pod.phase is PodPhase.PENDING and pod.not_before]
    return min(times, default=None)


def evolve(state: Workload, event: WorkloadEvent) -> Workload:
    """The state after one event; the very same one where the event does not fit it: then it changes nothing.

    A creation fits where it brings another id. Others fit where there is a living workload, the run that they name
    holds a node (those that are bound hold none), and the phase moves along a written transition.
    """
    if isinstance(event, WorkloadCreated):
        return _evolve(state, event) if event.workload_id not in ("", state.workload_id) else state
    if not state.living or not countable(event):
        return state
    if isinstance(event, PodEvent) and not _holds_node(state, event.pod):
        return state
    after = _evolve(state, event)
    return after if may_follow(state.phase, after.phase) else state


def _holds_node(state: Workload, ref: PodRef) -> bool:
    pod = state.pods.get((ref.pod_set, ref.index))
    return pod is not None and (pod.attempt, pod.try_) == (ref.attempt, ref.try_) and pod.phase in LIVE_POD_PHASES


def _evolve(state: Workload, event: WorkloadEvent) -> Workload:
    match event:
        case WorkloadCreated():
            return Workload(
                workload_id=event.workload_id,
                name=event.name,
                requested_name=event.requested_name,
                kind=event.kind,
                project_id=event.project_id,
                cluster_id=event.cluster_id,
                owner=event.owner,
                spec=event.spec if event.spec.preemptibility else with_defaults(event.spec),
                created_at=event.at,
            )
        case WorkloadQueued():
            return _derived(replace(state, queued=True))
        case WorkloadWaiting():
            return replace(state, reason=event.reason, message=event.message)
        case PodsBound():
            return _bound(state, event)
        case PodStarting():
            return _with_phase(state, event.pod, PodPhase.STARTING)
        case PodRunning():
            return _with_phase(state, event.pod, PodPhase.RUNNING)
        case PodUnreachable():
            return _with_phase(state, event.pod, PodPhase.UNKNOWN)
        case PodWarned():
            return _warned(state, event)
        case PodSucceeded():
            progress = state.progress[event.pod.pod_set]
            done = replace(progress, succeeded=progress.succeeded + 1)
            after = replace(_without(state, event.pod), progress=state.progress | {event.pod.pod_set: done})
            # The last success is followed by the end: nothing is pending in between.
            return after if all_succeeded(after) else _derived(after)
        case PodFailed():
            after = replace(_run_again(state, event.pod, event.retry_at, event), failures=state.failures + 1)
            return after if event.retry_at is None else _derived(after)
        case PodInterrupted():
            return _derived(_run_again(state, event.pod, event.retry_at, event))
        case PodStopped():
            return _derived(_stopped_pod(state, event.pod))
        case WorkloadSuspended():
            return _derived(_stopping(replace(state, desired=DesiredPhase.STOPPED)))
        case WorkloadStopped():
            return replace(state, phase=Phase.STOPPED, reason="", message="")
        case WorkloadResumed():
            return _resumed(state, event)
        case WorkloadCompleted():
            return _finished(state, Phase.COMPLETED, event.at, event.delete_at)
        case WorkloadFailed():
            failed = _finished(state, Phase.FAILED, event.at, event.delete_at)
            return replace(failed, reason=event.reason, message=event.message)
        case WorkloadChanged():
            return _changed(state, event)
        case WorkloadDeletionRequested():
            deleting = replace(
                state,
                desired=DesiredPhase.DELETED,
                deletion_reason=event.reason,
                generation=state.generation + 1,
                delete_at=None,
            )
            # An ended workload without pods is deleted in the same commit: its last phase stays to be seen.
            return _stopping(deleting) if not live_pods(state) else replace(_stopping(deleting), phase=Phase.DELETING)
        case WorkloadDeleted():
            return replace(state, deleted_at=event.at, pods={})
        case _:
            assert_never(event)


def _derived(state: Workload) -> Workload:
    """The phase that follows from desire and pods, for everything that is neither ended nor on its way out."""
    if state.phase in FINISHED or state.desired is DesiredPhase.DELETED:
        return state
    if state.desired is DesiredPhase.STOPPED:
        return replace(state, phase=Phase.STOPPING) if live_pods(state) else state
    phases = {pod.phase for pod in state.pods.values()}
    if PodPhase.UNKNOWN in phases:
        # One that nobody sees is what a person must know of first, however many others run.
        unseen = [pod.node_name for pod in state.pods.values() if pod.phase is PodPhase.UNKNOWN]
        return replace(state, phase=Phase.UNKNOWN, reason=NODE_UNREACHABLE, message=nodes_unreachable(unseen))
    if PodPhase.RUNNING in phases:
        phase = Phase.RUNNING
    elif phases & {PodPhase.BOUND, PodPhase.STARTING}:
        phase = Phase.INITIALIZING
    elif state.queued:
        phase = Phase.PENDING
    else:
        phase = state.phase
    waiting = phase is state.phase is Phase.PENDING
    return replace(
        state,
        phase=phase,
        reason=state.reason if waiting else "",
        message=state.message if waiting else "",
    )


def _bound(state: Workload, event: PodsBound) -> Workload:
    pods, progress = dict(state.pods), dict(state.progress)
    for placement in event.placements:
        ref = placement.pod
        before = pods.get((ref.pod_set, ref.index))
        waits = before is not None and before.phase is PodPhase.PENDING
        if before is not None and not (waits and (before.attempt, before.try_) == (ref.attempt, ref.try_)):
            continue
        pods[ref.pod_set, ref.index] = Pod(
            attempt=ref.attempt,
            try_=ref.try_,
            phase=PodPhase.BOUND,
            node_key=placement.node_key,
            node_name=placement.node_name,
            pool=placement.pool,
            devices=placement.devices,
            interruptions=before.interruptions if before else 0,
            token=event.token,
        )
        reached = progress.get(ref.pod_set, SetProgress())
        progress[ref.pod_set] = replace(reached, next_index=max(reached.next_index, ref.index + 1))
    return _derived(replace(state, pods=pods, progress=progress))


def _with_phase(state: Workload, ref: PodRef, phase: PodPhase) -> Workload:
    pod = state.pods[ref.pod_set, ref.index]
    interruptions = 0 if phase is PodPhase.RUNNING else pod.interruptions
    changed = replace(pod, phase=phase, interruptions=interruptions)
    return _derived(replace(state, pods=state.pods | {(ref.pod_set, ref.index): changed}))


def _warned(state: Workload, event: PodWarned) -> Workload:
    pod_id = event.pod.pod_set, event.pod.index
    pod = state.pods[pod_id]
    return replace(state, pods=state.pods | {pod_id: replace(pod, warned=(*pod.warned, event.reason))})


def _without(state: Workload, ref: PodRef) -> Workload:
    pods = state.pods.copy()
    pods.pop((ref.pod_set, ref.index), None)
    return replace(state, pods=pods)


def _run_again(state: Workload, ref: PodRef, retry_at: datetime | None, event: PodFailed | PodInterrupted) -> Workload:
    pod = state.pods[ref.pod_set, ref.index]
    again = Pod(
        attempt=pod.attempt,
        try_=pod.try_ + 1,
        phase=PodPhase.PENDING,
        not_before=retry_at,
        interruptions=pod.interruptions + (1 if isinstance(event, PodInterrupted) else 0),
        exit_code=event.exit_code if isinstance(event, PodFailed) else pod.exit_code,
    )
    return replace(state, pods=state.pods | {(ref.pod_set, ref.index): again})


def _stopped_pod(state: Workload, ref: PodRef) -> Workload:
    """A pod of an ended or deleted workload leaves; one of a stopped or resumed workload waits for the next attempt."""
    if state.phase in FINISHED or state.desired is DesiredPhase.DELETED:
        return _without(state, ref)
    waiting = Pod(attempt=state.attempt, try_=0, phase=PodPhase.PENDING)
    if state.pods[ref.pod_set, ref.index].attempt == state.attempt:
        waiting = replace(waiting, try_=ref.try_ + 1)
    return replace(state, pods=state.pods | {(ref.pod_set, ref.index): waiting})


def _stopping(state: Workload) -> Workload:
    """Every pod that holds a node is told to go; those that only wait leave or stay as they are."""
    pods = {
        pod_id: replace(pod, phase=PodPhase.STOPPING) if pod.phase in LIVE_POD_PHASES else pod
        for pod_id, pod in state.pods.items()
    }
    return replace(state, pods=pods)


def _resumed(state: Workload, event: WorkloadResumed) -> Workload:
    pods = {
        pod_id: Pod(attempt=event.attempt, try_=0, phase=PodPhase.PENDING) if pod.phase is PodPhase.PENDING else pod
        for pod_id, pod in state.pods.items()
    }
    return replace(
        state,
        desired=DesiredPhase.RUNNING,
        phase=Phase.RESUMING,
        queued=False,
        reason="",
        message="",
        attempt=event.attempt,
        failures=0,
        pods=pods,
    )


def _finished(state: Workload, phase: Phase, at: datetime, delete_at: datetime) -> Workload:
    ended = replace(
        state,
        phase=phase,
        completed_at=at,
        delete_at=delete_at,
        generation=state.generation + 1,
        reason="",
        message="",
    )
    stopping = _stopping(ended)
    return replace(stopping, pods=live_pods(stopping))


def _changed(state: Workload, event: WorkloadChanged) -> Workload:
    spec = state.spec
    if event.priority_class is not None:
        spec = replace(spec, priority_class=event.priority_class)
    if event.auto_deletion_time_after_completion_seconds is not None:
        spec = replace(
            spec,
            auto_deletion_time_after_completion_seconds=event.auto_deletion_time_after_completion_seconds,
        )
    if event.delete_at is None:
        return replace(state, spec=spec)
    return replace(state, spec=spec, delete_at=event.delete_at, generation=state.generation + 1)
