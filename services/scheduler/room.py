"""Free room on nodes while a plan is made: what is taken, what is given back, and what is left. Pure.

`checkpoint` and `rollback` try something out: after a rollback the room is exactly what it was at the checkpoint.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from events.node import MOST_DEVICES, Reservation
from events.workload.needs import ExtendedAmount
from events.workload.pod import DeviceShare
from events.workload.spec import WHOLE_GPU_MILLI, PodRequest
from services.scheduler.columns import clipped
from services.scheduler.snapshot import Booleans, Closing, Integers, NodeTable
from services.scheduler.worth import Rooms, Worth

NO_SUCH_SHARE_MILLI: Final = 2 * WHOLE_GPU_MILLI
"""Stands for a share that the node's devices cannot give, however much of them is free."""

_FREE_BITS: Final = 12
"""Hold 1,000 thousandths, and more."""
_NO_DEVICE: Final = np.iinfo(np.int64).max
_NUMBERS: Final = np.arange(MOST_DEVICES)
"""Of devices."""

type _Before = tuple[int, int, int, int, int, list[tuple[int, int]], list[tuple[str, int]]]
"""What a change overwrote: row, CPU, memory, pods, free devices, (device, milli) each, (extended resource,
amount) each.
"""


class Free(NamedTuple):
    """What is free on a node of all that pods of one request change."""

    cpu: int
    memory: int
    pods: int
    free_devices: int
    devices: list[tuple[int, int]]
    """(device, milli) of all; none where the request is for no GPU."""
    extended: list[tuple[str, int]]
    milli: Integers
    """Of all devices."""


