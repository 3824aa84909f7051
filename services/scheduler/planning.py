"""A plan in the making: what the phases of the policy share. Pure."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final, NamedTuple

from events.node import Reservation, reservation_id
from events.workload.pod import DeviceShare, Placement, PodRef
from events.workload.spec import PodRequest
from services.scheduler.candidates import Candidates, Filled, packed, worth_of
from services.scheduler.policy.rules import Filter, Order, Score
from services.scheduler.policy.shares import Shares
from services.scheduler.room import Room
from services.scheduler.snapshot import (
    Binding,
    Bound,
    BoundKey,
    Closing,
    Eviction,
    GangPart,
    Pending,
    Plan,
    PodClass,
    Release,
    Snapshot,
    StatusUpdate,
    Together,
    Undisturbed,
    Waiting,
)

if TYPE_CHECKING:
    from services.scheduler.policy.phases.explain import Sight
    from services.scheduler.policy.reserve import Kept


RESERVE_AFTER: Final = timedelta(minutes=10)
"""Until then others pass: most of what waits finds a place by itself, and what is kept is idle meanwhile."""
KEPT_AFTER_EVICTION: Final = timedelta(minutes=10)
"""So long a workload that gave up a place keeps the next one. Who submits something of a high priority and deletes it
again, over and over, would else keep it from ever getting on.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One step of making a plan. The phases run one after the other, in the order of the registry."""

    name: str
    run: "Callable[[Planning], None]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """All that the scheduler decides by. `registry.POLICY` is the product's."""

    filters: tuple[Filter, ...]
    scores: tuple[Score, ...]
    orders: tuple[Order, ...]
    phases: tuple[Phase, ...]
    reserve_after: timedelta = RESERVE_AFTER
    """How long a gang, or a pod of several GPUs, waits before room is kept for it."""
    kept_after_eviction: timedelta = KEPT_AFTER_EVICTION
    """How long a workload that gave up a place keeps the next one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """Why a pod was not placed: a bound on its project or department, where nodes had room; else the nodes."""

    quota_need_milli: int = 0
    """The least GPU that such a node would have given it; 0 where no node has room."""
    quota_used_milli: int = 0
    bound: Bound | None = None
    """That left too little there."""
    waiting: Waiting | None = None
    """Of a gang: why, as it was when some of its pods had been placed."""


class Placed:
    """The pods that were placed so far, as columns: the loop that places makes no object per pod."""

    __slots__ = ("classes", "devices", "entries", "pods", "pools", "rows", "whole")

    def __init__(self) -> None:
        self.classes: list[PodClass] = []
        self.entries: list[Pending] = []
        self.pods: list[PodRef] = []
        self.pools: list[str] = []
        self.rows: list[int] = []
        self.devices: list[tuple[DeviceShare, ...]] = []
        self.whole: set[str] = set()
        """Keys of workloads whose pods are bound together."""

    def add(
        self,
        pod_class: PodClass,
        entries: Sequence[Pending],
        pods: Sequence[PodRef],
        at: tuple[str, int],
        devices: Sequence[tuple[DeviceShare, ...]],
    ) -> None:
        """Pods of one class on one node.

        Args:
            entries: of each pod.
            at: node pool, and row of the node.
        """
        count = len(pods)
        self.classes += [pod_class] * count
        self.entries += entries
        self.pods += pods
        self.pools += [at[0]] * count
        self.rows += [at[1]] * count
        self.devices += devices

    def forget(self, start: int) -> None:
        """Take back all that were placed from this one on."""
        for column in (self.classes, self.entries, self.pods, self.pools, self.rows, self.devices):
            del column[start:]


class Choices:
    """What was chosen so far for workloads for which nobody named a cluster. Mutable."""

    __slots__ = ("chosen", "elsewhere", "stands")

    def __init__(self) -> None:
        self.chosen: dict[str, str] = {}
        """By key of a workload: id of the cluster where this plan places it, or keeps a place for it."""
        self.stands: dict[int, PodClass] = {}
        """By index of the queue: its class where it stands now, if that is not where it stood at first."""
        self.elsewhere: dict[int, dict[str, Shortfall]] = {}
        """By index of the queue and id of a cluster: why it found no room there."""


class ShortAt(NamedTuple):
    """The first entry of a queue that found no room."""

    entry: int
    """Its index."""
    done: int
    """How many of its pods have a place, or one is kept for them."""
    changes: int = 0
    """How often the room had changed by then."""


class Mark(NamedTuple):
    """To roll back to."""

    room: int
    later: int
    quota_used: dict[BoundKey, int]
    share_used: dict[tuple[str, int], int]
    held_pods: int
    evictions: int


class SetAside:
    """What is set aside for gangs that have waited for long. Mutable; of one plan."""

    def __init__(self) -> None:
        self.reserved: dict[int, list[Kept]] = {}
        """By index of the queue: what is kept for a gang that has waited for long, of what is free."""
        self.spoken_for: dict[int, dict[int, int]] = {}
        """By index of the queue and number of a pool: what a gang that has waited for long is to have of its project's
        share.
        """
        self.spoken_for_by: dict[str, list[Pending]] = {}
        """The same gangs by id of their project, in their order."""
        self.passed_by: dict[int, frozenset[str]] = {}
        """By index of the queue, of those gangs that have a right to what they need now: ids of workloads of the
        project that were let in behind them.
        """
        self.reserved_in: Counter[int] = Counter()
        """By number of a pool: for how many gangs something is kept there."""
        # Row, request and share of a device of each place that is counted on for such a gang.
        self.counted_on: list[tuple[int, PodRequest, int]] = []


class Planning:
    """Mutable; one plan.

    Args:
        after: the round before, which saw the same nodes, with other pods on them.
    """

    def __init__(self, snapshot: Snapshot, policy: Policy, max_pods: int, *, after: "Planning | None" = None) -> None:
        self.snapshot, self.policy, self.max_pods = snapshot, policy, max_pods
        self.sights: dict[object, Sight] = {} if after is None else after.sights
        """What of nodes no pod changes, as a request sees it (phases.explain); also of the round before."""
        self.never: dict[PodClass, Waiting | None] = {} if after is None else after.never
        """Likewise, why a gang can never find a place; None where it can."""
        self._worth = partial(worth_of, mix=snapshot.mix, filters=policy.filters)
        self.room = Room(snapshot.nodes, self._worth)
        self.quota_used: dict[BoundKey, int] = {}
        """GPU thousandths that pods hold under each bound, with those placed so far."""
        self.quota_leaving: dict[BoundKey, int] = {}
        """What of that those hold that were told to end before."""
        self.quota_late: dict[BoundKey, int] = {}
        """What of that those hold that were told to end, and should have by now: it comes free nobody knows when."""
        self.bounds: dict[tuple[str, str, bool], tuple[Bound, ...]] = {}
        """By project id, node pool and whether a pod is preemptible: those that hold for it there."""
        self.counted: dict[tuple[str, str, bool], tuple[BoundKey, ...]] = {}
        """Likewise, under which keys it is counted what it holds; all of them are among those of `quota_used`."""
        self.later: Room | None = None
        """The room that there will be once all pods have ended that were told to; None where there are none."""
        self.releases: tuple[Release, ...] = ()
        self.short: dict[int, Shortfall] = {}
        """By index of the queue: those that found no room."""
        self.probed, self.weighed = Counter[str](), Counter[str]()
        """By project id: what was tried in vain, in pods, and what was looked at of pods that could give way."""
        self.put_off: set[int] = set()
        """By index of the queue: those that were not tried for that, or not to the end."""
        self.cut_short = self.in_gang = False
        """Whether placing stopped at `max_pods`, and whether a gang is just being placed, which nothing cuts short."""
        self.tried_in_vain = self.held_pods = 0
        """Pods of gangs that were placed and taken back, and pods for which a place is kept."""
        self.blocked: dict[int, Waiting] = {}
        """By index of the queue: why it waits."""
        self.short_at: dict[int, ShortAt] = {}
        """By index of the queue: where that was."""
        self.held: dict[str, Waiting] = {}
        """By key of a workload: why it waits, of those for which a place is kept."""
        self.aside = SetAside()
        self.held_queues: dict[int, str] = {}
        """By index of the queue: the first of its workloads for which a place is kept."""
        self.kept_for: set[str] = set()
        """Ids of workloads that have a place once others have ended: all of those for which anybody is told to end."""
        self.evictions: list[Eviction] = []
        self.look_again: datetime | None = None
        """As of Plan."""
        self.spared: dict[str, dict[str, Undisturbed]] = {}
        """By key of what waits, and id of a workload: whose place it may take, but only then."""
        self.not_grown: dict[str, str] = {}
        """By key of an elastic workload: why it has no more pods, in words."""
        self.updates: list[StatusUpdate] = []
        self.values: dict[Together, int] = {}
        """Of workloads whose pods stay together: the number of the label's value where some of them are."""
        self._packed, self.placed, self.choices = packed(policy.scores), Placed(), Choices()
        self.partly: dict[PodClass, list[tuple[str, int, frozenset[int]]]] = {}
        """As of beside.beside, of what was looked at: pools, rows, and devices that are kept there for others."""
        self.pools: dict[tuple[PodClass, bool], list[tuple[str, Candidates]]] = {}
        """As of pools.pools_of, what was asked for before."""
        self._parts: dict[PodClass, list[tuple[GangPart, PodClass]]] = {}
        self._candidates: dict[tuple[PodRequest, int, bool, tuple[str, ...]], Candidates] = {}

    @cached_property
    def shares(self) -> Shares:
        """What each may have of the pools by right, as it was when this was first asked for: nothing was placed yet."""
        return Shares(self.snapshot, self.room, dict(self.quota_used))

    def class_of(self, i: int) -> PodClass:
        """That of a queue, by its index, where it stands now."""
        return self.choices.stands.get(i) or self.snapshot.queues[i].pod_class

    def look_again_at(self, at: datetime) -> None:
        """There is something to decide then, although nothing happens."""
        self.look_again = at if self.look_again is None else min(self.look_again, at)

    def spare(self, workload_id: str, until: Undisturbed, *, by: Pending) -> None:
        """What waits may take this place only then."""
        self.look_again_at(until.until)
        self.spared.setdefault(by.key, {})[workload_id] = until

    def soon(self) -> Room:
        """The room that there will be once all have ended that were told to. There is never less of it than now."""
        if self.later is None:
            self.later = Room(self.snapshot.nodes, self._worth, like=self.room)
        return self.later

    def closings(self, pod_class: PodClass) -> tuple[Closing, ...]:
        """Those that keep such pods away."""
        closings = self.snapshot.nodes.closings
        if not closings:
            return ()
        minimum = minimum_of(self.snapshot, pod_class)
        return tuple(each for each in closings if each.refuses(pod_class, minimum))

    def candidates(self, pod_class: PodClass, pool: int, *, later: bool = False) -> Candidates:
        """The nodes of a pool (by its number) for pods of a class; `later`: by the room that there will be."""
        request, closings = pod_class.request, self.closings(pod_class)
        key = request, pool, later, tuple(each.called for each in closings)
        found = self._candidates.get(key)
        if found is None:
            room = self.soon() if later else self.room
            found = Candidates(room, request, pool, self.policy.filters, self._packed, closings=closings)
            self._candidates[key] = found
        return found

    def parts(self, pod_class: PodClass) -> list[tuple[GangPart, PodClass]]:
        """Those of a gang, each with the class of its pods as if they stood for themselves."""
        found = self._parts.get(pod_class)
        if found is None:
            found = self._parts[pod_class] = [(each, pod_class.part(each)) for each in pod_class.gang]
        return found

    def take(self, row: int, request: PodRequest, devices: tuple[DeviceShare, ...]) -> None:
        """Put a pod on a node."""
        self.room.take(row, request, devices)
        if self.later is not None:
            self.later.take(row, request, devices)

    def put(self, candidates: Candidates, request: PodRequest, index: int | None) -> Filled | None:
        """Put one pod on the node of this index; what `fill` says of it."""
        if index is None:
            return None
        devices = candidates.devices(index)
        self.take(int(candidates.rows[index]), request, devices)
        return index, [devices]

    def fill(
        self, candidates: Candidates, request: PodRequest, most: int, most_gpu_milli: int | None = None
    ) -> Filled | None:
        """As of Candidates, also by the room that there will be."""
        filled = candidates.fill(most, most_gpu_milli=most_gpu_milli)
        if filled is not None and self.later is not None:
            row = int(candidates.rows[filled[0]])
            for devices in filled[1]:
                self.later.take(row, request, devices)
        return filled

    def hold(self, row: int, request: PodRequest, devices: tuple[DeviceShare, ...]) -> None:
        """Keep a place that others hold until they end: what is free of it already, nobody else gets."""
        later = self.soon()
        later.take(row, request, devices)
        self.room.lower(row, later)
        self.held_pods += 1

    def keeps(self, i: int, entry: Pending, waiting: Waiting) -> None:
        """A place is kept for a pod of this entry, or for all that it needs; it will not be taken back in this plan.

        Args:
            i: index of its queue.
            waiting: what it is told.
        """
        self.held[entry.key] = waiting
        self.held_queues.setdefault(i, entry.key)
        self.kept_for.add(entry.workload_id)

    def checkpoint(self) -> Mark:
        return Mark(
            self.room.checkpoint(),
            0 if self.later is None else self.later.checkpoint(),
            dict(self.quota_used),
            dict(self.shares.used),
            self.held_pods,
            len(self.evictions),
        )

    def rollback(self, mark: Mark) -> None:
        """Room, quotas, what is held and what is evicted are as they were at the mark."""
        self.room.rollback(mark.room)
        if self.later is not None:
            self.later.rollback(mark.later)
        self.quota_used, self.held_pods = dict(mark.quota_used), mark.held_pods
        self.shares.used = dict(mark.share_used)
        del self.evictions[mark.evictions :]

    def plan(self, *, max_updates: int) -> Plan:
        # Why they wait is another question once they have left.
        leave = {each.key for each in self.snapshot.departures}
        updates = [each for each in self.updates if each.key not in leave] if leave else self.updates
        return Plan(
            bindings=tuple(self._bindings()),
            releases=self.releases,
            updates=tuple(updates[:max_updates]),
            evictions=tuple(self.evictions),
            marks=self.snapshot.marks,
            departures=self.snapshot.departures,
            held={self.snapshot.queues[i].pod_class: self.held[key] for i, key in self.held_queues.items()},
            blocked={
                self.snapshot.queues[i].pod_class: waiting
                for i, waiting in self.blocked.items()
                if i not in self.held_queues and i not in self.put_off
            },
            look_again=self.look_again,
            put_off=frozenset(self.snapshot.queues[i].pod_class for i in self.put_off),
            more=self.cut_short or len(self.updates) > max_updates,
        )

    def _bindings(self) -> list[Binding]:
        placed, nodes = self.placed, self.snapshot.nodes
        keys, names, models = nodes.keys, nodes.names, nodes.gpu_models
        clusters = {id_: view.name for id_, view in self.snapshot.clusters.items()}
        memory: list[int] = nodes.gpu_memory_bytes.tolist()
        found: list[Binding] = []
        whole, cluster_name = placed.whole, ""
        row: int
        last: PodClass | None = None
        for pod_class, entry, pod, pool, row, devices in zip(
            placed.classes, placed.entries, placed.pods, placed.pools, placed.rows, placed.devices, strict=True
        ):
            if pod_class is not last:
                last, cluster_name = pod_class, clusters.get(pod_class.cluster_id, "")
            request, workload_id, key = pod_class.request, entry.workload_id, entry.key
            placement = Placement(
                pod=pod,
                node_key=keys[row],
                node_name=names[row],
                pool=pool,
                devices=devices,
                gpu_model=models[row] if devices else "",
                gpu_memory_bytes=memory[row] if devices else 0,
            )
            reservation = Reservation(
                id=reservation_id(workload_id, pod.pod_set, pod.index, pod.attempt, pod.try_),
                workload_id=workload_id,
                workload_key=key,
                cpu_milli=request.cpu_milli,
                memory_bytes=request.memory_bytes,
                devices=devices,
                extended=request.extended,
            )
            found.append(
                Binding(
                    key,
                    workload_id,
                    entry.name,
                    placement,
                    reservation,
                    pod_class.cluster_id,
                    cluster_name,
                    key in whole,
                    "" if pod_class.preemptible else pod_class.project_id,
                )
            )
        return found


def pools_to_try(snapshot: Snapshot, pod_class: PodClass) -> tuple[str, ...]:
    """The workload's pools, else its project's or department's, else all; only those that the cluster has."""
    cluster = snapshot.clusters.get(pod_class.cluster_id)
    if cluster is None:
        return ()
    wanted = wanted_pools(snapshot, pod_class)
    return tuple(pool for pool in wanted if pool in cluster.pools) if wanted else cluster.pools


def minimum_of(snapshot: Snapshot, pod_class: PodClass) -> timedelta:
    """For how long such pods run before their place may be taken."""
    project = snapshot.projects.get(pod_class.project_id)
    return timedelta(0) if project is None else project.minimum_runtime


def wanted_pools(snapshot: Snapshot, pod_class: PodClass) -> tuple[str, ...]:
    """Those that the workload names, else its project; empty: any."""
    project = snapshot.projects.get(pod_class.project_id)
    return pod_class.pools or (project.pools if project else ())
