"""The life of a workload: what can have happened to one, its state, and how each event moves it. What happens to one of
its pods stands in `pod.py`.

The names and fields of events are the storage format: only ever extended. A changed shape gets a new version and an
upcaster (codec.py); every shape ever shipped keeps a golden payload.

Pods that are bound, or wait to be run again, are in `pods`. An index below its set's `next_index` that is not there
has succeeded: ten thousand finished pods cost a workload nothing.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final, Literal, assert_never

import msgspec
from msgspec.structs import replace

from events.phases import (
    CLOSING,
    CLUSTER_LOST,
    NODE_UNREACHABLE,
    PODS_RUN_AGAIN,
    SCALED_TO_ZERO,
    SCALED_TO_ZERO_MESSAGE,
    UNQUEUED,
    DesiredPhase,
    Phase,
    PodPhase,
    may_follow,
    nodes_unreachable,
    pods_run_again,
)
from events.workload.fields.connections import ExposedUrl
from events.workload.fields.inference import MOST_REPLICAS, ScaleReason, serving_url
from events.workload.fields.metadata import Annotation, Label
from events.workload.fields.scheduling import PriorityClass
from events.workload.fields.storage import StorageSpec
from events.workload.kinds import KINDS
from events.workload.made_from import MadeFrom
from events.workload.pod import (
    MOST_COUNTED,
    Pod,
    PodEvent,
    PodFailed,
    PodId,
    PodInterrupted,
    PodRef,
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
from events.workload.pod_sets import PodSet
from events.workload.pods import MapEdit, PodMap, Pods, PodsEdit
from events.workload.sessions import Session, SessionClosed, SessionOpened
from events.workload.spec import (
    NO_SPEC,
    PRIORITY_RANK,
    WHOLE_GPU_MILLI,
    Beside,
    Distributed,
    Inference,
    TrainingSpec,
    check_quantities,
    first_replicas,
)
from events.workload.volumes import check_volumes

# -- what can have happened --------------------------------------------------------------------------------------------


class _Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Settings that all events share: immutable, keyword-only, defaults not written."""


class WorkloadCreated(_Event, frozen=True, kw_only=True):
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


class WorkloadQueued(_Event, frozen=True, kw_only=True):
    """The scheduler added it to its queue: Creating or Resuming becomes Pending."""


class ClusterChosen(_Event, frozen=True, kw_only=True):
    """The scheduler chose the cluster of a workload for which nobody named one. Its first pods are bound there in the
    same commit.
    """

    cluster_id: str
    """UUID of the cluster that runs it from now on."""
    name: str
    """Of the cluster."""


class ClusterLeft(_Event, frozen=True, kw_only=True):
    """The cluster that was chosen for it has been lost for longer than its project waits. All its pods there are told
    to end, as soon as that cluster can be told, and it waits for a cluster again. What they hold stays reserved until
    they are known to be gone.
    """

    cluster_id: str
    """UUID of the cluster that it leaves."""
    name: str
    """Of the cluster."""
    at: datetime
    """When it was decided."""
    lost_since: datetime
    """When the cluster was found to be disconnected."""
    seconds: int
    """For how long its project waits."""
    pods: int
    """How many of its pods held a node there."""
    attempt: int
    """The new attempt. Pods of earlier attempts must not start any more."""
    among: tuple[str, ...]
    """UUIDs of the clusters among which its next one is chosen: those that run programs, or simulate them, as the one
    did that it leaves. That one is among them, for the time when nothing of the workload is left there.
    """

    @property
    def reason(self) -> str:
        """The code of it."""
        return CLUSTER_LOST

    @property
    def message(self) -> str:
        """Why, in a sentence."""
        return cluster_lost(self.name, self.lost_since, self.seconds)


def cluster_lost(name: str, since: datetime, seconds: int) -> str:
    """Why a workload leaves its cluster."""
    return (
        f"cluster {name} has not reported since {since:%Y-%m-%d %H:%M:%S} UTC, which is longer than its project waits "
        f"({seconds} s)"
    )


PodEnd = Literal["succeeded", "failed", "interrupted", "refused", "stopped"]
"""How a run can end, as its agent says it."""


class LeftPodEnded(_Event, frozen=True, kw_only=True):
    """A run that was left behind on a lost cluster is known to be over. That changes nothing of the attempts after it,
    whatever came of the run; what it holds can be released.
    """

    pod: PodRef
    """The run."""
    cluster_id: str
    """UUID of the cluster that its workload left."""
    at: datetime
    """When it ended, or was given up."""
    how: PodEnd
    """`succeeded`, `failed`, `interrupted`, `refused` or `stopped`."""
    exit_code: int | None = None
    """Exit code of the process, if it is known."""


class WorkloadWaiting(_Event, frozen=True, kw_only=True):
    """The workload could not be placed, for another reason than before."""

    reason: str
    """A waiting reason, such as `insufficient_gpu` (refusals.md)."""
    message: str
    """The same in a sentence, with numbers."""
    expected_start: datetime | None = None
    """When the scheduler expected it to start. Absent where it had no ground for an estimate."""


