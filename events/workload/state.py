"""A workload as it stands: its newest incarnation, with its pods, and what follows from that at once.

Pods that are bound, or wait to be run again, are in `pods`. An index below its set's `next_index` that is not there
has succeeded: ten thousand finished pods cost a workload nothing.
"""

from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final

import msgspec

from events.phases import CLOSING, UNQUEUED, DesiredPhase, Phase
from events.workload.fields.connections import ExposedUrl
from events.workload.fields.inference import serving_url
from events.workload.kinds import KINDS
from events.workload.made_from import MadeFrom
from events.workload.pod import Pod
from events.workload.pod_sets import PodSet
from events.workload.pods import PodMap, Pods, PodsEdit
from events.workload.sessions import Session
from events.workload.spec import NO_SPEC, PRIORITY_RANK, Beside, Distributed, Inference, TrainingSpec


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


def delete_at(state: Workload, ended: datetime) -> datetime:
    """When it is deleted by itself, if it ends then."""
    return ended + timedelta(seconds=state.spec.auto_deletion_time_after_completion_seconds)
