"""Each pod goes to the best node of the first pool that has room, in the order of the queues. A gang's pods do so one
after the other, and where too many find no room, none of them is placed.

A workload that does not fit lets others pass. Once no room was found for one pod, its whole class is done for this
plan, because from here on room only shrinks.

To find out that a gang does not fit takes as long as to place it, and to compare a long node affinity takes its time,
too: a plan spends so much on that for each project, and puts the rest off to the next one.
"""

import heapq
from collections.abc import Mapping, Sequence
from typing import Final

from events.workload.pod import PodRef
from services.scheduler.candidates import Candidates
from services.scheduler.planning import Phase, Planning, Shortfall, pools_to_try
from services.scheduler.policy.phases import explain, quota
from services.scheduler.policy.together import Stay, most_together
from services.scheduler.snapshot import GangPart, OrderKey, Pending, PodClass, Queue, Waiting

TRIED_IN_VAIN: Final = 2_000
"""Pods of gangs that a plan places and takes back, some 0.2 s. From then on a gang is tried only where a rough count
says that it may fit: a few hundred wide ones that wait would hold up everybody for a minute.
"""
MOST_PROBED: Final = 1_000
"""Pods of one project that are tried in vain in one plan, about: some 0.15 s, which everybody waits for."""
COUNTED_AS: Final = 5
"""Pods that a gang counts as beside those, for what it costs to look at it at all."""


def run(planning: Planning) -> None:
    """Place until nothing fits any more, or the plan is full."""
    queues = planning.snapshot.queues
    heads: list[tuple[OrderKey, int, int]] = [
        (queue.entries[0].order, i, 0) for i, queue in enumerate(queues) if queue.entries and queue.blocked is None
    ]
    heapq.heapify(heads)
    classes = {i: queues[i].pod_class for _, i, _ in heads}
    pools = {
        i: _pools(planning, pod_class)
        for i, pod_class in classes.items()
        if not pod_class.gang and not pod_class.probing
    }
    longest: dict[str, int] = {}
    for i, pod_class in classes.items():
        longest[pod_class.project_id] = max(longest.get(pod_class.project_id, 0), queues[i].put_off)
    while heads:
        _, i, at = heapq.heappop(heads)
        queue = queues[i]
        entry = queue.entries[at]
        probing = queue.pod_class.probing
        if probing and _puts_off(planning, queue, longest):
            planning.put_off.add(i)
            continue
        if queue.pod_class.gang:
            before = planning.tried_in_vain
            shortfall = _place_gang(planning, queue.pod_class, entry)
            probing = COUNTED_AS + planning.tried_in_vain - before
        else:
            if i not in pools:
                pools[i] = _pools(planning, queue.pod_class)
            shortfall = _place(planning, queue.pod_class, entry, entry.pods, pools[i])
        if shortfall is not None:
            planning.probed[queue.pod_class.project_id] += probing
        if planning.cut_short:
            return
        if shortfall is not None:
            planning.short[i] = shortfall
        elif at + 1 < len(queue.entries):
            heapq.heappush(heads, (queue.entries[at + 1].order, i, at + 1))


def _puts_off(planning: Planning, queue: Queue, longest: Mapping[str, int]) -> bool:
    """Whether its project has used up what one plan spends on it, or others of it have been put off more often.
    `longest`: by project, how often at most.
    """
    project_id = queue.pod_class.project_id
    return planning.probed[project_id] >= MOST_PROBED or queue.put_off < longest[project_id]


def _pools(planning: Planning, pod_class: PodClass) -> list[tuple[str, Candidates]]:
    """The pools to try, in order, each with its nodes; none where the cluster takes no pods, or the project is gone."""
    project = planning.snapshot.projects.get(pod_class.project_id)
    if project is not None and not project.exists:
        return []
    cluster = planning.snapshot.clusters.get(pod_class.cluster_id)
    if cluster is None or not cluster.exists or not cluster.connected:
        return []
    numbers = planning.snapshot.nodes.pool_numbers
    return [
        (pool, planning.candidates(pod_class.request, numbers[pod_class.cluster_id, pool]))
        for pool in pools_to_try(planning.snapshot, pod_class)
        if (pod_class.cluster_id, pool) in numbers
    ]


