"""One plain sentence for each event of a workload, with the numbers that a person needs to act. Pure.

They are made from the event and what it found and left (`Happened`); times and amounts are written for people. A
changed sentence shows up in old histories with the next rebuild.
"""

import shlex
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Final, NamedTuple, assert_never

from events.actors import SERVICE_PREFIX
from events.cluster import DEFAULT_POOL
from events.commit import Actor
from events.phases import ENDS_AT_ONCE, PodPhase
from events.quantities import format_bytes
from events.workload.at_risk import CheckpointSaved
from events.workload.changes import WorkloadChanged
from events.workload.evictions import PodsEvicted
from events.workload.fields.storage import StorageSpec
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
)
from events.workload.lost_cluster import ClusterLeft, LeftPodEnded
from events.workload.pod import (
    DeviceShare,
    Placement,
    Pod,
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
from events.workload.sessions import SessionClosed, SessionOpened
from events.workload.sizes import WorkloadScaled, grows_by
from events.workload.spec import WHOLE_GPU_MILLI, Distributed, PodRequest
from events.workload.state import Workload
from projections.workloads.facts import Asked

CLUSTER_REMOVED: Final = "cluster_removed"
"""Reason of an interruption after which nothing is placed any more: a workload stays with its cluster."""
MAX_NAMED_MARKS: Final = 5
"""Labels and annotations, likewise."""
LEAST_HOURS: Final = 0.01
"""Of work at risk; less is not told."""
MAX_NAMED_PLACEMENTS: Final = 3
"""More than this many pods in one sentence nobody reads."""


_UNDONE: Final = {
    "WorkloadSuspended": "its suspension",
    "WorkloadResumed": "its resumption",
    "WorkloadChanged": "a change",
}


class Happened(NamedTuple):
    """What an event found and left. Nothing is to be read of the pods of the two states: they may be older."""

    was: Workload
    state: Workload
    asked: Asked
    """Of the workload as it was; of a new one, as it is."""
    live: int
    """Pods that hold a node after it."""
    pod: Pod | None = None
    """The one that it names, as it was."""
    started_at: datetime | None = None
    """When the run that it names began to run."""


def sentence(happened: Happened, event: WorkloadEvent, actor: Actor) -> str:
    """The sentence of `event`."""
    match event:
        case WorkloadCreated():
            return _created(event, happened)
        case WorkloadQueued() | WorkloadWaiting() | ClusterChosen():
            return _queued(event)
        case ClusterLeft() | LeftPodEnded():
            return _left(event)
        case PodsBound():
            return f"{_grown(event, happened)}{_bound(event)}"
        case PodStarting():
            told = f": {event.message}" if event.message else ""
            return f"pod {_pod(event.pod)} is {_again(happened)}starting{_on(happened)}{told}"
        case PodRunning():
            return f"{_run(event.pod)} is {_again(happened)}running{_on(happened)}"
        case PodUnreachable():
            told = f": {event.message}" if event.message else ""
            where = _on(happened)
            return f"{_run(event.pod)}{where} is out of sight{told}; what it holds stays reserved until it is known"
        case PodWarned():
            return f"pod {_pod(event.pod)}{_on(happened)}: {event.message or event.reason.replace('_', ' ')}"
        case PodSucceeded():
            of = max(happened.asked.completions, happened.state.succeeded)
            done = f"{happened.state.succeeded} of {of} done"
            return f"pod {_pod(event.pod)} succeeded{_lasted(happened, event.at)} ({done})"
        case PodFailed():
            return _failed(event, happened)
        case PodInterrupted():
            return _interrupted(event, happened)
        case PodStopped():
            return f"{_run(event.pod)} stopped{_code(event.exit_code)}{_lasted(happened, event.at)}"
        case WorkloadSuspended():
            return f"suspended by {_who(actor)}; {_told_to_stop(happened.live)}"
        case WorkloadStopped():
            return "stopped: its pods are gone and it holds no node; resume it to go on"
        case WorkloadResumed():
            return f"resumed by {_who(actor)}: attempt {event.attempt} begins, with a fresh budget of retries"
        case WorkloadCompleted():
            done = f"completed: {_count(event.succeeded, 'pod')} succeeded"
            return f"{done}, {_since_submission(event, happened.state)}; {_deleted_on(event.at, event.delete_at)}"
        case WorkloadFailed():
            return f"failed: {event.message}; {_deleted_on(event.at, event.delete_at)}"
        case WorkloadLimitReached():
            return f"terminating: {event.message}; {_told_to_stop(happened.live)}"
        case WorkloadChanged():
            return _changed(event, happened.asked, actor)
        case ActUndone():
            return f"{_who(actor)} undid {_UNDONE[event.act]} (sequence {event.sequence})"
        case WorkloadTransferred():
            return f"given by {_who(actor)} to {event.owner}; it was {_whose(happened.was.owner, actor)} before"
        case WorkloadScaled():
            told = f"{event.message}: " if event.message else ""
            return f"scaled: {told}{_count(event.replicas, 'replica')} (was {event.was})"
        case CheckpointSaved():
            return f"its work was saved at {event.at:%H:%M:%S} UTC: the newest file of its checkpoint folder"
        case PodsEvicted():
            return f"{event.reason}: {event.message}; {_told_to_stop(len(event.pods))}{_at_risk(event)}"
        case SessionOpened():
            return _session_opened(event, actor)
        case SessionClosed():
            return _session_closed(event)
        case WorkloadDeletionRequested():
            why = _WHY_DELETED.get(event.reason) or f"deletion asked for by {_who(actor)}"
            return f"{why}; {_told_to_stop(happened.live)}"
        case WorkloadDeleted():
            return "deleted: its name is free again, its record stays readable"
        case _:
            assert_never(event)


def _queued(event: WorkloadQueued | WorkloadWaiting | ClusterChosen) -> str:
    match event:
        case WorkloadQueued():
            return "queued: the scheduler looks for a node"
        case WorkloadWaiting():
            return f"waits: {event.message or event.reason}"
        case ClusterChosen():
            return f"cluster {event.name or event.cluster_id} runs it: nobody named one, and the scheduler chose it"


def _code(exit_code: int | None) -> str:
    return "" if exit_code is None else f" with exit code {exit_code}"


def _left(event: ClusterLeft | LeftPodEnded) -> str:
    if isinstance(event, LeftPodEnded):
        what = f"{_run(event.pod)} of attempt {event.pod.attempt}, which was left on a lost cluster"
        how = f"{_HOW_LEFT_ENDED[event.how]}{_code(event.exit_code)}"
        return f"{what}, {how}: what it held is free, and the attempts after it go on"
    told = ""
    if event.pods:
        whose = "its pod there is" if event.pods == 1 else f"its {event.pods} pods there are"
        told = f"; {whose} told to end once that cluster can be reached"
    return f"{event.reason}: {event.message}{told}; attempt {event.attempt} waits for another cluster"


_HOW_LEFT_ENDED: Final = {
    "succeeded": "succeeded",
    "failed": "failed",
    "interrupted": "was interrupted",
    "refused": "never ran",
    "stopped": "stopped",
}
"""By how a run ended that was left on a lost cluster."""

_WHY_DELETED: Final = {
    "auto_deletion": "auto-deletion: its time has come",
    "project_deleted": "deleted because its project was",
    "cluster_removed": "deleted because its cluster was removed",
}
"""By the reason of the deletion, where nobody asked for it."""


def _since_submission(event: WorkloadCompleted, state: Workload) -> str:
    return f"{duration(event.at - (state.created_at or event.at))} after submission"


def duration(span: timedelta) -> str:
    """A span for people: two units at most."""
    seconds = max(span.total_seconds(), 0.0)
    whole = round(seconds)
    if seconds < 60:  # noqa: PLR2004 (units of time need no names)
        return f"{round(seconds, 1):g} s"
    for unit, size, next_unit, next_size in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            rest = whole % size // next_size
            return f"{whole // size} {unit} {rest} {next_unit}" if rest else f"{whole // size} {unit}"
    return f"{whole} s"


def _created(event: WorkloadCreated, happened: Happened) -> str:
    parts: list[str] = []
    for pod_set in happened.state.pod_sets:
        at_once = pod_set.at_once
        alone = len(happened.state.pod_sets) == 1 and not pod_set.endless
        pods = _count(pod_set.most or pod_set.count, "pod" if alone else pod_set.name)
        pods = f"{pod_set.count} to {pods}" if pod_set.elastic else pods
        if pod_set.count > at_once:
            pods += f", {at_once} at a time"
        each = ", each" if max(pod_set.count, pod_set.most) > 1 else ""
        parts.append(f"{pods}{each} with {_request(pod_set.template.request)}")
    priority = f"priority {happened.asked.priority_class}, {happened.asked.preemptibility}"
    kind = "distributed training" if event.kind == "Distributed" else event.kind.lower()
    return f"submitted by {event.owner}: {kind} {event.name!r}, {'; '.join(parts)}; {priority}"


def _request(request: PodRequest) -> str:
    parts: list[str] = []
    if request.gpu_memory_bytes:
        parts.append(f"{format_bytes(request.gpu_memory_bytes)} of the memory of {_count(request.gpu_devices, 'GPU')}")
    elif request.gpu_milli == WHOLE_GPU_MILLI:
        parts.append(_count(request.gpu_devices, "GPU"))
    elif request.gpu_devices:
        parts.append(f"{request.gpu_milli / 10:g}% of {_count(request.gpu_devices, 'GPU')}")
    if request.cpu_milli:
        parts.append(f"{request.cpu_milli / 1000:g} CPU {'core' if request.cpu_milli == 1000 else 'cores'}")  # noqa: PLR2004
    if request.memory_bytes:
        parts.append(f"{format_bytes(request.memory_bytes)} memory")
    parts += [f"{each.amount} {each.resource}" for each in request.extended]
    return _listed(parts) if parts else "no resource requests"


def _grown(event: PodsBound, happened: Happened) -> str:
    """That an elastic workload that held nodes already has more pods."""
    new = grows_by(happened.was, event)
    return f"grown by {_count(new, 'pod')}, since nobody who waits needs the place: " if new else ""


def _bound(event: PodsBound) -> str:
    named = event.placements[:MAX_NAMED_PLACEMENTS]
    more = len(event.placements) - len(named)
    told = [_placement(placement) for placement in named]
    if more:
        told.append(f"{more} more {'pod' if more == 1 else 'pods'}")
    return f"bound {_listed(told)}"


def _placement(placement: Placement) -> str:
    with_ = f" with {_devices(placement.devices)}" if placement.devices else ""
    pool = f" (node pool {placement.pool})" if placement.pool != DEFAULT_POOL else ""
    return f"pod {_pod(placement.pod)} to node {placement.node_name}{pool}{with_}"


def _devices(devices: tuple[DeviceShare, ...]) -> str:
    if all(share.milli == WHOLE_GPU_MILLI for share in devices):
        numbers = [str(share.device) for share in devices]
        return f"{'GPU' if len(numbers) == 1 else 'GPUs'} {_listed(numbers)}"
    return _listed([f"{share.milli / 10:g}% of GPU {share.device}" for share in devices])


def _failed(event: PodFailed, happened: Happened) -> str:
    how = "failed" if event.exit_code is None else f"ended with exit code {event.exit_code}"
    if event.reason != "exit_code" and not event.message:
        how += f" ({event.reason.replace('_', ' ')})"
    told = f": {event.message}" if event.message else ""
    start = f"{_run(event.pod)} {how}{_lasted(happened, event.at)}{told}"
    failures, limit = happened.state.failures, happened.asked.backoff_limit
    if event.retry_at is not None and happened.state.inference is not None:
        return f"{start}; next run in {duration(event.retry_at - event.at)}"
    if event.reason in ENDS_AT_ONCE:
        return f"{start}; it is not tried again: it would fail the same way"
    if event.retry_at is None:
        return f"{start}; no retry is left (failed runs {failures}, backoff limit {limit})"
    wait = duration(event.retry_at - event.at)
    return f"{start}; next run in {wait} (retry {failures} of at most {limit})"


def _interrupted(event: PodInterrupted, happened: Happened) -> str:
    told = f": {event.message}" if event.message else ""
    when = "at once" if event.retry_at is None else f"in {duration(event.retry_at - event.at)}"
    again = f"it runs again {when} and spends no retry"
    if event.reason == CLUSTER_REMOVED:
        again = "it runs nowhere again: delete the workload and submit it to another cluster"
    reason = event.reason.replace("_", " ")
    return f"{_run(event.pod)} was interrupted{_on(happened)} ({reason}){told}; {again}"


def _changed(event: WorkloadChanged, before: Asked, actor: Actor) -> str:
    parts: list[str] = []
    if event.priority_class is not None:
        parts.append(f"priority {event.priority_class} (was {before.priority_class})")
    seconds = event.auto_deletion_time_after_completion_seconds
    if seconds is not None:
        after_end = f"{duration(timedelta(seconds=seconds))} after its end" if seconds else "at its end"
        parts.append(f"auto-deletion {after_end}")
    if event.delete_at is not None:
        parts.append(f"to be deleted on {_moment(event.delete_at)}")
    if event.labels is not None:
        parts.append(f"labels {_marks(f'{label.name}={label.value}' for label in event.labels)}")
    if event.annotations is not None:
        parts.append(f"annotations {_marks(one.name for one in event.annotations)}")
    if event.storage is not None:
        parts.append(f"volumes of runs that begin later {_marks(_moved_volumes(before.spec.storage, event.storage))}")
    distributed = before.beside
    if event.master_storage is not None and isinstance(distributed, Distributed) and distributed.master is not None:
        places = _moved_volumes(distributed.master.storage, event.master_storage)
        parts.append(f"volumes of later runs of the master {_marks(places)}")
    return f"changed by {_who(actor)}: {_listed(parts) or 'nothing'}"


def _moved_volumes(before: StorageSpec, after: StorageSpec) -> Iterator[str]:
    """Those that pods find elsewhere, as `/data->/sets`, and files with other rights."""
    for was, now in zip(before.pvc, after.pvc, strict=False):
        if was.path != now.path:
            yield f"{was.path}->{now.path}"
    for was, now in zip(before.secret_volume, after.secret_volume, strict=False):
        if was.mount_path != now.mount_path:
            yield f"{was.mount_path}->{now.mount_path}"
        if was.default_mode != now.default_mode:
            yield f"{now.mount_path} with {now.default_mode or '0644'}"


def _marks(marks: Iterable[str]) -> str:
    named = [*marks]
    more = len(named) - MAX_NAMED_MARKS
    return " ".join(named[:MAX_NAMED_MARKS]) + (f" and {more} more" if more > 0 else "") or "none"


def _session_opened(event: SessionOpened, actor: Actor) -> str:
    match event.kind:
        case "exec":
            what = f"runs {shlex.join(event.command)!r} in"
        case "attach":
            what = "is attached to"
        case "port-forward":
            what = f"reaches {'port' if len(event.ports) == 1 else 'ports'} {_listed([*map(str, event.ports)])} of"
        case _:
            assert_never(event.kind)
    told = " with a terminal" if event.tty else ", and can type" if event.stdin else ""
    return f"{_who(actor)} {what} {_run(event.pod)}{told} (session {event.session_id[:8]})"


def _session_closed(event: SessionClosed) -> str:
    code = "" if event.exit_code is None else f" with exit code {event.exit_code}"
    told = f": {event.message}" if event.message else ""
    moved = f"{format_bytes(event.bytes_in)} in, {format_bytes(event.bytes_out)} out"
    return f"session {event.session_id[:8]} is over{code} ({event.reason.replace('_', ' ')}){told}; {moved}"


def _told_to_stop(live: int) -> str:
    return f"{_count(live, 'pod')} told to stop" if live else "no pod holds a node"


def _deleted_on(at: datetime, delete_at: datetime) -> str:
    if delete_at <= at:
        return "to be deleted at once"
    return f"to be deleted on {_moment(delete_at)} (in {duration(delete_at - at)})"


def _moment(at: datetime) -> str:
    return f"{at.isoformat(' ', 'seconds')[:19]} UTC"


def _pod(ref: PodRef) -> str:
    return f"{ref.pod_set}-{ref.index}"


def _run(ref: PodRef) -> str:
    attempt = f" (attempt {ref.attempt})" if ref.attempt > 1 else ""
    return f"run {ref.run}{attempt} of pod {_pod(ref)}"


def _on(happened: Happened) -> str:
    pod = happened.pod
    return f" on node {pod.node_name}" if pod is not None and pod.node_name else ""


def _again(happened: Happened) -> str:
    pod = happened.pod
    return "in sight again, " if pod is not None and pod.phase is PodPhase.UNKNOWN else ""


def _lasted(happened: Happened, end: datetime) -> str:
    return "" if happened.started_at is None else f" after {duration(end - happened.started_at)}"


def _who(actor: Actor) -> str:
    """A person by id: who tells the sentence says the name in its place."""
    return f"the {actor.id.removeprefix(SERVICE_PREFIX)} service" if actor.kind == "service" else actor.id


def _at_risk(event: PodsEvicted) -> str:
    """What they lose unless they save it."""
    hours = event.gpu_seconds_at_risk / 3600
    return f", with {hours:.2g} GPU-hours of work that is not saved yet" if hours >= LEAST_HOURS else ""


def _whose(owner: str, actor: Actor) -> str:
    return "their own" if owner == actor.id else f"that of {owner}"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _listed(parts: list[str]) -> str:
    if len(parts) < 2:  # noqa: PLR2004 (a list of one needs no "and")
        return "".join(parts)
    return f"{', '.join(parts[:-1])} and {parts[-1]}"