class WorkloadSuspended(_Event, frozen=True, kw_only=True):
    """Somebody suspended it. It becomes Stopped when its pods are gone."""


class WorkloadStopped(_Event, frozen=True, kw_only=True):
    """It was suspended, and its last pod is gone."""

    at: datetime
    """When the last pod was gone."""


class WorkloadResumed(_Event, frozen=True, kw_only=True):
    """Somebody resumed it."""

    attempt: int
    """The new attempt. Pods of earlier attempts must not start any more."""


class WorkloadCompleted(_Event, frozen=True, kw_only=True):
    """As many runs have succeeded as the spec requires."""

    at: datetime
    """When the last run ended."""
    succeeded: int
    """How many runs succeeded."""
    delete_at: datetime
    """When auto-deletion is due."""


class WorkloadFailed(_Event, frozen=True, kw_only=True):
    """It failed and will not run again."""

    at: datetime
    """When it ended."""
    reason: str
    """Code: `backoff_limit_exceeded`, `node_port_taken`, `no_claim`, `no_command`, `preempted`, or that of a limit
    on its time.
    """
    message: str
    """The same in a sentence."""
    delete_at: datetime
    """When auto-deletion is due."""
    exit_code: int | None = None
    """Exit code of the last failed run."""


class WorkloadLimitReached(_Event, frozen=True, kw_only=True):
    """A limit of its project on its time ends it: its pods are told to end, and it is Failed when they are gone."""

    at: datetime
    """When it was decided."""
    reason: str
    """Code: `runtime_limit`, `idle_gpu_limit` or `pending_limit`."""
    message: str
    """The same in a sentence."""


class WorkloadChanged(_Event, frozen=True, kw_only=True):
    """Somebody changed it. Absent fields are unchanged."""

    priority_class: PriorityClass | None = None
    """One of the seven classes."""
    auto_deletion_time_after_completion_seconds: int | None = None
    """Counted from the end of the workload."""
    delete_at: datetime | None = None
    """New time of the auto-deletion, if the workload has already ended."""
    labels: tuple[Label, ...] | None = None
    """All labels that it has from now on. Runs that begin later carry them."""
    annotations: tuple[Annotation, ...] | None = None
    """All annotations that it has from now on, likewise."""
    storage: StorageSpec | None = None
    """All volumes that it has from now on. Only mount paths of claims and Secrets, and rights of files, differ from
    before. Runs that begin later have them.
    """

    def __post_init__(self) -> None:
        if self.storage is not None:
            check_volumes(self.storage)


class WorkloadTransferred(_Event, frozen=True, kw_only=True):
    """Its owner, or an administrator, made somebody else its owner."""

    owner: str
    """Actor id of the new owner. Ownership protection compares it from now on."""


UndoableAct = Literal["WorkloadSuspended", "WorkloadResumed", "WorkloadChanged"]
"""Types of events that can be taken back."""


class ActUndone(_Event, frozen=True, kw_only=True):
    """Somebody took back what had been done to it. What follows from that stands beside it."""

    sequence: int
    """Sequence of the commit of that act."""
    act: UndoableAct
    """Type of its event."""


class WorkloadScaled(_Event, frozen=True, kw_only=True):
    """The number of replicas of an inference changed, with its load."""

    replicas: int
    """How many there are to be from now on. Where there are more, the newest are told to end."""
    was: int
    """How many there were to be before."""
    reason: ScaleReason
    """`load`, `idle` or `request`."""
    message: str = ""
    """The load that it was decided by, in a sentence."""


EvictionReason = Literal[
    "preempted", "reclaimed", "backfilled", "shrunk", "moved", "tainted", "drained", "window_closed", "reserved"
]
LEAVES_NODE: Final[frozenset[EvictionReason]] = frozenset({"tainted", "drained"})
"""Reasons that lie in the node: they hold for non-preemptible workloads, too, and nobody gets the place."""


class PodsEvicted(_Event, frozen=True, kw_only=True):
    """The scheduler took the place of some pods for another workload, or their node is to be without them. They are
    told to end, and then wait again.
    """

    pods: tuple[PodRef, ...]
    """The runs that are told to end."""
    attempt: int
    """The workload's from now on: another one where no pod of it goes on."""
    reason: EvictionReason
    """`preempted`: for a higher priority in its project; `reclaimed`: for a project below its quota; `backfilled`: for
    one of its project that has waited for longer, and was passed; `shrunk`: it goes on with fewer, since somebody waits
    for what it had grown by; `moved`: to make room in one piece, while another place is kept for them; `tainted`: their
    node has a taint that they do not tolerate, or no longer; `drained`: an administrator drains their node;
    `window_closed`: no window of their project is open, which ends what gives way; `reserved`: their node is kept for
    another project now.
    """
    message: str
    """For whom, and by which rule, in a sentence."""
    beneficiary: str
    """Id of the workload that gets the place; empty if none does."""
    gpu_seconds_at_risk: int = 0
    """What these runs have done since the newest file of the checkpoint folder, or since they began: GPUs times
    seconds. It is lost unless they save it before they end.
    """


