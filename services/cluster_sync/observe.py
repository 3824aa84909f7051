"""What an observation means: facts for the log, a word back to the agent, or nothing. Pure."""

from datetime import datetime

from msgspec.structs import replace

from events.cluster import Cluster, ReportCluster, pool_of
from events.cluster_protocol import ObservedCluster, ObservedNode, ObservedPod, SettledPod, StopPod, WantedPod
from events.node import ReportNode, ReportNodeGone
from events.phases import PodPhase
from events.workload.commands import PodFact
from events.workload.events import PodRef
from events.workload.state import LIVE_POD_PHASES, Pod, PodId, Workload

ENDED_KINDS = frozenset({"succeeded", "failed", "interrupted", "refused", "stopped"})


def is_newest_run(observed: ObservedPod, state: Workload | None) -> bool:
    """Whether the log still waits for news of this run."""
    if state is None or state.workload_id != observed.workload_id:
        return False
    pod = state.pods.get((observed.pod.pod_set, observed.pod.index))
    return (
        pod is not None
        and pod.phase in LIVE_POD_PHASES
        and (pod.attempt, pod.try_) == (observed.pod.attempt, observed.pod.try_)
    )


def answer_to_stale(observed: ObservedPod) -> WantedPod:
    """What an agent is told of a run that the log knows to be over: forget it, or end it first."""
    if observed.kind in ENDED_KINDS:
        return SettledPod(pod_key=observed.pod_key, token=observed.token)
    return StopPod(
        pod_key=observed.pod_key,
        token=observed.token,
        workload_id=observed.workload_id,
        pod=observed.pod,
        grace_seconds=0,
        reason="superseded",
    )


def facts_of(observed: ObservedPod, pod: Pod) -> tuple[PodFact, ...]:
    """The facts in an observation; a start that was never reported comes before the end, warnings before both."""
    fact = PodFact(
        pod=observed.pod,
        kind=observed.kind,
        at=observed.at,
        exit_code=observed.exit_code,
        reason=observed.reason,
        message=observed.message,
        warnings=observed.warnings,
    )
    unseen_start = observed.started_at is not None and pod.phase in {PodPhase.BOUND, PodPhase.STARTING}
    if observed.kind in ENDED_KINDS and unseen_start and observed.started_at is not None:
        started_at = min(observed.started_at, observed.at)
        start = PodFact(pod=observed.pod, kind="running", at=started_at, warnings=observed.warnings)
        return (start, fact)
    return (fact,)


def place_lost(workload: Workload, pod_id: PodId, pod: Pod, reason: str, now: datetime) -> PodFact:
    """The fact that a run's node or cluster is gone."""
    message = (
        f"node {pod.node_name} is gone from its cluster"
        if reason == "node_lost"
        else f"the cluster of {workload.name} was removed"
    )
    ref = PodRef(pod_set=pod_id[0], index=pod_id[1], attempt=pod.attempt, try_=pod.try_)
    return PodFact(pod=ref, kind="interrupted", at=now, reason=reason, message=message)


def node_command(observed: ObservedNode, cluster: Cluster) -> ReportNode | ReportNodeGone:
    """What a node's observation asks of the node aggregate; its pool follows from its labels."""
    if observed.gone:
        return ReportNodeGone()
    pool = pool_of(observed.facts.labels, cluster.node_pools)
    return ReportNode(cluster_id=cluster.cluster_id, name=observed.name, facts=replace(observed.facts, pool=pool))


def cluster_command(
    cluster: Cluster, newest: ObservedCluster | None, silent_seconds: float, timeout_seconds: float
) -> ReportCluster:
    """What a cluster's heartbeat, or the lack of one, asks of the cluster aggregate."""
    if newest is None or silent_seconds > timeout_seconds:
        return ReportCluster(cluster_id=cluster.cluster_id, connected=False, silent_seconds=int(silent_seconds))
    if newest.problem:
        return ReportCluster(cluster_id=cluster.cluster_id, connected=False, problem=newest.problem)
    return ReportCluster(
        cluster_id=cluster.cluster_id,
        connected=True,
        agent_version=newest.agent_version,
        ownership_protection=newest.ownership_protection,
    )
