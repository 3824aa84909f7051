"""What is known of ends bounds when a waiting workload is expected to start: limits on running time, graces of what was
told to end, and the calendar (issue 14 section 3, ADR 0153).
"""

import random
from datetime import timedelta
from itertools import pairwise
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from events.ids import project_key
from events.time_limits import SetTimeLimits, TimeLimit
from events.windows import SetStartWindows, StartWindows, Window
from events.workload.commands import SuspendWorkload
from services.scheduler.known_ends import ACTS_LATE
from services.scheduler.why import why
from tests.scheduler.test_capacity import Lab
from tests.scheduler.test_estimate import Day, after
from tests.scheduler.test_maintenance import FIRM, HOUR, limit, plan_maintenance
from tests.scheduler.test_take_back import gang
from tests.support.draws import draws

LIMIT: Final = 600
GRACE: Final = 30
SURELY: Final = timedelta(seconds=LIMIT + GRACE) + ACTS_LATE
"""From when a run began until it has surely ended."""


def limited(day: Day, seconds: int | None = LIMIT) -> Day:
    project_id = day.world.chain("project", project_key("default")).state.project_id
    limits = (TimeLimit(kind="Training", runtime_seconds=seconds),)
    day.world.do("project", project_key("default"), SetTimeLimits(project_id=project_id, limits=limits))
    day.lasting = lambda: 1e6
    return day


def test_without_any_past_run_a_limit_says_by_when_it_starts() -> None:
    day = limited(Day(gpus=1))
    holder, asked_after = day.submit("holder", termination_grace_period_seconds=GRACE), timedelta(seconds=100)
    key = day.submit("w")
    day.world.now += asked_after
    found = day.asked(key).estimate
    assert found is not None
    assert (found.earliest, found.latest) == (day.world.now, day.started[holder] + SURELY)
    assert (found.latest_known, found.measured) == (True, 0)
    assert day.expected() == [], "no run has ended: it is not said when it is expected"


def test_who_waits_behind_others_waits_for_them_as_long_as_they_may_run() -> None:
    day = limited(Day(gpus=1))
    for name in ("holder", "first", "second", "third"):
        day.submit(name, termination_grace_period_seconds=GRACE)
    keys = [key for key in day.world.fold.workloads if not day.world.places(key)]
    latest = sorted(found.latest for key in keys if (found := day.asked(key).estimate) is not None)
    assert len(latest) == 3
    assert all(later - sooner > timedelta(seconds=LIMIT) for sooner, later in pairwise(latest))


def test_without_a_limit_nothing_is_known() -> None:
    day = limited(Day(gpus=1), None)
    day.submit("holder")
    assert day.asked(day.submit("w")).estimate is None


def test_a_run_whose_cluster_does_not_report_has_no_known_end() -> None:
    day = limited(Day(gpus=1))
    day.submit("holder")
    key = day.submit("w")
    assert day.asked(key).estimate is not None
    day.world.connect(day.world.cluster_id, "local", connected=False)
    day.world.settle()
    assert day.asked(key).estimate is None


def test_what_was_told_to_end_has_ended_after_its_grace() -> None:
    day = Day(gpus=1)
    day.lasting = lambda: 1e6
    holder = day.submit("holder", termination_grace_period_seconds=GRACE)
    day.world.command(holder, SuspendWorkload)
    key = day.submit("w")
    found = day.asked(key).estimate
    assert found is not None
    assert found.latest == day.world.now + timedelta(seconds=GRACE) + ACTS_LATE


def test_a_gang_starts_once_all_that_it_needs_has_surely_ended() -> None:
    day = limited(Day())
    first = day.submit("first", termination_grace_period_seconds=GRACE)
    day.world.now += timedelta(seconds=50)
    second = day.submit("second", termination_grace_period_seconds=GRACE)
    key = gang(day.world, "wide", workers=2)
    day.turn()
    found = day.asked(key).estimate
    assert found is not None
    assert found.latest == day.started[second] + SURELY > day.started[first] + SURELY


def test_past_waits_say_no_later_than_what_is_known() -> None:
    """Given waits that came out very differently, when a limit ends what runs, then the range ends there."""
    draw = random.Random(3)
    day = after(45, lasting=lambda: min(draw.lognormvariate(4.0, 1.2), LIMIT))
    limited(day, LIMIT)
    day.lasting = lambda: LIMIT
    for name in ("a", "b"):
        day.submit(name, termination_grace_period_seconds=GRACE)
    key = day.submit("w")
    day.world.now += timedelta(seconds=LIMIT - 20)
    found = day.asked(key).estimate
    assert found is not None
    assert found.measured
    assert found.earliest <= found.latest <= min(day.started[k] for k in day.ends if k != key) + SURELY


