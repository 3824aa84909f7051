"""What is kept for a gang, or a pod of several GPUs, that has waited for long: what comes free where it will run. Pure.

Smaller ones pass what does not fit, and would take each GPU that comes free before there are enough. So the first in
the order that has waited for the policy's `reserve_after` has nodes chosen for it, those that need the least to come
free. What it counts on there nobody gets who comes after it in the order; what it does not, anybody does.

A reservation is made anew by each plan, from what is free: a node that is kept only gets emptier, and is chosen again.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import numpy as np

from events.workload.evictions import evictable
from events.workload.pod import DeviceShare
from events.workload.spec import WHOLE_GPU_MILLI, PodRequest
from services.scheduler.planning import Planning, pools_to_try
from services.scheduler.policy.phases import explain
from services.scheduler.policy.pools import pools_of
from services.scheduler.policy.together import value_of_others
from services.scheduler.policy.victims import passed_by
from services.scheduler.room import Room, shares_milli
from services.scheduler.snapshot import INFINITE, Booleans, GangPart, Integers, Pending, PodClass

MOST_RESERVED: Final = 2_000
"""Pods of one gang: some 20 ms."""
MOST_IN_POOL: Final = 8
"""Gangs for which something is kept in a pool. Each has its right to it, so they are no more than the pool holds."""
MOST_OF_PROJECT: Final = 2
MOST_IN_ALL: Final = 16
"""In one plan: to choose places takes some milliseconds where there are many nodes."""
MOST_VALUES: Final = 16
"""Values of a label, such as racks, that are looked at for a gang whose pods must stay together."""
_BELOW_ALL: Final = -1
"""Rank of a priority: nobody gives way to it."""
LATEST: Final = timedelta(days=365)
"""What waits for longer than this before anything is kept for it never has anything kept."""
MOST_BESIDE: Final = 2
"""Times as much of a node's CPU and memory as of its GPUs that one pod may have kept: shares are of GPUs, and whoever
asks for one GPU and all cores of each node would have the whole pool kept.
"""


class Kept(NamedTuple):
    """What is free now of the place of one pod."""

    row: int
    request: PodRequest
    devices: tuple[DeviceShare, ...]


def reserve(planning: Planning, i: int, pod_class: PodClass, entry: Pending) -> str | None:
    """Have the project's share wait for an entry that found no room, and where the share has room for it now, keep what
    comes free of its places. What it is to be told, beside why it finds none; None where it has no right to any of it.

    Args:
        i: index of its queue.
    """
    parts = pod_class.gang or (GangPart(pools=pod_class.pools, request=pod_class.request, pods=1, needed=1),)
    if not _may_be_kept_for(planning, pod_class, parts, entry):
        return None
    if not all(_may_have(planning, pod_class.part(part) if pod_class.gang else pod_class, part) for part in parts):
        return None  # also in the pool where it may have the most: no places are looked for, which is what takes long
    found = _all_places(planning, pod_class, parts, entry)
    if found is None:
        return None
    taken, kept, numbers = found
    if not _within_share(planning, pod_class, parts, numbers):
        return None
    others = passed_by(planning.snapshot, pod_class.project_id, entry)
    needs = {n: sum(part.needed * planning.shares.milli_of(part.request, n) for part in parts) for n in numbers}
    has_right = _has_right(planning, pod_class.project_id, needs, others)
    # Nobody is told to end for pods that stay together (take_back), so nobody is let in that would have to give way.
    spoken = entry if pod_class.together is None else replace(entry, rank=_BELOW_ALL)
    planning.aside.spoken_for_by.setdefault(pod_class.project_id, []).append(spoken)
    planning.aside.spoken_for[i] = needs
    speak_for(planning, i, sign=1)
    if not has_right:
        return explain.spoken_for(others_give_way=spoken is entry)
    planning.aside.passed_by[i] = others
    if any(planning.aside.reserved_in[number] >= MOST_IN_POOL for number in numbers):
        return explain.spoken_for(others_give_way=spoken is entry)
    for each in kept:
        planning.take(each.row, each.request, each.devices)
    planning.aside.counted_on += taken.counted_on
    planning.aside.reserved_in.update(numbers)
    planning.aside.reserved[i] = kept
    return explain.reserved(len({each.row for each in kept}))


def _may_be_kept_for(planning: Planning, pod_class: PodClass, parts: Sequence[GangPart], entry: Pending) -> bool:
    """Whether it is wide, has waited for long, and is among the first."""
    if not any(part.request.gpu_devices for part in parts):
        return False  # nobody has a share of anything else
    if any(part.needed > 1 and not part.request.gpu_devices for part in parts):
        return False  # one beside the workers may need no GPU
    if not pod_class.gang and pod_class.request.gpu_devices < 2:  # noqa: PLR2004 (one is as narrow as there is)
        return False
    if (pod_class.together is not None and not pod_class.gang) or sum(part.needed for part in parts) > MOST_RESERVED:
        return False
    if len(planning.aside.spoken_for_by.get(pod_class.project_id, ())) >= MOST_OF_PROJECT:
        return False
    if len(planning.aside.spoken_for) >= MOST_IN_ALL:
        return False
    wait = planning.policy.reserve_after
    long_enough = entry.since + wait.total_seconds()
    if planning.snapshot.now.timestamp() < long_enough:
        if wait < LATEST and entry.since < INFINITE:
            planning.look_again_at(datetime.fromtimestamp(long_enough, UTC))
        return False
    return True


def _has_right(planning: Planning, project_id: str, needs: Mapping[int, int], others: AbstractSet[str]) -> bool:
    """Whether its project stays within its share with it, without those that passed it."""
    shares, numbers = planning.shares, planning.snapshot.nodes.pool_numbers
    gone = Counter[int]()
    for workload in planning.snapshot.running.get(project_id, ()) if others else ():
        for pod in workload.pods.live.values() if workload.workload_id in others else ():
            if evictable(pod) and (number := numbers.get((workload.cluster_id, pod.pool))) is not None:
                gone[number] += sum(share.milli for share in pod.devices)
    return all(
        shares.used.get((project_id, number), 0) + spoken_in(planning, project_id, number) - gone[number] + milli
        <= shares.of(project_id, number)
        for number, milli in needs.items()
    )


def left_to_others(planning: Planning, pod_class: PodClass, entry: Pending) -> frozenset[str]:
    """Names of the pools where it takes no room although there may be some: a gang of its project has waited for
    longer, needs what is left of their share there, and would not get it back.
    """
    spoken = planning.aside.spoken_for_by.get(pod_class.project_id)
    if not spoken or gives_way(planning, pod_class, entry):
        return frozenset()
    parts = [(part.request, part.needed) for part in pod_class.gang] or [(pod_class.request, 1)]
    shares, numbers, project_id = planning.shares, planning.snapshot.nodes.pool_numbers, pod_class.project_id
    found = set[str]()
    for pool in pools_to_try(planning.snapshot, pod_class):
        number = numbers.get((pod_class.cluster_id, pool))
        milli = 0 if number is None else sum(shares.milli_of(of, number) * count for of, count in parts)
        if number is not None and milli and not shares.allows(project_id, number, milli):
            found |= {pool} if spoken_in(planning, project_id, number) else set()
    return frozenset(found)


def waits_behind(planning: Planning, pod_class: PodClass, entry: Pending) -> bool:
    """Whether it leaves all the pools to others in which there is anything for it."""
    left = left_to_others(planning, pod_class, entry)
    if not left:
        return False
    parts = [pod_class.part(part) for part in pod_class.gang] or [pod_class]
    return not any(
        pool not in left and any(_has_devices(planning, of, pool) for of in parts if of.request.gpu_devices)
        for pool in pools_to_try(planning.snapshot, pod_class)
    )


def _has_devices(planning: Planning, pod_class: PodClass, pool: str) -> bool:
    """Whether a node there that may take such a pod has as many devices, were they all free."""
    capacity = planning.room.nodes.capacity_devices
    return any(
        bool((capacity[candidates.rows] >= pod_class.request.gpu_devices).any())
        for name, candidates in pools_of(planning, pod_class)
        if name == pool
    )


def gives_way(planning: Planning, pod_class: PodClass, entry: Pending) -> bool:
    """Whether it may be let in behind the gangs of its project that have waited for longer: they can have it end."""
    project = planning.snapshot.projects.get(pod_class.project_id)
    spoken = planning.aside.spoken_for_by.get(pod_class.project_id, ())
    return (
        entry.gives_way
        and (project is None or not project.minimum_runtime)
        and all(entry.rank <= each.rank and entry.workload_id not in each.gave_way_to for each in spoken)
    )


def spoken_in(planning: Planning, project_id: str, number: int) -> int:
    """What such gangs of a project are to have of its share of a pool, in thousandths."""
    return planning.shares.spoken.get((project_id, number), 0)


def of_project(planning: Planning, i: int) -> tuple[int, ...]:
    """Indexes of the queues of its project of which a gang has waited for long, and of this one."""
    queues = planning.snapshot.queues
    own = queues[i].pod_class.project_id
    return (i, *(j for j in planning.aside.spoken_for if j != i and queues[j].pod_class.project_id == own))


def speak_for(planning: Planning, i: int, *, sign: int) -> None:
    """Have what a gang that has waited for long needs count as used (1), or not any more (-1): what comes after it in
    its project would else have the project's share, over and over, before there is enough of it for the gang.
    """
    for number, milli in planning.aside.spoken_for.get(i, {}).items():
        planning.shares.speak_for(planning.snapshot.queues[i].pod_class.project_id, number, sign * milli)


def let_go(planning: Planning, i: int) -> list[Kept]:
    """What is kept for a queue is free again; what that was."""
    kept = planning.aside.reserved.pop(i, [])
    for each in kept:
        held = each.request
        for room in (planning.room, planning.soon()):
            room.give_back(each.row, held.cpu_milli, held.memory_bytes, each.devices, held.extended)
    return kept


class _Taken:
    """What the pods so far count on, by row."""

    def __init__(self, planning: Planning) -> None:
        self.table = table = planning.room.nodes
        self.cpu, self.memory = table.capacity_cpu_milli.copy(), table.capacity_memory_bytes.copy()
        self.pods, self.devices = table.capacity_pods.copy(), table.capacity_devices * WHOLE_GPU_MILLI
        self.extended = {name: column.copy() for name, column in table.capacity_extended.items()}
        self.free = Room(table, like=planning.room)
        self.counted_on: list[tuple[int, PodRequest, int]] = []
        for each in planning.aside.counted_on:
            self._count_on(*each)

    def fitting(self, request: PodRequest, rows: Integers, share: Integers) -> Integers:
        """How many such pods each of these nodes would hold if nothing ran there."""
        held = self.pods[rows].copy()
        amounts = [(self.cpu, request.cpu_milli), (self.memory, request.memory_bytes)]
        for column, amount in amounts:
            if amount:
                held = np.minimum(held, column[rows] // amount)
        for each in request.extended:
            column = self.extended.get(each.resource)
            held = np.minimum(held, 0 if column is None else column[rows] // max(each.amount, 1))
        if request.gpu_devices:
            shares = WHOLE_GPU_MILLI // np.maximum(share, 1)
            held = np.minimum(held, self.devices[rows] // WHOLE_GPU_MILLI * shares // request.gpu_devices)
            held[self._takes_too_much(request, rows, share)] = 0
        return np.maximum(held, 0)

    def _takes_too_much(self, request: PodRequest, rows: Integers, share: Integers) -> Booleans:
        """Whether a pod takes far more of these nodes beside GPUs than of their GPUs."""
        gpus = request.gpu_devices * share / np.maximum(self.table.capacity_devices[rows] * WHOLE_GPU_MILLI, 1)
        beside = [
            (self.table.capacity_cpu_milli, request.cpu_milli),
            (self.table.capacity_memory_bytes, request.memory_bytes),
        ]
        parts = [amount / np.maximum(column[rows], 1) for column, amount in beside]
        return np.maximum(*parts) > MOST_BESIDE * gpus

    def take(self, row: int, request: PodRequest, share: int) -> Kept:
        """Count on a place for one pod on a node; what is free of it now, the emptiest devices first."""
        self._count_on(row, request, share)
        self.counted_on.append((row, request, share))
        free = self.free.devices[row]
        order = np.argsort(-free, kind="stable")[: request.gpu_devices].tolist()
        devices = tuple(DeviceShare(device=n, milli=min(share, int(free[n]))) for n in sorted(order) if free[n] > 0)
        now = PodRequest(
            cpu_milli=max(min(request.cpu_milli, int(self.free.cpu[row])), 0),
            memory_bytes=max(min(request.memory_bytes, int(self.free.memory[row])), 0),
        )
        self.free.take(row, now, devices)
        return Kept(row, now, devices)

    def _count_on(self, row: int, request: PodRequest, share: int) -> None:
        self.cpu[row] -= request.cpu_milli
        self.memory[row] -= request.memory_bytes
        self.pods[row] -= 1
        self.devices[row] -= request.gpu_devices * share
        for each in request.extended:
            if each.resource in self.extended:
                self.extended[each.resource][row] -= each.amount


class _Found(NamedTuple):
    taken: _Taken
    kept: list[Kept]
    numbers: set[int]
    """Of pools."""


def _all_places(planning: Planning, pod_class: PodClass, parts: Sequence[GangPart], entry: Pending) -> _Found | None:
    """For all that must start together; of pods that must stay together, at one value of their label."""
    for within in _where(planning, pod_class, parts, entry):
        found = _Found(_Taken(planning), [], set())
        for part in parts:
            of = pod_class.part(part) if pod_class.gang else pod_class
            places = _places(planning, of, part.needed, found.taken, within)
            if places is None:
                break
            found.numbers.add(places[0])
            found.kept.extend(places[1])
        else:
            return found
    return None


def _where(
    planning: Planning, pod_class: PodClass, parts: Sequence[GangPart], entry: Pending
) -> Iterator[Booleans | None]:
    """Nodes, by row, where all of them may be: all where they need not stay together, else those of one value. First
    the values where the most GPUs are free.
    """
    together = pod_class.together
    if together is None or not together.required:
        yield None
        return
    column, values, _ = planning.snapshot.nodes.labels.column(together.label)
    fixed = value_of_others(planning, together, entry, column)
    if fixed is not None:
        yield column == fixed
        return
    free = np.zeros(len(values))
    for part in parts:
        for _, candidates in pools_of(planning, pod_class.part(part)):
            rows = candidates.rows[column[candidates.rows] >= 0]
            gpus = np.maximum(planning.room.devices[rows], 0).sum(axis=1)
            free += np.bincount(column[rows], weights=gpus, minlength=len(values))
    for value in np.argsort(-free, kind="stable")[:MOST_VALUES].tolist():
        yield column == value


def _places(
    planning: Planning, part: PodClass, needed: int, taken: _Taken, within: Booleans | None
) -> tuple[int, list[Kept]] | None:
    """In the first pool that would hold all pods if nothing ran there; None where none would.

    Args:
        within: by row, which nodes are looked at; all where it is not given.
    """
    for pool, candidates in pools_of(planning, part):
        rows = candidates.rows if within is None else candidates.rows[within[candidates.rows]]
        share = shares_milli(planning.room.nodes, part.request, rows)
        fitting = taken.fitting(part.request, rows, share)
        if int(fitting.sum()) < needed:
            continue
        free = taken.free
        gpus = np.maximum(free.devices[rows], 0).sum(axis=1) if part.request.gpu_devices else free.cpu[rows]
        kept: list[Kept] = []
        for at in np.lexsort((rows, -gpus)).tolist():
            count = min(int(fitting[at]), needed - len(kept))
            kept += [taken.take(int(rows[at]), part.request, int(share[at])) for _ in range(count)]
            if len(kept) == needed:
                break
        return planning.snapshot.nodes.pool_numbers[part.cluster_id, pool], kept
    return None


def _may_have(planning: Planning, pod_class: PodClass, part: GangPart) -> bool:
    """Whether its project may have so much in any of the pools, were it all that it has."""
    numbers, cluster_id = planning.snapshot.nodes.pool_numbers, pod_class.cluster_id
    pools = {numbers.get((cluster_id, pool)) for pool in pools_to_try(planning.snapshot, pod_class)}
    return any(_within_share(planning, pod_class, (part,), {number}) for number in pools if number is not None)


def _within_share(planning: Planning, pod_class: PodClass, parts: Sequence[GangPart], numbers: set[int]) -> bool:
    """Whether its project, and its department, may have so much there, were it all that they have beside what other
    gangs of the project are to have.
    """
    shares, project_id = planning.shares, pod_class.project_id
    holders = project_id, shares.project(project_id).department_id
    for number in numbers:
        milli = sum(part.needed * shares.milli_of(part.request, number) for part in parts)
        milli += spoken_in(planning, project_id, number)
        if any(shares.of(holder, number) < milli for holder in holders):
            return False
    return True
