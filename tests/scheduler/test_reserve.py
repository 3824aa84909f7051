"""What comes free is kept for a gang, or a wide pod, that has waited for long; smaller ones have what it leaves."""

from datetime import timedelta
from typing import Any

import pytest

from services.scheduler.planning import RESERVE_AFTER
from tests.scheduler.test_take_back import cluster, gang
from tests.scheduler.world import World

FIRM: dict[str, Any] = {"preemptibility": "non-preemptible"}


def full(*gpus: int) -> tuple[World, dict[str, list[str]]]:
    """A full cluster of non-preemptible pods of one GPU: their keys by node."""
    world = cluster(*gpus)
    world.project()
    keys = [world.submit(f"r{n}", gpu_devices_request=1, preemptibility="non-preemptible") for n in range(sum(gpus))]
    world.settle()
    on: dict[str, list[str]] = {}
    for key in keys:
        on.setdefault(world.places(key)[0][0], []).append(key)
    return world, on


def small(world: World, name: str) -> str:
    return world.submit(name, gpu_devices_request=1)


def ends(world: World, key: str) -> None:
    world.fact(key, "succeeded")
    world.settle()


@pytest.mark.parametrize("kind", ["a pod of all GPUs of a node", "a gang"])
def test_smaller_ones_pass_at_first_and_later_have_only_what_is_not_counted_on(kind: str) -> None:
    world, on = full(4, 2)
    wide = world.submit("wide", gpu_devices_request=4) if kind != "a gang" else gang(world, "wide", workers=2, gpus=2)
    world.settle()
    first = small(world, "first")
    ends(world, on["n0"].pop())
    assert set(world.places(first)) == {0}, "it waits for a short time yet"
    on["n0"].append(first)
    world.now += RESERVE_AFTER
    later = [small(world, f"later{number}") for number in range(3)]
    for number in (0, 1):
        ends(world, on["n0"][number])
    assert not any(world.places(key) for key in later)
    assert ["what comes free on 1 node is kept for it" in each.message for each in world.plan().held.values()] == [True]
    ends(world, on["n1"][0])
    assert [bool(world.places(key)) for key in later] == [True, False, False], "what it does not count on"
    for key in on["n0"][2:]:
        ends(world, key)
    assert world.workload(wide).pods.live.size == (1 if kind != "a gang" else 2)
    ends(world, on["n1"][1])
    assert world.places(later[1])
    assert not world.check().violations


@pytest.mark.parametrize(
    ("gpus", "project"),
    [
        pytest.param(1, {}, id="a pod of one GPU"),
        pytest.param(5, {}, id="what never fits"),
        pytest.param(4, {"over_quota_weight": 0.0}, id="what its project may not have by right"),
    ],
)
def test_nothing_is_kept_for(gpus: int, project: dict[str, Any]) -> None:
    world, on = full(4)
    world.submit("wide", project_id=world.project("other", **project), gpu_devices_request=gpus)
    world.settle()
    world.now += RESERVE_AFTER
    first = small(world, "first")
    ends(world, on["n0"][0])
    if gpus > 1:
        assert world.places(first)


@pytest.mark.parametrize(
    ("gpus", "compute"),
    [
        pytest.param(0, {"cpu_core_request": 32.0}, id="a gang without GPUs: nobody has a share of cores"),
        pytest.param(1, {"cpu_core_request": 32.0}, id="one GPU and all cores of each node"),
        pytest.param(1, {"cpu_memory_request": "200G"}, id="one GPU and nearly all memory of each node"),
    ],
)
def test_who_asks_for_little_of_the_gpus_keeps_nobody_from_the_nodes(gpus: int, compute: dict[str, Any]) -> None:
    """One person would keep the cores of all nodes from everybody, for as long as a pod of somebody runs on one."""
    world = cluster(4, 4, 4)
    mine, theirs = world.project("mine"), world.project("theirs")
    for n in range(3):
        world.submit(
            f"r{n}", project_id=theirs, gpu_devices_request=3, cpu_core_request=1.0, cpu_memory_request="100G", **FIRM
        )
    world.settle()
    soon = world.submit("soon", project_id=theirs, cpu_core_request=1.0, **FIRM)
    world.settle()
    gang(world, "wide", workers=3, gpus=gpus, project_id=mine, **compute)
    world.settle()
    world.now += RESERVE_AFTER
    ends(world, soon)
    asked: dict[str, Any] = {"cpu_core_request": 1.0, "cpu_memory_request": "100G", "gpu_devices_request": 1}
    small = world.submit("small", project_id=theirs, **asked)
    world.settle()
    assert world.places(small)
    assert not world.check().violations


def test_only_the_first_has_something_kept_and_an_earlier_one_goes_before_it() -> None:
    world, on = full(4)
    early = small(world, "early")
    one, two = world.submit("one", gpu_devices_request=4), world.submit("two", gpu_devices_request=4)
    world.settle()
    world.now += RESERVE_AFTER + timedelta(seconds=1)
    small(world, "late")
    ends(world, on["n0"][0])
    assert set(world.places(early)) == {0}
    for key in (*on["n0"][1:], early):
        ends(world, key)
    assert set(world.places(one)) == {0}
    assert not world.places(two)
