"""Quotas and limits of projects and departments, everywhere and by node pool; a department's order of node pools.

Requirement rows: S039, S048 (a non-preemptible workload stays within the quota).
"""

import random
from typing import Any

import pytest

from events.department import CreateDepartment, department_key
from events.ids import project_key
from events.project import ChangeProject, CreateProject
from events.quotas import PoolQuota
from events.workload.commands import SuspendWorkload
from services.scheduler.why import why
from tests.scheduler.world import World

FIRM: dict[str, Any] = {"preemptibility": "non-preemptible"}


@pytest.fixture
def world() -> World:
    """Eight GPUs in each of two pools."""
    made = World()
    made.cluster(pools=("fast", "slow"))
    for pool in ("fast", "slow"):
        made.node(pool, pool=pool, gpu_count=8)
    return made


def department(world: World, name: str = "research", **settings: Any) -> dict[str, Any]:
    world.do("department", department_key(name), CreateDepartment(name=name, **settings))
    state = world.chain("department", department_key(name)).state
    return {"department_id": state.department_id, "department_name": name}


def project(world: World, name: str = "vision", **settings: Any) -> str:
    world.do("project", project_key(name), CreateProject(name=name, **settings))
    return world.chain("project", project_key(name)).state.project_id


def submit(world: World, name: str, project_id: str, gpus: int = 1, **spec: Any) -> str:
    return world.submit(name, project_id=project_id, gpu_devices_request=gpus, **spec)


def on(world: World, key: str) -> str:
    """The node on which its pod is; empty where it waits."""
    places = world.places(key)
    return places[0][0] if places else ""


def test_a_quota_in_a_pool_lets_non_preemptible_pods_go_on_to_the_next_pool(world: World) -> None:
    fast = PoolQuota(node_pool="fast", gpu_quota_milli=2_000)
    vision = project(world, node_pools=("fast", "slow"), pool_quotas=(fast,))
    keys = [submit(world, f"w{n}", vision, **FIRM) for n in range(3)]
    free = submit(world, "free", vision)
    only = submit(world, "only", vision, node_pools=("fast",), **FIRM)
    world.settle()
    assert [on(world, key) for key in keys] == ["fast", "fast", "slow"]
    assert on(world, free) == "fast", "what is preemptible is not bounded by a quota"
    assert world.workload(only).reason == "quota_used"
    assert "non-preemptible workloads of project vision hold 2 GPUs of its quota of 2 GPUs in pool fast" in (
        world.workload(only).message
    )


def test_a_limit_bounds_all_workloads_and_is_free_again_when_one_ends(world: World) -> None:
    vision = project(world, gpu_limit_milli=3_000)
    first, second = submit(world, "a", vision, gpus=2), submit(world, "b", vision, **FIRM)
    third = submit(world, "c", vision)
    world.settle()
    assert [bool(on(world, key)) for key in (first, second, third)] == [True, True, False]
    assert world.workload(third).reason == "limit_used"
    assert "workloads of project vision hold 3 GPUs of its limit of 3 GPUs" in world.workload(third).message
    world.fact(second, "succeeded")
    world.settle()
    assert on(world, third)


def test_what_one_pod_needs_more_than_the_whole_limit_never_fits(world: World) -> None:
    fast = PoolQuota(node_pool="fast", gpu_limit_milli=2_000)
    vision = project(world, gpu_limit_milli=4_000, pool_quotas=(fast,))
    never, there = submit(world, "never", vision, gpus=5), submit(world, "there", vision, gpus=3)
    in_fast = submit(world, "fast", vision, gpus=3, node_pools=("fast",))
    world.settle()
    assert world.workload(never).reason == "limit_too_small"
    assert "the whole limit of project vision is 4 GPUs" in world.workload(never).message
    assert on(world, there) == "slow"
    assert world.workload(in_fast).reason == "limit_too_small"
    assert "the whole limit of project vision in pool fast is 2 GPUs" in world.workload(in_fast).message


def test_a_department_bounds_what_its_projects_hold_together(world: World) -> None:
    where = department(world, gpu_quota_milli=2_000, gpu_limit_milli=4_000)
    vision, speech = project(world, **where), project(world, "speech", **where)
    outside = project(world, "outside")
    firm = [submit(world, f"f{n}", place, **FIRM) for n, place in enumerate((vision, speech, vision))]
    free = [submit(world, f"p{n}", place) for n, place in enumerate((speech, vision, speech))]
    other = submit(world, "other", outside, gpus=8, **FIRM)
    world.settle()
    assert [bool(on(world, key)) for key in firm] == [True, True, False]
    assert world.workload(firm[2]).reason in {"quota_used", "limit_used"}
    assert "department research" in world.workload(firm[2]).message
    assert [bool(on(world, key)) for key in free] == [True, True, False]
    assert world.workload(free[2]).reason == "limit_used"
    assert on(world, other)


