"""Elastic workloads grow by what is left once everybody who waits was served.

No pod is added on a node that somebody who waits for room could use, were it empty: what comes free there is theirs.
Those that have fewer pods than they would like go first; among them the order is that of turns, one pod at a time.
What somebody grew by counts as any other pod does, and whoever waits later gets it back first (`take_back`).
"""

import heapq
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final, NamedTuple

import numpy as np

from services.scheduler.candidates import Candidates
from services.scheduler.planning import Phase, Planning, pools_to_try
from services.scheduler.policy.phases import explain, look_again, quota
from services.scheduler.policy.pools import pools_of
from services.scheduler.policy.together import Stay
from services.scheduler.policy.turns import weighed
from services.scheduler.policy.words import gpus
from services.scheduler.snapshot import Booleans, Growth, OrderKey, PodClass

GROWS_AGAIN_AFTER: Final = timedelta(minutes=1)
"""So long an elastic workload keeps its number of pods before it grows again: with each change all its pods meet anew,
and go on from their last checkpoint.
"""

type _Key = tuple[bool, int, float, float, int, OrderKey]


def run(planning: Planning) -> None:
    growing = [_where_placed(planning, each) for each in planning.snapshot.growing]
    if not growing:
        return
    if planning.cut_short:
        planning.not_grown = {each.entry.key: "others come first, and this plan did not get to all" for each in growing}
        return
    turns: list[tuple[_Key, int, int]] = []
    for n, each in enumerate(growing):
        if _may(planning, each):
            heapq.heappush(turns, (_key(planning, each, 0), n, 0))
    before = len(planning.placed.pods)
    _in_turn(planning, growing, turns)
    if len(planning.placed.pods) > before and planning.short:
        # It waits for the reason that it has now: what it had no right to is not free any more, perhaps.
        look_again.run(planning)
        explain.run(planning)


def _in_turn(planning: Planning, growing: Sequence[Growth], turns: list[tuple[_Key, int, int]]) -> None:
    grow = _Grow(planning)
    while turns:
        key, n, done = heapq.heappop(turns)
        each = growing[n]
        # What was placed since counts: a turn comes later by it, and never earlier.
        now = _key(planning, each, done)
        if now > key and turns and now > turns[0][0]:
            heapq.heappush(turns, (now, n, done))
            continue
        if len(planning.placed.pods) >= planning.max_pods:
            planning.cut_short = True
            return
        if grow.one(each, done) and done + 1 < len(each.entry.pods):
            heapq.heappush(turns, (_key(planning, each, done + 1), n, done + 1))


def _where_placed(planning: Planning, of: Growth) -> Growth:
    """It grows on the cluster where this plan starts it, if nobody named one."""
    chosen = planning.choices.chosen.get(of.entry.key)
    if not of.pod_class.among or chosen is None:
        return of
    return replace(of, pod_class=of.pod_class.on(chosen))


def _may(planning: Planning, of: Growth) -> bool:
    key, now = of.entry.key, planning.snapshot.now
    if of.starts and key not in planning.placed.whole:
        return False
    until = of.rests_until
    if any(each.key == key for each in planning.evictions):
        until = now + GROWS_AGAIN_AFTER  # it gives up some in this plan
    if until is not None and until > now:
        told = "their number changed a moment ago, and with each change they meet anew"
        planning.not_grown[key] = f"{told}: not before {until:%H:%M:%S} UTC"
        return False
    return True


def _key(planning: Planning, of: Growth, done: int) -> _Key:
    project_id = of.pod_class.project_id
    project = planning.shares.project(project_id)
    pods = of.pods + done
    return (
        pods >= of.wanted,
        -of.entry.rank,
        weighed(quota.beyond(planning, project_id, project.department_id), project.department_weights),
        weighed(quota.beyond(planning, project_id, project_id), project.weights),
        pods,
        of.entry.order,
    )


class _Grow:
    """Mutable; one plan."""

    def __init__(self, planning: Planning) -> None:
        self._planning = planning
        self._full: dict[PodClass, str] = {}
        """Those for which there is no more room, and why."""
        self._theirs: _Theirs | None = None

    def one(self, of: Growth, done: int) -> bool:
        """Add one pod where there is room for it; whether there is."""
        planning, pod_class = self._planning, of.pod_class
        if pod_class in self._full:
            planning.not_grown[of.entry.key] = self._full[pod_class]
            return False
        pools = pools_of(planning, pod_class)
        stay = None if pod_class.together is None else Stay(planning, pod_class.together, of.entry, pools)
        why = "no node has room for one more"
        for pool, candidates in pools:
            left = quota.left(planning, pod_class, pool)
            milli = None if left is None else left.milli
            if _best(candidates, stay, milli, None) is None:
                if left is not None and _best(candidates, stay, None, None) is not None:
                    why = f"{left.bound.holder} has no more than {gpus(max(left.milli, 0))} left of what it may hold"
                continue
            theirs = self._theirs = self._theirs or _theirs(planning)
            index = _best(candidates, stay, milli, ~theirs.rows[candidates.rows])
            if index is not None:
                self._add(of, done, pool, candidates, index)
                return True
            waits = "workload that waits" if theirs.workloads == 1 else "workloads that wait"
            why = f"there is room, and {theirs.workloads} {waits} could use those nodes"
        if stay is None:
            self._full[pod_class] = why
        planning.not_grown[of.entry.key] = why
        return False

    def _add(self, of: Growth, done: int, pool: str, candidates: Candidates, index: int) -> None:
        planning, placed = self._planning, self._planning.placed
        row, devices = int(candidates.rows[index]), candidates.devices(index)
        planning.take(row, of.pod_class.request, devices)
        quota.use(planning, of.pod_class, pool, int(candidates.gpu_milli[index]))
        placed.classes.append(of.pod_class)
        placed.entries.append(of.entry)
        placed.pods.append(of.entry.pods[done])
        placed.pools.append(pool)
        placed.rows.append(row)
        placed.devices.append(devices)


def _best(candidates: Candidates, stay: Stay | None, milli: int | None, within: Booleans | None) -> int | None:
    if stay is None:
        return candidates.best(most_gpu_milli=milli, within=within)
    return stay.best(candidates, milli, within=within)


class _Theirs(NamedTuple):
    rows: Booleans
    """Nodes that somebody who waits could use."""
    workloads: int
    """How many wait that could use any."""


def _theirs(planning: Planning) -> _Theirs:
    snapshot = planning.snapshot
    rows = np.zeros(len(snapshot.nodes.keys), dtype=np.bool_)
    workloads: set[str] = set()
    placed = {entry.key for entry in planning.placed.entries}
    for i, queue in enumerate(snapshot.queues):
        waiting = planning.blocked.get(i)
        looked_at = i not in planning.put_off
        if looked_at and (waiting is None or waiting.reason not in explain.FULL):
            continue  # it has a place, or more room would not help it
        waits = [entry.key for entry in queue.entries if entry.key not in placed]
        pod_class = queue.pod_class
        for part in [pod_class.part(each) for each in pod_class.gang] or [pod_class]:
            view = explain.nodes_of(planning, part, pools_to_try(snapshot, part))
            filters = [each for each in planning.policy.filters if each.asks(part.request)]
            never = explain.barred_in(view, filters) | explain.too_small_in(view, filters)
            rows[view.rows[~(never | explain.closed_in(view, filters))]] = True
        workloads.update(waits)
    return _Theirs(rows, len(workloads))


PHASE: Final = Phase(name="grow", run=run)
