"""How much of what a cluster says becomes commits, with a clock of the test's own."""

from services.cluster_sync.budget import BURST_MINUTES, facts_budget
from services.runtime.process.buckets import REMEMBERED, Buckets

PER_MINUTE = 6_000


def test_fifty_thousand_pods_that_start_and_end_unseen_pass_at_once() -> None:
    budget = facts_budget(PER_MINUTE)
    for _ in range(200):
        assert budget.wait_seconds("c", 0) == 0
        budget.take("c", 500, 0)
    assert budget.wait_seconds("c", 0) == 0


def test_with_the_budget_used_up_fifty_thousand_ends_pass_within_minutes() -> None:
    budget = facts_budget(PER_MINUTE)
    budget.take("c", PER_MINUTE * BURST_MINUTES, 0)
    now = 0.0
    for _ in range(100):
        now += budget.wait_seconds("c", now)
        budget.take("c", 500, now)
    assert now < 10 * 60


def test_in_the_long_run_nobody_says_more_than_the_rate_however_quick_he_is() -> None:
    budget = facts_budget(PER_MINUTE)
    taken = 0
    for millisecond in range(24 * 3600):
        now = float(millisecond)
        while budget.wait_seconds("c", now) == 0:
            budget.take("c", 20, now)
            taken += 20
    assert taken <= PER_MINUTE * (24 * 60 + BURST_MINUTES) * 1.01


def test_one_cluster_uses_up_no_others_budget() -> None:
    budget = facts_budget(PER_MINUTE)
    budget.take("c", 10**9, 0)
    assert budget.wait_seconds("c", 0) > 0
    assert budget.wait_seconds("d", 0) == 0


def test_names_whose_buckets_are_full_again_are_forgotten_and_the_others_are_not() -> None:
    buckets = Buckets(size=1, per_second=1)
    for number in range(10 * REMEMBERED):
        buckets.take(str(number), 1, number / REMEMBERED)
    last = 10 * REMEMBERED - 1
    assert buckets.wait_seconds(str(last), last / REMEMBERED) > 0
    assert len(buckets) <= 4 * REMEMBERED
