"""Where a workload may go for which nobody named a cluster. Pure.

Until its first pod is bound, all that waits of it stands at one of the clusters that could run it: by that one it is
told why it waits, and what is kept or taken back is so there first. What has room elsewhere is bound elsewhere. Once a
pod is bound, its cluster is that pod's.

Clusters of a kind that really runs programs go before simulated ones, and this machine before all: what is simulated
there would look as if it had run. Of one kind, those go first that have room for all of it now, in the earliest of its
node pools; then those with the most room; then those that could hold the most of it, and last by name.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from events.cluster import ClusterKind
from events.workload.spec import PodRequest
from services.scheduler.candidates import refused_by
from services.scheduler.planning import Planning, Policy, minimum_of
from services.scheduler.policy.phases import explain, release
from services.scheduler.policy.seen import Seen
from services.scheduler.room import View
from services.scheduler.snapshot import Closing, PodClass, Queue, Snapshot

_KINDS: Final[tuple[ClusterKind, ...]] = ("local", "kubernetes", "simulated")
"""In their order."""
type Bits = NDArray[np.uint8]


class Known:
    """What was found out before, which holds as long as all that it was found out from is the same. Mutable: it is of
    one fold, and decides nothing.
    """

    def __init__(self) -> None:
        self.seen = Seen()
        self.stood: dict[PodClass, _Stood] = {}


def standing(snapshot: Snapshot, policy: Policy, known: Known) -> Snapshot:
    """The same, where what may go to several clusters stands at one of them. It costs next to nothing for classes that
    waited before, where no cluster has changed.
    """
    waiting = [queue.pod_class for queue in snapshot.queues if queue.pod_class.among]
    known.stood = {each: stood for each in waiting if (stood := known.stood.get(each)) is not None}
    if not waiting:
        return snapshot
    stands = Stands(snapshot, policy, known)
    return replace(snapshot, queues=tuple(stands.queue(each) for each in snapshot.queues))


class Stands:
    """As of one snapshot.

    Args:
        known: by the snapshots before of the same fold.
    """

    def __init__(self, snapshot: Snapshot, policy: Policy, known: Known | None = None) -> None:
        self._planning = Planning(replace(snapshot, queues=()), policy, 0)
        release.run(self._planning)
        self._known = Known() if known is None else known
        self._seen = self._known.seen
        self._seen.look(self._planning)

    def queue(self, queue: Queue) -> Queue:
        if not queue.pod_class.among:
            return queue
        return replace(queue, pod_class=self.of(queue.pod_class), kept_as=queue.pod_class)

    def of(self, pod_class: PodClass) -> PodClass:
        """A class that stands at the cluster to which it goes first; `among`: those to which it may go, in order."""
        if not pod_class.among or pod_class.cluster_id:
            return pod_class
        project = self._planning.snapshot.projects.get(pod_class.project_id)
        closings = self._planning.snapshot.nodes.closings
        minimum = minimum_of(self._planning.snapshot, pod_class)
        kept_away = tuple(number for number, each in enumerate(closings) if each.refuses(pod_class, minimum))
        about = (() if project is None else project.pools, kept_away)
        stood = self._known.stood.get(pod_class)
        if stood is None or stood.about != about:
            stood = self._known.stood[pod_class] = _Stood(about, {})
        if stood.at is None or stood.number != self._seen.number:
            stood.at, stood.number = self._stands(pod_class, stood), self._seen.number
        return stood.at

    def _stands(self, pod_class: PodClass, stood: "_Stood") -> PodClass:
        clusters = self._planning.snapshot.clusters
        there = [id_ for id_ in pod_class.among if (view := clusters.get(id_)) is not None and view.exists]
        ranks = {id_: self._rank(pod_class, stood, id_) for id_ in there}
        able = [rank.kind for rank in ranks.values() if not rank.lacks]
        # Where none of a kind that goes before could ever hold it, the next kind may; not where those are only full.
        fit = [id_ for id_ in there if not able or (not ranks[id_].lacks and ranks[id_].kind == min(able))]
        order = tuple(sorted(fit, key=lambda id_: ranks[id_].key)) or pod_class.among
        return replace(pod_class, cluster_id=order[0], among=order)

    def _rank(self, pod_class: PodClass, stood: "_Stood", cluster_id: str) -> "_Rank":
        """Found out anew where something changed there since."""
        numbers, ranked = self._seen.numbers(cluster_id), stood.ranked.get(cluster_id)
        if ranked is None or ranked.built != numbers.built:
            parts = [self._part(*part, cluster_id) for part in _parts(pod_class, stood.about[0])]
        elif ranked.free != numbers.free:
            parts = ranked.parts
        else:
            return ranked.rank
        closings = self._planning.snapshot.nodes.closings
        rank = self._rank_of(parts, cluster_id, tuple(closings[number] for number in stood.about[1]))
        stood.ranked[cluster_id] = _Ranked(numbers.built, numbers.free, parts, rank)
        return rank

    def _part(self, pools: tuple[str, ...], request: PodRequest, needed: int, cluster_id: str) -> "_Part":
        """What does not change while pods come and go."""
        there = self._planning.snapshot.clusters[cluster_id].pools
        tried = [pool for pool in pools if pool in there] if pools else there
        filters = [each for each in self._planning.policy.filters if each.asks(request)]
        held, able = 0, list[tuple[str, Bits]]()
        for pool in tried:
            every = View(self._planning.room, request, self._seen.rows(cluster_id, pool))
            which = ~(explain.barred_in(every, filters) | explain.too_small_in(every, filters))
            held += explain.held_when_empty(every.at(which))
            able.append((pool, np.packbits(which)))
        return _Part(request, needed, held, able)

    def _room_for(self, part: "_Part", cluster_id: str, closings: tuple[Closing, ...]) -> list[int]:
        """By pool."""
        rooms: list[int] = []
        for pool, able in part.able:
            rows = self._seen.rows(cluster_id, pool)
            rows = rows[np.unpackbits(able, count=len(rows)).view(np.bool_)]
            rooms.append(_room_for(self._planning, View(self._planning.room, part.request, rows, closings=closings)))
        return rooms

    def _rank_of(self, parts: Sequence["_Part"], cluster_id: str, closings: tuple[Closing, ...]) -> "_Rank":
        view = self._planning.snapshot.clusters[cluster_id]
        lacks, fits, most, free, first = False, True, 0, 0, 0
        for part in parts:
            rooms = self._room_for(part, cluster_id, closings) if view.connected else [0] * len(part.able)
            lacks, fits = lacks or part.held < part.needed, fits and sum(rooms) >= part.needed
            most, free = most + part.held, free + sum(rooms)
            first = max(first, next((n for n, count in enumerate(rooms) if count), len(rooms)))
        return _Rank(
            _KINDS.index(view.kind), lacks, view.connected, first if fits else 0, free if fits else 0, most, view.name
        )


def _parts(pod_class: PodClass, of_project: tuple[str, ...]) -> list[tuple[tuple[str, ...], PodRequest, int]]:
    """The pools of each part, its request, and how many of its pods are needed."""
    parts = [(each.pools, each.request, each.needed) for each in pod_class.gang]
    return [
        (pools or of_project, request, needed)
        for pools, request, needed in parts or [(pod_class.pools, pod_class.request, 1)]
    ]


class _Part(NamedTuple):
    request: PodRequest
    needed: int
    held: int
    """How many such pods its nodes could hold when empty."""
    able: list[tuple[str, Bits]]
    """By pool: which of its nodes could run such a pod when empty, a bit each: much may wait, for many nodes."""


class _Ranked(NamedTuple):
    built: int
    free: int
    """As of Numbers, when it was found out."""
    parts: "list[_Part]"
    rank: "_Rank"


@dataclass(slots=True)
class _Stood:
    about: tuple[tuple[str, ...], tuple[int, ...]]
    """What it was found out from beside clusters: the pools of its project, and numbers of the closings that keep it
    away.
    """
    ranked: dict[str, _Ranked]
    """By id of a cluster."""
    at: PodClass | None = None
    number: int = 0
    """As of Seen, when that was found out."""


@dataclass(frozen=True, slots=True)
class _Rank:
    kind: int
    lacks: bool
    """Whether it could never hold it, also when nothing else ran there."""
    connected: bool
    first: int
    """Number of the first of its node pools that has room; 0 where no room is there for all of it."""
    free: int
    """How many such pods there is room for now; 0 where there is none for all of it, so that who waits stays there."""
    most: int
    """And when nothing else runs there."""
    name: str

    @property
    def key(self) -> tuple[int, bool, bool, bool, int, int, int, str]:
        return (
            self.kind,
            self.lacks,
            not self.connected,
            not self.free,
            self.first,
            -self.free,
            -self.most,
            self.name,
        )


def _room_for(planning: Planning, able: View) -> int:
    """About how many such pods there is room for now on these nodes; at least 1 for each node that has room."""
    request, room, rows = able.request, able.room, able.rows
    filters = [each for each in planning.policy.filters if each.asks(request)]
    checks = [check for each in filters for check in (each.closed, each.full) if check is not None]
    counts = room.pods[rows]
    amounts = [(room.cpu, request.cpu_milli), (room.memory, request.memory_bytes)]
    amounts += [
        (free, each.amount) for each in request.extended if (free := room.extended.get(each.resource)) is not None
    ]
    for free, amount in amounts:
        if amount:
            counts = np.minimum(counts, free[rows] // amount)
    if request.gpu_devices:
        shares = np.maximum(room.devices[rows], 0) // np.maximum(able.share_milli, 1)[:, None]
        counts = np.minimum(counts, shares.sum(axis=1) // request.gpu_devices)
    return int(np.where(refused_by(checks, able), 0, np.maximum(counts, 1)).sum())


def options(planning: Planning, pod_class: PodClass, key: str) -> Iterator[PodClass]:
    """The clusters to which pods of a workload (by its key) may go, in order; only one, where this plan has put others
    there.
    """
    chosen = planning.choices.chosen.get(key)
    if not pod_class.among:
        yield pod_class
    elif chosen is not None:
        yield pod_class.on(chosen)
    else:
        yield from (pod_class.on(id_) for id_ in pod_class.among)
