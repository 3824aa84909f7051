"""Fairness over time: shares are reached and kept, what came early starts, and nobody evicts in turn.

The same for thirty days and three seeds: `make bench-fairness`.
"""

from datetime import timedelta

import pytest

from development.fairness.load import Load
from development.fairness.shares import ideal, steps
from events.ids import workload_key
from tests.scheduler.test_fair_share import held, until_rest
from tests.scheduler.test_take_back import cluster


@pytest.mark.parametrize("seed", [1, 2])
def test_what_arrives_on_an_overloaded_cluster_starts_and_evicts_nobody_in_turn(seed: int) -> None:
    """A fifth more than there is room for: what arrived in the first third of the time has started."""
    outcome = Load(nodes=2, load=1.2, seed=seed).run(days=3)
    assert outcome.unstarted(outcome.ends - timedelta(days=2)) == []
    assert outcome.in_turn() == set()


def test_each_change_of_demand_is_followed_in_one_cycle_and_within_a_hundredth_of_the_pool() -> None:
    for step in steps(nodes=32, seed=4):
        assert step.error <= 0.01
        assert step.cycles <= 1, "all that is to be taken back is, in one cycle"
        assert step.below_quota == 0


def test_shares_follow_what_is_wanted_in_one_cycle_and_within_a_hundredth_of_the_pool() -> None:
    world = cluster(*[8] * 32)
    quotas, weights = (64, 0, 32, 0), (1.0, 1.0, 2.0, 3.0)
    projects = [
        world.project(f"p{n}", quota=quota * 1000, over_quota_weight=weight)
        for n, (quota, weight) in enumerate(zip(quotas, weights, strict=True))
    ]
    keys: list[list[str]] = [[] for _ in projects]
    wanted = [0, 0, 0, 0]
    for number, (who, pods) in enumerate(((1, 256), (3, 200), (0, 40), (2, 128))):
        world.now += timedelta(hours=1)
        world.submit(f"w{number}", project_id=projects[who], gpu_devices_request=1, parallelism=pods, completions=pods)
        keys[who].append(workload_key(projects[who], f"w{number}"))
        wanted[who] += pods
        every = [key for of in keys for key in of]
        assert len(until_rest(world, *every)) <= 1, "all that is to be taken back is, in one cycle"
        expected = ideal(256, quotas, weights, wanted)
        shares = [sum(held(world, *of)) for of in keys]
        assert sum(abs(share - want) for share, want in zip(shares, expected, strict=True)) / 2 <= 2.56
        assert all(share >= min(quota, want) for share, quota, want in zip(shares, quotas, wanted, strict=True))
    assert not world.check().violations