class CheckpointSaved(_Event, frozen=True, kw_only=True):
    """A newer file was found in the folder that outlives its pods. Not each one is told: the first of a run, and then
    one in some minutes; and the last one when a run has ended.
    """

    pod: PodRef
    """The run whose agent found it."""
    at: datetime
    """When the file was changed last."""


class WorkloadDeletionRequested(_Event, frozen=True, kw_only=True):
    """Somebody or auto-deletion deleted it. It becomes Deleted when its pods are gone."""

    reason: str
    """`user`, `auto_deletion`, `project_deleted` or `cluster_removed`."""


class WorkloadDeleted(_Event, frozen=True, kw_only=True):
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


# -- state -------------------------------------------------------------------------------------------------------------

LONGEST_RETRY_WAIT: Final = timedelta(seconds=300)
"""Failed runs wait 1, 2, 4… s, at most this (architecture.md section 5)."""

MOST_GAVE_WAY_TO: Final = 50
"""That are remembered: some 2 kB of a workload that others keep from running."""
MOST_PODS: Final = 10_000
"""Of one set at a time: all that the API takes, and further ones wait."""


class SetProgress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    next_index: int = 0
    """The lowest index that was never bound."""
    succeeded: int = 0
    removed: int = 0
    """Pods that had to leave, since fewer are wanted, or there was room for fewer: their indexes are not used again."""


NOT_BEGUN: Final = SetProgress()


class Workload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The newest incarnation of a name; `workload_id` is empty where there never was one."""

    workload_id: str = ""
    name: str = ""
    requested_name: str = ""
    kind: str = ""
    project_id: str = ""
    cluster_id: str = ""
    """Empty where the scheduler chooses it, and has not yet."""
    among: tuple[str, ...] = ()
    """Ids of the clusters among which the scheduler chooses, or chose; none where one was named."""
    left: dict[str, PodMap[Pod]] = {}
    """By id of a cluster that it left, since that was lost: its runs there that nobody has seen end. They are told to
    end, and it goes to none of these clusters.
    """
    owner: str = ""
    """Actor id of who has it now."""
    created_by: str = ""
    """Actor id of who submitted it: the first owner."""
    spec: TrainingSpec = NO_SPEC
    distributed: Distributed | None = None
    """Of a distributed training alone."""
    inference: Inference | None = None
    """Of an inference alone."""
    made_from: MadeFrom | None = None
    created_at: datetime | None = None
    desired: DesiredPhase = DesiredPhase.RUNNING
    phase: Phase = Phase.CREATING
    reason: str = ""
    """Code of why it waits or failed; empty otherwise."""
    message: str = ""
    attempt: int = 1
    failures: int = 0
    """Failed runs of the attempt, counted against backoffLimit."""
    pods: Pods = Pods()
    progress: dict[str, SetProgress] = msgspec.field(default_factory=dict[str, SetProgress])
    delete_at: datetime | None = None
    generation: int = 0
    """Of the auto-deletion: a due time counts only while its generation is the newest."""
    completed_at: datetime | None = None
    """When it became Completed or Failed."""
    deletion_reason: str = ""
    deleted_at: datetime | None = None
    sessions: tuple[Session, ...] = ()
    """Ways into its pods that are open."""
    gave_way_to: tuple[str, ...] = ()
    """Ids of the workloads that got its place, the last ones: it never takes it back from them."""
    checkpoint_at: datetime | None = None
    """When the newest file that was told of in its checkpoint folder was changed."""
    gpu_milli_seconds_lost: int = 0
    """What runs that were evicted or interrupted had done since they saved their work last: thousandths of a GPU times
    seconds.
    """

    @property
    def exists(self) -> bool:
        return bool(self.workload_id)

    @property
    def living(self) -> bool:
        """Whether its name is taken."""
        return bool(self.workload_id) and self.deleted_at is None

    @property
    def queued(self) -> bool:
        """Whether the scheduler has taken up the running attempt."""
        return self.phase not in UNQUEUED

    @property
    def pod_sets(self) -> tuple[PodSet, ...]:
        """All that is to be run of it; none where there never was one."""
        return _pod_sets(self.kind, self.spec, self.distributed or self.inference) if self.workload_id else ()

    @property
    def elastic(self) -> bool:
        """Whether it may have more pods than start together."""
        return self.distributed is not None and any(pod_set.elastic for pod_set in self.pod_sets)

    @property
    def exposed_urls(self) -> tuple[ExposedUrl, ...]:
        """At which it is reached through the proxy, whatever its kind."""
        if self.inference is None:
            return self.spec.exposed_urls
        return (serving_url(self.inference.serving.serving_port),)

    @property
    def beside(self) -> Beside:
        """What its kind stores beside the spec."""
        return self.distributed or self.inference

    @property
    def preemptible(self) -> bool:
        """Whether others may take its place."""
        return self.spec.preemptibility != "non-preemptible"

    @property
    def priority_rank(self) -> int:
        return PRIORITY_RANK[self.spec.priority_class]

    @property
    def succeeded(self) -> int:
        succeeded = 0
        for progress in self.progress.values():
            succeeded += progress.succeeded
        return succeeded


_KEPT_POD_SETS: Final = 5_000
_known_pod_sets: Final[dict[int, tuple[str, TrainingSpec, Beside, tuple[PodSet, ...]]]] = {}
"""By the spec's identity: made once for a workload, and not for each fact of its pods (40 µs)."""


