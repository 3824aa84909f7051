"""What the scheduler would look at once it had carried out what it decided, told from what it looked at. Pure.

It is what the log's fold makes of the commits, without any: the same events are folded into the workloads. What the log
is told of who waits is left out, and stands as it was.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from events.aggregate import WORKLOAD
from events.decision import Context
from events.ids import workload_key
from events.node import Reservation, reservation_id
from events.refusal import Refusal
from events.workload.commands import EvictPods
from events.workload.life import ClusterChosen, WorkloadEvent, WorkloadQueued, fold
from events.workload.places import bindable
from events.workload.pod import PodRef, PodsBound, pod_id
from events.workload.state import Workload, schedulable
from services.scheduler.batches import ACTOR
from services.scheduler.classes import NOTHING, Place, Ready, class_of, ready, rights_of
from services.scheduler.planning import Policy
from services.scheduler.policy.phases.grow import GROWS_AGAIN_AFTER
from services.scheduler.policy.rules import Age
from services.scheduler.room import Room
from services.scheduler.snapshot import (
    INFINITE,
    Binding,
    BoundKey,
    Eviction,
    Growth,
    Leaving,
    Moving,
    MustLeave,
    NodeTable,
    Pending,
    PodClass,
    Queue,
    Snapshot,
)
from services.scheduler.waits import Stint, stint_of


@dataclass(slots=True)
class _Changed:
    """A workload of which pods are bound, or told to end."""

    before: Workload
    place: Place
    bound: list[Binding] = field(default_factory=list[Binding])
    evictions: list[Eviction] = field(default_factory=list[Eviction])
    resized: bool = False
    """As an elastic one that went on with other pods."""
    after: Workload = field(default_factory=Workload)
    ready: Ready = NOTHING


def carried_out(
    snapshot: Snapshot,
    policy: Policy,
    bindings: Sequence[Binding],
    evictions: Sequence[Eviction],
    promised: Mapping[str, int],
) -> Snapshot | None:
    """The same once these pods are bound, those told to end, and what is over is released. None where it cannot be told
    since nothing is known of a workload that waits.

    Args:
        promised: by id of a workload, what it is to get first beside that for which others are told to end.
    """
    changed = _changed(snapshot, policy, bindings, evictions)
    if changed is None:
        return None
    for key, each in changed.items():
        _carry_out(key, each, snapshot.now)
    leaving = tuple(_leaving(snapshot, changed, evictions))
    freed = bool(evictions or snapshot.releases)
    first = _promised(snapshot, changed, evictions, promised)
    return replace(
        snapshot,
        nodes=_nodes(snapshot, bindings),
        held_milli=_held(snapshot, changed),
        held_in=_held_in(snapshot, changed),
        queues=tuple(_queues(snapshot, changed, freed=freed)),
        releases=(),
        marks=(),
        leaving=tuple(sorted((*snapshot.leaving, *leaving), key=lambda each: each.reservation.id)),
        moving=(*snapshot.moving, *_moving(snapshot, changed)),
        growing=tuple(_growing(snapshot, changed)),
        running=_running(snapshot, changed),
        must_leave=tuple(_must_leave(snapshot, evictions)),
        placed_again=snapshot.placed_again
        | {
            each.before.workload_id: snapshot.now for each in changed.values() if each.bound and each.before.gave_way_to
        },
        promised=first,
        promised_then=first,
        stints=_stints(snapshot, changed),
    )


# -- workloads ---------------------------------------------------------------------------------------------------------


def _changed(
    snapshot: Snapshot, policy: Policy, bindings: Iterable[Binding], evictions: Iterable[Eviction]
) -> dict[str, _Changed] | None:
    bindings, evictions = tuple(bindings), tuple(evictions)
    keys = {each.key for each in bindings} | {each.key for each in evictions}
    waiting: dict[str, Pending] = {}
    for queue in snapshot.queues:
        waiting |= {entry.key: entry for entry in queue.entries if entry.key in keys}
    waiting |= {each.entry.key: each.entry for each in snapshot.growing if each.entry.key in keys}
    # What runs is as new as can be.
    states = {key: entry.workload for key, entry in waiting.items() if entry.workload is not None}
    states |= {key: state for state in _holders(snapshot) if (key := _key(state)) in keys}
    if states.keys() != keys:
        return None
    changed: dict[str, _Changed] = {}
    for key, state in states.items():
        changed[key] = _Changed(state, _place(snapshot, policy, state, waiting.get(key)))
    for each in bindings:
        changed[each.key].bound.append(each)
    for each in evictions:
        changed[each.key].evictions.append(each)
    return changed


def _place(snapshot: Snapshot, policy: Policy, state: Workload, waits: Pending | None) -> Place:
    project = snapshot.projects.get(state.project_id)
    stint = stint_of(snapshot.stints, state)
    age = Age(stint.since, snapshot.head_start_seconds)
    return Place(
        # What makes room for others goes before all who wait.
        order=tuple(each.value(state, age) for each in policy.orders) if waits is None else waits.order[0],
        stint=stint,
        rights=rights_of(() if project is None else project.time_limits, snapshot.labelled, state),
    )


def _holders(snapshot: Snapshot) -> Iterable[Workload]:
    yield from (state for of in snapshot.running.values() for state in of)
    yield from (state for state, _ in snapshot.must_leave)


def _key(state: Workload) -> str:
    return workload_key(state.project_id, state.name)


def _carry_out(key: str, each: _Changed, now: datetime) -> None:
    state = each.before
    if each.bound:
        events: list[WorkloadEvent] = [] if state.queued else [WorkloadQueued()]
        if not state.cluster_id:
            events.append(ClusterChosen(cluster_id=each.bound[0].cluster_id, name=each.bound[0].cluster_name))
        events.append(PodsBound(placements=tuple(one.placement for one in each.bound), token=0))
        state = fold(state, events)
    held_nodes = bool(each.before.pods.live.size)
    each.resized = bool(each.bound) and held_nodes
    for eviction in each.evictions:
        before, state = state, _evicted(state, eviction, now)
        each.resized = each.resized or before.attempt == state.attempt
    if each.bound and not held_nodes:
        each.place = replace(each.place, stint=Stint(each.place.stint.since, now.timestamp()))
    each.after = state
    each.ready = ready(key, state, each.place, bindable(state, now))


def _evicted(state: Workload, eviction: Eviction, now: datetime) -> Workload:
    command = EvictPods(
        workload_id=eviction.workload_id,
        pods=eviction.pods,
        reason=eviction.reason,
        message=eviction.message,
        beneficiary=eviction.beneficiary,
    )
    decided = WORKLOAD.decide(command, state, Context(now=now, actor=ACTOR, command_id=""))
    return state if isinstance(decided, Refusal) else fold(state, decided)


# -- what waits --------------------------------------------------------------------------------------------------------


def _queues(snapshot: Snapshot, changed: Mapping[str, _Changed], *, freed: bool) -> Iterable[Queue]:
    """Args: freed, whether what was known to find no room is looked at again."""
    come: dict[PodClass, list[Pending]] = {}
    for each in changed.values():
        for pod_class, entry in each.ready.waiting:
            come.setdefault(pod_class, []).append(entry)
    found: list[Queue] = []
    for queue in snapshot.queues:
        more = come.pop(queue.kept_as or queue.pod_class, [])
        entries = [entry for entry in queue.entries if entry.key not in changed]
        if queue.blocked is not None and (freed or more):
            queue = replace(queue, blocked=None, report_again=queue.may_report)  # noqa: PLW2901 (it is that one)
        if len(entries) == len(queue.entries) and not more:
            found.append(queue)
        elif entries or more:
            entries = sorted((*entries, *more), key=lambda entry: entry.order)
            unreported = tuple(entry for entry in queue.unreported if entry.key not in changed)
            found.append(_queue(queue, entries, (*unreported, *_unreported(more))))
    for pod_class, more in come.items():
        new = Queue(pod_class=pod_class, entries=(), unreported=(), blocked=None, report_again=True, pods=0)
        found.append(_queue(new, sorted(more, key=lambda entry: entry.order), _unreported(more)))
    return sorted(found, key=lambda queue: queue.entries[0].order)


def _queue(queue: Queue, entries: Sequence[Pending], unreported: tuple[Pending, ...]) -> Queue:
    pods = sum(len(entry.pods) for entry in entries)
    return replace(queue, entries=tuple(entries), unreported=unreported, pods=pods)


def _unreported(entries: Iterable[Pending]) -> tuple[Pending, ...]:
    return tuple(entry for entry in entries if not entry.queued or (entry.idle and not entry.reported))


def _growing(snapshot: Snapshot, changed: Mapping[str, _Changed]) -> Iterable[Growth]:
    grows = {each.entry.key: each for each in snapshot.growing if each.entry.key not in changed}
    for key, each in changed.items():
        growth = each.ready.growth
        if growth is not None:
            rests = snapshot.now + GROWS_AGAIN_AFTER if each.resized else _rests(snapshot, key)
            grows[key] = growth if rests is None else replace(growth, rests_until=rests)
    return (grows[key] for key in sorted(grows))


def _rests(snapshot: Snapshot, key: str) -> datetime | None:
    return next((each.rests_until for each in snapshot.growing if each.entry.key == key), None)


def _stints(snapshot: Snapshot, changed: Mapping[str, _Changed]) -> Mapping[str, Stint]:
    got = {
        each.before.workload_id: Stint(stint_of(snapshot.stints, each.before).since, snapshot.now.timestamp())
        for each in changed.values()
        if each.bound and not each.before.pods.live.size
    }
    return {**snapshot.stints, **got} if got else snapshot.stints


def _promised(
    snapshot: Snapshot, changed: Mapping[str, _Changed], evictions: Iterable[Eviction], more: Mapping[str, int]
) -> dict[str, int]:
    found = Counter(snapshot.promised_then)
    for each in changed.values():
        if each.bound and each.place.order == (-INFINITE,):
            found[each.before.workload_id] -= sum(_milli(one) for one in each.bound)  # it makes room no more
            if not each.ready.waiting:
                del found[each.before.workload_id]
    for each in evictions:
        if each.beneficiary:
            found[each.beneficiary] += sum(
                share.milli for _, held in _held_by(changed[each.key], each) for share in held.devices
            )
    for id_, milli in more.items():
        found[id_] += milli
    return dict(found)


# -- what is held ------------------------------------------------------------------------------------------------------


def _nodes(snapshot: Snapshot, bindings: Iterable[Binding]) -> NodeTable:
    room, rows = Room(snapshot.nodes), {key: row for row, key in enumerate(snapshot.nodes.keys)}
    for release in snapshot.releases:
        if release.row >= 0:
            held = release.reservation
            room.give_back(release.row, held.cpu_milli, held.memory_bytes, held.devices, held.extended)
    for each in bindings:
        room.reserve(rows[each.placement.node_key], each.reservation)
    return replace(
        snapshot.nodes,
        free_cpu_milli=room.cpu,
        free_memory_bytes=room.memory,
        free_pods=room.pods,
        free_devices=room.free_devices,
        free_device_milli=room.devices,
        free_extended=room.extended,
    )


def _milli(binding: Binding) -> int:
    return sum(share.milli for share in binding.reservation.devices)


def _held(snapshot: Snapshot, changed: Mapping[str, _Changed]) -> dict[BoundKey, int]:
    held = dict(snapshot.held_milli)
    for each in changed.values():
        project = snapshot.projects.get(each.before.project_id)
        holders = (each.before.project_id, "" if project is None else project.department_id)
        for binding in each.bound:
            milli = _milli(binding)
            for key in (
                (holder, pool, firm)
                for holder in holders
                for pool in ("", binding.placement.pool)
                for firm in {False, not each.before.preemptible}
            ):
                if key in held:
                    held[key] += milli
    return held


def _held_in(snapshot: Snapshot, changed: Mapping[str, _Changed]) -> dict[tuple[str, str, str, bool], int]:
    held = Counter(snapshot.held_in)
    for each in changed.values():
        for binding in each.bound:
            if milli := _milli(binding):
                of = each.before.project_id, binding.cluster_id, binding.placement.pool, not each.before.preemptible
                held[of] += milli
    return dict(sorted(held.items()))


def _held_by(of: _Changed, eviction: Eviction) -> Iterable[tuple[PodRef, Reservation]]:
    """What the pods hold that are told to end."""
    requests = {pod_set.name: pod_set.template.request for pod_set in of.before.pod_sets}
    for ref in eviction.pods:
        pod, request = of.after.pods.live.get(pod_id(ref)), requests[ref.pod_set]
        if pod is not None:
            yield (
                ref,
                Reservation(
                    id=reservation_id(eviction.workload_id, ref.pod_set, ref.index, ref.attempt, ref.try_),
                    workload_id=eviction.workload_id,
                    workload_key=eviction.key,
                    cpu_milli=request.cpu_milli,
                    memory_bytes=request.memory_bytes,
                    devices=pod.devices,
                    extended=request.extended,
                ),
            )


def _leaving(snapshot: Snapshot, changed: Mapping[str, _Changed], evictions: Iterable[Eviction]) -> Iterable[Leaving]:
    nodes = snapshot.nodes
    rows = {key: row for row, key in enumerate(nodes.keys)} if changed else {}
    pools = {number: pool for (_, pool), number in nodes.pool_numbers.items()}
    for eviction in evictions:
        of = changed[eviction.key]
        for ref, held in _held_by(of, eviction):
            pod = of.after.pods.live.get(pod_id(ref))
            row = None if pod is None else rows.get(pod.node_key)
            if row is None:
                continue
            counts = bool(sum(share.milli for share in held.devices))
            yield Leaving(
                row=row,
                reservation=held,
                project_id=of.before.project_id if counts else "",
                pool=pools[int(nodes.pool[row])] if counts else "",
                preemptible=of.before.preemptible or not counts,
                returns=eviction.reason == "moved",
            )


def _moving(snapshot: Snapshot, changed: Mapping[str, _Changed]) -> Iterable[Moving]:
    rows = {key: row for row, key in enumerate(snapshot.nodes.keys)}
    for key, of in sorted(changed.items()):
        for ref in sorted(ref for each in of.evictions if each.reason == "moved" for ref in each.pods):
            pod = of.after.pods.live.get(pod_id(ref))
            pod_set = next(each for each in of.after.pod_sets if each.name == ref.pod_set)
            if pod is not None and pod.node_key in rows:
                yield Moving(class_of(key, of.after, pod_set, of.place.rights), rows[pod.node_key])


def _running(snapshot: Snapshot, changed: Mapping[str, _Changed]) -> dict[str, tuple[Workload, ...]]:
    of: dict[str, dict[str, Workload]] = {}
    for key, each in changed.items():
        of.setdefault(each.before.project_id, {})[key] = each.after
    found = dict(snapshot.running)
    for project_id, newer in of.items():
        states = {_key(state): state for state in found.get(project_id, ())} | newer
        found[project_id] = tuple(state for _, state in sorted(states.items()) if _may_give_way(state))
    return {project_id: found[project_id] for project_id in sorted(found) if found[project_id]}


def _may_give_way(state: Workload) -> bool:
    return bool(state.pods.live.size) and schedulable(state) and (state.preemptible or state.elastic)


def _must_leave(snapshot: Snapshot, evictions: Iterable[Eviction]) -> Iterable[tuple[Workload, tuple[MustLeave, ...]]]:
    told = {(each.key, ref) for each in evictions for ref in each.pods}
    for state, leavers in snapshot.must_leave:
        if left := tuple(each for each in leavers if (each.key, each.pod) not in told):
            yield state, left
