"""Pods that go together: how many of a set must be placed at once, and which cannot go on without others."""

from collections import Counter
from collections.abc import Iterable, Mapping

from events.phases import PodPhase
from events.workload.pod import PodId, PodRef, pod_id
from events.workload.pod_sets import PodSet
from events.workload.state import NOT_BEGUN, Workload


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