class Room:
    """A node table whose free room changes. Element i of each column is node i.

    Args:
        worth: what finds out what its room is worth, when that is first asked for; where it is not given, all nodes are
            worth the same.
        like: begin with what is free there; otherwise with what is free in the table.
    """

    def __init__(
        self, nodes: NodeTable, worth: "Callable[[Room], Worth] | None" = None, *, like: "Room | None" = None
    ) -> None:
        self.nodes = nodes
        self.cpu = (nodes.free_cpu_milli if like is None else like.cpu).copy()
        self.memory = (nodes.free_memory_bytes if like is None else like.memory).copy()
        self.pods = (nodes.free_pods if like is None else like.pods).copy()
        self.devices = (nodes.free_device_milli if like is None else like.devices).copy()
        self.free_devices = (nodes.free_devices if like is None else like.free_devices).copy()
        extended = nodes.free_extended if like is None else like.extended
        self.extended = {name: column.copy() for name, column in extended.items()}
        self.withheld: Integers = (nodes.free_device_milli == WHOLE_GPU_MILLI).sum(axis=1) - nodes.free_devices
        """How many of the untouched devices cannot be had, because others have as many. No pod of ours changes that."""
        self.changed: list[int] = []
        """Each row that changed, in order. It only grows: a rollback changes rows, too."""
        self._undo: list[_Before] = []
        self._states: dict[int, tuple[int, ...]] = {}
        """By row, of requests for no extended resource, as long as the room did not change."""
        self._worth_of = worth
        self._values: NDArray[np.float64] | None = None
        """Of nodes, by what is worth how much; not a number where the room changed since."""

    @cached_property
    def worth(self) -> Worth | None:
        """By what was free when it was first asked for. None where all nodes are worth the same."""
        if self._worth_of is None:
            return None
        worth = self._worth_of(self)
        self._values = worth.first
        return worth

    def state(self, row: int, request: PodRequest) -> tuple[int, ...]:
        """All that is free on a node, and what others make of it: alike for nodes that a request cannot tell apart."""
        if request.extended:
            return self._state(row, request, in_order=True)
        state = self._states.get(row)
        if state is None:
            state = self._states[row] = self._state(row, request, in_order=True)
        return state

    def exact_state(self, row: int, request: PodRequest) -> tuple[int, ...]:
        """The same, with the devices as they stand."""
        return self._state(row, request, in_order=False)

    def _state(self, row: int, request: PodRequest, *, in_order: bool) -> tuple[int, ...]:
        devices = self.devices[row].tolist()
        if in_order:
            devices.sort()
        return (
            0 if self.worth is None else self.worth.group(row),
            int(self.cpu[row]),
            int(self.memory[row]),
            int(self.pods[row]),
            int(self.free_devices[row]),
            int(self.withheld[row]),
            *(
                int(column[row])
                for each in request.extended
                if (column := self.extended.get(each.resource)) is not None
            ),
            *devices,
        )

    def free(self, row: int, request: PodRequest) -> Free:
        milli: list[int] = self.devices[row].tolist()
        return Free(
            cpu=int(self.cpu[row]),
            memory=int(self.memory[row]),
            pods=int(self.pods[row]),
            free_devices=int(self.free_devices[row]),
            devices=list(enumerate(milli)) if request.gpu_devices else [],
            extended=[
                (each.resource, int(column[row]))
                for each in request.extended
                if (column := self.extended.get(each.resource)) is not None
            ],
            milli=self.devices[row].copy(),
        )

    def rooms(self, rows: Integers) -> Rooms:
        """What these nodes have free."""
        devices = self.devices[rows]
        if self.withheld[rows].any():
            # The highest of the untouched ones are others'.
            whole = devices == WHOLE_GPU_MILLI
            kept = whole.sum(axis=1) - self.withheld[rows]
            devices = np.where(whole & (whole.cumsum(axis=1) > kept[:, None]), -1, devices)
        return Rooms(rows, self.cpu[rows], self.memory[rows], devices)

    def values(self, worth: Worth, rooms: Rooms) -> NDArray[np.float64]:
        """What these nodes are worth as they are, by the room's own measure."""
        if self._values is None:
            return worth.values(rooms)
        values = self._values[rooms.rows]
        if (changed := np.isnan(values)).any():
            at = np.flatnonzero(changed)
            values[at] = self._values[rooms.rows[at]] = worth.values(rooms.at(at))
        return values

    def take(self, row: int, request: PodRequest, devices: tuple[DeviceShare, ...]) -> None:
        """Put a pod on a node."""
        self._move(row, request.cpu_milli, request.memory_bytes, devices, request.extended, sign=-1)

    def reserve(self, row: int, held: Reservation) -> None:
        """The same by what the pod holds from then on."""
        self._move(row, held.cpu_milli, held.memory_bytes, held.devices, held.extended, sign=-1)

    def put(self, row: int, before: Free, after: Free) -> None:
        """Put pods of one request on a node, of which it is known what is free there, and what is then."""
        self._undo.append((row, *before[:6]))
        self.cpu[row], self.memory[row], self.pods[row] = after.cpu, after.memory, after.pods
        if after.devices:
            self.free_devices[row] = after.free_devices
            self.devices[row] = after.milli
        for name, amount in after.extended:
            self.extended[name][row] = amount
        self._touch(row)

    def give_back(
        self,
        row: int,
        cpu_milli: int,
        memory_bytes: int,
        devices: tuple[DeviceShare, ...],
        extended: tuple[ExtendedAmount, ...] = (),
    ) -> None:
        """Take a pod off a node."""
        self._move(row, cpu_milli, memory_bytes, devices, extended, sign=+1)

    def lower(self, row: int, to: "Room") -> None:
        """Leave no more free on a node than there is in the other room."""
        devices: list[int] = self.devices[row].tolist()
        extended = [(name, int(free[row])) for name, free in self.extended.items()]
        self._undo.append(
            (
                row,
                int(self.cpu[row]),
                int(self.memory[row]),
                int(self.pods[row]),
                int(self.free_devices[row]),
                list(enumerate(devices)),
                extended,
            )
        )
        self.cpu[row] = min(self.cpu[row], to.cpu[row])
        self.memory[row] = min(self.memory[row], to.memory[row])
        self.pods[row] = min(self.pods[row], to.pods[row])
        self.free_devices[row] = min(self.free_devices[row], to.free_devices[row])
        self.devices[row] = np.minimum(self.devices[row], to.devices[row])
        for name, free in self.extended.items():
            free[row] = min(free[row], to.extended[name][row])
        self._touch(row)

    def checkpoint(self) -> int:
        """A mark to roll back to. Marks may be nested; rolling back to one ends those made after it."""
        return len(self._undo)

    def rollback(self, mark: int) -> None:
        """Restore what was there at the mark."""
        while len(self._undo) > mark:
            row, cpu, memory, pods, free_devices, devices, extended = self._undo.pop()
            self.cpu[row], self.memory[row], self.pods[row], self.free_devices[row] = cpu, memory, pods, free_devices
            for device, milli in devices:
                self.devices[row, device] = milli
            for name, amount in extended:
                self.extended[name][row] = amount
            self._touch(row)

    def _touch(self, row: int) -> None:
        self.changed.append(row)
        self._states.pop(row, None)
        if self._values is not None:
            self._values[row] = np.nan

    def _move(
        self,
        row: int,
        cpu: int,
        memory: int,
        devices: tuple[DeviceShare, ...],
        extended: tuple[ExtendedAmount, ...],
        *,
        sign: int,
    ) -> None:
        cpu_before, memory_before, pods_before = int(self.cpu[row]), int(self.memory[row]), int(self.pods[row])
        free_before = int(self.free_devices[row])
        shares_before: list[tuple[int, int]] = []
        self.cpu[row] = clipped(cpu_before + sign * cpu)
        self.memory[row] = clipped(memory_before + sign * memory)
        self.pods[row] = pods_before + sign
        for share in devices:
            # A device that the node has lost since gives nothing back before the next plan.
            before = int(self.devices[row, share.device]) if share.device < self.devices.shape[1] else -1
            if before < 0:
                continue
            shares_before.append((share.device, before))
            after = self.devices[row, share.device] = before + sign * share.milli
            if WHOLE_GPU_MILLI in (before, after):
                self.free_devices[row] += sign
        extended_before: list[tuple[str, int]] = []
        for each in extended:
            # As with devices: a resource that the node has lost gives nothing back before the next plan.
            if (column := self.extended.get(each.resource)) is not None:
                extended_before.append((each.resource, int(column[row])))
                column[row] = clipped(int(column[row]) + sign * each.amount)
        # Values, not differences: a number that was clipped does not come back by the reverse sum.
        self._undo.append(
            (row, cpu_before, memory_before, pods_before, free_before, shares_before[::-1], extended_before)
        )
        self._touch(row)


