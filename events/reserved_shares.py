"""Which nodes, or which GPUs of them, each reservation of a cluster has that wants so many. Pure.

Nothing is noted of it: it is as if all of them had been made, changed and cancelled, one after the other, on the nodes
that are there now. Who comes takes what is free, the first by name; what somebody leaves goes to those that have too
few, first to the one that is for longest as it is. So nobody loses what it has to another one.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from functools import partial
from math import inf
from typing import Final, NamedTuple

from events.node import Node
from events.reserved import Reserved

MOST_FORMER: Final = 200
"""Of one cluster, forms of reservations that are over, changed or cancelled; of more, the last ones."""
LOOKED_THROUGH: Final = 50
"""With every so many more of them it is found out which are needed: that takes as long as there are pairs of them."""

type Parts = dict[str, tuple[int, ...] | None]
"""By key of a node: the devices of it that are kept; None: all of the node."""
type _Devices = dict[str, set[int]]
"""By key of a node: devices of it; a node without devices stands in it with none."""
type _Taken = Callable[[str], set[int] | None]
"""From the key of a node: what others have of it that have it when this one would; None: nothing."""


class KeptFor(NamedTuple):
    """That a node is kept by a reservation."""

    entry: Reserved
    starts_at: datetime
    """The time that goes on or comes next."""
    devices: tuple[int, ...] | None = None
    """Those that are kept; None: all of the node."""


class _Nodes:
    """Those that some are about, in the order of their names."""

    def __init__(self, fitting: Mapping[str, Node]) -> None:
        self.by_key = dict(sorted(fitting.items(), key=lambda of: (of[1].name, of[0])))
        self.place = {key: number for number, key in enumerate(self.by_key)}


class _Share:
    """What one has. Mutable."""

    def __init__(self, entry: Reserved, nodes: _Nodes) -> None:
        self.entry, self.nodes, self.place = entry, nodes.by_key, nodes.place
        self.has: _Devices = {}

    @property
    def lacks(self) -> int:
        """GPUs, or nodes."""
        if self.entry.gpus is not None:
            return self.entry.gpus - sum(map(len, self.has.values()))
        return 0 if self.entry.node_count is None else self.entry.node_count - len(self.has)

    def grow(self, keys: Iterable[str], taken: _Taken) -> None:
        """Take of these nodes what it lacks, in their order, beside what others have."""
        lacks = self.lacks
        for key in keys:
            if lacks <= 0:
                return
            others, count = taken(key), self.nodes[key].facts.gpu_count
            if others is not None and len(others) == count:
                continue
            devices, mine = range(count), self.has.get(key, set[int]())
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

    def grow_as(self, before: _Devices, taken: _Taken) -> None:
        """Likewise of what it had before it was changed."""

        def elsewhere(key: str) -> set[int] | None:
            others, rest = taken(key), {*range(self.nodes[key].facts.gpu_count)} - before[key]
            return rest | (others or set()) if rest or others is not None else None

        self.grow((key for key in self.nodes if key in before), elsewhere)

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
        """By form, in the order in which they came."""
        self._holders = defaultdict[str, dict[str, _Share]](dict)
        """By key of a node, then by form."""
        self._near = dict[str, set[str]]()
        """By form, those that it meets."""

    def change(self, leave: Iterable[str], come: Iterable[_Share]) -> None:
        """What happens at one moment."""
        left = [self._there.pop(form) for form in leave]
        for each in left:
            for key in each.has:
                del self._holders[key][each.entry.form]
        for share in come:
            self._come(share)
            before = next((each.has for each in left if each.entry.id == share.entry.id), None)
            if before:
                share.grow_as(before, partial(self._taken, share))
            share.grow(share.nodes, partial(self._taken, share))
            self._note(share, share.has)
        freed = dict.fromkeys(key for each in left for key in each.has)
        for share in self._there.values():
            # Of all else it has what it can have already.
            if freed and share.lacks > 0:
                keys = sorted((key for key in freed if key in share.nodes), key=share.place.__getitem__)
                share.grow(keys, partial(self._taken, share))
                self._note(share, keys)

    def _note(self, share: _Share, keys: Iterable[str]) -> None:
        for key in keys:
            if key in share.has:
                self._holders[key][share.entry.form] = share

    def _come(self, share: _Share) -> None:
        form = share.entry.form
        near = self._near[form] = {other for other, of in self._there.items() if share.entry.meets(of.entry)}
        for other in near:
            self._near[other].add(form)
        self._there[form] = share

    def _taken(self, share: _Share, key: str) -> set[int] | None:
        near = self._near[share.entry.form]
        if not near or not (holders := self._holders.get(key)):
            return None
        others = [holders[form].has[key] for form in (near & holders.keys())]
        return set[int]().union(*others) if others else None


def shared_out(
    reserved: Iterable[Reserved], fitting: Mapping[str, Mapping[str, Node]], gone: Collection[str] = ()
) -> dict[str, Parts]:
    """What is kept by each (by its form).

    Args:
        reserved: those that are, and of those that were as many as are needed (`needed`).
        fitting: by form, the nodes that each may be about, by key.
        gone: forms of those for whom nobody is there any more: the others have what these would have.
    """
    nodes, shares = dict[object, _Nodes](), dict[str, _Share]()
    for each in sorted(reserved, key=lambda each: (_begun(each), each.id)):
        if each.about not in nodes:
            nodes[each.about] = _Nodes(fitting.get(each.form, {}))
        shares[each.form] = _Share(each, nodes[each.about])
    counted = [each for each in shares.values() if each.entry.counted and _begun(each.entry) < _ended(each.entry)]
    come, leave = defaultdict[float, list[_Share]](list), defaultdict[float, list[str]](list)
    for share in counted:
        come[_begun(share.entry)].append(share)
        leave[_ended(share.entry)].append(share.entry.form)
    sharing = _Sharing()
    for moment in sorted({*come, *leave}):
        # Who is there still leaves at no time, but for those for whom nobody is there any more.
        left = [form for form in leave.get(moment, ()) if moment < inf or form in gone]
        sharing.change(left, come.get(moment, ()))
    return {form: share.parts() for form, share in shares.items()}


def remembered(former: tuple[Reserved, ...], reserved: tuple[Reserved, ...], now: datetime) -> tuple[Reserved, ...]:
    """Of those that were, those that are remembered: of a few more than `needed` nothing follows."""
    if not former or len(former) % LOOKED_THROUGH:
        return former
    return needed(former, reserved, now)[-MOST_FORMER:]


def needed(former: tuple[Reserved, ...], reserved: tuple[Reserved, ...], now: datetime) -> tuple[Reserved, ...]:
    """Of those that were, those of which it follows what one has that is not over."""
    every = (*reserved, *former)
    forms = defaultdict[str, list[Reserved]](list)
    for each in every:
        forms[each.id].append(each)
    ids = {each.id for each in reserved if each.times(now) is not None}
    found, last = set[str](), list(ids)
    while last:
        for form in forms[last.pop()]:
            beside = [each for each in every if _lived_beside(form, each) and form.meets(each)]
            found |= {each.form for each in (*beside, form)}
            more = {each.id for each in beside} - ids
            ids |= more
            last += more
    return tuple(each for each in former if each.form in found)


def _lived_beside(one: Reserved, other: Reserved) -> bool:
    return _begun(one) < _ended(other) and _begun(other) < _ended(one)


def _begun(entry: Reserved) -> float:
    """Since when it is as it is; of those of before that was noted, 0."""
    since = entry.since or entry.made_at
    return 0.0 if since is None else since.timestamp()


def _ended(entry: Reserved) -> float:
    """Until when it has a share; `inf` where it has one."""
    ends = [moment.timestamp() for moment in (entry.until, entry.gone_since) if moment is not None]
    return min(ends, default=inf)
