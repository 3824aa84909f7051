"""The smallest change that lets a waiting workload start: what may help is tried in the planner, and only what does is
told. Pure.

For each reason there are remedies; each yields trials, the small ones first, and is told whether it started with one.
"""

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, NamedTuple, cast

import msgspec
import numpy as np
from msgspec.structs import replace as with_fields

from events.node import Reservation
from events.phases import WaitingReason
from events.why import MOST_CHANGES, Change, Step
from events.workload.fields.scheduling import Toleration
from events.workload.spec import WHOLE_GPU_MILLI, PodRequest, TrainingSpec
from services.scheduler.lost import to_come_back
from services.scheduler.more_nodes import Shape, shapes_of, with_nodes
from services.scheduler.planning import pools_to_try
from services.scheduler.policy.filters import calendar, taints
from services.scheduler.policy.phases import explain, quota
from services.scheduler.policy.words import counted
from services.scheduler.scene import MOST_QUEUES, Holding, Scene
from services.scheduler.snapshot import Bound, BoundKey, Closing, PodClass, Snapshot
from services.scheduler.what_if import NEVER

MOST_TRIED: Final = 40
"""Plans for one answer, where the cluster is small."""
LEAST_TRIED: Final = 2
MOST_LOOKED_AT: Final = 200_000
"""Nodes for classes of pods in all plans of one answer, some 0.3 s in which nothing is placed: with ten thousand nodes
and twenty classes there are LEAST_TRIED plans.
"""
A_CLASS: Final = 500
"""Nodes that a class of pods counts as by itself."""
MOST_ALIKE: Final = 5
"""Nodes, clusters, pools or projects that are tried for one remedy."""
MOST_ENDED: Final = 64
"""Workloads that end in one change: what needs more is no small change."""
MOST_ADDED: Final = 64
"""Likewise, nodes that are added."""
MOST_WEIGHED: Final = 500
"""Workloads on single nodes that are looked at for what could end, some 0.1 s: a node may run hundreds."""


USUAL_GRACE: Final = 30
"""Seconds, where nobody says otherwise."""


class Trial(NamedTuple):
    steps: tuple[Step, ...]
    snapshot: Snapshot
    key: str = ""
    """Of the workload in it; empty: the same."""
    at: datetime | None = None
    """When it would get a place, or others would be told to end for it; None: with the next plan."""
    size: tuple[int, ...] = ()
    """Of trials of one remedy that start the last one is told, but none that is larger than one before."""


type Remedy = Callable[[Scene], Generator[Trial, bool, None]]


