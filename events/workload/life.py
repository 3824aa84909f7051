"""The life of a workload: what can have happened to one, and how each event moves its state. What happens to one of its
pods stands in `pod.py`; what has one concern alone, such as evictions or lost clusters, in a module of its own.

The names and fields of events are the storage format: only ever extended. A changed shape gets a new version and an
upcaster (codec.py); every shape ever shipped keeps a golden payload.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import Literal, assert_never

from msgspec.structs import replace

from events.decision import Decision
from events.event import Event
from events.phases import CLOSING, DesiredPhase, Phase, PodPhase, may_follow
from events.workload.at_risk import MOST_MILLI_SECONDS, CheckpointSaved, milli_seconds_at_risk
from events.workload.changes import WorkloadChanged, after_change
from events.workload.edit import Edit
from events.workload.evictions import PodsEvicted, evict
from events.workload.fields.inference import MOST_REPLICAS
from events.workload.kinds import KINDS
from events.workload.lost_cluster import ClusterLeft, LeftPodEnded, fits_left, leave, without_left
from events.workload.made_from import MadeFrom
from events.workload.pod import (
    MOST_COUNTED,
    Pod,
    PodEvent,
    PodFailed,
    PodInterrupted,
    PodRunning,
    PodsBound,
    PodStarting,
    PodStopped,
    PodSucceeded,
    PodUnreachable,
    PodWarned,
    bound,
    is_of_pod,
    moved,
    pod_id,
    possible,
)
from events.workload.pods import Pods, PodsEdit
from events.workload.sessions import Session, SessionClosed, SessionOpened
from events.workload.sizes import WorkloadScaled, leave_if_surplus, scale
from events.workload.spec import Distributed, Inference, TrainingSpec, check_quantities, first_replicas
from events.workload.state import NOT_BEGUN, Workload, is_completed
from events.workload.status import derive, say


class WorkloadCreated(Event, frozen=True, kw_only=True):
    """Somebody submitted a workload, and it was accepted."""

    workload_id: str
    """UUID of this incarnation of the name."""
    name: str
    """Unique among the living workloads of the project."""
    requested_name: str
    """The name in the request. It differs from `name` only if it was given as a prefix (R38)."""
    kind: str
    """One of the registered kinds, such as `Training`."""
    project_id: str
    """UUID."""
    cluster_id: str
    """UUID of the cluster that runs it; empty where the scheduler chooses it."""
    owner: str
    """Actor id of the user who submitted it. Ownership protection compares it."""
    at: datetime
    """When it was decided."""
    spec: TrainingSpec
    """The spec, with every default filled in. Of a distributed training, that of its workers."""
    distributed: Distributed | None = None
    """What a distributed training has beside that; absent for every other kind."""
    inference: Inference | None = None
    """What an inference has beside that; absent for every other kind."""
    made_from: MadeFrom | None = None
    """From which template and assets it was made, and who set its fields where their values do not say it."""
    among: tuple[str, ...] = ()
    """UUIDs of the clusters that can run it, among which the scheduler chooses; none where one was named."""

    def __post_init__(self) -> None:
        """Raises ValueError where nobody could run it: whoever reads it would fail, each in another place."""
        if self.kind not in KINDS:
            raise ValueError(f"no kind of workload is called {self.kind!r}")
        check_quantities(self.spec)
        if self.distributed is not None and self.distributed.master is not None:
            check_quantities(self.distributed.master)


class WorkloadQueued(Event, frozen=True, kw_only=True):
    """The scheduler added it to its queue: Creating or Resuming becomes Pending."""


class ClusterChosen(Event, frozen=True, kw_only=True):
    """The scheduler chose the cluster of a workload for which nobody named one. Its first pods are bound there in the
    same commit.
    """

    cluster_id: str
    """UUID of the cluster that runs it from now on."""
    name: str
    """Of the cluster."""


class WorkloadWaiting(Event, frozen=True, kw_only=True):
    """The workload could not be placed, for another reason than before."""

    reason: str
    """A waiting reason, such as `insufficient_gpu` (refusals.md)."""
    message: str
    """The same in a sentence, with numbers."""
    expected_start: datetime | None = None
    """When the scheduler expected it to start. Absent where it had no ground for an estimate."""


class WorkloadSuspended(Event, frozen=True, kw_only=True):
    """Somebody suspended it. It becomes Stopped when its pods are gone."""


class WorkloadStopped(Event, frozen=True, kw_only=True):
    """It was suspended, and its last pod is gone."""

    at: datetime
    """When the last pod was gone."""


class WorkloadResumed(Event, frozen=True, kw_only=True):
    """Somebody resumed it."""

    attempt: int
    """The new attempt. Pods of earlier attempts must not start any more."""


class WorkloadCompleted(Event, frozen=True, kw_only=True):
    """As many runs have succeeded as the spec requires."""

    at: datetime
    """When the last run ended."""
    succeeded: int
    """How many runs succeeded."""
    delete_at: datetime
    """When auto-deletion is due."""


class WorkloadFailed(Event, frozen=True, kw_only=True):
    """It failed and will not run again."""

    at: datetime
    """When it ended."""
    reason: str
    """Code: `backoff_limit_exceeded`, `node_port_taken`, `no_claim`, `no_command`, `no_volume`, `preempted`, or that
    of a limit on its time.
    """
    message: str
    """The same in a sentence."""
    delete_at: datetime
    """When auto-deletion is due."""
    exit_code: int | None = None
    """Exit code of the last failed run."""


class WorkloadLimitReached(Event, frozen=True, kw_only=True):
    """A limit of its project on its time ends it: its pods are told to end, and it is Failed when they are gone."""

    at: datetime
    """When it was decided."""
    reason: str
    """Code: `runtime_limit`, `idle_gpu_limit` or `pending_limit`."""
    message: str
    """The same in a sentence."""


class WorkloadTransferred(Event, frozen=True, kw_only=True):
    """Its owner, or an administrator, made somebody else its owner."""

    owner: str
    """Actor id of the new owner. Ownership protection compares it from now on."""


UndoableAct = Literal["WorkloadSuspended", "WorkloadResumed", "WorkloadChanged"]
"""Types of events that can be taken back."""


class ActUndone(Event, frozen=True, kw_only=True):
    """Somebody took back what had been done to it. What follows from that stands beside it."""

    sequence: int
    """Sequence of the commit of that act."""
    act: UndoableAct
    """Type of its event."""


class WorkloadDeletionRequested(Event, frozen=True, kw_only=True):
    """Somebody or auto-deletion deleted it. It becomes Deleted when its pods are gone."""

    reason: str
    """`user`, `auto_deletion`, `project_deleted` or `cluster_removed`."""


class WorkloadDeleted(Event, frozen=True, kw_only=True):
    """All pods are gone, and the name is free again."""

    at: datetime
    """When the last pod was gone."""


WorkloadEvent = (
    WorkloadCreated
    | WorkloadQueued
    | WorkloadWaiting
    | ClusterChosen
    | ClusterLeft
    | LeftPodEnded
    | PodsBound
    | PodStarting
    | PodRunning
    | PodUnreachable
    | PodWarned
    | PodSucceeded
    | PodFailed
    | PodInterrupted
    | PodStopped
    | WorkloadSuspended
    | WorkloadStopped
    | WorkloadResumed
    | WorkloadCompleted
    | WorkloadFailed
    | WorkloadLimitReached
    | WorkloadChanged
    | WorkloadTransferred
    | ActUndone
    | WorkloadScaled
    | PodsEvicted
    | CheckpointSaved
    | SessionOpened
    | SessionClosed
    | WorkloadDeletionRequested
    | WorkloadDeleted
)

WorkloadDecision = Decision[WorkloadEvent]


def countable(event: WorkloadEvent) -> bool:
    """Whether the numbers that it gives to runs can be such numbers at all."""
    match event:
        case PodsBound():
            return possible(event)
        case WorkloadResumed() | PodsEvicted() | ClusterLeft():
            return 0 <= event.attempt < MOST_COUNTED
        case WorkloadScaled():
            return 0 <= event.replicas <= MOST_REPLICAS
        case _:
            return True


def evolve(state: Workload, event: WorkloadEvent) -> Workload:
    """The state after one event; the very same one where the event does not fit it: then it changes nothing."""
    return fold(state, (event,))


def fold(state: Workload, events: Iterable[WorkloadEvent]) -> Workload:
    """The state after several events, as if one after the other. `state` stays as it is."""
    edit = Edit(state)
    for event in events:
        take(edit, event)
    return edit.value()


def take(edit: Edit, event: WorkloadEvent) -> bool:
    """Whether the event fits the workload; where it does not, it changes nothing.

    A creation fits where it brings another id. Others fit where there is a living workload, the run that they name
    holds a node (those that are bound hold none), and the phase moves along a written transition.
    """
    before, named = edit.state, edit.names_unseen
    if isinstance(event, WorkloadCreated):
        if event.workload_id in ("", before.workload_id):
            return False
        edit.state, edit.pods, edit.fitted = _created(event), PodsEdit(Pods()), True
        return True
    if isinstance(event, ClusterLeft | LeftPodEnded) and not fits_left(before, event):
        return False
    # A session may be over a moment after the pod that it led to, which was the last one.
    if not (before.living or isinstance(event, SessionClosed)) or not countable(event):
        return False
    edit.pods.begin()
    if is_of_pod(event):
        pod = edit.pods.live.get(pod_id(event.pod))
        if pod is None or not pod.is_run(event.pod):
            return False
        _take_of_pod(edit, event, pod)
    else:
        edit.settle()
        _take(edit, event)
    if not may_follow(before.phase, edit.state.phase):
        edit.pods.undo()
        edit.state, edit.names_unseen = before, named
        return False
    edit.fitted = True
    return True


def _created(event: WorkloadCreated) -> Workload:
    return Workload(
        workload_id=event.workload_id,
        name=event.name,
        requested_name=event.requested_name,
        kind=event.kind,
        project_id=event.project_id,
        cluster_id=event.cluster_id,
        among=event.among,
        owner=event.owner,
        created_by=event.owner,
        spec=event.spec,
        distributed=event.distributed,
        inference=event.inference,
        made_from=event.made_from,
        created_at=event.at,
    )


def _take_of_pod(edit: Edit, event: PodEvent, pod: Pod) -> None:
    """What follows from an event of a run that holds a node."""
    state, ends = edit.state, False
    match event:
        case PodSucceeded():
            progress = state.progress[event.pod.pod_set]
            done = replace(progress, succeeded=progress.succeeded + 1)
            edit.state = replace(state, progress=state.progress | {event.pod.pod_set: done})
            ends = is_completed(edit.state, edit.pods, ends=1)
        case PodFailed():
            edit.state = replace(state, failures=state.failures + 1)
            ends = event.retry_at is None
        case PodStarting() | PodRunning() | PodUnreachable() | PodWarned() | PodInterrupted() | PodStopped():
            pass
        case _:
            assert_never(event)
    if ends:
        edit.settle()
    over = state.phase in CLOSING or state.desired is DesiredPhase.DELETED
    if isinstance(event, PodStopped | PodInterrupted) and state.desired is DesiredPhase.RUNNING and not over:
        lost = state.gpu_milli_seconds_lost + milli_seconds_at_risk(state, pod, event.at)
        edit.state = state = replace(state, gpu_milli_seconds_lost=min(lost, MOST_MILLI_SECONDS))
    edit.pods.put(pod_id(event.pod), moved(pod, event, attempt=None if over else state.attempt))
    if isinstance(event, PodStopped) and (state.inference is not None or state.elastic):
        leave_if_surplus(edit, pod_id(event.pod))
    # What ends the workload is followed by its end: nothing is pending in between.
    if not ends and not isinstance(event, PodWarned):
        derive(edit)


def _take(edit: Edit, event: WorkloadEvent) -> None:
    state = edit.state
    match event:
        case WorkloadQueued():
            derive(edit, queued=True)
        case WorkloadWaiting():
            edit.state = replace(state, reason=event.reason, message=event.message)
        case ClusterChosen():
            if not state.cluster_id:
                edit.state = replace(state, cluster_id=event.cluster_id)
        case ClusterLeft():
            leave(edit, event)
        case LeftPodEnded():
            edit.state = without_left(state, event)
        case PodsBound():
            _bind(edit, event)
        case WorkloadSuspended():
            edit.state = replace(state, desired=DesiredPhase.STOPPED)
            _stop_pods(edit)
            derive(edit)
        case WorkloadStopped():
            say(edit, Phase.STOPPED)
        case WorkloadResumed():
            _resume(edit, event)
        case WorkloadCompleted():
            _finish(edit, Phase.COMPLETED, event.at, event.delete_at)
        case WorkloadFailed():
            _finish(edit, Phase.FAILED, event.at, event.delete_at)
            edit.state = replace(edit.state, reason=event.reason, message=event.message)
        case WorkloadLimitReached():
            _stop_pods(edit)
            for id_ in edit.pods.waiting.ids():
                edit.pods.put(id_, None)
            say(edit, Phase.TERMINATING, reason=event.reason, message=event.message)
        case WorkloadChanged():
            edit.state = after_change(state, event)
        case ActUndone():
            pass  # what follows from it is told by the events after it
        case WorkloadTransferred():
            edit.state = replace(state, owner=event.owner)
        case WorkloadScaled():
            scale(edit, event.replicas)
            derive(edit)
        case PodsEvicted():
            evict(edit, event)
        case CheckpointSaved():
            if state.checkpoint_at is None or event.at > state.checkpoint_at:
                edit.state = replace(state, checkpoint_at=event.at)
        case SessionOpened():
            edit.state = replace(state, sessions=(*state.sessions, _session(event)))
        case SessionClosed():
            left = tuple(one for one in state.sessions if one.session_id != event.session_id)
            edit.state = replace(state, sessions=left)
        case WorkloadDeletionRequested():
            edit.state = replace(
                state,
                # An ended workload without pods is deleted in the same commit: its last phase stays to be seen.
                phase=Phase.DELETING if edit.pods.live.size or state.left else state.phase,
                desired=DesiredPhase.DELETED,
                deletion_reason=event.reason,
                generation=state.generation + 1,
                delete_at=None,
            )
            _stop_pods(edit)
        case WorkloadDeleted():
            edit.state = replace(state, deleted_at=event.at)
            edit.pods.clear()
        case _:
            raise AssertionError(f"{event} is of a pod, or a creation")


def _session(event: SessionOpened) -> Session:
    return Session(session_id=event.session_id, kind=event.kind, pod=event.pod, at=event.at, ends_at=event.ends_at)


def _bind(edit: Edit, event: PodsBound) -> None:
    reached: dict[str, int] = {}
    for placement in event.placements:
        name, index = pod_id(placement.pod)
        pod = bound(edit.pods.get((name, index)), placement, event.token)
        if pod is not None:
            edit.pods.put((name, index), pod)
            reached[name] = max(reached.get(name, 0), index + 1)
    progress = dict(edit.state.progress)
    for name, next_index in reached.items():
        before = progress.get(name, NOT_BEGUN)
        progress[name] = replace(before, next_index=max(before.next_index, next_index))
    edit.state = replace(edit.state, progress=progress)
    derive(edit)


def _stop_pods(edit: Edit, *, outliving: AbstractSet[str] = frozenset()) -> None:
    """Every pod that holds a node is told to go, but for those of some pod sets. Those that only wait stay."""
    for id_, pod in edit.pods.live.items():
        if id_[0] not in outliving:
            edit.pods.put(id_, replace(pod, phase=PodPhase.STOPPING))


def _resume(edit: Edit, event: WorkloadResumed) -> None:
    for id_ in edit.pods.waiting.ids():
        edit.pods.put(id_, Pod(attempt=event.attempt, try_=0, phase=PodPhase.PENDING))
    say(edit, Phase.RESUMING)
    edit.state = replace(edit.state, desired=DesiredPhase.RUNNING, attempt=event.attempt, failures=0)
    if edit.state.inference is not None:
        # Whoever resumes it wants to see it run: it begins with as many as at first.
        scale(edit, first_replicas(edit.state.inference.serving))


def _finish(edit: Edit, phase: Phase, at: datetime, delete_at: datetime) -> None:
    _stop_pods(edit, outliving=frozenset(pod_set.name for pod_set in edit.state.pod_sets if pod_set.outlives))
    for id_ in edit.pods.waiting.ids():
        edit.pods.put(id_, None)
    say(edit, phase)
    edit.state = replace(edit.state, completed_at=at, delete_at=delete_at, generation=edit.state.generation + 1)
