"""Public events of workloads and their pods. Pure."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final, Literal, TypeGuard, assert_never

import msgspec

from events.phases import Phase, PodPhase, nodes_unreachable
from events.public.shape import (
    MOST_NAME_CHARACTERS,
    Happening,
    OfWorkload,
    PublicEvent,
    Told,
    cut,
    fit,
    fit_or_none,
)
from events.workload.changes import WorkloadChanged as Changed
from events.workload.edit import Edit
from events.workload.evictions import PodsEvicted
from events.workload.life import WorkloadCreated, WorkloadEvent, take
from events.workload.life import WorkloadDeleted as Deleted
from events.workload.life import WorkloadTransferred as Transferred
from events.workload.lost_cluster import ClusterLeft
from events.workload.pod import (
    Placement,
    Pod,
    PodFailed,
    PodInterrupted,
    PodRef,
    PodRunning,
    PodsBound,
    PodStopped,
    PodSucceeded,
    is_of_pod,
    pod_id,
)
from events.workload.pod_sets import PodSet
from events.workload.pods import Pods, PodsEdit
from events.workload.sizes import WorkloadScaled as Scaled
from events.workload.sizes import grows_by
from events.workload.state import Workload

PLACED_AT_ONCE: Final = 100
"""Placements in one event. It is part of the contract: ids follow from it."""
PLACED: Final = frozenset({Phase.INITIALIZING, Phase.RUNNING, Phase.DEGRADED, Phase.UNKNOWN})
"""Phases in which a workload has a place on a node."""


class AskedPods(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Pods that are alike, and what each of them asks for."""

    pod_set: str
    """Name of the set; `main` for a training."""
    count: int
    """How many must succeed."""
    parallelism: int
    """How many run at the same time, at most."""
    cpu_milli: int
    """Thousandths of a core."""
    memory_bytes: int
    """Memory of the node."""
    gpu_devices: int
    """Number of GPUs that it touches."""
    gpu_milli: int
    """Share of each GPU, in thousandths; 1000 for whole ones, 0 where the memory decides."""
    gpu_memory_bytes: int
    """Share of each GPU, by its memory; 0 where it is not asked for by memory."""