def _pod_sets(kind: str, spec: TrainingSpec, beside: Beside) -> tuple[PodSet, ...]:
    known = _known_pod_sets.get(id(spec))
    if known is not None and known[1] is spec and known[2] is beside and known[0] == kind:
        return known[3]
    if len(_known_pod_sets) >= _KEPT_POD_SETS:
        _known_pod_sets.clear()
    sets = _pod_sets_of_alike(kind, spec, beside)
    _known_pod_sets[id(spec)] = (kind, spec, beside, sets)
    return sets


@lru_cache(maxsize=100)
def _pod_sets_of_alike(kind: str, spec: TrainingSpec, beside: Beside) -> tuple[PodSet, ...]:
    """Workloads of one batch mostly have the same spec: to find it costs a twentieth of what making them does."""
    return KINDS[kind].pod_sets(spec, beside)


def schedulable(state: Workload) -> bool:
    named = state.workload_id and state.deleted_at is None  # it is living, said in one step: this is asked all the time
    return bool(named) and state.desired is DesiredPhase.RUNNING and state.phase not in CLOSING


def is_completed(state: Workload, pods: PodsEdit, *, ends: int = 0) -> bool:
    """Whether its kind takes it for completed. What an elastic one grew by ends with the others, and is waited for.

    Args:
        ends: how many of its live pods are just ending.
    """
    succeeded = {name: progress.succeeded for name, progress in state.progress.items()}
    sets = state.pod_sets
    if not KINDS[state.kind].completed(sets, succeeded):
        return False
    return not sets[0].elastic or pods.live.of_set(sets[0].name) <= ends


def bindable(state: Workload, now: datetime) -> list[PodRef]:
    """The pods that may be given a node now, in order: those to run again first, then new indexes. None where they
    would not be a whole gang.
    """
    if not schedulable(state):
        return []
    again: list[PodRef] = []
    if state.pods.waiting.size:
        again = [
            PodRef(pod_set=name, index=index, attempt=pod.attempt, try_=pod.try_)
            for (name, index), pod in sorted(state.pods.waiting.items())
            if _is_due(pod, now)
        ]
    refs: list[PodRef] = []
    together = False
    for pod_set in state.pod_sets:
        refs += [ref for ref in again if ref.pod_set == pod_set.name]
        refs += [
            PodRef(pod_set=pod_set.name, index=index, attempt=state.attempt, try_=0)
            for index in new_indexes(state, pod_set)
        ]
        together = together or pod_set.minimum > 0
    return [] if together and not is_whole(state, Counter(ref.pod_set for ref in refs)) else refs


def is_whole(state: Workload, more: Mapping[str, int]) -> bool:
    """Whether, with so many more pods of each set placed, every set has as many as must start together. Otherwise those
    would hold nodes for nothing, and two such workloads might each wait for what the other holds.
    """
    return all(
        placed_of(state, pod_set) + more.get(pod_set.name, 0) >= pod_set.minimum
        for pod_set in state.pod_sets
        if pod_set.minimum
    )


def placed_of(state: Workload, pod_set: PodSet) -> int:
    """Pods of the set that hold a node and are not on their way out, or have succeeded."""
    succeeded = state.progress.get(pod_set.name, NOT_BEGUN).succeeded
    staying = (
        name == pod_set.name and pod.phase is not PodPhase.STOPPING for (name, _), pod in state.pods.live.items()
    )
    return sum(staying) + succeeded


MOST_MILLI_SECONDS: Final = 2**62
"""That are counted of one workload: more than any cluster has, whatever a clock says."""


def milli_seconds_at_risk(state: Workload, pod: Pod, now: datetime) -> int:
    """What a pod has done that ends with it, since its workload saved its work last, or since it began: thousandths of
    a GPU times seconds.
    """
    return seconds_at_risk(state, pod, now) * sum(share.milli for share in pod.devices)


def gpu_hours_at_risk(state: Workload, now: datetime) -> float | None:
    """Of all its pods; None of an inference, whose replicas have nothing to lose."""
    if state.inference is not None:
        return None
    milli = sum(milli_seconds_at_risk(state, pod, now) for pod in state.pods.live.values())
    return milli / (WHOLE_GPU_MILLI * 3600)


