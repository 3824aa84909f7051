"""Which node is the best for a pod, by the filters and scores of the policy. Pure.

The nodes of a pool that may take a request are kept with the key of each, which its scores make. Only nodes whose room
changed since are looked at again: a pod that is placed costs one node, not all.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

import numpy as np

from events.workload.pod import DeviceShare
from events.workload.spec import WHOLE_GPU_MILLI, PodRequest
from services.scheduler.mix import Weighed
from services.scheduler.policy.rules import Check, Filter, Score
from services.scheduler.ranking import NO_ROOM, UNKNOWN, Entry, Key, Ranking
from services.scheduler.room import Free, Room, View, is_whole
from services.scheduler.snapshot import Booleans, Closing, Integers
from services.scheduler.worth import Worth

_KEY_BITS: Final = 62
"""Of a signed 64-bit integer that is neither negative nor NO_ROOM."""

FEW: Final = 8
"""Nodes that are looked up one by one."""
MOST_KEPT: Final = 10_000
"""States of nodes, for one request: some 4 MB."""

type _Kept = dict[tuple[int, ...], int]
type Filled = tuple[int, list[tuple[DeviceShare, ...]]]
"""Index of a node, and the devices that each of the pods gets there."""
type Packed = list[tuple[Score, int, int]]
"""Scores that share one integer: each with its largest value, and how far it is shifted to the left."""


class Stand:
    """How a node stands for one request: what the next pod of it takes there, and how the node stands then. Alike for
    all nodes with the same free room, so it is found out once. Mutable: it is filled in when a pod is placed so.
    """

    __slots__ = ("devices", "free", "key", "next")

    def __init__(self, key: Key, free: Free) -> None:
        self.key, self.free = key, free
        self.devices: tuple[DeviceShare, ...] = ()
        """Of the next pod."""
        self.next: Stand | None = None
        """None where no pod was placed yet on a node that stands so."""


class Candidates:
    """The nodes of one pool (by its number) that no filter closes to one request. The least key is the best."""

    __slots__ = (
        "_at",
        "_first_row",
        "_fits",
        "_full",
        "_kept",
        "_keys",
        "_largest_milli",
        "_lasting",
        "_lead",
        "_lead_key",
        "_lead_row",
        "_packed",
        "_ranking",
        "_request",
        "_room",
        "_second",
        "_seen",
        "_share_milli",
        "_shares_alike",
        "_stand",
        "_stands",
        "_ties",
        "_unfit",
        "gpu_milli",
        "rows",
    )

    def __init__(
        self,
        room: Room,
        request: PodRequest,
        pool: int,
        filters: Sequence[Filter],
        scores: Sequence[Packed],
        *,
        closings: tuple[Closing, ...] = (),
    ) -> None:
        self._room, self._request = room, request
        first = [each for each in scores[0] if not each[0].lasting]
        self._packed = [first, *scores[1:]]
        asked = [each for each in filters if each.asks(request)]
        self._full = [each.full for each in asked if each.full is not None]
        rows = np.flatnonzero(room.nodes.pool == pool)
        view = View(room, request, rows, closings=closings)
        lasting = [check for each in asked for check in (each.barred, each.closed) if check is not None]
        refused = refused_by(lasting, view)
        self.rows: Integers = rows[~refused]
        self._at: list[int] = self.rows.tolist()
        self._first_row = self._at[0] if self._at and self._at[-1] - self._at[0] == len(self._at) - 1 else None
        """Where the rows are one after the other: the first."""
        self._share_milli: Integers = view.share_milli[~refused]
        self.gpu_milli: Integers = request.gpu_devices * self._share_milli
        """What a pod takes of each node's devices, in all."""
        view = View(room, request, self.rows, self._share_milli)
        lasting = _together([each for each in scores[0] if each[0].lasting], view)
        self._lasting: Integers | None = lasting if lasting.any() else None
        """What the scores that no pod changes add to the first part of each key; None where that is nothing."""
        self._keys = self._with_lasting(self._keyed(view), slice(None))
        """By the scores that are packed first."""
        self._ties: list[Integers] = [np.full(len(self.rows), UNKNOWN) for _ in scores[1:]]
        """By the others; found out where the first leave nodes alike."""
        by_room = all(each.by_room for each in asked if each.full is not None)
        self._kept: list[_Kept | None] = [
            {} if _by_room(each) and (n or by_room) else None for n, each in enumerate(self._packed)
        ]
        """Keys by the state of a node, as they are packed; None where they do not follow from that."""
        self._shares_alike = len(set(self.gpu_milli.tolist())) <= 1
        self._seen = len(room.changed)
        self._largest_milli = int(self.gpu_milli.max(initial=0))
        self._ranking: Ranking | None = None
        """Of all but the lead; made when a best node is asked for first."""
        self._lead = self._lead_row = -1
        """Index of the best node of all, while it was; -1 where none has room. Most often it still is with one pod
        more, because a node that fills up gets better.
        """
        self._lead_key: Key = (NO_ROOM,)
        """It does not come after this; the index of the node is no part of it."""
        self._second: Entry = (NO_ROOM,)
        """No other node comes before it."""
        self._stands: dict[tuple[int, ...], Stand] | None = {}
        if None in self._kept:
            self._stands = None
        """By the state of a node and the order of its devices; None where keys do not follow from that."""
        self._stand: Stand | None = None
        """Of the lead, where that is known."""
        self._fits: Integers | None = None
        """How many pods each node has room for, once that was asked for, but for those of the next."""
        self._unfit: set[int] = set()

    def best(self, *, most_gpu_milli: int | None = None, within: Booleans | None = None) -> int | None:
        """Index among `rows` of the best node that takes at most so much of GPUs; None where none has room.

        Args:
            within: which of the rows are looked at; all where it is not given.
        """
        self._update()
        if within is None and (most_gpu_milli is None or most_gpu_milli >= self._largest_milli):
            return self._first_of_all()
        if (*self._lead_key, self._lead) < self._second and self._may_take(self._lead, most_gpu_milli, within):
            return self._lead
        keys = self._keys
        if most_gpu_milli is not None:
            keys = np.where(self.gpu_milli > most_gpu_milli, NO_ROOM, keys)
        if within is not None:
            keys = np.where(within, keys, NO_ROOM)
        return self._first(keys)

    def fill(self, most: int, *, most_gpu_milli: int | None = None) -> Filled | None:
        """Put up to so many pods, one after the other, on the node that is the best for each of them: its index among
        `rows`, and the devices that each gets. None where none has room.

        Args:
            most_gpu_milli: what all of them may take of GPUs.
        """
        index = self.best(most_gpu_milli=most_gpu_milli)
        if index is None:
            return None
        if self._stands is None or index != self._lead:
            devices = self.devices(index)
            self._room.take(int(self.rows[index]), self._request, devices)
            return index, [devices]
        if most_gpu_milli is not None and (milli := int(self.gpu_milli[index])):
            most = min(most, most_gpu_milli // milli)
        before = stand = self._stand or self._stand_of_lead()
        second, given = self._second, list[tuple[DeviceShare, ...]]()
        while (then := stand.next) is not None:
            given.append(stand.devices)
            stand = then
            if len(given) == most or (*stand.key, index) >= second:
                break
        if not given:
            return index, [self._first_so(stand)]
        self._room.put(self._lead_row, before.free, stand.free)
        self._seen = len(self._room.changed)
        self._stand = stand
        self._lead_is(stand.key)
        return index, given

    def _stand_of_lead(self) -> Stand:
        assert self._stands is not None
        lasting = 0 if self._lasting is None else int(self._lasting[self._lead])
        state = (lasting, int(self._share_milli[self._lead]), *self._room.exact_state(self._lead_row, self._request))
        stand = self._stands.get(state)
        if stand is None:
            if len(self._stands) >= MOST_KEPT:
                self._stands.clear()
            stand = self._stands[state] = Stand(self._lead_key, self._room.free(self._lead_row, self._request))
        self._stand = stand
        return stand

    def _first_so(self, stand: Stand) -> tuple[DeviceShare, ...]:
        """Put a pod on the lead as none was put before on a node that stands so, and note what comes of it."""
        stand.devices = self.devices(self._lead)
        self._room.take(self._lead_row, self._request, stand.devices)
        self._update()
        then = self._stand_of_lead()
        then.key = self._lead_key
        stand.next = then
        return stand.devices

    def _first_of_all(self) -> int | None:
        if (*self._lead_key, self._lead) >= self._second:
            ranking = self._ranking
            if ranking is None:
                ranking = self._ranking = Ranking(self._keys, self._ties_of, len(self._ties))
            elif self._lead >= 0:
                known = self._lead_key[1:] != (NO_ROOM,)
                ranking.put(self._lead, self._lead_key if known else self._lead_key[:1])
            entry = ranking.pop()
            self._stand = None
            if entry is None:
                self._lead, self._lead_key, self._second = -1, (NO_ROOM,), (NO_ROOM,)
                return None
            self._lead, self._lead_row = entry[-1], self._at[entry[-1]]
            self._lead_key = (entry[0], NO_ROOM) if UNKNOWN in entry else entry[:-1]
            self._second = ranking.least()
        return self._lead

    def _first(self, keys: Integers) -> int | None:
        """Of the nodes with these keys the one that comes first."""
        if not len(keys):
            return None
        least = int(keys.min())
        if least == NO_ROOM:
            return None
        alike = np.flatnonzero(keys == least)
        if len(alike) > 1 and self._ties:
            alike = alike[np.lexsort(tuple(reversed(self._ties_of(alike))))]
        return int(alike[0])

    def _ties_of(self, at: Integers) -> list[Integers]:
        """By the other scores, of these of the rows."""
        if len(at) == 1:
            return [np.array([self._tie(n, int(at[0]))]) for n in range(len(self._ties))]
        for n, column in enumerate(self._ties):
            unknown = at[column[at] == UNKNOWN]
            if len(unknown):
                column[unknown] = self._found(n + 1, unknown)
        return [column[at] for column in self._ties]

    def _tie(self, n: int, index: int) -> int:
        tie = int(self._ties[n][index])
        if tie == UNKNOWN:
            tie = self._ties[n][index] = self._found_at(n + 1, index)
        return tie

    def _may_take(self, index: int, most_gpu_milli: int | None, within: Booleans | None) -> bool:
        return (most_gpu_milli is None or self.gpu_milli[index] <= most_gpu_milli) and (
            within is None or bool(within[index])
        )

    def least_gpu_milli(self) -> int | None:
        """The least of GPUs that a node which has room would give in all; None where none has room."""
        self._update()
        if self._shares_alike:
            return None if self._first_of_all() is None else self._largest_milli
        return min(self.gpu_milli[self._keys != NO_ROOM].tolist(), default=None)

    def fitting(self) -> Integers:
        """About how many such pods each node has room for now; at least 1 where it has room for one."""
        self._update()
        if self._fits is None:
            self._fits = self._fitting(slice(None))
        elif self._unfit:
            at = np.array(sorted(self._unfit))
            self._fits[at] = self._fitting(at)
        self._unfit.clear()
        return self._fits

    def _fitting(self, at: Integers | slice) -> Integers:
        room, request, rows = self._room, self._request, self.rows[at]
        counts = room.pods[rows]
        amounts = [(room.cpu, request.cpu_milli), (room.memory, request.memory_bytes)]
        # Where no node has a resource, a filter has refused them all.
        amounts += [(free, e.amount) for e in request.extended if (free := room.extended.get(e.resource)) is not None]
        for free, amount in amounts:
            if amount:
                counts = np.minimum(counts, free[rows] // amount)
        if request.gpu_devices:
            shares = np.maximum(room.devices[rows], 0) // self._share_milli[at][:, None]
            counts = np.minimum(counts, shares.sum(axis=1) // request.gpu_devices)
        return np.where(self._keys[at] == NO_ROOM, 0, np.maximum(counts, 1))

    def fitting_in_all(self, most: int, *, enough: int) -> int:
        """About how many such pods find room now, no fewer than do, and no more than `most` on each node. Where so many
        do as are enough, it may be fewer than all.
        """
        self._update()
        if self._fits is not None and self._unfit:
            certain = int(np.minimum(self._fits, most).sum()) - most * len(self._unfit)
            if certain >= enough:
                return certain
        return int(np.minimum(self.fitting(), most).sum())

    def devices(self, index: int) -> tuple[DeviceShare, ...]:
        """The devices that a pod gets on this node: the cheapest, then those with the least free, then the lowest."""
        request, share = self._request, int(self._share_milli[index])
        if not request.gpu_devices:
            return ()
        row, worth = int(self.rows[index]), self._room.worth
        milli: list[int] = self._room.devices[row].tolist()
        free = [(each, device) for device, each in enumerate(milli) if each >= share]
        if (withheld := int(self._room.withheld[row])) > 0:
            # The highest of the untouched ones are others'.
            others = [each for each in free if each[0] == WHOLE_GPU_MILLI][-withheld:]
            free = [each for each in free if each not in others]
        if worth is not None and not is_whole(request):
            priced = sorted((worth.price_of(each, share), each, device) for each, device in free)
            chosen = sorted(device for *_, device in priced[: request.gpu_devices])
        else:
            chosen = sorted(device for _, device in sorted(free)[: request.gpu_devices])
        return tuple(DeviceShare(device=device, milli=share) for device in chosen)

    def _update(self) -> None:
        """Look again at the nodes whose room changed."""
        changed = self._room.changed
        if self._seen == len(changed):
            return
        touched = set(changed[self._seen :])
        self._seen = len(changed)
        if self._lead >= 0 and self._lead_row in touched:
            touched.remove(self._lead_row)
            self._move_lead()
        if touched:
            self._move(sorted(touched))

    def _move(self, touched: list[int]) -> None:
        """Look again at these nodes, of which none is the one that was the best."""
        rows = self._at
        found = [(bisect_left(rows, row) if self._first_row is None else row - self._first_row) for row in touched]
        count = len(rows)
        indexes = [i for i, row in zip(found, touched, strict=True) if 0 <= i < count and rows[i] == row]
        if not indexes:
            return
        self._unfit.update(indexes)
        if len(indexes) <= FEW:
            keys = [self._found_at(0, index) for index in indexes]
            for index, key in zip(indexes, keys, strict=True):
                self._keys[index] = key
                for column in self._ties:
                    column[index] = UNKNOWN
        else:
            at = np.array(indexes)
            self._keys[at] = self._found(0, at)
            keys = self._keys[at].tolist()
            for column in self._ties:
                column[at] = UNKNOWN
        if self._ranking is not None:
            self._second = min(self._second, (min(keys),))
            for index, key in zip(indexes, keys, strict=True):
                self._ranking.put(index, (key,))

    def _move_lead(self) -> None:
        """Look again at the node that was the best."""
        self._stand = None
        self._lead_is(tuple(self._found_at(n, self._lead) for n in range(len(self._packed))))

    def _lead_is(self, key: Key) -> None:
        """The lead has this key now."""
        self._lead_key, self._keys[self._lead] = key, key[0]
        self._unfit.add(self._lead)
        for column, tie in zip(self._ties, key[1:], strict=True):
            column[self._lead] = tie

    def _found_at(self, n: int, index: int) -> int:
        """Key of one node by the scores that are packed together as the one of this number: by what was found out about
        nodes alike, else anew.
        """
        kept, row = self._kept[n], self._at[index]
        if kept is None:
            return int(self._found(n, np.array([index]))[0])
        state = self._room.state(row, self._request)
        if not self._shares_alike:
            state = (int(self._share_milli[index]), *state)
        if self._lasting is not None and not n:
            state = (int(self._lasting[index]), *state)
        key = kept.get(state)
        if key is None:
            if len(kept) >= MOST_KEPT:
                kept.clear()
            key = kept[state] = int(self._found(n, np.array([index]))[0])
        return key

    def _found(self, n: int, at: Integers) -> Integers:
        """Keys of these of the rows, anew."""
        view = View(self._room, self._request, self.rows[at], self._share_milli[at])
        return _together(self._packed[n], view) if n else self._with_lasting(self._keyed(view), at)

    def _with_lasting(self, keys: Integers, at: Integers | slice) -> Integers:
        """Keys of these of the rows, with what does not change; those without room stay so."""
        if self._lasting is None:
            return keys
        return np.where(keys == NO_ROOM, NO_ROOM, keys + np.where(keys == NO_ROOM, 0, self._lasting[at]))

    def _keyed(self, view: View) -> Integers:
        refused = refused_by(self._full, view)
        if not refused.any():
            return _together(self._packed[0], view)
        keys = np.full(len(refused), NO_ROOM)
        if not refused.all():
            keys[~refused] = _together(self._packed[0], view.at(~refused))
        return keys


def _by_room(scores: Packed) -> bool:
    return all(score.by_room for score, _, _ in scores)


def _together(scores: Packed, view: View) -> Integers:
    keys = np.zeros(len(view.rows), dtype=np.int64)
    for score, largest, shift in scores:
        # Not `clip`, which costs more than all the rest where one node is looked at.
        keys += np.minimum(np.maximum(score.value(view), 0), largest) << shift
    return keys


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


def worth_of(room: Room, *, mix: tuple[Weighed, ...], filters: Sequence[Filter]) -> Worth:
    """What room is worth to the pods that come, by what the labels of nodes bar to them."""
    rows = np.arange(len(room.cpu))

    def barred(request: PodRequest) -> Booleans:
        checks = [each.barred for each in filters if each.barred is not None and each.asks(request)]
        return refused_by(checks, View(room, request, rows)) if checks else np.zeros(len(rows), dtype=np.bool_)

    return Worth(room.nodes, room.rooms(rows), mix, barred)
