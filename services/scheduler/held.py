"""What runs hold of nodes, and what of that is over, about to end, or promised to others. Part of the fold; no I/O, no
clock of its own.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from events.aggregate import Chain
from events.ids import key_of_id
from events.node import Node, reservation_id, run_of
from events.phases import PodPhase
from events.workload.evictions import PodsEvicted
from events.workload.pod import LIVE_POD_PHASES, Pod, pod_id
from events.workload.pods import changed, changed_left
from events.workload.spec import MAX_GRACE_SECONDS
from events.workload.state import Workload
from services.scheduler.owners import Owners
from services.scheduler.snapshot import Bound, BoundKey, HeldKey, Snapshot

LEAVING_LATE: Final = timedelta(minutes=5)
"""How long after its grace a pod that was told to end is still counted on to end."""


class Held:
    """The reservations of all nodes. Mutable."""

    def __init__(
        self, workloads: Mapping[str, Chain[Workload]], owners: Owners, wake: Callable[[datetime], None]
    ) -> None:
        """Args: wake, is told when to look at them again although nothing happens."""
        self._workloads, self._owners, self._wake = workloads, owners, wake
        self.shares: Counter[HeldKey] = Counter()
        """GPU shares that runs hold."""
        self.grown = set[str]()
        """Ids of projects that hold more than when this was emptied last."""
        self._counted: dict[str, tuple[HeldKey, int]] = {}
        """By id of a reservation: where it is counted above, and with how much."""
        self._nodes_of: dict[str, dict[str, str]] = {}
        """By workload key: node key by reservation id."""
        self.stale: dict[str, str] = {}
        """Node key by id of a reservation whose run is over."""
        self.leaving: dict[str, tuple[str, datetime]] = {}
        """By id of a reservation whose pod was told to end: node key, and until when that is counted on."""
        self._left_behind = set[str]()
        """Ids of reservations of runs that were left on lost clusters: they hold their nodes, and count for nobody."""
        self.late: dict[str, str] = {}
        """Node key of those on which that is not counted any more, as they took too long."""
        self.promised: dict[str, str] = {}
        """By id of a reservation: for which workload its pod was told to end."""
        self.leave_by = dict[str, datetime]()
        """By id of a reservation whose pod was told to end: until when that was, or is, counted on."""
        self._newly_held: dict[str, set[str]] = {}
        """By workload key: ids of reservations of which it is not settled yet whose they are."""

    # -- following ---------------------------------------------------------------------------------------------------

    def settle_node(self, key: str, before: Node, after: Node) -> set[str]:
        """Take in what is held there now. Answers with the keys of the workloads whose reservations came or went."""
        self._count_held(before, after)
        touched = set[str]()
        for id_ in sorted(before.reservations.keys() - after.reservations.keys()):
            reservation = before.reservations[id_]
            held = self._nodes_of.get(reservation.workload_key, {})
            held.pop(id_, None)
            if not held:
                self._nodes_of.pop(reservation.workload_key, None)
            self.stale.pop(id_, None)
            self.leaving.pop(id_, None)
            self.late.pop(id_, None)
            self.leave_by.pop(id_, None)
            self.promised.pop(id_, None)
            touched.add(reservation.workload_key)
        for id_ in sorted(after.reservations.keys() - before.reservations.keys()):
            reservation = after.reservations[id_]
            self._nodes_of.setdefault(reservation.workload_key, {})[id_] = key
            self._newly_held.setdefault(reservation.workload_key, set()).add(id_)
            touched.add(reservation.workload_key)
        return touched

    def _count_held(self, before: Node, after: Node) -> None:
        """Count what runs hold on a node, by project and pool; all of it anew where the node is in another pool now."""
        moved = before.facts.pool != after.facts.pool
        gone = before.reservations.keys() if moved else before.reservations.keys() - after.reservations.keys()
        come = after.reservations.keys() if moved else after.reservations.keys() - before.reservations.keys()
        for id_ in gone:
            self._uncount_held(id_)
        for id_ in come - self.stale.keys() - self._left_behind:
            reservation = after.reservations[id_]
            milli = sum(share.milli for share in reservation.devices)
            chain = self._workloads.get(reservation.workload_key)
            if milli and chain is not None:
                key = (chain.state.project_id, after.cluster_id, after.facts.pool, not chain.state.preemptible)
                self._counted[id_] = key, milli
                self.shares[key] += milli
                self.grown.add(chain.state.project_id)

    def _uncount_held(self, id_: str) -> None:
        counted = self._counted.pop(id_, None)
        if counted is not None:
            key, milli = counted
            self.shares[key] -= milli
            if not self.shares[key]:
                del self.shares[key]

    def settle_runs(self, key: str, before: Workload, after: Workload, now: datetime) -> bool:
        """Note the reservations of runs that are over, and of those that were told to end; looks at runs that changed
        and at new reservations only. Answers whether something may fit now that did not before.
        """
        suspects, runs = self._newly_held.pop(key, None), changed(before.pods, after.pods)
        if not (suspects or runs or before.left is not after.left):
            return False
        freed, held, suspects = False, self._nodes_of.get(key, {}), suspects or set()
        alive: set[str] = set()
        for _, (name, index), old, new in changed_left(before.left, after.left):
            if old is not None:
                suspects.add(id_ := reservation_id(before.workload_id, name, index, old.attempt, old.try_))
                self._left_behind.discard(id_)
            if new is not None:
                alive.add(id_ := reservation_id(after.workload_id, name, index, new.attempt, new.try_))
                self._left_behind.add(id_)
                self._uncount_held(id_)
                freed = True  # what its project may hold
        for (name, index), (old, new) in runs.items():
            if old is not None:
                suspects.add(id_ := reservation_id(before.workload_id, name, index, old.attempt, old.try_))
                self.leaving.pop(id_, None)
                self.late.pop(id_, None)
            if new is not None and new.phase in LIVE_POD_PHASES:
                alive.add(id_ := reservation_id(after.workload_id, name, index, new.attempt, new.try_))
                if new.phase is PodPhase.STOPPING:
                    self._leaves(id_, new, after, now)
                    freed = True
        for id_ in suspects - alive:
            self.leave_by.pop(id_, None)
            if id_ in held and id_ not in self.stale and not _is_alive(id_, after):
                self.stale[id_] = held[id_]
                self._uncount_held(id_)
                freed = True
        return freed

    def _leaves(self, id_: str, pod: Pod, of: Workload, now: datetime) -> None:
        """Its place comes free, so that it can be kept for another; not for ever, where it does not end."""
        grace = timedelta(seconds=min(max(of.spec.termination_grace_period_seconds, 0), MAX_GRACE_SECONDS))
        # Known where it was told before this process began, or something else of the pod changed since.
        anew = now + grace + LEAVING_LATE
        until = self.leave_by[id_] = min(self.leave_by.get(id_, anew), anew)
        if until <= now:
            self.late[id_] = pod.node_key
        else:
            self.leaving[id_] = pod.node_key, until
            self._wake(until)

    def promise(self, workload_id: str, event: PodsEvicted) -> None:
        """Args: workload_id, of whose pods are told to end."""
        for ref in event.pods if event.beneficiary else ():
            id_ = reservation_id(workload_id, ref.pod_set, ref.index, ref.attempt, ref.try_)
            self.promised[id_] = event.beneficiary

    def late_by(self, now: datetime) -> bool:
        """Count no more on the ends of those that should have ended by now; whether there are any."""
        late = [id_ for id_, (_, until) in self.leaving.items() if until <= now]
        for id_ in late:
            self.late[id_] = self.leaving.pop(id_)[0]
        return bool(late)

    def forget_promises(self) -> None:
        """Those that were kept: a log that is read again from its beginning tells also of places that were given long
        ago.
        """
        if self.promised:
            ending = self.leaving.keys() | self.stale.keys()
            self.promised = {id_: of for id_, of in self.promised.items() if id_ in ending}

    def clock_was_set_back(self, now: datetime) -> None:
        """What should have ended at a time may be late by as much as the clock was ahead."""
        latest = now + timedelta(seconds=MAX_GRACE_SECONDS) + LEAVING_LATE
        for id_, (node_key, until) in self.leaving.items():
            self.leaving[id_] = node_key, min(until, latest)
            self.leave_by[id_] = min(until, latest)
            self._wake(min(until, latest))

    # -- what is asked of it -----------------------------------------------------------------------------------------

    def of(self, key: str) -> Mapping[str, str]:
        """What a workload holds, all of it: node key by id of a reservation."""
        return self._nodes_of.get(key, {})

    def runs_of(self, key: str) -> Mapping[str, str]:
        """What a workload holds: node key by id of a reservation. Without what was left on lost clusters."""
        held = self._nodes_of.get(key, {})
        if self._left_behind.isdisjoint(held):
            return held
        return {id_: node_key for id_, node_key in held.items() if id_ not in self._left_behind}

    def left_by(self, key: str) -> Mapping[str, str]:
        """What runs hold that a workload left on lost clusters: node key by id of a reservation."""
        held = self._nodes_of.get(key, {})
        return {id_: node_key for id_, node_key in held.items() if id_ in self._left_behind}

    def project_ids(self) -> set[str]:
        """Of all who hold something."""
        return {project_id for project_id, *_ in self.shares}

    def counted_as(self, id_: str) -> tuple[HeldKey, int]:
        """Where a reservation counts, and with how much."""
        return self._counted.get(id_, (("", "", "", False), 0))

    def under(self, bound: Bound) -> list[tuple[str, int]]:
        """Workloads (by key) that count under a bound, each with the GPUs that it holds there, in thousandths."""
        held = Counter[str]()
        for id_, ((project_id, _, pool, firm), milli) in self._counted.items():
            counts = bound.id in {project_id, self._owners.department_of(project_id)} and bound.pool in {"", pool}
            if counts and (firm or not bound.firm):
                held[key_of_id(id_.partition("/")[0]) or ""] += milli
        return list(held.items())

    def by_bound(self, keys: AbstractSet[BoundKey]) -> dict[BoundKey, int]:
        """What is held under each of these keys of bounds."""
        held: dict[BoundKey, int] = dict.fromkeys(keys, 0)
        if not held:
            return held
        departments = {project_id: self._owners.department_of(project_id) for project_id, *_ in self.shares}
        for (project_id, _, pool, firm), milli in self.shares.items():
            for holder in (project_id, departments[project_id]):
                for place in ("", pool):
                    for counted in {False, firm}:
                        if (key := (holder, place, counted)) in held:
                            held[key] += milli
        return held

    def without(self, snapshot: Snapshot, gone: AbstractSet[str]) -> Snapshot:
        """The same, as if these reservations were gone, but for its releases."""
        held, held_in = dict(snapshot.held_milli), Counter(snapshot.held_in)
        for id_ in gone:
            key, milli = self.counted_as(id_)
            project_id, _, pool, firm = key
            held_in[key] -= milli
            for holder in {project_id, self._owners.department_of(project_id)} if milli else ():
                for place in ("", pool):
                    for counted in {False, firm}:
                        if (bound := (holder, place, counted)) in held:
                            held[bound] -= milli
        return replace(
            snapshot,
            held_milli=held,
            held_in=dict(+held_in),
            leaving=tuple(each for each in snapshot.leaving if each.reservation.id not in gone),
            late=tuple(each for each in snapshot.late if each.reservation.id not in gone),
        )


def _is_alive(reservation: str, state: Workload) -> bool:
    """Whether it is of a run that holds a node."""
    ref = run_of(reservation, state.workload_id)
    pod = None if ref is None else state.pods.live.get(pod_id(ref))
    if pod is not None and ref is not None and pod.is_run(ref):
        return True
    left = () if ref is None else (pods.get(pod_id(ref)) for pods in state.left.values())
    return any(each is not None and ref is not None and each.is_run(ref) for each in left)
