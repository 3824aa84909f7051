"""Whose turn it is: which workload is placed next. Pure.

What others were told to end for goes first, as far as they were. Then projects that stay within their quota, then those
that stay within their fair share of a node pool, then those that go beyond it; among those the higher priority, then
whoever uses less beyond its quota for its weight, by department and then by project, then whoever came first. A turn is
as many pods of one workload as the quota has left, and beyond it one. Within a project the order is the workloads' own,
whatever of them is within the quota: a lower priority would else start before a higher one, only to be preempted by it.
"""

import heapq
from bisect import bisect_left
from collections.abc import Iterator
from typing import Final, NamedTuple

from services.scheduler.planning import Planning, pools_to_try
from services.scheduler.policy.phases import quota
from services.scheduler.policy.reserve import gives_way
from services.scheduler.snapshot import INFINITE, BoundKey, OrderKey, Pending, PodClass, Queue, Weights

MOST_AT_ONCE: Final = 256
"""Entries of a queue that have one turn: what is made ready for more of them would often be in vain."""

type _Key = tuple[int, int, float, float, OrderKey]
type _Head = tuple[float, OrderKey, int, int, int]
"""The how manieth it is to which a place is promised, for its next pod (INFINITE where none is), its order, the indexes
of its queue and entry, and how many of its pods had their turn.
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


class _Holder(NamedTuple):
    """A project among those that go beyond their quota: under which key it is counted what it holds, its quota and its
    weight, and the same of its department.
    """

    key: BoundKey
    quota: int
    weights: Weights
    department_key: BoundKey
    department_quota: int
    department_weights: Weights


class _Standing(NamedTuple):
    """What says of a queue whether it is within its quota or its share; nothing of it changes within a plan."""

    milli: int
    """What its next pod, or a gang, asks of GPUs."""
    quotas: tuple[tuple[tuple[BoundKey, int], ...], ...]
    """By pool: as of quota.quotas."""


class Turn(NamedTuple):
    queue: int
    """Its index."""
    entry: int
    """Likewise, in the queue."""
    start: int
    """Index of the first of the entry's pods."""
    stop: int
    """Of the one after the last; of a gang, all have one turn."""
    through: int
    """Index of the entry after the last one that has this turn: those after the first have it with all their pods."""


