"""When a waiting workload is expected to start: runs end one after the other as long as others like them lasted, and
what waits gets what comes free, in its order, and ends as well. Nobody starts before one of its pods fits on a node.

Nothing is expected where it is not known how long enough of those runs last. Pure.
"""

import heapq
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from events.node import run_of
from events.phases import WaitingReason
from events.workload.pod import pod_id
from events.workload.spec import WHOLE_GPU_MILLI
from services.scheduler.fold import SchedulingState
from services.scheduler.forecast import LATEST, End, Kept
from services.scheduler.plan import MAX_PODS_PER_PLAN
from services.scheduler.planning import Planning, pools_to_try
from services.scheduler.policy.phases import explain, quota
from services.scheduler.policy.registry import POLICY
from services.scheduler.room import Room
from services.scheduler.snapshot import OrderKey, Pending, Plan, PodClass, Queue, Snapshot, Waiting

BY_ROOM: Final = explain.FULL
BY_BOUND: Final = frozenset({WaitingReason.QUOTA_USED, WaitingReason.LIMIT_USED})
MOST_RUNS: Final = 10_000
"""Reservations that are looked at, some 0.1 s for each class of pods; where there are more, nothing is estimated."""
FEW: Final = 500
"""Runs that are looked at anew for each plan."""
KEPT: Final = timedelta(seconds=10)
"""How long it holds when each of more runs is expected to end: to find it out takes as long as to place a hundred pods.
"""
MOST_WAITING: Final = 10_000
"""Likewise, pod sets that wait."""
MOST_CLASSES: Final = 20
"""Classes of pods for which one plan estimates anything."""


