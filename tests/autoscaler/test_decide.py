"""How many replicas a load asks for: bounds, steps, patience, zero. S068, S069, C19. Pure."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from events.workload.fields.inference import Autoscaling
from services.autoscaler.decide import DOWN_SECONDS, UNSEEN_SECONDS, UP_SECONDS, Decision, Load, Past, decide
from tests.support.draws import draws


def scaling(least: int = 1, most: int = 10, **more: Any) -> Autoscaling:
    return Autoscaling(min_replicas=least, max_replicas=most, **more)


def load(requests_per_second: float = 0, **more: Any) -> Load:
    fields: dict[str, Any] = {"requests_per_second": requests_per_second, "milliseconds": None, "concurrency": 0}
    return Load(**(fields | more))


def settled(replicas: int) -> Past:
    """Of an inference that has had so many for long."""
    return Past(replicas=replicas, changed_at=-1000.0, peaks=((-0.5, 0),), seen_at=-0.5)


def at_once(of: Load | None, given: Autoscaling, current: int, *, ready: int | None = None) -> Decision:
    return decide(of, 0.0, given, current, ready=current if ready is None else ready, past=settled(current))


@pytest.mark.parametrize(
    ("metric", "of", "current", "expected"),
    [
        ("throughput", load(340), 3, 4),
        ("throughput", load(300), 3, 3),
        ("throughput", load(301), 3, 4),
        ("throughput", load(190), 3, 3),  # two would be loaded to more than nine tenths
        ("throughput", load(180), 3, 2),
        ("throughput", load(0), 3, 1),
        ("throughput", load(10**9), 3, 7),  # more than double only by four at a time
        ("throughput", load(10**9), 8, 10),
        ("concurrency", load(5, concurrency=250.0), 1, 3),
        ("concurrency", load(5, concurrency=90.0, held=30), 1, 2),
        ("latency", load(5, milliseconds=250.0), 2, 5),
        ("latency", load(5, milliseconds=105.0), 2, 2),
        ("latency", load(5, milliseconds=49.0), 3, 2),  # one at a time
        ("latency", load(0), 3, 2),
        ("latency", load(9, concurrency=3.0), 3, 3),  # nothing was answered yet
    ],
)
def test_a_load_asks_for_replicas_by_its_metric(metric: Any, of: Load, current: int, expected: int) -> None:
    found = at_once(of, scaling(metric=metric), current)
    assert (found.replicas, found.reason) == (expected, "load")


def test_a_change_says_by_which_load_it_was_decided() -> None:
    assert at_once(load(340), scaling(), 3).message == "load 340 requests/s over 3 replicas, target 100"
    found = at_once(load(9, milliseconds=400), scaling(metric="latency", metric_threshold=200), 1)
    assert found.message == "load 400 ms per request over 1 replica, target 200 ms"
    found = at_once(load(9, concurrency=120.5), scaling(metric="concurrency"), 2, ready=1)
    assert found.message == "load 120.5 requests at once over 2 replicas, 1 of them ready, target 100"


def test_replicas_that_are_not_ready_yet_are_waited_for_before_a_latency_asks_for_more() -> None:
    slow = load(9, milliseconds=1000)
    assert at_once(slow, scaling(metric="latency"), 2, ready=1).replicas == 2
    assert at_once(slow, scaling(metric="latency"), 2, ready=2).replicas == 6


@pytest.mark.parametrize("decides", [True, False])
def test_after_a_time_that_nobody_saw_the_minute_begins_anew(*, decides: bool) -> None:
    """Whoever reports stood still, or the autoscaler: the first moment after it says nothing of those before."""
    of, busy, quiet = scaling(), load(900), load(10)
    past = decide(busy, 0.0, of, 10, ready=10, past=settled(10)).past
    for second in range(1, 300 if decides else 1):
        past = decide(None, float(second), of, 10, ready=10, past=past).past
    seconds = [300.0 + second for second in range(61)]
    found: list[int] = []
    for second in seconds:
        decision = decide(quiet, second, of, 10, ready=10, past=past, unseen_seconds=UNSEEN_SECONDS)
        past = decision.past
        found.append(decision.replicas)
    assert (set(found[:59]), found[60]) == ({10}, 1)


def test_without_a_report_everything_stays_as_it_is() -> None:
    assert at_once(None, scaling(0, scale_to_zero_retention_seconds=60), 3).replicas == 3
    assert at_once(None, scaling(0, scale_to_zero_retention_seconds=60), 0).replicas == 0


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (load(idle_seconds=299.0), 1),
        (load(idle_seconds=300.0), 0),
        (load(idle_seconds=300.0, concurrency=1.0), 1),
        (load(idle_seconds=300.0, held=1), 1),
    ],
)
def test_the_last_replica_goes_once_nobody_has_asked_for_long(of: Load, expected: int) -> None:
    found = at_once(of, scaling(0, scale_to_zero_retention_seconds=300), 1)
    assert found.replicas == expected
    if not expected:
        assert (found.reason, found.message) == ("idle", "no request for 5 minutes")


def test_where_it_may_not_be_scaled_to_zero_one_stays_however_long_nobody_asks() -> None:
    assert at_once(load(idle_seconds=10**9), scaling(), 1).replicas == 1


def test_the_first_request_starts_the_first_replica_at_once() -> None:
    given = scaling(0, scale_to_zero_retention_seconds=60)
    fresh = decide(load(held=3), 5.0, given, 0, ready=0)
    assert (fresh.replicas, fresh.reason) == (1, "request")
    assert fresh.message == "3 requests waiting while there was no replica"
    assert decide(load(idle_seconds=5), 5.0, given, 0, ready=0).replicas == 0


def test_one_that_was_just_started_leaves_everything_as_it_is_for_a_while() -> None:
    """It does not know what was so before."""
    first = decide(load(0), 100.0, scaling(), 5, ready=5)
    assert first.replicas == 5
    later = decide(load(0), 100.0 + DOWN_SECONDS - 1, scaling(), 5, ready=5, past=first.past)
    assert later.replicas == 5
    assert decide(load(0), 100.0 + DOWN_SECONDS, scaling(), 5, ready=5, past=later.past).replicas == 1
    assert decide(load(900), 100.0 + UP_SECONDS - 1, scaling(), 5, ready=5, past=first.past).replicas == 5
    assert decide(load(900), 100.0 + UP_SECONDS, scaling(), 5, ready=5, past=first.past).replicas == 9


def test_fewer_stay_only_as_many_as_the_load_asked_for_at_its_highest_lately() -> None:
    past = settled(8)
    for now, rate in ((1.0, 100), (20.0, 480), (40.0, 100), (75.0, 100)):
        found = decide(load(rate), now, scaling(), 8, ready=8, past=past)
        past = found.past
    assert found.replicas == 6, "480 a second want six, at nine tenths of what each may have"


def test_a_clock_that_goes_back_changes_nothing_and_begins_anew() -> None:
    past = replace(settled(4), changed_at=500.0, peaks=((900.0, 1),))
    found = decide(load(0), 10.0, scaling(), 4, ready=4, past=past)
    assert (found.replicas, found.past.changed_at, found.past.peaks[0]) == (4, 10.0, (10.0, 4))


def test_what_another_has_scaled_meanwhile_is_where_it_goes_on_from() -> None:
    found = decide(load(0), 10.0, scaling(), 7, ready=2, past=settled(4))
    assert (found.replicas, found.past.replicas) == (7, 7)


SETTINGS = st.builds(
    lambda least, more, metric, threshold: Autoscaling(
        min_replicas=least,
        max_replicas=max(least + more, 1),
        metric=metric,
        metric_threshold=threshold,
        scale_to_zero_retention_seconds=60 if least == 0 else None,
    ),
    st.integers(0, 20),
    st.integers(0, 980),
    st.sampled_from(["throughput", "latency", "concurrency"]),
    st.integers(1, 10**9),
)
LOADS = st.builds(
    Load,
    requests_per_second=st.floats(0, 1e12),
    milliseconds=st.none() | st.floats(0, 1e12),
    concurrency=st.floats(0, 1e12),
    held=st.integers(0, 10**12),
    idle_seconds=st.floats(0, 1e9),
)


@settings(max_examples=draws(60), deadline=None)
@given(
    given_=SETTINGS,
    steps=st.lists(st.tuples(st.none() | LOADS, st.floats(-100, 100), st.integers(0, 1000)), max_size=40),
)
def test_no_load_and_no_clock_takes_it_beyond_its_bounds(
    given_: Autoscaling, steps: list[tuple[Load | None, float, int]]
) -> None:
    """Whoever lies about the load, whatever the clock does."""
    least, most = given_.min_replicas or 0, given_.max_replicas or 1
    current, past, now = max(least, 1), None, 0.0
    for of, seconds, ready in steps:
        now += seconds
        found = decide(of, now, given_, current, ready=min(ready, current), past=past)
        assert least <= found.replicas <= most
        assert found.replicas <= max(2 * current, current + 4)
        assert len(found.past.peaks) <= DOWN_SECONDS + 2 + len(steps)
        current, past = found.replicas, found.past


@settings(max_examples=draws(30), deadline=None)
@given(given_=SETTINGS, of=LOADS, current=st.integers(1, 1000), second=st.sampled_from([0.3, 1.0, 7.0]))
def test_under_a_load_that_stays_the_same_replicas_do_not_come_and_go(
    given_: Autoscaling, of: Load, current: int, second: float
) -> None:
    """They become more, or fewer, and then stay as they are."""
    least, most = given_.min_replicas or 0, given_.max_replicas or 1
    current, past, now = min(max(current, least), most), None, 0.0
    of = replace(of, idle_seconds=0.0)
    seen = [current]
    for _ in range(int(20 * DOWN_SECONDS / second) if given_.metric != "latency" else 200):
        now += second
        found = decide(of, now, given_, current, ready=current, past=past)
        current, past = found.replicas, found.past
        seen.append(current)
    assert seen in (sorted(seen), sorted(seen, reverse=True))
    if given_.metric != "latency":
        assert len({*seen[len(seen) // 2 :]}) == 1


@settings(max_examples=draws(15), deadline=None)
@given(rate=st.integers(0, 5000), noise=st.lists(st.floats(-0.04, 0.04), min_size=400, max_size=400))
def test_a_load_that_trembles_changes_replicas_seldom(rate: int, noise: list[float]) -> None:
    current, past = 1, None
    changes = 0
    for second, part in enumerate(noise):
        found = decide(load(rate * (1 + part)), float(second), scaling(1, 100), current, ready=current, past=past)
        changes += found.replicas != current and second > 100
        current, past = found.replicas, found.past
    assert changes <= 1