def seconds_at_risk(state: Workload, pod: Pod, now: datetime) -> int:
    if pod.running_since is None:
        return 0
    since = pod.running_since if state.checkpoint_at is None else max(pod.running_since, state.checkpoint_at)
    return max(int((now - since).total_seconds()), 0)


def evictable(pod: Pod) -> bool:
    """Whether its place can be taken: what nobody sees, or ends anyway, gives none back by being told to end."""
    return pod.phase in {PodPhase.BOUND, PodPhase.STARTING, PodPhase.RUNNING}


def goes_on_without(state: Workload, refs: Iterable[PodRef]) -> bool:
    """Whether its other pods go on where these runs, which stay otherwise, have to end: of those that live together
    enough are left, and the one is, at which they meet.
    """
    refs = tuple(refs)
    going = Counter(ref.pod_set for ref in refs)
    if not is_whole(state, {name: -count for name, count in going.items()}):
        return False
    return not any(meets_at(state, pod_id(ref)) for ref in refs)


def meets_at(state: Workload, id_: PodId) -> bool:
    """Whether the others of an elastic workload meet at this pod: without it, all of them begin again."""
    sets = state.pod_sets
    return id_[1] == 0 and sets[0].name == id_[0] and state.elastic


def needed_of(state: Workload, pod_set: PodSet) -> int:
    """How many more pods of the set must have a place before the workload may go on."""
    missing = pod_set.minimum - placed_of(state, pod_set)
    id_ = (pod_set.name, 0)
    meets = pod_set.elastic and meets_at(state, id_) and state.pods.waiting.get(id_) is not None
    return max(missing, int(meets), 0)


def grows_by(before: Workload, event: PodsBound) -> int:
    """How many pods are added to an elastic workload that has had its first ones."""
    if not (before.progress and before.elastic):
        return 0
    first = {name: progress.next_index for name, progress in before.progress.items()}
    return sum(at.pod.index >= first.get(at.pod.pod_set, 0) for at in event.placements)


def leaving_with(state: Workload, refs: Iterable[PodRef]) -> tuple[PodRef, ...]:
    """The runs that are told to end where these have to: of a gang of which too few would be left, all. None where that
    is not possible now, since nobody sees some of them.
    """
    going = tuple(sorted(set(refs)))
    if goes_on_without(state, going):
        return going
    staying = [(id_, pod) for id_, pod in state.pods.live.items() if pod.phase is not PodPhase.STOPPING]
    if not all(evictable(pod) for _, pod in staying):
        return ()
    return tuple(
        sorted(PodRef(pod_set=name, index=index, attempt=p.attempt, try_=p.try_) for (name, index), p in staying)
    )


def bindable_among(state: Workload, refs: Iterable[PodRef], now: datetime) -> set[PodRef]:
    """Those of `refs` that are `bindable`; looks at no other pods."""
    if not schedulable(state):
        return set()
    new = {pod_set.name: new_indexes(state, pod_set) for pod_set in state.pod_sets}
    any_pods = len(state.pods) > 0
    found: set[PodRef] = set()
    for ref in refs:
        pod = state.pods.get(pod_id(ref)) if any_pods else None
        if pod is None:
            fits = ref.index in new.get(ref.pod_set, ()) and (ref.attempt, ref.try_) == (state.attempt, 0)
        else:
            fits = pod.phase is PodPhase.PENDING and pod.is_run(ref) and _is_due(pod, now)
        if fits:
            found.add(ref)
    return found


def new_indexes(state: Workload, pod_set: PodSet) -> range:
    """Those that may be bound for the first time: as many as there is room for beside the pods that are not over."""
    progress = state.progress.get(pod_set.name, NOT_BEGUN)
    if pod_set.elastic and progress.succeeded:
        return range(0)  # they end together: nothing is left to be done for one more
    not_over = progress.next_index - progress.succeeded - progress.removed
    at_once = pod_set.most if pod_set.elastic else pod_set.parallelism
    room = max(min(at_once, MOST_PODS) - not_over, 0)
    end = progress.next_index + room
    renews = pod_set.endless or pod_set.elastic
    return range(progress.next_index, end if renews else min(end, pod_set.count))


def _is_due(pod: Pod, now: datetime) -> bool:
    """Also where it would wait longer than any run does: a clock that was ahead has said until when."""
    return pod.not_before is None or not now < pod.not_before <= now + LONGEST_RETRY_WAIT


def next_retry_at(state: Workload, now: datetime) -> datetime | None:
    """When the next waiting pod may be placed, or the last one, where all start together; None where none waits for a
    time that is still to come.
    """
    if not (state.pods.waiting.size and schedulable(state)):
        return None
    times = [pod.not_before for pod in state.pods.waiting.values() if pod.not_before and not _is_due(pod, now)]
    together = not state.elastic and any(pod_set.minimum for pod_set in state.pod_sets)
    return (max if together else min)(times, default=None)


