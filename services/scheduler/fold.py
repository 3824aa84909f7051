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
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, override

import msgspec

from events.aggregate import CLUSTER, DEPARTMENT, LOG, NODE, PROJECT, WORKLOAD, Chain
from events.cluster import Cluster
from events.commit import Commit
from events.department import Department
from events.installation import LOG_KEY
from events.node import Node, reservation_id
from events.phases import FINISHED, DesiredPhase, PodPhase, WaitingReason
from events.project import Project
from events.reserved_shares import KeptFor
from events.workload.evictions import PodsEvicted, evictable
from events.workload.kinds import KINDS
from events.workload.life import WorkloadWaiting
from events.workload.places import bindable, next_retry_at
from events.workload.pod import Pod, PodFailed, PodId, PodRef, PodsBound, PodStopped, PodSucceeded, pod_id
from events.workload.state import Workload, schedulable
from services.runtime.log.log_fold import LogFold
from services.scheduler.calendar import Calendar
from services.scheduler.chosen import ChosenClusters
from services.scheduler.classes import NOTHING, Place, Ready, Rights, class_of, ready, stands_alike
from services.scheduler.columns import Columns
from services.scheduler.forecast import Forecast, Kept
from services.scheduler.held import Held
from services.scheduler.mix import Mix, shape_of
from services.scheduler.must_leave import AT_ONCE, is_emptied, leavers
from services.scheduler.owners import Owners
from services.scheduler.policy.among import Known, standing
from services.scheduler.policy.phases.grow import GROWS_AGAIN_AFTER
from services.scheduler.policy.registry import POLICY
from services.scheduler.policy.rules import Age, Order
from services.scheduler.queues import REPORT_AGAIN_AFTER, Queues, extended_in
from services.scheduler.running import RunningWorkloads
from services.scheduler.snapshot import (
    INFINITE,
    BoundKey,
    Closing,
    Departure,
    Growth,
    Leaving,
    Moving,
    MustLeave,
    NotSchedulable,
    Plan,
    PodClass,
    ProjectView,
    Release,
    Snapshot,
    Waiting,
)
from services.scheduler.waits import Stint, Waits
from services.scheduler.windows import ProjectWindows

FOLDED: Final = (WORKLOAD, NODE, CLUSTER, PROJECT, DEPARTMENT, LOG)
"""Aggregates whose chains are kept, and stored in snapshots."""
_TELLING: Final = frozenset({WorkloadWaiting, PodsBound, PodSucceeded, PodFailed, PodStopped})
"""Events from which it is learnt how long things take."""
DEFAULT_HEAD_START: Final = timedelta(hours=24)
"""That a rank of priority is worth."""


type _Moved = dict[str, set[PodId]]
type _Resized = dict[str, datetime]
type _LeaveBy = dict[str, datetime]
type _Beside = tuple[
    bytes, dict[str, str], dict[str, datetime], bytes, dict[str, tuple[float, float]], _Resized, _Moved, _LeaveBy
]


