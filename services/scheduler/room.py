"""Free room on nodes while a plan is made: where a pod fits best, and what is left after it. Pure.

Best fit: the device with least left over, so that shared devices fill up before whole ones are opened; then the node
with the fewest free GPUs, so that large free nodes stay whole; then the node with the least free CPU; then the first.
A score per kind of request and pool is kept, and only rows that changed since are scored again.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from events.workload.events import DeviceShare
from events.workload.spec import WHOLE_GPU_MILLI, PodRequest
from services.scheduler.columns import clipped
from services.scheduler.snapshot import Booleans, Integers, NodeTable, Release

NEVER: Final = np.iinfo(np.int64).max
"""Score of a row that does not fit."""
_LEFTOVER_SHIFT: Final = 48
_FREE_GPU_SHIFT: Final = 32
_MAX_FREE_GPU_MILLI: Final = (1 << (_LEFTOVER_SHIFT - _FREE_GPU_SHIFT)) - 1
"""65 free GPUs: more on one node are all the same to best fit. So a score fits one 64-bit integer."""
_MAX_LEFTOVER_MILLI: Final = (1 << (63 - _LEFTOVER_SHIFT)) - 1
_MAX_FREE_CPU_MILLI: Final = (1 << _FREE_GPU_SHIFT) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    row: int
    devices: tuple[DeviceShare, ...]

    @property
    def gpu_milli(self) -> int:
        return sum(share.milli for share in self.devices)


@dataclass(slots=True)
class _Candidates:
    rows: Integers
    scores: Integers
    gpu_milli: Integers
    """What a pod takes of each node's devices, in all."""
    seen: int
    """How far the journal of changed rows has been taken over."""