# -- evolve ----------------------------------------------------------------------------------------------------------


class Edit:
    """A workload while the events of a commit are folded into it: one copy, which changes in place."""

    __slots__ = ("_before", "fitted", "names_unseen", "pods", "state")

    def __init__(self, before: Workload) -> None:
        self._before = before
        self.state = before
        """Everything but the pods, which are those of `pods`."""
        self.pods = PodsEdit(before.pods)
        self.fitted = False
        """Whether any event did anything."""
        self.names_unseen = False
        """Whether the message is to name the nodes that do not answer, as they are in the end."""

    def settle(self) -> None:
        """Say what was left for the end of the commit: it ends here, and another one may follow."""
        _name_unseen(self)

    def value(self) -> Workload:
        """The workload as it is now; the very one it began with where no event fitted. Must be the last call."""
        if not self.fitted:
            return self._before
        _name_unseen(self)
        return replace(self.state, pods=self.pods.value())


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
    if isinstance(event, ClusterLeft | LeftPodEnded) and not _fits_left(before, event):
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
        _name_unseen(edit)
        _take(edit, event)
    if not may_follow(before.phase, edit.state.phase):
        edit.pods.undo()
        edit.state, edit.names_unseen = before, named
        return False
    edit.fitted = True
    return True


def _fits_left(state: Workload, event: ClusterLeft | LeftPodEnded) -> bool:
    if isinstance(event, ClusterLeft):
        return schedulable(state) and bool(state.cluster_id) and state.cluster_id == event.cluster_id
    run = state.left.get(event.cluster_id, _NO_PODS).get(pod_id(event.pod))
    return run is not None and run.is_run(event.pod)


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
        _name_unseen(edit)
    over = state.phase in CLOSING or state.desired is DesiredPhase.DELETED
    if isinstance(event, PodStopped | PodInterrupted) and state.desired is DesiredPhase.RUNNING and not over:
        lost = state.gpu_milli_seconds_lost + milli_seconds_at_risk(state, pod, event.at)
        edit.state = state = replace(state, gpu_milli_seconds_lost=min(lost, MOST_MILLI_SECONDS))
    edit.pods.put(pod_id(event.pod), moved(pod, event, attempt=None if over else state.attempt))
    if isinstance(event, PodStopped) and (state.inference is not None or state.elastic):
        _leave_if_surplus(edit, pod_id(event.pod))
    # What ends the workload is followed by its end: nothing is pending in between.
    if not ends and not isinstance(event, PodWarned):
        _derive(edit)


def _take(edit: Edit, event: WorkloadEvent) -> None:
    state = edit.state
    match event:
        case WorkloadQueued():
            _derive(edit, queued=True)
        case WorkloadWaiting():
            edit.state = replace(state, reason=event.reason, message=event.message)
        case ClusterChosen():
            if not state.cluster_id:
                edit.state = replace(state, cluster_id=event.cluster_id)
        case ClusterLeft():
            _leave(edit, event)
        case LeftPodEnded():
            edit.state = _without_left(state, event)
        case PodsBound():
            _bind(edit, event)
        case WorkloadSuspended():
            edit.state = replace(state, desired=DesiredPhase.STOPPED)
            _stop_pods(edit)
            _derive(edit)
        case WorkloadStopped():
            _say(edit, Phase.STOPPED)
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
            _say(edit, Phase.TERMINATING, reason=event.reason, message=event.message)
        case WorkloadChanged():
            edit.state = _changed(state, event)
        case ActUndone():
            pass  # what follows from it is told by the events after it
        case WorkloadTransferred():
            edit.state = replace(state, owner=event.owner)
        case WorkloadScaled():
            _scale(edit, event.replicas)
            _derive(edit)
        case PodsEvicted():
            _evict(edit, event)
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


def _derive(edit: Edit, *, queued: bool = False) -> None:
    """The phase that follows from desire and pods, for everything that is neither ended nor on its way out.

    Args:
        queued: whether the scheduler takes up the attempt just now.
    """
    state, pods = edit.state, edit.pods
    if state.phase in CLOSING or state.desired is DesiredPhase.DELETED:
        return
    if state.desired is DesiredPhase.STOPPED:
        if pods.live.size and state.phase is not Phase.STOPPING:
            edit.state = replace(state, phase=Phase.STOPPING)
        return
    if pods.unseen:
        # One that nobody sees is what a person must know of first, however many others run.
        _say(edit, Phase.UNKNOWN, reason=NODE_UNREACHABLE, names_unseen=True)
    elif pods.running and pods.behind:
        _say(edit, Phase.DEGRADED, reason=PODS_RUN_AGAIN, message=pods_run_again(pods.behind))
    elif pods.running:
        _say(edit, Phase.RUNNING)
    elif pods.coming:
        _say(edit, Phase.INITIALIZING)
    elif (queued or state.queued) and state.inference is not None and not state.inference.replicas:
        # Whoever asks is answered, once the first replica is up: nothing is missing.
        _say(edit, Phase.RUNNING, reason=SCALED_TO_ZERO, message=SCALED_TO_ZERO_MESSAGE)
    elif (queued or state.queued) and state.phase is not Phase.PENDING:
        _say(edit, Phase.PENDING)
    elif state.phase is not Phase.PENDING:
        _say(edit, state.phase)
    # Why it waits is told as long as it waits.