class Run(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One run of one pod."""

    pod_set: str
    """Name of its set."""
    index: int
    """From 0; the same for every run of this pod."""
    attempt: int
    """Counts the runs of the whole workload, from 1: it rises when the workload is resumed."""
    run: int
    """Counts the runs of this pod in the attempt, from 1."""


class PlacedRun(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A run, and where it was placed."""

    run: Run
    """The run."""
    node: str
    """Name of the node in its cluster."""
    node_pool: str
    """Node pool that the node was in."""
    gpu_milli: int
    """What it holds of the node's GPUs, in thousandths of a GPU."""


class WorkloadSubmitted(OfWorkload, frozen=True, kw_only=True, rename="camel"):
    """Somebody submitted a workload, and it was accepted. Its phase is Creating."""

    kind: str
    """Such as `Training`."""
    cluster_id: str
    """UUID of the cluster that runs it; empty where the scheduler chooses it."""
    owner: str
    """Actor id of who submitted it."""
    image: str
    """The container image."""
    priority_class: str
    """One of the seven classes, such as `medium`."""
    preemptible: bool
    """Whether others may take its place."""
    pods: list[AskedPods]
    """What is to be run."""
    at: datetime
    """When it was accepted."""


class PhaseEvent(OfWorkload, frozen=True, kw_only=True, rename="camel"):
    """The workload entered another phase."""

    previous_phase: str
    """The phase before."""
    reason: str
    """Code of the reason; empty where the phase says it all."""
    message: str
    """The same in a sentence, with numbers."""
    attempt: int
    """Counts the runs of the whole workload, from 1."""


class WorkloadPending(PhaseEvent, frozen=True, kw_only=True, rename="camel"):
    """It waits for a node."""


class WorkloadInitializing(PhaseEvent, frozen=True, kw_only=True, rename="camel"):
    """It has a node, and its pods are being prepared."""


class WorkloadRunning(PhaseEvent, frozen=True, kw_only=True, rename="camel"):
    """At least one of its processes runs."""


class WorkloadDegraded(PhaseEvent, frozen=True, kw_only=True, rename="camel"):
    """Some of its processes run, and others ended and do not run again yet."""


class WorkloadUnknown(PhaseEvent, frozen=True, kw_only=True, rename="camel"):
    """A node of it has not answered for long: nobody knows whether its pods there run."""


class WorkloadStopping(PhaseEvent, frozen=True, kw_only=True, rename="camel"):
    """Somebody suspended it, and its pods are being ended."""


class WorkloadStopped(PhaseEvent, frozen=True, kw_only=True, rename="camel"):
    """It is suspended, and its last pod is gone."""


class WorkloadResuming(PhaseEvent, frozen=True, kw_only=True, rename="camel"):
    """Somebody resumed it."""


class WorkloadCompleted(PhaseEvent, frozen=True, kw_only=True, rename="camel"):
    """As many pods have succeeded as it asked for. It will not run again."""

    delete_at: datetime | None
    """When it will be deleted by itself."""


class WorkloadTerminating(PhaseEvent, frozen=True, kw_only=True, rename="camel"):
    """A limit of its project on its time ends it: its pods are being ended, and it is Failed when they are gone."""


class WorkloadFailed(PhaseEvent, frozen=True, kw_only=True, rename="camel"):
    """It failed. It will not run again."""

    delete_at: datetime | None
    """When it will be deleted by itself."""


class WorkloadDeleting(PhaseEvent, frozen=True, kw_only=True, rename="camel"):
    """It is being deleted, and its pods are being ended."""


class WorkloadWaiting(OfWorkload, frozen=True, kw_only=True, rename="camel"):
    """It waits for another reason than before. Its phase stays the same."""

    phase: str
    """The phase in which it waits."""
    reason: str
    """Code of the reason, such as `insufficient_gpu`."""
    message: str
    """The same in a sentence, with numbers."""


class WorkloadPlaced(OfWorkload, frozen=True, kw_only=True, rename="camel"):
    """Runs of it were given nodes. Where there are more than 100 at once, several events tell of them."""

    placed: list[PlacedRun]
    """At most 100."""


class WorkloadEvicted(OfWorkload, frozen=True, kw_only=True, rename="camel"):
    """It lost its last place on a node through no act of its users, and waits for another one."""

    reason: str
    """Code of the reason, such as `node_lost`."""
    message: str
    """The same in a sentence."""


class WorkloadChanged(OfWorkload, frozen=True, kw_only=True, rename="camel"):
    """Somebody changed it. The event tells how it is now."""

    priority_class: str
    """One of the seven classes."""
    auto_deletion_time_after_completion_seconds: int
    """How long after its end it is deleted by itself."""
    delete_at: datetime | None
    """When it will be deleted by itself; null where it has not ended."""


class WorkloadTransferred(OfWorkload, frozen=True, kw_only=True, rename="camel"):
    """Somebody else is its owner from now on."""

    owner: str
    """Actor id of the new owner."""
    previous_owner: str
    """Actor id of who had it before."""


class WorkloadScaled(OfWorkload, frozen=True, kw_only=True, rename="camel"):
    """The number of replicas of an inference changed, with its load; or that of the workers of an elastic training,
    with what is left over.
    """

    replicas: int
    """How many there are to be from now on."""
    previous_replicas: int
    """How many there were to be before."""
    reason: Literal["load", "idle", "request", "grown", "shrunk", "tainted", "drained"]
    """`load`: the load on each replica; `idle`: nobody asked for long; `request`: somebody asked while there was none.
    Of an elastic training: `grown` by what nobody who waits could use; `shrunk` for somebody who waits; `tainted` and
    `drained`: by what was on such a node.
    """
    message: str
    """The load that it was decided by, or for whom, in a sentence."""


class WorkloadDeleted(OfWorkload, frozen=True, kw_only=True, rename="camel"):
    """It is deleted, its pods are gone, and its name is free."""

    reason: str
    """`user`, `auto_deletion`, `project_deleted` or `cluster_removed`."""
    last_phase: str
    """The phase that it had last."""
    at: datetime
    """When it was gone."""


class PodStarted(OfWorkload, frozen=True, kw_only=True, rename="camel"):
    """The process of a run began to run."""

    run: Run
    """The run."""
    node: str
    """Name of the node."""
    at: datetime
    """When its agent saw it."""


class PodEnded(OfWorkload, frozen=True, kw_only=True, rename="camel"):
    """A run is over."""

    run: Run
    """The run."""
    node: str
    """Name of the node."""
    outcome: Literal["succeeded", "failed", "interrupted", "stopped"]
    """`failed` used up a retry; `interrupted` did not, since the cause was outside of it; `stopped` was told to end."""
    exit_code: int | None
    """128 + n where signal n ended it. Null where there was no process, or it is not known."""
    reason: str
    """Code of the reason; empty where the outcome says it all."""
    message: str
    """The same in a sentence."""
    retry_at: datetime | None
    """When the pod may run again at the earliest. Null where it will not, or may at once."""
    at: datetime
    """When it ended."""


PHASE_EVENTS: Final[dict[Phase, type[PhaseEvent]]] = {
    Phase.PENDING: WorkloadPending,
    Phase.INITIALIZING: WorkloadInitializing,
    Phase.RUNNING: WorkloadRunning,
    Phase.DEGRADED: WorkloadDegraded,
    Phase.UNKNOWN: WorkloadUnknown,
    Phase.STOPPING: WorkloadStopping,
    Phase.STOPPED: WorkloadStopped,
    Phase.RESUMING: WorkloadResuming,
    Phase.TERMINATING: WorkloadTerminating,
    Phase.COMPLETED: WorkloadCompleted,
    Phase.FAILED: WorkloadFailed,
    Phase.DELETING: WorkloadDeleting,
}
"""By phase. Creating is told by WorkloadSubmitted."""

EVENTS: Final[tuple[type[PublicEvent], ...]] = (
    WorkloadSubmitted,
    *PHASE_EVENTS.values(),
    WorkloadWaiting,
    WorkloadPlaced,
    WorkloadEvicted,
    WorkloadChanged,
    WorkloadTransferred,
    WorkloadScaled,
    WorkloadDeleted,
    PodStarted,
    PodEnded,
)


def tell(happening: Happening[Workload]) -> Iterator[Told]:
    """The public events of a commit of a workload."""
    for index, event, was, state, pod, message, workers in _steps(happening):
        of = {
            "actor": happening.actor,
            "workload_id": state.workload_id,
            "name": cut(state.name),
            "project_id": state.project_id,
        }
        if isinstance(event, PodsBound):
            for part, told in enumerate(_placed(event, of)):
                yield Told(index, told, state.project_id, workload_id=state.workload_id, part=part)
        for told in (
            *_of_event(event, state, was, pod, of),
            *_resized(event, was, workers, of),
            *_of_phase(state, message, was, of),
        ):
            yield Told(index, told, state.project_id, workload_id=state.workload_id)


type _Step = tuple[int, WorkloadEvent, Workload, Workload, Pod | None, str, tuple[int, int]]
"""(number of the event, the event, the state before and after it, the pod that it is about as it was before it, what
the workload says after it, workers of an elastic one before and after it)."""


def _steps(happening: Happening[Workload]) -> Iterator[_Step]:
    """What each event of a commit did, on one copy of the state; what does not fit did nothing."""
    events, before, after = happening.commit.events, happening.before, happening.after
    if len(events) == 1 and not is_of_pod(events[0]):
        if after is not before:
            workers = (_workers(before, before.pods), _workers(after, after.pods)) if _resizes(events[0]) else (0, 0)
            yield 0, events[0], before, after, None, after.message, workers
        return
    edit = Edit(before)
    for index, event in enumerate(events):
        if isinstance(event, WorkloadCreated):
            edit = Edit(edit.value())  # another life of the name begins
        was = edit.state
        pod = edit.pods.live.get(pod_id(event.pod)) if is_of_pod(event) else None
        workers_before = _workers(was, edit.pods) if _resizes(event) else 0
        if take(edit, event):
            # Which nodes do not answer, the state leaves to be said later.
            message = nodes_unreachable(edit.pods.unseen) if edit.names_unseen else edit.state.message
            workers = workers_before, _workers(edit.state, edit.pods) if _resizes(event) else 0
            yield index, event, was, edit.state, pod, message, workers


def _resizes(event: WorkloadEvent) -> TypeGuard[PodsBound | PodsEvicted]:
    return isinstance(event, PodsBound | PodsEvicted)


def _workers(of: Workload, pods: Pods | PodsEdit) -> int:
    """Of an elastic workload: those that are not on their way out; 0 of any other."""
    if not of.elastic:
        return 0
    name = next(pod_set.name for pod_set in of.pod_sets if pod_set.elastic)
    return sum(id_[0] == name and pod.phase is not PodPhase.STOPPING for id_, pod in pods.live.items())


def _resized(
    event: WorkloadEvent, was: Workload, workers: tuple[int, int], of: dict[str, Any]
) -> Iterator[WorkloadScaled]:
    """That an elastic workload goes on with more or fewer workers; not that it does not, or that one runs again."""
    before, after = workers
    if not before or not after or before == after:
        return
    match event:
        case PodsBound() if grows_by(was, event):
            reason, message = "grown", "nobody who waits needs the place"
        case PodsEvicted(reason="shrunk" | "tainted" | "drained" as reason):
            message = event.message
        case _:
            return
    yield WorkloadScaled(replicas=fit(after), previous_replicas=fit(before), reason=reason, message=cut(message), **of)


def _of_event(
    event: WorkloadEvent, state: Workload, was: Workload, pod: Pod | None, of: dict[str, Any]
) -> Iterator[PublicEvent]:
    """What the event itself says, beside the phase that follows."""
    match event:
        case WorkloadCreated():
            yield _submitted(event, state, of)
        case Changed():
            yield WorkloadChanged(
                priority_class=cut(state.spec.priority_class),
                auto_deletion_time_after_completion_seconds=fit(state.spec.auto_deletion_time_after_completion_seconds),
                delete_at=state.delete_at,
                **of,
            )
        case Transferred():
            yield WorkloadTransferred(owner=cut(event.owner), previous_owner=cut(was.owner), **of)
        case Scaled():
            yield WorkloadScaled(
                replicas=fit(event.replicas),
                previous_replicas=fit(event.was),
                reason=event.reason,
                message=cut(event.message),
                **of,
            )
        case PodsEvicted() | ClusterLeft():
            if was.phase in PLACED and state.phase is Phase.PENDING:
                yield WorkloadEvicted(reason=event.reason, message=cut(event.message), **of)
        case Deleted():
            yield WorkloadDeleted(reason=cut(state.deletion_reason), last_phase=was.phase, at=event.at, **of)
        case PodRunning():
            if pod is not None and pod.phase is not PodPhase.UNKNOWN:
                yield PodStarted(run=_run(event.pod), node=_node(pod), at=event.at, **of)
        case PodSucceeded() | PodFailed() | PodInterrupted() | PodStopped():
            if pod is not None:
                yield _ended(event, pod, of)
            if isinstance(event, PodInterrupted) and was.phase in PLACED and state.phase is Phase.PENDING:
                yield WorkloadEvicted(reason=cut(event.reason), message=cut(event.message), **of)
        case _:
            pass


def _of_phase(state: Workload, message: str, was: Workload, of: dict[str, Any]) -> Iterator[PublicEvent]:
    if not was.exists or was.workload_id != state.workload_id:
        return
    said = {"reason": cut(state.reason), "message": cut(message)}
    if state.phase is not was.phase:
        kind = PHASE_EVENTS[state.phase]
        more = {"delete_at": state.delete_at} if kind in (WorkloadCompleted, WorkloadFailed) else {}
        yield kind(previous_phase=was.phase, attempt=fit(state.attempt), **said, **more, **of)
    elif state.reason and state.reason != was.reason:
        yield WorkloadWaiting(phase=state.phase, **said, **of)


def _submitted(event: WorkloadCreated, state: Workload, of: dict[str, Any]) -> WorkloadSubmitted:
    return WorkloadSubmitted(
        kind=cut(state.kind),
        cluster_id=cut(state.cluster_id),
        owner=cut(state.owner),
        image=cut(state.spec.image),
        priority_class=cut(state.spec.priority_class),
        preemptible=state.preemptible,
        pods=[_asked(pod_set) for pod_set in state.pod_sets],
        at=event.at,
        **of,
    )


def _asked(pod_set: PodSet) -> AskedPods:
    request = pod_set.template.request
    return AskedPods(
        pod_set=cut(pod_set.name, MOST_NAME_CHARACTERS),
        count=fit(pod_set.count),
        parallelism=fit(pod_set.most or pod_set.at_once),
        cpu_milli=fit(request.cpu_milli),
        memory_bytes=fit(request.memory_bytes),
        gpu_devices=fit(request.gpu_devices),
        gpu_milli=fit(request.gpu_milli),
        gpu_memory_bytes=fit(request.gpu_memory_bytes),
    )


def _placed(event: PodsBound, of: dict[str, Any]) -> Iterator[WorkloadPlaced]:
    for start in range(0, len(event.placements), PLACED_AT_ONCE):
        some = event.placements[start : start + PLACED_AT_ONCE]
        yield WorkloadPlaced(placed=[_placed_run(placement) for placement in some], **of)


def _placed_run(placement: Placement) -> PlacedRun:
    return PlacedRun(
        run=_run(placement.pod),
        node=cut(placement.node_name, MOST_NAME_CHARACTERS),
        node_pool=cut(placement.pool, MOST_NAME_CHARACTERS),
        gpu_milli=fit(sum(share.milli for share in placement.devices)),
    )


def _ended(event: PodSucceeded | PodFailed | PodInterrupted | PodStopped, pod: Pod, of: dict[str, Any]) -> PodEnded:
    outcome, code, reason, message, retry_at = "succeeded", None, "", "", None
    match event:
        case PodSucceeded():
            code = 0
        case PodFailed():
            outcome, code, retry_at = "failed", event.exit_code, event.retry_at
            reason, message = event.reason, event.message
        case PodInterrupted():
            outcome, reason, message, retry_at = "interrupted", event.reason, event.message, event.retry_at
        case PodStopped():
            outcome, code = "stopped", event.exit_code
        case _:
            assert_never(event)
    return PodEnded(
        run=_run(event.pod),
        node=_node(pod),
        outcome=outcome,
        exit_code=fit_or_none(code),
        reason=cut(reason),
        message=cut(message),
        retry_at=retry_at,
        at=event.at,
        **of,
    )


def _run(ref: PodRef) -> Run:
    pod_set = cut(ref.pod_set, MOST_NAME_CHARACTERS)
    return Run(pod_set=pod_set, index=fit(ref.index), attempt=fit(ref.attempt), run=fit(ref.run))


def _node(pod: Pod) -> str:
    return cut(pod.node_name, MOST_NAME_CHARACTERS)
