"""What is planned for nodes of clusters, and what that means for them at a moment. Part of the fold; no clock of its
own.

What it costs follows from what changes: a node that changes is compared with the entries of its cluster, and columns
are made anew only after something did.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import numpy as np

from events.aggregate import Chain
from events.cluster import Cluster
from events.maintenance import Maintenance
from events.node import BeginMaintenance, EndMaintenance, MaintenanceOf, Node
from services.scheduler.snapshot import Booleans, Closing, NodeMark


class Calendar:
    """Mutable."""

    def __init__(self) -> None:
        self._planned: dict[str, tuple[Maintenance, ...]] = {}
        """By id of a cluster that exists."""
        self._covered: dict[str, set[str]] = {}
        """By id of an entry: keys of the nodes that it is about."""
        self._opened: dict[str, set[str]] = {}
        """Of these the nodes that it took out of service, and that somebody let pods on again."""
        self._out: dict[str, MaintenanceOf] = {}
        """By key of a node: for which it is cordoned, or drained."""
        self._masks: dict[tuple[str, bool], Booleans] = {}
        """By id of an entry, and whether it has begun, of as many rows as there were nodes."""

    def set_cluster(self, cluster: Cluster, nodes: Mapping[str, Chain[Any]]) -> None:
        """What is planned for it is otherwise now."""
        planned = cluster.maintenance if cluster.exists else ()
        before = self._planned.get(cluster.cluster_id, ())
        if planned == before:
            return
        for each in before:
            self._covered.pop(each.id, None)
            self._opened.pop(each.id, None)
        self._masks.clear()
        self._planned.pop(cluster.cluster_id, None)
        if planned:
            self._planned[cluster.cluster_id] = planned
            for key, chain in nodes.items():
                if chain.state.cluster_id == cluster.cluster_id:
                    self._set(key, chain.state)

    def set_node(self, key: str, before: Node, after: Node) -> None:
        of = after.cordoned_for or (None if after.drain is None else after.drain.maintenance)
        if of is not None:
            self._out[key] = of
        else:
            self._out.pop(key, None)
        same = before.facts is after.facts and before.present == after.present
        if same and (before.maintained, before.cordoned_for) == (after.maintained, after.cordoned_for):
            return
        if after.cluster_id in self._planned:
            self._masks.clear()
            self._set(key, after)

    def _set(self, key: str, node: Node) -> None:
        for each in self._planned[node.cluster_id]:
            covered, opened = self._covered.setdefault(each.id, set()), self._opened.setdefault(each.id, set())
            (covered.add if node.present and each.covers(node) else covered.discard)(key)
            is_out = node.cordoned_for is not None and node.cordoned_for.id == each.id
            (opened.add if node.maintained == each.id and not is_out else opened.discard)(key)

    def marks(self, nodes: Mapping[str, Chain[Any]], now: datetime) -> tuple[NodeMark, ...]:
        """What is to be done to nodes now."""
        found: list[NodeMark] = []
        for entry in self._all():
            if entry.is_on(now):
                of = MaintenanceOf(id=entry.id, name=entry.name)
                begin = BeginMaintenance(maintenance=of, by=entry.planned_by, force=entry.force)
                found += (
                    NodeMark(key, nodes[key].state.name, begin)
                    for key in self._covered.get(entry.id, ())
                    if nodes[key].state.maintained != entry.id
                )
        if self._out:
            known = {entry.id: entry for entry in self._all()}
            for key, of in self._out.items():
                entry = known.get(of.id)
                # By the clock of another scheduler it may have begun: nothing is undone before it is over.
                if entry is None or entry.is_over(now) or key not in self._covered.get(of.id, ()):
                    found.append(NodeMark(key, nodes[key].state.name, EndMaintenance(id=of.id)))
        return tuple(sorted(found, key=lambda mark: (mark.node_key, isinstance(mark.command, BeginMaintenance))))

    def closings(self, rows: Mapping[str, int], now: datetime) -> tuple[Closing, ...]:
        """Those that matter now. Args: rows, by key of a node."""
        found = [self._closing(entry, rows, now) for entry in self._all() if _matters(entry, now)]
        on = {entry.id for entry in self._all() if entry.is_on(now)}
        left = [key for key, of in self._out.items() if of.id not in on]
        for name in sorted({self._out[key].name for key in left}):
            mask = np.zeros(len(rows), dtype=np.bool_)
            mask[[rows[key] for key in left if self._out[key].name == name]] = True
            found.append(Closing(f"maintenance {name}", mask, now, now, 0.0))
        return tuple(found)

    def next_change(self, now: datetime) -> datetime | None:
        """When something begins, or is over, next."""
        times = (at for entry in self._all() for at in (entry.starts_at, entry.ends_at) if at > now)
        return min(times, default=None)

    def passed(self, since: datetime, now: datetime) -> bool:
        """Whether anything began, or was over, in between."""
        return any(since < at <= now for entry in self._all() for at in (entry.starts_at, entry.ends_at))

    def _all(self) -> Iterator[Maintenance]:
        for cluster_id in sorted(self._planned):
            yield from self._planned[cluster_id]

    def _closing(self, entry: Maintenance, rows: Mapping[str, int], now: datetime) -> Closing:
        left = max((entry.starts_at - now).total_seconds(), 0.0)
        on = not left
        mask = self._masks.get((entry.id, on))
        if mask is None or len(mask) != len(rows):
            mask = np.zeros(len(rows), dtype=np.bool_)
            covered = self._covered.get(entry.id, set())
            mask[[rows[key] for key in (covered - self._opened.get(entry.id, set()) if on else covered)]] = True
            self._masks[entry.id, on] = mask
        return Closing(f"maintenance {entry.name}", mask, entry.starts_at, entry.ends_at, left)


def _matters(entry: Maintenance, now: datetime) -> bool:
    return now < entry.ends_at and (entry.starts_at - now).total_seconds() <= entry.lead_seconds
