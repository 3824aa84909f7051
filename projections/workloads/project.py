"""What the events of a workload make of its rows: the workload itself, the runs of its pods, its due auto-deletion.

Pure, and on purpose not made of the aggregate's `evolve`: `muster log verify` compares the two.
"""

from datetime import datetime, timedelta
from typing import Any, Final, assert_never

import msgspec
from msgspec.structs import replace

from events.aggregate import BrokenChainError
from events.commit import Commit
from events.phases import FINISHED, NODE_UNREACHABLE, DesiredPhase, Phase, PodPhase, may_follow, nodes_unreachable
from events.workload.kinds import KINDS
from events.workload.pod import (
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
)
from events.workload.spec import PRIORITY_RANK, with_defaults
from events.workload.state import (
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
from projections.values import MAX_BIGINT, clean, fit, indexed, to_json
from projections.workloads.rows import DueRow, PodRow, WorkloadRow

RunKey = tuple[str, int, int, int]
"""(pod set, index, attempt, try)."""

PENDING: Final = PodPhase.PENDING.value
SUCCEEDED: Final = "Succeeded"
FAILED: Final = "Failed"
INTERRUPTED: Final = "Interrupted"
STOPPED: Final = "Stopped"
ENDED_POD_PHASES: Final = (SUCCEEDED, FAILED, INTERRUPTED, STOPPED)
"""Phases of a run that is over, beside those of `PodPhase`."""

WAITING: Final = frozenset({Phase.CREATING.value, Phase.PENDING.value, Phase.RESUMING.value})
"""Phases that count as pending time: it should run and has no node."""

_MICROSECOND: Final = timedelta(microseconds=1)


class WorkloadEntry(msgspec.Struct, frozen=True):
    """The rows of one workload that further events may change, and those that ended since it was read."""

    row: WorkloadRow | None = None
    pods: dict[RunKey, PodRow] = {}
    """Runs that are not over."""
    ended: tuple[PodRow, ...] = ()


def key_of(commit: Commit) -> str:
    """The workload's id: every commit of a name is about its newest incarnation."""
    first = commit.events[0] if commit.events else None
    return first.workload_id if isinstance(first, WorkloadCreated) else commit.record.about.id or ""


def begins(commit: Commit) -> bool:
    """Whether the commit makes its entry."""
    return bool(commit.events) and isinstance(commit.events[0], WorkloadCreated)


def begin_commit(entry: WorkloadEntry, commit: Commit) -> WorkloadEntry:
    """The entry at the commit's version. Raises BrokenChainError where it does not follow the one before."""
    row = entry.row
    if row is None:
        if begins(commit) or not commit.events:
            return entry
        raise BrokenChainError(f"commit {commit.seq} is about workload {key_of(commit)}, which has no row")
    if row.version != commit.record.parent_seq:
        raise BrokenChainError(
            f"workload {row.id}: commit {commit.seq} follows {commit.record.parent_seq}, its row is at {row.version}"
        )
    return WorkloadEntry(replace(row, version=commit.seq), entry.pods, entry.ended)


def evolve(entry: WorkloadEntry, event: WorkloadEvent, commit: Commit) -> WorkloadEntry:
    """The entry after one more event; the same where the event does not fit it, by the rules of the aggregate."""
    row = entry.row
    if isinstance(event, WorkloadCreated):
        same = row is not None and row.id == event.workload_id
        return entry if same else WorkloadEntry(_created(event, commit), {}, entry.ended)
    if row is None or row.deleted_at is not None or not countable(event):
        return entry
    if isinstance(event, PodEvent):
        pod = entry.pods.get(_run_key(event.pod))
        if pod is None or pod.phase == PENDING:
            return entry
    after = _evolve(entry, row, event, commit.record.occurred_at)
    assert after.row is not None, "an event took the row away"
    return after if after.row.phase == row.phase or may_follow(Phase(row.phase), Phase(after.row.phase)) else entry


def _evolve(entry: WorkloadEntry, row: WorkloadRow, event: WorkloadEvent, at: datetime) -> WorkloadEntry:
    pods, ended = entry.pods, entry.ended
    match event:
        case WorkloadCreated():
            raise AssertionError("a workload begins only once")
        case WorkloadQueued():
            return WorkloadEntry(_settled(replace(row, queued=True), pods, at), pods, ended)
        case WorkloadWaiting():
            told = replace(row, phase_reason=clean(event.reason), phase_message=clean(event.message))
            return WorkloadEntry(told, pods, ended)
        case PodsBound():
            pods = _bound(row.id, pods, event, at)
            return WorkloadEntry(_settled(row, pods, at), pods, ended)
        case PodWarned():
            # What a pod is warned of says nothing about why others wait.
            return WorkloadEntry(row, _progressed(pods, event), ended)
        case PodStarting() | PodRunning() | PodUnreachable():
            key = _run_key(event.pod)
            before, pods = pods[key], _progressed(pods, event)
            if isinstance(event, PodRunning) and row.started_at is None:
                row = replace(row, started_at=event.at)
            return WorkloadEntry(_phased(_one_moved(row, before, pods[key]), pods, at), pods, ended)
        case PodSucceeded() | PodFailed() | PodInterrupted() | PodStopped():
            return _run_ended(entry, row, event, at)
        case WorkloadSuspended():
            pods = _stopping(pods)
            return WorkloadEntry(
                _settled(replace(row, desired_phase=DesiredPhase.STOPPED.value), pods, at), pods, ended
            )
        case WorkloadStopped():
            stopped = replace(_moved(row, Phase.STOPPED, at), phase_reason="", phase_message="")
            return WorkloadEntry(stopped, pods, ended)
        case WorkloadResumed():
            return _resumed(entry, row, event, at)
        case WorkloadCompleted():
            return _finished(entry, row, Phase.COMPLETED, event, at)
        case WorkloadFailed():
            return _finished(entry, row, Phase.FAILED, event, at)
        case WorkloadChanged():
            return WorkloadEntry(_changed(row, event), pods, ended)
        case WorkloadDeletionRequested():
            return _deletion_requested(entry, row, at)
        case WorkloadDeleted():
            # The last stay in a phase ends with the workload.
            gone = replace(_moved(row, None, at), phase=row.phase, deleted_at=event.at)
            return WorkloadEntry(_counted(gone, {}), {}, ended)
        case _:
            assert_never(event)


def due_row(row: WorkloadRow | None) -> DueRow | None:
    """What the auto-deletion waits for; None where it waits for nothing."""
    if row is None or row.delete_at is None or row.deleted_at is not None:
        return None
    return DueRow(workload_id=row.id, generation=row.generation, due_at=row.delete_at)


def _created(event: WorkloadCreated, commit: Commit) -> WorkloadRow:
    spec = with_defaults(event.spec)
    sets = KINDS[event.kind].pod_sets(spec)
    at_once = [(pod_set.template.request, pod_set.at_once) for pod_set in sets]
    priority = spec.priority_class or ""
    return WorkloadRow(
        id=event.workload_id,
        key=commit.key,
        version=commit.seq,
        name=indexed(event.name),
        requested_name=clean(event.requested_name),
        type=clean(event.kind),
        project_id=indexed(event.project_id),
        cluster_id=clean(event.cluster_id),
        submitted_by=indexed(event.owner),
        phase=Phase.CREATING.value,
        phase_reason="",
        phase_message="",
        phase_updated_at=commit.record.occurred_at,
        desired_phase=DesiredPhase.RUNNING.value,
        queued=False,
        ended=False,
        created_at=event.at,
        priority_class=priority,
        priority_rank=PRIORITY_RANK[priority],
        preemptibility=spec.preemptibility or "",
        category=clean(spec.category or ""),
        image=clean(spec.image or ""),
        node_pools=tuple(clean(pool) for pool in spec.node_pools or ()),
        labels=tuple(sorted(clean(f"{label.name}={label.value or ''}") for label in spec.labels or ())),
        label_keys=tuple(sorted(clean(label.name) for label in spec.labels or ())),
        completions=fit(sum(pod_set.count for pod_set in sets)),
        parallelism=fit(sum(pod_set.parallelism for pod_set in sets)),
        backoff_limit=fit(spec.backoff_limit or 0),
        auto_deletion_seconds=fit(spec.auto_deletion_time_after_completion_seconds or 0),
        requested_pods=fit(sum(count for _, count in at_once)),
        pod_cpu_milli=fit(sets[0].template.request.cpu_milli),
        pod_memory_bytes=fit(sets[0].template.request.memory_bytes),
        gpu_request_milli=fit(sum(n * s.gpu_devices * s.gpu_milli for s, n in at_once)),
        gpu_memory_request_bytes=fit(sum(n * s.gpu_devices * s.gpu_memory_bytes for s, n in at_once)),
        cpu_request_milli=fit(sum(n * s.cpu_milli for s, n in at_once)),
        memory_request_bytes=fit(sum(n * s.memory_bytes for s, n in at_once)),
    )


# -- what follows from the pods --------------------------------------------------------------------------------------


def _settled(row: WorkloadRow, pods: dict[RunKey, PodRow], at: datetime) -> WorkloadRow:
    """The row with its counts, and with the phase that follows from desire and pods."""
    return _phased(_counted(row, pods), pods, at)


def _phased(row: WorkloadRow, pods: dict[RunKey, PodRow], at: datetime) -> WorkloadRow:
    """The row, whose counts are right, with the phase that follows from desire and pods."""
    if row.ended or row.desired_phase == DesiredPhase.DELETED:
        return row
    if row.desired_phase == DesiredPhase.STOPPED:
        return _moved(row, Phase.STOPPING, at) if row.live_pods else row
    all_run = row.running_pods == row.live_pods
    unseen = [] if all_run else [pod.node_name for pod in pods.values() if pod.phase == PodPhase.UNKNOWN]
    if unseen:
        row = _moved(row, Phase.UNKNOWN, at)
        return replace(row, phase_reason=NODE_UNREACHABLE, phase_message=nodes_unreachable(unseen))
    if row.running_pods:
        phase: Phase | None = Phase.RUNNING
    elif not all_run and any(pod.phase in (PodPhase.BOUND, PodPhase.STARTING) for pod in pods.values()):
        phase = Phase.INITIALIZING
    else:
        phase = Phase.PENDING if row.queued else None
    # Why it waits is told only while it waits.
    still = row.phase == Phase.PENDING == phase
    if phase is not None and phase != row.phase:
        row = _moved(row, phase, at)
    if not still and (row.phase_reason or row.phase_message):
        row = replace(row, phase_reason="", phase_message="")
    return row


def _counted(row: WorkloadRow, pods: dict[RunKey, PodRow]) -> WorkloadRow:
    """The row with what its pods hold."""
    live = [pod for pod in pods.values() if pod.phase != PENDING]
    if not live and not row.live_pods:
        return row
    return replace(
        row,
        live_pods=len(live),
        running_pods=sum(pod.phase == PodPhase.RUNNING for pod in live),
        current_nodes=tuple(sorted({pod.node_name for pod in live})),
        current_node_pools=tuple(sorted({pod.node_pool for pod in live})),
        gpu_allocated_milli=fit(sum(pod.gpu_milli for pod in live)),
        cpu_allocated_milli=fit(len(live) * row.pod_cpu_milli),
        memory_allocated_bytes=fit(len(live) * row.pod_memory_bytes),
    )


# The same for one run, at a cost that does not grow with the others: of ten thousand, each has several events.


def _one_moved(row: WorkloadRow, before: PodRow, after: PodRow) -> WorkloadRow:
    """As `_counted`, where one run that holds a node went from phase to phase."""
    more = (after.phase == PodPhase.RUNNING) - (before.phase == PodPhase.RUNNING)
    return replace(row, running_pods=row.running_pods + more) if more else row


def _one_over(row: WorkloadRow, over: PodRow, pods: dict[RunKey, PodRow]) -> WorkloadRow:
    """As `_counted`, where one run that held a node is over; `pods`: the others, and what waits."""
    live = row.live_pods - 1
    if live <= 0 or row.gpu_allocated_milli == MAX_BIGINT:
        return _counted(row, pods)
    others = pods.values()
    nodes, pools = row.current_nodes, row.current_node_pools
    if not any(pod.node_name == over.node_name and pod.phase != PENDING for pod in others):
        nodes = tuple(node for node in nodes if node != over.node_name)
    if not any(pod.node_pool == over.node_pool and pod.phase != PENDING for pod in others):
        pools = tuple(pool for pool in pools if pool != over.node_pool)
    return replace(
        row,
        live_pods=live,
        running_pods=row.running_pods - (over.phase == PodPhase.RUNNING),
        current_nodes=nodes,
        current_node_pools=pools,
        gpu_allocated_milli=row.gpu_allocated_milli - over.gpu_milli,
        cpu_allocated_milli=fit(live * row.pod_cpu_milli),
        memory_allocated_bytes=fit(live * row.pod_memory_bytes),
    )


def _moved(row: WorkloadRow, phase: Phase | None, at: datetime) -> WorkloadRow:
    """The row in another phase, with the stay in the one before added up; None: the stay ends without another one."""
    if phase is not None and phase == row.phase:
        return row
    stayed = max((at - row.phase_updated_at) // _MICROSECOND, 0)
    changes: dict[str, Any] = {"phase_updated_at": at}
    if row.phase in WAITING:
        changes["pending_micros"] = fit(row.pending_micros + stayed)
    elif row.phase == Phase.RUNNING:
        changes["running_micros"] = fit(row.running_micros + stayed)
    if phase is not None:
        changes["phase"] = phase.value
    elif len(changes) == 1:
        return row
    else:
        # Deleted in mid-phase: the phase did not move, so neither does the time it last did.
        del changes["phase_updated_at"]
    return replace(row, **changes)


# -- runs of pods ----------------------------------------------------------------------------------------------------


def _run_key(ref: PodRef) -> RunKey:
    return indexed(ref.pod_set), ref.index, ref.attempt, ref.try_


def _bound(workload_id: str, pods: dict[RunKey, PodRow], event: PodsBound, at: datetime) -> dict[RunKey, PodRow]:
    pods = dict(pods)
    taken = {(pod.pod_set, pod.index): key for key, pod in pods.items()}
    for placement in event.placements:
        key = _run_key(placement.pod)
        before = pods.get(key)
        if taken.setdefault(key[:2], key) != key or (before is not None and before.phase != PENDING):
            continue
        pods[key] = PodRow(
            workload_id=workload_id,
            pod_set=indexed(placement.pod.pod_set),
            index=placement.pod.index,
            attempt=placement.pod.attempt,
            try_=placement.pod.try_,
            phase=PodPhase.BOUND.value,
            node_key=clean(placement.node_key),
            node_name=clean(placement.node_name),
            node_pool=clean(placement.pool),
            devices=to_json(placement.devices),
            gpu_milli=fit(sum(share.milli for share in placement.devices)),
            token=event.token,
            interruptions=before.interruptions if before else 0,
            bound_at=at,
        )
    return pods


def _progressed(
    pods: dict[RunKey, PodRow], event: PodStarting | PodRunning | PodUnreachable | PodWarned
) -> dict[RunKey, PodRow]:
    key = _run_key(event.pod)
    pod = pods[key]
    match event:
        case PodStarting():
            changed = replace(pod, phase=PodPhase.STARTING.value, reason="", message=clean(event.message))
        case PodRunning():
            # One that was out of sight began before.
            started_at = pod.started_at or event.at
            changed = replace(_calm(pod), phase=PodPhase.RUNNING.value, started_at=started_at, interruptions=0)
        case PodUnreachable():
            told = replace(pod, reason=clean(event.reason), message=clean(event.message))
            changed = replace(told, phase=PodPhase.UNKNOWN.value)
        case PodWarned():
            changed = replace(pod, reason=clean(event.reason), message=clean(event.message))
        case _:
            assert_never(event)
    return pods | {key: changed}


def _calm(pod: PodRow) -> PodRow:
    """The run without the warning that is over with this."""
    return replace(pod, reason="", message="") if pod.reason else pod


def _run_ended(
    entry: WorkloadEntry,
    row: WorkloadRow,
    event: PodSucceeded | PodFailed | PodInterrupted | PodStopped,
    at: datetime,
) -> WorkloadEntry:
    key = _run_key(event.pod)
    pods = dict(entry.pods)
    pod = pods.pop(key)
    match event:
        case PodSucceeded():
            over = replace(_calm(pod), phase=SUCCEEDED, finished_at=event.at, exit_code=0)
            row = replace(row, succeeded_pods=row.succeeded_pods + 1)
        case PodFailed() | PodInterrupted():
            failed = isinstance(event, PodFailed)
            over = replace(
                pod,
                phase=FAILED if failed else INTERRUPTED,
                finished_at=event.at,
                exit_code=_code(event.exit_code) if failed else None,
                reason=clean(event.reason),
                message=clean(event.message),
            )
            again = _waiting(
                pod,
                attempt=pod.attempt,
                try_=pod.try_ + 1,
                not_before=event.retry_at,
                interruptions=pod.interruptions + (not failed),
            )
            pods[again.pod_set, again.index, again.attempt, again.try_] = again
            row = replace(row, failed_runs=row.failed_runs + failed)
        case PodStopped():
            over = replace(_calm(pod), phase=STOPPED, finished_at=event.at, exit_code=_code(event.exit_code))
            if not row.ended and row.desired_phase != DesiredPhase.DELETED:
                same = pod.attempt == row.attempt
                again = _waiting(pod, attempt=row.attempt, try_=pod.try_ + 1 if same else 0)
                pods[again.pod_set, again.index, again.attempt, again.try_] = again
        case _:
            assert_never(event)
    # What ends the workload follows in the same commit: nothing is pending in between.
    ends = (isinstance(event, PodSucceeded) and row.succeeded_pods == row.completions) or (
        isinstance(event, PodFailed) and event.retry_at is None
    )
    row = _one_over(row, pod, pods)
    return WorkloadEntry(row if ends else _phased(row, pods, at), pods, (*entry.ended, over))


def _code(code: int | None) -> int | None:
    return None if code is None else fit(code)


def _waiting(
    pod: PodRow, *, attempt: int, try_: int, not_before: datetime | None = None, interruptions: int = 0
) -> PodRow:
    """The run that the pod waits for."""
    return PodRow(
        workload_id=pod.workload_id,
        pod_set=pod.pod_set,
        index=pod.index,
        attempt=attempt,
        try_=try_,
        phase=PENDING,
        not_before=not_before,
        interruptions=interruptions,
    )


def _stopping(pods: dict[RunKey, PodRow]) -> dict[RunKey, PodRow]:
    """Every run that holds a node is told to go."""
    return {
        key: pod if pod.phase == PENDING else replace(pod, phase=PodPhase.STOPPING.value) for key, pod in pods.items()
    }


# -- the workload itself ---------------------------------------------------------------------------------------------


def _resumed(entry: WorkloadEntry, row: WorkloadRow, event: WorkloadResumed, at: datetime) -> WorkloadEntry:
    pods: dict[RunKey, PodRow] = {}
    for key, pod in entry.pods.items():
        if pod.phase == PENDING:
            again = _waiting(pod, attempt=event.attempt, try_=0)
            pods[again.pod_set, again.index, again.attempt, again.try_] = again
        else:
            pods[key] = pod
    resumed = replace(
        _moved(row, Phase.RESUMING, at),
        desired_phase=DesiredPhase.RUNNING.value,
        queued=False,
        phase_reason="",
        phase_message="",
        attempt=event.attempt,
        failed_runs=0,
    )
    return WorkloadEntry(_counted(resumed, pods), pods, entry.ended)


def _finished(
    entry: WorkloadEntry, row: WorkloadRow, phase: Phase, event: WorkloadCompleted | WorkloadFailed, at: datetime
) -> WorkloadEntry:
    assert phase in FINISHED, f"{phase} ends nothing"
    failed = isinstance(event, WorkloadFailed)
    pods = {key: pod for key, pod in _stopping(entry.pods).items() if pod.phase != PENDING}
    ended = replace(
        _moved(row, phase, at),
        ended=True,
        completed_at=event.at,
        delete_at=event.delete_at,
        generation=row.generation + 1,
        phase_reason=clean(event.reason) if failed else "",
        phase_message=clean(event.message) if failed else "",
        exit_code=_code(event.exit_code) if failed else 0,
    )
    return WorkloadEntry(_counted(ended, pods), pods, entry.ended)


def _deletion_requested(entry: WorkloadEntry, row: WorkloadRow, at: datetime) -> WorkloadEntry:
    pods = _stopping(entry.pods)
    if row.live_pods:
        row = _moved(row, Phase.DELETING, at)
    deleting = replace(row, desired_phase=DesiredPhase.DELETED.value, generation=row.generation + 1, delete_at=None)
    return WorkloadEntry(_counted(deleting, pods), pods, entry.ended)


def _changed(row: WorkloadRow, event: WorkloadChanged) -> WorkloadRow:
    changes: dict[str, Any] = {}
    if event.priority_class is not None:
        changes |= {"priority_class": event.priority_class, "priority_rank": PRIORITY_RANK[event.priority_class]}
    if event.auto_deletion_time_after_completion_seconds is not None:
        changes["auto_deletion_seconds"] = fit(event.auto_deletion_time_after_completion_seconds)
    if event.delete_at is not None:
        changes |= {"delete_at": event.delete_at, "generation": row.generation + 1}
    return replace(row, **changes)
