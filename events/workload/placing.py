"""What is decided of the places of a workload, as the scheduler asks: pods are bound, evicted, or leave a cluster."""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Final

from events.decision import Context
from events.phases import PREEMPTED, PodPhase
from events.refusal import Refusal
from events.workload.at_risk import MOST_MILLI_SECONDS, milli_seconds_at_risk
from events.workload.commands import EvictPods, LeaveCluster, PlacePods
from events.workload.evictions import LEAVES_NODE, PodsEvicted, evictable
from events.workload.gangs import goes_on_without, is_whole
from events.workload.life import (
    ClusterChosen,
    WorkloadDecision,
    WorkloadEvent,
    WorkloadFailed,
    WorkloadQueued,
    WorkloadWaiting,
)
from events.workload.lost_cluster import ClusterLeft
from events.workload.places import bindable_among
from events.workload.pod import PodRef, PodsBound, pod_id, run_token
from events.workload.sessions import SessionClosed
from events.workload.spec import WHOLE_GPU_MILLI
from events.workload.state import NOT_BEGUN, Workload, delete_at, schedulable

MOST_EVICTION_WORDS: Final = 1_000
"""Characters that are kept of why pods were evicted."""


def place(command: PlacePods, state: Workload, context: Context) -> WorkloadDecision:
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


def evict(command: EvictPods, state: Workload, context: Context) -> WorkloadDecision:
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
        WorkloadFailed(at=context.now, reason=PREEMPTED, message=message, delete_at=delete_at(state, context.now)),
    )


def leave(command: LeaveCluster, state: Workload, context: Context) -> WorkloadDecision:
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
        problem=command.problem,
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
