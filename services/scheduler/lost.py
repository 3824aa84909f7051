"""What is told of a workload whose cluster does not report: why it stays there, and which cluster it left. Pure."""

from collections.abc import Iterator
from datetime import datetime

from events.cluster import Cluster
from events.workload.state import Workload
from services.scheduler.fold import SchedulingState


def stays(fold: SchedulingState, state: Workload, now: datetime) -> str:
    """Of one that holds nodes of a lost cluster: that nobody knows whether it runs, and why it stays. Else empty."""
    cluster = _lost(fold, state.cluster_id) if state.pods.live else None
    if cluster is None:
        return ""
    silent = f"cluster {cluster.name} {_silent(cluster)}, so nobody knows whether its pods still run there"
    return f"{silent}; {_why(fold, state, cluster, now)}"


def _why(fold: SchedulingState, state: Workload, cluster: Cluster, now: datetime) -> str:
    if not state.among:
        return f"it stays, since cluster {cluster.name} was named for it"
    if not state.preemptible:
        return "it stays, since it is not preemptible"
    after, since = fold.owners.leaves_after(state.project_id), cluster.connection_changed_at
    if after is None:
        return (
            "it stays, since neither its project nor its department says after how long it leaves a lost cluster "
            "(clusterLostSeconds)"
        )
    leaves_at = now if since is None else since + after
    if leaves_at > now:
        return f"it leaves at {leaves_at:%Y-%m-%d %H:%M:%S} UTC, if another cluster that can run it reports by then"
    return "it stays until another cluster that can run it reports"


def without_report(fold: SchedulingState, state: Workload) -> Iterator[str]:
    """Of one that waits: which clusters it left, and which of those that it may go to do not report."""
    for cluster in to_come_back(fold, state):
        if cluster.cluster_id not in state.left:
            yield f"cluster {cluster.name} {_silent(cluster)}, and it may go there once it reports again"
        elif cluster.connected:
            yield f"it left cluster {cluster.name}, which reports again, and its old pods there have not ended yet"
        else:
            of_old = "nobody knows whether its old pods still run there"
            yield f"it left cluster {cluster.name}, which {_silent(cluster)}, and {of_old}"


def to_come_back(fold: SchedulingState, state: Workload) -> list[Cluster]:
    """The clusters to which it may go once they report again, or once what it left there has ended; those first that it
    left, then by name.
    """
    if not state.among or state.cluster_id:
        return []
    there = (each for each in _clusters(fold) if each.exists and each.cluster_id in state.among)
    gone = (each for each in there if each.cluster_id in state.left or not each.connected)
    return sorted(gone, key=lambda each: (each.cluster_id not in state.left, each.name))


def _clusters(fold: SchedulingState) -> Iterator[Cluster]:
    return (chain.state for chain in fold.clusters.values())


def _lost(fold: SchedulingState, cluster_id: str) -> Cluster | None:
    found = next((each for each in _clusters(fold) if each.cluster_id == cluster_id), None)
    return None if found is None or found.connected or not found.exists else found


def _silent(cluster: Cluster) -> str:
    since = cluster.connection_changed_at
    if since is None:
        return "has never reported"
    if cluster.problem:
        return f"has been lost since {since:%Y-%m-%d %H:%M:%S} UTC (its agent reports a problem: {cluster.problem})"
    return f"has not reported since {since:%Y-%m-%d %H:%M:%S} UTC"
