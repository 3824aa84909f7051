"""Single pods are moved to make room for what is wide where enough is free in all, and each has another place."""

from datetime import timedelta
from typing import Any

import pytest

from events.node import UncordonNode
from events.phases import Phase
from services.scheduler.fold import SchedulingState
from services.scheduler.plan import plan
from services.scheduler.planning import KEPT_AFTER_EVICTION
from services.scheduler.snapshot import Plan
from tests.scheduler.test_take_back import HIGH, LOW, ends, gang, running
from tests.scheduler.world import World


def split(*used: int, size: int = 4, world: World | None = None, **spec: Any) -> tuple[World, list[str]]:
    """Nodes of four GPUs, each with one pod that has so many of them; nobody is alone on a node by best fit."""
    if world is None:
        world = World()
        world.cluster()
        world.project()
    keys: list[str] = []
    for number, gpus in enumerate(used):
        world.node(f"n{number}", gpu_count=size)
        for other in range(number):
            world.cordon(f"n{other}")
        keys += [running(world, f"small-{number}", gpus=gpus, **spec)]
        for other in range(number):
            world.cordon(f"n{other}", UncordonNode)
    return world, keys


def moved(planned: Plan) -> list[tuple[str, str]]:
    return [(each.name, each.reason) for each in planned.evictions]


def test_a_pod_is_moved_for_a_whole_node_and_both_run_in_the_end() -> None:
    world, keys = split(1, 1)
    wide = world.submit("wide", gpu_devices_request=4)

    planned = world.cycle()

    assert moved(planned) == [("small-1", "moved")], "the one that has run for the shortest time"
    assert planned.evictions[0].beneficiary == world.workload(wide).workload_id
    assert "moved to make room for wide" in world.workload(keys[1]).message
    assert (world.workload(keys[1]).phase, world.workload(keys[1]).reason) == (Phase.PENDING, "moved")
    assert world.workload(wide).reason == "waiting_for_pods_to_end"
    assert world.plan().empty, "planning again changes nothing"

    ends(world, keys[1])
    world.settle()
    assert world.places(wide)[0][0] == "n1"
    assert world.places(keys[1])[0][0] == "n0"
    assert not world.check().violations


def test_nobody_gets_the_place_of_what_was_moved_meanwhile() -> None:
    world, keys = split(1, 1, size=2)
    wide = world.submit("wide", gpu_devices_request=2)
    world.cycle()
    taker = world.submit("taker", gpu_devices_request=1)
    world.settle()
    assert not world.places(taker)
    ends(world, keys[1])
    world.settle()
    assert world.places(wide)
    assert world.places(keys[1])
    assert not world.places(taker)
    assert not world.check().violations


def test_a_gang_gets_in_by_moves_on_several_nodes_or_nobody_is_moved() -> None:
    world, _ = split(1, 1, 1, 1, size=2)
    gang(world, "wide", workers=2, gpus=2)
    planned = world.cycle()
    assert sorted(each.reason for each in planned.evictions) == ["moved", "moved"]
    assert world.plan().empty

    world, _ = split(1, 1, 1, size=2)
    gang(world, "wide", workers=2, gpus=2)
    assert moved(world.cycle()) == []


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(HIGH, id="a higher priority"),
        pytest.param({"preemptibility": "non-preemptible"}, id="what is not preemptible"),
        pytest.param({"terminate_after_preemption": True}, id="what would end for good"),
    ],
)
def test_it_is_not_moved(spec: dict[str, Any]) -> None:
    world, _ = split(1, 1, **spec)
    world.submit("wide", gpu_devices_request=4, **LOW)
    assert moved(world.cycle()) == []


def test_nobody_is_moved_who_has_no_other_place() -> None:
    world, _ = split(3, 3)
    world.submit("wide", gpu_devices_request=4)
    assert moved(world.cycle()) == []


def test_nobody_is_moved_before_its_minimum_runtime_or_twice_in_a_short_time() -> None:
    world, keys = split(1, 1)
    wide = world.submit("wide", gpu_devices_request=4)
    world.cycle()
    ends(world, keys[1])
    world.settle()
    world.fact(keys[1], "running")
    world.fact(wide, "succeeded")
    world.node("n2", gpu_count=3)
    world.settle()
    world.cordon("n1")
    world.submit("again", gpu_devices_request=4)
    # On n0 both small ones are, of which one was moved, and n2 has a place for either.
    assert moved(world.cycle()) == []
    world.now += KEPT_AFTER_EVICTION + timedelta(seconds=1)
    assert moved(world.cycle()) == [("small-1", "moved"), ("small-0", "moved")]


def test_it_can_be_switched_off() -> None:
    world, _ = split(1, 1)
    world.fold.consolidates = False
    world.submit("wide", gpu_devices_request=4)
    assert moved(world.cycle()) == []


def test_a_scheduler_that_begins_anew_keeps_the_place_too() -> None:
    world, _ = split(1, 1, size=2)
    world.submit("wide", gpu_devices_request=2)
    world.cycle()
    world.submit("taker", gpu_devices_request=1, **HIGH)
    world.fold.settle(world.now)
    restored = SchedulingState()
    chains = {name: dict(chains) for name, chains in world.fold.chains.items()}
    restored.restore(world.fold.seq, chains, beside=world.fold.beside())
    assert not plan(restored.snapshot(world.now)).bindings
    assert not plan(world.fold.snapshot(world.now)).bindings


def test_what_a_moved_pod_holds_is_still_its_projects_while_it_is_on_the_move() -> None:
    """Else its project would take places back for others meanwhile, and have more than its quota in the end."""
    world = World()
    world.cluster()
    mine = world.project("mine", quota=2_000, over_quota_weight=0.0)
    theirs = world.project("theirs", quota=1_000)
    world, keys = split(1, 1, size=2, world=world, project_id=mine)
    world.node("n2", gpu_count=2)
    for number in range(2):
        world.cordon(f"n{number}")
    for number in range(2):
        running(world, f"theirs-{number}", project_id=theirs)
    for number in range(2):
        world.cordon(f"n{number}", UncordonNode)
    wide = world.submit("wide", project_id=theirs, gpu_devices_request=2)
    assert moved(world.cycle()) == [("small-1", "moved")]
    more = world.submit("more", project_id=mine, gpu_devices_request=1)

    assert moved(world.cycle()) == [], "with the one that is moved it has all of its quota"

    ends(world, keys[1])
    world.settle()
    assert (bool(world.places(wide)), bool(world.places(keys[1])), bool(world.places(more))) == (True, True, False)
    assert not world.check().violations
