"""Whether it is certain, without deciding again, that a plan leaves nothing to plan. Pure.

Most plans do: what waits has no right to anything that they give. Whatever is not certain is decided again (rounds).
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from events.phases import WaitingReason
from services.scheduler.planning import Planning, pools_to_try
from services.scheduler.policy.phases import consolidate, explain
from services.scheduler.policy.victims import Right
from services.scheduler.snapshot import Pending, Plan, PodClass, Queue

MAY_HELP: Final = explain.FULL | {WaitingReason.LIMIT_USED}
"""Reasons for which the place of another one may help."""


def is_at_rest(planning: Planning, found: Plan) -> bool:
    """Args: found, what it decided."""
    snapshot = planning.snapshot
    if not (found.bindings or found.evictions or found.releases):
        return True
    if (
        not found.evictions
        and not snapshot.growing
        and sum(each.pods for each in snapshot.queues) == len(found.bindings)
    ):
        return True
    if _is_for_one(planning):
        return True
    if found.evictions or snapshot.promised or planning.kept_for or planning.aside.spoken_for:
        return False
    grows = {each.entry.key: each.entry.pods[0].index for each in snapshot.growing}
    if grows and any(
        each.placement.pod.index >= grows.get(each.key, each.placement.pod.index + 1) for each in found.bindings
    ):
        return False
    return not _has_right_to_any(planning) and not any(consolidate.may_move(planning, i) for i in planning.short)


def _is_for_one(planning: Planning) -> bool:
    """Whether all that waits is one workload, or gang, whose place is kept."""
    snapshot = planning.snapshot
    if snapshot.growing or snapshot.must_leave or len(snapshot.queues) != 1 or planning.short:
        return False
    entries = snapshot.queues[0].entries
    return len(entries) == 1 and entries[0].workload_id in planning.kept_for


def _has_right_to_any(planning: Planning) -> bool:
    """Whether anything that waits could take the place of what this plan binds, or of others of those projects: with
    that they may be beyond what is theirs.
    """
    placed, lowest = planning.placed, dict[tuple[str, str], int]()
    ranks = {(id(each), entry.rank): each for each, entry in zip(placed.classes, placed.entries, strict=True)}
    for (_, rank), pod_class in ranks.items():
        if pod_class.preemptible:
            key = pod_class.project_id, pod_class.cluster_id
            lowest[key] = min(lowest.get(key, rank), rank)
    classes = set(ranks.values())
    got = {(each.project_id, each.cluster_id) for each in classes}
    stand = all(_has_one_share(planning, each) for each in classes)
    for i, pod_class, queue, since in _waiting(planning):
        own = pod_class.project_id, pod_class.cluster_id
        # What was looked at in this plan may have come after those; what was known to wait found no room without them.
        if i in planning.short and own in lowest and queue.has_above(lowest[own], since=since):
            return True
        others = any(cluster_id == own[1] and project_id != own[0] for project_id, cluster_id in got)
        if others and (not stand or _claims(planning, pod_class, queue.entries[since])):
            return True
    return False


def _has_one_share(planning: Planning, pod_class: PodClass) -> bool:
    """Whether its project wanted before just what it has now: what could go to several pools was wanted in each, and
    of which GPU it takes a part for its memory, nobody knew.
    """
    requests = [(each.pools, each.request) for each in pod_class.gang] or [(pod_class.pools, pod_class.request)]
    return all(
        not request.gpu_devices
        or (not request.gpu_memory_bytes and len(pools_to_try(planning.snapshot, replace(pod_class, pools=pools))) == 1)
        for pools, request in requests
    )


def _waiting(planning: Planning) -> Iterator[tuple[int, PodClass, Queue, int]]:
    """Index of the queue, class where it stands, the queue, and index of its first entry that found no room and
    might by another's place.
    """
    for i, queue in enumerate(planning.snapshot.queues):
        waiting, shortfall = planning.blocked.get(i), planning.short.get(i)
        if waiting is None or waiting.reason not in MAY_HELP or queue.pod_class.together is not None:
            continue
        if shortfall is not None and shortfall.bound is not None and shortfall.bound.firm:
            continue
        yield i, planning.class_of(i), queue, planning.short_at[i].entry if i in planning.short_at else 0


def _claims(planning: Planning, pod_class: PodClass, entry: Pending) -> bool:
    """Whether its project may have so much more of others, in any of its pools."""
    right, numbers = Right(planning, pod_class, entry), planning.snapshot.nodes.pool_numbers
    for pool in pools_to_try(planning.snapshot, pod_class):
        number = numbers.get((pod_class.cluster_id, pool))
        if number is None:
            continue
        if any(right.claims(pool, planning.shares.milli_of(pod_class.request, number))):
            return True
    return False
