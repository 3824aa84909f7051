"""Whose turn it is: which workload is placed next. Pure.

What a place is kept for goes first. Then projects that stay within their quota, then those that go beyond it; among
those the higher priority, then whoever uses less beyond its quota, by department and then by project, then whoever came
first. A turn is as many pods of one workload as the quota has left, and beyond it one. Within a project the order is
the workloads' own, whatever of them is within the quota: a lower priority would else start before a higher one, only to
be preempted by it.
"""

import heapq
from collections.abc import Iterator
from typing import NamedTuple

from services.scheduler.planning import Planning
from services.scheduler.policy.phases import quota
from services.scheduler.snapshot import OrderKey, PodClass

type _Key = tuple[int, int, int, int, OrderKey]
type _Head = tuple[bool, OrderKey, int, int, int]
"""Whether no place is kept for it, its order, the indexes of its queue and entry, and how many of its pods had their
turn.
"""


class Turn(NamedTuple):
    queue: int
    """Its index."""
    entry: int
    """Likewise, in the queue."""
    start: int
    """Index of the first of the entry's pods."""
    stop: int
    """Of the one after the last; of a gang, all have one turn."""


class Turns:
    """Mutable; one plan."""

    def __init__(self, planning: Planning) -> None:
        self._planning = planning
        self._heads: dict[str, list[_Head]] = {}
        """By project id; a heap."""
        for i, queue in enumerate(planning.snapshot.queues):
            if queue.entries and queue.blocked is None:
                self._heads.setdefault(queue.pod_class.project_id, []).append(self._head(i, 0, 0))
        for heads in self._heads.values():
            heapq.heapify(heads)
        self._turns = [(self._key(heads[0]), project_id) for project_id, heads in self._heads.items()]
        heapq.heapify(self._turns)

    def __iter__(self) -> Iterator[Turn]:
        while self._turns:
            key, project_id = heapq.heappop(self._turns)
            heads = self._heads[project_id]
            # What was placed since counts: a turn comes later by it, and never earlier.
            now = self._key(heads[0])
            if now > key and self._turns and now > self._turns[0][0]:
                heapq.heappush(self._turns, (now, project_id))
                continue
            _, _, i, at, done = heapq.heappop(heads)
            yield Turn(i, at, done, self._stop(now, i, at, done))
            if heads:
                heapq.heappush(self._turns, (self._key(heads[0]), project_id))

    def go_on(self, turn: Turn) -> None:
        """What comes after this turn in its queue has one, too, where there is something."""
        queue = self._planning.snapshot.queues[turn.queue]
        at, done = turn.entry, turn.stop
        if done == len(queue.entries[at].pods):
            at, done = at + 1, 0
        if at < len(queue.entries):
            heapq.heappush(self._heads[queue.pod_class.project_id], self._head(turn.queue, at, done))

    def _head(self, i: int, at: int, done: int) -> _Head:
        entry = self._planning.snapshot.queues[i].entries[at]
        return entry.workload_id not in self._planning.snapshot.promised, entry.order, i, at, done

    def _stop(self, key: _Key, i: int, at: int, done: int) -> int:
        """How far one turn goes."""
        queue = self._planning.snapshot.queues[i]
        all_ = len(queue.entries[at].pods)
        if queue.pod_class.gang or not self._turns:
            return all_
        if key[0] > 0:
            return done + 1
        milli = _milli(queue.pod_class)
        pools = _pools(self._planning, queue.pod_class)
        left = max(quota.left_within(self._planning, queue.pod_class.project_id, pool) for pool in pools)
        return min(all_, done + max(left // milli, 1)) if milli else all_

    def _key(self, head: _Head) -> _Key:
        unpromised, order, i, at, _ = head
        queue = self._planning.snapshot.queues[i]
        entry, project_id = queue.entries[at], queue.pod_class.project_id
        if not unpromised:
            return -1, 0, 0, 0, order
        beyond = 0 if _within(self._planning, queue.pod_class) else 1
        project = self._planning.snapshot.projects.get(project_id)
        department = "" if project is None else project.department_id
        of_department = quota.beyond(self._planning, project_id, department) if department else 0
        return beyond, -entry.rank, of_department, quota.beyond(self._planning, project_id, project_id), order


def _within(planning: Planning, pod_class: PodClass) -> bool:
    """Whether its project has a quota and stays within it with this workload's next pod, or with all of a gang."""
    milli = _milli(pod_class)
    pools = _pools(planning, pod_class) if milli else ()
    return any(quota.within(planning, pod_class.project_id, pool, milli) for pool in pools)


def _milli(pod_class: PodClass) -> int:
    """What its next pod, or a gang, asks of GPUs; 0 where it asks for memory of one, which is another share on each."""
    parts = [(part.request, part.needed) for part in pod_class.gang] or [(pod_class.request, 1)]
    return sum(request.gpu_devices * request.gpu_milli * count for request, count in parts)


def _pools(planning: Planning, pod_class: PodClass) -> tuple[str, ...]:
    """Those that it may use; an empty name stands for any."""
    project = planning.snapshot.projects.get(pod_class.project_id)
    return pod_class.pools or (project.pools if project else ()) or ("",)
