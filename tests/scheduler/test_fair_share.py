"""Two levels of fair share: quotas first, then what is left of a pool by weight, among those that want it.

Requirement rows: S047, S048 (what goes beyond the quota of a project).
"""

from typing import Any

import pytest

from events.phases import Phase
from events.quotas import PoolQuota
from services.scheduler.policy.shares import Want, water_filled
from services.scheduler.snapshot import Plan
from tests.scheduler.test_quotas import department
from tests.scheduler.test_take_back import cluster, ends, evicted, running
from tests.scheduler.world import World

WIDE: dict[str, Any] = {"parallelism": 64, "completions": 64}


@pytest.mark.parametrize(
    ("total", "wants", "expected"),
    [
        pytest.param(10, [(0, 1, 100), (0, 1, 100)], [5, 5], id="alike"),
        pytest.param(10, [(0, 1000, 4), (0, 1e-14, 100)], [4, 6], id="a weight that is lost beside another"),
        pytest.param(10, [(0, 1, 100), (0, 5e-324, 100)], [10, 0], id="the least that a number can be"),
        pytest.param(12, [(0, 3, 100), (0, 1, 100)], [9, 3], id="by weight"),
        pytest.param(10, [(4, 1, 100), (0, 1, 100)], [7, 3], id="quota first"),
        pytest.param(10, [(4, 1, 1), (0, 1, 100)], [1, 9], id="nobody gets what it does not want"),
        pytest.param(10, [(0, 1, 2), (0, 1, 100), (0, 1, 100)], [2, 4, 4], id="others get what one leaves"),
        pytest.param(10, [(0, 0, 100), (0, 1, 3)], [0, 3], id="no weight, no share"),
        pytest.param(6, [(8, 1, 100), (4, 1, 100)], [4, 2], id="too little for all quotas"),
        pytest.param(10, [(0, 1_000, 100), (0, 1e-300, 100)], [10, 0], id="a weight that is lost beside another"),
        pytest.param(10, [(0, 1_000, 4), (0, 1e-300, 2), (0, 5e-324, 9)], [4, 2, 4], id="and what others leave to it"),
        pytest.param(0, [(8, 1, 100)], [0], id="nothing"),
        pytest.param(10, [], [], id="nobody"),
    ],
)
def test_water_is_filled(total: int, wants: list[tuple[int, float, int]], expected: list[float]) -> None:
    assert water_filled(total, [Want(*each) for each in wants]) == pytest.approx(expected)


def held(world: World, *keys: str) -> list[int]:
    """Pods of each that hold a place and go on."""
    return [sum(pod.phase != "Stopping" for pod in world.workload(key).pods.live.values()) for key in keys]


def until_rest(world: World, *keys: str) -> list[Plan]:
    """Cycles until nothing more happens, in which whoever is told to end does; the plans that evicted."""
    plans: list[Plan] = []
    for _ in range(30):
        planned = world.cycle()
        plans += [planned] if planned.evictions else []
        stopping = [
            key for key in keys if any(pod.phase == "Stopping" for pod in world.workload(key).pods.live.values())
        ]
        for key in stopping:
            ends(world, key)
        if planned.empty and not planned.put_off and not stopping:
            return plans
    raise AssertionError("the scheduler does not come to rest")


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        pytest.param({}, {}, [8, 8], id="alike where nobody says otherwise"),
        pytest.param({"over_quota_weight": 3.0}, {"over_quota_weight": 1.0}, [12, 4], id="by weight"),
        pytest.param({"quota": 4_000, "over_quota_weight": 1.0}, {}, [10, 6], id="quota first, then what is left"),
        pytest.param({"over_quota_weight": 0.0}, {}, [0, 16], id="without weight only what nobody wants"),
        pytest.param({"limit": 3_000}, {}, [3, 13], id="no more than the limit"),
        pytest.param(
            {"pool_quotas": (PoolQuota(node_pool="default", over_quota_weight=3.0),)}, {}, [12, 4], id="in one pool"
        ),
    ],
)
@pytest.mark.parametrize("turned", [False, True], ids=["in order", "the other way round"])
def test_what_is_left_is_shared_by_weight_and_taken_back_by_it(
    first: dict[str, Any], second: dict[str, Any], expected: list[int], *, turned: bool
) -> None:
    """Whoever comes first takes all; whoever comes then gets its share, and no more. All in one cycle."""
    world = cluster(8, 8)
    projects = [world.project("first", **first), world.project("second", **second)]
    keys = ["", ""]
    for number in (1, 0) if turned else (0, 1):
        keys[number] = running(world, "wide", project_id=projects[number], **WIDE)
    assert len(until_rest(world, *keys)) <= 1
    assert held(world, *keys) == expected
    assert not world.check().violations


