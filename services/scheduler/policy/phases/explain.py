"""Why each class of pods that found no room waits: one dominant code with numbers, by the room that is left in the end.

Codes are split into *cannot ever fit as written* and *waiting* (events/phases.py). What a person must change comes
before what only time changes.
"""

import re
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from events.phases import WaitingReason
from events.workload.spec import WHOLE_GPU_MILLI, PodRequest
from services.scheduler.candidates import refused_by
from services.scheduler.planning import Phase, Planning, Shortfall, pools_to_try, wanted_pools
from services.scheduler.policy import together
from services.scheduler.policy.filters import calendar
from services.scheduler.policy.phases import quota
from services.scheduler.policy.rules import Filter
from services.scheduler.policy.words import counted, gpus, listed, nodes, wish
from services.scheduler.room import View
from services.scheduler.snapshot import Booleans, Bound, Closed, ClusterView, Integers, Pending, PodClass, Waiting

MOST_TOLD: Final = 2
"""Other clusters of which a message tells why they cannot run it."""


class _Room(NamedTuple):
    """Why nodes that are possible have no room now."""

    reason: WaitingReason
    parts: list[str]
    """Each with a number of nodes."""


def run(planning: Planning) -> None:
    """Queues that were blocked before stay so for the reason that was found then."""
    closings = planning.snapshot.nodes.closings
    for i, queue in enumerate(planning.snapshot.queues):
        if queue.blocked is not None:
            planning.blocked[i] = queue.blocked
        elif i in planning.short:
            waiting = why(planning, planning.class_of(i), planning.short[i])
            project = planning.snapshot.projects.get(planning.class_of(i).project_id)
            planned = calendar.entries(closings, None if project is None else project.closed or project.within_quota)
            planning.blocked[i] = replace(_with_others(planning, i, waiting), planned=planned)


def why(planning: Planning, pod_class: PodClass, shortfall: Shortfall) -> Waiting:
    """The dominant reason."""
    if shortfall.waiting is not None:
        return shortfall.waiting
    snapshot = planning.snapshot
    cluster = snapshot.clusters.get(pod_class.cluster_id)
    if cluster is None or not cluster.exists:
        gone = "each cluster that could run it was removed; delete the workload and submit it again"
        told = (
            gone if pod_class.among else "its cluster was removed; delete the workload and submit it to another cluster"
        )
        return Waiting(reason=WaitingReason.CLUSTER_DISCONNECTED, message=told)
    project = snapshot.projects.get(pod_class.project_id)
    if project is not None and not project.exists:
        return Waiting(
            reason=WaitingReason.PROJECT_DELETED,
            message=f"project {project.name} was deleted, so this workload will be deleted too",
        )
    pools = pools_to_try(snapshot, pod_class)
    if not pools:
        return Waiting(
            reason=WaitingReason.NO_SUCH_NODE_POOL,
            message=f"cluster {cluster.name} has no node pool {listed(wanted_pools(snapshot, pod_class))}; "
            f"it has {listed(cluster.pools)}",
        )
    if waiting := _bound_too_small(planning, pod_class, pools):
        return waiting
    if not cluster.connected:
        return Waiting(
            reason=WaitingReason.CLUSTER_DISCONNECTED,
            message=f"the agent of cluster {cluster.name} reports a problem: {cluster.problem}"
            if cluster.problem
            else f"the agent of cluster {cluster.name} does not report",
        )
    sight, where = _sight(planning, pod_class, pools, cluster), where_of(pools, cluster)
    if len(sight.rows) and sight.barred.all():
        return Waiting(
            reason=WaitingReason.NO_MATCHING_NODE,
            message=f"{_all_without_labels(len(sight.rows), where)}: {', '.join(sight.lacking)}",
        )
    by_nodes = sight.by_nodes
    never = by_nodes is not None and by_nodes.reason is WaitingReason.NO_MATCHING_NODE
    if project is not None and project.closed is not None and not never:
        return _outside(project.name, project.closed)
    if by_nodes is not None:
        return by_nodes
    every = View(planning.room, pod_class.request, sight.rows, sight.share_milli, planning.closings(pod_class))
    view = every.at(~sight.barred)
    if shortfall.bound is not None:
        return _bound_used(pod_class, shortfall, shortfall.bound, view, where)
    room = _by_free_room(view, sight, together.elsewhere(planning, pod_class, view))
    parts = [*room.parts, *sight.lacking]
    message = f"{nodes(len(sight.rows))} of {where}: {', '.join(parts)}{_of_share(planning, pod_class, pools)}"
    if room.reason in FULL and (bound := kept_by_quota(planning, pod_class)) is not None:
        return _quota_first(planning, bound, need_of(pod_class, view), message)
    return Waiting(reason=room.reason, message=message + _of_window(planning, pod_class, pools, view))


