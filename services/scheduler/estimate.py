"""When a waiting workload is expected to start: runs end one after the other as long as others like them lasted, and
what waits gets what comes free, in its order, and ends as well. Nobody starts before one of its pods fits on a node.
Nodes that the calendar closes come free when its entries are over.

Beside it stands what is known: it starts no earlier than a node is open to it and, as the queue stands, no later than
when all has surely ended that holds what it needs (services.scheduler.known_ends).

Nothing is expected where it is not known how long enough of those runs last. Pure.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import numpy as np

from events.node import Reservation, run_of
from events.phases import WaitingReason
from events.workload.pod import pod_id
from events.workload.spec import WHOLE_GPU_MILLI
from services.scheduler.candidates import refused_by
from services.scheduler.fold import SchedulingState
from services.scheduler.forecast import LATEST, End, Kept
from services.scheduler.known_ends import KnownEnds
from services.scheduler.plan import MAX_PODS_PER_PLAN
from services.scheduler.planning import Planning, pools_to_try
from services.scheduler.policy.filters import calendar
from services.scheduler.policy.phases import explain, quota
from services.scheduler.policy.registry import POLICY
from services.scheduler.room import Room, View
from services.scheduler.snapshot import INFINITE, OrderKey, Pending, Plan, PodClass, Queue, Snapshot, Waiting

BY_ROOM: Final = explain.FULL
BY_BOUND: Final = frozenset({WaitingReason.QUOTA_USED, WaitingReason.LIMIT_USED})
BY_CALENDAR: Final = frozenset({WaitingReason.MAINTENANCE, WaitingReason.CAPACITY_RESERVED})
BY_KNOWN: Final = BY_CALENDAR | {WaitingReason.WAITING_FOR_PODS_TO_END}
"""How long these last is known, as far as nobody changes anything. So nothing is measured by how it came out, which
would make all other estimates look better than they are.
"""
_ESTIMATED: Final = BY_ROOM | BY_BOUND | BY_KNOWN
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


type _When = Callable[[End], float | None]


class Expected(NamedTuple):
    """When a workload starts."""

    start: datetime | None
    """As it is expected; None where there is no ground for an estimate."""
    earliest: datetime
    """Before that nothing is open to it; now, where it may be at any time."""
    by: datetime | None
    """When all has surely ended that it waits for, if the queue stays as it is; None: nobody knows."""


class _Where(NamedTuple):
    """Where pods of a class could run."""

    part: PodClass
    shares: dict[int, int]
    """By row of the nodes: the share of each device that a pod takes."""
    opens: dict[int, float]
    """Of those that the calendar keeps closed: in how many seconds it no longer does."""


class _Starts(NamedTuple):
    """Of the workloads of a class, in seconds from now."""

    earliest: float
    expected: dict[str, float]
    by: dict[str, float]


class Estimates:
    """As of one snapshot; what several workloads need is found out once."""

    def __init__(self, fold: SchedulingState, snapshot: Snapshot) -> None:
        self._fold, self._snapshot = fold, snapshot
        self._ends: list[End] | None = None
        self._planning: Planning | None = None
        self._turns: dict[tuple[str, str, bool, bool], list[_Turn]] = {}
        self._known: dict[tuple[PodClass, bool], _Starts] = {}
        self._on: dict[PodClass, _Where] = {}

    def expected(self, queue: Queue, entry: Pending, reason: WaitingReason) -> Expected | None:
        """None where nothing can be told."""
        if reason not in _ESTIMATED:
            return None
        pod_class, by_bound = queue.pod_class, reason in BY_BOUND
        found = self._known.get((pod_class, by_bound))
        if found is None:
            if len(self._known) >= MOST_CLASSES:
                return None
            found = self._known[pod_class, by_bound] = self._starts(pod_class, by_bound=by_bound)
        start, by = self._at(found.expected.get(entry.key)), self._at(found.by.get(entry.key))
        if reason in BY_KNOWN:
            start = None
        if start is not None and by is not None:
            start = min(start, by)
        return Expected(start, self._at(found.earliest) or self._snapshot.now, by)

    def _at(self, seconds: float | None) -> datetime | None:
        if seconds is None or seconds > LATEST.total_seconds():
            return None
        return self._snapshot.now + timedelta(seconds=seconds)

    def _starts(self, pod_class: PodClass, *, by_bound: bool) -> _Starts:
        parts = [pod_class.part(each) for each in pod_class.gang] or [pod_class]
        by_gpu = any(part.request.gpu_devices for part in parts)
        where = [self._where(part) for part in parts]
        earliest = max(min((each.opens.get(row, 0.0) for row in each.shares), default=0.0) for each in where)
        largest = max(where, key=lambda each: _amount(each.part, by_gpu=by_gpu))
        needed = sum(each.needed for each in pod_class.gang) or 1
        bound = self._under_bound(pod_class) if by_bound else None
        if by_bound and bound is None:
            return _Starts(earliest, {}, {})

        def served(when: _When, fits: float | None, *, surely: bool) -> dict[str, float]:
            if fits is None:
                return {}
            if bound is None:
                ends, free, scope = self._come_free(largest, when, by_gpu=by_gpu), 0, ""
            else:
                of_bound = ((when(end), end) for end in bound[0])
                ends = [(at, _freed(end, by_gpu=by_gpu)) for at, end in of_bound if at is not None]
                free, scope = bound[1], pod_class.project_id
            turns = self._queue(pod_class.cluster_id, scope, by_gpu=by_gpu, surely=surely)
            return {key: max(seconds, fits) for key, seconds in _served(ends, free, turns)}

        fits = self._fit_at([largest], 1, _expected_end)
        # All of its pods must find room, and not one of them alone.
        known = served(_known_end, self._fit_at(where, needed, _known_end), surely=True)
        closes = self._closes(where)
        return _Starts(
            earliest,
            served(_expected_end, fits, surely=False),
            {key: seconds for key, seconds in known.items() if seconds < closes},
        )

    def _closes(self, where: list[_Where]) -> float:
        """In how many seconds the calendar may close a node to one of these sorts of pods: what ends there later need
        not be of use to them.
        """
        keys, now = self._snapshot.nodes.keys, self._snapshot.now
        found = [self._fold.closes_at({keys[row] for row in each.shares}, each.part, now) for each in where]
        return min(((at - now).total_seconds() for at in found if at is not None), default=INFINITE)

    def _come_free(self, where: _Where, when: _When, *, by_gpu: bool) -> list[tuple[float, int]]:
        """What comes free where such pods could run: in how many seconds, and how much."""
        of_runs = ((when(end), end) for end in self._all() if end.row in where.shares)
        ends = [
            (max(at, where.opens.get(end.row, 0.0)), _freed(end, by_gpu=by_gpu))
            for at, end in of_runs
            if at is not None
        ]
        room = self._made().room
        for row, at in where.opens.items():
            ends.append((at, max(int(room.devices[row].sum() if by_gpu else room.pods[row]), 0)))
        return ends

    def _fit_at(self, where: list[_Where], needed: int, when: _When) -> float | None:
        """In how many seconds so many pods fit on nodes, where runs end then; None: nobody knows. Of several sorts of
        pods each counts as if it asked for what any of them asks for, and could go only where all of them can.
        """
        rows = {row for row in where[0].shares if all(row in each.shares for each in where)}
        opens = {row: max(each.opens.get(row, 0.0) for each in where) for row in rows}
        shares = {row: max(each.shares[row] for each in where) for row in rows}
        parts, room = [each.part for each in where], self._made().room
        fitting = {
            row: _fitting(room, row, parts, shares[row], needed)
            for row in self._with_room(parts, rows)
            if not opens[row]
        }
        steps: list[tuple[float, int, Reservation | None]] = [(at, row, None) for row, at in opens.items() if at]
        steps += [(at, end.row, end.held) for end in self._all() if end.row in rows and (at := when(end)) is not None]
        mark, total = room.checkpoint(), sum(fitting.values())
        try:
            for at, row, held in sorted(steps, key=lambda step: step[:2]):
                if total >= needed:
                    break
                if held is not None:
                    room.give_back(row, held.cpu_milli, held.memory_bytes, held.devices, held.extended)
                if opens[row] > at:
                    continue
                now = _fitting(room, row, parts, shares[row], needed)
                total, fitting[row] = total + now - fitting.get(row, 0), now
                if total >= needed:
                    return at
            return 0.0 if total >= needed else None
        finally:
            room.rollback(mark)

    def _with_room(self, parts: list[PodClass], rows: Iterable[int]) -> list[int]:
        """Those on which one of the pods fits now."""
        request, table = parts[0].request, np.array(sorted(rows), dtype=np.int64)
        full = [each.full for each in POLICY.filters if each.full is not None and each.asks(request)]
        return table[~refused_by(full, View(self._made().room, request, table))].tolist()

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

    def _where(self, part: PodClass) -> _Where:
        """The nodes where it could run: those that are open to it, and those that only the calendar keeps closed."""
        found = self._on.get(part)
        if found is not None:
            return found
        view = explain.nodes_of(self._made(), part, self._pools(part))
        filters = [each for each in POLICY.filters if each.asks(part.request)]
        wrong = explain.barred_in(view, filters) | explain.too_small_in(view, filters)
        wrong |= explain.closed_in(view, [each for each in filters if each.name != calendar.NAME])
        view = view.at(~wrong)
        shares: dict[int, int] = dict(zip(view.rows.tolist(), view.share_milli.tolist(), strict=True))
        opens: dict[int, float] = {}
        for each in view.closings:
            seconds = max((each.ends_at - self._snapshot.now).total_seconds(), 0.0)
            for row in view.rows[each.rows[view.rows]].tolist():
                opens[row] = max(opens.get(row, 0.0), seconds)
        found = self._on[part] = _Where(part, shares, opens)
        return found

    def _all(self) -> list[End]:
        """The runs of whose ends something is known."""
        if self._ends is None:
            kept, now = self._fold.ends, self._snapshot.now
            if kept is not None and timedelta() <= now - kept.at < KEPT and len(kept.ends) > FEW:
                passed = (now - kept.at).total_seconds()
                self._ends = [
                    end._replace(seconds=_sooner(end.seconds, passed), by=_sooner(end.by, passed)) for end in kept.ends
                ]
                return self._ends
            rows = {key: row for row, key in enumerate(self._snapshot.nodes.keys)}
            count = sum(len(chain.state.reservations) for chain in self._fold.nodes.values())
            self._ends = list(self._found(rows)) if count <= MOST_RUNS else []
            self._fold.ends = Kept(now, self._ends)
        return self._ends

    def _found(self, rows: dict[str, int]) -> Iterator[End]:
        fold, now = self._fold, self._snapshot.now
        known = KnownEnds(fold, now)
        for key, chain in fold.nodes.items():
            for held in chain.state.reservations.values():
                of = fold.workloads.get(held.workload_key)
                ref = None if of is None else run_of(held.id, held.workload_id)
                pod = None if of is None or ref is None else of.state.pods.live.get(pod_id(ref))
                if of is None or ref is None or pod is None or key not in rows:
                    continue
                age = 0.0 if pod.running_since is None else (now - pod.running_since).total_seconds()
                state, by = of.state, known.of(key, held, of.state, pod)
                seconds = fold.forecast.left_seconds(of.state, ref.pod_set, age)
                if seconds is not None and by is not None:
                    seconds = min(seconds, by)
                if seconds is not None or by is not None:
                    yield End(seconds, by, rows[key], state.project_id, not state.preemptible, pod.pool, held)

    def _queue(self, cluster_id: str, project_id: str, *, by_gpu: bool, surely: bool) -> list["_Turn"]:
        """What waits, in order: in a cluster, or (where it is named) in one project of it.

        Args:
            surely: with how long each lasts at most, and not as is expected.
        """
        key = cluster_id, project_id, by_gpu, surely
        if key not in self._turns:
            turns: list[_Turn] = []
            for queue in self._snapshot.queues:
                of = queue.pod_class
                if not queue.entries or of.cluster_id != cluster_id or project_id not in {"", of.project_id}:
                    continue
                amount = _amount(of, by_gpu=by_gpu)
                lasts = of.lasts_seconds if surely else self._lasts(queue.entries[0])
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


def _expected_end(end: End) -> float | None:
    return end.seconds


def _known_end(end: End) -> float | None:
    return end.by


def _sooner(seconds: float | None, passed: float) -> float | None:
    return None if seconds is None else max(seconds - passed, 0.0)


def _freed(end: End, *, by_gpu: bool) -> int:
    return end.gpu_milli if by_gpu else 1


def _fitting(room: Room, row: int, parts: list[PodClass], share_milli: int, most: int) -> int:
    """How many pods fit on a node, each of which asks for what any of these does. In plain numbers: it is asked for
    each run that ends.
    """
    most = min(most, int(room.pods[row]))
    for part in parts:
        request = part.request
        for asked, free in ((request.cpu_milli, room.cpu), (request.memory_bytes, room.memory)):
            if asked:
                most = min(most, int(free[row]) // asked)
        for each in request.extended:
            column = room.extended.get(each.resource)
            most = min(most, 0 if column is None else int(column[row]) // each.amount)
    if most > 0 and (devices := max(part.request.gpu_devices for part in parts)):
        free = [milli // share_milli for milli in room.devices[row].tolist() if milli >= share_milli]
        # Of one pod each share is on a device of its own.
        free = free if devices == 1 else [1 for _ in free]
        most = min(most, (sum(free) - int(room.withheld[row])) // devices)
    return max(most, 0)


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
            found = None if waiting is None else estimates.expected(queue, entry, waiting.reason)
            if found is not None and found.start is not None:
                starts.setdefault(entry.key, found.start)
    updates = tuple(replace(each, expected_start=starts.get(each.key)) for each in planned.updates)
    return replace(planned, updates=updates)


def _may(waiting: Waiting) -> bool:
    return waiting.reason in BY_ROOM | BY_BOUND