class View:
    """Some nodes as one request sees them: what the rules of the policy look at. Element i of each column is `rows[i]`.

    It shows the room as it is when a column is first asked for, so it is made anew after each change.
    """

    def __init__(
        self,
        room: Room,
        request: PodRequest,
        rows: Integers,
        share_milli: Integers | None = None,
        closings: tuple[Closing, ...] = (),
    ) -> None:
        self.room = room
        self.request = request
        self.rows = rows
        self.closings = closings
        """Of the calendar those that keep such pods away."""
        self.share_milli = shares_milli(room.nodes, request, rows) if share_milli is None else share_milli
        """What the request takes of each device on each node; above a whole one where it cannot be had."""

    def at(self, kept: Booleans) -> "View":
        """The nodes of this view for which that is so."""
        return View(self.room, self.request, self.rows[kept], self.share_milli[kept], self.closings)

    @cached_property
    def devices(self) -> Integers:
        """Free thousandths of each device, -1 where the node has no such device; two-dimensional."""
        return self.room.devices[self.rows]

    @cached_property
    def withheld(self) -> Integers:
        return self.room.withheld[self.rows]

    @cached_property
    def device_fits(self) -> Booleans:
        """Which devices have the share free; two-dimensional."""
        return self.devices >= self.share_milli[:, None]

    @cached_property
    def prices(self) -> Integers:
        """What the share costs on each device, in 1/10,000 of a GPU (Worth.price); two-dimensional."""
        worth, share = self.room.worth, self.share_milli[:, None]
        return np.zeros_like(self.devices) if worth is None else worth.price(self.devices, share)

    @cached_property
    def chosen(self) -> Booleans:
        """Which devices a pod gets: of those with the share free the cheapest, then those with the least free, then the
        lowest; two-dimensional. Fewer than asked for, where there are not so many.
        """
        count, fits = self.request.gpu_devices, self.device_fits
        if self.withheld.any():
            # The highest of the untouched ones are others'.
            whole = self.devices == WHOLE_GPU_MILLI
            fits = fits & ~(whole & (whole.cumsum(axis=1) > (whole.sum(axis=1) - self.withheld)[:, None]))
        if not count or is_whole(self.request):
            return fits & (fits.cumsum(axis=1) <= count)
        keys = np.where(fits, (self.prices << _FREE_BITS) + self.devices, _NO_DEVICE)
        if count == 1:
            return fits & (_NUMBERS[: keys.shape[1]] == keys.argmin(axis=1)[:, None])
        chosen = np.zeros_like(fits)
        np.put_along_axis(chosen, np.argsort(keys, axis=1, kind="stable")[:, :count], values=True, axis=1)
        return fits & chosen


def is_whole(request: PodRequest) -> bool:
    """Whether it takes whole devices, of which none is better than another."""
    return request.gpu_milli == WHOLE_GPU_MILLI and not request.gpu_memory_bytes


def shares_milli(nodes: NodeTable, request: PodRequest, rows: Integers) -> Integers:
    """The share of each device that a request takes on these nodes; above a whole one where it cannot be had."""
    if not request.gpu_memory_bytes:
        return np.full(len(rows), request.gpu_milli, dtype=np.int64)
    # Rounded up: two shares that together ask for more than the memory must not fit. In Python's integers, because
    # a thousand times a number of bytes can leave 63 bits; sizes are few.
    sizes, which = np.unique(nodes.gpu_memory_bytes[rows], return_inverse=True)
    wanted = WHOLE_GPU_MILLI * request.gpu_memory_bytes
    shares = [min(-(-wanted // int(size)), NO_SUCH_SHARE_MILLI) if size > 0 else NO_SUCH_SHARE_MILLI for size in sizes]
    return np.array(shares, dtype=np.int64)[which]
