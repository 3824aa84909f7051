"""What an agent says of its nodes, or one person submits, costs the others little."""

from typing import Any

import pytest

from events.node import Taint
from events.workload.commands import SuspendWorkload
from events.workload.fields.compute import ExtendedResource
from events.workload.fields.scheduling import (
    MatchExpression,
    NodeAffinityRequired,
    NodeSelectorTerm,
    PodAffinity,
    Toleration,
)
from services.scheduler.policy.phases import place
from tests.scheduler.test_gangs import submit as submit_gang
from tests.scheduler.world import World


@pytest.fixture
def world() -> World:
    world = World()
    world.cluster()
    world.project()
    return world


def asks(*resources: str) -> dict[str, Any]:
    return {"extended_resources": tuple(ExtendedResource(resource=name, quantity="1") for name in resources)}


def test_resources_that_no_pod_waits_for_take_no_room_in_the_table(world: World) -> None:
    """An agent could name a hundred on each of its nodes, others each time, and have a column made of each."""
    for number in range(20):
        world.node(f"n{number}", extended={f"made.up/{number}-{name}": 1 for name in range(100)})
        world.node("changes", extended={f"new.name/{number}-{name}": 1 for name in range(100)})
    assert not world.fold.snapshot(world.now).nodes.free_extended
    key = world.submit("w", **asks("made.up/7-3"))
    assert list(world.fold.snapshot(world.now).nodes.free_extended) == ["made.up/7-3"]
    world.settle()
    assert world.places(key) == {0: ("n7", [])}
    assert not world.fold.snapshot(world.now).nodes.free_extended


def test_sets_of_taints_that_no_node_has_any_more_are_forgotten(world: World) -> None:
    world.node("good", taints=(Taint(key="first"),))
    for number in range(500):
        world.node("changes", taints=(Taint(key="k", value=f"v{number}"),))
        world.fold.settle(world.now)
    table = world.fold.snapshot(world.now).nodes
    assert len(table.taint_sets) <= 100
    taints = {name: table.taint_sets[number][0] for name, number in zip(table.names, table.taints, strict=True)}
    assert taints == {"good": Taint(key="first"), "changes": Taint(key="k", value="v499")}


def test_a_resource_that_no_node_has_beside_an_affinity_stops_nobody(world: World) -> None:
    world.node("a", labels={"zone": "z"})
    world.submit("greedy", pod_affinity=PodAffinity(type="Preferred", key="zone"), **asks("no.such/thing"))
    key = world.submit("w")
    world.settle()
    assert world.places(key) == {0: ("a", [])}


def test_the_reason_of_one_that_asks_for_a_thousand_resources_is_short(world: World) -> None:
    world.node("a", extended={"some.thing/a": 1})
    key = world.submit("w", **asks("some.thing/a", *(f"no.such/thing-{number}" for number in range(999))))
    world.settle()
    assert len(world.workload(key).message) < 1_000


def test_gangs_that_find_no_place_keep_no_other_project_waiting(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is placed but for its last pod before that is found out: 80 ms for one of 499 workers."""
    monkeypatch.setattr(place, "MOST_PROBED", 30)
    for number in range(8):
        world.node(f"n{number}", gpu_count=1)
    ours, theirs = world.project_id, world.project("theirs")
    gangs = [
        submit_gang(world, f"g{number}", workers=9, master=None, tolerations=(tolerates(f"k{number}"),))
        for number in range(7)
    ]
    world.project_id = theirs
    placed = submit_gang(world, "fits", workers=3)
    alone = world.submit("alone")
    plan = world.cycle()
    assert len(world.places(alone)) == 1
    assert {pod.phase for pod in world.workload(placed).pods.values()} == {"Bound"}
    assert sum(pod_class.project_id == ours for pod_class in plan.blocked) == 3
    assert len(plan.put_off) == 4
    world.settle()
    assert {world.workload(key).reason for key in gangs} == {"no_matching_node"}, "in the end each was looked at"


def test_what_was_put_off_goes_first_in_the_next_plans(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where something was freed meanwhile, and all of them may be tried again."""
    monkeypatch.setattr(place, "MOST_PROBED", 20)
    world.node("a", labels={"zone": "z"})
    keys = [
        world.submit(f"w{number}", node_affinity_required=no_zones(number, expressions=200), gpu_devices_request=1)
        for number in range(7)
    ]
    for number in range(5):
        world.cycle()
        world.node("a", labels={"zone": "z"}, cpu_milli=1_000 + number)
    assert all(world.workload(key).reason for key in keys)


def tolerates(key: str) -> Toleration:
    return Toleration(key=key, operator="Exists", effect="Any")


def no_zones(first: int, *, expressions: int) -> NodeAffinityRequired:
    expression = MatchExpression(key="zone", operator="NotIn", values=(f"v{first}",))
    return NodeAffinityRequired(node_selector_terms=(NodeSelectorTerm(match_expressions=(expression,) * expressions),))


@pytest.mark.parametrize("seconds", [2**80, -(2**80)])
def test_times_of_the_log_that_no_clock_can_hold_stop_nobody(world: World, seconds: int) -> None:
    odd = world.project("odd", minimum_runtime_seconds=seconds)
    key = world.submit("w", project_id=odd, termination_grace_period_seconds=seconds)
    world.node("a")
    world.settle()
    assert world.places(key) == {0: ("a", [])}
    world.command(key, SuspendWorkload)
    other = world.submit("other", project_id=odd)
    world.settle()
    assert world.places(other) == {0: ("a", [])}