def test_what_a_department_gets_is_shared_among_its_projects() -> None:
    """A department of one project has as much as one of two."""
    world = cluster(8, 4)
    one, two = department(world, "one"), department(world, "two", over_quota_weight=2.0)
    projects = [world.project("alone", **one), world.project("left", over_quota_weight=3.0, **two)]
    projects.append(world.project("right", **two))
    keys = [running(world, "wide", project_id=each, **WIDE) for each in projects]
    until_rest(world, *keys)
    assert held(world, *keys) == [4, 6, 2]
    assert not world.check().violations


def test_a_sibling_gives_back_where_the_quota_of_the_department_is_used_up() -> None:
    world = cluster(8)
    where = department(world, "research", gpu_quota_milli=4_000)
    mine, sibling = world.project("mine", quota=2_000, **where), world.project("sibling", quota=2_000, **where)
    other = world.project("other", quota=4_000, **department(world, "other"))
    keys = [running(world, "a", project_id=sibling, parallelism=4, completions=4)]
    keys.append(running(world, "b", project_id=other, parallelism=4, completions=4))
    keys.append(world.submit("c", project_id=mine, gpu_devices_request=1, parallelism=4, completions=4))
    assert evicted(world.cycle()) == [("a", "reclaimed", 1)] * 2
    until_rest(world, *keys)
    assert held(world, *keys) == [2, 4, 2]


def test_a_sibling_makes_room_under_the_limit_of_the_department() -> None:
    world = cluster(8)
    where = department(world, "research", gpu_limit_milli=4_000)
    mine, sibling = world.project("mine", **where), world.project("sibling", **where)
    keys = [running(world, "a", project_id=sibling, parallelism=4, completions=4)]
    keys.append(world.submit("b", project_id=mine, gpu_devices_request=1, parallelism=4, completions=4))
    until_rest(world, *keys)
    assert held(world, *keys) == [2, 2]
    assert not world.check().violations


def test_of_those_beyond_their_quota_who_is_beyond_its_share_goes_first() -> None:
    """Also where it has run for longer."""
    world = cluster(6)
    much, little = world.project("much"), world.project("little")
    keys = [running(world, "much", project_id=much, parallelism=4, completions=4)]
    keys.append(running(world, "little", project_id=little, parallelism=2, completions=2))
    keys.append(world.submit("mine", project_id=world.project("mine", quota=2_000), gpu_devices_request=2))
    assert [name for name, _, _ in evicted(world.cycle())] == ["much", "much"]
    assert "is beyond its quota" in world.workload(keys[0]).message or world.workload(keys[0]).phase is Phase.RUNNING


def test_the_victim_is_told_its_share_and_who_waits_what_its_project_has() -> None:
    world = cluster(2)
    first, second = world.project("first"), world.project("second")
    taken = [running(world, name, project_id=first) for name in ("a", "b")]
    waits = [world.submit(name, project_id=second, gpu_devices_request=1) for name in ("c", "d")]
    (message,) = (each.message for each in world.cycle().evictions)
    assert message == (
        "a workload of project second, which is within its fair share, needs its place, and project first "
        "is beyond its own of 1 GPU"
    )
    until_rest(world, *taken)
    assert world.workload(waits[1]).message.endswith(
        "; project second has 1 GPU of pool default, where its fair share is 1 GPU"
    )


def test_in_each_pool_apart_and_only_what_fits_there() -> None:
    """Pods that no node ever has room for take no share from others."""
    world = World()
    world.cluster(pools=("fast",))
    world.node("n0", gpu_count=8)
    world.node("n1", gpu_count=4, pool="fast")
    first, second, third = world.project("first"), world.project("second"), world.project("third")
    keys = [running(world, "a", project_id=first, node_pools=("fast", "default"), **WIDE)]
    keys.append(running(world, "b", project_id=second, node_pools=("fast",), **WIDE))
    world.submit("never", project_id=third, gpu_devices_request=5, node_pools=("fast",))
    until_rest(world, *keys)
    assert held(world, *keys) == [10, 2]


def test_non_preemptible_workloads_want_no_more_than_the_quota() -> None:
    world = cluster(8)
    firm, free = world.project("firm", quota=2_000), world.project("free")
    world.submit("f", project_id=firm, gpu_devices_request=1, preemptibility="non-preemptible", **WIDE)
    key = world.submit("p", project_id=free, gpu_devices_request=1, **WIDE)
    until_rest(world, key)
    assert held(world, key) == [6]
    assert world.fold.snapshot(world.now).held_in
