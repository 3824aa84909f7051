"""A plan that was carried out leaves nothing to plan, and without arrivals the scheduler comes to rest (issue 14)."""

from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from events.workload.state import Workload
from services.scheduler import rounds
from services.scheduler.carried_out import carried_out
from services.scheduler.fold import SchedulingState
from services.scheduler.plan import plan
from services.scheduler.policy.phases.explain import FULL
from services.scheduler.rounds import MOST_ROUNDS, more_rounds
from services.scheduler.snapshot import Pending, Plan, PodClass, Snapshot
from tests.scheduler.test_elastic import elastic
from tests.scheduler.test_plan_properties import carry_out, dense_steps, of_pod, steps, submit_dense
from tests.scheduler.test_quotas import department
from tests.scheduler.test_take_back import gang
from tests.scheduler.world import GIB, World
from tests.support.draws import draws

MOST_CYCLES: Final = 30
"""A minute apart: in so many the scheduler comes to rest where nothing comes and nothing ends of itself."""
CALM_CYCLES: Final = 6
"""After those, half an hour apart: nothing is decided any more."""


def dense_world() -> tuple[World, list[str]]:
    """Eight GPUs, and five projects: with and without quotas, weights and departments."""
    world = World()
    world.cluster()
    for name in ("n0", "n1"):
        world.node(name, gpu_count=4)
    tight, wide = department(world, "tight", gpu_quota_milli=2_000), department(world, "wide", over_quota_weight=2.0)
    projects = [world.project("first", quota=4_000), world.project("second", quota=2_000, **tight)]
    projects += [world.project("third", **wide), world.project("fourth", quota=1_000, over_quota_weight=3.0, **tight)]
    projects.append(world.project("fifth", over_quota_weight=0.0))
    return world, projects


def act_densely(world: World, keys: list[str], step: tuple[str, Any], projects: list[str]) -> None:
    word, what = step
    world.now += timedelta(seconds=1)
    match word:
        case "submit":
            keys.append(submit_dense(world, f"w{len(keys)}", projects[what["project"]], what))
        case "wait":
            world.now += timedelta(minutes=20)
        case "end":
            of_pod(world, keys, what, "stopped", {"Stopping"})
        case "running" | "succeeded":
            of_pod(world, keys, what, word, {"Bound", "Starting", "Running"})
        case _:
            raise AssertionError(word)


def restored(world: World) -> SchedulingState:
    """A fold that knows nothing of what the plans before found out."""
    world.fold.settle(world.now)
    found = SchedulingState()
    chains = {name: dict(chains) for name, chains in world.fold.chains.items()}
    found.restore(world.fold.seq, chains, beside=world.fold.beside())
    return found


def forgetful(of: Snapshot) -> Snapshot:
    """The same with all that waits looked at once more."""
    return replace(of, queues=tuple(replace(each, blocked=None, report_again=False) for each in of.queues))


def codes(of: Plan, *, but: set[PodClass]) -> dict[PodClass, str]:
    """By class, why it waits. What of a node has run out is one reason: it changes with each pod."""
    return {
        pod_class: "full" if waiting.reason in FULL else waiting.reason
        for pod_class, waiting in of.blocked.items()
        if pod_class not in but
    }


def plan_strictly(world: World) -> Plan:
    """Carry a plan out, and see that nothing follows from it at the same time: neither to this scheduler, nor to one
    that begins anew.

    It may where the plan says itself that there is more, as it stopped at a limit. And a reason that was told less than
    ten seconds ago, or was found before with nothing freed since, is told anew only after that: whoever begins anew
    finds it at once.
    """
    planned = world.cycle()
    if planned.more or planned.put_off:
        return planned
    assert world.seen_snapshot is not None
    known = {queue.pod_class for queue in world.seen_snapshot.queues if queue.blocked is not None}
    again, unknowing = world.plan(), plan(forgetful(world.fold.snapshot(world.now)))
    anew = plan(restored(world).snapshot(world.now))
    assert again.empty, again.render()
    for other in (unknowing, anew):
        assert (other.bindings, other.evictions, other.releases) == ((), (), ()), other.render()
    assert again.held.keys() == planned.held.keys() == unknowing.held.keys(), "it keeps other places"
    assert codes(planned, but=known) == codes(unknowing, but=known)
    return planned


