"""Which pods have to leave their node, and when: it got a taint that they do not tolerate, or not for ever, or an
administrator drains it, or it is kept for others now. Pure.

Times stand in the log, with the taint and the drain, so whoever decides later decides the same.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from events.aggregate import Chain
from events.node import NO_EXECUTE, Node, Taint, run_of
from events.phases import PodPhase
from events.reserved import Reserved
from events.reserved_shares import KeptFor
from events.workload.evictions import EvictionReason, evictable, leaving_with
from events.workload.pod import pod_id
from events.workload.spec import PodRequest
from events.workload.state import Workload, schedulable
from services.scheduler.policy.filters.taints import seconds_tolerated
from services.scheduler.snapshot import MustLeave, grace_of

_NOT_HEARD_FROM: Final = frozenset({"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"})
"""Taints of nodes that do not answer. Whether their pods still run nobody knows, and when they are given up is decided
by what is heard of them.
"""
LONGEST_SECONDS: Final = 100 * 365 * 24 * 3600
"""What is longer is for ever: a time beyond it may not be one at all."""
AT_ONCE: Final = datetime.min.replace(tzinfo=UTC)
"""Not since when it is so: that may be a time to come, by the clock of whoever decided it."""

type IsFor = Callable[[Reserved, Workload], bool]
type _Why = tuple[datetime, EvictionReason, str]
"""From when on, by which rule, and in words."""


def leavers(
    node: Node,
    workloads: Mapping[str, Chain[Any]],
    tellable: dict[tuple[str, str], bool],
    kept: Sequence[KeptFor],
    is_for: IsFor,
) -> Iterator[MustLeave]:
    """Of the runs on a node those that hold a place there which they can give up.

    Args:
        tellable: whether runs of a pod set can be told to end, by workload key and name; what is found out is added. A
            workload of thousands of pods is looked at once, and not for each node.
        kept: by which reservations the node is kept for some, now or soon.
        is_for: whether a reservation is for a workload.
    """
    # Alike for all of a pod set: to look at a hundred taints once for each of its pods takes long.
    whys: dict[tuple[str, str, tuple[str, ...]], _Why | None] = {}
    in_the_way = {
        each.entry.id: _in_the_way(node, each, workloads, is_for) for each in kept if each.devices is not None
    }
    for id_, reservation in node.reservations.items():
        key = reservation.workload_key
        chain = workloads.get(key)
        state: Workload | None = None if chain is None else chain.state
        ref = None if state is None else run_of(id_, state.workload_id)
        pod = None if state is None or ref is None else state.pods.live.get(pod_id(ref))
        if state is None or ref is None or pod is None or not pod.is_run(ref) or not evictable(pod):
            continue
        others = [
            each for each in kept if not is_for(each.entry, state) and id_ in in_the_way.get(each.entry.id, (id_,))
        ]
        set_, of = (key, ref.pod_set), (key, ref.pod_set, tuple(each.entry.id for each in others))
        if of not in whys:
            if set_ not in tellable:
                tellable[set_] = schedulable(state) and (_all_seen(state) or bool(leaving_with(state, (ref,))))
            request = next((each.template.request for each in state.pod_sets if each.name == ref.pod_set), None)
            whys[of] = _why(node, state, request, others) if tellable[set_] and request is not None else None
        if (why := whys[of]) is not None:
            yield MustLeave(why[0], key, ref, why[1], why[2])


def _in_the_way(node: Node, kept: KeptFor, workloads: Mapping[str, Chain[Any]], is_for: IsFor) -> set[str]:
    """Ids of what others hold on a node of which a part is kept: on its devices, and as much beside them as keeps CPU
    or memory from those. What ends already makes room, too.
    """
    wanted, found = set(kept.devices or ()), set[str]()
    free = [node.free_cpu_milli, node.free_memory_bytes]
    beside: list[str] = []
    for id_, held in sorted(node.reservations.items()):
        chain = workloads.get(held.workload_key)
        state: Workload | None = None if chain is None else chain.state
        mine = state is not None and is_for(kept.entry, state)
        on = {share.device for share in held.devices} & set(kept.devices or ())
        if state is None or mine or not state.preemptible:
            wanted -= on
            continue
        ref = run_of(id_, state.workload_id)
        pod = None if ref is None else state.pods.live.get(pod_id(ref))
        ends = pod is None or not evictable(pod)
        if on or ends:
            found |= {id_} if on else set()
            free[0] += held.cpu_milli
            free[1] += held.memory_bytes
        else:
            beside.append(id_)
    gpus = max(node.facts.gpu_count, 1)
    need = len(wanted) * (node.facts.cpu_milli // gpus), len(wanted) * (node.facts.memory_bytes // gpus)
    for id_ in beside:
        if free[0] >= need[0] and free[1] >= need[1]:
            break
        held = node.reservations[id_]
        if (free[0] < need[0] and held.cpu_milli) or (free[1] < need[1] and held.memory_bytes):
            found.add(id_)
            free[0] += held.cpu_milli
            free[1] += held.memory_bytes
    return found


def _all_seen(state: Workload) -> bool:
    """Whether nothing keeps its pods from being told to end, whichever of them are."""
    return all(evictable(pod) or pod.phase is PodPhase.STOPPING for _, pod in state.pods.live.items())


def is_emptied(node: Node) -> bool:
    """Whether there is anything on the node for which pods may have to leave it."""
    return node.present and (node.draining or any(_evicts(taint) for taint in node.facts.taints))


def _evicts(taint: Taint) -> bool:
    return taint.effect == NO_EXECUTE and taint.since is not None and taint.key not in _NOT_HEARD_FROM


def _why(node: Node, state: Workload, request: PodRequest, kept: Sequence[KeptFor]) -> _Why | None:
    """The first time at which there is a reason, with it."""
    found: list[_Why] = []
    for taint in node.facts.taints:
        seconds = seconds_tolerated(request, taint) if _evicts(taint) else None
        if taint.since is not None and seconds is not None and seconds < LONGEST_SECONDS:
            told = f"{taint.key}{'=' if taint.value else ''}{taint.value}:{taint.effect}"
            how = f"which it tolerates for {seconds} s" if seconds else "which it does not tolerate"
            message = f"node {node.name} has the taint {told}, {how}"
            found.append((taint.since + timedelta(seconds=seconds) if seconds else AT_ONCE, "tainted", message))
    drain = node.drain
    if drain is not None and node.draining and (state.preemptible or drain.force):
        of = "" if drain.maintenance is None else f" for maintenance {drain.maintenance.name}"
        forced = "" if state.preemptible else ", with force: the workload is non-preemptible"
        found.append((AT_ONCE, "drained", f"node {node.name} is drained{of}{forced}"))
    if state.preemptible:
        # They have ended when it begins: a long grace would else take the time that is kept for others.
        grace = timedelta(seconds=grace_of(state))
        for each, starts_at, _ in kept:
            since = f"{starts_at:%Y-%m-%d %H:%M} UTC"
            message = f"node {node.name} is kept for {each.holder_told()} from {since} on: reservation {each.name}"
            found.append((starts_at - grace, "reserved", message))
    return min(found, default=None)
