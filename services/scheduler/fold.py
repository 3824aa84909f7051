"""The scheduler's own fold of the log: what is waiting, what is free, what is over. No I/O, no clock of its own.

It is kept up to date commit by commit, at a cost that does not grow with what waits: what a commit touched is settled
into queues and columns before the next snapshot. Workloads that have ended, without pods and reservations, are
forgotten. What follows from the commits alone (`workloads`, `nodes`, `clusters`, `projects`, `departments`, `mix`) is
all that a stored snapshot holds; the rest is an index over it.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final, override

import msgspec

from events.aggregate import CLUSTER, DEPARTMENT, LOG, NODE, PROJECT, WORKLOAD, Chain
from events.capacity import KeptFor
from events.cluster import DEFAULT_POOL, Cluster
from events.commit import Commit
from events.department import Department
from events.ids import key_of_id
from events.installation import LOG_KEY
from events.node import Node, reservation_id, run_of
from events.phases import FINISHED, DesiredPhase, PodPhase, WaitingReason
from events.project import Project
from events.quotas import MAX_CLUSTER_LOST, MAX_MINIMUM_RUNTIME, PoolQuota
from events.workload.kinds import KINDS
from events.workload.pod import (
    LIVE_POD_PHASES,
    Pod,
    PodFailed,
    PodId,
    PodRef,
    PodsBound,
    PodStopped,
    PodSucceeded,
    pod_id,
)
from events.workload.pods import changed, changed_left
from events.workload.spec import MAX_GRACE_SECONDS
from events.workload.state import (
    PodsEvicted,
    Workload,
    WorkloadWaiting,
    evictable,
    next_retry_at,
    placed_of,
    schedulable,
)
from services.runtime.log.log_fold import LogFold
from services.scheduler.calendar import Calendar
from services.scheduler.chosen import ChosenClusters
from services.scheduler.classes import Place, Rights, class_of, ready, rights_of
from services.scheduler.columns import Columns, uncount
from services.scheduler.forecast import Forecast, Kept
from services.scheduler.mix import Mix, shape_of
from services.scheduler.must_leave import AT_ONCE, is_emptied, leavers
from services.scheduler.policy.among import Known, Stands, standing
from services.scheduler.policy.phases.grow import GROWS_AGAIN_AFTER
from services.scheduler.policy.phases.report import is_another
from services.scheduler.policy.registry import POLICY
from services.scheduler.policy.rules import Age, Order
from services.scheduler.queue import WaitingQueue
from services.scheduler.snapshot import (
    INFINITE,
    Bound,
    BoundKey,
    Closed,
    Closing,
    ClusterView,
    Departure,
    Growth,
    HeldKey,
    Leaving,
    Moving,
    MustLeave,
    NotSchedulable,
    Pending,
    Plan,
    PodClass,
    ProjectView,
    Queue,
    Release,
    Snapshot,
    Waiting,
    Weights,
)
from services.scheduler.waits import Stint, Waits
from services.scheduler.windows import ProjectWindows

FOLDED: Final = (WORKLOAD, NODE, CLUSTER, PROJECT, DEPARTMENT, LOG)
"""Aggregates whose chains are kept, and stored in snapshots."""
_TELLING: Final = frozenset({WorkloadWaiting, PodsBound, PodSucceeded, PodFailed, PodStopped})
"""Events from which it is learnt how long things take."""
DEFAULT_HEAD_START: Final = timedelta(hours=24)
"""That a rank of priority is worth."""
LEAVING_LATE: Final = timedelta(minutes=5)
"""How long after its grace a pod that was told to end is still counted on to end."""
REPORT_AGAIN_AFTER: Final = timedelta(seconds=10)
"""Limits how often the log is given another reason for the same wait."""


type _Moved = dict[str, set[PodId]]
type _Resized = dict[str, datetime]
type _LeaveBy = dict[str, datetime]
type _Beside = tuple[
    bytes, dict[str, str], dict[str, datetime], bytes, dict[str, tuple[float, float]], _Resized, _Moved, _LeaveBy
]


@dataclass(slots=True)
class _Indexed:
    """What one workload put into the indexes, to be taken out again."""

    entries: list[tuple[WaitingQueue, Pending]] = field(default_factory=list[tuple[WaitingQueue, Pending]])


class SchedulingState(LogFold):
    """The log's fold, with the indexes over it."""

    def __init__(self, *, orders: Sequence[Order] = POLICY.orders, head_start: timedelta = DEFAULT_HEAD_START) -> None:
        super().__init__(FOLDED, forgets=True)
        self._orders, self._head_start_seconds = orders, head_start.total_seconds()
        self.workloads, self.nodes = self.of(WORKLOAD), self.of(NODE)
        self.clusters, self.projects, self.departments = self.of(CLUSTER), self.of(PROJECT), self.of(DEPARTMENT)
        self.consolidates = True
        """As of Snapshot: a setting."""
        self.freed = self.came = 0
        """Rise whenever something may fit that did not before, and with each workload that comes."""
        self._waits, self.mix, self.forecast = Waits(), Mix(), Forecast()
        self.ends: Kept | None = None
        """When what runs is expected to end, while that holds (services.scheduler.estimate)."""
        self._columns, self._calendar, self._windows, self._known = Columns(), Calendar(), ProjectWindows(), Known()
        self._queues: dict[PodClass, WaitingQueue] = {}
        self._extended_asked: Counter[str] = Counter()
        """By extended resource: queues whose pods want it."""
        self._indexed, self._not_schedulable = dict[str, _Indexed](), dict[str, NotSchedulable]()
        self._held_in: Counter[HeldKey] = Counter()
        """GPU shares that runs hold."""
        self._counted: dict[str, tuple[HeldKey, int]] = {}
        """By id of a reservation: where it is counted above, and with how much."""
        self._held: dict[str, dict[str, str]] = {}
        """By workload key: node key by reservation id."""
        self._stale: dict[str, str] = {}
        """Node key by id of a reservation whose run is over."""
        self._leaving: dict[str, tuple[str, datetime]] = {}
        """By id of a reservation whose pod was told to end: node key, and until when that is counted on."""
        self._left_behind, self._chosen = set[str](), ChosenClusters()
        """Ids of reservations of runs that were left on lost clusters: they hold their nodes, and count for nobody."""
        self._late: dict[str, str] = {}
        """Node key of those on which that is not counted any more, as they took too long."""
        self._promised: dict[str, str] = {}
        """By id of a reservation: for which workload its pod was told to end."""
        self._placed_again: dict[str, datetime] = {}
        """By workload key, of those that gave up a place to another before: when it got the last one."""
        self._moved: _Moved = {}
        """By workload key: pods that were told to end to make room for others, until they are bound again."""
        self._growing: dict[str, Growth] = {}
        """By workload key: what elastic workloads may grow by."""
        self._resized, self._leave_by = dict[str, datetime](), dict[str, datetime]()
        """By workload key: when an elastic workload that held nodes got or gave up others. And by id of a reservation
        whose pod was told to end: until when that was, or is, counted on.
        """
        self._running, self._running_frozen = dict[str, dict[str, Workload]](), dict[str, tuple[Workload, ...]]()
        """By project id and workload key: preemptible workloads that hold nodes, and elastic ones."""
        self._emptied: dict[str, tuple[MustLeave, ...]] = {}
        """By key of a node with a taint that evicts, or that is drained: its pods that have to leave, the first first.
        """
        self._kept: dict[str, tuple[KeptFor, ...]] = {}
        """By key of a node: the reservations by which only one project may use it now."""
        self._dirty_emptied: set[str] = set()
        """Of these nodes those on which that may be others by now."""
        self._settled_nodes, self._settled_workloads = dict[str, Node](), dict[str, Workload]()
        """As they stand in the indexes."""
        self._newly_held: dict[str, set[str]] = {}
        """By workload key: ids of reservations of which it is not settled yet whose they are."""
        self._nodes_in: Counter[tuple[str, str]] = Counter()
        """Present nodes per (cluster id, pool)."""
        self._due: list[tuple[datetime, str]] = []
        """Heap of (time, workload key): pods that may run again then. An empty key: look at the queues again."""
        # Nodes in the order of their first commits: so they have their rows, however often it was settled in between.
        self._dirty_workloads, self._dirty_nodes = set[str](), dict[str, None]()
        self._settled_at: datetime | None = None
        self._look_again: datetime | None = None
        """When somebody has run for long enough to give up a place for which others wait."""

    # -- following ---------------------------------------------------------------------------------------------------

    @override
    def took(self, commit: Commit, before: Chain[Any], after: Chain[Any]) -> None:
        match commit.aggregate:
            case "workload":
                self._dirty_workloads.add(commit.key)
                self._waits.took(commit, before.state, after.state)
                if after.state.elastic:
                    self._resize(commit, before.state, after.state)
                for event in commit.events:
                    if isinstance(event, PodsEvicted):
                        self._promise(after.state.workload_id, event)
                        if event.reason == "moved":
                            self._moved.setdefault(commit.key, set()).update(map(pod_id, event.pods))
                    if isinstance(event, PodsBound) and commit.key in self._moved:
                        self._moved[commit.key] -= {pod_id(each.pod) for each in event.placements}
                    if isinstance(event, PodsBound) and any(after.state.gave_way_to):
                        self._placed_again[commit.key] = commit.record.occurred_at
                    if type(event) in _TELLING:
                        self._learn(commit, event, before.state)
                if not schedulable(after.state):
                    self.forecast.waits_no_longer(commit.key)
                if before.state.workload_id != after.state.workload_id:
                    self._came(after.state, commit.record.occurred_at)
            case "node":
                self._dirty_nodes[commit.key] = None
            case "cluster":
                self._cluster_changed(before.state, after.state)
            case "project":
                self._project_changed(before.state, after.state)
            case _:
                self.freed += 1  # a department; or the log was restored, before all else here
                if isinstance(after.state, Department):
                    self._calendar.set_department(before.state, after.state)

    def _resize(self, commit: Commit, before: Workload, after: Workload) -> None:
        """It has another number of pods from now on, and went on with those that it had."""
        if before.pods.live.size and before.attempt == after.attempt:
            for event in commit.events:
                if isinstance(event, PodsBound | PodsEvicted):
                    self._resized[commit.key] = commit.record.occurred_at

    def _promise(self, workload_id: str, event: PodsEvicted) -> None:
        for ref in event.pods if event.beneficiary else ():
            id_ = reservation_id(workload_id, ref.pod_set, ref.index, ref.attempt, ref.try_)
            self._promised[id_] = event.beneficiary

    def _learn(self, commit: Commit, event: object, before: Workload) -> None:
        """How long runs last, and when what waits starts."""
        at = commit.record.occurred_at
        match event:
            case WorkloadWaiting(expected_start=datetime() as start):
                self.forecast.expects(commit.key, at, start)
            case PodsBound():
                self.forecast.started(commit.key, at)
            case PodSucceeded() | PodFailed() | PodStopped():
                pod = before.pods.live.get(pod_id(event.pod))
                evicted = isinstance(event, PodStopped) and before.desired is DesiredPhase.RUNNING
                if pod is not None and pod.running_since is not None and pod.is_run(event.pod) and not evicted:
                    self.forecast.ran(before, event.pod.pod_set, (event.at - pod.running_since).total_seconds())
            case _:
                pass

    def _came(self, workload: Workload, at: datetime) -> None:
        self.came += 1
        for each in workload.pod_sets:
            shape = shape_of(each.template.request, cluster_id=workload.cluster_id, pools=each.node_pools)
            self.mix.add(shape, each.at_once, at)

    def _project_changed(self, before: Project, after: Project) -> None:
        self.freed += 1
        self._windows.set_project(after)
        self._calendar.set_project(before, after)
        if before.department_id != after.department_id:
            self._dirty_emptied.update(self._kept)  # what is kept for its department
        if before.time_limits != after.time_limits:
            # How long what waits would run at most is otherwise now.
            self._classify_anew(key for key, of in self._settled_workloads.items() if of.project_id == after.project_id)

    def _classify_anew(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._take_out(key)
            self._dirty_workloads.add(key)

    def _cluster_changed(self, before: Cluster, after: Cluster) -> None:
        self.freed += 1
        labelled = self._calendar.labelled
        self._calendar.set_cluster(after, self.nodes)
        if self._calendar.labelled != labelled:
            self._classify_anew(self._settled_workloads)
        if (before.cluster_id, before.connected) == (after.cluster_id, after.connected):
            return
        ids = {before.cluster_id, after.cluster_id}
        for key, chain in self.nodes.items():
            if chain.state.cluster_id in ids:
                self._dirty_nodes[key] = None

    @override
    def restore(self, seq: int, chains: Mapping[str, Mapping[str, Chain[Any]]], *, beside: bytes = b"") -> None:
        """As everywhere; everything is to be settled.

        Args:
            beside: what was kept beside the chains; nothing has come where it is empty.
        """
        super().restore(seq, chains)
        try:
            mix, self._promised, self._placed_again, learnt, waits, self._resized, self._moved, self._leave_by = (
                msgspec.msgpack.decode(beside, type=_Beside)
            )
        except msgspec.MsgspecError:
            mix, self._promised, self._placed_again, learnt, waits = b"", {}, {}, b"", dict[str, tuple[float, float]]()
            self._resized, self._moved, self._leave_by = {}, {}, {}
        self._waits = Waits(waits)
        self.mix, self.forecast = Mix.restored(mix), Forecast.restored(learnt)
        self._dirty_workloads.update(self.workloads)
        self._dirty_nodes = dict.fromkeys(self.nodes)
        for chain in self.clusters.values():
            self._calendar.set_cluster(chain.state, {})
        for chain in self.projects.values():
            self._windows.set_project(chain.state)
            self._calendar.set_project(chain.state, chain.state)
        for chain in self.departments.values():
            self._calendar.set_department(chain.state, chain.state)

    def beside(self) -> bytes:
        """What is to be kept with the chains, as it does not follow from them: pods that came and are gone, for whom
        others were told to end, when those got another place, what was learnt of how long all that takes, how long
        workloads have waited, when elastic ones grew or shrank, which pods make room for others, and until when it is
        counted on that pods end.
        """
        learnt, waits = self.forecast.stored(), self._waits.stored()
        kept = self.mix.stored(), self._promised, self._placed_again, learnt, waits, self._resized, self._moved
        return msgspec.msgpack.encode((*kept, self._leave_by))

    @property
    def incarnation(self) -> int:
        """How often the log was restored."""
        chain = self.of(LOG).get(LOG_KEY)
        return 0 if chain is None else chain.state.incarnation

    # -- settling ----------------------------------------------------------------------------------------------------

    def settle(self, now: datetime) -> None:
        """Bring the indexes up to date with the chains, and with the time."""
        if self._settled_at is not None and now < self._settled_at:
            self._clock_was_set_back(now)
        elif self._settled_at is not None and self._calendar.passed(self._settled_at, now):
            self.freed += 1
        if self._windows.settle(now):
            self.freed += 1
        self._settled_at = now
        if self._look_again is not None and self._look_again <= now:
            self._look_again = None
            self.freed += 1
        due: set[str] = set()
        while self._due and self._due[0][0] <= now:
            due.add(heapq.heappop(self._due)[1])
        if "" in due and (late := [id_ for id_, (_, until) in self._leaving.items() if until <= now]):
            for id_ in late:
                self._late[id_] = self._leaving.pop(id_)[0]
            self.freed += 1  # what was kept for others there, anybody may have
        self._dirty_workloads |= due - {""}
        for key in self._dirty_nodes:
            self._settle_node(key)
        self._dirty_nodes.clear()
        self._keep_reserved(now)
        for key in sorted(self._dirty_workloads):
            self._settle_workload(key, now)
        self._dirty_workloads.clear()
        tellable, is_for = dict[tuple[str, str], bool](), self._calendar.is_for
        for key in self._dirty_emptied & self._emptied.keys():
            self._emptied[key] = tuple(
                sorted(leavers(self.nodes[key].state, self.workloads, tellable, self._kept.get(key, ()), is_for))
            )
        self._dirty_emptied.clear()
        if self._promised:
            # A log that is read again from its beginning tells also of those whose places were given long ago.
            ending = self._leaving.keys() | self._stale.keys()
            self._promised = {id_: of for id_, of in self._promised.items() if id_ in ending}

    def _keep_reserved(self, now: datetime) -> None:
        """Nodes that are kept for a project now are without pods of others that give way."""
        kept = self._calendar.kept_now(now)
        if kept is self._kept:
            return
        for key in kept.keys() | self._kept.keys():
            if kept.get(key) == self._kept.get(key):
                continue
            if key in kept or is_emptied(self._settled_nodes[key]):
                self._emptied.setdefault(key, ())
                self._dirty_emptied.add(key)
            else:
                self._emptied.pop(key, None)
        self._kept = kept

    def _clock_was_set_back(self, now: datetime) -> None:
        """What was to happen at a time may be late by as much as the clock was ahead: look at all of it again."""
        self._dirty_workloads.update(key for _, key in self._due if key)
        self._due.clear()
        for queue in self._queues.values():
            queue.reported_at = None
        self._look_again = None
        # What waits may wait for something that lies ahead again.
        self.freed += 1
        latest = now + timedelta(seconds=MAX_GRACE_SECONDS) + LEAVING_LATE
        for id_, (node_key, until) in self._leaving.items():
            self._leaving[id_] = node_key, min(until, latest)
            self._leave_by[id_] = min(until, latest)
            heapq.heappush(self._due, (min(until, latest), ""))

    def _settle_node(self, key: str) -> None:
        before, after = self._settled_nodes.get(key, NODE.initial), self.nodes[key].state
        self._count_held(before, after)
        for id_ in sorted(before.reservations.keys() - after.reservations.keys()):
            reservation = before.reservations[id_]
            held = self._held.get(reservation.workload_key, {})
            held.pop(id_, None)
            if not held:
                self._held.pop(reservation.workload_key, None)
            self._stale.pop(id_, None)
            self._leaving.pop(id_, None)
            self._late.pop(id_, None)
            self._leave_by.pop(id_, None)
            self._promised.pop(id_, None)
            self._dirty_workloads.add(reservation.workload_key)
        for id_ in sorted(after.reservations.keys() - before.reservations.keys()):
            reservation = after.reservations[id_]
            self._held.setdefault(reservation.workload_key, {})[id_] = key
            self._newly_held.setdefault(reservation.workload_key, set()).add(id_)
            self._dirty_workloads.add(reservation.workload_key)
        if (
            before.reservations.keys() <= after.reservations.keys()
            and before.facts is after.facts
            and before.present
            and after.cordoned >= before.cordoned
            # Beside what is kept of a node there is the more room, the more of that is in use.
            and not any(each.devices is not None for each in self._kept.get(key, ()))
        ):
            pass  # only took more in: nothing was freed
        else:
            self.freed += 1
        if is_emptied(after) or key in self._kept:
            self._emptied.setdefault(key, ())
            self._dirty_emptied.add(key)
        else:
            self._emptied.pop(key, None)
        if before.present:
            self._nodes_in[before.cluster_id, before.facts.pool] -= 1
        if after.present:
            self._nodes_in[after.cluster_id, after.facts.pool] += 1
        cluster = self.cluster(after.cluster_id)
        self._columns.set(key, after, reachable=cluster is not None and cluster.exists and cluster.connected)
        self._calendar.set_node(key, before, after)
        self._settled_nodes[key] = after

    def _count_held(self, before: Node, after: Node) -> None:
        """Count what runs hold on a node, by project and pool; all of it anew where the node is in another pool now."""
        moved = before.facts.pool != after.facts.pool
        gone = before.reservations.keys() if moved else before.reservations.keys() - after.reservations.keys()
        come = after.reservations.keys() if moved else after.reservations.keys() - before.reservations.keys()
        for id_ in gone:
            self._uncount_held(id_)
        for id_ in come - self._stale.keys() - self._left_behind:
            reservation = after.reservations[id_]
            milli = sum(share.milli for share in reservation.devices)
            chain = self.workloads.get(reservation.workload_key)
            if milli and chain is not None:
                key = (chain.state.project_id, after.cluster_id, after.facts.pool, not chain.state.preemptible)
                self._counted[id_] = key, milli
                self._held_in[key] += milli

    def _uncount_held(self, id_: str) -> None:
        counted = self._counted.pop(id_, None)
        if counted is not None:
            key, milli = counted
            self._held_in[key] -= milli
            if not self._held_in[key]:
                del self._held_in[key]

    def _settle_workload(self, key: str, now: datetime) -> None:
        chain = self.workloads.get(key)
        before = self._settled_workloads.pop(key, WORKLOAD.initial)
        state = WORKLOAD.initial if chain is None else chain.state
        self._find_stale(key, before, state, now)
        if self._emptied:
            self._dirty_emptied.update(self._held.get(key, {}).values())
        self._count_running(key, before, state)
        self._chosen.put(key, state)
        idle = not state.pods.live.size
        if idle:
            self._placed_again.pop(key, None)
            self._resized.pop(key, None)
        if key in self._moved:
            self._settle_moved(key, state)
        over = idle and not state.left and (state.phase in FINISHED or not state.living)
        if chain is None or (over and not self._held.get(key)):
            self._take_out(key)
            self._waits.forget(state.workload_id)
            self.forget(WORKLOAD, key)
            return
        self._settled_workloads[key] = state
        if key in self._indexed and not state.pods.waiting.size and _stands_alike(before, state):
            return
        self._take_out(key)
        indexed = self._indexed[key] = _Indexed()
        if schedulable(state):
            self._put_in_queue(key, state, indexed, now, idle=idle)

    def _settle_moved(self, key: str, state: Workload) -> None:
        """Forget those that need no other place any more."""
        left = {id_ for id_ in self._moved[key] if (pod := state.pods.get(id_)) is not None and _makes_room(pod)}
        if left and schedulable(state):
            self._moved[key] = left
        else:
            del self._moved[key]

    def _count_running(self, key: str, before: Workload, after: Workload) -> None:
        """Keep it among those whose place others may take, where it is one."""
        if before.project_id:
            self._running.get(before.project_id, {}).pop(key, None)
            self._running_frozen.pop(before.project_id, None)
        if after.pods.live.size and schedulable(after) and (after.preemptible or after.elastic):
            self._running.setdefault(after.project_id, {})[key] = after
            self._running_frozen.pop(after.project_id, None)

    def _frozen_running(self, *, without: AbstractSet[str] = frozenset()) -> dict[str, tuple[Workload, ...]]:
        """Args: without, keys of workloads that are to stand nowhere in it."""
        for project_id, workloads in list(self._running.items()):
            if not workloads:
                del self._running[project_id]
            elif project_id not in self._running_frozen:
                self._running_frozen[project_id] = tuple(workloads[key] for key in sorted(workloads))
        found = {project_id: self._running_frozen[project_id] for project_id in sorted(self._running_frozen)}
        for project_id in {self.workloads[key].state.project_id for key in without} & found.keys():
            of = self._running[project_id]
            found[project_id] = tuple(of[key] for key in sorted(of.keys() - without))
        return found

    def _find_stale(self, key: str, before: Workload, after: Workload, now: datetime) -> None:
        """Note the reservations of runs that are over, and of those that were told to end; looks at runs that changed
        and at new reservations only.
        """
        suspects, runs = self._newly_held.pop(key, None), changed(before.pods, after.pods)
        if not (suspects or runs or before.left is not after.left):
            return
        held, suspects = self._held.get(key, {}), suspects or set()
        alive: set[str] = set()
        for _, (name, index), old, new in changed_left(before.left, after.left):
            if old is not None:
                suspects.add(id_ := reservation_id(before.workload_id, name, index, old.attempt, old.try_))
                self._left_behind.discard(id_)
            if new is not None:
                alive.add(id_ := reservation_id(after.workload_id, name, index, new.attempt, new.try_))
                self._left_behind.add(id_)
                self._uncount_held(id_)
                self.freed += 1  # what its project may hold
        for (name, index), (old, new) in runs.items():
            if old is not None:
                suspects.add(id_ := reservation_id(before.workload_id, name, index, old.attempt, old.try_))
                self._leaving.pop(id_, None)
                self._late.pop(id_, None)
            if new is not None and new.phase in LIVE_POD_PHASES:
                alive.add(id_ := reservation_id(after.workload_id, name, index, new.attempt, new.try_))
                if new.phase is PodPhase.STOPPING:
                    self._leaves(id_, new, after, now)
        for id_ in suspects - alive:
            self._leave_by.pop(id_, None)
            if id_ in held and id_ not in self._stale and not _is_alive(id_, after):
                self._stale[id_] = held[id_]
                self._uncount_held(id_)
                self.freed += 1

    def _leaves(self, id_: str, pod: Pod, of: Workload, now: datetime) -> None:
        """Its place comes free, so that it can be kept for another; not for ever, where it does not end."""
        grace = timedelta(seconds=min(max(of.spec.termination_grace_period_seconds, 0), MAX_GRACE_SECONDS))
        # Known where it was told before this process began, or something else of the pod changed since.
        anew = now + grace + LEAVING_LATE
        until = self._leave_by[id_] = min(self._leave_by.get(id_, anew), anew)
        if until <= now:
            self._late[id_] = pod.node_key
        else:
            self._leaving[id_] = pod.node_key, until
            heapq.heappush(self._due, (until, ""))
        self.freed += 1

    def _take_out(self, key: str) -> None:
        self._not_schedulable.pop(key, None)
        if (growth := self._growing.pop(key, None)) is not None:
            uncount(self._extended_asked, growth.pod_class.extended)
        indexed = self._indexed.pop(key, None)
        if indexed is None:
            return
        for queue, entry in indexed.entries:
            queue.remove(entry)
            if not queue:
                self._queues.pop(queue.pod_class, None)
                uncount(self._extended_asked, queue.pod_class.extended)

    def _put_in_queue(self, key: str, state: Workload, indexed: _Indexed, now: datetime, *, idle: bool) -> None:
        retry_at = next_retry_at(state, now)
        if retry_at is not None:
            heapq.heappush(self._due, (retry_at, key))
        stint = self._waits.of(state)
        # One that made room for others has a place, and goes before all who wait.
        order = (-INFINITE,) if key in self._moved else self._order(state, stint.since)
        found = ready(key, state, Place(order=order, stint=stint, rights=self._rights(state)), now)
        if found.growth is not None:
            self._growing[key] = found.growth
            self._extended_asked.update(found.growth.pod_class.extended)
        if not found.waiting:
            self._nothing_to_bind(key, state, retry_at if idle else None)
        for pod_class, entry in found.waiting:
            queue = self._queues.get(pod_class)
            if queue is None:
                queue = self._queues[pod_class] = WaitingQueue(pod_class)
                self._extended_asked.update(pod_class.extended)
            queue.add(entry)
            indexed.entries.append((queue, entry))

    def _order(self, state: Workload, since: float) -> tuple[float, ...]:
        age = Age(since, self._head_start_seconds)
        return tuple([each.value(state, age) for each in self._orders])

    def _nothing_to_bind(self, key: str, state: Workload, retry_at: datetime | None) -> None:
        """Nothing of it can be bound now; only what the log does not say yet is kept."""
        waiting = None
        if retry_at is not None and state.reason != WaitingReason.BACKOFF:
            waiting = Waiting(reason=WaitingReason.BACKOFF, message=_why_it_backs_off(state, retry_at))
        if waiting is not None or not state.queued:
            self._not_schedulable[key] = NotSchedulable(
                key=key, workload_id=state.workload_id, name=state.name, waiting=waiting
            )

    # -- planning ----------------------------------------------------------------------------------------------------

    def snapshot(self, now: datetime) -> Snapshot:
        """What the planner is to look at now; later changes of the fold do not reach it.

        All of it is in an order that follows from the log, and not from when it was settled, or restored.
        """
        self.settle(now)
        in_order = sorted(self._queues.values(), key=lambda queue: queue.first)
        queues = [self._frozen(queue, now) for queue in in_order]
        departures = tuple(self._departures(now))
        leave = {each.key for each in departures}
        must_leave = {key: of for key, of in self._must_leave(now).items() if key not in leave}
        stay = sorted(self._growing.keys() - must_leave - leave)
        growing = tuple(self._grows(key, self._growing[key], now) for key in stay)
        running = self._frozen_running(without=must_leave.keys() | leave) if queues else {}
        holders = {project_id for project_id, *_ in self._held_in} if queues or growing else set[str]()
        ids = {queue.pod_class.project_id for queue in queues} | running.keys() | holders
        ids |= {each.pod_class.project_id for each in growing}
        projects = {id_: view for id_ in sorted(ids) if (view := self._project_view(id_)) is not None}
        snapshot = Snapshot(
            now=now,
            nodes=self._columns.frozen(extended=self._extended_asked, closings=self._closings(now)),
            clusters={chain.state.cluster_id: self._cluster_view(chain.state) for chain in self.clusters.values()},
            projects=projects,
            held_milli=self._held_of(projects),
            held_in=dict(sorted(self._held_in.items())),
            queues=tuple(queues),
            mix=self.mix.told(),
            not_schedulable=tuple(self._not_schedulable[key] for key in sorted(self._not_schedulable)),
            releases=tuple(self._release(id_, node_key) for id_, node_key in sorted(self._stale.items())),
            leaving=tuple(self._still_leaving(sorted((id_, at) for id_, (at, _) in self._leaving.items()))),
            late=tuple(self._still_leaving(sorted(self._late.items()))),
            consolidates=self.consolidates,
            moving=tuple(each for _, each in self._returning()) if queues or growing else (),
            growing=growing,
            running=running,
            labelled=self._calendar.labelled,
            marks=self._calendar.marks(self.nodes, now),
            must_leave=tuple(
                (self.workloads[key].state, tuple(of_workload)) for key, of_workload in sorted(must_leave.items())
            ),
            departures=departures,
            placed_again={self.workloads[key].state.workload_id: at for key, at in self._placed_again.items()},
            promised=self._promises(),
            promised_then=self._promises(ended=False),
            stints=self._waits.frozen(),
            head_start_seconds=self._head_start_seconds,
        )
        return standing(snapshot, POLICY, self._known)

    def is_idle(self, now: datetime) -> bool:
        """Whether nothing waits or may grow, nothing is to be released or reported, and no node is to be emptied."""
        self.settle(now)
        waits = self._queues or self._growing or self._stale or self._not_schedulable or self._emptied
        leaves = self._must_leave(now) or any(self._departures(now))
        return not waits and not self._calendar.marks(self.nodes, now) and not leaves

    def _departures(self, now: datetime) -> Iterator[Departure]:
        clusters = {chain.state.cluster_id: chain.state for chain in self.clusters.values()}
        yield from self._chosen.departures(clusters, self.workloads, self.leaves_after, now)

    def leaves_after(self, project_id: str) -> timedelta | None:
        """For how long a cluster is lost before workloads of this project leave it; None: they never do."""
        chain = self.projects.get(key_of_id(project_id) or "")
        if chain is None:
            return None
        department = self._department(chain.state.department_id)
        seconds = chain.state.cluster_lost_seconds
        if seconds is None and department is not None:
            seconds = department.cluster_lost_seconds
        # The log may say any number, of seconds that no span can hold.
        return timedelta(seconds=min(seconds, MAX_CLUSTER_LOST)) if seconds is not None and seconds > 0 else None

    def _closings(self, now: datetime) -> tuple[Closing, ...]:
        return self._calendar.closings(self._columns.rows, now)

    def _rights(self, state: Workload) -> Rights:
        chain = self.projects.get(key_of_id(state.project_id) or "")
        return rights_of(() if chain is None else chain.state.time_limits, self._calendar.labelled, state)

    def _grows(self, key: str, growth: Growth, now: datetime) -> Growth:
        resized = self._resized.get(key)
        # By a clock that was ahead it may be a time to come, which is none to wait for.
        if resized is None or not resized <= now < resized + GROWS_AGAIN_AFTER:
            return growth
        heapq.heappush(self._due, (resized + GROWS_AGAIN_AFTER, ""))
        return replace(growth, rests_until=resized + GROWS_AGAIN_AFTER)

    def _must_leave(self, now: datetime) -> dict[str, list[MustLeave]]:
        """By key of their workload: the pods that have to leave their node now."""
        found: dict[str, list[MustLeave]] = {}
        for node in sorted(self._emptied):
            for each in self._emptied[node]:
                if each.at > now:
                    break
                found.setdefault(each.key, []).append(each)
        for project_id in self._windows.closed_that_end():
            for each in self._ended_by_window(project_id):
                found.setdefault(each.key, []).append(each)
        return dict(sorted(found.items()))

    def _ended_by_window(self, project_id: str) -> Iterator[MustLeave]:
        closed, running = self._windows.closed(project_id), self._running.get(project_id, {})
        for key in sorted(running) if closed is not None else ():
            state = running[key]
            message = f"it runs outside of the windows of its project ({closed.told if closed else ''})"
            for (name, index), pod in sorted(state.pods.live.items()) if state.preemptible else ():
                if evictable(pod):
                    ref = PodRef(pod_set=name, index=index, attempt=pod.attempt, try_=pod.try_)
                    yield MustLeave(AT_ONCE, key, ref, "window_closed", message)

    def _returning(self) -> Iterator[tuple[str, Moving]]:
        """Pods that make room for others and have not ended yet: the id of what each holds, and where it may go."""
        for key, ids in sorted(self._moved.items()):
            state: Workload = self.workloads[key].state
            for name, index in sorted(ids):
                pod = state.pods.live.get((name, index))
                if pod is None:
                    continue
                held = reservation_id(state.workload_id, name, index, pod.attempt, pod.try_)
                pod_set = next((each for each in state.pod_sets if each.name == name), None)
                row = self._columns.rows.get(pod.node_key)
                if held in self._leaving and pod_set is not None and row is not None:
                    yield held, Moving(class_of(key, state, pod_set, self._rights(state)), row)

    def _promises(self, *, ended: bool = True) -> dict[str, int]:
        """What is promised to each workload (by its id), in thousandths of a GPU: to those that made room for others
        first, then in the order in which it was. `ended`: also what those held that are over.
        """
        found: dict[str, int] = {}
        for key, ids in self._moved.items():
            state: Workload = self.workloads[key].state
            requests = {each.name: each.template.request for each in state.pod_sets}
            back = [requests[name] for name, index in ids if (name, index) in state.pods.waiting and name in requests]
            if back:
                milli = sum(each.gpu_devices * each.gpu_milli for each in back)
                found[state.workload_id] = found.get(state.workload_id, 0) + milli
        for id_, of in self._promised.items():
            if id_ in self._stale and not ended:
                continue
            node_key = self._stale.get(id_) or self._leaving[id_][0]
            held = self.nodes[node_key].state.reservations.get(id_) if node_key in self.nodes else None
            milli = 0 if held is None else sum(share.milli for share in held.devices)
            found[of] = found.get(of, 0) + milli
        return found

    def _still_leaving(self, of: Iterable[tuple[str, str]]) -> Iterator[Leaving]:
        """Args: of, id of a reservation and node key of each."""
        returning = {each for each, _ in self._returning()}
        for id_, node_key in of:
            row, chain = self._columns.rows.get(node_key), self.nodes.get(node_key)
            reservation = None if chain is None else chain.state.reservations.get(id_)
            if row is not None and reservation is not None and id_ not in self._stale:
                (project_id, _, pool, firm), _ = self._counted.get(id_, (("", "", "", False), 0))
                yield Leaving(row, reservation, project_id, pool, not firm, id_ in returning)

    def imagine(self, state: Workload, now: datetime) -> tuple[Snapshot, tuple[tuple[PodClass, Pending], ...]]:
        """What the planner would look at now if there were also this workload, and its waiting pods."""
        snapshot = self.snapshot(now)
        # Behind all keys that there can be: of two that were made in one moment, the real one goes first.
        stint = Stint(now.timestamp(), now.timestamp())
        place = Place(order=self._order(state, stint.since), stint=stint, rights=self._rights(state))
        # Nothing is told of it anywhere.
        added = tuple(
            (pod_class, replace(entry, queued=True, idle=False, reported="", told=""))
            for pod_class, entry in ready(f"~{state.workload_id}", state, place, now).waiting
        )
        # A snapshot has those whose place could be taken only where something waits.
        running = self._frozen_running()
        ids = {state.project_id, *snapshot.projects, *running, *(project_id for project_id, *_ in self._held_in)}
        projects = {id_: view for id_ in sorted(ids) if (view := self._project_view(id_)) is not None}
        asked = {*self._extended_asked, *(name for pod_class, _ in added for name in pod_class.extended)}
        snapshot = replace(
            snapshot,
            nodes=self._columns.frozen(extended=asked, closings=self._closings(now)),
            projects=projects,
            held_milli=self._held_of(projects),
            not_schedulable=(),
            running=running,
        )
        if any(pod_class.among for pod_class, _ in added):
            stands = Stands(snapshot, POLICY)
            added = tuple((stands.of(pod_class), entry) for pod_class, entry in added)
        return snapshot, added

    def runs_of(self, key: str) -> Mapping[str, str]:
        """What a workload holds: node key by id of a reservation. Without what was left on lost clusters."""
        held = self._held.get(key, {})
        if self._left_behind.isdisjoint(held):
            return held
        return {id_: node_key for id_, node_key in held.items() if id_ not in self._left_behind}

    def left_by(self, key: str) -> Mapping[str, str]:
        """What runs hold that a workload left on lost clusters: node key by id of a reservation."""
        held = self._held.get(key, {})
        return {id_: node_key for id_, node_key in held.items() if id_ in self._left_behind}

    def under(self, bound: Bound) -> list[tuple[str, int]]:
        """Workloads (by key) that count under a bound, each with the GPUs that it holds there, in thousandths."""
        held = Counter[str]()
        for id_, ((project_id, _, pool, firm), milli) in self._counted.items():
            counts = bound.id in {project_id, self._department_of(project_id)} and bound.pool in {"", pool}
            if counts and (firm or not bound.firm):
                held[key_of_id(id_.partition("/")[0]) or ""] += milli
        return list(held.items())

    def without(self, snapshot: Snapshot, runs: Mapping[str, str]) -> Snapshot:
        """The same, as if these runs had ended (node key by id of a reservation)."""
        gone = {id_: node_key for id_, node_key in runs.items() if id_ not in self._stale}
        held, held_in = dict(snapshot.held_milli), Counter(snapshot.held_in)
        for id_ in gone:
            key, milli = self._counted.get(id_, (("", "", "", False), 0))
            project_id, _, pool, firm = key
            held_in[key] -= milli
            for holder in {project_id, self._department_of(project_id)} if milli else ():
                for place in ("", pool):
                    for counted in {False, firm}:
                        if (bound := (holder, place, counted)) in held:
                            held[bound] -= milli
        return replace(
            snapshot,
            held_milli=held,
            held_in=dict(+held_in),
            releases=(*snapshot.releases, *(self._release(id_, node_key) for id_, node_key in gone.items())),
            leaving=tuple(each for each in snapshot.leaving if each.reservation.id not in gone),
            late=tuple(each for each in snapshot.late if each.reservation.id not in gone),
        )

    def _release(self, id_: str, node_key: str) -> Release:
        node = self.nodes[node_key].state
        return Release(
            node_key=node_key,
            node_name=node.name,
            row=self._columns.rows.get(node_key, -1),
            reservation=node.reservations[id_],
        )

    def note(self, snapshot: Snapshot, plan: Plan) -> None:
        """Remember what the plan found out, so that the next one need not look again until something is freed."""
        if plan.look_again is not None:
            # Not for each pod apart, where many have begun one after the other.
            at = max(plan.look_again, snapshot.now + REPORT_AGAIN_AFTER)
            if self._look_again is None or at < self._look_again:
                self._look_again = at
                heapq.heappush(self._due, (at, ""))
        for seen in snapshot.queues:
            queue = self._queues.get(seen.kept_as or seen.pod_class)
            blocked, held = plan.blocked.get(seen.pod_class), plan.held.get(seen.pod_class)
            waiting = blocked or held
            if queue is not None and seen.pod_class in plan.put_off:
                queue.put_off += 1
            elif queue is not None and (waiting is not None or not plan.more):
                queue.put_off = 0  # it was looked at
            if queue is None or waiting is None:
                continue
            if blocked is not None:
                queue.block(blocked, self.freed)
            if seen.unreported and queue.reported:
                # They are told something else than those before them were.
                queue.planned |= waiting.planned
                queue.mixed = queue.mixed or is_another(queue.reported, waiting.reason)
            if plan.more:
                continue  # not all of the queue was reported yet
            again = seen.report_again or (seen.may_report and _may_be_news(queue, waiting))
            if not queue.reported or again:
                queue.reported, queue.planned, queue.reported_at = waiting.reason, waiting.planned, snapshot.now
                queue.mixed = False
            elif queue.reported_at is not None and _may_be_news(queue, waiting):
                heapq.heappush(self._due, (queue.reported_at + REPORT_AGAIN_AFTER, ""))

    def report_again(self, keys: Iterable[str]) -> None:
        """What was to be told of these workloads is not in the log, though it was noted as told."""
        for key in keys:
            for queue, _ in self._indexed[key].entries if key in self._indexed else ():
                queue.reported_at = None

    def next_due(self) -> datetime | None:
        """When there is something to look at although nothing happens."""
        times = [of_node[0].at for of_node in self._emptied.values() if of_node]
        if self._settled_at is not None and (next_ := self._calendar.next_change(self._settled_at)) is not None:
            times.append(next_)
        if (changes := self._windows.next_change()) is not None:
            times.append(changes)
        clusters = (chain.state for chain in self.clusters.values())
        if (leaves := self._chosen.next_departure(clusters, self.leaves_after, self._settled_at)) is not None:
            times.append(leaves)
        return min((*times, self._due[0][0]) if self._due else times, default=None)

    def cluster(self, cluster_id: str) -> Cluster | None:
        key = key_of_id(cluster_id)
        chain = None if key is None else self.clusters.get(key)
        return chain.state if chain is not None and chain.state.cluster_id == cluster_id else None

    def _frozen(self, queue: WaitingQueue, now: datetime) -> Queue:
        told_at, blocked = queue.reported_at, queue.blocked(self.freed)
        may_report = told_at is None or now - told_at >= REPORT_AGAIN_AFTER
        again = told_at is None or (may_report and (blocked is None or _may_be_news(queue, blocked)))
        return queue.frozen(self.freed, report_again=again, may_report=may_report)

    def _cluster_view(self, state: Cluster) -> ClusterView:
        on_nodes = {pool for (id_, pool), count in self._nodes_in.items() if count and id_ == state.cluster_id}
        others = (on_nodes | set(state.node_pools)) - {DEFAULT_POOL}
        return ClusterView(
            name=state.name,
            kind=state.kind,
            exists=state.exists,
            connected=state.connected,
            problem=state.problem,
            pools=(DEFAULT_POOL, *sorted(others)),
        )

    def _project_view(self, project_id: str) -> ProjectView | None:
        key = key_of_id(project_id)
        chain = None if key is None else self.projects.get(key)
        if chain is None:
            return None
        department = self._department(chain.state.department_id)
        return ProjectView(
            name=chain.state.name,
            exists=chain.state.exists and chain.state.project_id == project_id,
            department_id=chain.state.department_id,
            pools=chain.state.node_pools or (() if department is None else department.node_pools),
            bounds=(
                *_bounds("project", project_id, chain.state),
                *_of_window(project_id, chain.state, self._windows.within_quota(project_id)),
                *(() if department is None else _bounds("department", department.department_id, department)),
            ),
            closed=self._windows.closed(project_id),
            within_quota=self._windows.within_quota(project_id),
            weights=_weights(chain.state),
            department_weights=_weights(department),
            minimum_runtime=_minimum_runtime(chain.state, department),
            time_limits=chain.state.time_limits,
        )

    def _department(self, department_id: str) -> Department | None:
        chain = self.departments.get(key_of_id(department_id) or "")
        return chain.state if chain is not None and chain.state.department_id == department_id else None

    def _held_of(self, projects: Mapping[str, ProjectView]) -> dict[BoundKey, int]:
        """What these projects, and their departments, hold: under each of their bounds, and everywhere."""
        bounds = [bound for view in projects.values() for bound in view.bounds]
        holders = {*projects, *(view.department_id for view in projects.values())}
        keys = {key for bound in bounds for key in (bound.key, bound.all_key)}
        return self._held_under(keys | {(holder, "", False) for holder in holders})

    def _held_under(self, keys: AbstractSet[BoundKey]) -> dict[BoundKey, int]:
        """What is held under each of these keys of bounds."""
        held: dict[BoundKey, int] = dict.fromkeys(keys, 0)
        if not held:
            return held
        departments = {project_id: self._department_of(project_id) for project_id, *_ in self._held_in}
        for (project_id, _, pool, firm), milli in self._held_in.items():
            for holder in (project_id, departments[project_id]):
                for place in ("", pool):
                    for counted in {False, firm}:
                        if (key := (holder, place, counted)) in held:
                            held[key] += milli
        return held

    def _department_of(self, project_id: str) -> str:
        chain = self.projects.get(key_of_id(project_id) or "")
        return "" if chain is None else chain.state.department_id


def _may_be_news(queue: WaitingQueue, waiting: Waiting) -> bool:
    """To some of the queue; which, the report finds out by what the log tells of each."""
    return queue.mixed or is_another(queue.reported, waiting.reason) or not queue.planned <= waiting.planned


def _weights(of: Project | Department | None) -> Weights:
    if of is None:
        return Weights()
    pools = {each.node_pool: each.over_quota_weight for each in of.pool_quotas if each.over_quota_weight is not None}
    return (
        Weights(pools=pools) if of.over_quota_weight is None else Weights(everywhere=of.over_quota_weight, pools=pools)
    )


def _minimum_runtime(project: Project, department: Department | None) -> timedelta:
    seconds = project.minimum_runtime_seconds
    if seconds is None and department is not None:
        seconds = department.minimum_runtime_seconds
    # The log may say any number, of seconds that no span can hold.
    return timedelta(seconds=min(max(seconds or 0, 0), MAX_MINIMUM_RUNTIME))


def _bounds(noun: str, id_: str, of: Project | Department) -> Iterator[Bound]:
    everywhere = PoolQuota(node_pool="", gpu_quota_milli=of.gpu_quota_milli, gpu_limit_milli=of.gpu_limit_milli)
    for each in (everywhere, *of.pool_quotas):
        for firm, milli in ((True, each.gpu_quota_milli), (False, each.gpu_limit_milli)):
            if milli is not None:
                yield Bound(holder=f"{noun} {of.name}", id=id_, pool=each.node_pool, firm=firm, milli=milli)


def _of_window(id_: str, of: Project, closed: Closed | None) -> Iterator[Bound]:
    """Outside of windows for what is over quota: the quotas bound all that the project holds. Where it has none beside
    those of node pools, it may hold as much as these are together.
    """
    if closed is None:
        return
    pools = {each.node_pool: each.gpu_quota_milli for each in of.pool_quotas if each.gpu_quota_milli is not None}
    everywhere = sum(pools.values()) if of.gpu_quota_milli is None else of.gpu_quota_milli
    for pool, milli in ({"": everywhere} | pools).items():
        yield Bound(holder=f"project {of.name}", id=id_, pool=pool, firm=False, milli=milli, window=closed)


def _makes_room(pod: Pod) -> bool:
    return pod.phase in {PodPhase.STOPPING, PodPhase.PENDING}


def _stands_alike(before: Workload, after: Workload) -> bool:
    """Whether the same is to be placed of both, and was told, where no pod waits to be run again."""
    same = (
        before.progress is after.progress
        and before.spec is after.spec
        and before.beside is after.beside
        and before.pods.waiting is after.pods.waiting
        and before.queued == after.queued
        and before.left is after.left
        and bool(before.pods.live) == bool(after.pods.live)
        and before.gave_way_to == after.gave_way_to
        and (not after.elastic or _staying(before) == _staying(after))
    )
    whose = before.workload_id, before.cluster_id
    fields = (*whose, before.desired, before.phase, before.reason, before.message, before.attempt, before.failures)
    return same and fields == (
        after.workload_id,
        after.cluster_id,
        after.desired,
        after.phase,
        after.reason,
        after.message,
        after.attempt,
        after.failures,
    )


def _staying(of: Workload) -> list[int]:
    """By pod set: by that it is known how many more an elastic workload may have."""
    return [placed_of(of, pod_set) for pod_set in of.pod_sets]


def _is_alive(reservation: str, state: Workload) -> bool:
    """Whether it is of a run that holds a node."""
    ref = run_of(reservation, state.workload_id)
    pod = None if ref is None else state.pods.live.get(pod_id(ref))
    if pod is not None and ref is not None and pod.is_run(ref):
        return True
    left = () if ref is None else (pods.get(pod_id(ref)) for pods in state.left.values())
    return any(each is not None and ref is not None and each.is_run(ref) for each in left)


def _why_it_backs_off(state: Workload, retry_at: datetime) -> str:
    """What the next run waits for, and how the one before it ended."""
    (name, index), pod = min(
        ((id_, pod) for id_, pod in state.pods.waiting.items() if pod.not_before == retry_at),
        key=lambda found: found[0],
    )
    at = f"the next run begins at {retry_at:%H:%M:%S} UTC"
    limit = KINDS[state.kind].backoff_limit(state.spec)
    spent = f" (failed runs {state.failures}, backoff limit {limit})" if state.failures and limit is not None else ""
    return f"pod {name}-{index} {pod.ended}; {at}{spent}" if pod.ended else f"{at}{spent}"
