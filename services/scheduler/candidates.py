"""Which node is the best for a pod, by the filters and scores of the policy. Pure.

The nodes of a pool that may take a request are kept with the key of each, which its scores make. Only nodes whose room
changed since are looked at again: a pod that is placed costs one node, not all.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from events.workload.pod import DeviceShare
from events.workload.spec import PodRequest
from services.scheduler.policy.rules import Check, Filter, Score
from services.scheduler.room import Room, View
from services.scheduler.snapshot import Booleans, Integers

NO_ROOM: Final = np.iinfo(np.int64).max
"""Key of a node that a filter refuses."""
_KEY_BITS: Final = 62
"""Of a signed 64-bit integer that is neither negative nor NO_ROOM."""

type Packed = list[tuple[Score, int, int]]
"""Scores that share one integer: each with its largest value, and how far it is shifted to the left."""


class Candidates:
    """The nodes of one pool (by its number) that no filter closes to one request. The least key is the best."""

    __slots__ = ("_full", "_keys", "_packed", "_request", "_room", "_seen", "_share_milli", "gpu_milli", "rows")

    def __init__(
        self, room: Room, request: PodRequest, pool: int, filters: Sequence[Filter], scores: Sequence[Packed]
    ) -> None:
        self._room, self._request, self._packed = room, request, scores
        asked = [each for each in filters if each.asks(request)]
        self._full = [each.full for each in asked if each.full is not None]
        rows = np.flatnonzero(room.nodes.pool == pool)
        view = View(room, request, rows)
        lasting = [check for each in asked for check in (each.barred, each.closed) if check is not None]
        refused = refused_by(lasting, view)
        self.rows: Integers = rows[~refused]
        self._share_milli: Integers = view.share_milli[~refused]
        self.gpu_milli: Integers = request.gpu_devices * self._share_milli
        """What a pod takes of each node's devices, in all."""
        self._keys = self._keyed(View(room, request, self.rows, self._share_milli))
        self._seen = len(room.changed)

    def best(self, *, most_gpu_milli: int | None = None, within: Booleans | None = None) -> int | None:
        """Index among `rows` of the best node that takes at most so much of GPUs; None where none has room.

        Args:
            within: which of the rows are looked at; all where it is not given.
        """
        self._update()
        if not len(self.rows):
            return None
        keys = self._keys[0]
        if most_gpu_milli is not None:
            keys = np.where(self.gpu_milli > most_gpu_milli, NO_ROOM, keys)
        if within is not None:
            keys = np.where(within, keys, NO_ROOM)
        best = int(keys.argmin())
        least = keys[best]
        if least == NO_ROOM:
            return None
        if len(self._keys) > 1:
            alike = np.flatnonzero(keys == least)
            for column in self._keys[1:]:
                alike = alike[column[alike] == column[alike].min()]
            best = int(alike[0])
        return best

    def least_gpu_milli(self) -> int | None:
        """The least of GPUs that a node which has room would give in all; None where none has room."""
        self._update()
        return min(map(int, self.gpu_milli[self._keys[0] != NO_ROOM]), default=None)

    def fitting(self) -> Integers:
        """About how many such pods each node has room for now; at least 1 where it has room for one."""
        self._update()
        room, request, rows = self._room, self._request, self.rows
        counts = room.pods[rows].copy()
        amounts = [(room.cpu, request.cpu_milli), (room.memory, request.memory_bytes)]
        # Where no node has a resource, a filter has refused them all.
        amounts += [(free, e.amount) for e in request.extended if (free := room.extended.get(e.resource)) is not None]
        for free, amount in amounts:
            if amount:
                counts = np.minimum(counts, free[rows] // amount)
        if request.gpu_devices:
            shares = np.maximum(room.devices[rows], 0) // self._share_milli[:, None]
            counts = np.minimum(counts, shares.sum(axis=1) // request.gpu_devices)
        return np.where(self._keys[0] == NO_ROOM, 0, np.maximum(counts, 1))

    def fitting_in_all(self, most: int) -> int:
        """About how many such pods find room now, no fewer than do, and no more than `most` on each node."""
        return int(np.minimum(self.fitting(), most).sum())

    def devices(self, index: int) -> tuple[DeviceShare, ...]:
        """The devices that a pod gets on this node: those with the least free, then the lowest."""
        if not self._request.gpu_devices:
            return ()
        share = int(self._share_milli[index])
        milli = self._room.devices[self.rows[index]].tolist()
        free = sorted((each, device) for device, each in enumerate(milli) if each >= share)
        chosen = sorted(device for _, device in free[: self._request.gpu_devices])
        return tuple(DeviceShare(device=device, milli=share) for device in chosen)

    def _update(self) -> None:
        """Look again at the nodes whose room changed."""
        changed = self._room.changed
        if self._seen == len(changed):
            return
        touched = np.array(sorted(set(changed[self._seen :])), dtype=np.int64)
        self._seen = len(changed)
        if not len(self.rows):
            return
        at = np.minimum(self.rows.searchsorted(touched), len(self.rows) - 1)
        at = at[self.rows[at] == touched]
        if len(at):
            keys = self._keyed(View(self._room, self._request, self.rows[at], self._share_milli[at]))
            for column, new in zip(self._keys, keys, strict=True):
                column[at] = new

    def _keyed(self, view: View) -> list[Integers]:
        refused = refused_by(self._full, view)
        columns: list[Integers] = []
        for scores in self._packed:
            keys = np.zeros(len(view.rows), dtype=np.int64)
            for score, largest, shift in scores:
                # Not `clip`, which costs more than all the rest where one node is looked at.
                keys += np.minimum(np.maximum(score.value(view), 0), largest) << shift
            keys[refused] = NO_ROOM
            columns.append(keys)
        return columns


def refused_by(checks: Sequence[Check], view: View) -> Booleans:
    """Which nodes any of the checks refuses."""
    refused = np.zeros(len(view.rows), dtype=np.bool_)
    for check in checks:
        refused |= check.refuses(view)
    return refused


def packed(scores: Sequence[Score]) -> list[Packed]:
    """The scores in as few integers as hold them: comparing the integers one after the other compares the scores so."""
    columns: list[list[Score]] = [[]]
    for score in scores:
        if sum(each.bits for each in columns[-1]) + score.bits > _KEY_BITS:
            columns.append([])
        columns[-1].append(score)
    found: list[Packed] = []
    for column in columns:
        shift = sum(score.bits for score in column)
        entries: Packed = []
        for score in column:
            shift -= score.bits
            entries.append((score, (1 << score.bits) - 1, shift))
        found.append(entries)
    return found