def _say(edit: Edit, phase: Phase, *, reason: str = "", message: str = "", names_unseen: bool = False) -> None:
    """Give it this phase and reason, where it has others."""
    state = edit.state
    edit.names_unseen = names_unseen
    if state.phase is not phase or state.reason != reason or (state.message != message and not names_unseen):
        edit.state = replace(state, phase=phase, reason=reason, message=message)


def _name_unseen(edit: Edit) -> None:
    """Say which nodes do not answer, where that was left for later: once for a commit, not for each of its pods."""
    if edit.names_unseen:
        edit.names_unseen = False
        edit.state = replace(edit.state, message=nodes_unreachable(edit.pods.unseen))


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
    _derive(edit)


def _stop_pods(edit: Edit, *, outliving: AbstractSet[str] = frozenset()) -> None:
    """Every pod that holds a node is told to go, but for those of some pod sets. Those that only wait stay."""
    for id_, pod in edit.pods.live.items():
        if id_[0] not in outliving:
            edit.pods.put(id_, replace(pod, phase=PodPhase.STOPPING))


def _evict(edit: Edit, event: PodsEvicted) -> None:
    """The named runs are told to end. Where no other goes on, what comes next is another attempt."""
    for ref in event.pods:
        id_ = pod_id(ref)
        pod = edit.pods.live.get(id_)
        if pod is not None and pod.is_run(ref):
            edit.pods.put(id_, replace(pod, phase=PodPhase.STOPPING))
    if event.attempt != edit.state.attempt:
        for id_ in edit.pods.waiting.ids():
            if (waiting := edit.pods.waiting.get(id_)) is not None:
                edit.pods.put(id_, replace(waiting, attempt=event.attempt, try_=0))
        edit.state = replace(edit.state, attempt=event.attempt)
    # What it had grown by was never its own to be taken back.
    if event.reason != "shrunk":
        others = tuple(id_ for id_ in edit.state.gave_way_to if id_ != event.beneficiary)
        edit.state = replace(edit.state, gave_way_to=(*others, event.beneficiary)[-MOST_GAVE_WAY_TO:])
    _derive(edit)
    if edit.state.phase is Phase.PENDING:
        _say(edit, Phase.PENDING, reason=event.reason, message=event.message)


_NO_PODS: Final = PodMap[Pod]()


def _leave(edit: Edit, event: ClusterLeft) -> None:
    """Its runs stay behind, and each pod begins anew. What it saved is there, too: all that they have done is lost."""
    state, there, lost = replace(edit.state, checkpoint_at=None), MapEdit(_NO_PODS), 0
    for id_ in edit.pods.waiting.ids():
        if (waiting := edit.pods.waiting.get(id_)) is not None:
            edit.pods.put(id_, replace(waiting, attempt=event.attempt, try_=0))
    # The newest first: of those that are more than are wanted, these go.
    behind = sorted(edit.pods.live.items(), key=lambda each: each[0], reverse=True)
    for id_, pod in behind:
        lost += milli_seconds_at_risk(state, pod, event.at)
        there.put(id_, replace(pod, phase=PodPhase.STOPPING))
        edit.pods.put(id_, Pod(attempt=event.attempt, try_=0, phase=PodPhase.PENDING))
    edit.state = replace(
        state,
        cluster_id="",
        among=event.among,
        attempt=event.attempt,
        left=_with_left(state.left, event.cluster_id, there.value()),
        gpu_milli_seconds_lost=min(state.gpu_milli_seconds_lost + lost, MOST_MILLI_SECONDS),
    )
    for id_, _ in behind:
        _leave_if_surplus(edit, id_)
    _derive(edit)
    if edit.state.phase is Phase.PENDING:
        _say(edit, Phase.PENDING, reason=event.reason, message=event.message)


def _without_left(state: Workload, event: LeftPodEnded) -> Workload:
    there = MapEdit(state.left[event.cluster_id])
    there.take(pod_id(event.pod))
    return replace(state, left=_with_left(state.left, event.cluster_id, there.value()))


def _with_left(left: dict[str, PodMap[Pod]], cluster_id: str, there: PodMap[Pod]) -> dict[str, PodMap[Pod]]:
    others = {id_: pods for id_, pods in left.items() if id_ != cluster_id}
    return others | {cluster_id: there} if there.size else others