def test_a_project_that_moves_is_counted_where_it_stands(world: World) -> None:
    narrow, wide = department(world, "narrow", gpu_limit_milli=1_000), department(world, "wide")
    vision = project(world, **narrow)
    keys = [submit(world, f"w{n}", vision) for n in range(2)]
    world.settle()
    assert not on(world, keys[1])
    world.do("project", project_key("vision"), ChangeProject(project_id=vision, **wide))
    world.settle()
    assert on(world, keys[1])


def test_the_order_of_a_department_counts_where_neither_workload_nor_project_names_pools(world: World) -> None:
    where = department(world, node_pools=("slow", "fast"))
    vision, own = project(world, **where), project(world, "own", node_pools=("fast",), **where)
    keys = submit(world, "a", vision), submit(world, "b", own), submit(world, "c", vision, node_pools=("fast",))
    world.settle()
    assert [on(world, key) for key in keys] == ["slow", "fast", "fast"]


@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_ever_held_beyond_a_bound(world: World, seed: int) -> None:
    chance = random.Random(seed)
    pools = (PoolQuota(node_pool="fast", gpu_quota_milli=1_000, gpu_limit_milli=3_000),)
    where = department(world, gpu_quota_milli=3_000, gpu_limit_milli=7_000, pool_quotas=pools)
    bounds = {"gpu_quota_milli": 2_000, "gpu_limit_milli": 5_000}
    places = [project(world, f"p{n}", **where, **bounds) for n in range(2)]
    keys: list[str] = []
    for step in range(25):
        if keys and chance.random() < 0.3:
            key = chance.choice(keys)
            if world.places(key):
                world.fact(key, "succeeded")
            else:
                world.command(key, SuspendWorkload)
            keys.remove(key)
        else:
            firm = FIRM if chance.random() < 0.5 else {}
            keys.append(submit(world, f"w{step}", chance.choice(places), gpus=chance.choice((1, 1, 2)), **firm))
        world.settle()
        live = [(world.workload(key), pod) for key in keys for pod in world.workload(key).pods.live.values()]
        held = [(w.project_id, w.preemptible, pod.node_name, sum(d.milli for d in pod.devices)) for w, pod in live]
        assert sum(milli for *_, milli in held) <= 7_000
        assert sum(milli for _, soft, _, milli in held if not soft) <= 3_000
        assert sum(milli for _, _, node, milli in held if node == "fast") <= 3_000
        assert sum(milli for _, soft, node, milli in held if node == "fast" and not soft) <= 1_000
        for place in places:
            assert sum(milli for id_, _, _, milli in held if id_ == place) <= 5_000
            assert sum(milli for id_, soft, _, milli in held if id_ == place and not soft) <= 2_000


def test_what_its_quota_keeps_back_says_so_also_once_the_room_is_taken() -> None:
    """Given a quota that is used and nodes that are full, when a non-preemptible workload waits, then the reason is the
    quota, as room alone would not let it start, and who is told of both; with more quota it is let in.
    """
    world = World()
    world.cluster()
    world.project(quota=1_000)
    world.node("a", gpu_count=2)
    world.settle()
    firm: dict[str, Any] = {"preemptibility": "non-preemptible", "gpu_devices_request": 1}
    filler: dict[str, Any] = {"gpu_devices_request": 1}
    for name, spec in (("within", firm), ("filler", filler)):
        key = world.submit(name, **spec)
        world.settle()
        world.fact(key, "running")
    key = world.submit("w", **firm)
    world.settle()
    state = world.workload(key)
    assert state.reason == "quota_used"
    assert "hold 1 GPU of its quota of 1 GPU; beside that there is no room now: 1 node" in state.message

    found = why(world.fold, state.workload_id, world.now, None)
    assert (found.reason, [each.name for each in found.holders]) == ("quota_used", ["within"])
    assert any("within" in step.workloads for change in found.changes for step in change.steps)
    preemptible = world.submit("soft", gpu_devices_request=1)
    world.settle()
    assert world.workload(preemptible).reason == "insufficient_gpu", "its quota does not bound it"

    world.fact(_key(world, "within"), "succeeded")
    world.settle()
    assert world.places(key), "what the quota lets in has a place"


def _key(world: World, name: str) -> str:
    return next(key for key in world.fold.workloads if world.workload(key).name == name)
