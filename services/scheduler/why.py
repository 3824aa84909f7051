"""Why a workload waits, who holds what it needs and what would let it start; or why it runs where it does. Pure;
nothing of the fold changes by it.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Final, TypedDict

import numpy as np
from msgspec.structs import replace as replace_fields

from events.ids import key_of_id, workload_key
from events.node import Reservation
from events.phases import Phase, WaitingReason
from events.why import (
    MOST_HOLDERS,
    MOST_PLACES,
    Change,
    Estimate,
    Holder,
    Kept,
    NodeCount,
    Option,
    Others,
    Place,
    ScoreOf,
    Step,
    Why,
)
from events.workload.gangs import placed_of
from events.workload.places import next_retry_at
from events.workload.state import Workload, schedulable
from services.scheduler.changes import changes, closings_of
from services.scheduler.estimate import BY_BOUND, BY_CALENDAR, BY_KNOWN, BY_ROOM, Estimates
from services.scheduler.fold import SchedulingState
from services.scheduler.forecast import LEAST_ESTIMATES, LEAST_RUNS
from services.scheduler.kept import kept
from services.scheduler.lost import stays, without_report
from services.scheduler.plan import MAX_PODS_PER_PLAN
from services.scheduler.planning import Planning, pools_to_try
from services.scheduler.policy.filters import takes_pods
from services.scheduler.policy.phases import explain, release
from services.scheduler.policy.phases.report import is_another
from services.scheduler.policy.registry import POLICY
from services.scheduler.policy.rules import Filter
from services.scheduler.policy.victims import kept_until
from services.scheduler.policy.words import wish
from services.scheduler.room import View
from services.scheduler.rounds import Enough, never
from services.scheduler.scene import Scene, decided, phases, scene_of
from services.scheduler.snapshot import PodClass, Snapshot, grace_of
from services.scheduler.what_if import BUSY, NEVER

MOST_NAMED: Final = 3
"""Clusters that do not report, or entries of the calendar, in one sentence."""

type _At = tuple[str, str, str, str]
"""Pod set, node key, node name, node pool."""


def why(
    fold: SchedulingState, workload_id: str, now: datetime, readable: frozenset[str] | None, enough: Enough = never
) -> Why:
    """Args: readable, ids of the projects whose workloads are named; None: all."""
    key = key_of_id(workload_id) or ""
    chain = fold.workloads.get(key)
    if chain is None or chain.state.workload_id != workload_id or not schedulable(chain.state):
        state = None if chain is None or chain.state.workload_id != workload_id else chain.state
        return Why(outcome="ended", message=_asks_for_none(fold, state))
    state = chain.state
    scene = scene_of(fold, state, key, now, readable, enough=enough)
    places = tuple(_places(fold, state, key, now))
    if isinstance(scene, Scene):
        return _waits(scene, places)
    if scene == "runs" and (unknown := stays(fold, state, now)):
        return Why(outcome="unknown", message=unknown, places=places, own=_own(fold, state, now))
    retry_at = next_retry_at(state, now)
    if scene == "runs" and retry_at is not None and not state.pods.live:
        return _backs_off(state, retry_at)
    message = {
        "starts": "the next plan gives it a place",
        "unknown": BUSY,
        "runs": _why_no_more(fold, state, key, now, enough) if state.elastic else "",
    }[scene]
    return Why(outcome=scene, message=message, places=places, own=_own(fold, state, now))


def _asks_for_none(fold: SchedulingState, state: Workload | None) -> str:
    """Of what asks for no place. What is being deleted is kept, and its name with it, for its pods: of those that were
    left on a lost cluster nobody may ever hear again, unless somebody acts.
    """
    if state is None or state.phase is not Phase.DELETING:
        return "it asks for no place"
    told = ["it is deleted, and its name free, once its pods have ended"]
    for cluster_id, pods in state.left.items():
        cluster, count = fold.owners.cluster(cluster_id), len(pods)
        if cluster is None or cluster.removed:
            continue  # they count as gone in a moment
        those = f"{count} pod{'s' if count != 1 else ''} that it left on cluster {cluster.name}"
        told.append(
            f"{those} {'are' if count != 1 else 'is'} told to end"
            if cluster.connected
            else f"{those} may still run, and that cluster is lost: this waits until it is back. If it never comes"
            f" back, have an administrator remove it: muster cluster remove {cluster.name}"
        )
    return "; ".join(told)


def _why_no_more(fold: SchedulingState, state: Workload, key: str, now: datetime, enough: Enough) -> str:
    """Of an elastic workload: how many pods it has of how many it may, and why not more."""
    pod_set = next(each for each in state.pod_sets if each.elastic)
    told = f"it has {placed_of(state, pod_set)} of {pod_set.minimum} to {pod_set.most} pods"
    if not any(each.entry.key == key for each in fold.snapshot(now).growing):
        return told
    planned, last, certain = decided(fold.snapshot(now), enough)
    if certain and any(each.key == key for each in planned.bindings):
        return f"{told}, and the next plan gives it more"
    why_not = last.not_grown.get(key)
    return f"{told}; {why_not}" if why_not else told


def _backs_off(state: Workload, retry_at: datetime) -> Why:
    """A pod has failed, and waits before it runs again."""
    step = Step(act="wait", of=f"wait until {retry_at:%Y-%m-%d %H:%M:%S} UTC, when the next run may begin")
    return Why(
        outcome="waits",
        reason=WaitingReason.BACKOFF.value,
        message=state.message,
        waiting_pods=len(state.pods.waiting),
        changes=(Change(steps=(step,), message=step.of),),
    )


def _waits(scene: Scene, places: tuple[Place, ...]) -> Why:
    waiting, state = scene.waiting, scene.state
    # The table and the history give this one: on a full cluster each pod that ends turns one into another.
    same = bool(state.reason) and not is_another(state.reason, waiting.reason)
    holders, others = _holders(scene)
    placed = sum(entry is scene.entry for entry in scene.planning.placed.entries)
    # What comes back may fit where nothing else does.
    gone = list(without_report(scene.fold, state))
    return Why(
        outcome="never" if waiting.reason in NEVER and not state.left else "waits",
        reason=state.reason if same else waiting.reason.value,
        message="; ".join((waiting.message, *gone[:MOST_NAMED])),
        waiting_pods=len(scene.entry.pods) - placed,
        ahead=_ahead(scene),
        nodes=tuple(_counts(scene)),
        holders=holders,
        others=others,
        kept=_kept(scene),
        changes=changes(scene),
        places=places,
        **_estimate(scene),
    )


class _Estimated(TypedDict, total=False):
    estimate: Estimate
    no_estimate: str


def _estimate(scene: Scene) -> _Estimated:
    """A range, or why there is none: never a number without ground."""
    forecast, reason = scene.fold.forecast, scene.waiting.reason
    if reason in NEVER:
        return {"no_estimate": "it starts only once somebody has changed something"}
    project = scene.snapshot.projects.get(scene.state.project_id)
    closed = None if project is None else project.closed or project.within_quota
    if reason is WaitingReason.OUTSIDE_WINDOW and closed is not None and closed.opens_at is not None:
        return {"no_estimate": f"not before its project's next window opens at {closed.opens_at:%Y-%m-%d %H:%M} UTC"}
    found = Estimates(scene.fold, scene.snapshot).expected(scene.queue, scene.entry, reason)
    start, by = (None, None) if found is None else (found.start, found.by)
    if found is None or (start is None and by is None):
        return {"no_estimate": _no_ground(scene)}
    error = forecast.error
    if (start is None or error is None) and by is not None:
        return {"estimate": Estimate(earliest=found.earliest, latest=by, latest_known=True)}
    if start is None or error is None:
        told = f"of {LEAST_ESTIMATES} estimates that a range needs, {forecast.known} can be compared with what came"
        return {"no_estimate": f"too few earlier estimates to tell how good one is: {told}"}
    wait = start - scene.now
    try:
        earliest, latest = max(scene.now + wait * error.low, found.earliest), scene.now + wait * error.high
    except OverflowError:
        return {"no_estimate": "past estimates were too far off to tell anything"}
    known = by is not None and by < latest
    latest = max(by if by is not None and known else latest, found.earliest)
    return {
        "estimate": Estimate(
            earliest=min(earliest, latest),
            latest=latest,
            measured=error.measured,
            typical_error=round(error.typical, 3),
            latest_known=known,
        )
    }


def _no_ground(scene: Scene) -> str:
    """Why nothing can be said of when it starts."""
    reason = scene.waiting.reason
    if reason in BY_CALENDAR and (entries := closings_of(scene, scene.parts[0][0])):
        told = [f"{each.called} until {each.ends_at:%Y-%m-%d %H:%M} UTC" for each in entries[:MOST_NAMED]]
        return f"nobody can say what comes after the calendar's entries: {', '.join(told)}"
    if reason not in BY_ROOM | BY_BOUND | BY_KNOWN:
        return "nobody can say how long this reason lasts"
    told = f"how long a run lasts is known once {LEAST_RUNS} like it have ended"
    return f"too little is known of the runs that hold what it needs: {told}"


def _ahead(scene: Scene) -> int:
    cluster_id, order = scene.pod_class.cluster_id, scene.entry.order
    blocked = scene.planning.blocked
    # What can never start as it is written stands in nobody's way.
    keys = {
        entry.key
        for i, queue in enumerate(scene.snapshot.queues)
        if queue.pod_class.cluster_id == cluster_id and (i not in blocked or blocked[i].reason not in NEVER)
        for entry in queue.entries
        if entry.order < order
    }
    return len(keys - {scene.key})


# -- nodes -------------------------------------------------------------------------------------------------------------


def _counts(scene: Scene) -> Iterator[NodeCount]:
    """How many nodes each ground keeps the pods from; pods that ask for the same are told once."""
    asked = {(part.pools, part.request): part for part, _ in scene.parts}
    for (pools, request), part in asked.items():
        sets = (each for each in scene.state.pod_sets if (each.node_pools, each.template.request) == (pools, request))
        # Where pods ask for different things, it is said which of them are meant.
        pods = f"{' and '.join(each.name for each in sets)}: {wish(request)}" if len(asked) > 1 else wish(request)
        for id_ in scene.clusters:
            for each in counts_of(scene.view_of(part, id_), scene.filters(part), lost=_lost(scene.snapshot, id_)):
                yield replace_fields(each, pods=pods, cluster=scene.cluster_name(id_))


def _lost(snapshot: Snapshot, cluster_id: str) -> str:
    """What is told of its nodes where it is lost, as far as that is known; else empty."""
    view = snapshot.clusters.get(cluster_id)
    if view is None or view.connected:
        return ""
    return "the agent of their cluster reports a problem" if view.problem else "their cluster does not report"


def counts_of(view: View, filters: list[Filter], *, lost: str = "") -> Iterator[NodeCount]:
    """Of nodes of one cluster. `lost`: why it takes no pods, where it is."""
    asked = wish(view.request)

    def count(ground: str, nodes: int, message: str) -> NodeCount:
        return NodeCount(pods=asked, ground=ground, nodes=nodes, message=message)

    for each in filters:
        if each.barred is not None and (refused := each.barred.refuses(view)).any():
            yield count(each.name, int(refused.sum()), each.barred.words(view.at(refused)))
            view = view.at(~refused)
    too_small = explain.too_small_in(view, filters)
    if too_small.any():
        yield count("size", int(too_small.sum()), "too small even when empty")
    view = view.at(~too_small)
    for each in filters:
        if each.closed is not None and (refused := each.closed.refuses(view)).any():
            told = each.closed.words(view.at(refused)) or "not ready, or its cluster does not report"
            if each is takes_pods.FILTER and lost:
                told = lost
            yield count(each.name, int(refused.sum()), told)
            view = view.at(~refused)
    room = np.ones(len(view.rows), dtype=np.bool_)
    for each in filters:
        if each.full is not None and len(view.rows) and (refused := each.full.refuses(view)).any():
            room &= ~refused
            yield count(each.name, int(refused.sum()), each.full.words(view.at(refused)))
    if room.any():
        yield count("room", int(room.sum()), "with room for such a pod now")


# -- who holds it ------------------------------------------------------------------------------------------------------


def _holders(scene: Scene) -> tuple[tuple[Holder, ...], Others]:
    """Under its bound, where that is what it waits for, else on the nodes where it could run; who holds most first."""
    if scene.waiting.reason in NEVER or not len(scene.parts):
        return (), Others()
    held = list(scene.holdings.values())
    if scene.waiting.reason in BY_BOUND:
        shortfall = next((each for i, each in scene.planning.short.items() if _is_of(scene, i)), None)
        bound = None if shortfall is None else shortfall.bound
        if bound is None:
            bound = explain.kept_by_quota(scene.planning, scene.parts[0][0])
        keys = {key for key, _ in scene.fold.held.under(bound)} if bound is not None else set[str]()
        held = [scene.holding(key) for key in sorted(keys - {scene.key})]
    if scene.waiting.reason is not WaitingReason.INSUFFICIENT_PODS:
        held = [each for each in held if each.anything]
    held.sort(key=lambda each: (-each.gpu_milli, -each.cpu_milli, -each.memory_bytes, each.key))
    named = [each for each in held if scene.may_name(each.key)][:MOST_HOLDERS]
    keys = {each.key for each in named}
    hidden = [each for each in held if each.key not in keys]
    holders = tuple(
        Holder(
            workload_id=(state := scene.fold.workloads[each.key].state).workload_id,
            name=state.name,
            project_id=state.project_id,
            pods=len(each.on),
            gpu_milli=each.gpu_milli,
            cpu_milli=each.cpu_milli,
            memory_bytes=each.memory_bytes,
        )
        for each in named
    )
    others = Others(
        workloads=len(hidden),
        pods=sum(len(each.on) for each in hidden),
        gpu_milli=sum(each.gpu_milli for each in hidden),
    )
    return holders, others


def _kept(scene: Scene) -> tuple[Kept, ...]:
    """Whose places it may not take, or not yet."""
    if scene.key in scene.planning.held:
        return ()
    entry, holders = scene.entry, {scene.fold.workloads[key].state.workload_id for key in scene.holdings}
    return kept(
        scene.snapshot,
        scene.planning.spared.get(scene.key, {}),
        [id_ for id_ in entry.gave_way_to if id_ in holders],
        lambda of: scene.readable is None or of.project_id in scene.readable,
    )


def _own(fold: SchedulingState, state: Workload, now: datetime) -> Kept | None:
    """Until when nobody takes the place of what runs."""
    snapshot = fold.imagine(state, now, workload_key(state.project_id, state.name))
    snapshot = replace(snapshot, queues=(), running={state.project_id: (state,)})
    until = kept_until(Planning(snapshot, phases(POLICY), MAX_PODS_PER_PLAN), state)
    if until is None:
        return None
    return Kept(workload_id=state.workload_id, name=state.name, until=until.until, rule=until.rule)


def _is_of(scene: Scene, i: int) -> bool:
    return scene.snapshot.queues[i] is scene.queue


# -- where it runs -----------------------------------------------------------------------------------------------------


def _places(fold: SchedulingState, state: Workload, key: str, now: datetime) -> Iterator[Place]:
    """At most MOST_PLACES: what the scores say of each node now, as if one of its pods there were placed anew."""
    if not state.pods.live:
        return
    pods: Counter[_At] = Counter()
    for (name, _), pod in state.pods.live.items():
        if pod.node_key:
            pods[name, pod.node_key, pod.node_name, pod.pool] += 1
    snapshot = replace(fold.snapshot(now), queues=(), not_schedulable=())
    requests = {each.name: (each.template.request, each.node_pools) for each in state.pod_sets}
    runs = fold.held.runs_of(key)
    for at, count in sorted(pods.items())[:MOST_PLACES]:
        name, node_key, node_name, pool = at
        if name not in requests or node_key not in snapshot.nodes.keys:
            continue
        request, pools = requests[name]
        held = fold.nodes[node_key].state.reservations
        one = next((held[id_] for id_ in sorted(runs) if id_ in held and f"/{name}-" in id_), None)
        pod_class = PodClass(
            project_id=state.project_id,
            cluster_id=state.cluster_id,
            pools=pools,
            request=request,
            preemptible=state.preemptible,
            grace_seconds=grace_of(state),
        )
        # One at a time: the room of a plan is changed by what is tried.
        planning = Planning(snapshot, phases(POLICY), MAX_PODS_PER_PLAN)
        release.run(planning)
        row = snapshot.nodes.keys.index(node_key)
        yield _place(
            planning,
            pod_class,
            row,
            one,
            Place(pod_set=name, node=node_name, node_pool=pool, pods=count, chosen=None, others=(), rank=0, refused=()),
        )


def _place(planning: Planning, pod_class: PodClass, row: int, held: Reservation | None, place: Place) -> Place:
    if held is not None:
        planning.room.give_back(row, held.cpu_milli, held.memory_bytes, held.devices, held.extended)
    filters = [each for each in planning.policy.filters if each.asks(pod_class.request)]
    view = explain.nodes_of(planning, pod_class, pools_to_try(planning.snapshot, pod_class))
    refused = explain.barred_in(view, filters) | explain.too_small_in(view, filters) | explain.closed_in(view, filters)
    full = [each.full for each in filters if each.full is not None]
    for check in full:
        refused |= check.refuses(view)
    fit = view.at(~refused)
    columns = [score.value(fit) for score in planning.policy.scores] if len(fit.rows) else []
    order = sorted(range(len(fit.rows)), key=lambda i: tuple(int(column[i]) for column in columns))
    names, table = [score.name for score in planning.policy.scores], planning.snapshot.nodes
    pools = {
        number: pool for (cluster_id, pool), number in table.pool_numbers.items() if cluster_id == pod_class.cluster_id
    }

    def option(i: int) -> Option:
        at = int(fit.rows[i])
        scores = tuple(ScoreOf(name=name, value=int(column[i])) for name, column in zip(names, columns, strict=True))
        return Option(node=table.names[at], node_pool=pools.get(int(table.pool[at]), ""), scores=scores)

    lost = _lost(planning.snapshot, pod_class.cluster_id)
    own = next((i for i in order if int(fit.rows[i]) == row), None)
    key = None if own is None else tuple(int(column[own]) for column in columns)
    better = 0 if key is None else sum(tuple(int(column[i]) for column in columns) < key for i in order)
    return Place(
        pod_set=place.pod_set,
        node=place.node,
        node_pool=place.node_pool,
        pods=place.pods,
        chosen=None if own is None else option(own),
        others=tuple(option(i) for i in [i for i in order if i != own][:MOST_PLACES]),
        rank=0 if own is None else better + 1,
        refused=tuple(each for each in counts_of(view, filters, lost=lost) if each.ground != "room"),
    )
