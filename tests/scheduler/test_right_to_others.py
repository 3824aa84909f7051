"""Who waits within its quota is looked at again where others go beyond theirs: nothing has to come free for that
(S047), and a scheduler that reads the log anew decides the same.
"""

from typing import Any

import pytest

from tests.scheduler.world import World

FIRM: dict[str, Any] = {"preemptibility": "non-preemptible"}


def start(world: World, name: str, **spec: Any) -> list[tuple[str, str]]:
    """Submit and run it; who was told to end meanwhile, and why."""
    key = world.submit(name, gpu_devices_request=1, **spec)
    plans = world.settle()
    for index in world.places(key):
        world.fact(key, "running", index=index)
    return [(each.name, each.reason) for planned in (*plans, *world.settle()) for each in planned.evictions]


@pytest.mark.parametrize("waits_first", [True, False])
def test_who_waits_has_its_right_whether_it_came_before_the_other_went_over_its_quota_or_after(
    *, waits_first: bool
) -> None:
    """Given a pod of `kin`, which is within its quota; and one of another project that waits for its place."""
    world = World()
    world.cluster(pools=("a", "b"))
    kin, bounded = world.project("kin", quota=1_000), world.project("bounded", quota=2_000)
    world.node("n0", gpu_count=1, pool="a")
    world.node("n1", gpu_count=1, pool="b")
    assert start(world, "soft", project_id=kin, node_pools=("a",)) == []

    waits: dict[str, Any] = {"project_id": bounded, "node_pools": ("a",)} | FIRM
    more: dict[str, Any] = {"project_id": kin, "node_pools": ("b",)}
    in_turn = [("waits", waits), ("more", more)] if waits_first else [("more", more), ("waits", waits)]
    first, then = [start(world, name, **spec) for name, spec in in_turn]

    assert (first, then) == ([], [("soft", "reclaimed")])
