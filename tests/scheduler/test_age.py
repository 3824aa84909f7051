"""Who has waited for long goes before a higher priority of its project, and what age decides is not undone.

Requirement row: S047 (order: priority, fair share, waiting time; aging).
"""

from datetime import timedelta
from typing import Any

import pytest

from events.workload.commands import ResumeWorkload, SuspendWorkload
from services.scheduler.fold import SchedulingState
from services.scheduler.plan import plan
from tests.scheduler.test_take_back import HIGH, LOW, cluster, ends, evicted
from tests.scheduler.world import World

DAY = timedelta(days=1)
ABOVE_LOW = 3
"""Ranks from low to medium-high."""


def waiting(days: float, *, low: dict[str, Any] = LOW, high: dict[str, Any] = HIGH) -> tuple[World, str, str, str]:
    """A full node; a workload of a low priority waits for so long before one of a higher priority comes."""
    world = cluster(1)
    world.project()
    first = world.submit("first", gpu_devices_request=1, priority_class="very-high")
    world.settle()
    early = world.submit("early", gpu_devices_request=1, **low)
    world.settle()
    world.now += timedelta(days=days)
    late = world.submit("late", gpu_devices_request=1, **high)
    world.settle()
    return world, first, early, late


@pytest.mark.parametrize(
    ("days", "goes_first"),
    [
        pytest.param(0, "late", id="the priority"),
        pytest.param(ABOVE_LOW - 0.01, "late", id="still the priority"),
        pytest.param(ABOVE_LOW + 0.01, "early", id="a day for each rank between them"),
    ],
)
def test_a_workload_goes_first_once_it_has_waited_for_a_day_longer_for_each_rank(days: float, goes_first: str) -> None:
    world, first, early, late = waiting(days)
    world.fact(first, "succeeded")
    world.settle()
    keys = {"early": early, "late": late}
    assert world.places(keys.pop(goes_first))
    assert not world.places(keys.popitem()[1])


def test_what_age_let_in_is_not_preempted_by_who_would_have_come_after_it() -> None:
    world, first, early, _ = waiting(ABOVE_LOW + 0.5)
    world.fact(first, "succeeded")
    world.settle()
    assert world.places(early)
    for days in range(30):
        world.now += DAY
        world.submit(f"later{days}", gpu_devices_request=1, **HIGH)
        assert not world.cycle().evictions
    higher = world.submit("higher", gpu_devices_request=1, priority_class="very-high")
    assert evicted(world.cycle()) == [("early", "preempted", 1)], "three days and a half are not worth five ranks"
    ends(world, early)
    world.settle()
    assert world.places(higher)
    assert not world.check().violations


def test_what_did_not_wait_gives_way_to_a_higher_priority_however_long_it_runs() -> None:
    world = cluster(1)
    world.project()
    low = world.submit("low", gpu_devices_request=1, **LOW)
    world.settle()
    world.now += 100 * DAY
    high = world.submit("high", gpu_devices_request=1, **HIGH)
    assert evicted(world.cycle()) == [("low", "preempted", 1)]
    ends(world, low)
    world.settle()
    another = world.submit("another", gpu_devices_request=1, **HIGH)
    world.settle()
    world.fact(high, "succeeded")
    world.settle()
    assert world.places(another), "a hundred days in which it ran are no waiting"


def test_time_in_which_it_ran_or_was_suspended_is_no_waiting() -> None:
    world, first, early, late = waiting(1)
    world.command(early, SuspendWorkload)
    world.now += 10 * DAY
    world.command(early, ResumeWorkload)
    world.settle()
    world.fact(first, "succeeded")
    world.settle()
    assert world.places(late)
    assert not world.places(early)


def test_a_setting_says_what_a_rank_is_worth() -> None:
    for hours, goes_first in ((0, "early"), (8760, "late")):
        world, first, early, late = waiting(30)
        fold = SchedulingState(head_start=timedelta(hours=hours))
        fold.restore(world.fold.seq, {name: dict(chains) for name, chains in world.fold.chains.items()})
        world.fold = fold
        world.fact(first, "succeeded")
        world.settle()
        assert bool(world.places(early)) == (goes_first == "early")
        assert bool(world.places(late)) == (goes_first == "late")


def test_a_fold_that_is_restored_knows_how_long_each_has_waited() -> None:
    world, first, early, _ = waiting(2)
    world.fact(first, "succeeded")
    world.settle()
    world.command(early, SuspendWorkload)
    world.now += DAY
    world.command(early, ResumeWorkload)
    world.settle()
    restored = SchedulingState()
    restored.restore(
        world.fold.seq,
        {name: dict(chains) for name, chains in world.fold.chains.items()},
        beside=world.fold.beside(),
    )
    ours, theirs = world.fold.snapshot(world.now), restored.snapshot(world.now)
    assert ours.stints == theirs.stints
    assert {entry.order for queue in ours.queues for entry in queue.entries} == {
        entry.order for queue in theirs.queues for entry in queue.entries
    }
    assert plan(ours) == plan(theirs)


def test_a_clock_that_was_ahead_when_a_place_was_given_makes_nobody_older() -> None:
    """By a week, while it was bound; it gives the place up an hour after it came, by a right clock."""
    world = World()
    world.cluster()
    world.node("n0", gpu_count=1)
    world.project()
    low = world.submit("low", gpu_devices_request=1, priority_class="low")
    came = world.now
    world.now = came + timedelta(days=7)
    world.cycle()
    world.now = came + timedelta(minutes=1)
    world.fact(low, "running")
    high = world.submit("high", gpu_devices_request=1, priority_class="high", preemptibility="preemptible")
    world.now = came + timedelta(hours=1)
    world.fact(low, "interrupted")
    world.now += timedelta(minutes=1)
    world.settle()
    assert world.places(high)
    assert not world.places(low)
