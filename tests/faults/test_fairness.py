"""Thirty days of a fifth more than there is room for, in simulated time: what arrived in the first twenty has started,
and nobody evicts in turn. tests/scheduler/test_fairness.py runs a few days of it.
"""

from datetime import timedelta

import pytest

from tests.scheduler.simulation import Simulation


@pytest.mark.timeout(1_200)
def test_what_arrives_in_twenty_of_thirty_days_starts_and_nobody_evicts_in_turn(request: pytest.FixtureRequest) -> None:
    days = 3 if request.config.option.short else 30
    outcome = Simulation(nodes=4, load=1.2, seed=7).run(days=days)
    assert outcome.ends is not None
    assert outcome.unstarted(outcome.ends - timedelta(days=10 if days > 3 else 2)) == []
    assert not {(victim, winner) for victim, winner in outcome.evicted_for if (winner, victim) in outcome.evicted_for}
