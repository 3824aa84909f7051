"""Where a workload may go for which nobody named a cluster. Pure.

Until its first pod is bound, all that waits of it stands at one of the clusters that could run it: by that one it is
told why it waits, and what is kept or taken back is so there first. What has room elsewhere is bound elsewhere. Once a
pod is bound, its cluster is that pod's.

Clusters of a kind that really runs programs go before simulated ones, and this machine before all: what is simulated
there would look as if it had run. Of one kind, those go first that have room for all of it now, in the earliest of its
node pools; then those with the most room; then those that could hold the most of it, and last by name.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from events.cluster import ClusterKind
from services.scheduler.candidates import refused_by
from services.scheduler.planning import Planning, Policy, pools_to_try
from services.scheduler.policy.phases import explain, release
from services.scheduler.room import View
from services.scheduler.snapshot import PodClass, Queue, Snapshot

_KINDS: Final[tuple[ClusterKind, ...]] = ("local", "kubernetes", "simulated")
"""In their order."""


def standing(snapshot: Snapshot, policy: Policy) -> Snapshot:
    """The same, where what may go to several clusters stands at one of them."""
    if not any(queue.pod_class.among for queue in snapshot.queues):
        return snapshot
    stands = Stands(snapshot, policy)
    return replace(snapshot, queues=tuple(stands.queue(each) for each in snapshot.queues))


class Stands:
    """As of one snapshot."""

    def __init__(self, snapshot: Snapshot, policy: Policy) -> None:
        self._planning = Planning(replace(snapshot, queues=()), policy, 0)
        release.run(self._planning)

    def queue(self, queue: Queue) -> Queue:
        if not queue.pod_class.among:
            return queue
        return replace(queue, pod_class=self.of(queue.pod_class), kept_as=queue.pod_class)

    def of(self, pod_class: PodClass) -> PodClass:
        """A class that stands at the cluster to which it goes first; `among`: those to which it may go, in order."""
        if not pod_class.among or pod_class.cluster_id:
            return pod_class
        clusters = self._planning.snapshot.clusters
        there = [id_ for id_ in pod_class.among if (view := clusters.get(id_)) is not None and view.exists]
        ranks = {id_: self._rank(pod_class.on(id_)) for id_ in there}
        able = [rank.kind for rank in ranks.values() if not rank.lacks]
        # Where none of a kind that goes before could ever hold it, the next kind may; not where those are only full.
        fit = [id_ for id_ in there if not able or (not ranks[id_].lacks and ranks[id_].kind == min(able))]
        order = tuple(sorted(fit, key=lambda id_: ranks[id_].key)) or pod_class.among
        return replace(pod_class, cluster_id=order[0], among=order)

    def _rank(self, option: PodClass) -> "_Rank":
        planning, view = self._planning, self._planning.snapshot.clusters[option.cluster_id]
        parts = [(option.part(each), each.needed) for each in option.gang] or [(option, 1)]
        lacks, fits, most, free, first = False, True, 0, 0, 0
        for part, needed in parts:
            pools = pools_to_try(planning.snapshot, part)
            able = [_able(planning, part, pool) for pool in pools]
            held = sum(explain.held_when_empty(each) for each in able)
            rooms = [0] * len(able)
            if view.connected:
                rooms = [_room_for(planning, each) for each in able]
            lacks, fits = lacks or held < needed, fits and sum(rooms) >= needed
            most, free = most + held, free + sum(rooms)
            first = max(first, next((n for n, count in enumerate(rooms) if count), len(rooms)))
        return _Rank(
            _KINDS.index(view.kind), lacks, view.connected, first if fits else 0, free if fits else 0, most, view.name
        )


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


def _able(planning: Planning, part: PodClass, pool: str) -> View:
    """The nodes of a pool that could run such a pod when empty."""
    every = explain.nodes_of(planning, part, (pool,))
    filters = [each for each in planning.policy.filters if each.asks(part.request)]
    return every.at(~(explain.barred_in(every, filters) | explain.too_small_in(every, filters)))


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
