"""What each project and department may have of a node pool by right: its fair share. Pure.

Of the GPUs of a pool, the departments that want them get their quota first, then by weight what is left of it; of what
a department gets, its projects likewise. Nobody gets more than it holds and waits for, or than its limit. The shares of
a plan are those from before it places anything, so they are the same for all its turns.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from events.workload.spec import WHOLE_GPU_MILLI, PodRequest
from services.scheduler.room import Room, shares_milli
from services.scheduler.snapshot import BoundKey, ProjectView, Queue, Snapshot, Weights

NO_PROJECT = ProjectView(name="", exists=False, department_id="", pools=(), bounds=())
"""Of a project of which nothing is known."""


class Want(NamedTuple):
    """Of one of those that share something."""

    quota: int
    """What it is guaranteed of it."""
    weight: float
    wanted: int


def water_filled(total: float, wants: Sequence[Want]) -> list[float]:
    """What each gets: of its quota what it wants, then by weight what is left, as far as it wants it. Where there is
    less than all quotas, each gets the same part of its own.
    """
    first = _poured(total, [min(each.quota, each.wanted) for each in wants], [each.quota for each in wants])
    rest = [each.wanted - got for each, got in zip(wants, first, strict=True)]
    then = _poured(total - sum(first), rest, [each.weight for each in wants])
    return [sum(both) for both in zip(first, then, strict=True)]


def _poured(total: float, most: Sequence[float], weights: Sequence[float]) -> list[float]:
    got = [0.0] * len(most)
    open_ = [i for i, weight in enumerate(weights) if weight > 0 and most[i] > 0]
    open_.sort(key=lambda i: most[i] / weights[i])
    # Summed from the end: beside a large weight a tiny one is lost, and what is left by subtraction could be nothing.
    left = [*accumulate(weights[i] for i in reversed(open_))]
    for i, weight in zip(open_, reversed(left), strict=True):
        got[i] = min(most[i], max(total, 0.0) * weights[i] / weight)
        total -= got[i]
    return got


class Shares:
    """Of one plan. Mutable: what is used changes while pods are placed, and shares are found out once asked for."""

    def __init__(self, snapshot: Snapshot, room: Room, quota_used: dict[BoundKey, int]) -> None:
        self._snapshot, self._room, self._quota_used = snapshot, room, quota_used
        """Before anything is placed."""
        self._numbers = {number: pool for (_, pool), number in snapshot.nodes.pool_numbers.items()}
        self.used: dict[tuple[str, int], int] = {}
        """By id of a project or department and number of a pool: what its pods hold there, but for those that were told
        to end.
        """
        self.spoken: dict[tuple[str, int], int] = {}
        """By project id and number of a pool: what its gangs that have waited for long are to have. Nobody is beyond a
        share by it, and of its department's share it takes nothing from others of that: each has its own share.
        """
        self._wanted: dict[int, dict[str, int]] = {}
        """By number of a pool and project id: what it holds there, also in pods that are told to end, and waits for."""
        self._held: dict[int, int] = {}
        self._shares: dict[int, dict[str, int]] = {}
        self._anybody_beyond: dict[int, bool] = {}
        self._by_memory: dict[tuple[int, int], int] = {}
        """What a request for so much memory takes of a device, by bytes and number of a pool."""
        self._count_held()
        self._free = _free_by_pool(room, len(self._numbers))
        self._late = self._counted_late()
        """What those hold that should have ended by now: nobody is beyond a share by it."""
        self._largest = _largest_by_pool(room, len(self._numbers))

    def project(self, id_: str) -> ProjectView:
        return self._snapshot.projects.get(id_, NO_PROJECT)

    def use(self, project_id: str, number: int, milli: int) -> None:
        """So much more is held in a pool; less than nothing where it is given up."""
        for key in ((project_id, number), (self.project(project_id).department_id, number)):
            self.used[key] = self.used.get(key, 0) + milli

    def speak_for(self, project_id: str, number: int, milli: int) -> None:
        """So much more is to be left for such a gang; less than nothing where it is not any more."""
        self.spoken[project_id, number] = self.spoken.get((project_id, number), 0) + milli

    def of(self, holder: str, number: int) -> int:
        """That of a project or department (by its id) in a pool, in thousandths of a GPU."""
        if number not in self._shares:
            self._shares[number] = self._found(number)
        return self._shares[number].get(holder, 0)

    def projects_in(self, number: int) -> Iterable[str]:
        """Ids of those that held or wanted anything of a pool when the plan began."""
        return self._wanted_in(number)

    def is_beyond(self, holder: str, number: int, gone: int = 0) -> bool:
        """Whether it has more than its share there, also without so much of it."""
        used = self.used.get((holder, number), 0) - self._late.get((holder, number), 0)
        return used - gone > self.of(holder, number)

    def anybody_beyond(self, number: int) -> bool:
        """Whether a project had more than its share of this pool when the plan began."""
        if number not in self._anybody_beyond:
            of = self._wanted_in(number)
            self._anybody_beyond[number] = any(self.is_beyond(project_id, number) for project_id in of)
        return self._anybody_beyond[number]

    def allows(self, holder: str, number: int, milli: int) -> bool:
        """Whether it stays within its share there with so much more."""
        key = holder, number
        return milli > 0 and self.used.get(key, 0) + self.spoken.get(key, 0) + milli <= self.of(holder, number)

    def milli_of(self, request: PodRequest, number: int) -> int:
        """What a pod takes of GPUs in a pool; where it asks for memory, of those with the most of it."""
        if not request.gpu_memory_bytes:
            return request.gpu_devices * request.gpu_milli
        key = request.gpu_memory_bytes, number
        if key not in self._by_memory:
            rows = np.flatnonzero(self._snapshot.nodes.pool == number)
            shares = shares_milli(self._snapshot.nodes, request, rows)
            self._by_memory[key] = min(int(shares.min(initial=WHOLE_GPU_MILLI)), WHOLE_GPU_MILLI)
        return request.gpu_devices * self._by_memory[key]

    def total(self, number: int) -> int:
        """What there is to share in a pool: what is free there, and what pods hold."""
        return self._free[number] + self._held.get(number, 0)

    # -- before anything is placed -------------------------------------------------------------------------------------

    def _count_held(self) -> None:
        numbers = self._snapshot.nodes.pool_numbers
        for (project_id, cluster_id, pool, _), milli in self._snapshot.held_in.items():
            number = numbers.get((cluster_id, pool))
            if number is not None:
                self.use(project_id, number, milli)
                self._held[number] = self._held.get(number, 0) + milli
        self._all_held = dict(self.used)
        for each in self._snapshot.leaving:
            if each.project_id and not each.returns:
                milli = sum(share.milli for share in each.reservation.devices)
                self.use(each.project_id, int(self._snapshot.nodes.pool[each.row]), -milli)

    def _counted_late(self) -> dict[tuple[str, int], int]:
        late: dict[tuple[str, int], int] = {}
        for each in self._snapshot.late:
            milli, number = (
                sum(share.milli for share in each.reservation.devices),
                int(self._snapshot.nodes.pool[each.row]),
            )
            for holder in (each.project_id, self.project(each.project_id).department_id) if each.project_id else ():
                late[holder, number] = late.get((holder, number), 0) + milli
        return late

    def _found(self, number: int) -> dict[str, int]:
        of_department: dict[str, list[tuple[str, Want]]] = {}
        for project_id, wanted in sorted(self._wanted_in(number).items()):
            view = self.project(project_id)
            want = self._want(project_id, view, number, view.weights, wanted)
            of_department.setdefault(view.department_id, []).append((project_id, want))
        wants = [self._department_wants(id_, of, number) for id_, of in of_department.items()]
        found: dict[str, int] = {}
        parts = water_filled(self.total(number), wants)
        for (id_, of), milli in zip(of_department.items(), parts, strict=True):
            found[id_] = _whole(milli)
            theirs = water_filled(milli, [each for _, each in of])
            for (project_id, _), own in zip(of, theirs, strict=True):
                found[project_id] = _whole(own)
        return found

    def _department_wants(self, id_: str, of: Sequence[tuple[str, Want]], number: int) -> Want:
        view = self.project(of[0][0])
        wanted = sum(want.wanted for _, want in of)
        want = self._want(id_, view, number, view.department_weights, wanted)
        if any(bound.firm and bound.id == id_ for bound in view.bounds):
            return want
        # Without a quota of its own, it is guaranteed what its projects are.
        return want._replace(quota=sum(min(each.quota, each.wanted) for _, each in of))

    def _want(self, id_: str, view: ProjectView, number: int, weights: Weights, wanted: int) -> Want:
        pool = self._numbers[number]
        here = self._all_held.get((id_, number), 0)
        quotas: list[int] = []
        for bound in view.bounds:
            if bound.id != id_ or bound.pool not in ("", pool):
                continue
            elsewhere = max(self._quota_used.get(bound.all_key, 0) - here, 0)
            left = max(bound.milli - elsewhere, 0)
            if bound.firm:
                quotas.append(left)
            else:
                wanted = min(wanted, left)
        return Want(min(quotas, default=0), weights.in_pool(pool), wanted)

    def _wanted_in(self, number: int) -> dict[str, int]:
        """By project, in thousandths; those that neither hold nor want anything are not there."""
        if not self._wanted:
            self._count_wanted()
        return self._wanted.get(number, {})

    def _count_wanted(self) -> None:
        for project_id, cluster_id, pool, _ in self._snapshot.held_in:
            number = self._snapshot.nodes.pool_numbers.get((cluster_id, pool))
            if number is not None:
                self._wanted.setdefault(number, {})[project_id] = self._all_held.get((project_id, number), 0)
        firm: dict[tuple[str, int], int] = {}
        for queue in self._snapshot.queues:
            project_id = queue.pod_class.project_id
            if self.project(project_id).closed is not None:
                continue  # what could not start now, others may have
            for number, milli in self._waits_for(queue):
                of = self._wanted.setdefault(number, {})
                of.setdefault(project_id, 0)
                if queue.pod_class.preemptible:
                    of[project_id] += milli
                else:
                    firm[project_id, number] = firm.get((project_id, number), 0) + milli
        for (project_id, number), milli in firm.items():
            self._wanted[number][project_id] += min(milli, self._firm_left(project_id, self._numbers[number], milli))

    def _firm_left(self, project_id: str, pool: str, most: int) -> int:
        """What non-preemptible pods may still have: they do not go beyond a quota."""
        bounds = [each for each in self.project(project_id).bounds if each.firm and each.pool in ("", pool)]
        return max(min((each.milli - self._quota_used.get(each.key, 0) for each in bounds), default=most), 0)

    def _waits_for(self, queue: Queue) -> Iterable[tuple[int, int]]:
        """What its pods ask for in each pool where they may go."""
        nodes, pod_class = self._snapshot.nodes, queue.pod_class
        parts = [(each.pools, each.request, each.pods * len(queue.entries)) for each in pod_class.gang]
        for pools, request, pods in parts or [(pod_class.pools, pod_class.request, queue.pods)]:
            if not request.gpu_devices:
                continue
            cluster = self._snapshot.clusters.get(pod_class.cluster_id)
            own = pools or self.project(pod_class.project_id).pools or (() if cluster is None else cluster.pools)
            for pool in own:
                number = nodes.pool_numbers.get((pod_class.cluster_id, pool))
                if number is None or request.gpu_devices > self._largest[number]:
                    continue  # what no node there ever has room for takes nothing from others
                yield number, self.milli_of(request, number) * pods


def _free_by_pool(room: Room, pools: int) -> list[int]:
    """Thousandths that are free on the nodes of each pool that take pods."""
    nodes = room.nodes
    open_ = nodes.usable & ~nodes.cordoned
    free = np.maximum(room.devices, 0).sum(axis=1) - WHOLE_GPU_MILLI * np.maximum(room.withheld, 0)
    counted = np.bincount(nodes.pool[open_], weights=np.maximum(free[open_], 0), minlength=pools)
    return [int(each) for each in counted]


def _largest_by_pool(room: Room, pools: int) -> list[int]:
    """The most devices that a node of each pool has."""
    largest = np.zeros(pools, dtype=np.int64)
    np.maximum.at(largest, room.nodes.pool[room.nodes.present], room.nodes.capacity_devices[room.nodes.present])
    return [int(each) for each in largest]


def _whole(milli: float) -> int:
    """Rounded down, but for what sums of fractions lose."""
    return int(milli + 1e-6)
