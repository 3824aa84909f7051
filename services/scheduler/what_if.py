"""What the next plan would do with a workload that nobody has submitted: the planner, with all its rounds, on what the
fold would have if it had been submitted. Pure; nothing of the fold changes by it.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Final, TypedDict

from events.ids import workload_key
from events.phases import WaitingReason
from events.what_if import MOST_TOLD, WhatIf, WouldEnd, WouldRun
from events.why import Kept
from services.scheduler.kept import kept
from services.scheduler.planning import Planning
from services.scheduler.policy.words import counted
from services.scheduler.rounds import Enough, never
from services.scheduler.scene import decided, why_in
from services.scheduler.snapshot import Binding, Plan, Snapshot

NEVER: Final = frozenset(
    {
        WaitingReason.NO_SUCH_NODE_POOL,
        WaitingReason.NO_MATCHING_NODE,
        WaitingReason.QUOTA_TOO_SMALL,
        WaitingReason.LIMIT_TOO_SMALL,
    }
)
"""Reasons that end by nothing that runs: somebody must change nodes, quotas or the workload."""


BUSY: Final = "the scheduler is busy with what waits already, and did not get to it; ask again"


def what_if(snapshot: Snapshot, key: str, enough: Enough = never) -> WhatIf:
    """Args: snapshot, with this workload among those that wait; key, under which it does."""
    queues = [queue for queue in snapshot.queues if any(entry.key == key for entry in queue.entries)]
    added = [entry for queue in queues for entry in queue.entries if entry.key == key]
    if not added:
        return WhatIf(outcome="unknown", message="it has no pods to begin with")
    planned, last, certain = decided(snapshot, enough)
    placed = [binding for binding in planned.bindings if binding.key == key]
    bound = {binding.placement.pod for binding in placed}
    waiting_pods = sum(pod not in bound for entry in added for pod in entry.pods)
    project_id = queues[0].pod_class.project_id
    told, elsewhere = _evicted(planned, added[0].workload_id, project_id)
    if not certain and (placed or told or elsewhere):
        return WhatIf(outcome="unknown", message=BUSY)
    if not waiting_pods:
        return WhatIf(outcome="runs", **_told(placed))
    why = why_in(last, planned, key)
    if why is None:
        return WhatIf(outcome="unknown", waiting_pods=waiting_pods, message=BUSY, **_told(placed))
    return WhatIf(
        outcome="never" if why.reason in NEVER else "waits",
        waiting_pods=waiting_pods,
        reason=why.reason.value,
        message=_in_words(told, elsewhere) if told or elsewhere else why.message,
        evicted=told,
        kept=() if key in last.held else _kept(last, key, project_id),
        evicted_elsewhere=elsewhere,
        **_told(placed),
    )


def _evicted(planned: Plan, workload_id: str, project_id: str) -> tuple[tuple[WouldEnd, ...], int]:
    """Who would be told to end for it, and how many pods of those whom whoever asks may not see, or that are too many
    to be told.
    """
    told: dict[str, WouldEnd] = {}
    elsewhere = 0
    for each in planned.evictions:
        if each.beneficiary != workload_id:
            continue
        seen = each.key == workload_key(project_id, each.name)
        if seen and (each.workload_id in told or len(told) < MOST_TOLD):
            before = told[each.workload_id].pods if each.workload_id in told else 0
            told[each.workload_id] = WouldEnd(
                workload_id=each.workload_id, name=each.name, pods=before + len(each.pods), rule=each.reason
            )
        else:
            elsewhere += len(each.pods)
    return tuple(sorted(told.values(), key=lambda one: one.name)), elsewhere


def _kept(planning: Planning, key: str, project_id: str) -> tuple[Kept, ...]:
    """Whose places it could not take yet; those of its project by name."""
    spared = planning.spared.get(key, {})
    return kept(planning.snapshot, spared, (), lambda of: of.project_id == project_id)


def _in_words(told: tuple[WouldEnd, ...], elsewhere: int) -> str:
    parts = [f"{one.name} ({counted(one.pods, 'pod')})" for one in told]
    parts += [f"{counted(elsewhere, 'pod')} of other projects"] if elsewhere else []
    return f"others would be told to end for it, and it would start once they have: {', '.join(parts)}"


class _Told(TypedDict):
    placed: tuple[WouldRun, ...]
    more: int


def _told(placed: list[Binding]) -> _Told:
    found = [*_by_node(placed)]
    return {"placed": tuple(found[:MOST_TOLD]), "more": max(len(found) - MOST_TOLD, 0)}


def _by_node(placed: list[Binding]) -> Iterator[WouldRun]:
    pods: Counter[tuple[str, str, str, str]] = Counter()
    gpus: Counter[tuple[str, str, str, str]] = Counter()
    for each in placed:
        at = each.placement
        where = (at.pod.pod_set, each.cluster_name, at.node_name, at.pool)
        pods[where] += 1
        gpus[where] += sum(share.milli for share in at.devices)
    for where, count in sorted(pods.items()):
        pod_set, cluster, node, pool = where
        yield WouldRun(pod_set=pod_set, cluster=cluster, node=node, node_pool=pool, pods=count, gpu_milli=gpus[where])