class Sight(NamedTuple):
    """Nodes as a request sees them, by what no pod changes."""

    rows: Integers
    filters: list[Filter]
    """Those that it gives anything to look at."""
    share_milli: Integers
    barred: Booleans
    lacking: list[str]
    """How many nodes lack which labels."""
    by_nodes: Waiting | None
    """A reason that more free room would not remove."""
    too_small: Booleans
    """Of the nodes that are not barred; likewise the next."""
    closed: Booleans


def _sight(planning: Planning, pod_class: PodClass, pools: tuple[str, ...], cluster: ClusterView) -> Sight:
    closings = planning.closings(pod_class)
    key = pod_class.request, pod_class.cluster_id, pools, tuple(each.called for each in closings)
    found = planning.sights.get(key)
    if found is None:
        every, where = nodes_of(planning, pod_class, pools), where_of(pools, cluster)
        filters = [each for each in planning.policy.filters if each.asks(pod_class.request)]
        barred = barred_in(every, filters)
        view = every.at(~barred)
        among = f"{where} (with the labels that it needs)" if barred.any() else where
        found = planning.sights[key] = Sight(
            rows=every.rows,
            filters=filters,
            share_milli=every.share_milli,
            barred=barred,
            lacking=labels_lacking(every, filters),
            by_nodes=None if len(every.rows) and barred.all() else _by_nodes(view, filters, among),
            too_small=too_small_in(view, filters),
            closed=closed_in(view, filters),
        )
    return found


def _with_others(planning: Planning, i: int, waiting: Waiting) -> Waiting:
    """Where it may go to several clusters, and stands at one of them: also why it cannot go to the others."""
    pod_class, elsewhere = planning.class_of(i), planning.choices.elsewhere.get(i, {})
    alike: list[str] = []
    told, more = [waiting.message], 0
    here = planning.snapshot.clusters.get(pod_class.cluster_id)
    own = _of_any(waiting.message, "" if here is None else here.name)
    for id_, shortfall in elsewhere.items():
        view = planning.snapshot.clusters.get(id_)
        if id_ == pod_class.cluster_id or view is None or not view.exists:
            continue
        name, there = view.name, why(planning, pod_class.on(id_), shortfall)
        if there.reason == waiting.reason and _of_any(there.message, name) == own:
            alike.append(name)
        elif len(told) > MOST_TOLD:
            more += 1
        else:
            told.append(f"on cluster {name}: {there.message}")
    if more:
        told.append(f"and {counted(more, 'more cluster')} cannot run it now either")
    if alike:
        told.append(f"the same holds for {'cluster' if len(alike) == 1 else 'clusters'} {listed(tuple(alike))}")
    return replace(waiting, message="; ".join(told))


def _of_any(message: str, cluster: str) -> str:
    """The same without the name of its cluster: whether it is true of another one, too."""
    return re.sub(rf"\bcluster {re.escape(cluster)}(?![\w-])", "cluster", message)


def _outside(name: str, closed: Closed) -> Waiting:
    told = f"workloads of project {name} start {calendar.in_windows(closed)}"
    opens = calendar.opens(closed)
    return Waiting(reason=WaitingReason.OUTSIDE_WINDOW, message=f"{told}; {opens}" if opens else told)


def _over_quota(shortfall: Shortfall, bound: Bound, closed: Closed, where: str) -> Waiting:
    in_pool = f" in pool {bound.pool}" if bound.pool else ""
    told = (
        f"{bound.holder} goes over its quota {calendar.in_windows(closed)}: a pod needs at least "
        f"{gpus(shortfall.quota_need_milli)} where there is room in {where}, and its workloads hold "
        f"{gpus(shortfall.quota_used_milli)} of {gpus(bound.milli)}{in_pool}"
    )
    opens = calendar.opens(closed)
    return Waiting(reason=WaitingReason.OUTSIDE_WINDOW, message=f"{told}; {opens}" if opens else told)


