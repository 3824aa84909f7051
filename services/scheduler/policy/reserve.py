"""What is kept for a gang, or a pod of several GPUs, that has waited for long: what comes free where it will run. Pure.

Smaller ones pass what does not fit, and would take each GPU that comes free before there are enough. So the first in
the order that has waited for the policy's `reserve_after` has nodes chosen for it, those that need the least to come
free. What it counts on there nobody gets who comes after it in the order; what it does not, anybody does.

A reservation is made anew by each plan, from what is free: a node that is kept only gets emptier, and is chosen again.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from events.workload.pod import DeviceShare
from events.workload.spec import WHOLE_GPU_MILLI, PodRequest
from services.scheduler.planning import Planning, pools_to_try
from services.scheduler.policy.pools import pools_of
from services.scheduler.room import Room, shares_milli
from services.scheduler.snapshot import Booleans, GangPart, Integers, Pending, PodClass

MOST_RESERVED: Final = 2_000
"""Pods of one gang: some 20 ms."""
MOST_BESIDE: Final = 2
"""Times as much of a node's CPU and memory as of its GPUs that one pod may have kept: shares are of GPUs, and whoever
asks for one GPU and all cores of each node would have the whole pool kept.
"""


class Kept(NamedTuple):
    """What is free now of the place of one pod."""

    row: int
    request: PodRequest
    devices: tuple[DeviceShare, ...]


def reserve(planning: Planning, i: int, pod_class: PodClass, entry: Pending) -> int:
    """Keep what is free of the places of an entry that found none; on how many nodes, 0 where it has no right to it.

    Args:
        i: index of its queue.
    """
    parts = pod_class.gang or (GangPart(pools=pod_class.pools, request=pod_class.request, pods=1, needed=1),)
    if not any(part.request.gpu_devices for part in parts):
        return 0  # nobody has a share of anything else
    if not pod_class.gang and pod_class.request.gpu_devices < 2:  # noqa: PLR2004 (one is as narrow as there is)
        return 0
    if planning.snapshot.now.timestamp() - entry.since < planning.policy.reserve_after.total_seconds():
        return 0
    if pod_class.together is not None or sum(part.needed for part in parts) > MOST_RESERVED:
        return 0
    if pod_class.project_id in planning.spoken_for_by:
        return 0
    if not all(_may_have(planning, pod_class.part(part) if pod_class.gang else pod_class, part) for part in parts):
        return 0  # also in the pool where it may have the most: no places are looked for, which is what takes long
    taken = _Taken(planning)
    kept: list[Kept] = []
    numbers: set[int] = set()
    for part in parts:
        if part.needed > 1 and not part.request.gpu_devices:
            return 0  # one beside the workers may need no GPU
        found = _places(planning, pod_class.part(part) if pod_class.gang else pod_class, part.needed, taken)
        if found is None:
            return 0
        number, places = found
        numbers.add(number)
        kept += places
    if not _within_share(planning, pod_class, parts, numbers):
        return 0
    planning.spoken_for_by.add(pod_class.project_id)
    planning.spoken_for[i] = {
        number: sum(part.needed * planning.shares.milli_of(part.request, number) for part in parts)
        for number in numbers
    }
    speak_for(planning, i, pod_class, sign=1)
    if not numbers.isdisjoint(planning.reserved_pools):
        return 0
    for each in kept:
        planning.take(each.row, each.request, each.devices)
    planning.reserved_pools |= numbers
    planning.reserved[i] = kept
    return len({each.row for each in kept})


def speak_for(planning: Planning, i: int, pod_class: PodClass, *, sign: int) -> None:
    """Have what a gang that has waited for long needs count as used (1), or not any more (-1): what comes after it in
    its project would else have the project's share, over and over, before there is enough of it for the gang.
    """
    for number, milli in planning.spoken_for.get(i, {}).items():
        planning.shares.use(pod_class.project_id, number, sign * milli)


def let_go(planning: Planning, i: int) -> list[Kept]:
    """What is kept for a queue is free again; what that was."""
    kept = planning.reserved.pop(i, [])
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
        self.cpu[row] -= request.cpu_milli
        self.memory[row] -= request.memory_bytes
        self.pods[row] -= 1
        self.devices[row] -= request.gpu_devices * share
        for each in request.extended:
            if each.resource in self.extended:
                self.extended[each.resource][row] -= each.amount
        free = self.free.devices[row]
        order = np.argsort(-free, kind="stable")[: request.gpu_devices].tolist()
        devices = tuple(DeviceShare(device=n, milli=min(share, int(free[n]))) for n in sorted(order) if free[n] > 0)
        now = PodRequest(
            cpu_milli=max(min(request.cpu_milli, int(self.free.cpu[row])), 0),
            memory_bytes=max(min(request.memory_bytes, int(self.free.memory[row])), 0),
        )
        self.free.take(row, now, devices)
        return Kept(row, now, devices)


def _places(planning: Planning, part: PodClass, needed: int, taken: _Taken) -> tuple[int, list[Kept]] | None:
    """In the first pool that would hold all pods if nothing ran there; None where none would."""
    for pool, candidates in pools_of(planning, part):
        rows = candidates.rows
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
    """Whether its project, and its department, may have so much there, were it all that they have."""
    shares, project_id = planning.shares, pod_class.project_id
    holders = project_id, shares.project(project_id).department_id
    for number in numbers:
        milli = sum(part.needed * shares.milli_of(part.request, number) for part in parts)
        if any(shares.of(holder, number) < milli for holder in holders):
            return False
    return True
