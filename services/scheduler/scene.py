"""One waiting workload as the planner sees it, and whether it would start if something were otherwise. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Final, Literal, NamedTuple

import msgspec
import numpy as np

from events.aggregate import WORKLOAD
from events.node import Reservation
from events.workload.life import WorkloadCreated, WorkloadQueued
from events.workload.life import fold as fold_workload
from events.workload.state import Workload
from services.scheduler.candidates import refused_by
from services.scheduler.fold import SchedulingState
from services.scheduler.plan import MAX_PODS_PER_PLAN, MAX_UPDATES_PER_PLAN
from services.scheduler.planning import Planning, Policy, pools_to_try
from services.scheduler.policy.phases import explain
from services.scheduler.policy.registry import POLICY
from services.scheduler.policy.rules import Filter
from services.scheduler.room import View
from services.scheduler.rounds import Enough, Rounds, never
from services.scheduler.snapshot import Pending, Plan, PodClass, Queue, Snapshot, Waiting
from services.scheduler.sound import sound

MOST_QUEUES: Final = 20
"""Classes of waiting pods that are tried to be placed before it, where something is otherwise: one takes some
milliseconds on ten thousand nodes.
"""
NO_REPORT: Final = "report"
"""The phase that only says what the log is to say."""


def phases(policy: Policy, *but: str) -> Policy:
    return replace(policy, phases=tuple(each for each in policy.phases if each.name not in but))


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What a workload holds on some nodes."""

    key: str
    runs: Mapping[str, str]
    """Node key by id of a reservation: all that it holds, wherever."""
    on: tuple[tuple[int, Reservation], ...]
    """By row: what it holds on those nodes."""

    @property
    def gpu_milli(self) -> int:
        return sum(share.milli for _, held in self.on for share in held.devices)

    @property
    def cpu_milli(self) -> int:
        return sum(held.cpu_milli for _, held in self.on)

    @property
    def memory_bytes(self) -> int:
        return sum(held.memory_bytes for _, held in self.on)

    @property
    def anything(self) -> bool:
        """Whether it holds more than places of pods."""
        return bool(self.gpu_milli or self.cpu_milli or self.memory_bytes or any(held.extended for _, held in self.on))


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Why it waits, and all that is needed to find out what would help."""

    fold: SchedulingState
    state: Workload
    key: str
    now: datetime
    snapshot: Snapshot
    """As it will be once the next plan is carried out, which does nothing more for it."""
    planning: Planning
    """The last round of that plan, after all phases but the report."""
    queue: Queue
    """Of those of its pods that wait."""
    entry: Pending
    waiting: Waiting
    readable: frozenset[str] | None
    """Ids of the projects whose names the asker may see; None: all."""
    enough: Enough = never

    @property
    def pod_class(self) -> PodClass:
        return self.queue.pod_class

    @property
    def parts(self) -> tuple[tuple[PodClass, int], ...]:
        """What its pods ask for, and how many of them must find a place for it to start."""
        of = self.pod_class
        return tuple((of.part(each), each.needed) for each in of.gang) or ((of, 1),)

    @cached_property
    def clusters(self) -> tuple[str, ...]:
        """Ids of those where it may go, the one where it stands first."""
        of, there = self.pod_class, self.snapshot.clusters
        return of.cluster_id, *(id_ for id_ in of.among if id_ != of.cluster_id and id_ in there and there[id_].exists)

    def cluster_name(self, id_: str) -> str:
        """Where it may go to several; else its cluster need not be said."""
        return self.snapshot.clusters[id_].name if len(self.clusters) > 1 else ""

    def view_of(self, part: PodClass, cluster_id: str) -> View:
        """The nodes of the pools that it may use on one cluster."""
        there = replace(part, cluster_id=cluster_id)
        return explain.nodes_of(self.planning, there, pools_to_try(self.snapshot, there))

    def view(self, part: PodClass) -> View:
        """Those of all clusters where it may go."""
        views = [self.view_of(part, id_) for id_ in self.clusters]
        rows = np.concatenate([each.rows for each in views])
        return View(self.planning.room, part.request, rows, closings=views[0].closings)

    def cluster_of(self, row: int) -> str:
        """As `cluster_name`."""
        return self.cluster_name(self.fold.nodes[self.snapshot.nodes.keys[row]].state.cluster_id)

    def filters(self, part: PodClass) -> list[Filter]:
        return [each for each in self.planning.policy.filters if each.asks(part.request)]

    def possible(self, part: PodClass) -> View:
        """Those on which it could run if nothing were on them."""
        view, filters = self.view(part), self.filters(part)
        refused = explain.barred_in(view, filters) | explain.too_small_in(view, filters)
        return view.at(~(refused | explain.closed_in(view, filters)))

    def has_room(self, part: PodClass, row: int) -> bool:
        """Whether one pod fits on a node as the room is just now."""
        view = View(self.planning.room, part.request, np.array([row]))
        full = [each.full for each in self.filters(part) if each.full is not None]
        return not refused_by(full, view).any()

    @cached_property
    def holdings(self) -> dict[str, Holding]:
        """By workload key: others on the nodes where it could run."""
        nodes, table = self.fold.nodes, self.snapshot.nodes
        rows = {row for part, _ in self.parts for row in self.possible(part).rows.tolist()}
        on: dict[str, list[tuple[int, Reservation]]] = {}
        for row in sorted(rows):
            for held in nodes[table.keys[row]].state.reservations.values():
                if held.workload_key != self.key:
                    on.setdefault(held.workload_key, []).append((row, held))
        return {key: Holding(key=key, runs=self.fold.held.runs_of(key), on=tuple(held)) for key, held in on.items()}

    def holding(self, key: str) -> Holding:
        """All that a workload holds, wherever."""
        rows = {node_key: row for row, node_key in enumerate(self.snapshot.nodes.keys)}
        runs, nodes = self.fold.held.runs_of(key), self.fold.nodes
        on = tuple((rows.get(node_key, -1), nodes[node_key].state.reservations[id_]) for id_, node_key in runs.items())
        return Holding(key=key, runs=runs, on=on)

    def may_name(self, key: str) -> bool:
        chain = self.fold.workloads.get(key)
        return chain is not None and (self.readable is None or chain.state.project_id in self.readable)

    def ended(self, keys: Iterable[str], of: Snapshot | None = None) -> Snapshot:
        """As it is, but these workloads have ended."""
        runs = {id_: node_key for key in keys for id_, node_key in self.fold.held.runs_of(key).items()}
        return self.fold.without(of or self.snapshot, runs)

    def changed(self, **fields: object) -> tuple[Snapshot, str]:
        """As if another workload had been submitted in its place, with these fields of its state; its key."""
        state = msgspec.structs.replace(self.state, **fields)
        created = WorkloadCreated(
            workload_id=state.workload_id,
            name=state.name,
            requested_name=state.requested_name,
            kind=state.kind,
            project_id=state.project_id,
            cluster_id=state.cluster_id,
            among=() if state.cluster_id else state.among,
            owner=state.owner,
            at=self.now,
            spec=state.spec,
            distributed=state.distributed,
            inference=state.inference,
        )
        # Behind all keys that there can be: of two that were made in one moment, the real one goes first.
        key = f"~{state.workload_id}"
        snapshot = self.fold.imagine(fold_workload(WORKLOAD.initial, (created, WorkloadQueued())), self.now, key)
        queues = tuple(_but(each, self.key) for each in snapshot.queues)
        growing = tuple(each for each in snapshot.growing if each.entry.key != self.key)
        return replace(snapshot, queues=queues, growing=growing), key

    def starts(self, snapshot: Snapshot, key: str = "") -> bool:
        """Whether it gets a place then, beside what goes before it."""
        key = key or self.key
        policy = phases(self.planning.policy, "take_back", "explain", NO_REPORT)
        planning = Planning(replace(snapshot, queues=_looked_at(snapshot.queues, key)), policy, MAX_PODS_PER_PLAN)
        for phase in policy.phases:
            phase.run(planning)
        return any(entry.key == key for entry in planning.placed.entries)

    def lets_wait(self, snapshot: Snapshot, key: str = "") -> bool:
        """Whether it waits for room then, and not for what never comes by itself."""
        return all(each.reason in explain.FULL for each in self.waits_for(snapshot, key))

    def waits_for(self, snapshot: Snapshot, key: str = "") -> list[Waiting]:
        """Why it still waits then."""
        key = key or self.key
        policy = phases(self.planning.policy, "take_back", NO_REPORT)
        planning = Planning(replace(snapshot, queues=_looked_at(snapshot.queues, key)), policy, MAX_PODS_PER_PLAN)
        for phase in policy.phases:
            phase.run(planning)
        own = (i for i, queue in enumerate(planning.snapshot.queues) if any(one.key == key for one in queue.entries))
        return [planning.blocked[i] for i in own if i in planning.blocked]

    def takes_a_place(self, at: datetime) -> bool:
        """Whether at that moment it gets a place, or others are told to end for it."""
        policy = phases(self.planning.policy, "explain", NO_REPORT)
        snapshot = replace(self.snapshot, now=at, queues=_looked_at(self.snapshot.queues, self.key))
        planning = Planning(snapshot, policy, MAX_PODS_PER_PLAN)
        for phase in policy.phases:
            phase.run(planning)
        return self.key in planning.held or any(entry.key == self.key for entry in planning.placed.entries)


def _but(queue: Queue, key: str) -> Queue:
    """Without the entries of one workload."""
    if all(entry.key != key for entry in queue.entries):
        return queue
    entries = tuple(entry for entry in queue.entries if entry.key != key)
    return replace(queue, entries=entries, unreported=(), pods=sum(len(each.pods) for each in entries))


def _looked_at(queues: tuple[Queue, ...], key: str) -> tuple[Queue, ...]:
    """Those whose first entries go first, and its own: what kept them waiting may be otherwise."""
    filled = sorted((each for each in queues if each.entries), key=lambda each: each.entries[0].order)
    return tuple(
        replace(each, blocked=None, put_off=0)
        if n < MOST_QUEUES or any(entry.key == key for entry in each.entries)
        else each
        for n, each in enumerate(filled)
    )


def scene_of(
    fold: SchedulingState,
    state: Workload,
    key: str,
    now: datetime,
    readable: frozenset[str] | None,
    *,
    enough: Enough = never,
) -> Scene | Literal["starts", "runs", "unknown"]:
    """Why it waits; `starts` where the next plan places all of it that waits, `runs` where none of it waits, `unknown`
    where that plan does not get to it.
    """
    snapshot = fold.snapshot(now)
    queues = tuple(
        replace(each, blocked=None, put_off=0) if any(entry.key == key for entry in each.entries) else each
        for each in snapshot.queues
    )
    snapshot = replace(snapshot, queues=queues, not_schedulable=())
    needed = {pod for queue in queues for entry in queue.entries if entry.key == key for pod in entry.pods}
    if not needed:
        return "runs"
    planned, planning, certain = decided(snapshot, enough)
    if needed <= {each.placement.pod for each in planned.bindings if each.key == key}:
        return "starts" if certain else "unknown"
    waiting = why_in(planning, planned, key)
    if waiting is None:
        return "unknown"
    # What there is once all had been carried out that the plan does for others.
    seen = planning.snapshot
    i, entry = next((i, one) for i, queue in enumerate(seen.queues) for one in queue.entries if one.key == key)
    queue = replace(seen.queues[i], pod_class=planning.class_of(i))
    return Scene(
        fold=fold,
        state=state,
        key=key,
        now=now,
        snapshot=replace(seen, queues=(*seen.queues[:i], queue, *seen.queues[i + 1 :])),
        planning=planning,
        queue=queue,
        entry=entry,
        waiting=waiting,
        readable=readable,
        enough=enough,
    )


class Foreseen(NamedTuple):
    plan: Plan
    last: Planning
    """What its last round came to."""
    certain: bool
    """Whether it had all its rounds: with fewer, somebody may get another place, or none."""


def decided(snapshot: Snapshot, enough: Enough = never) -> Foreseen:
    """What the scheduler would do now, with all its rounds. What is told of those that wait is not among it: only
    places are asked for.
    """
    rounds = Rounds(
        snapshot,
        phases(POLICY, NO_REPORT),
        max_pods=MAX_PODS_PER_PLAN,
        max_updates=MAX_UPDATES_PER_PLAN,
        enough=enough,
    )
    planned = sound(snapshot, rounds.plan(), rounds.kept_for)
    assert rounds.last is not None, "a plan has a round"
    return Foreseen(planned, rounds.last, not rounds.given_up)


def why_in(last: Planning, planned: Plan, key: str) -> Waiting | None:
    """Why what is left of a workload waits. None where the plan did not get to it.

    Args:
        last: what the last round of the plan came to.
    """
    if key in last.held:
        return last.held[key]
    for i, queue in enumerate(last.snapshot.queues):
        if i in last.blocked and any(entry.key == key for entry in queue.entries):
            # Of a class of which another one has a place kept, the plan tells nothing.
            return planned.blocked.get(queue.pod_class, last.blocked[i])
    return None