class Estimates:
    """As of one snapshot; what several workloads need is found out once."""

    def __init__(self, fold: SchedulingState, snapshot: Snapshot) -> None:
        self._fold, self._snapshot = fold, snapshot
        self._ends: list[End] | None = None
        self._planning: Planning | None = None
        self._turns: dict[tuple[str, str, bool], list[_Turn]] = {}
        self._known: dict[tuple[PodClass, bool], dict[str, float]] = {}
        self._on: dict[PodClass, tuple[dict[int, int], float | None]] = {}

    def start(self, queue: Queue, entry: Pending, reason: WaitingReason) -> datetime | None:
        """None where there is no ground for an estimate."""
        if reason not in BY_ROOM | BY_BOUND:
            return None
        pod_class, by_bound = queue.pod_class, reason in BY_BOUND
        found = self._known.get((pod_class, by_bound))
        if found is None:
            if len(self._known) >= MOST_CLASSES:
                return None
            found = self._known[pod_class, by_bound] = self._starts(pod_class, by_bound=by_bound)
        seconds = found.get(entry.key)
        if seconds is None or seconds > LATEST.total_seconds():
            return None
        return self._snapshot.now + timedelta(seconds=seconds)

    def _starts(self, pod_class: PodClass, *, by_bound: bool) -> dict[str, float]:
        """By key of a workload: in how many seconds it starts, where it is known."""
        parts = [pod_class.part(each) for each in pod_class.gang] or [pod_class]
        by_gpu = any(part.request.gpu_devices for part in parts)
        if by_bound:
            found = self._under_bound(pod_class)
            if found is None:
                return {}
            ends, free, fits = *found, 0.0
        else:
            part = max(parts, key=lambda part: _amount(part, by_gpu=by_gpu))
            shares, fits_at = self._possible(part)
            if fits_at is None:
                return {}
            ends, free, fits = [end for end in self._all() if end.row in shares], 0, fits_at
        scope = pod_class.project_id if by_bound else ""
        times = _served(
            [(end.seconds, end.gpu_milli if by_gpu else 1) for end in ends],
            free,
            self._queue(pod_class.cluster_id, scope, by_gpu=by_gpu),
        )
        return {key: max(seconds, fits) for key, seconds in times}

    def _under_bound(self, pod_class: PodClass) -> tuple[list[End], int] | None:
        """(what ends of those that count under its tightest bound, what that leaves now)."""
        planning = self._made()
        bounds = [bound for pool in self._pools(pod_class) for bound in quota.bounds(planning, pod_class, pool)]
        if not bounds:
            return None
        bound = min(bounds, key=lambda each: quota.left_under(planning, each, later=False))
        departments = {id_: view.department_id for id_, view in self._snapshot.projects.items()}
        ends = [
            end
            for end in self._all()
            if bound.id in {end.project_id, departments.get(end.project_id, "")}
            and bound.pool in {"", end.pool}
            and (end.firm or not bound.firm)
        ]
        return ends, max(quota.left_under(planning, bound, later=False), 0)

    def _pools(self, pod_class: PodClass) -> tuple[str, ...]:
        return pools_to_try(self._snapshot, pod_class)

    def _made(self) -> Planning:
        if self._planning is None:
            self._planning = Planning(replace(self._snapshot, queues=()), POLICY, MAX_PODS_PER_PLAN)
            for phase in POLICY.phases:
                if phase.name in {"release", "quota"}:
                    phase.run(self._planning)
        return self._planning

    def _possible(self, part: PodClass) -> tuple[dict[int, int], float | None]:
        """(the share of each device that it takes, by row of the nodes where it could run; in how many seconds one pod
        fits on one of them, None: nobody knows).
        """
        found = self._on.get(part)
        if found is not None:
            return found
        planning = self._made()
        view = explain.nodes_of(planning, part, self._pools(part))
        filters = [each for each in POLICY.filters if each.asks(part.request)]
        wrong = explain.barred_in(view, filters) | explain.too_small_in(view, filters)
        view = view.at(~(wrong | explain.closed_in(view, filters)))
        shares: dict[int, int] = dict(zip(view.rows.tolist(), view.share_milli.tolist(), strict=True))
        room, fits = planning.room, None
        mark = room.checkpoint()
        for end in self._all():
            if end.row in shares:
                held = end.held
                room.give_back(end.row, held.cpu_milli, held.memory_bytes, held.devices, held.extended)
                if _fits(room, end.row, part, shares[end.row]):
                    fits = end.seconds
                    break
        room.rollback(mark)
        self._on[part] = shares, fits
        return shares, fits

    def _all(self) -> list[End]:
        """The runs of which it is known how long they last, in the order in which they end."""
        if self._ends is None:
            kept, now = self._fold.ends, self._snapshot.now
            if kept is not None and timedelta() <= now - kept.at < KEPT and len(kept.ends) > FEW:
                passed = (now - kept.at).total_seconds()
                self._ends = [end._replace(seconds=max(end.seconds - passed, 0.0)) for end in kept.ends]
                return self._ends
            rows = {key: row for row, key in enumerate(self._snapshot.nodes.keys)}
            count = sum(len(chain.state.reservations) for chain in self._fold.nodes.values())
            self._ends = sorted(self._expected(rows), key=lambda end: end.seconds) if count <= MOST_RUNS else []
            self._fold.ends = Kept(now, self._ends)
        return self._ends

    def _expected(self, rows: dict[str, int]) -> Iterator[End]:
        fold, now = self._fold, self._snapshot.now
        for key, chain in fold.nodes.items():
            for held in chain.state.reservations.values():
                of = fold.workloads.get(held.workload_key)
                ref = None if of is None else run_of(held.id, held.workload_id)
                pod = None if of is None or ref is None else of.state.pods.live.get(pod_id(ref))
                if of is None or ref is None or pod is None or key not in rows:
                    continue
                age = 0.0 if pod.running_since is None else (now - pod.running_since).total_seconds()
                seconds = fold.forecast.left_seconds(of.state, ref.pod_set, age)
                if seconds is not None:
                    state = of.state
                    yield End(seconds, rows[key], state.project_id, not state.preemptible, pod.pool, held)

    def _queue(self, cluster_id: str, project_id: str, *, by_gpu: bool) -> list["_Turn"]:
        """What waits, in order: in a cluster, or (where it is named) in one project of it."""
        key = cluster_id, project_id, by_gpu
        if key not in self._turns:
            turns: list[_Turn] = []
            for queue in self._snapshot.queues:
                of = queue.pod_class
                if not queue.entries or of.cluster_id != cluster_id or project_id not in {"", of.project_id}:
                    continue
                amount, lasts = _amount(of, by_gpu=by_gpu), self._lasts(queue.entries[0])
                turns += [_Turn(each.order, each.key, amount * _needed(of, each), lasts) for each in queue.entries]
            self._turns[key] = sorted(turns, key=lambda turn: turn.order)
        return self._turns[key]

    def _lasts(self, entry: Pending) -> float | None:
        """Of those of its class, about."""
        chain = self._fold.workloads.get(entry.key)
        if chain is None or not entry.pods:
            return None
        return self._fold.forecast.left_seconds(chain.state, entry.pods[0].pod_set)


