"""What an observation means: facts for the log, a word back to the agent, or nothing. Pure."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from msgspec.structs import replace

from events.cluster import Cluster, RefusedReport, ReportCluster, pool_of
from events.cluster_protocol import ObservedCluster, ObservedNode, ObservedPod, SettledPod, StopPod, WantedPod
from events.node import Node, ReportNode, ReportNodeGone
from events.phases import PodPhase
from events.workload.commands import PodFact
from events.workload.pod import LIVE_POD_PHASES, Pod, PodId, PodRef
from events.workload.sessions import Session
from events.workload.state import Workload

UNSAID_SECONDS = 300.0
"""An agent says all of its nodes every half minute, with very many of them every few minutes."""
SESSION_UNHEARD = timedelta(seconds=60)
"""After its opening, until when an agent need not speak of a session: the agent is asked for it only after that."""
SESSION_OVERDUE = timedelta(seconds=60)
ENDED_KINDS = frozenset({"succeeded", "failed", "interrupted", "refused", "stopped"})


def is_newest_run(observed: ObservedPod, state: Workload | None) -> bool:
    """Whether the log still waits for news of this run: of this incarnation, with this token."""
    if state is None or state.workload_id != observed.workload_id:
        return False
    pod = state.pods.get((observed.pod.pod_set, observed.pod.index))
    return (
        pod is not None
        and pod.phase in LIVE_POD_PHASES
        and (pod.attempt, pod.try_, pod.token) == (observed.pod.attempt, observed.pod.try_, observed.token)
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
    """The facts in an observation; a start that was never reported comes before the end, warnings before both. What is
    noted of a run is told with its start, however short it was. One that runs and is not ready yet still starts.
    """
    if observed.kind == "running" and not observed.ready:
        observed = replace(observed, kind="starting")
    fact = PodFact(
        pod=observed.pod,
        kind=observed.kind,
        at=observed.at,
        token=observed.token,
        exit_code=observed.exit_code,
        reason=observed.reason,
        message=observed.message or (observed.note if observed.kind == "starting" else ""),
        warnings=observed.warnings,
        address=observed.address if observed.kind == "running" else None,
        checkpoint_at=observed.checkpoint_at,
    )
    noted: tuple[PodFact, ...] = ()
    if observed.note and observed.kind != "starting" and pod.phase is PodPhase.BOUND:
        at = min(observed.started_at or observed.at, observed.at)
        noted = (PodFact(pod=observed.pod, kind="starting", at=at, token=observed.token, message=observed.note),)
    unseen_start = observed.started_at is not None and pod.phase in {PodPhase.BOUND, PodPhase.STARTING}
    if observed.kind in ENDED_KINDS and unseen_start and observed.started_at is not None:
        started_at = min(observed.started_at, observed.at)
        start = PodFact(
            pod=observed.pod, kind="running", at=started_at, token=observed.token, warnings=observed.warnings
        )
        return (*noted, start, fact)
    return (*noted, fact)


def is_left_run(observed: ObservedPod, state: Workload, cluster_id: str) -> bool:
    """Whether its workload left this run on this cluster when that was lost, and its end is not known yet."""
    pods = state.left.get(cluster_id)
    pod = None if pods is None else pods.get((observed.pod.pod_set, observed.pod.index))
    if pod is None or state.workload_id != observed.workload_id:
        return False
    return pod.is_run(observed.pod) and pod.token == observed.token


def facts_of_left(observed: ObservedPod) -> tuple[PodFact, ...]:
    """The fact that a run is over which was left on a lost cluster. None while it lives: it has been told to end, and
    may take its grace for that.
    """
    if observed.kind not in ENDED_KINDS:
        return ()
    at, token, exit_code = observed.at, observed.token, observed.exit_code
    return (PodFact(pod=observed.pod, kind=observed.kind, at=at, token=token, exit_code=exit_code),)


def place_lost(workload: Workload, pod_id: PodId, pod: Pod, reason: str, now: datetime) -> PodFact:
    """The fact that a run's node or cluster is gone."""
    message = (
        f"node {pod.node_name} is gone from its cluster"
        if reason == "node_lost"
        else f"the cluster of {workload.name} was removed"
    )
    ref = PodRef(pod_set=pod_id[0], index=pod_id[1], attempt=pod.attempt, try_=pod.try_)
    return PodFact(pod=ref, kind="interrupted", at=now, token=pod.token, reason=reason, message=message)


def node_command(observed: ObservedNode, cluster: Cluster) -> ReportNode | ReportNodeGone:
    """What a node's observation asks of the node aggregate; its pool follows from its labels."""
    if observed.gone:
        return ReportNodeGone()
    pool = pool_of(observed.facts.labels, cluster.node_pools)
    return ReportNode(cluster_id=cluster.cluster_id, name=observed.name, facts=replace(observed.facts, pool=pool))


def left_unsaid(
    nodes: Mapping[str, Node], heard: Mapping[str, float], newest: ObservedCluster, now: float
) -> tuple[str, ...]:
    """Keys of nodes of a cluster that its agent speaks of no more: they went while it was away, so it never knew them.

    Believed only where as many were heard of lately as the agent counts, and only of idle nodes: whoever is wrong about
    one sees it again, at no cost (ADR 0022). `heard`: when each was spoken of last, in the seconds of `now`.
    """
    lately = {key for key, at in heard.items() if now - at <= UNSAID_SECONDS}
    if newest.problem or not newest.nodes or len(lately) != newest.nodes:
        return ()
    return tuple(key for key, node in nodes.items() if key not in lately and node.present and not node.reservations)


def lost_session(one: Session, newest: ObservedCluster | None, now: datetime) -> str:
    """Why a session is open in the log alone, in words; empty where it is not. Whoever had it says its end, unless it
    ended without a word.

    Args:
        newest: what its cluster's agent said last; None where that is long ago.
    """
    if now >= one.ends_at + SESSION_OVERDUE:
        return "its time is over, and nobody told its end"
    if newest is not None and now >= one.at + SESSION_UNHEARD and one.session_id not in newest.sessions:
        return "neither the api nor the agent of its cluster has it any more"
    return ""


def cluster_command(
    cluster: Cluster,
    newest: ObservedCluster | None,
    silent_seconds: float,
    timeout_seconds: float,
    refused: tuple[RefusedReport, ...] = (),
) -> ReportCluster:
    """What a cluster's heartbeat, or the lack of one, asks of the cluster aggregate; `refused`: what of its agent's
    words is not taken.
    """
    if newest is None or silent_seconds > timeout_seconds:
        return ReportCluster(
            cluster_id=cluster.cluster_id, connected=False, silent_seconds=int(silent_seconds), refused=refused
        )
    if newest.problem:
        return ReportCluster(cluster_id=cluster.cluster_id, connected=False, problem=newest.problem, refused=refused)
    return ReportCluster(
        cluster_id=cluster.cluster_id,
        connected=True,
        agent_version=newest.agent_version,
        ownership_protection=newest.ownership_protection,
        storage_classes=newest.storage_classes,
        refused=refused,
    )