class Room:
    """A node table that shrinks as pods are placed."""

    def __init__(self, nodes: NodeTable, releases: tuple[Release, ...] = ()) -> None:
        self.nodes = nodes
        self.cpu = nodes.free_cpu_milli.copy()
        self.memory = nodes.free_memory_bytes.copy()
        self.pods = nodes.free_pods.copy()
        self.devices = nodes.free_device_milli.copy()
        self.free_devices = nodes.free_devices.copy()
        self._withheld = (self.devices == WHOLE_GPU_MILLI).sum(axis=1) - self.free_devices
        """How many of the untouched devices cannot be had, because others have as many. No pod of ours changes that."""
        self._journal: list[int] = []
        self._candidates: dict[tuple[PodRequest, int], _Candidates] = {}
        for release in releases:
            if release.row >= 0:
                held = release.reservation
                self._move(release.row, held.cpu_milli, held.memory_bytes, held.devices, sign=+1)

    def find(self, request: PodRequest, place: int, *, most_gpu_milli: int | None = None) -> Spot | None:
        """The best spot in one pool of one cluster that takes at most so much of GPUs; nothing is taken yet."""
        candidates = self._up_to_date(request, place)
        if not len(candidates.rows):
            return None
        scores = candidates.scores
        if most_gpu_milli is not None:
            scores = np.where(candidates.gpu_milli > most_gpu_milli, NEVER, scores)
        best = int(scores.argmin())
        if scores[best] == NEVER:
            return None
        row = int(candidates.rows[best])
        return Spot(row=row, devices=self._tightest(request, row))

    def least_gpu_milli(self, request: PodRequest, place: int) -> int | None:
        """The least of GPUs that a node of this pool which has room would give in all; None where none has room."""
        candidates = self._up_to_date(request, place)
        return min(map(int, candidates.gpu_milli[candidates.scores != NEVER]), default=None)

    def take(self, spot: Spot, request: PodRequest) -> None:
        self._move(spot.row, request.cpu_milli, request.memory_bytes, spot.devices, sign=-1)

    def usable(self, request: PodRequest) -> Booleans:
        """Which nodes take new pods of this kind at all."""
        return self.nodes.gpu_usable if request.gpu_devices else self.nodes.usable

    def share_milli(self, request: PodRequest, rows: Integers) -> Integers:
        """The share of each device that a request takes on these nodes; above a whole one where it cannot be had."""
        if not request.gpu_memory_bytes:
            return np.full(len(rows), request.gpu_milli, dtype=np.int64)
        # Rounded up: two shares that together ask for more than the memory must not fit. In Python's integers, because
        # a thousand times a number of bytes can leave 63 bits; sizes are few.
        sizes, which = np.unique(self.nodes.gpu_memory_bytes[rows], return_inverse=True)
        most = 2 * WHOLE_GPU_MILLI
        shares = [min(-(-WHOLE_GPU_MILLI * request.gpu_memory_bytes // int(n)), most) if n > 0 else most for n in sizes]
        return np.array(shares, dtype=np.int64)[which]

    def lacks(self, request: PodRequest, rows: Integers) -> tuple[Booleans, Booleans, Booleans, Booleans]:
        """Which of these nodes lack GPU, CPU, memory, and room for another pod."""
        none = np.zeros(len(rows), dtype=np.bool_)
        gpu = none
        if request.gpu_devices:
            fits = self.devices[rows] >= self.share_milli(request, rows)[:, None]
            gpu = self._too_few(fits, rows, request.gpu_devices)
        cpu = self.cpu[rows] < request.cpu_milli if request.cpu_milli else none
        memory = self.memory[rows] < request.memory_bytes if request.memory_bytes else none
        return gpu, cpu, memory, self.pods[rows] < 1

    def largest_share_milli(self, rows: Integers) -> int:
        """The most that any device of these nodes has to give."""
        milli, free = self.devices[rows], self.free_devices[rows]
        opened = np.where(milli < WHOLE_GPU_MILLI, milli, 0).max(axis=1, initial=0)
        return int(np.where(free > 0, WHOLE_GPU_MILLI, np.where(free < 0, 0, opened)).max(initial=0))

    def _too_few(self, fits: Booleans, rows: Integers, count: int) -> Booleans:
        """Where the devices that have room are fewer than these: as the node's decider counts."""
        return (fits.sum(axis=1) - self._withheld[rows] < count) | (self.free_devices[rows] < 0)

    def _up_to_date(self, request: PodRequest, place: int) -> _Candidates:
        candidates = self._candidates.get((request, place))
        if candidates is None:
            rows = np.flatnonzero((self.nodes.place == place) & self.usable(request))
            gpu_milli = request.gpu_devices * self.share_milli(request, rows)
            candidates = _Candidates(rows, self._scores(request, rows), gpu_milli, len(self._journal))
            self._candidates[request, place] = candidates
            return candidates
        if candidates.seen < len(self._journal) and len(candidates.rows):
            changed = np.unique(np.array(self._journal[candidates.seen :], dtype=np.int64))
            at = np.minimum(np.searchsorted(candidates.rows, changed), len(candidates.rows) - 1)
            at = at[candidates.rows[at] == changed]
            candidates.scores[at] = self._scores(request, candidates.rows[at])
        candidates.seen = len(self._journal)
        return candidates

    def _scores(self, request: PodRequest, rows: Integers) -> Integers:
        devices = self.devices[rows]
        unfit = self.pods[rows] < 1
        if request.cpu_milli:
            unfit |= self.cpu[rows] < request.cpu_milli
        if request.memory_bytes:
            unfit |= self.memory[rows] < request.memory_bytes
        free_gpu_milli = np.maximum(devices, 0).sum(axis=1) - WHOLE_GPU_MILLI * self._withheld[rows]
        score = free_gpu_milli.clip(0, _MAX_FREE_GPU_MILLI) << _FREE_GPU_SHIFT
        score += (self.cpu[rows] - request.cpu_milli).clip(0, _MAX_FREE_CPU_MILLI)
        count = request.gpu_devices
        if count:
            share = self.share_milli(request, rows)
            fits = devices >= share[:, None]
            unfit |= self._too_few(fits, rows, count)
            tight = np.where(fits, devices, _MAX_LEFTOVER_MILLI)
            held = tight.min(axis=1) if count == 1 else np.sort(tight, axis=1)[:, :count].sum(axis=1)
            score += (held - count * share).clip(0, _MAX_LEFTOVER_MILLI) << _LEFTOVER_SHIFT
        score[unfit] = NEVER
        return score

    def _tightest(self, request: PodRequest, row: int) -> tuple[DeviceShare, ...]:
        if not request.gpu_devices:
            return ()
        share = int(self.share_milli(request, np.array([row]))[0])
        free = [(int(milli), device) for device, milli in enumerate(self.devices[row]) if milli >= share]
        chosen = sorted(device for _, device in sorted(free)[: request.gpu_devices])
        return tuple(DeviceShare(device=device, milli=share) for device in chosen)

    def _move(self, row: int, cpu: int, memory: int, devices: tuple[DeviceShare, ...], *, sign: int) -> None:
        self.cpu[row] = clipped(int(self.cpu[row]) + sign * cpu)
        self.memory[row] = clipped(int(self.memory[row]) + sign * memory)
        self.pods[row] += sign
        for share in devices:
            # A device that the node has lost since gives nothing back before the next plan.
            if share.device < self.devices.shape[1] and self.devices[row, share.device] >= 0:
                before = int(self.devices[row, share.device])
                after = self.devices[row, share.device] = before + sign * share.milli
                if WHOLE_GPU_MILLI in (before, after):
                    self.free_devices[row] += sign
        self._journal.append(row)