def _place_gang(planning: Planning, pod_class: PodClass, entry: Pending) -> Shortfall | None:
    """Place a gang whole, or nothing of it; why not."""
    start, mark, used = len(planning.placed.pods), planning.room.checkpoint(), dict(planning.quota_used)
    if start and start + len(entry.pods) > planning.max_pods:
        planning.cut_short = True
        return None
    at, planning.in_gang = 0, True
    for each in pod_class.gang:
        part, before = pod_class.part(each), len(planning.placed.pods)
        pools = _pools(planning, part)
        waiting = _too_few(planning, part, each, pools, entry) if planning.tried_in_vain >= TRIED_IN_VAIN else None
        if waiting is None:
            shortfall = _place(planning, part, entry, entry.pods[at : at + each.pods], pools)
            placed = len(planning.placed.pods)
            if shortfall is not None and placed - before < each.needed:
                waiting = explain.why_gang(planning, part, shortfall, placed=placed - start, of=entry)
        if waiting is not None:
            planning.tried_in_vain += len(planning.placed.pods) - start
            planning.room.rollback(mark)
            planning.placed.forget(start)
            planning.quota_used, planning.in_gang = used, False
            return Shortfall(waiting=explain.or_never(planning, pod_class, entry, waiting))
        at += each.pods
    planning.in_gang = False
    planning.placed.whole.add(entry.key)
    return None


def _too_few(
    planning: Planning, part: PodClass, of: GangPart, pools: list[tuple[str, Candidates]], entry: Pending
) -> Waiting | None:
    """Why this part of a gang cannot find a place, by a rough count that is never too small; None where it may, or
    where none of its pods does, which the first one shows.
    """
    if part.together is not None and part.together.required:
        count = sum(most_together(planning, part.together, candidates, of.pods) for _, candidates in pools)
    else:
        count = sum(candidates.fitting_in_all(of.pods) for _, candidates in pools)
    left_milli = quota.left_milli(planning, part)
    shortfall = _shortfall(planning, part, pools, left_milli)
    if left_milli is not None and shortfall.quota_need_milli:
        by_quota = max(left_milli, 0) // shortfall.quota_need_milli
        if by_quota < min(count, of.needed):
            return explain.too_few(by_quota, entry, explain.why(planning, part, shortfall))
    return explain.too_few(count, entry, part) if 0 < count < of.needed else None


def _place(
    planning: Planning,
    pod_class: PodClass,
    entry: Pending,
    pods: Sequence[PodRef],
    pools: list[tuple[str, Candidates]],
) -> Shortfall | None:
    """Place pods of one workload; why the first that found no room did not."""
    placed = planning.placed
    stay = None if pod_class.together is None else Stay(planning, pod_class.together, entry, pools)
    for pod in pods:
        if len(placed.pods) >= planning.max_pods and not planning.in_gang:
            planning.cut_short = True
            return None
        left_milli = quota.left_milli(planning, pod_class)
        for pool, candidates in pools:
            index = candidates.best(most_gpu_milli=left_milli) if stay is None else stay.best(candidates, left_milli)
            if index is None:
                continue
            row, devices = int(candidates.rows[index]), candidates.devices(index)
            planning.room.take(row, pod_class.request, devices)
            quota.use(planning, pod_class, int(candidates.gpu_milli[index]))
            placed.classes.append(pod_class)
            placed.entries.append(entry)
            placed.pods.append(pod)
            placed.pools.append(pool)
            placed.rows.append(row)
            placed.devices.append(devices)
            break
        else:
            return _shortfall(planning, pod_class, pools, left_milli)
    return None


def _shortfall(
    planning: Planning, pod_class: PodClass, pools: list[tuple[str, Candidates]], left_milli: int | None
) -> Shortfall:
    if left_milli is None:
        return Shortfall()
    needs = [need for _, candidates in pools if (need := candidates.least_gpu_milli()) is not None]
    return Shortfall(
        quota_need_milli=min(needs, default=0), quota_used_milli=planning.quota_used.get(pod_class.project_id, 0)
    )


PHASE: Final = Phase(name="place", run=run)
