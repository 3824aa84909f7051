"""What comes free is kept for a gang, or a wide pod, that has waited for long; smaller ones have what it leaves."""

from datetime import timedelta
from typing import Any

import pytest

from events.workload.fields.scheduling import PodAffinity
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


def small(world: World, name: str, **spec: Any) -> str:
    return world.submit(name, gpu_devices_request=1, **spec)


def ends(world: World, key: str) -> None:
    world.fact(key, "succeeded")
    world.settle()


@pytest.mark.parametrize("kind", ["a pod of all GPUs of a node", "a gang"])
def test_smaller_ones_that_stay_pass_at_first_and_later_have_only_what_is_not_counted_on(kind: str) -> None:
    world, on = full(4, 2)
    wide = world.submit("wide", gpu_devices_request=4) if kind != "a gang" else gang(world, "wide", workers=2, gpus=2)
    world.settle()
    first = small(world, "first", **FIRM)
    ends(world, on["n0"].pop())
    assert set(world.places(first)) == {0}, "it waits for a short time yet"
    on["n0"].append(first)
    world.now += RESERVE_AFTER
    later = [small(world, f"later{number}", **FIRM) for number in range(3)]
    for key in on["n0"][:2]:
        ends(world, key)
    assert not any(world.places(key) for key in later), "they would not give way"
    assert {world.workload(key).reason for key in later} == {"share_reserved"}
    assert "is kept for wide, which has waited for longer" in world.workload(later[0]).message
    for key in (*on["n1"], *on["n0"][2:]):
        ends(world, key)
    assert world.workload(wide).pods.live.size == (1 if kind != "a gang" else 2)
    assert [bool(world.places(key)) for key in later] == [True, True, False], "what it does not count on"
    assert not world.check().violations


@pytest.mark.parametrize("kind", ["a pod of all GPUs of a node", "a gang"])
def test_smaller_ones_that_give_way_are_let_in_and_end_once_there_is_enough(kind: str) -> None:
    """Requirement row S049: backfill does not delay the gang by more than the grace of what was let in."""
    world, on = full(4)
    wide = world.submit("wide", gpu_devices_request=4) if kind != "a gang" else gang(world, "wide", workers=2, gpus=2)
    world.settle()
    world.now += RESERVE_AFTER
    later = [small(world, f"later{number}") for number in range(3)]
    for key in on["n0"][:3]:
        ends(world, key)
    assert all(world.places(key) for key in later), "what is free meanwhile is not idle"
    assert "what the project runs meanwhile gives way to it" in next(iter(world.plan().held.values())).message
    world.fact(on["n0"][3], "succeeded")
    planned = world.cycle()
    assert sorted((each.name, each.reason) for each in planned.evictions) == [
        (f"later{number}", "backfilled") for number in range(3)
    ]
    assert world.workload(later[0]).message == (
        "wide, of the same project, has waited for longer and was passed by it, and has room now"
    )
    world.settle()
    for key in later:
        world.fact(key, "stopped")
    world.settle()
    assert world.workload(wide).pods.live.size == (1 if kind != "a gang" else 2)
    assert not any(world.places(key) for key in later)
    for _ in range(3):
        world.now += timedelta(days=1)
        assert not world.cycle().evictions, "they do not take its place in turn"
    assert not world.check().violations


@pytest.mark.parametrize(
    ("project", "spec"),
    [
        pytest.param({"minimum_runtime_seconds": 3600}, {}, id="what runs for a minimum first"),
        pytest.param({}, {"terminate_after_preemption": True}, id="what would end for good"),
        pytest.param(
            {}, {"priority_class": "medium-high"}, id="what is of a higher priority, and has not waited so long"
        ),
        pytest.param({}, FIRM, id="what is not preemptible"),
    ],
)
def test_who_would_not_give_way_is_not_let_in(project: dict[str, Any], spec: dict[str, Any]) -> None:
    world = cluster(4)
    world.project(**project)
    keys = [world.submit(f"r{n}", gpu_devices_request=1, **FIRM) for n in range(4)]
    world.settle()
    wide = world.submit("wide", gpu_devices_request=4)
    world.settle()
    world.now += timedelta(days=4)
    later = small(world, "later", **spec)
    world.settle()
    ends(world, keys[0])
    assert not world.places(later)
    assert world.workload(later).reason == "share_reserved"
    for key in keys[1:]:
        ends(world, key)
    assert world.places(wide)


def test_several_gangs_have_places_kept_each_within_its_projects_share() -> None:
    world = cluster(4, 4, 4, 4)
    theirs = world.project("theirs")
    one, two = world.project("one", quota=8_000), world.project("two", quota=8_000)
    keys = [world.submit(f"r{n}", project_id=theirs, gpu_devices_request=2, **FIRM) for n in range(8)]
    world.settle()
    wide = [
        gang(world, f"wide{n}", workers=2, gpus=2, project_id=project) for n, project in enumerate((one, one, one, two))
    ]
    world.settle()
    world.now += RESERVE_AFTER
    later = [small(world, f"later{n}", project_id=theirs) for n in range(3)]
    world.settle()
    for key in keys[:3]:
        world.fact(key, "succeeded")
    planned = world.cycle()
    assert not any(world.places(key) for key in later)
    told = [each.message for each in planned.held.values()]
    assert sum("is kept for it" in message for message in told) == len(told) >= 1
    assert len([each for each in planned.held if each.gang]) == 2, "one of each project"
    for key in keys[3:]:
        ends(world, key)
    assert [world.workload(key).pods.live.size for key in wide] == [2, 2, 0, 2], "one has its share with two of them"
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
    small(world, "late", **FIRM)
    ends(world, on["n0"][0])
    assert set(world.places(early)) == {0}
    for key in (*on["n0"][1:], early):
        ends(world, key)
    assert set(world.places(one)) == {0}
    assert not world.places(two)


@pytest.mark.parametrize("whose", ["its own", "another"])
def test_a_gang_whose_pods_stay_together_has_room_kept_where_all_of_it_fits(whose: str) -> None:
    """Smaller ones of its own project, or of another one, would pass it for ever."""
    world = World()
    world.cluster()
    mine = world.project("mine", quota=4_000)
    theirs = mine if whose == "its own" else world.project("theirs")
    for number, zone in enumerate("yxx"):
        world.node(f"n{number}", gpu_count=2, labels={"zone": zone})
    keys = [world.submit(f"r{n}", project_id=theirs, gpu_devices_request=1) for n in range(6)]
    world.settle()
    on: dict[str, list[str]] = {}
    for key in keys:
        on.setdefault(world.places(key)[0][0], []).append(key)
    wide = gang(world, "wide", workers=4, pod_affinity=PodAffinity(type="Required", key="zone"), project_id=mine)
    world.settle()
    world.now += RESERVE_AFTER
    later = [small(world, f"later{n}", project_id=theirs) for n in range(6)]
    world.settle()
    for node in ("n1", "n2", "n1", "n2"):
        assert not world.workload(wide).pods.live
        ends(world, on[node].pop())
        assert not any(world.places(key) for key in later), "it comes free where all of the gang fits"
    assert {pod.node_name for pod in world.workload(wide).pods.live.values()} == {"n1", "n2"}
    ends(world, on["n0"].pop())
    assert sum(bool(world.places(key)) for key in later) == 1
    assert not world.check().violations
