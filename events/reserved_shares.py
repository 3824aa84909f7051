"""Which nodes, or which GPUs of them, each reservation of a cluster has that wants so many. Pure.

Nothing is noted of it: it is as if all of them had been made, changed and cancelled, one after the other, on the nodes
that are there now. Who comes takes what is free, the first by name; what somebody leaves goes to who lacks most early,
and whatever is left of it to who comes later. So nobody loses what it has to another one.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from math import inf
from typing import Final, NamedTuple

from events.node import Node
from events.reserved import Reserved

MOST_FORMER: Final = 200
"""Of one cluster, forms of reservations that are over, changed or cancelled; of more, the last ones."""

type Parts = dict[str, tuple[int, ...] | None]
"""By key of a node: the devices of it that are kept; None: all of the node."""
type _Devices = dict[str, set[int]]
"""By key of a node: devices of it; a node without devices stands in it with none."""


class KeptFor(NamedTuple):
    """That a node is kept by a reservation."""

    entry: Reserved
    starts_at: datetime
    """The time that goes on or comes next."""
    devices: tuple[int, ...] | None = None
    """Those that are kept; None: all of the node."""


class _Share:
    """What one has. Mutable."""

    def __init__(self, entry: Reserved, fitting: Mapping[str, Node]) -> None:
        self.entry = entry
        self.nodes = dict(sorted(fitting.items(), key=lambda each: (each[1].name, each[0])))
        """Those that it is about."""
        self.has: _Devices = {}

    @property
    def lacks(self) -> int:
        """GPUs, or nodes."""
        if self.entry.gpus is not None:
            return self.entry.gpus - sum(map(len, self.has.values()))
        return 0 if self.entry.node_count is None else self.entry.node_count - len(self.has)

    def grow(self, keys: Iterable[str], taken: _Devices) -> None:
        """Take of these nodes what it lacks, in their order, beside what others have."""
        lacks = self.lacks
        for key in keys:
            if lacks <= 0:
                return
            devices, others, mine = (
                range(self.nodes[key].facts.gpu_count),
                taken.get(key),
                self.has.get(key, set[int]()),
            )
            free = [each for each in devices if each not in (others or ()) and each not in mine]
            whole = key not in self.has and len(free) == len(devices) and (bool(free) or others is None)
            if self.entry.gpus is None:
                if whole:
                    self.has[key] = set(free)
                    lacks -= 1
            elif free and (whole or self.entry.exact):
                kept = free[:lacks] if self.entry.exact else free
                self.has[key] = mine | set(kept)
                lacks -= len(kept)

    def grow_as(self, before: _Devices, taken: _Devices) -> None:
        """Likewise of what it had before it was changed."""
        keys = [key for key in self.nodes if key in before]
        elsewhere = {key: {*range(self.nodes[key].facts.gpu_count)} - before[key] for key in keys}
        here = {key: elsewhere[key] | taken.get(key, set()) for key in keys if elsewhere[key] or key in taken}
        self.grow(keys, here)

    def parts(self) -> Parts:
        if not self.entry.counted:
            return dict.fromkeys(self.nodes)
        return {
            key: None if len(devices) == self.nodes[key].facts.gpu_count else tuple(sorted(devices))
            for key, devices in self.has.items()
        }


class _Sharing:
    """All of one cluster, at one moment after the other. Mutable."""

    def __init__(self) -> None:
        self._there: dict[str, _Share] = {}
        """By form, in the order of `_made`."""
        self._meet: dict[tuple[str, str], bool] = {}
        """By two forms, the lesser first."""

    def change(self, leave: Iterable[str], come: Iterable[_Share]) -> None:
        """What happens at one moment."""
        left = [self._there.pop(form) for form in leave]
        for share in come:
            before = next((each.has for each in left if each.entry.id == share.entry.id), None)
            if before:
                share.grow_as(before, self._taken(share, before))
            share.grow(share.nodes, self._taken(share, share.nodes))
            self._there[share.entry.form] = share
        self._there = dict(sorted(self._there.items(), key=lambda each: _made(each[1].entry)))
        freed = {key for each in left for key in each.has}
        for share in self._there.values():
            # Of all else it has what it can have already.
            if freed and share.lacks > 0 and (keys := [key for key in share.nodes if key in freed]):
                share.grow(keys, self._taken(share, keys))

    def _taken(self, share: _Share, keys: Collection[str]) -> _Devices:
        found: _Devices = {}
        for other in self._there.values():
            if other is share or not (shared := [key for key in other.has if key in keys]):
                continue
            if self._meets(share.entry, other.entry):
                for key in shared:
                    found.setdefault(key, set()).update(other.has[key])
        return found

    def _meets(self, one: Reserved, other: Reserved) -> bool:
        pair = min(one.form, other.form), max(one.form, other.form)
        if pair not in self._meet:
            self._meet[pair] = one.meets(other)
        return self._meet[pair]


def shared_out(
    reserved: Iterable[Reserved], fitting: Mapping[str, Mapping[str, Node]], gone: Collection[str] = ()
) -> dict[str, Parts]:
    """What is kept by each (by its form).

    Args:
        reserved: those that are, and of those that were as many as are needed (`needed`).
        fitting: by form, the nodes that each may be about, by key.
        gone: forms of those for whom nobody is there any more: the others have what these would have.
    """
    shares = {each.form: _Share(each, fitting.get(each.form, {})) for each in sorted(reserved, key=_made)}
    counted = [each for each in shares.values() if each.entry.counted and _begun(each.entry) < _ended(each.entry)]
    come, leave = defaultdict[float, list[_Share]](list), defaultdict[float, list[str]](list)
    for share in counted:
        come[_begun(share.entry)].append(share)
        leave[_ended(share.entry) if share.entry.form not in gone else inf].append(share.entry.form)
    sharing = _Sharing()
    for moment in sorted({*come, *leave}):
        # Who is there still leaves at no time, but for those for whom nobody is there any more.
        left = [form for form in leave.get(moment, ()) if moment < inf or form in gone]
        sharing.change(left, come.get(moment, ()))
    return {form: share.parts() for form, share in shares.items()}


def needed(former: tuple[Reserved, ...], reserved: tuple[Reserved, ...], now: datetime) -> tuple[Reserved, ...]:
    """Of those that were, those of which it follows what one has that is not over."""
    if not former:
        return ()
    every = (*reserved, *former)
    last = [each for each in reserved if each.times(now) is not None]
    seen = {each.form for each in last}
    while last:
        entry = last.pop()
        for form in (each for each in every if each.id == entry.id):
            more = [each for each in every if _lived_beside(form, each) and form.meets(each)]
            if more and form.form not in seen:
                more.append(form)
            more = [each for each in more if each.form not in seen]
            seen |= {each.form for each in more}
            last += more
    return tuple(each for each in former if each.form in seen)[-MOST_FORMER:]


def _lived_beside(one: Reserved, other: Reserved) -> bool:
    return _begun(one) < _ended(other) and _begun(other) < _ended(one)


def _begun(entry: Reserved) -> float:
    """Since when it is as it is; of those of before that was noted, 0."""
    since = entry.since or entry.made_at
    return 0.0 if since is None else since.timestamp()


def _ended(entry: Reserved) -> float:
    return inf if entry.until is None else entry.until.timestamp()


def _made(entry: Reserved) -> tuple[float, str]:
    """By when it was made; of those of before that was noted, by id."""
    return (0.0 if entry.made_at is None else entry.made_at.timestamp(), entry.id)
