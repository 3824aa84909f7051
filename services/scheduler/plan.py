"""The plan: which pods go where, which reservations are over, and why the rest waits. Pure: the same snapshot always
gives the same plan, and a plan that was carried out leaves nothing to plan.

Highest priority first, then first come; a workload that does not fit lets others pass. Once no room was found for one
pod, its whole kind is through for this plan, because room only shrinks.
"""

import heapq
from typing import Final

from events.node import Reservation, reservation_id
from events.phases import WaitingReason
from events.workload.events import Placement, PodRef
from services.scheduler.reasons import Shortfall, pools_to_try, why
from services.scheduler.room import Room, Spot
from services.scheduler.snapshot import Binding, Kind, Order, Pending, Plan, Queue, Snapshot, Telling, Waiting

MAX_PODS_PER_PLAN: Final = 2_000
"""Then what was planned is committed first: about half a second, in which the world moves on."""
MAX_TELLINGS_PER_PLAN: Final = 500
"""Some 0.2 s of single commits: ten thousand workloads that wait must not keep one from starting."""

_SIMILAR: Final = frozenset(
    {
        WaitingReason.INSUFFICIENT_GPU,
        WaitingReason.INSUFFICIENT_CPU,
        WaitingReason.INSUFFICIENT_MEMORY,
        WaitingReason.INSUFFICIENT_PODS,
        WaitingReason.INSUFFICIENT_RESOURCES,
    }
)
"""On a full cluster these change places with every pod that comes or goes: the first one told stands for all."""


def plan(snapshot: Snapshot, *, max_pods: int = MAX_PODS_PER_PLAN) -> Plan:
    planner = _Planner(snapshot, max_pods)
    more = planner.place()
    blocked = planner.blocked()
    tellings = planner.tellings(blocked, more=more)
    return Plan(
        bindings=tuple(planner.bindings),
        releases=snapshot.releases,
        tellings=tellings[:MAX_TELLINGS_PER_PLAN],
        blocked={snapshot.queues[i].kind: waiting for i, waiting in blocked.items()},
        more=more or len(tellings) > MAX_TELLINGS_PER_PLAN,
    )


def tells_more(told: str, reason: WaitingReason) -> bool:
    """Whether a reason is another one than was told, for a person."""
    return told != reason and not (told in _SIMILAR and reason in _SIMILAR)


class _Planner:
    """One plan in the making."""

    def __init__(self, snapshot: Snapshot, max_pods: int) -> None:
        self.snapshot = snapshot
        self.room = Room(snapshot.nodes, snapshot.releases)
        self.left = max_pods
        self.used = {project_id: view.used_milli for project_id, view in snapshot.projects.items()}
        self.bindings: list[Binding] = []
        self.bound: set[str] = set()
        self.short: dict[int, Shortfall] = {}
        """Queues that found no room in this plan."""

    def place(self) -> bool:
        """Place in order until nothing fits any more. Whether the limit cut it short."""
        queues = self.snapshot.queues
        heads: list[tuple[Order, int, int]] = [
            (queue.entries[0].order, i, 0) for i, queue in enumerate(queues) if queue.entries and queue.blocked is None
        ]
        heapq.heapify(heads)
        while heads:
            _, i, at = heapq.heappop(heads)
            queue = queues[i]
            for pod in queue.entries[at].pods:
                if not self.left:
                    return True
                shortfall = self._place_one(queue.kind, queue.entries[at], pod)
                if shortfall is not None:
                    self.short[i] = shortfall
                    break
            if i not in self.short and at + 1 < len(queue.entries):
                heapq.heappush(heads, (queue.entries[at + 1].order, i, at + 1))
        return False

    def _place_one(self, kind: Kind, entry: Pending, pod: PodRef) -> Shortfall | None:
        cluster = self.snapshot.clusters.get(kind.cluster_id)
        if cluster is None or not cluster.exists or not cluster.connected:
            return Shortfall()
        places = self.snapshot.nodes.places
        pools = [pool for pool in pools_to_try(self.snapshot, kind) if (kind.cluster_id, pool) in places]
        left_milli = self._quota_left(kind)
        for pool in pools:
            spot = self.room.find(kind.request, places[kind.cluster_id, pool], most_gpu_milli=left_milli)
            if spot is None:
                continue
            self.room.take(spot, kind.request)
            if not kind.preemptible and kind.project_id in self.used:
                self.used[kind.project_id] += spot.gpu_milli
            self._bind(kind, entry, pod, pool, spot)
            return None
        if left_milli is None:
            return Shortfall()
        needs = [self.room.least_gpu_milli(kind.request, places[kind.cluster_id, pool]) for pool in pools]
        least = min((need for need in needs if need is not None), default=0)
        return Shortfall(quota_need_milli=least, quota_used_milli=self.used[kind.project_id])

    def _quota_left(self, kind: Kind) -> int | None:
        """What the project's quota still allows such a pod; None where it does not bound it."""
        project = self.snapshot.projects.get(kind.project_id)
        if kind.preemptible or not kind.request.gpu_devices or project is None or project.quota_milli is None:
            return None
        return project.quota_milli - self.used[kind.project_id]

    def _bind(self, kind: Kind, entry: Pending, pod: PodRef, pool: str, spot: Spot) -> None:
        nodes, request = self.snapshot.nodes, kind.request
        placement = Placement(
            pod=pod,
            node_key=nodes.keys[spot.row],
            node_name=nodes.names[spot.row],
            pool=pool,
            devices=spot.devices,
        )
        reservation = Reservation(
            id=reservation_id(entry.workload_id, pod.pod_set, pod.index, pod.attempt, pod.try_),
            workload_id=entry.workload_id,
            workload_key=entry.key,
            cpu_milli=request.cpu_milli,
            memory_bytes=request.memory_bytes,
            devices=spot.devices,
        )
        self.bindings.append(
            Binding(key=entry.key, workload_id=entry.workload_id, placement=placement, reservation=reservation)
        )
        self.bound.add(entry.key)
        self.left -= 1

    def blocked(self) -> dict[int, Waiting]:
        """Why each queue that found no room waits, by the room that is left in the end."""
        known = {i: queue.blocked for i, queue in enumerate(self.snapshot.queues) if queue.blocked is not None}
        found = {
            i: why(self.snapshot, self.room, self.snapshot.queues[i].kind, shortfall)
            for i, shortfall in self.short.items()
        }
        return known | found

    def tellings(self, blocked: dict[int, Waiting], *, more: bool) -> tuple[Telling, ...]:
        """What is to be said to workloads that no pod was placed of; each once."""
        told: dict[str, Telling] = {}
        for i, queue in enumerate(self.snapshot.queues):
            waiting = blocked.get(i)
            if waiting is None and more:
                continue  # not looked at to the end
            for entry in queue.entries if queue.retell and waiting else queue.untold:
                if entry.key in self.bound or entry.key in told:
                    continue
                if telling := _telling(entry, queue, waiting):
                    told[entry.key] = telling
        for rest in self.snapshot.resting:
            if rest.key not in self.bound and rest.key not in told:
                told[rest.key] = Telling(key=rest.key, workload_id=rest.workload_id, waiting=rest.waiting)
        return tuple(told.values())


def _telling(entry: Pending, queue: Queue, waiting: Waiting | None) -> Telling | None:
    news = waiting is not None and entry.idle and (not entry.told or queue.retell)
    if news and waiting is not None and tells_more(entry.told, waiting.reason):
        return Telling(key=entry.key, workload_id=entry.workload_id, waiting=waiting)
    return None if entry.queued else Telling(key=entry.key, workload_id=entry.workload_id, waiting=None)
