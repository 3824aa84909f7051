"""Which workloads are to leave the cluster that was chosen for them, since it is lost for longer than their project
waits. Pure; an index that is kept up to date.

A cluster is lost from when the log says that it is disconnected. Nobody leaves it for nothing: another cluster must be
connected that could take its place. Programs that really ran are never moved to a simulated cluster, nor the other way.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from events.aggregate import Chain
from events.cluster import Cluster
from events.workload.commands import LeaveCluster
from events.workload.state import Workload, schedulable
from services.scheduler.snapshot import Departure

MOST_DEPARTURES: Final = 500
"""Of one plan; the next one, which is due at once, has the others."""

type LeavesAfter = Callable[[str], timedelta | None]
"""By id of a project: for how long a cluster is lost before its workloads leave it; None: they never do."""


class ChosenClusters:
    """Who may leave which cluster. Mutable."""

    def __init__(self) -> None:
        self._on: dict[str, dict[str, dict[str, None]]] = {}
        """By id of a cluster, and of a project: keys of preemptible workloads for which that cluster was chosen."""
        self._at: dict[str, tuple[str, str]] = {}
        """By key of a workload: where it stands above."""

    def put(self, key: str, state: Workload) -> None:
        """As the workload is now."""
        leaves = state.among and state.cluster_id and state.preemptible and schedulable(state)
        at = (state.cluster_id, state.project_id) if leaves else None
        before = self._at.get(key)
        if at == before:
            return
        if before is not None:
            cluster_id, project_id = before
            del self._at[key]
            of_project = self._on[cluster_id][project_id]
            del of_project[key]
            if not of_project:
                del self._on[cluster_id][project_id]
            if not self._on[cluster_id]:
                del self._on[cluster_id]
        if at is not None:
            self._at[key] = at
            self._on.setdefault(at[0], {}).setdefault(at[1], {})[key] = None

    def departures(
        self,
        clusters: Mapping[str, Cluster],
        workloads: Mapping[str, Chain[Any]],
        leaves_after: LeavesAfter,
        now: datetime,
    ) -> Iterator[Departure]:
        """Those that are to leave now, at most MOST_DEPARTURES, in an order that follows from the log.

        Args:
            clusters: by id.
        """
        count = 0
        for lost, since, project_id, seconds in self._lost(clusters.values(), leaves_after):
            if now < since + timedelta(seconds=seconds):
                continue
            alike = {id_: each for id_, each in clusters.items() if each.exists and _runs(each) == _runs(lost)}
            others = {id_ for id_, each in alike.items() if each.connected}
            for key in sorted(self._on[lost.cluster_id][project_id]) if others else ():
                state: Workload = workloads[key].state
                if not others.intersection(state.among) - state.left.keys():
                    continue
                command = LeaveCluster(
                    workload_id=state.workload_id,
                    cluster_id=lost.cluster_id,
                    cluster_name=lost.name,
                    attempt=state.attempt,
                    among=tuple(id_ for id_ in state.among if id_ in alike),
                    lost_since=since,
                    seconds=seconds,
                    problem=lost.problem,
                )
                yield Departure(key, command)
                count += 1
                if count == MOST_DEPARTURES:
                    return

    def next_departure(
        self, clusters: Iterable[Cluster], leaves_after: LeavesAfter, after: datetime | None
    ) -> datetime | None:
        """When the next ones may have to leave; None where none will, as far as is known now."""
        times = (since + timedelta(seconds=seconds) for _, since, _, seconds in self._lost(clusters, leaves_after))
        return min((at for at in times if after is None or at > after), default=None)

    def _lost(
        self, clusters: Iterable[Cluster], leaves_after: LeavesAfter
    ) -> Iterator[tuple[Cluster, datetime, str, int]]:
        """Clusters that do not report, since when, and projects whose workloads leave them after so many seconds."""
        if not self._on:
            return
        for each in sorted(clusters, key=lambda each: each.cluster_id):
            if each.connected or not each.exists or each.connection_changed_at is None:
                continue
            for project_id in sorted(self._on.get(each.cluster_id, ())):
                wait = leaves_after(project_id)
                if wait is not None:
                    yield each, each.connection_changed_at, project_id, int(wait.total_seconds())


def _runs(cluster: Cluster) -> bool:
    """Whether programs really run there."""
    return cluster.kind != "simulated"