class _Imagined(NamedTuple):
    """A workload that is not there."""

    state: Workload
    ready: Ready

    @property
    def growing(self) -> tuple[Growth, ...]:
        return () if self.ready.growth is None else (self.ready.growth,)


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
        self.owners = Owners(self.clusters, self.projects, self.departments)
        self.held, self._queues = Held(self.workloads, self.owners, self._wake), Queues(self._wake)
        self._not_schedulable, self._chosen = dict[str, NotSchedulable](), ChosenClusters()
        self._placed_again: dict[str, datetime] = {}
        """By workload key, of those that gave up a place to another before: when it got the last one."""
        self._moved: _Moved = {}
        """By workload key: pods that were told to end to make room for others, until they are bound again."""
        self._resized = dict[str, datetime]()
        """By workload key: when an elastic workload that held nodes got or gave up others."""
        self._running = RunningWorkloads()
        self._emptied: dict[str, tuple[MustLeave, ...]] = {}
        """By key of a node with a taint that evicts, or that is drained: its pods that have to leave, the first first.
        """
        self._kept: dict[str, tuple[KeptFor, ...]] = {}
        """By key of a node: the reservations by which only one project may use it now."""
        self._dirty_emptied: set[str] = set()
        """Of these nodes those on which that may be others by now."""
        self._settled_nodes, self._settled_workloads = dict[str, Node](), dict[str, Workload]()
        """As they stand in the indexes."""
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
                        self.held.promise(after.state.workload_id, event)
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
        _comes(self.mix, workload, at)

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
            mix, promised, self._placed_again, learnt, waits, self._resized, self._moved, leave_by = (
                msgspec.msgpack.decode(beside, type=_Beside)
            )
        except msgspec.MsgspecError:
            mix, promised, self._placed_again, learnt, waits = b"", {}, {}, b"", dict[str, tuple[float, float]]()
            self._resized, self._moved, leave_by = {}, {}, {}
        self.held.promised, self.held.leave_by = promised, leave_by
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
        kept = self.mix.stored(), self.held.promised, self._placed_again, learnt, waits, self._resized, self._moved
        return msgspec.msgpack.encode((*kept, self.held.leave_by))

    def _wake(self, at: datetime, key: str = "") -> None:
        """Look at this workload, or at everything, then."""
        heapq.heappush(self._due, (at, key))

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
        if "" in due and self.held.late_by(now):
            self.freed += 1  # what was kept for others there, anybody may have
        self._dirty_workloads |= due - {""}
        for key in self._dirty_nodes:
            self._settle_node(key)
        self._dirty_nodes.clear()
        self._keep_reserved(now)
        for key in sorted(self._dirty_workloads):
            self._settle_workload(key, now)
        self._dirty_workloads.clear()
        if self._may_be_taken_from(self.held.grown):
            self.freed += 1
        self.held.grown.clear()
        tellable, is_for = dict[tuple[str, str], bool](), self._calendar.is_for
        for key in self._dirty_emptied & self._emptied.keys():
            self._emptied[key] = tuple(
                sorted(leavers(self.nodes[key].state, self.workloads, tellable, self._kept.get(key, ()), is_for))
            )
        self._dirty_emptied.clear()
        self.held.forget_promises()

    def _may_be_taken_from(self, project_ids: AbstractSet[str]) -> bool:
        """Whether others who wait may have a right to what one of these projects holds, as it is beyond a quota, or has
        none.
        """
        others_wait = (id_ for id_ in project_ids if self._queues.has_others(id_))
        views = {id_: view for id_ in others_wait if (view := self._view(id_)) is not None}
        quotas = {id_: [bound for bound in view.bounds if bound.firm] for id_, view in views.items()}
        if any(all(bound.id != id_ for bound in of) for id_, of in quotas.items()):
            return True
        every = [bound for of in quotas.values() for bound in of]
        held = self.held.by_bound({bound.all_key for bound in every})
        return any(held[bound.all_key] > bound.milli for bound in every)

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
        self._queues.clock_was_set_back()
        self._look_again = None
        # What waits may wait for something that lies ahead again.
        self.freed += 1
        self.held.clock_was_set_back(now)

    def _settle_node(self, key: str) -> None:
        before, after = self._settled_nodes.get(key, NODE.initial), self.nodes[key].state
        self._dirty_workloads |= self.held.settle_node(key, before, after)
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
        cluster = self.owners.cluster(after.cluster_id)
        self._columns.set(key, after, reachable=cluster is not None and cluster.exists and cluster.connected)
        self._calendar.set_node(key, before, after)
        self._settled_nodes[key] = after

    def _settle_workload(self, key: str, now: datetime) -> None:
        chain = self.workloads.get(key)
        before = self._settled_workloads.pop(key, WORKLOAD.initial)
        state = WORKLOAD.initial if chain is None else chain.state
        if self.held.settle_runs(key, before, state, now):
            self.freed += 1
        if self._emptied:
            self._dirty_emptied.update(self.held.of(key).values())
        self._running.put(key, before, state)
        self._chosen.put(key, state)
        idle = not state.pods.live.size
        if idle:
            self._placed_again.pop(key, None)
            self._resized.pop(key, None)
        if key in self._moved:
            self._settle_moved(key, state)
        over = idle and not state.left and (state.phase in FINISHED or not state.living)
        if chain is None or (over and not self.held.of(key)):
            self._take_out(key)
            self._waits.forget(state.workload_id)
            self.forget(WORKLOAD, key)
            return
        self._settled_workloads[key] = state
        if key in self._queues and not state.pods.waiting.size and stands_alike(before, state):
            return
        self._take_out(key)
        self._queues.put(key, self._ready(key, state, now, idle=idle) if schedulable(state) else NOTHING)

    def _settle_moved(self, key: str, state: Workload) -> None:
        """Forget those that need no other place any more."""
        left = {id_ for id_ in self._moved[key] if (pod := state.pods.get(id_)) is not None and _makes_room(pod)}
        if left and schedulable(state):
            self._moved[key] = left
        else:
            del self._moved[key]

    def _take_out(self, key: str) -> None:
        self._not_schedulable.pop(key, None)
        self._queues.take_out(key)

    def _ready(self, key: str, state: Workload, now: datetime, *, idle: bool) -> Ready:
        """What of it may be bound now; where that is nothing, why is noted."""
        retry_at = next_retry_at(state, now)
        if retry_at is not None:
            self._wake(retry_at, key)
        pods = bindable(state, now)
        if not pods:  # most have all that they want
            self._nothing_to_bind(key, state, retry_at if idle else None)
            return NOTHING
        stint = self._waits.of(state)
        # One that made room for others has a place, and goes before all who wait.
        order = (-INFINITE,) if key in self._moved else self._order(state, stint.since)
        found = ready(key, state, Place(order=order, stint=stint, rights=self._rights(state)), pods)
        if not found.waiting:
            self._nothing_to_bind(key, state, retry_at if idle else None)
        return found

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
        return self._seen(now, None)

    def imagine(self, state: Workload, now: datetime, key: str) -> Snapshot:
        """What the planner would look at now if there were also this workload, under this key."""
        self.settle(now)
        stint = Stint(now.timestamp(), now.timestamp())
        place = Place(order=self._order(state, stint.since), stint=stint, rights=self._rights(state))
        return self._seen(now, _Imagined(state, ready(key, state, place, bindable(state, now))))

    def _seen(self, now: datetime, also: "_Imagined | None") -> Snapshot:
        queues = self._queues.frozen(self.freed, now)
        departures = tuple(self._departures(now))
        leave = {each.key for each in departures}
        must_leave = {key: of for key, of in self._must_leave(now).items() if key not in leave}
        stay = sorted(self._queues.growing.keys() - must_leave - leave)
        growing = tuple(self._grows(key, self._queues.growing[key], now) for key in stay)
        asked, mix = self._queues.extended_asked, self.mix
        if also is not None:
            queues, asked = self._queues.frozen_with(also.ready, queues), asked + extended_in(also.ready)
            growing = tuple(sorted((*growing, *also.growing), key=lambda each: each.entry.key))
            mix = mix.copy()
            _comes(mix, also.state, now)
        running = self._running.frozen(without=must_leave.keys() | leave) if queues else {}
        holders = self.held.project_ids() if queues or growing else set[str]()
        ids = {queue.pod_class.project_id for queue in queues} | running.keys() | holders
        ids |= {each.pod_class.project_id for each in growing} | ({also.state.project_id} if also else set())
        projects = {id_: view for id_ in sorted(ids) if (view := self._view(id_)) is not None}
        snapshot = Snapshot(
            now=now,
            nodes=self._columns.frozen(extended=asked, closings=self._closings(now)),
            clusters=self.owners.views(place for place, count in self._nodes_in.items() if count),
            projects=projects,
            held_milli=self._held_of(projects),
            held_in=dict(sorted(self.held.shares.items())),
            queues=tuple(queues),
            mix=mix.told(),
            not_schedulable=tuple(self._not_schedulable[key] for key in sorted(self._not_schedulable)),
            releases=tuple(self._release(id_, node_key) for id_, node_key in sorted(self.held.stale.items())),
            leaving=tuple(self._still_leaving(sorted((id_, at) for id_, (at, _) in self.held.leaving.items()))),
            late=tuple(self._still_leaving(sorted(self.held.late.items()))),
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

    def _view(self, project_id: str) -> ProjectView | None:
        windows = self._windows
        return self.owners.project(project_id, windows.closed(project_id), windows.within_quota(project_id))

    def is_idle(self, now: datetime) -> bool:
        """Whether nothing waits or may grow, nothing is to be released or reported, and no node is to be emptied."""
        self.settle(now)
        waits = self._queues or self._queues.growing or self.held.stale or self._not_schedulable or self._emptied
        leaves = self._must_leave(now) or any(self._departures(now))
        return not waits and not self._calendar.marks(self.nodes, now) and not leaves

    def _departures(self, now: datetime) -> Iterator[Departure]:
        clusters = {chain.state.cluster_id: chain.state for chain in self.clusters.values()}
        yield from self._chosen.departures(clusters, self.workloads, self.owners.leaves_after, now)

    def _closings(self, now: datetime) -> tuple[Closing, ...]:
        return self._calendar.closings(self._columns.rows, now)

    def _rights(self, state: Workload) -> Rights:
        return self.owners.rights(state, self._calendar.labelled)

    def _grows(self, key: str, growth: Growth, now: datetime) -> Growth:
        resized = self._resized.get(key)
        # By a clock that was ahead it may be a time to come, which is none to wait for.
        if resized is None or not resized <= now < resized + GROWS_AGAIN_AFTER:
            return growth
        self._wake(resized + GROWS_AGAIN_AFTER)
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

    def leavers_of(self, node_key: str) -> dict[str, datetime]:
        """By id of what is held on a node: when its pod has to leave it, of those that have to, now or soon."""
        return {
            reservation_id(self.workloads[each.key].state.workload_id, *_run(each.pod)): each.at
            for each in self._emptied.get(node_key, ())
        }

    def closes_at(self, node_keys: AbstractSet[str], pod_class: PodClass, now: datetime) -> datetime | None:
        """From when on the calendar may close some of these nodes to such pods that are open, or closed, now."""
        return self._calendar.closes_at(pod_class.cluster_id, node_keys, pod_class, now)

    def window_ends_at(self, project_id: str) -> datetime | None:
        """When what gives way of a project is told to end, since its window closes; None: not by a window."""
        return self._windows.ends_running_at(project_id)

    def _ended_by_window(self, project_id: str) -> Iterator[MustLeave]:
        closed, running = self._windows.closed(project_id), self._running.of(project_id)
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
                if held in self.held.leaving and pod_set is not None and row is not None:
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
        for id_, of in self.held.promised.items():
            if id_ in self.held.stale and not ended:
                continue
            node_key = self.held.stale.get(id_) or self.held.leaving[id_][0]
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
            if row is not None and reservation is not None and id_ not in self.held.stale:
                (project_id, _, pool, firm), _ = self.held.counted_as(id_)
                yield Leaving(row, reservation, project_id, pool, not firm, id_ in returning)

    def without(self, snapshot: Snapshot, runs: Mapping[str, str]) -> Snapshot:
        """The same, as if these runs had ended (node key by id of a reservation)."""
        gone = {id_: node_key for id_, node_key in runs.items() if id_ not in self.held.stale}
        releases = (*snapshot.releases, *(self._release(id_, node_key) for id_, node_key in gone.items()))
        return replace(self.held.without(snapshot, gone.keys()), releases=releases)

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
                self._wake(at)
        self._queues.note(snapshot, plan, self.freed)

    def report_again(self, keys: Iterable[str]) -> None:
        """What was to be told of these workloads is not in the log, though it was noted as told."""
        self._queues.report_again(keys)

    def next_due(self) -> datetime | None:
        """When there is something to look at although nothing happens."""
        times = [of_node[0].at for of_node in self._emptied.values() if of_node]
        if self._settled_at is not None and (next_ := self._calendar.next_change(self._settled_at)) is not None:
            times.append(next_)
        if (changes := self._windows.next_change()) is not None:
            times.append(changes)
        clusters = (chain.state for chain in self.clusters.values())
        if (leaves := self._chosen.next_departure(clusters, self.owners.leaves_after, self._settled_at)) is not None:
            times.append(leaves)
        return min((*times, self._due[0][0]) if self._due else times, default=None)

    def _held_of(self, projects: Mapping[str, ProjectView]) -> dict[BoundKey, int]:
        """What these projects, and their departments, hold: under each of their bounds, and everywhere."""
        bounds = [bound for view in projects.values() for bound in view.bounds]
        holders = {*projects, *(view.department_id for view in projects.values())}
        keys = {key for bound in bounds for key in (bound.key, bound.all_key)}
        return self.held.by_bound(keys | {(holder, "", False) for holder in holders})


def _comes(mix: Mix, workload: Workload, at: datetime) -> None:
    for each in workload.pod_sets:
        shape = shape_of(each.template.request, cluster_id=workload.cluster_id, pools=each.node_pools)
        mix.add(shape, each.at_once, at)


def _run(ref: PodRef) -> tuple[str, int, int, int]:
    return ref.pod_set, ref.index, ref.attempt, ref.try_


def _makes_room(pod: Pod) -> bool:
    return pod.phase in {PodPhase.STOPPING, PodPhase.PENDING}


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
