"""A rule is its module and its line in the registry: what was registered acts, and is named in the reasons."""

from dataclasses import replace

import pytest

from services.scheduler.planning import Policy
from services.scheduler.policy.registry import POLICY
from services.scheduler.policy.rules import Score
from tests.scheduler.dummies import last_come, longest_name, not_by_name
from tests.scheduler.world import World

WITH_FILTER = replace(POLICY, filters=(*POLICY.filters, not_by_name.FILTER))


def world_of(policy: Policy) -> World:
    world = World(policy)
    world.cluster()
    world.project()
    return world


def test_a_registered_filter_keeps_pods_away_and_is_named_in_the_reason():
    world = world_of(WITH_FILTER)
    world.node("kept-a", cpu_milli=1_000)
    world.node("open", cpu_milli=4_000)
    first, second = (world.submit(name, cpu_core_request=1.0) for name in ("first", "second"))
    large = world.submit("large", cpu_core_request=4.0)
    world.settle()
    assert [world.places(key)[0][0] for key in (first, second)] == ["open", "open"]
    assert world.workload(large).reason == "insufficient_cpu"
    for n in range(2):
        world.submit(f"more-{n}", cpu_core_request=1.0)
    last = world.submit("last", cpu_core_request=0.5)
    world.settle()
    assert world.workload(last).reason == "insufficient_resources"
    assert world.workload(last).message == (
        "2 nodes of pool default of cluster local: 1 short of CPU (need 0.5, most free 0), 1 kept by its name"
    )


@pytest.mark.parametrize(
    ("scores", "chosen"),
    [
        (POLICY.scores, "smallest"),
        ((longest_name.SCORE, *POLICY.scores), "large-and-far-away"),
        ((*POLICY.scores, longest_name.SCORE), "smallest-too"),
    ],
    ids=["none", "first", "last"],
)
def test_a_registered_score_decides_as_its_line_says(scores: tuple[Score, ...], chosen: str):
    world = world_of(replace(POLICY, scores=scores))
    world.node("large-and-far-away", cpu_milli=64_000)
    world.node("smallest", cpu_milli=8_000)
    if longest_name.SCORE in scores:
        world.node("smallest-too", cpu_milli=8_000)
    key = world.submit("w", cpu_core_request=4.0)
    world.settle()
    assert world.places(key)[0][0] == chosen


def test_a_registered_order_decides_who_goes_first():
    world = world_of(replace(POLICY, orders=(last_come.ORDER,)))
    world.node("a", max_pods=1)
    first, second = (
        world.submit("first", priority_class="high"),
        world.submit("second", preemptibility="non-preemptible"),
    )
    world.settle()
    assert (bool(world.places(first)), bool(world.places(second))) == (False, True)
