"""Fairness over time: shares are reached and kept, what came early starts, and nobody evicts in turn."""

from collections.abc import Sequence
from datetime import timedelta

from events.ids import workload_key
from tests.scheduler.simulation import Load
from tests.scheduler.test_fair_share import held, until_rest
from tests.scheduler.test_take_back import cluster


def test_what_arrives_on_an_overloaded_cluster_starts_and_evicts_nobody_in_turn() -> None:
    """A fifth more than there is room for: what arrived in the first third of the time has started."""
    outcome = Load(nodes=2, load=1.2, seed=1).play(days=3)
    assert outcome.unstarted(timedelta(days=1)) == []
    assert len(outcome.figures.waits) > 50
    assert outcome.evicted_for
    assert not {(victim, winner) for victim, winner in outcome.evicted_for if (winner, victim) in outcome.evicted_for}


def ideal(total: int, quotas: Sequence[int], weights: Sequence[float], wanted: Sequence[int]) -> list[int]:
    """One GPU after the other, to who has the least beyond its quota for its weight."""
    got = [min(quota, want) for quota, want in zip(quotas, wanted, strict=True)]
    while sum(got) < min(total, sum(wanted)):
        hungry = [i for i, want in enumerate(wanted) if got[i] < want]
        got[min(hungry, key=lambda i: ((got[i] + 1 - quotas[i]) / weights[i], i))] += 1
    return got


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