def _resume(edit: Edit, event: WorkloadResumed) -> None:
    for id_ in edit.pods.waiting.ids():
        edit.pods.put(id_, Pod(attempt=event.attempt, try_=0, phase=PodPhase.PENDING))
    _say(edit, Phase.RESUMING)
    edit.state = replace(edit.state, desired=DesiredPhase.RUNNING, attempt=event.attempt, failures=0)
    if edit.state.inference is not None:
        # Whoever resumes it wants to see it run: it begins with as many as at first.
        _scale(edit, first_replicas(edit.state.inference.serving))


def _scale(edit: Edit, replicas: int) -> None:
    """From here on so many replicas are wanted; those that are too many go."""
    state = edit.state
    if state.inference is not None:
        edit.state = replace(state, inference=replace(state.inference, replicas=replicas))
        _remove_surplus(edit)


def _remove_surplus(edit: Edit) -> None:
    """Have the pods go that are more than are wanted: those that hold no node at once, the newest first; then the
    newest of the others are told to end.
    """
    pods = edit.pods
    for pod_set in edit.state.pod_sets:
        name = pod_set.name
        staying = sorted(id_ for id_, pod in pods.live.items() if id_[0] == name and pod.phase is not PodPhase.STOPPING)
        waiting = sorted(id_ for id_ in pods.waiting.ids() if id_[0] == name)
        surplus = max(len(staying) + len(waiting) - pod_set.count, 0)
        gone = waiting[max(len(waiting) - surplus, 0) :]
        for id_ in gone:
            _remove(edit, id_)
        for id_ in staying[len(staying) - (surplus - len(gone)) :]:
            pod = pods.live.get(id_)
            assert pod is not None, "it was among them"
            pods.put(id_, replace(pod, phase=PodPhase.STOPPING))


def _leave_if_surplus(edit: Edit, id_: PodId) -> None:
    """A pod that was told to end has. It is run again only where it is wanted after all, beside all others; of an
    elastic workload, where it is one of those that must start together.
    """
    state, pods = edit.state, edit.pods
    if state.desired is not DesiredPhase.RUNNING or pods.waiting.get(id_) is None or meets_at(state, id_):
        return
    for pod_set in state.pod_sets:
        if pod_set.name == id_[0] and (pod_set.endless or pod_set.elastic):
            succeeded = state.progress.get(id_[0], NOT_BEGUN).succeeded
            if pods.live.of_set(id_[0]) + pods.waiting.of_set(id_[0]) + succeeded > pod_set.count:
                _remove(edit, id_)


def _remove(edit: Edit, id_: PodId) -> None:
    edit.pods.put(id_, None)
    progress = edit.state.progress.get(id_[0], NOT_BEGUN)
    removed = replace(progress, removed=progress.removed + 1)
    edit.state = replace(edit.state, progress=edit.state.progress | {id_[0]: removed})


def _finish(edit: Edit, phase: Phase, at: datetime, delete_at: datetime) -> None:
    _stop_pods(edit, outliving=frozenset(pod_set.name for pod_set in edit.state.pod_sets if pod_set.outlives))
    for id_ in edit.pods.waiting.ids():
        edit.pods.put(id_, None)
    _say(edit, phase)
    edit.state = replace(edit.state, completed_at=at, delete_at=delete_at, generation=edit.state.generation + 1)


def _changed(state: Workload, event: WorkloadChanged) -> Workload:
    spec = state.spec
    if event.priority_class is not None:
        spec = replace(spec, priority_class=event.priority_class)
    if event.auto_deletion_time_after_completion_seconds is not None:
        spec = replace(
            spec,
            auto_deletion_time_after_completion_seconds=event.auto_deletion_time_after_completion_seconds,
        )
    distributed = state.distributed
    if event.labels is not None or event.annotations is not None:
        distributed = _master_changed(distributed, state.spec, event)
        spec = _marked(spec, event)
    if event.storage is not None:
        spec = replace(spec, storage=event.storage)
        if distributed is not None and distributed.master is not None:
            distributed = replace(distributed, master=replace(distributed.master, storage=event.storage))
    made_from = None if state.made_from is None else state.made_from.after(state.spec, spec)
    state = replace(state, spec=spec, distributed=distributed, made_from=made_from)
    if event.delete_at is None:
        return state
    return replace(state, delete_at=event.delete_at, generation=state.generation + 1)


def _marked(spec: TrainingSpec, event: WorkloadChanged) -> TrainingSpec:
    return replace(
        spec,
        labels=spec.labels if event.labels is None else event.labels,
        annotations=spec.annotations if event.annotations is None else event.annotations,
    )


def _master_changed(distributed: Distributed | None, of: TrainingSpec, event: WorkloadChanged) -> Distributed | None:
    """A master's labels and annotations follow where it has those of the workers; of its own it keeps them."""
    master = None if distributed is None else distributed.master
    if distributed is None or master is None:
        return distributed
    marked = _marked(master, event)
    return replace(
        distributed,
        master=replace(
            master,
            labels=marked.labels if master.labels == of.labels else master.labels,
            annotations=marked.annotations if master.annotations == of.annotations else master.annotations,
        ),
    )
