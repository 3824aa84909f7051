"""Whose turn it is: which workload is placed next. Pure.

What others were told to end for goes first, as far as they were. Then projects that stay within their quota, then those
that stay within their fair share of a node pool, then those that go beyond it; among those the higher priority, then
whoever uses less beyond its quota for its weight, by department and then by project, then whoever came first. A turn is
as many pods of one workload as the quota has left, and beyond it one. Within a project the order is the workloads' own,
whatever of them is within the quota: a lower priority would else start before a higher one, only to be preempted by it.
"""

import heapq
from collections.abc import Iterator
from typing import NamedTuple

from services.scheduler.planning import Planning, pools_to_try
from services.scheduler.policy.phases import quota
from services.scheduler.snapshot import INFINITE, OrderKey, Pending, PodClass, Queue, Weights

type _Key = tuple[int, int, float, float, OrderKey]
type _Head = tuple[bool, OrderKey, int, int, int]
"""Whether nothing is promised to its next pod, its order, the indexes of its queue and entry, and how many of its pods
had their turn.
"""


class _Place(NamedTuple):
    """A pool where pods of a queue may go."""

    key: tuple[str, int]
    """Of its project there."""
    department_key: tuple[str, int]
    milli: int
    """What its next pod, or a gang, takes of GPUs."""
    most: int
    """The share of its project."""
    department_most: int


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
        self._places: dict[int, list[_Place]] = {}
        """By index of a queue: the pools where its next pod may go."""
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
        queue = self._planning.snapshot.queues[i]
        entry = queue.entries[at]
        return done >= self._promised(queue, entry), entry.order, i, at, done

    def _promised(self, queue: Queue, entry: Pending) -> int:
        """How many of its pods have a place for which others were told to end: by the GPUs that those hold. More of it
        would take what others were told to end for, and who gets less than that would have still others end.
        """
        milli = self._planning.snapshot.promised.get(entry.workload_id)
        if milli is None:
            return 0
        each = 0 if queue.pod_class.gang else _milli(queue.pod_class)
        return -(-milli // each) if milli and each else len(entry.pods)

    def _stop(self, key: _Key, i: int, at: int, done: int) -> int:
        """How far one turn goes."""
        queue = self._planning.snapshot.queues[i]
        all_ = len(queue.entries[at].pods)
        if queue.pod_class.gang:
            return all_
        if key[0] < 0:
            return min(all_, self._promised(queue, queue.entries[at]))
        if not self._turns:
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
        entry = queue.entries[at]
        if not unpromised:
            return -1, 0, 0, 0, order
        if len(self._heads) == 1:
            return 0, 0, 0, 0, order  # nobody to share with
        project_id = queue.pod_class.project_id
        project = self._planning.shares.project(project_id)
        of_department = quota.beyond(self._planning, project_id, project.department_id)
        return (
            self._standing(i, queue.pod_class),
            -entry.rank,
            weighed(of_department, project.department_weights),
            weighed(quota.beyond(self._planning, project_id, project_id), project.weights),
            order,
        )

    def _standing(self, i: int, pod_class: PodClass) -> int:
        """Whether its next pod is within the quota (0), within the share of one of its pools (1), or neither (2)."""
        if _within(self._planning, pod_class):
            return 0
        if i not in self._places:
            self._places[i] = _places(self._planning, pod_class)
        used = self._planning.shares.used
        for place in self._places[i]:
            milli = place.milli
            own, all_ = used.get(place.key, 0), used.get(place.department_key, 0)
            if not milli or (own + milli <= place.most and all_ + milli <= place.department_most):
                return 1
        return 2


def weighed(milli: int, weights: Weights) -> float:
    """What is held beyond a quota, for the weight that its holder has."""
    return milli / weights.everywhere if weights.everywhere > 0 else INFINITE if milli else 0.0


def _places(planning: Planning, pod_class: PodClass) -> list[_Place]:
    numbers, cluster_id, project_id = planning.snapshot.nodes.pool_numbers, pod_class.cluster_id, pod_class.project_id
    shares, places = planning.shares, list[_Place]()
    department_id = shares.project(project_id).department_id
    parts = [(part.request, part.needed) for part in pod_class.gang] or [(pod_class.request, 1)]
    for pool in pools_to_try(planning.snapshot, pod_class):
        if (number := numbers.get((cluster_id, pool))) is not None:
            milli = sum(shares.milli_of(request, number) * count for request, count in parts)
            places.append(
                _Place(
                    key=(project_id, number),
                    department_key=(department_id, number),
                    milli=milli,
                    most=shares.of(project_id, number),
                    department_most=shares.of(department_id, number),
                )
            )
    return places


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