def _of_window(planning: Planning, pod_class: PodClass, pools: tuple[str, ...], view: View) -> str:
    """That with room alone it would not start, as its project goes over its quota in its windows only; else empty."""
    need = pod_class.request.gpu_devices * int(view.share_milli.min()) if len(view.rows) else 0
    found: list[Bound] = []
    for pool in pools:
        windows = [each for each in quota.bounds(planning, pod_class, pool) if each.window is not None]
        over = [each for each in windows if need > quota.left_under(planning, each, later=False)]
        if not over:
            return ""
        found += over
    if not found or (closed := found[0].window) is None:
        return ""
    told = f"; also with room it would wait: {found[0].holder} goes over its quota {calendar.in_windows(closed)}"
    return f"{told}; {opens}" if (opens := calendar.opens(closed)) else told


def _of_share(planning: Planning, pod_class: PodClass, pools: tuple[str, ...]) -> str:
    """That its project has what it may have by right, where others want the rest; empty where it may have more."""
    shares, numbers = planning.shares, planning.snapshot.nodes.pool_numbers
    project_id = pod_class.project_id
    told: list[str] = []
    for pool in pools:
        number = numbers.get((pod_class.cluster_id, pool))
        if number is None or not pod_class.request.gpu_devices:
            continue
        share, milli = shares.of(project_id, number), shares.milli_of(pod_class.request, number)
        if shares.allows(project_id, number, milli) or share >= shares.total(number):
            return ""
        used = shares.used.get((project_id, number), 0)
        told.append(f"{gpus(used)} of pool {pool}, where its fair share is {gpus(share)}")
    return f"; project {shares.project(project_id).name} has {listed(tuple(told))}" if told else ""


def held() -> Waiting:
    """Of a workload for which a place is kept."""
    return Waiting(
        reason=WaitingReason.WAITING_FOR_PODS_TO_END,
        message="its place is kept: pods that were told to end still hold it, and it starts once they have ended",
    )


def reserved(count: int) -> str:
    """Of a workload for which room is kept as it comes free."""
    return f"it has waited for long, and what comes free on {nodes(count)} is kept for it"


def spoken_for(*, others_give_way: bool) -> str:
    """Of a workload that its project's share is to have room for."""
    told = "it has waited for long: it starts once enough of what its project held before has ended"
    return f"{told}, and what the project runs meanwhile gives way to it" if others_give_way else told


def behind(planning: Planning, pod_class: PodClass) -> Waiting:
    """Of a workload that is not let in behind one that has waited for longer."""
    first = planning.aside.spoken_for_by[pod_class.project_id][0]
    return Waiting(
        reason=WaitingReason.SHARE_RESERVED,
        message=f"what is left of the fair share of its project is kept for {first.name}, which has waited for longer",
    )


def why_gang(planning: Planning, part: PodClass, shortfall: Shortfall, *, placed: int, of: Pending) -> Waiting:
    """Why a gang finds no place, while `placed` of its pods hold one: it is the room beside those that is too small."""
    waiting = why(planning, part, shortfall)
    if not placed:
        return waiting
    return Waiting(
        reason=waiting.reason,
        message=f"its {len(of.pods)} pods start together, and after {placed} found a place: {waiting.message}",
    )


def too_few(count: int, of: Pending, why_: PodClass | Waiting) -> Waiting:
    """Why a gang finds no place of which at most so many pods find one; where it is nodes that lack room, its class."""
    told = f"its {len(of.pods)} pods start together, and at most {count} of them find a place now"
    if isinstance(why_, Waiting):
        return Waiting(reason=why_.reason, message=f"{told}: {why_.message}")
    gpus_asked = why_.request.gpu_devices > 0
    reason = WaitingReason.INSUFFICIENT_GPU if gpus_asked else WaitingReason.INSUFFICIENT_RESOURCES
    return Waiting(reason=reason, message=f"{told}, each with {wish(why_.request)}")


