"""Behind a wide pod, or a gang, that has waited for long nobody of its project passes who would not give way: also
where its cluster has another pool in which nothing is to be had, of nodes without GPUs or of no nodes (S049).
"""

from typing import Any

import pytest

from services.scheduler.planning import RESERVE_AFTER
from tests.scheduler.test_take_back import gang
from tests.scheduler.world import World

FIRM: dict[str, Any] = {"preemptibility": "non-preemptible"}


@pytest.mark.parametrize("kind", ["a pod", "a gang"])
@pytest.mark.parametrize("other", ["none", "a node without GPUs", "a node that went into this pool", "a full node"])
def test_who_would_not_give_way_is_not_let_in(other: str, kind: str) -> None:
    world = World()
    world.cluster(pools=("gpu", "other"))
    world.project()
    world.node("n0", gpu_count=4, pool="gpu")
    keys = [world.submit(f"r{n}", gpu_devices_request=1, **FIRM) for n in range(4)]
    world.settle()
    if other != "none":
        world.node("n1", gpu_count=1 if other == "a full node" else 0, pool="other")
        if other == "a full node":
            world.submit("full", gpu_devices_request=1, node_pools=("other",), **FIRM)
        world.settle()
    if other == "a node that went into this pool":
        world.node("n1", gpu_count=0, pool="gpu")
    wide = world.submit("wide", gpu_devices_request=4) if kind == "a pod" else gang(world, "wide", workers=2, gpus=2)
    world.settle()
    world.now += RESERVE_AFTER
    later = [world.submit(f"later{number}", gpu_devices_request=1, **FIRM) for number in range(3)]
    world.settle()
    for key in keys[:2]:
        world.fact(key, "succeeded")
        world.settle()
    assert [world.places(key) for key in later] == [{}, {}, {}]
    for key in keys[2:]:
        world.fact(key, "succeeded")
    world.settle()
    assert world.workload(wide).pods.live.size == (1 if kind == "a pod" else 2)


def test_who_leaves_one_pool_to_the_gang_takes_what_is_free_in_another() -> None:
    world = World()
    world.cluster(pools=("gpu", "other"))
    world.project()
    world.node("n0", gpu_count=4, pool="gpu")
    world.node("n1", gpu_count=1, pool="other")
    keys = [world.submit(f"r{n}", gpu_devices_request=1, node_pools=("gpu",), **FIRM) for n in range(4)]
    world.settle()
    wide = world.submit("wide", gpu_devices_request=4)
    world.settle()
    world.now += RESERVE_AFTER
    world.settle()
    world.fact(keys[0], "succeeded")
    later = [world.submit(f"later{number}", gpu_devices_request=1, **FIRM) for number in range(2)]
    world.settle()
    assert [[node for node, _ in world.places(key).values()] for key in later] == [["n1"], []]
    assert "has waited for longer" in world.workload(later[1]).message
    for key in keys[1:]:
        world.fact(key, "succeeded")
    world.settle()
    assert [node for node, _ in world.places(wide).values()] == ["n0"]