def names(of: Plan) -> list[str]:
    return sorted({each.name for each in of.bindings})


def test_who_would_be_told_to_end_at_once_is_not_started() -> None:
    """S044. Behind a gang of another project there is no room, and who waits has a right to it by its share."""
    world, (first, second, third, *_) = dense_world()
    gang(world, "three", workers=3, project_id=first, priority_class="medium-high")
    gang(world, "pair", workers=2, gpus=2, project_id=third, priority_class="medium")
    elastic(world, "beyond", least=3, most=8, project_id=second, priority_class="medium-high")
    half: dict[str, Any] = {"gpu_devices_request": 1, "gpu_request_type": "portion", "gpu_portion_request": 0.5}
    world.submit("halves", project_id=third, parallelism=3, completions=3, priority_class="low", **half)
    elastic(world, "one", least=1, most=2, gpus=2, project_id=first, priority_class="medium-high")
    planned = plan_strictly(world)
    assert not planned.evictions
    assert names(planned) == ["beyond", "halves", "three"]


def test_what_gives_up_pods_in_a_plan_grows_by_none_in_it() -> None:
    """S045. It is under a quota of two, and would hold three until the one has ended."""
    world = World()
    world.cluster()
    world.project("second", quota=2_000)
    world.node("full", gpu_count=4)
    key = elastic(world, "grows", least=1, most=6, preemptibility="non-preemptible")
    world.cycle()
    assert len(world.workload(key).pods.live) == 2
    other = world.project("third")
    world.submit("wide", project_id=other, gpu_devices_request=3)
    world.node("new", gpu_count=2)
    planned = plan_strictly(world)
    assert [each.reason for each in planned.evictions] == ["shrunk"]
    assert names(planned) == []


def test_portions_stay_off_devices_that_others_hold() -> None:
    """S036. Others have three of the four: a second device is not to be had, however much better it would be."""
    world = World()
    world.cluster()
    world.project()
    world.node("n0", gpu_count=4, foreign_gpus=3, gpu_memory_bytes=80 * GIB)
    share: dict[str, Any] = {"gpu_devices_request": 1, "gpu_request_type": "portion", "gpu_portion_request": 0.333}
    key = world.submit("shares", parallelism=2, completions=2, **share)
    world.submit("unknown", gpu_request_type="memory", gpu_memory_request="89Gi")
    planned = plan_strictly(world)
    assert {each.placement.devices[0].device for each in planned.bindings if each.key == key} == {0}
    assert len(planned.bindings) == 2


