"""Who is heard in which lane: those that say very much are read apart, so that nobody else waits behind them. Pure:
times are arguments, in monotonic seconds.
"""

from collections.abc import Iterable
from typing import Final, Literal

from events.subjects import ALL_OBSERVED, observed_filter
from services.runtime.process.buckets import Buckets

WORDS_PER_SECOND: Final = 2_000
"""Of one cluster in the long run: twice what its agent says again at most (services/agent/reports.py)."""
WORDS_AT_ONCE: Final = 10_000
"""A second or two of reading, which others may have to wait once."""
CALM_SECONDS: Final = 60.0
"""Without more than that, until a loud cluster is heard with all others again: each change has both lanes told anew."""
MOST_FILTERS: Final = 250
"""Clusters that one consumer is told one by one. NATS compares each with each while nothing else is answered: with 300
that takes 0.06 s, with 1,000 2.3 s, with 3,000 18 s."""

Lane = Literal["quiet", "loud"]


class Lanes:
    """The registered clusters, and which of them are loud. A loud one is heard, too, but only beside its like."""

    def __init__(self) -> None:
        self._clusters: frozenset[str] = frozenset()
        self._words = Buckets(size=WORDS_AT_ONCE, per_second=WORDS_PER_SECOND)
        self._loud: dict[str, float] = {}
        """When it said too much last."""

    def know(self, clusters: Iterable[str]) -> None:
        self._clusters = frozenset(clusters)
        self._loud = {cluster: at for cluster, at in self._loud.items() if cluster in self._clusters}

    def said(self, cluster_id: str, words: int, now: float) -> bool:
        """Whether that makes it a loud one, which it was not before."""
        if self._words.wait_seconds(cluster_id, now) == 0.0:
            self._words.take(cluster_id, words, now)
            if self._words.wait_seconds(cluster_id, now) == 0.0:
                return False
        if cluster_id not in self._clusters:
            return False
        before = cluster_id in self._loud
        self._loud[cluster_id] = now
        return not before

    def calm(self, now: float) -> list[str]:
        """Those that are loud no more."""
        calm = [cluster for cluster, at in self._loud.items() if now - at >= CALM_SECONDS]
        for cluster in calm:
            del self._loud[cluster]
        return calm

    def heard_in(self, lane: Lane) -> frozenset[str]:
        return frozenset(self._loud) if lane == "loud" else self._clusters - self._loud.keys()

    def filters(self, lane: Lane) -> frozenset[str]:
        """What its consumer reads: of very many clusters, what all say. Words of the other lane are then passed by."""
        clusters = self.heard_in(lane)
        if len(clusters) > MOST_FILTERS:
            return frozenset({ALL_OBSERVED})
        return frozenset(map(observed_filter, clusters))
