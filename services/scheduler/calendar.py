"""What is planned for nodes of clusters, and what that means for them at a moment. Part of the fold; no clock of its
own.

What it costs follows from what changes: a node that changes is compared with the entries of its cluster, and columns
are made anew only after something did.
"""

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta
from typing import Any, Final

import numpy as np

from events.aggregate import Chain
from events.cluster import Cluster
from events.department import DEFAULT_DEPARTMENT_ID, Department
from events.maintenance import Maintenance
from events.node import MOST_MAINTAINED, BeginMaintenance, EndMaintenance, MaintenanceOf, Node
from events.phases import WaitingReason
from events.project import Project
from events.reserved import WEEK, Reserved, Times
from events.reserved_shares import KeptFor, Parts, shared_out
from events.workload.spec import MAX_GRACE_SECONDS
from events.workload.state import Workload
from services.scheduler.classes import labels_of
from services.scheduler.snapshot import Booleans, Closing, Holder, Labelled, NodeMark, PodClass

LONGEST_GRACE: Final = timedelta(seconds=MAX_GRACE_SECONDS)
CLOCKS_APART: Final = timedelta(minutes=10)
"""No more than so the clocks of two schedulers differ. What began earlier than that began by a clock that was wrong."""


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
        self._reserved: dict[str, tuple[Reserved, ...]] = {}
        """By id of a cluster that exists."""
        self._former: dict[str, tuple[Reserved, ...]] = {}
        """Likewise, those that were, as long as it follows from them which nodes others have."""
        self.labelled: Labelled = ()
        """As of Snapshot."""
        self._projects: dict[str, str] = {}
        """By id of those that exist, the department: for others nothing is reserved. Likewise with departments."""
        self._departments: set[str] = {DEFAULT_DEPARTMENT_ID}
        self._fitting: dict[str, dict[str, Node]] = {}
        """By form of a reservation: the nodes, by key, that it may be about."""
        self._kept: dict[str, Parts] = {}
        """Likewise, those that are kept by it, as long as no node of the cluster changes."""
        self._found: tuple[object, tuple[NodeMark, ...]] | None = None
        """The marks, and by which state of the entries; None where a node or an entry changed since."""
        self._kept_now: tuple[object, dict[str, tuple[KeptFor, ...]]] | None = None
        """Likewise, what is kept."""
        self._masks: dict[tuple[str, bool], Booleans] = {}
        """By id of an entry, and whether it has begun, of as many rows as there were nodes."""

    def set_cluster(self, cluster: Cluster, nodes: Mapping[str, Chain[Any]]) -> None:
        """What is planned for it is otherwise now."""
        planned = cluster.maintenance if cluster.exists else ()
        reserved = cluster.reserved if cluster.exists else ()
        former = cluster.formerly_reserved if cluster.exists else ()
        before = self._planned.get(cluster.cluster_id, ())
        reserved_before = self._reserved.get(cluster.cluster_id, ())
        if (planned, reserved, former) == (before, reserved_before, self._former.get(cluster.cluster_id, ())):
            return
        for each in self._forms(cluster.cluster_id):
            self._fitting.pop(each.form, None)
            self._kept.pop(each.form, None)
        self._reserved.pop(cluster.cluster_id, None)
        self._former.pop(cluster.cluster_id, None)
        if reserved:
            self._reserved[cluster.cluster_id] = reserved
        if former:
            self._former[cluster.cluster_id] = former
        self.labelled = tuple(
            (each.id, each.workload_labels)
            for _, of in sorted(self._reserved.items())
            for each in of
            if each.workload_labels
        )
        for each in before:
            self._covered.pop(each.id, None)
            self._opened.pop(each.id, None)
        self._forget_found()
        self._planned.pop(cluster.cluster_id, None)
        if planned:
            self._planned[cluster.cluster_id] = planned
        if planned or reserved:
            for key, chain in nodes.items():
                if chain.state.cluster_id == cluster.cluster_id:
                    self._set(key, chain.state)

    def set_project(self, before: Project, after: Project) -> None:
        was = self._projects.pop(before.project_id, None)
        if after.exists:
            self._projects[after.project_id] = after.department_id
        if was != self._projects.get(after.project_id):
            self._forget_kept(after.project_id or before.project_id)

    def set_department(self, before: Department, after: Department) -> None:
        if before.department_id != DEFAULT_DEPARTMENT_ID:
            self._departments.discard(before.department_id)
        if after.exists:
            self._departments.add(after.department_id)
        if before.exists != after.exists:
            self._forget_kept(after.department_id or before.department_id)

    def _forget_kept(self, id_: str) -> None:
        """A project or department came, went or changed: what was reserved for it, others may have."""
        forms = (each for of in (*self._reserved.values(), *self._former.values()) for each in of)
        if any(id_ in (each.project_id, each.department_id) for each in forms):
            self._kept.clear()
        self._forget_found()

    def is_for(self, entry: Reserved, state: Workload) -> bool:
        """Whether such a workload may use what is reserved."""
        department_id = self._projects.get(state.project_id, "")
        return entry.is_for(state.project_id, department_id) and entry.fits_labels(labels_of(state))

    def set_node(self, key: str, before: Node, after: Node) -> None:
        of = after.out_for
        if self._out.get(key) != of or before.drain is not after.drain:
            self._forget_found()
        if of is not None:
            self._out[key] = of
        else:
            self._out.pop(key, None)
        same = before.facts is after.facts and before.present == after.present
        if same and (before.maintained, before.cordoned) == (after.maintained, after.cordoned):
            return
        if after.cluster_id in self._planned or after.cluster_id in self._reserved:
            self._forget_found()
            self._set(key, after)

    def _forget_found(self) -> None:
        self._masks.clear()
        self._found = self._kept_now = None

    def _set(self, key: str, node: Node) -> None:
        forms, another = self._forms(node.cluster_id), False
        for each in forms:
            fitting = self._fitting.setdefault(each.form, {})
            before, after = fitting.pop(key, None), node if each.fits(node) else None
            if after is not None:
                fitting[key] = after
            another = another or _chosen_by(before) != _chosen_by(after)
        for each in forms if another else ():
            self._kept.pop(each.form, None)  # of each: what one has, another has not
        for each in self._planned.get(node.cluster_id, ()):
            covered, opened = self._covered.setdefault(each.id, set()), self._opened.setdefault(each.id, set())
            begun = node.begun(each.itself)
            # One that is taken away meanwhile, and comes back, is still meant.
            (covered.add if (node.present or begun) and each.covers(node) else covered.discard)(key)
            (opened.add if begun and not node.cordoned else opened.discard)(key)

    def marks(self, nodes: Mapping[str, Chain[Any]], now: datetime) -> tuple[NodeMark, ...]:
        """What is to be done to nodes now; of each node one thing, and the next plan does what comes after."""
        if not (self._planned or self._out):
            return ()
        state = [(entry.id, entry.is_on(now), entry.is_over(now), _is_far(entry, now)) for entry in self._all()]
        if self._found is None or self._found[0] != state:
            found: dict[str, NodeMark] = {}
            for mark in self._marks(nodes, now):
                found.setdefault(mark.node_key, mark)
            self._found = state, tuple(found[key] for key in sorted(found))
        return self._found[1]

    def _marks(self, nodes: Mapping[str, Chain[Any]], now: datetime) -> Iterator[NodeMark]:
        out: set[str] = set()
        """Nodes that some maintenance is to have now."""
        known = {entry.id: entry for entry in self._all()}
        for entry in self._all():
            if entry.is_on(now):
                of = entry.itself
                for key in self._out_by(entry):
                    out.add(key)
                    node: Node = nodes[key].state
                    if node.present and (not node.begun(of) or node.spares(of, force=entry.force)):
                        over = _over(node, known, now) if len(node.maintained) >= MOST_MAINTAINED else ()
                        begin = BeginMaintenance(maintenance=of, by=entry.planned_by, force=entry.force, over=over)
                        yield NodeMark(key, node.name, begin)
        for key, of in self._out.items():
            if key in out:
                continue
            node = nodes[key].state
            again = tuple(
                id_ for id_ in node.maintained if id_ in known and self._comes_again(key, node, known[id_], now)
            )
            entry = known.get(of.id)
            if entry is None or entry.is_over(now) or of.id in again:
                yield NodeMark(key, node.name, EndMaintenance(id=of.id, again=again))

    def _comes_again(self, key: str, node: Node, entry: Maintenance, now: datetime) -> bool:
        """Whether it has a node out of service that it is not about, or that it is to have later."""
        if entry.is_over(now):
            return False
        if key not in self._covered.get(entry.id, ()):
            return True
        if entry.starts_at <= now:
            return False
        # By the clock of another scheduler it may have begun: that is undone only where it is surely too early.
        later = not node.begun(entry.itself)
        return later or (_is_far(entry, now) and node.undone.get(entry.id) != entry.starts_at)

    def _out_by(self, entry: Maintenance) -> set[str]:
        """Keys of nodes that it has out of service while it goes on."""
        return self._covered.get(entry.id, set()) - self._opened.get(entry.id, set())

    def closings(self, rows: Mapping[str, int], now: datetime) -> tuple[Closing, ...]:
        """Those that matter now. Args: rows, by key of a node."""
        found = [self._closing(entry, rows, now) for entry in self._all() if _matters(entry, now)]
        on = {entry.id for entry in self._all() if entry.is_on(now)}
        left = [key for key, of in self._out.items() if of.id not in on]
        for name in sorted({self._out[key].name for key in left}):
            mask = np.zeros(len(rows), dtype=np.bool_)
            mask[[rows[key] for key in left if self._out[key].name == name]] = True
            found.append(Closing(f"maintenance {name}", mask, now, now, 0.0))
        found += self._reservations(rows, now)
        return tuple(found)

    def _reservations(self, rows: Mapping[str, int], now: datetime) -> Iterator[Closing]:
        for cluster_id, entry, times in self._times(now):
            left = max((times.starts_at - now).total_seconds(), 0.0)
            if left > max(entry.lead_seconds, MAX_GRACE_SECONDS):
                continue
            mask = self._masks.get((entry.id, False))
            if mask is None or len(mask) != len(rows):
                mask = self._masks[entry.id, False] = np.zeros(len(rows), dtype=np.bool_)
                mask[[rows[key] for key in self._nodes_of(cluster_id, entry)]] = True
            called = f"reservation {entry.name} for {entry.holder_told()}"
            reason = WaitingReason.CAPACITY_RESERVED
            firm_too = left <= entry.lead_seconds
            holder = Holder(entry.id, self._projects_of(entry), bool(entry.workload_labels))
            parts = {rows[key]: kept for key, kept in self._nodes_of(cluster_id, entry).items() if kept is not None}
            yield Closing(called, mask, times.starts_at, times.ends_at, left, reason, holder, parts, firm_too)

    def _projects_of(self, entry: Reserved) -> frozenset[str] | None:
        """As of Holder."""
        if not (entry.project_id or entry.department_id):
            return None
        return frozenset(id_ for id_, department_id in self._projects.items() if entry.is_for(id_, department_id))

    def _nodes_of(self, cluster_id: str, entry: Reserved) -> Parts:
        kept = self._kept.get(entry.id)
        if kept is None:
            gone = {each.form for each in self._reserved[cluster_id] if not self._lives(each)}
            self._kept |= shared_out(self._forms(cluster_id), self._fitting, gone)
            kept = self._kept[entry.id]
        return kept

    def _forms(self, cluster_id: str) -> tuple[Reserved, ...]:
        """All of its reservations that are or were."""
        return (*self._reserved.get(cluster_id, ()), *self._former.get(cluster_id, ()))

    def _lives(self, entry: Reserved) -> bool:
        """Whether those are there for whom it is."""
        known = not entry.project_id or entry.project_id in self._projects
        return known and (not entry.department_id or entry.department_id in self._departments)

    def _times(self, now: datetime) -> Iterator[tuple[str, Reserved, Times]]:
        """With the id of the cluster."""
        for cluster_id in sorted(self._reserved):
            for entry in self._reserved[cluster_id]:
                if self._lives(entry) and (times := entry.times(now)) is not None:
                    yield cluster_id, entry, times

    def kept_now(self, now: datetime) -> dict[str, tuple[KeptFor, ...]]:
        """By key of a node: for what only one project may use it now, or soon: others have their grace before."""
        on = [
            (cluster_id, KeptFor(entry, times.starts_at))
            for cluster_id, entry, times in self._times(now)
            if times.starts_at - LONGEST_GRACE <= now
        ]
        if self._kept_now is None or self._kept_now[0] != on:
            found: dict[str, tuple[KeptFor, ...]] = {}
            for cluster_id, kept in on:
                for key, devices in self._nodes_of(cluster_id, kept.entry).items():
                    found[key] = (*found.get(key, ()), kept._replace(devices=devices))
            self._kept_now = on, found
        return self._kept_now[1]

    def closes_at(self, cluster_id: str, keys: AbstractSet[str], pod_class: PodClass, now: datetime) -> datetime | None:
        """From when on an entry that is still to come, and closes none of these nodes to such pods yet, may do so."""
        coming = [
            (each.starts_at, each.lead_seconds)
            for each in self._planned.get(cluster_id, ())
            if now < each.starts_at and not keys.isdisjoint(self._covered.get(each.id, ()))
        ]
        for of_cluster, entry, times in self._times(now):
            if of_cluster != cluster_id or keys.isdisjoint(self._nodes_of(cluster_id, entry)):
                continue
            holder = Holder(entry.id, self._projects_of(entry), bool(entry.workload_labels))
            starts_at = times.starts_at if now < times.starts_at else times.starts_at + WEEK
            if (now < times.starts_at or entry.weekly) and not holder.has(pod_class):
                coming.append((starts_at, entry.lead_seconds))
        found: list[datetime] = []
        for starts_at, lead_seconds in coming:
            lasts = lead_seconds if pod_class.lasts_seconds is None else min(pod_class.lasts_seconds, lead_seconds)
            before = timedelta(seconds=pod_class.grace_seconds if pod_class.preemptible else lasts)
            if now < starts_at - before:
                found.append(starts_at - max(before, LONGEST_GRACE))
        return min(found, default=None)

    def next_change(self, now: datetime) -> datetime | None:
        """When something begins, or is over, next."""
        times = [at for entry in self._all() for at in (entry.starts_at, entry.ends_at) if at > now]
        times += [at for *_, of in self._times(now) for at in (of.starts_at - LONGEST_GRACE, *of) if at > now]
        return min(times, default=None)

    def passed(self, since: datetime, now: datetime) -> bool:
        """Whether anything began, or was over, in between."""
        planned = any(since < at <= now for entry in self._all() for at in (entry.starts_at, entry.ends_at))
        return planned or any(since < at <= now for *_, times in self._times(since) for at in times)

    def _all(self) -> Iterator[Maintenance]:
        for cluster_id in sorted(self._planned):
            yield from self._planned[cluster_id]

    def _closing(self, entry: Maintenance, rows: Mapping[str, int], now: datetime) -> Closing:
        left = max((entry.starts_at - now).total_seconds(), 0.0)
        on = not left
        mask = self._masks.get((entry.id, on))
        if mask is None or len(mask) != len(rows):
            mask = np.zeros(len(rows), dtype=np.bool_)
            mask[[rows[key] for key in (self._out_by(entry) if on else self._covered.get(entry.id, ()))]] = True
            self._masks[entry.id, on] = mask
        called, firm_too = f"maintenance {entry.name}", left <= entry.lead_seconds
        return Closing(called, mask, entry.starts_at, entry.ends_at, left, firm_too=firm_too)


def _chosen_by(node: Node | None) -> tuple[str, int] | None:
    """By what it is chosen for a reservation, of those that it is about."""
    return None if node is None else (node.name, node.facts.gpu_count)


def _over(node: Node, known: Mapping[str, Maintenance], now: datetime) -> tuple[str, ...]:
    """Ids of maintenance that took a node and comes no more."""
    return tuple(id_ for id_ in node.maintained if id_ not in known or known[id_].is_over(now))


def _is_far(entry: Maintenance, now: datetime) -> bool:
    return entry.starts_at - now > CLOCKS_APART


def _matters(entry: Maintenance, now: datetime) -> bool:
    left = (entry.starts_at - now).total_seconds()
    return now < entry.ends_at and left <= max(entry.lead_seconds, MAX_GRACE_SECONDS)
