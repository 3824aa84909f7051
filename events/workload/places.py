"""Which pods of a workload may be given a node now, and when others may."""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from events.phases import PodPhase
from events.workload.gangs import is_whole
from events.workload.pod import Pod, PodRef, pod_id
from events.workload.pod_sets import PodSet
from events.workload.state import NOT_BEGUN, Workload, schedulable

LONGEST_RETRY_WAIT: Final = timedelta(seconds=300)
"""Failed runs wait 1, 2, 4… s, at most this (architecture.md section 5)."""

MOST_PODS: Final = 10_000
"""Of one set at a time: all that the API takes, and further ones wait."""


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
