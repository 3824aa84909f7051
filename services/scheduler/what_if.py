"""What the next plan would do with a workload that nobody has submitted: the planner on a copy of what there is, with
this one added behind everything that waits. Pure; nothing of the fold changes by it.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Final, TypedDict

from events.ids import workload_key
from events.phases import WaitingReason
from events.what_if import MOST_TOLD, WhatIf, WouldEnd, WouldRun
from events.why import Kept
from services.scheduler.kept import kept
from services.scheduler.plan import MAX_PODS_PER_PLAN, MAX_UPDATES_PER_PLAN
from services.scheduler.planning import Planning
from services.scheduler.policy.registry import POLICY
from services.scheduler.policy.words import counted
from services.scheduler.snapshot import Binding, Pending, Plan, PodClass, Queue, Snapshot, Waiting

NEVER: Final = frozenset(
    {
        WaitingReason.NO_SUCH_NODE_POOL,
        WaitingReason.NO_MATCHING_NODE,
        WaitingReason.QUOTA_TOO_SMALL,
        WaitingReason.LIMIT_TOO_SMALL,
    }
)
"""Reasons that end by nothing that runs: somebody must change nodes, quotas or the workload."""


def what_if(snapshot: Snapshot, added: tuple[tuple[PodClass, Pending], ...]) -> WhatIf:
    """Args: snapshot, with the nodes' columns, project and bounds that these pods need; added, as the fold has waiting
    pods.
    """
    queues = {queue.pod_class: queue for queue in snapshot.queues}
    for pod_class, entry in added:
        queues[pod_class] = _with(queues.get(pod_class), pod_class, entry)
    planning = Planning(_of(snapshot, tuple(queues.values())), POLICY, MAX_PODS_PER_PLAN)
    for phase in POLICY.phases:
        phase.run(planning)
    planned = planning.plan(max_updates=MAX_UPDATES_PER_PLAN)
    (key,) = {entry.key for _, entry in added}
    placed = [binding for binding in planned.bindings if binding.key == key]
    waiting_pods = sum(len(entry.pods) for _, entry in added) - len(placed)
    if not waiting_pods:
        return WhatIf(outcome="runs", **_told(placed))
    why = _why(planned, added, queues)
    if why is None:
        message = "the scheduler is busy with what waits already, and did not get to it; ask again"
        return WhatIf(outcome="unknown", waiting_pods=waiting_pods, message=message, **_told(placed))
    told, elsewhere = _evicted(planned, added)
    return WhatIf(
        outcome="never" if why.reason in NEVER else "waits",
        waiting_pods=waiting_pods,
        reason=why.reason.value,
        message=_in_words(told, elsewhere) if told or elsewhere else why.message,
        evicted=told,
        kept=() if key in planning.held else _kept(planning, added),
        evicted_elsewhere=elsewhere,
        **_told(placed),
    )


def _of(snapshot: Snapshot, queues: tuple[Queue, ...]) -> Snapshot:
    """What is told of what waits is not asked for: only places are."""
    return replace(snapshot, queues=queues, not_schedulable=())


def _with(queue: Queue | None, pod_class: PodClass, entry: Pending) -> Queue:
    """The queue of its class with this entry last: the order goes by the time, and it is the newest."""
    others = () if queue is None else queue.entries
    return Queue(
        pod_class=pod_class,
        entries=tuple(sorted((*others, entry), key=lambda each: each.order)),
        unreported=(),
        # What keeps the others of its class waiting need not keep this one: it may have the higher priority.
        blocked=None,
        report_again=False,
        pods=len(entry.pods) + (0 if queue is None else queue.pods),
    )


def _why(planned: Plan, added: tuple[tuple[PodClass, Pending], ...], queues: dict[PodClass, Queue]) -> Waiting | None:
    for pod_class, _ in added:
        found = planned.blocked.get(pod_class) or planned.held.get(pod_class) or queues[pod_class].blocked
        if found is not None:
            return found
    return None


def _evicted(planned: Plan, added: tuple[tuple[PodClass, Pending], ...]) -> tuple[tuple[WouldEnd, ...], int]:
    """Who would be told to end for it, and how many pods of those whom whoever asks may not see, or that are too many
    to be told.
    """
    ids = {entry.workload_id for _, entry in added}
    (project_id,) = {pod_class.project_id for pod_class, _ in added}
    told: dict[str, WouldEnd] = {}
    elsewhere = 0
    for each in planned.evictions:
        if each.beneficiary not in ids:
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


def _kept(planning: Planning, added: tuple[tuple[PodClass, Pending], ...]) -> tuple[Kept, ...]:
    """Whose places it could not take yet; those of its project by name."""
    (project_id,) = {pod_class.project_id for pod_class, _ in added}
    spared = planning.spared.get(added[0][1].key, {})
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
