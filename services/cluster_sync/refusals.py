"""What of each agent's words was not taken lately, for its cluster to show. Bounded, and without a clock of its own."""

from collections.abc import Sequence
from typing import Final

from events.cluster import RefusedReport

EXPIRE_SECONDS: Final = 120.0
"""Agents say everything again every 30 s: what was not refused for so long is over."""
MOST_SHOWN: Final = 10
"""Broken rules of one cluster; who mends these sees the others."""

type Kind = tuple[str, str, str]


class Refusals:
    """Times are monotonic seconds. `known` is what the log says of the cluster: it stands until it expires."""

    def __init__(self) -> None:
        self._by_cluster: dict[str, dict[Kind, tuple[float, RefusedReport]]] = {}

    def note(self, cluster_id: str, known: Sequence[RefusedReport], report: RefusedReport, now: float) -> bool:
        """Whether this rule was not broken before."""
        noted = self._of(cluster_id, known, now)
        new = report.kind not in noted
        if not new or len(noted) < MOST_SHOWN:
            noted[report.kind] = (now, report)
        return new and report.kind in noted

    def current(self, cluster_id: str, known: Sequence[RefusedReport], now: float) -> tuple[RefusedReport, ...]:
        noted = self._of(cluster_id, known, now)
        return tuple(noted[kind][1] for kind in sorted(noted))

    def _of(
        self, cluster_id: str, known: Sequence[RefusedReport], now: float
    ) -> dict[Kind, tuple[float, RefusedReport]]:
        noted = self._by_cluster.get(cluster_id)
        if noted is None:
            noted = {report.kind: (now, report) for report in known}
        noted = {kind: entry for kind, entry in noted.items() if now - entry[0] <= EXPIRE_SECONDS}
        self._by_cluster[cluster_id] = noted
        return noted