FULL: Final = frozenset(
    {
        WaitingReason.INSUFFICIENT_GPU,
        WaitingReason.INSUFFICIENT_CPU,
        WaitingReason.INSUFFICIENT_MEMORY,
        WaitingReason.INSUFFICIENT_PODS,
        WaitingReason.INSUFFICIENT_RESOURCES,
    }
)
"""What pods that end could change."""


def or_never(planning: Planning, pod_class: PodClass, of: Pending, waiting: Waiting) -> Waiting:
    """The same, or that a gang can never find a place: also on empty nodes there is no room for all of it."""
    # Before its window opens it is not even tried.
    if waiting.reason not in FULL | {WaitingReason.OUTSIDE_WINDOW}:
        return waiting
    if pod_class not in planning.never:
        planning.never[pod_class] = _never(planning, pod_class, of)
    return planning.never[pod_class] or waiting


def _never(planning: Planning, pod_class: PodClass, of: Pending) -> Waiting | None:
    told = f"its {len(of.pods)} pods start together"
    needed_milli, rows = 0, np.zeros(len(planning.snapshot.nodes.keys), dtype=np.bool_)
    where = ""
    alike: dict[tuple[tuple[str, ...], PodRequest], int] = {}
    for each in pod_class.gang:
        kind = each.pools, each.request
        alike[kind] = alike.get(kind, 0) + each.needed
    for (named, request), needed in alike.items():
        part = replace(pod_class, pools=named, request=request, gang=())
        pools = pools_to_try(planning.snapshot, part)
        every = nodes_of(planning, part, pools)
        view = every.at(~barred_in(every, [one for one in planning.policy.filters if one.asks(part.request)]))
        where = where_of(pools, planning.snapshot.clusters[part.cluster_id])
        if (count := held_when_empty(view)) < needed:
            room = f"{count} of {needed} pods with {wish(part.request)}"
            message = f"{told}, and {where} has room for {room}, even when empty"
            return Waiting(reason=WaitingReason.NO_MATCHING_NODE, message=message)
        needed_milli += needed * part.request.gpu_devices * int(view.share_milli.min(initial=WHOLE_GPU_MILLI))
        rows[view.rows] = True
    have_milli = WHOLE_GPU_MILLI * int(planning.snapshot.nodes.capacity_devices[rows].sum())
    if needed_milli > have_milli:
        message = f"{told} and need {gpus(needed_milli)} in all, and {where} has {gpus(have_milli)}, even when empty"
        return Waiting(reason=WaitingReason.NO_MATCHING_NODE, message=message)
    return None


def held_when_empty(view: View) -> int:
    """How many pods of this request there is room for on all these nodes, if nothing of ours were on them."""
    return int(each_holds_when_empty(view).sum())


