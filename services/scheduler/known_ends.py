"""By when a run has surely ended: by a limit on its running time, by the grace of one that was told to end, or because
the calendar, a taint or a drain has it leave. Pure.

Nobody foresees that a limit is raised, or an entry of the calendar taken back.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from events.ids import key_of_id
from events.node import Reservation
from events.phases import PodPhase
from events.workload.pod import Pod
from events.workload.spec import MAX_GRACE_SECONDS
from events.workload.state import Workload
from services.scheduler.fold import SchedulingState
from services.scheduler.held import LEAVING_LATE

ACTS_LATE: Final = timedelta(minutes=2)
"""How much later it may be known of a pod that it has ended: limits are looked at once a minute at least, and a kill
takes its time.
"""


class KnownEnds:
    """As of one moment."""

    def __init__(self, fold: SchedulingState, now: datetime) -> None:
        self._fold, self._now = fold, now
        self._limits: dict[str, datetime | None] = {}
        """By workload key: when it reaches the limit on its running time."""
        self._leaving: dict[str, dict[str, datetime]] = {}
        """By node key and id of a reservation: when it has to leave."""

    def of(self, node_key: str, held: Reservation, workload: Workload, pod: Pod) -> float | None:
        """In how many seconds at the latest; None where nobody knows."""
        if not self._reports(workload.cluster_id):
            return None  # whatever is decided, it is not told there
        if pod.phase is PodPhase.STOPPING:
            leaving = self._fold.held.leaving.get(held.id)
            return None if leaving is None else self._seconds(leaving[1] - LEAVING_LATE)
        grace = timedelta(seconds=min(max(workload.spec.termination_grace_period_seconds, 0), MAX_GRACE_SECONDS))
        told = [each for each in self._told_at(node_key, held, workload) if each is not None]
        return self._seconds(max(min(told), self._now) + grace) if told else None

    def _seconds(self, ends: datetime) -> float:
        return max((ends + ACTS_LATE - self._now).total_seconds(), 0.0)

    def _told_at(self, node_key: str, held: Reservation, workload: Workload) -> Iterator[datetime | None]:
        """When it is told to end, for each reason that is known."""
        key = held.workload_key
        if key not in self._limits:
            self._limits[key] = self._limit_at(workload)
        yield self._limits[key]
        if node_key not in self._leaving:
            self._leaving[node_key] = self._fold.leavers_of(node_key)
        yield self._leaving[node_key].get(held.id)
        if workload.preemptible:
            yield self._fold.window_ends_at(workload.project_id)

    def _limit_at(self, workload: Workload) -> datetime | None:
        """What it ran in earlier attempts counts, too, and so it is sooner rather than later."""
        chain = self._fold.projects.get(key_of_id(workload.project_id) or "")
        limits = () if chain is None else chain.state.time_limits
        seconds = next((each.runtime_seconds for each in limits if each.kind == workload.kind), None)
        began = [pod.running_since for _, pod in workload.pods.live.items()]
        since = [each for each in began if each is not None]
        if seconds is None or len(since) < len(began) or not since:
            return None  # until all of its pods run, no time may count
        return max(since) + timedelta(seconds=seconds)

    def _reports(self, cluster_id: str) -> bool:
        chain = self._fold.clusters.get(key_of_id(cluster_id) or "")
        return chain is not None and chain.state.cluster_id == cluster_id and chain.state.connected
