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
@pytest.mark.parametrize("other", ["none", "a node without GPUs", "a node that went into this pool"])
def test_who_would_not_give_way_is_not_let_in(other: str, kind: str) -> None:
    world = World()
    world.cluster(pools=("gpu", "other"))
    world.project()
    world.node("n0", gpu_count=4, pool="gpu")
    keys = [world.submit(f"r{n}", gpu_devices_request=1, **FIRM) for n in range(4)]
    world.settle()
    if other != "none":
        world.node("n1", gpu_count=0, pool="other")
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