def each_holds_when_empty(view: View) -> Integers:
    """The same of each of them."""
    request, table, rows = view.request, view.room.nodes, view.rows
    held = table.capacity_pods[rows]
    for asked, capacity in (
        (request.cpu_milli, table.capacity_cpu_milli),
        (request.memory_bytes, table.capacity_memory_bytes),
        *((each.amount, table.capacity_extended.get(each.resource)) for each in request.extended),
    ):
        if asked:
            held = np.minimum(held, 0 if capacity is None else capacity[rows] // asked)
    if request.gpu_devices:
        shares = WHOLE_GPU_MILLI // np.maximum(view.share_milli, 1)
        held = np.minimum(held, table.capacity_devices[rows] * shares // request.gpu_devices)
    return held


def nodes_of(planning: Planning, pod_class: PodClass, pools: tuple[str, ...]) -> View:
    """Every node of these pools that is there."""
    table, cluster_id = planning.snapshot.nodes, pod_class.cluster_id
    numbers = [table.pool_numbers[cluster_id, pool] for pool in pools if (cluster_id, pool) in table.pool_numbers]
    rows = np.flatnonzero(np.isin(table.pool, numbers) & table.present)
    return View(planning.room, pod_class.request, rows, closings=planning.closings(pod_class))


def _by_nodes(view: View, filters: list[Filter], where: str) -> Waiting | None:
    """A reason that more free room would not remove."""
    if not len(view.rows):
        return Waiting(reason=WaitingReason.NO_NODES, message=f"{where} has no nodes")
    too_small = too_small_in(view, filters)
    if too_small.all():
        checks = [each.never for each in filters if each.never is not None]
        parts = [words for check in checks if check.refuses(view).all() and (words := check.words(view))]
        too_large = "; ".join(parts) or f"no node has {wish(view.request)} together"
        return Waiting(
            reason=WaitingReason.NO_MATCHING_NODE,
            message=f"{_all_too_small(len(view.rows), where)} even when empty: {too_large}",
        )
    if (too_small | closed_in(view, filters)).all():
        large_enough = view.at(~too_small)
        others = [each for each in filters if each.name != calendar.NAME]
        planned = not closed_in(large_enough, others).all()
        return Waiting(
            reason=_of_calendar(large_enough) if planned else WaitingReason.NO_NODES,
            message=f"{_all_closed(len(large_enough.rows), where)} ({_causes(large_enough, filters, named=planned)})",
        )
    return None


def _of_calendar(view: View) -> WaitingReason:
    """By what it is kept from these nodes: what keeps it from the most of them."""
    return max(view.closings, key=lambda each: int(each.rows[view.rows].sum())).reason


def _by_free_room(view: View, sight: Sight, elsewhere: together.Elsewhere | None) -> _Room:
    filters, too_small, closed = sight.filters, sight.too_small, sight.closed
    possible = view.at(~too_small & ~closed)
    parts: list[str] = []
    if elsewhere is not None:
        apart = elsewhere.apart & ~too_small & ~closed
        possible = view.at(~too_small & ~closed & ~apart)
        parts += [f"{int(apart.sum())} {elsewhere.words}"] if apart.any() else []
    everywhere: list[WaitingReason] = []
    for each in filters:
        refused = each.full.refuses(possible) if each.full is not None else None
        if each.full is None or refused is None or not refused.any():
            continue
        parts.append(f"{int(refused.sum())} {each.full.words(possible.at(refused))}")
        if refused.all():
            everywhere.append(each.reason)
    if count := int(too_small.sum()):
        parts.append(f"{count} too small even when empty")
    if count := int((closed & ~too_small).sum()):
        parts.append(f"{count} taking no new pods ({_causes(view.at(closed & ~too_small), filters, named=False)})")
    return _Room(everywhere[0] if everywhere else WaitingReason.INSUFFICIENT_RESOURCES, parts)


def barred_in(view: View, filters: list[Filter]) -> Booleans:
    return refused_by([each.barred for each in filters if each.barred is not None], view)


def labels_lacking(view: View, filters: list[Filter]) -> list[str]:
    """How many nodes lack which labels; each node counts once, by the first."""
    parts: list[str] = []
    for check in (each.barred for each in filters if each.barred is not None):
        refused = check.refuses(view)
        if refused.any():
            parts.append(f"{int(refused.sum())} {check.words(view.at(refused))}")
        view = view.at(~refused)
    return parts


def too_small_in(view: View, filters: list[Filter]) -> Booleans:
    return refused_by([each.never for each in filters if each.never is not None], view)


def closed_in(view: View, filters: list[Filter]) -> Booleans:
    return refused_by([each.closed for each in filters if each.closed is not None], view)


def _causes(view: View, filters: list[Filter], *, named: bool) -> str:
    """What closes some of these nodes.

    Args:
        named: whether entries of the calendar are, since they are what it waits for. Else each that is over would have
            the log tell thousands again why they wait, for the same reason as before; who asks is told them.
    """
    told: list[str] = []
    for each in filters:
        if each.closed is not None and each.closed.refuses(view).any():
            of_calendar = each.name == calendar.NAME and not named
            words = calendar.UNNAMED if of_calendar else each.closed.words(view)
            told += [words] if words else []
    return "; ".join(told)


def _bound_too_small(planning: Planning, pod_class: PodClass, pools: tuple[str, ...]) -> Waiting | None:
    """Where each pool has a bound that one pod alone exceeds: the widest of them."""
    need = pod_class.request.gpu_devices * pod_class.request.gpu_milli
    lasting = [[each for each in quota.bounds(planning, pod_class, pool) if each.window is None] for pool in pools]
    tightest = [min(each, key=_milli, default=None) for each in lasting]
    exceeded = [bound for bound in tightest if bound is not None and need > bound.milli]
    if not exceeded or len(exceeded) < len(pools):
        return None
    bound = max(exceeded, key=_milli)
    return Waiting(
        reason=WaitingReason.QUOTA_TOO_SMALL if bound.firm else WaitingReason.LIMIT_TOO_SMALL,
        message=f"a pod needs {gpus(need)}, and the whole {_called(bound)} is {gpus(bound.milli)}",
    )


def _milli(bound: Bound) -> int:
    return bound.milli


def _called(bound: Bound) -> str:
    """Such as `quota of project vision for non-preemptible workloads in pool h100`."""
    where = f" in pool {bound.pool}" if bound.pool else ""
    if bound.firm:
        return f"quota of {bound.holder} for non-preemptible workloads{where}"
    return f"limit of {bound.holder}{where}"


def _bound_used(pod_class: PodClass, shortfall: Shortfall, bound: Bound, view: View, where: str) -> Waiting:
    # On the node with the largest devices, whether there is room or not.
    least_milli = pod_class.request.gpu_devices * int(view.share_milli.min())
    fits = least_milli <= bound.milli
    if bound.window is not None:
        return _over_quota(shortfall, bound, bound.window, where)
    if bound.firm:
        reason = WaitingReason.QUOTA_USED if fits else WaitingReason.QUOTA_TOO_SMALL
    else:
        reason = WaitingReason.LIMIT_USED if fits else WaitingReason.LIMIT_TOO_SMALL
    held, word = ("non-preemptible workloads", "quota") if bound.firm else ("workloads", "limit")
    in_pool = f" in pool {bound.pool}" if bound.pool else ""
    return Waiting(
        reason=reason,
        message=f"a pod needs at least {gpus(shortfall.quota_need_milli)} where there is room in {where}, and "
        f"{held} of {bound.holder} hold {gpus(shortfall.quota_used_milli)} of its {word} of "
        f"{gpus(bound.milli)}{in_pool}",
    )


def need_of(pod_class: PodClass, view: View) -> int:
    """The least GPU that one of these nodes would give such a pod."""
    return pod_class.request.gpu_devices * int(view.share_milli.min()) if len(view.rows) else 0


def kept_by_quota(planning: Planning, pod_class: PodClass) -> Bound | None:
    """The quota that has no room for such a pod, which is non-preemptible, whatever nodes have; None where one of its
    pools is not so. Of several pools that of the one that is tried first.
    """
    found: list[Bound] = []
    for pool in pools_to_try(planning.snapshot, pod_class):
        bounds = [each for each in quota.bounds(planning, pod_class, pool) if each.firm and each.window is None]
        need = need_of(pod_class, nodes_of(planning, pod_class, (pool,))) if bounds else 0
        over = [each for each in bounds if need > quota.left_under(planning, each, later=False)]
        if not over:
            return None
        found.append(min(over, key=lambda each: quota.left_under(planning, each, later=False)))
    return found[0] if found else None


def _quota_first(planning: Planning, bound: Bound, need_milli: int, room: str) -> Waiting:
    """With room alone it would not start, and with a higher quota it may be given others' place."""
    in_pool = f" in pool {bound.pool}" if bound.pool else ""
    held = planning.quota_used.get(bound.key, 0)
    return Waiting(
        reason=WaitingReason.QUOTA_USED,
        message=f"a pod needs at least {gpus(need_milli)}, and non-preemptible workloads of {bound.holder} hold "
        f"{gpus(held)} of its quota of {gpus(bound.milli)}{in_pool}; beside that there is no room now: {room}",
    )


def where_of(pools: tuple[str, ...], cluster: ClusterView) -> str:
    return f"{'pool' if len(pools) == 1 else 'pools'} {listed(pools)} of cluster {cluster.name}"


def _all_without_labels(count: int, where: str) -> str:
    if count == 1:
        return f"the only node of {where} does not have the labels that it needs"
    return f"none of the {nodes(count)} of {where} has the labels that it needs"


def _all_too_small(count: int, where: str) -> str:
    if count == 1:
        return f"the only node of {where} is too small"
    return f"none of the {nodes(count)} of {where} is large enough"


def _all_closed(count: int, where: str) -> str:
    if count == 1:
        return f"the only node of {where} that is large enough takes no new pods"
    return f"the {nodes(count)} of {where} that are large enough take no new pods"


PHASE: Final = Phase(name="explain", run=run)