def test_what_a_reservation_keeps_closed_opens_when_it_is_over() -> None:
    lab = Lab("n0", gpu_count=2)
    starts = lab.reserve("n0", after=timedelta(0), lasts=3 * HOUR)
    key = lab.begun("w")
    day = Day.__new__(Day)
    day.world = lab
    found = day.asked(key)
    assert found.reason == "capacity_reserved"
    assert found.estimate is not None, found.no_estimate
    assert (found.estimate.earliest, found.estimate.latest) == (starts + 3 * HOUR, starts + 3 * HOUR)
    assert found.estimate.latest_known


def test_who_gives_way_to_a_reservation_has_ended_when_that_begins() -> None:
    lab = Lab("n0", gpu_count=1)
    lab.begun("soft", termination_grace_period_seconds=GRACE)
    starts = lab.reserve("n0", after=HOUR / 2)
    key = lab.begun("own", project_id=lab.owner, **FIRM)
    day = Day.__new__(Day)
    day.world = lab
    found = day.asked(key)
    assert found.estimate is not None, found.no_estimate
    assert found.estimate.latest == starts + ACTS_LATE


def test_what_a_window_ends_has_ended_after_its_grace_then() -> None:
    day = Day(gpus=1)
    project_id = day.world.chain("project", project_key("default")).state.project_id
    closes = day.world.now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=2)
    window = Window(days=tuple(range(7)), opens=0, closes=closes.hour * 60)
    windows = StartWindows(zone="UTC", windows=(window,), ends_running=True)
    day.world.do("project", project_key("default"), SetStartWindows(project_id=project_id, windows=windows))
    day.lasting = lambda: 1e6
    day.submit("holder", termination_grace_period_seconds=GRACE, preemptibility="preemptible")
    other = day.world.project("other")
    found = day.asked(day.submit("w", project_id=other)).estimate
    assert found is not None
    assert found.latest == closes + timedelta(seconds=GRACE) + ACTS_LATE


@given(data=st.data())
@settings(max_examples=draws(30), deadline=None)
def test_nobody_starts_later_than_what_was_known_while_nobody_comes_before(data: st.DataObject) -> None:
    """Given workloads that end at any time before their limit, when one is told by when it starts, then it does."""
    day = limited(Day(gpus=data.draw(st.integers(1, 4))))
    day.lasting = lambda: float(data.draw(st.integers(1, LIMIT)))
    told: dict[str, Any] = {}
    for number in range(data.draw(st.integers(2, 8))):
        gpus = data.draw(st.integers(1, 2))
        key = day.submit(f"w{number}", gpu_devices_request=gpus, termination_grace_period_seconds=GRACE)
        day.until(day.world.now + timedelta(seconds=data.draw(st.integers(0, 200))))
        if not day.world.places(key) and key not in day.started:
            found = day.asked(key).estimate
            if found is not None and found.latest_known:
                told[key] = found
                assert day.world.now <= found.earliest <= found.latest
    day.all_end()
    late = {key: (day.started[key], found.latest) for key, found in told.items() if day.started[key] > found.latest}
    assert not late


@pytest.mark.parametrize("raised", [2 * LIMIT, None])
def test_a_limit_that_is_raised_or_taken_back_is_known_at_once(raised: int | None) -> None:
    day = limited(Day(gpus=1))
    holder = day.submit("holder", termination_grace_period_seconds=GRACE)
    key = day.submit("w")
    limited(day, raised)
    found = day.asked(key).estimate
    if raised is None:
        assert found is None
    else:
        assert found is not None
        assert found.latest == day.started[holder] + SURELY + timedelta(seconds=LIMIT)


@pytest.mark.parametrize("hours_before", [0.5, 3])
@pytest.mark.parametrize("kind", ["reservation", "maintenance"])
def test_nothing_is_known_where_the_node_is_closed_to_who_waits_by_then(kind: str, hours_before: float) -> None:
    """Its holder has to leave for an entry of the calendar, or ends while that holds: neither is of use to it."""
    lab = Lab("n0", gpu_count=1)
    limit(lab, 5 * 3600)
    lab.begun("holder", termination_grace_period_seconds=GRACE)
    begins, lasts = hours_before * HOUR, 50 * HOUR
    if kind == "reservation":
        lab.reserve("n0", after=begins, lasts=lasts, lead_seconds=0)
    else:
        plan_maintenance(lab, "n0", after=begins, lasts=lasts, lead_seconds=0)
    found = why(lab.fold, lab.workload(lab.begun("w")).workload_id, lab.now, None).estimate
    assert found is None or not found.latest_known or found.latest >= lab.now + begins + lasts
