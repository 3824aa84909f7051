"""Places on nodes of which a part is kept for others: beside that part. Pure.

Everywhere else such a node counts as closed to those for whom it is not kept: nobody is told to end there for them, and
no room is kept there. So a part that is kept costs them no more than a node that is kept whole.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from events.workload.pod import DeviceShare
from events.workload.spec import WHOLE_GPU_MILLI
from services.scheduler.candidates import refused_by
from services.scheduler.planning import Planning, pools_to_try
from services.scheduler.policy.filters import calendar
from services.scheduler.policy.phases import quota
from services.scheduler.room import Room, View
from services.scheduler.snapshot import Closing, PodClass


class Place(NamedTuple):
    """One pod's."""

    pool: str
    row: int
    devices: tuple[DeviceShare, ...]

    @property
    def gpu_milli(self) -> int:
        return sum(each.milli for each in self.devices)


def beside(planning: Planning, pod_class: PodClass) -> Place | None:
    """The first node where such a pod has room beside what is kept for others, and is allowed to take it; None where
    there is none.
    """
    for place in rooms(planning, pod_class):
        left = quota.left(planning, pod_class, place.pool)
        if left is None or place.gpu_milli <= left.milli:
            return place
    return None


def rooms(planning: Planning, pod_class: PodClass) -> Iterator[Place]:
    """On each node where such a pod has room beside what is kept for others, whatever bounds it."""
    request = pod_class.request
    for pool, row, kept in planning.partly.setdefault(pod_class, list(_partly(planning, pod_class))):
        view = View(planning.room, request, np.array([row]))
        full = [each.full for each in planning.policy.filters if each.full is not None and each.asks(request)]
        if refused_by(full, view)[0]:
            continue
        devices = _devices(view, row, kept)
        if devices is not None and _has_beside(planning.room, view, row, kept):
            yield Place(pool, row, devices)


def most_beside(planning: Planning, pod_class: PodClass, *, enough: int) -> int:
    """How many such pods may find room beside what is kept for others, no fewer than do. Where so many do as are
    enough, it may be fewer than all.
    """
    room, request, count = planning.room, pod_class.request, 0
    for _, row, kept in planning.partly.setdefault(pod_class, list(_partly(planning, pod_class))):
        if count >= enough:
            break
        most = int(room.pods[row])
        for free, amount in ((room.cpu, request.cpu_milli), (room.memory, request.memory_bytes)):
            if amount:
                most = min(most, int(free[row]) // amount)
        if request.gpu_devices:
            share = int(View(room, request, np.array([row])).share_milli[0])
            milli: list[int] = room.devices[row].tolist()
            shares = sum(max(each, 0) // share for device, each in enumerate(milli) if device not in kept)
            most = min(most, shares // request.gpu_devices)
        count += max(most, 0)
    return count


def _partly(planning: Planning, pod_class: PodClass) -> Iterator[tuple[str, int, frozenset[int]]]:
    """Pools, rows and the devices that are kept there for others, of nodes that have nothing else against the pod."""
    closings = planning.closings(pod_class)
    if not any(each.parts for each in closings) or pod_class.together is not None:
        return
    table, numbers = planning.snapshot.nodes, planning.snapshot.nodes.pool_numbers
    request = pod_class.request
    rows = np.array(sorted({row for each in closings for row in each.parts}))
    checks = [
        check
        for each in planning.policy.filters
        if each.asks(request) and each.name != calendar.NAME
        for check in (each.barred, each.closed, each.never)
        if check is not None
    ]
    open_ = rows[~refused_by(checks, View(planning.room, request, rows))].tolist()
    for pool in pools_to_try(planning.snapshot, pod_class):
        number = numbers.get((pod_class.cluster_id, pool))
        for row in open_:
            if table.pool[row] == number and table.present[row] and (kept := _kept(closings, row)) is not None:
                yield pool, row, kept


def _kept(closings: tuple[Closing, ...], row: int) -> frozenset[int] | None:
    """None where something keeps the whole node."""
    here = [each for each in closings if each.rows[row]]
    if any(row not in each.parts for each in here):
        return None
    return frozenset(device for each in here for device in each.parts[row])


def _devices(view: View, row: int, kept: frozenset[int]) -> tuple[DeviceShare, ...] | None:
    """Those that the pod gets; None where there are too few."""
    share, count = int(view.share_milli[0]), view.request.gpu_devices
    milli: list[int] = view.room.devices[row].tolist()
    free = [(each, device) for device, each in enumerate(milli) if each >= share and device not in kept]
    # The highest of the untouched ones may be others'.
    whole = [each for each in free if each[0] == WHOLE_GPU_MILLI]
    others = whole[len(whole) - max(int(view.room.withheld[row]), 0) :]
    chosen = sorted(each for each in free if each not in others)[:count]
    if len(chosen) < count:
        return None
    return tuple(DeviceShare(device=device, milli=share) for device in sorted(device for _, device in chosen))


def _has_beside(room: Room, view: View, row: int, kept: frozenset[int]) -> bool:
    """Whether CPU and memory are left for the kept devices that nobody uses, as much as is their part of the node."""
    table, request = room.nodes, view.request
    idle = sum(int(room.devices[row, device]) == WHOLE_GPU_MILLI for device in kept if device < room.devices.shape[1])
    devices = max(int(table.capacity_devices[row]), 1)
    for free, capacity, asked in (
        (room.cpu, table.capacity_cpu_milli, request.cpu_milli),
        (room.memory, table.capacity_memory_bytes, request.memory_bytes),
    ):
        if asked and int(free[row]) - idle * (int(capacity[row]) // devices) < asked:
            return False
    return True
