"""Which requests for GPUs have come: what a scheduler may know of those that will. Pure.

It follows from the log alone. Old evidence counts less and less, so that a new habit shows within days. Kept beside
the fold's snapshot.
"""

from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from events.workload.spec import PodRequest

HALVED_AFTER: Final = timedelta(days=7)
"""A pod that came so long before the newest counts half."""
MOST_KEPT: Final = 256
"""Shapes that are counted; once there are twice as many, the rarest are forgotten."""
MOST_TOLD: Final = 64
"""The most frequent ones, that decisions look at: their cost grows with them."""
MOST_EXPRESSIONS: Final = 20
"""Of a node affinity: a longer one is passed over, and the shape counts as one that goes anywhere."""
_RAISED: Final = 64
"""Half-lives after which all weights are written anew, long before they leave the numbers."""
NEVER: Final = datetime.min.replace(tzinfo=UTC)


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """Pods that are alike for whoever looks for room for GPUs."""

    cluster_id: str = ""
    """Empty: any."""
    pools: tuple[str, ...] = ()
    """Those that the workload names; empty: any."""
    request: PodRequest


class Weighed(NamedTuple):
    """A shape, and how many pods of it have come; older ones count less."""

    shape: Shape
    weight: float


class _Kept(msgspec.Struct, frozen=True):
    """As it is stored."""

    epoch: datetime
    newest: datetime
    weights: tuple[tuple[Shape, float], ...]


class Mix:
    """Mutable; part of the fold."""

    __slots__ = ("_epoch", "_newest", "_told", "_weights")

    def __init__(self) -> None:
        self._epoch = self._newest = NEVER
        """A pod that came at the epoch has the weight 1, one that came a half-life later the weight 2."""
        self._weights: dict[Shape, float] = {}
        self._told: tuple[Weighed, ...] | None = ()

    def add(self, shape: Shape, pods: int, at: datetime) -> None:
        """So many pods have come."""
        if not shape.request.gpu_devices:
            return
        if not self._weights:
            self._epoch = self._newest = at
        self._newest = max(self._newest, at)
        age = _halves(self._epoch, at)
        if age > _RAISED:
            self._weights = {shape: weight * 0.5**age for shape, weight in self._weights.items()}
            self._epoch, age = at, 0.0
        self._weights[shape] = self._weights.get(shape, 0.0) + pods * 2.0 ** max(age, -_RAISED)
        if len(self._weights) > 2 * MOST_KEPT:
            self._weights = dict(self._heaviest(MOST_KEPT))
        self._told = None

    def told(self) -> tuple[Weighed, ...]:
        """The most frequent shapes, the most frequent first. The newest pods count as one each."""
        if self._told is None:
            one = 2.0 ** _halves(self._epoch, self._newest)
            self._told = tuple(Weighed(shape, weight / one) for shape, weight in self._heaviest(MOST_TOLD))
        return self._told

    def copy(self) -> "Mix":
        """Changes of it reach nobody else."""
        mix = Mix()
        mix._epoch, mix._newest = self._epoch, self._newest
        mix._weights, mix._told = dict(self._weights), self._told
        return mix

    def stored(self) -> bytes:
        """For a snapshot of the fold."""
        kept = _Kept(self._epoch, self._newest, tuple(self._weights.items()))
        return msgspec.msgpack.encode(kept)

    @staticmethod
    def restored(stored: bytes) -> "Mix":
        """What was stored; nothing has come where that cannot be read."""
        mix = Mix()
        try:
            kept = msgspec.msgpack.decode(stored, type=_Kept)
        except msgspec.MsgspecError:
            return mix
        if kept.weights:
            mix._epoch, mix._newest = kept.epoch, kept.newest
            mix._weights, mix._told = dict(kept.weights), None
        return mix

    def _heaviest(self, count: int) -> list[tuple[Shape, float]]:
        return sorted(self._weights.items(), key=lambda each: -each[1])[:count]


def shape_of(request: PodRequest, *, cluster_id: str = "", pools: tuple[str, ...] = ()) -> Shape:
    """What counts of a request here."""
    expressions = sum(len(term.match_expressions) for term in request.node_terms or ())
    terms = request.node_terms if expressions <= MOST_EXPRESSIONS else None
    return Shape(
        cluster_id=cluster_id, pools=pools, request=replace(request, extended=(), tolerated=(), node_terms=terms)
    )


def _halves(since: datetime, at: datetime) -> float:
    return (at - since) / HALVED_AFTER
