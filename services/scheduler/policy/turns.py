"""Whose turn it is: which workload is placed next. Pure.

What a place is kept for goes first. Then projects that stay within their quota, then those that go beyond it; among
those the higher priority, then whoever uses less beyond its quota, by department and then by project, then whoever came
first. Within a project the order is the workloads' own, whatever of them is within the quota: a lower priority would
else start before a higher one, only to be preempted by it.
"""

import heapq
from collections.abc import Iterator

from services.scheduler.planning import Planning
from services.scheduler.policy.phases import quota
from services.scheduler.snapshot import OrderKey, PodClass

type _Key = tuple[int, int, int, int, OrderKey]
type _Head = tuple[bool, OrderKey, int, int]
"""Whether no place is kept for it, its order, and the indexes of its queue and entry."""


class Turns:
    """Mutable; one plan."""

    def __init__(self, planning: Planning) -> None:
        self._planning = planning
        self._heads: dict[str, list[_Head]] = {}
        """By project id; a heap."""
        for i, queue in enumerate(planning.snapshot.queues):
            if queue.entries and queue.blocked is None:
                self._heads.setdefault(queue.pod_class.project_id, []).append(self._head(i, 0))
        for heads in self._heads.values():
            heapq.heapify(heads)
        self._turns = [(self._key(heads[0]), project_id) for project_id, heads in self._heads.items()]
        heapq.heapify(self._turns)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Index of the queue, and of the entry in it."""
        while self._turns:
            key, project_id = heapq.heappop(self._turns)
            heads = self._heads[project_id]
            # What was placed since counts: a turn comes later by it, and never earlier.
            now = self._key(heads[0])
            if now > key and self._turns and now > self._turns[0][0]:
                heapq.heappush(self._turns, (now, project_id))
                continue
            _, _, i, at = heapq.heappop(heads)
            yield i, at
            if heads:
                heapq.heappush(self._turns, (self._key(heads[0]), project_id))

    def go_on(self, i: int, at: int) -> None:
        """The next entry of the queue whose turn it is comes, too, where there is one."""
        queue = self._planning.snapshot.queues[i]
        if at < len(queue.entries):
            heapq.heappush(self._heads[queue.pod_class.project_id], self._head(i, at))

    def _head(self, i: int, at: int) -> _Head:
        entry = self._planning.snapshot.queues[i].entries[at]
        return entry.workload_id not in self._planning.snapshot.promised, entry.order, i, at

    def _key(self, head: _Head) -> _Key:
        unpromised, order, i, at = head
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
    parts = [(part.request, part.needed) for part in pod_class.gang] or [(pod_class.request, 1)]
    milli = sum(request.gpu_devices * request.gpu_milli * count for request, count in parts)
    project = planning.snapshot.projects.get(pod_class.project_id)
    if project is None or not milli or not any(bound.firm for bound in project.bounds):
        return False
    pools = pod_class.pools or project.pools or ("",)
    return any(quota.within(planning, pod_class.project_id, pool, milli) for pool in pools)
