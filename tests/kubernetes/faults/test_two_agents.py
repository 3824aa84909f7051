"""Two agents of one cluster at once, each of them out of the world for seconds again and again."""

import time
from collections.abc import Callable

import pytest

from tests.kubernetes.faults.scenario import World

pytestmark = pytest.mark.kubernetes_faults


def test_two_agents_at_once_do_nothing_twice(world: World, times: Callable[[int], int]) -> None:
    second = world.stack.agent().start()
    try:
        with world.scenario("two agents at once, either paused") as (row, _):
            while row.count < times(30):
                time.sleep(world.chance.uniform(0.2, 2.0))
                paused = world.chance.choice((world.stack.agents[0], second))
                paused.pause()
                time.sleep(world.chance.uniform(0.5, 6.0))
                paused.resume()
                row.count += 1
    finally:
        second.kill()