class _Turn(NamedTuple):
    order: OrderKey
    key: str
    need: int
    lasts: float | None
    """In seconds; None: nobody knows."""


def _served(ends: list[tuple[float, int]], free: int, queue: list[_Turn]) -> Iterator[tuple[str, float]]:
    """When each gets what it needs, one after the other, while others end; those that are never served are left out."""
    heapq.heapify(ends)
    now = 0.0
    for turn in queue:
        while free < turn.need:
            if not ends:
                return
            now, back = heapq.heappop(ends)
            free += back
        free -= turn.need
        yield turn.key, now
        if turn.lasts is not None:
            heapq.heappush(ends, (now + turn.lasts, turn.need))


def _needed(pod_class: PodClass, entry: Pending) -> int:
    return sum(each.needed for each in pod_class.gang) or len(entry.pods)


def _amount(part: PodClass, *, by_gpu: bool) -> int:
    """What a pod asks for of GPUs, in thousandths; of pods one, where nothing of it asks for a GPU."""
    if not by_gpu:
        return 1
    return part.request.gpu_devices * (part.request.gpu_milli or WHOLE_GPU_MILLI)


def _fits(room: Room, row: int, part: PodClass, share_milli: int) -> bool:
    """In plain numbers: it is asked for each run that ends."""
    request = part.request
    if room.pods[row] < 1 or room.cpu[row] < request.cpu_milli or room.memory[row] < request.memory_bytes:
        return False
    for each in request.extended:
        free = room.extended.get(each.resource)
        if free is None or free[row] < each.amount:
            return False
    fitting = sum(milli >= share_milli for milli in room.devices[row].tolist()) if request.gpu_devices else 0
    return fitting - int(room.withheld[row]) >= request.gpu_devices if request.gpu_devices else True


def with_estimates(planned: Plan, snapshot: Snapshot, fold: SchedulingState) -> Plan:
    """The plan, with the time at which each workload is expected to start of which the log is told why it waits."""
    told = {each.key: each.waiting for each in planned.updates if each.waiting is not None and _may(each.waiting)}
    if not told or sum(len(queue.entries) for queue in snapshot.queues) > MOST_WAITING:
        return planned
    estimates = Estimates(fold, snapshot)
    starts: dict[str, datetime] = {}
    for queue in snapshot.queues:
        for entry in queue.entries:
            waiting = told.get(entry.key)
            if waiting is not None and (start := estimates.start(queue, entry, waiting.reason)) is not None:
                starts.setdefault(entry.key, start)
    updates = tuple(replace(each, expected_start=starts.get(each.key)) for each in planned.updates)
    return replace(planned, updates=updates)


def _may(waiting: Waiting) -> bool:
    return waiting.reason in BY_ROOM | BY_BOUND
