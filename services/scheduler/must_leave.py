"""Which pods have to leave their node, and when: it got a taint that they do not tolerate, or not for ever, or an
administrator drains it, or it is kept for another project now. Pure.

Times stand in the log, with the taint and the drain, so whoever decides later decides the same.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from events.aggregate import Chain
from events.capacity import KeptFor
from events.node import NO_EXECUTE, Node, Taint, run_of
from events.phases import PodPhase
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

type _Why = tuple[datetime, EvictionReason, str]
"""From when on, by which rule, and in words."""


def leavers(
    node: Node,
    workloads: Mapping[str, Chain[Any]],
    tellable: dict[tuple[str, str], bool],
    kept: Sequence[KeptFor] = (),
) -> Iterator[MustLeave]:
    """Of the runs on a node those that hold a place there which they can give up.

    Args:
        tellable: whether runs of a pod set can be told to end, by workload key and name; what is found out is added. A
            workload of thousands of pods is looked at once, and not for each node.
        kept: by which reservations the node is kept for a project, now or soon.
    """
    # Alike for all of a pod set: to look at a hundred taints once for each of its pods takes long.
    whys: dict[tuple[str, str], _Why | None] = {}
    for id_, reservation in node.reservations.items():
        key = reservation.workload_key
        chain = workloads.get(key)
        state: Workload | None = None if chain is None else chain.state
        ref = None if state is None else run_of(id_, state.workload_id)
        pod = None if state is None or ref is None else state.pods.live.get(pod_id(ref))
        if state is None or ref is None or pod is None or not pod.is_run(ref) or not evictable(pod):
            continue
        of = key, ref.pod_set
        if of not in whys:
            if of not in tellable:
                tellable[of] = schedulable(state) and (_all_seen(state) or bool(leaving_with(state, (ref,))))
            request = next((each.template.request for each in state.pod_sets if each.name == ref.pod_set), None)
            whys[of] = _why(node, state, request, kept) if tellable[of] and request is not None else None
        if (why := whys[of]) is not None:
            yield MustLeave(why[0], key, ref, why[1], why[2])


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
        for each, starts_at in kept:
            if each.project_id != state.project_id:
                since = f"{starts_at:%Y-%m-%d %H:%M} UTC"
                message = (
                    f"node {node.name} is kept for project {each.project_name} from {since} on: reservation {each.name}"
                )
                found.append((starts_at - grace, "reserved", message))
    return min(found, default=None)