class Turns:
    """Mutable; one plan."""

    def __init__(self, planning: Planning) -> None:
        self._planning = planning
        self._numbers = {id_: float(number) for number, id_ in enumerate(planning.snapshot.promised)}
        """Of workloads to which a place is promised, by id: the how manieth of them it is."""
        self._places: dict[int, list[_Place]] = {}
        """By index of a queue: the pools where its next pod may go."""
        self._standings: dict[int, _Standing] = {}
        """By index of a queue."""
        self._holders: dict[str, _Holder] = {}
        """By project id."""
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
            stop = self._stop(now, i, at, done)
            yield Turn(i, at, done, stop, self._through(heads, now, i, at, stop))
            if heads:
                heapq.heappush(self._turns, (self._key(heads[0]), project_id))

    def go_on(self, turn: Turn) -> None:
        """What comes after this turn in its queue has one, too, where there is something."""
        queue = self._planning.snapshot.queues[turn.queue]
        at, done = turn.entry, turn.stop
        if done == len(queue.entries[at].pods):
            at, done = turn.through, 0
        if at < len(queue.entries):
            heapq.heappush(self._heads[queue.pod_class.project_id], self._head(turn.queue, at, done))

    def _head(self, i: int, at: int, done: int) -> _Head:
        queue = self._planning.snapshot.queues[i]
        entry = queue.entries[at]
        # The first to whom a place was promised first: those that came later had others told to end beside it.
        number = INFINITE if done >= self._promised(queue, entry) else self._numbers.get(entry.workload_id, INFINITE)
        return number, entry.order, i, at, done

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
        if queue.pod_class.gang or all_ == done + 1:
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

    def _through(self, heads: list[_Head], key: _Key, i: int, at: int, stop: int) -> int:
        """Which entries of this queue come before all others in any case, where nobody else shares anything.

        Args:
            heads: the other ones of its project.
        """
        queue = self._planning.snapshot.queues[i]
        entries, promised = queue.entries, self._planning.snapshot.promised
        pod_class = queue.pod_class
        alone = len(self._heads) == 1 and pod_class.project_id not in self._planning.aside.spoken_for_by
        if (
            not alone
            or pod_class.gang
            or pod_class.together
            or pod_class.among
            or key[0] < 0
            or stop < len(entries[at].pods)
        ):
            return at + 1
        through = min(at + MOST_AT_ONCE, len(entries))
        if heads:
            through = bisect_left(entries, heads[0][1], lo=at + 1, hi=through, key=_order)
        if promised:
            through = next((n for n in range(at + 1, through) if entries[n].workload_id in promised), through)
        return through

    def _key(self, head: _Head) -> _Key:
        promised, order, i, at, _ = head
        queue = self._planning.snapshot.queues[i]
        entry = queue.entries[at]
        if promised < INFINITE:
            return -1, 0, promised, 0, order
        if len(self._heads) == 1:
            return 0, 0, 0, 0, order  # nobody to share with
        of_department, own = self._beyond(queue.pod_class.project_id)
        return self._standing_of(i, queue.pod_class, entry), -entry.rank, of_department, own, order

    def _beyond(self, project_id: str) -> tuple[float, float]:
        """What its department, and what itself holds beyond the quota, for the weight."""
        holder = self._holders.get(project_id)
        if holder is None:
            planning, project = self._planning, self._planning.shares.project(project_id)
            key, own = quota.own_quota(planning, project_id, project_id)
            department_key, of_department = quota.own_quota(planning, project_id, project.department_id)
            holder = self._holders[project_id] = _Holder(
                key, own, project.weights, department_key, of_department, project.department_weights
            )
        used = self._planning.quota_used
        return (
            weighed(used.get(holder.department_key, 0) - holder.department_quota, holder.department_weights),
            weighed(used.get(holder.key, 0) - holder.quota, holder.weights),
        )

    def _standing_of(self, i: int, pod_class: PodClass, entry: Pending) -> int:
        """Whether its next pod is within the quota (0), within the share of one of its pools (1), or neither (2)."""
        standing = self._standings.get(i)
        if standing is None:
            standing = self._standings[i] = _standing(self._planning, pod_class)
        milli, used = standing.milli, self._planning.quota_used
        for quotas in standing.quotas:
            for key, most in quotas:
                if used.get(key, 0) + milli > most:
                    break
            else:
                return 0
        if i not in self._places:
            self._places[i] = _places(self._planning, pod_class)
        used, spoken = self._planning.shares.used, self._planning.shares.spoken
        # What gives way to a gang of its project may have its part until then.
        behind = bool(spoken) and gives_way(self._planning, pod_class, entry)
        for place in self._places[i]:
            milli = place.milli
            own, all_ = used.get(place.key, 0), used.get(place.department_key, 0)
            if not behind:
                own += spoken.get(place.key, 0)
            if not milli or (own + milli <= place.most and all_ + milli <= place.department_most):
                return 1
        return 2


def _order(entry: Pending) -> OrderKey:
    return entry.order


def weighed(milli: int, weights: Weights) -> float:
    """What is beyond a quota, where anything is, for a weight."""
    if milli <= 0:
        return 0.0
    return milli / weights.everywhere if weights.everywhere > 0 else INFINITE


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


def _standing(planning: Planning, pod_class: PodClass) -> _Standing:
    """It is within its quota where its project has one and stays within it with its next pod, or with all of a gang."""
    milli = _milli(pod_class)
    pools = _pools(planning, pod_class) if milli else ()
    quotas = (quota.quotas(planning, pod_class.project_id, pool) for pool in pools)
    return _Standing(milli, tuple(each for each in quotas if each))


def _milli(pod_class: PodClass) -> int:
    """What its next pod, or a gang, asks of GPUs; 0 where it asks for memory of one, which is another share on each."""
    parts = [(part.request, part.needed) for part in pod_class.gang] or [(pod_class.request, 1)]
    return sum(request.gpu_devices * request.gpu_milli * count for request, count in parts)


def _pools(planning: Planning, pod_class: PodClass) -> tuple[str, ...]:
    """Those that it may use; an empty name stands for any."""
    project = planning.snapshot.projects.get(pod_class.project_id)
    return pod_class.pools or (project.pools if project else ()) or ("",)