def changes(scene: Scene) -> tuple[Change, ...]:
    """At most MOST_CHANGES, each by another remedy; the smallest first."""
    found: list[Change] = []
    tried, most = 0, _most_tried(scene)
    never = scene.waiting.reason in NEVER
    remedies = _remedies(scene)
    for remedy in remedies:
        trials, last, first = remedy(scene), None, None
        lets_wait = remedy is window_opens or (never and remedy in _LETS_WAIT)
        trial = next(trials, None)
        # Half of what is left, so that those after it have theirs.
        until = most if remedy is remedies[-1] else tried + max((most - tried + 1) // 2, 1)
        while trial is not None and tried < min(until, most) and not scene.enough():
            tried += 1
            started = scene.starts(trial.snapshot, trial.key) if trial.at is None else scene.takes_a_place(trial.at)
            last = trial if started and (last is None or trial.size <= last.size) else last
            if not started and lets_wait and first is None and (then := _then(scene, trial, remedy)):
                first = trial, then
            try:
                trial = trials.send(started)
            except StopIteration:
                break
        if last is not None:
            found.append(Change(steps=last.steps, message=_all(last.steps)))
        elif first is not None:
            found.append(_and_then(*first))
        if len(found) == MOST_CHANGES:
            break
    return tuple(found)


def _remedies(scene: Scene) -> tuple[Remedy, ...]:
    """Where it is among others the calendar that keeps it from nodes, also what helps against that."""
    reason = scene.waiting.reason
    remedies = REMEDIES[reason]
    if reason in explain.FULL and any(closings_of(scene, part) for part, _ in scene.parts):
        remedies = (preemptible, shorter_grace, after_closings, *remedies)
    return (back_again, *remedies) if to_come_back(scene.fold, scene.state) else remedies


def _then(scene: Scene, trial: Trial, remedy: Remedy) -> str:
    """What it waits for then, though what is named was done; empty where that helps in nothing."""
    if scene.lets_wait(trial.snapshot, trial.key):
        return "and then it waits for room as others do"
    if remedy is not window_opens:
        return ""
    # The window comes by itself: it is told whatever comes after it.
    return f"and then it waits still: {'; '.join(each.message for each in scene.waits_for(trial.snapshot, trial.key))}"


def _and_then(trial: Trial, then: str) -> Change:
    return Change(steps=trial.steps, message=f"{_all(trial.steps)}, {then}", waits=True)


def _most_tried(scene: Scene) -> int:
    classes = min(len(scene.snapshot.queues), MOST_QUEUES)
    looked_at = classes * (len(scene.snapshot.nodes.keys) + A_CLASS)
    return max(LEAST_TRIED, min(MOST_TRIED, MOST_LOOKED_AT // max(looked_at, 1)))


def _all(steps: Iterable[Step]) -> str:
    """None does it alone."""
    return "; and ".join(map(words, steps))


def words(step: Step) -> str:
    """For a person: what is to be done."""
    value = step.value
    match step.act:
        case "change_workload" if step.of:
            return f"submit it again in {step.field.removesuffix('Id')} {step.of}"
        case "change_workload":
            return (
                f"submit it without {step.field}"
                if value is None
                else f"submit it again with {step.field} as {_as_flag(value)}"
            )
        case "set_quota" | "set_limit":
            what = "quota" if step.act == "set_quota" else "limit"
            where = f" in pool {step.pool}" if step.pool else ""
            return f"set the GPU {what} of {step.of}{where} to {value:g}"
        case "end_workloads":
            named = ", ".join(step.workloads)
            hidden = f"{counted(step.hidden, 'workload')} of other projects" if step.hidden else ""
            return f"wait until these end, or end them: {' and '.join(part for part in (named, hidden) if part)}"
        case "uncordon_node":
            return f"uncordon node {step.of}{_of_cluster(step)}"
        case "open_node":
            return f"make node {step.of}{_of_cluster(step)} ready, and uncordon it in its cluster"
        case "add_node":
            return f"add {counted(value['nodes'], 'node')} with {_free(value)} to pool {step.pool}{_of_cluster(step)}"
        case "connect_cluster":
            return f"have the agent of cluster {step.of} report again"
        case "wait":
            return step.of


def _as_flag(value: object) -> str:
    """As a flag of the command line takes it; of several items one after the other."""
    if isinstance(value, list | tuple):
        given = cast("Sequence[object]", value)
        items = [cast("dict[str, object]", each) for each in given if isinstance(each, dict)]
        if items:
            return " and ".join(",".join(f"{name}={_as_flag(of)}" for name, of in item.items()) for item in items)
        return ",".join(map(str, given))
    return value if isinstance(value, str) else json.dumps(value)


def _of_cluster(step: Step) -> str:
    return f" of cluster {step.cluster}" if step.cluster else ""


_NAMES: Final = {"gpuMemory": "GPU memory", "cpuCores": "CPU cores"}
"""In sentences, of what a node has free; what else there is has a name of its own."""


def _free(value: dict[str, Any]) -> str:
    parts = [
        f"{count:g} free {'GPU' if count == 1 else 'GPUs'}"
        if name == "gpus"
        else f"{count if isinstance(count, str) else f'{count:g}'} free {_NAMES.get(name, name)}"
        for name, count in value.items()
        if name not in {"nodes", "labels"} and count
    ]
    if labels := cast("dict[str, str]", value["labels"]):
        parts.append(f"the labels {', '.join(f'{key}={label}' for key, label in labels.items())}")
    return ", ".join(parts) or "room for a pod"


def _json(value: object) -> object:
    """As JSON has it."""
    return msgspec.to_builtins(value)


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


# -- another workload --------------------------------------------------------------------------------------------------


def _submitted(scene: Scene, spec: TrainingSpec, *fields: tuple[str, object]) -> Trial:
    """With these fields of the spec set otherwise (path, value)."""
    snapshot, key = scene.changed(spec=spec)
    steps = tuple(Step(act="change_workload", field=f"spec.{path}", value=_json(value)) for path, value in fields)
    return Trial(steps, snapshot, key)


def fewer_demands(scene: Scene) -> Generator[Trial, bool, None]:
    """Without what it says of labels: each alone, then all."""
    spec = scene.state.spec
    given = [
        name for name in ("node_type", "node_affinity_required", "pod_affinity") if getattr(spec, name) is not None
    ]
    for names in [[name] for name in given] + ([given] if len(given) > 1 else []):
        started = yield _submitted(
            scene,
            with_fields(spec, **dict.fromkeys(names)),
            *((_camel(name), None) for name in names),
        )
        if started:
            return


def smaller_request(scene: Scene) -> Generator[Trial, bool, None]:
    """Asking for less on a node: of one resource first, then as much as one node has free."""
    spec = scene.state.spec
    for part, _ in scene.parts:
        if part.request != scene.parts[-1][0].request:
            continue  # a master says its own
        view = scene.view(part)
        view = view.at(~explain.barred_in(view, scene.filters(part)))
        for fields in _less(part.request, scene, view.rows.tolist()):
            compute = with_fields(spec.compute, **fields)
            told = ((f"compute.{_camel(name)}", value) for name, value in fields.items())
            if (yield _submitted(scene, with_fields(spec, compute=compute), *told)):
                return


def _less(request: PodRequest, scene: Scene, rows: list[int]) -> Iterator[dict[str, object]]:
    room, of = scene.planning.room, np.array(rows, dtype=np.int64)
    if not rows:
        return
    free: dict[str, np.ndarray] = {}
    devices = room.devices[of]
    if request.gpu_devices and request.gpu_milli == WHOLE_GPU_MILLI:
        free["gpu_devices_request"] = np.minimum((devices == WHOLE_GPU_MILLI).sum(axis=1), room.free_devices[of])
    elif request.gpu_devices == 1 and request.gpu_milli:
        free["gpu_portion_request"] = devices.max(axis=1)
    elif request.gpu_devices == 1 and request.gpu_memory_bytes:
        free["gpu_memory_request"] = devices.max(axis=1) * (scene.snapshot.nodes.gpu_memory_bytes[of] // 1000)
    if request.cpu_milli:
        free["cpu_core_request"] = room.cpu[of]
    if request.memory_bytes:
        free["cpu_memory_request"] = room.memory[of]
    asked = {
        "gpu_devices_request": request.gpu_devices,
        "gpu_portion_request": request.gpu_milli,
        "gpu_memory_request": request.gpu_memory_bytes,
        "cpu_core_request": request.cpu_milli,
        "cpu_memory_request": request.memory_bytes,
    }
    for name, column in free.items():
        fitting = [int(each) for each in column if 0 < each < asked[name]]
        for most in sorted(set(fitting), reverse=True)[:MOST_ALIKE]:
            yield {name: _as_asked(name, most)}
    # The node that has the most of what is asked for first, and of everything else no more than it has.
    first = next(iter(free), None)
    for at in np.argsort(-free[first])[:MOST_ALIKE].tolist() if first else ():
        less = {name: int(column[at]) for name, column in free.items() if column[at] < asked[name]}
        if less and all(value > 0 for value in less.values()):
            yield {name: _as_asked(name, value) for name, value in less.items()}


def _as_asked(name: str, value: int) -> object:
    """As a request says it."""
    if name == "gpu_devices_request":
        return value
    if name.endswith(("core_request", "portion_request")):
        return value / 1000
    return str(value)


def fewer_workers(scene: Scene) -> Generator[Trial, bool, None]:
    """The most workers of a gang that find a place together."""
    distributed = scene.state.distributed
    if distributed is None:
        return
    of = distributed.distribution
    name = "num_workers" if of.min_replicas is None else "min_replicas"
    least, most = 1, (of.num_workers if of.min_replicas is None else of.min_replicas) - 1
    while least <= most:
        count = (least + most) // 2
        less = with_fields(distributed, distribution=with_fields(of, **{name: count}))
        snapshot, key = scene.changed(distributed=less)
        step = Step(act="change_workload", field=f"spec.{_camel(name)}", value=_json(count))
        if (yield Trial((step,), snapshot, key)):
            least = count + 1
        else:
            most = count - 1


def other_pools(scene: Scene) -> Generator[Trial, bool, None]:
    cluster = scene.snapshot.clusters[scene.pod_class.cluster_id]
    tried = set(pools_to_try(scene.snapshot, scene.pod_class))
    for pool in [pool for pool in cluster.pools if pool not in tried][:MOST_ALIKE]:
        spec = with_fields(scene.state.spec, node_pools=(pool,))
        if (yield _submitted(scene, spec, ("nodePools", [pool]))):
            return


def preemptible(scene: Scene) -> Generator[Trial, bool, None]:
    if not scene.state.preemptible:
        spec = with_fields(scene.state.spec, preemptibility="preemptible")
        yield _submitted(scene, spec, ("preemptibility", "preemptible"))


def shorter_grace(scene: Scene) -> Generator[Trial, bool, None]:
    """Of what gives way, and would still run when something begins."""
    grace = scene.state.spec.termination_grace_period_seconds
    for seconds in (USUAL_GRACE, 0) if scene.state.preemptible else ():
        if seconds < grace:
            spec = with_fields(scene.state.spec, termination_grace_period_seconds=seconds)
            if (yield _submitted(scene, spec, ("terminationGracePeriodSeconds", seconds))):
                return


def tolerated_taints(scene: Scene) -> Generator[Trial, bool, None]:
    """Of one node."""
    tolerations, (part, _) = scene.state.spec.tolerations, scene.parts[0]
    table, view = scene.snapshot.nodes, scene.view(part)
    numbers = {int(table.taints[row]) for row in view.rows.tolist() if table.usable[row] and not table.cordoned[row]}
    for number in sorted(numbers)[:MOST_ALIKE]:
        new = taints.refusing_among(table.taint_sets[number], part.request)
        if not new:
            continue
        more = (*tolerations, *(Toleration(key=each.key, operator="Exists", effect="Any") for each in new))
        spec = with_fields(scene.state.spec, tolerations=more)
        if (yield _submitted(scene, spec, ("tolerations", more))):
            return


def other_cluster(scene: Scene) -> Generator[Trial, bool, None]:
    others = {id_: view.name for id_, view in scene.snapshot.clusters.items() if view.exists and view.connected}
    for id_, name in list(others.items())[:MOST_ALIKE]:
        snapshot, key = scene.changed(cluster_id=id_)
        if (yield Trial((Step(act="change_workload", field="clusterId", value=_json(id_), of=name),), snapshot, key)):
            return


def other_project(scene: Scene) -> Generator[Trial, bool, None]:
    """One that the asker sees."""
    projects = (each.state for each in scene.fold.projects.values() if each.state.exists)
    seen = {
        each.project_id: each.name for each in projects if scene.readable is None or each.project_id in scene.readable
    }
    for id_, name in sorted(seen.items())[:MOST_ALIKE]:
        snapshot, key = scene.changed(project_id=id_)
        if (yield Trial((Step(act="change_workload", field="projectId", value=_json(id_), of=name),), snapshot, key)):
            return


# -- another world -----------------------------------------------------------------------------------------------------


def raised_bounds(scene: Scene) -> Generator[Trial, bool, None]:
    """Of its project and department, in one pool and everywhere: just enough."""
    for pool in pools_to_try(scene.snapshot, scene.pod_class)[:MOST_ALIKE]:
        raised = list(_too_tight(scene, pool))
        if raised and (yield _raised(scene.snapshot, raised)):
            return


def _most(bound: Bound, raised: dict[BoundKey, int]) -> int:
    return bound.milli if bound.window is not None else raised.get(bound.key, bound.milli)


def _raised(of: Snapshot, raised: list[tuple[Bound, int]]) -> Trial:
    milli = {bound.key: most for bound, most in raised}
    projects = {
        id_: replace(view, bounds=tuple(each._replace(milli=_most(each, milli)) for each in view.bounds))
        for id_, view in of.projects.items()
    }
    steps = tuple(
        Step(
            act="set_quota" if bound.firm else "set_limit",
            of=bound.holder,
            pool=bound.pool,
            value=_json(most / WHOLE_GPU_MILLI),
        )
        for bound, most in raised
    )
    return Trial(steps, replace(of, projects=projects))


def _too_tight(scene: Scene, pool: str) -> Iterator[tuple[Bound, int]]:
    """Bounds that leave too little in a pool, and what they must be at least, in thousandths."""
    needed = 0
    for part, count in scene.parts:
        view = scene.possible(part)
        shares = view.share_milli[view.share_milli <= WHOLE_GPU_MILLI]
        needed += count * part.request.gpu_devices * int(shares.min(initial=WHOLE_GPU_MILLI))
    # Counted as it is before this plan: what others get in it, they have.
    lasting = (each for each in quota.bounds(scene.planning, scene.pod_class, pool) if each.window is None)
    for bound in lasting:
        if quota.left_under(scene.planning, bound, later=False) < needed:
            yield bound, bound.milli - quota.left_under(scene.planning, bound, later=False) + needed


def ended(scene: Scene) -> Generator[Trial, bool, None]:
    """Workloads that hold what it needs: on one node the fewest, else as many as it takes."""
    for keys in _sets(scene):
        if (yield Trial((_end(scene, keys),), scene.ended(keys))):
            return
    order = sorted(scene.holdings.values(), key=lambda each: (-each.gpu_milli, -each.cpu_milli, each.key))
    keys = [each.key for each in order][:MOST_ENDED] or [each for each, _ in _under_bound(scene)][:MOST_ENDED]
    if not keys:
        return
    least, most = 1, 1
    while not (yield Trial((_end(scene, keys[:most]),), scene.ended(keys[:most]))):
        if most >= len(keys):
            return
        least, most = most + 1, min(2 * most, len(keys))
    while least < most:
        count = (least + most) // 2
        if (yield Trial((_end(scene, keys[:count]),), scene.ended(keys[:count]))):
            most = count
        else:
            least = count + 1


def _end(scene: Scene, keys: Iterable[str]) -> Step:
    keys = sorted(keys)
    named = [key for key in keys if scene.may_name(key)]
    names = tuple(scene.fold.workloads[key].state.name for key in named)
    return Step(act="end_workloads", workloads=names, hidden=len(keys) - len(named))


def _sets(scene: Scene) -> Iterator[tuple[str, ...]]:
    """Few that make room for one pod together: under its bound, and on a node; the smallest first."""
    needs = [part for part, _ in scene.parts]
    bound = _few_under_bound(scene)
    if bound:
        yield bound
    if len(scene.pod_class.gang) and sum(count for _, count in scene.parts) > 1:
        return
    by_row: dict[int, list[Holding]] = {}
    for each in scene.holdings.values():
        for row, on in _by_row(each).items():
            by_row.setdefault(row, []).append(on)
    found: list[tuple[int, int, tuple[str, ...]]] = []
    weighed = 0
    for row, on in sorted(by_row.items(), key=lambda item: len(item[1]))[: 10 * MOST_ALIKE]:
        if weighed >= MOST_WEIGHED:
            break
        weighed += min(len(on), MOST_ENDED)
        keys = _on_node(scene, needs[0], row, on)
        if keys:
            held = sum(scene.holdings[key].gpu_milli for key in keys)
            found.append((len(keys), held, keys))
    for _, _, keys in sorted(found)[:MOST_ALIKE]:
        yield tuple({*keys, *bound})


def _by_row(holding: Holding) -> dict[int, Holding]:
    """What it holds on each node by itself."""
    on: dict[int, list[tuple[int, Reservation]]] = {}
    for row, held in holding.on:
        on.setdefault(row, []).append((row, held))
    return {row: replace(holding, on=tuple(held)) for row, held in on.items()}


def _on_node(scene: Scene, part: PodClass, row: int, on: list[Holding]) -> tuple[str, ...]:
    """Those on a node without which a pod fits there; none where it never does, or needs more than MOST_ENDED gone."""
    order = sorted(on, key=lambda each: (-each.gpu_milli, -each.cpu_milli, -each.memory_bytes, each.key))
    room, chosen = scene.planning.room, list[Holding]()
    mark = room.checkpoint()
    for each in order[:MOST_ENDED]:
        chosen.append(each)
        _give_back(scene, each)
        if scene.has_room(part, row):
            break
    else:
        chosen = []
    room.rollback(mark)
    for each in chosen[-2::-1]:
        others = [one for one in chosen if one is not each]
        if others and _fits_without(scene, part, row, others):
            chosen = others
    return tuple(each.key for each in chosen)


def _fits_without(scene: Scene, part: PodClass, row: int, gone: list[Holding]) -> bool:
    room = scene.planning.room
    mark = room.checkpoint()
    for holding in gone:
        _give_back(scene, holding)
    fits = scene.has_room(part, row)
    room.rollback(mark)
    return fits


def _give_back(scene: Scene, holding: Holding) -> None:
    for row, held in holding.on:
        scene.planning.room.give_back(row, held.cpu_milli, held.memory_bytes, held.devices, held.extended)


def _under_bound(scene: Scene) -> list[tuple[str, int]]:
    """Workloads that count under a bound that is too tight, by key, with the GPUs (thousandths) of each."""
    tight = [bound for pool in pools_to_try(scene.snapshot, scene.pod_class) for bound, _ in _too_tight(scene, pool)]
    return scene.fold.held.under(tight[0]) if tight else []


def _few_under_bound(scene: Scene) -> tuple[str, ...]:
    """The one that holds just enough, else those that hold the most."""
    tight = [found for pool in pools_to_try(scene.snapshot, scene.pod_class) for found in _too_tight(scene, pool)]
    if not tight:
        return ()
    bound, most = tight[0]
    lacking = most - bound.milli
    held = [(key, milli) for key, milli in _under_bound(scene) if key != scene.key]
    enough = min(((milli, key) for key, milli in held if milli >= lacking), default=None)
    if enough is not None:
        return (enough[1],)
    keys: list[str] = []
    for key, milli in sorted(held, key=lambda each: (-each[1], each[0])):
        keys.append(key)
        lacking -= milli
        if lacking <= 0:
            return tuple(keys[:MOST_ENDED])
    return ()


def leaving(scene: Scene) -> Generator[Trial, bool, None]:
    """Those end that were told to."""
    runs = {each.reservation.id: scene.snapshot.nodes.keys[each.row] for each in scene.snapshot.leaving}
    keys: list[str] = []
    for each in scene.planning.evictions:
        if each.beneficiary == scene.state.workload_id:
            keys.append(each.key)
            runs |= scene.fold.held.runs_of(each.key)
    count = counted(len(runs), "pod")
    step = Step(act="wait", of=f"wait until {count} that were told to end have ended: each has its grace period")
    yield Trial((step,), scene.fold.without(scene.snapshot, runs))


def kept_for_a_while(scene: Scene) -> Generator[Trial, bool, None]:
    """Those whose places it may take have run for long enough."""
    spared = scene.planning.spared.get(scene.key, {})
    for until in sorted({each.until for each in spared.values()})[:MOST_ALIKE]:
        told = f"wait until {until:%Y-%m-%d %H:%M:%S} UTC, when the place of others may be taken for it"
        if (yield Trial((Step(act="wait", of=told),), scene.snapshot, at=until)):
            return


def opened_nodes(scene: Scene) -> Generator[Trial, bool, None]:
    """One that is closed, and has room otherwise."""
    table, (part, _) = scene.snapshot.nodes, scene.parts[0]
    view, filters = scene.view(part), scene.filters(part)
    wrong = explain.barred_in(view, filters) | explain.too_small_in(view, filters)
    wrong |= taints.refuses(view) | calendar.refuses(view)
    possible: list[int] = view.at(~wrong).rows.tolist()
    rows = [row for row in possible if table.cordoned[row] or not table.usable[row]]
    rows.sort(key=lambda row: (bool(table.cordoned[row] and not table.usable[row]), table.names[row]))
    for row in rows[:MOST_ALIKE]:
        cordoned, usable = table.cordoned.copy(), table.usable.copy()
        cordoned[row], usable[row] = False, True
        name, cluster = table.names[row], scene.cluster_of(row)
        steps = [Step(act="uncordon_node", of=name, cluster=cluster)] if table.cordoned[row] else []
        steps += [] if table.usable[row] else [Step(act="open_node", of=name, cluster=cluster)]
        if (yield Trial(tuple(steps), replace(scene.snapshot, nodes=replace(table, cordoned=cordoned, usable=usable)))):
            return


def closings_of(scene: Scene, part: PodClass) -> list[Closing]:
    """Those that keep such pods from nodes which could run them; what ends first goes first."""
    view, filters = scene.view(part), scene.filters(part)
    able = view.at(~(explain.barred_in(view, filters) | explain.too_small_in(view, filters)))
    found = (each for each in view.closings if each.rows[able.rows].any())
    return sorted(found, key=lambda each: (each.ends_at, each.called))


def after_closings(scene: Scene) -> Generator[Trial, bool, None]:
    """What is planned for nodes where it could run is over: what ends first alone, then what ends next, too."""
    table, (part, _) = scene.snapshot.nodes, scene.parts[0]
    closings = closings_of(scene, part)
    for count, last in enumerate(closings, start=1):
        gone = closings[:count]
        nodes = replace(table, closings=tuple(each for each in table.closings if all(each is not one for one in gone)))
        until = f"wait until {last.ends_at:%Y-%m-%d %H:%M} UTC, when {last.called} is over"
        if (yield Trial((Step(act="wait", of=until),), replace(scene.snapshot, nodes=nodes))):
            return


def window_opens(scene: Scene) -> Generator[Trial, bool, None]:
    """The next window of its project is open."""
    project_id = scene.pod_class.project_id
    view = scene.snapshot.projects.get(project_id)
    closed = None if view is None else view.closed or view.within_quota
    if view is None or closed is None or closed.opens_at is None:
        return
    bounds = tuple(each for each in view.bounds if each.window is None)
    opened = replace(view, closed=None, within_quota=None, bounds=bounds)
    projects = scene.snapshot.projects | {project_id: opened}
    of = f"wait until {closed.opens_at:%Y-%m-%d %H:%M} UTC, when a window of project {view.name} opens"
    yield Trial((Step(act="wait", of=of),), replace(scene.snapshot, projects=projects))


def connected(scene: Scene) -> Generator[Trial, bool, None]:
    view = scene.snapshot.clusters.get(scene.pod_class.cluster_id)
    if view is None or not view.exists or view.connected:
        return
    snapshot = _connected(scene, scene.pod_class.cluster_id)
    step = Step(act="connect_cluster", of=view.name)
    if not (yield Trial((step,), snapshot)):
        yield from _fewest(scene, snapshot, step)


def _connected(scene: Scene, id_: str) -> Snapshot:
    """As if that cluster reported."""
    table, clusters = scene.snapshot.nodes, scene.snapshot.clusters
    usable = table.usable.copy()
    for row, key in enumerate(table.keys):
        node = scene.fold.nodes[key].state
        if node.cluster_id == id_:
            usable[row] = node.schedulable
    clusters = clusters | {id_: replace(clusters[id_], connected=True, problem="")}
    return replace(scene.snapshot, clusters=clusters, nodes=replace(table, usable=usable))


def back_again(scene: Scene) -> Generator[Trial, bool, None]:
    """A cluster reports again to which it may go, and what it left there has ended."""
    state, table = scene.state, scene.fold.nodes
    for cluster in to_come_back(scene.fold, state)[:MOST_ALIKE]:
        id_, steps = cluster.cluster_id, list[Step]()
        if id_ == scene.pod_class.cluster_id:
            continue  # `connected` tries it
        if not cluster.connected:
            steps.append(Step(act="connect_cluster", of=cluster.name))
        snapshot = _connected(scene, id_)
        if id_ in state.left:
            steps.append(Step(act="wait", of=f"wait until its old pods on cluster {cluster.name} have ended"))
            old = scene.fold.held.left_by(scene.key).items()
            gone = {run: node_key for run, node_key in old if table[node_key].state.cluster_id == id_}
            snapshot = scene.fold.without(_also_on(scene, snapshot, id_), gone)
        if (yield Trial(tuple(steps), snapshot)):
            return


def _also_on(scene: Scene, snapshot: Snapshot, id_: str) -> Snapshot:
    """As if it might go to that cluster, too."""
    of = scene.pod_class
    queue = replace(scene.queue, pod_class=replace(of, cluster_id=of.cluster_id or id_, among=(*of.among, id_)))
    return replace(snapshot, queues=tuple(queue if each is scene.queue else each for each in snapshot.queues))


def added_nodes(scene: Scene) -> Generator[Trial, bool, None]:
    """The fewest nodes that let it start, each just large enough for one of its pods."""
    yield from _fewest(scene, scene.snapshot)


def _fewest(scene: Scene, snapshot: Snapshot, *before: Step) -> Generator[Trial, bool, None]:
    """Added to that world, once those steps are done."""
    shapes = shapes_of(scene)
    if not shapes:
        return
    # A count by what is free is mostly right; where shapes contend for the same room it is not.
    lacking = tuple(each.lacking(scene, snapshot) for each in shapes)
    guess = lacking if any(lacking) else (1, *lacking[1:])
    known: dict[tuple[int, ...], bool] = {}

    def starts(counts: tuple[int, ...]) -> Generator[Trial, bool, bool]:
        if counts not in known:
            known[counts] = yield _with(scene, snapshot, shapes, counts, before)
        return known[counts]

    for first in (guess, tuple(each.pods for each in shapes)):
        if sum(first) <= MOST_ADDED and (yield from starts(first)):
            break
    else:
        return
    # Which of two shapes is tried first decides which one the room goes to that there is.
    for order in (range(len(shapes)), range(len(shapes))[::-1]):
        counts = first
        for at in order:
            counts = yield from _fewer(counts, at, starts)
        if sum(counts) == 1:
            return


def _fewer(
    counts: tuple[int, ...], at: int, starts: Callable[[tuple[int, ...]], Generator[Trial, bool, bool]]
) -> Generator[Trial, bool, tuple[int, ...]]:
    """With the fewest nodes of one shape that let it start with those of the others."""

    def having(count: int) -> tuple[int, ...]:
        return (*counts[:at], count, *counts[at + 1 :])

    least, most = max(0, 1 - sum(having(0))), counts[at]
    # Mostly not even one can be left out.
    count = most - 1
    while least < most:
        if (yield from starts(having(count))):
            most = count
        else:
            least = count + 1
        count = (least + most) // 2
    return having(most)


def _with(
    scene: Scene, snapshot: Snapshot, shapes: Sequence[Shape], counts: Sequence[int], before: Sequence[Step]
) -> Trial:
    """With so many nodes of each shape."""
    steps, most = [*before], sum(each.pods for each in shapes)
    for shape, count in zip(shapes, counts, strict=True):
        if count:
            snapshot = with_nodes(snapshot, shape, count, pods=most)
            cluster = scene.cluster_name(shape.part.cluster_id)
            value = _json({"nodes": count} | shape.has())
            steps.append(Step(act="add_node", pool=shape.pool, cluster=cluster, value=value))
    gpus = sum(shape.part.request.gpu_devices * count for shape, count in zip(shapes, counts, strict=True))
    return Trial(tuple(steps), snapshot, size=(sum(counts), gpus))


_FULL: Final[tuple[Remedy, ...]] = (kept_for_a_while, ended, smaller_request, fewer_workers, added_nodes)
_LETS_WAIT: Final[frozenset[Remedy]] = frozenset({raised_bounds, preemptible})
"""What gives a right, not room: where everything is full just now, it is told all the same."""
REMEDIES: Final[dict[WaitingReason, tuple[Remedy, ...]]] = {
    WaitingReason.NO_SUCH_NODE_POOL: (other_pools,),
    WaitingReason.NO_MATCHING_NODE: (fewer_demands, smaller_request, fewer_workers, added_nodes),
    WaitingReason.QUOTA_TOO_SMALL: (raised_bounds, preemptible, smaller_request),
    WaitingReason.PROJECT_DELETED: (other_project,),
    WaitingReason.CLUSTER_DISCONNECTED: (connected, other_cluster),
    WaitingReason.NO_NODES: (opened_nodes, tolerated_taints, added_nodes, other_pools),
    WaitingReason.MAINTENANCE: (preemptible, shorter_grace, other_pools, opened_nodes, after_closings, added_nodes),
    WaitingReason.CAPACITY_RESERVED: (
        preemptible,
        shorter_grace,
        other_pools,
        opened_nodes,
        after_closings,
        added_nodes,
    ),
    WaitingReason.QUOTA_USED: (raised_bounds, ended, preemptible),
    WaitingReason.LIMIT_TOO_SMALL: (raised_bounds, smaller_request),
    WaitingReason.LIMIT_USED: (kept_for_a_while, raised_bounds, ended),
    WaitingReason.OUTSIDE_WINDOW: (window_opens, other_project),
    WaitingReason.SHARE_RESERVED: (preemptible, ended, added_nodes),
    WaitingReason.WAITING_FOR_PODS_TO_END: (leaving,),
    WaitingReason.INSUFFICIENT_GPU: _FULL,
    WaitingReason.INSUFFICIENT_CPU: _FULL,
    WaitingReason.INSUFFICIENT_MEMORY: _FULL,
    WaitingReason.INSUFFICIENT_PODS: (kept_for_a_while, ended, added_nodes),
    WaitingReason.INSUFFICIENT_RESOURCES: _FULL,
    # Nothing but time: until when, the answer says.
    WaitingReason.BACKOFF: (),
}
"""What may help, by the reason; the first is tried first."""