def test_the_more_waits_the_fewer_rounds_a_plan_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who plans answers nobody meanwhile: what is left is decided in the next plan, which is due at once."""
    world, (first, second, *_) = dense_world()
    for number in range(8):
        world.submit(f"runs-{number}", project_id=second, gpu_devices_request=1)
    world.cycle()
    for number in range(4):
        world.submit(
            f"claims-{number}",
            project_id=first,
            gpu_devices_request=1,
            priority_class=f"medium{'-high' * (number % 2)}",
        )
    snapshot = world.fold.snapshot(world.now)
    assert more_rounds(snapshot) == MOST_ROUNDS
    monkeypatch.setattr(rounds, "MOST_ENTRIES", 9)
    assert more_rounds(snapshot) == 2
    monkeypatch.setattr(rounds, "MOST_ENTRIES", 3)
    assert more_rounds(snapshot) == 0
    planned = world.cycle()
    assert planned.evictions
    assert planned.more


@settings(max_examples=draws(60), deadline=None)
@given(st.lists(dense_steps, max_size=30))
def test_planning_again_on_the_result_changes_nothing(history: list[tuple[str, Any]]) -> None:
    world, projects = dense_world()
    keys: list[str] = []
    for step in [*history, ("cycle", 0)]:
        if step[0] == "cycle":
            plan_strictly(world)
        else:
            act_densely(world, keys, step, projects)


@settings(max_examples=draws(100), deadline=None)
@given(st.lists(steps, max_size=25), st.sampled_from([None, 0, 1_500, 4_000]))
def test_the_same_of_nodes_and_pods_of_many_kinds(history: list[tuple[str, Any]], quota: int | None) -> None:
    world = World()
    world.cluster(pools=("a", "b"))
    projects = [world.project(quota=quota), world.project("second", quota=2_000), world.project("third", limit=3_000)]
    keys: list[str] = []
    for step in history:
        carry_out(world, keys, step, projects)
    plan_strictly(world)


@settings(max_examples=draws(40), deadline=None)
@given(st.lists(dense_steps, max_size=30))
def test_what_comes_of_a_plan_is_foreseen_as_the_log_will_have_it(history: list[tuple[str, Any]]) -> None:
    world, projects = dense_world()
    keys: list[str] = []
    for step in [*history, ("cycle", 0)]:
        if step[0] != "cycle":
            act_densely(world, keys, step, projects)
            continue
        planned = world.cycle()
        assert world.seen_snapshot is not None
        foreseen = carried_out(world.seen_snapshot, world.policy, planned.bindings, planned.evictions, {})
        assert foreseen is not None
        came = world.fold.snapshot(world.now)
        mine, theirs = told(foreseen, like=came), told(came, like=came)
        for name in mine:
            assert mine[name] == theirs[name], name


def told(of: Snapshot, *, like: Snapshot) -> dict[str, Any]:
    """What a plan is made by, but for what the log says of those that wait: a round changes nothing of that.

    Args:
        like: it tells nothing of whose places could be taken where nothing waits, nor of projects that nobody asks for.
    """
    nodes = of.nodes
    columns = (nodes.free_cpu_milli, nodes.free_memory_bytes, nodes.free_pods, nodes.free_devices)
    waiting = {entry.workload_id for queue in of.queues for entry in queue.entries}
    return {
        "nodes": [column.tolist() for column in (*columns, nodes.free_device_milli)],
        "held": ({key: of.held_milli[key] for key in like.held_milli}, of.held_in),
        "queues": [(queue.pod_class, queue.pods, [_waits(each) for each in queue.entries]) for queue in of.queues],
        "leaving": of.leaving,
        "growing": [(each.pod_class, each.pods, each.rests_until, _waits(each.entry)) for each in of.growing],
        "running": {id_: [_runs(each) for each in of.running.get(id_, ())] for id_ in like.running},
        "promised": [*of.promised.items()],
        "stints": {id_: stint for id_, stint in of.stints.items() if id_ in waiting},
        "placed_again": of.placed_again,
    }


def _runs(state: Workload) -> tuple[Any, ...]:
    pods = [(id_, pod.phase, pod.node_key, pod.devices) for id_, pod in state.pods.live.items()]
    return state.name, state.phase, state.attempt, state.gave_way_to, pods


def _waits(each: Pending) -> tuple[Any, ...]:
    return each.order, each.rank, each.pods, each.since, each.waits_from, each.gave_way_to, each.gives_way


@settings(max_examples=draws(20), deadline=None)
@given(st.lists(dense_steps, max_size=30))
def test_without_arrivals_the_scheduler_comes_to_rest(history: list[tuple[str, Any]]) -> None:
    """Whoever is told to end does before the next cycle; no run ends of itself, and the clock goes on for hours."""
    world, projects = dense_world()
    keys: list[str] = []
    for step in history:
        if step[0] == "cycle":
            world.cycle()
        else:
            act_densely(world, keys, step, projects)
    acts: list[int] = []
    for cycle in range(MOST_CYCLES + CALM_CYCLES):
        world.now += timedelta(minutes=1 if cycle < MOST_CYCLES else 30)
        for _ in range(8):
            of_pod(world, keys, 0, "stopped", {"Stopping"})
        planned = world.cycle()
        if planned.bindings or planned.evictions:
            acts.append(cycle)
    assert all(cycle < MOST_CYCLES for cycle in acts), f"something was decided in cycles {acts}"
