"""The load as several reporters say it, and as the annotations of a simulation state it. Pure."""

from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import msgspec
import pytest

from events.load import LEAST_SECONDS, InferenceLoad, LoadReport, stated_rate, steps
from events.workload.fields.inference import Autoscaling
from events.workload.fields.metadata import Annotation
from events.workload.spec import TrainingSpec
from events.workload.state import Workload
from services.autoscaler.decide import decide
from services.autoscaler.stated import stated_load
from services.autoscaler.windows import LOST_SECONDS, MOST_REPORTERS, Windows

BEGIN = datetime(2026, 1, 1, 12, tzinfo=UTC)


def said(seconds: float = 1.0, *, of: str = "a", **load: Any) -> LoadReport:
    return LoadReport(seconds=seconds, loads=(InferenceLoad(workload_id=of, **load),))


def windows() -> Windows:
    return Windows(lambda workload_id: workload_id in {"a", "b"})


def test_what_reporters_say_is_added_up_and_averaged() -> None:
    """Two proxies, each with a part of the requests."""
    found = windows()
    for second in range(5):
        found.take("p1", said(arrived=100, answered=90, milliseconds=9_000, in_flight=4), 10.0 + second)
        found.take("p2", said(2.0, arrived=100, answered=10, milliseconds=3_000, in_flight=2, held=3), 10.0 + second)
    load = found.load("a", 14.5)
    assert load is not None
    assert (load.requests_per_second, load.milliseconds, load.concurrency, load.held) == (150, 120, 6, 3)
    assert found.load("b", 14.5) is None


@pytest.mark.parametrize("seconds", ["5e-324", "0.001", "3600"])
@pytest.mark.parametrize("metric", ["throughput", "latency", "concurrency"])
def test_no_report_that_can_be_read_asks_for_more_than_the_bounds_or_ends_the_service(
    seconds: str, metric: Literal["throughput", "latency", "concurrency"]
) -> None:
    """Whoever has the password of one proxy shall not stop the scaling of everybody."""
    figures = ", ".join(f'"{name}": {10**12}' for name in ("arrived", "answered", "milliseconds", "in_flight", "held"))
    text = f'{{"seconds": {seconds}, "loads": [{{"workload_id": "a", {figures}}}]}}'
    try:
        report = msgspec.json.decode(text, type=LoadReport)
    except msgspec.ValidationError:
        assert float(seconds) < LEAST_SECONDS
        return
    found, scaling = windows(), Autoscaling(min_replicas=1, max_replicas=9, metric=metric, metric_threshold=1)
    for reporter in range(MOST_REPORTERS):
        found.take(f"p{reporter}", report, 10.0)
    assert 1 <= decide(found.load("a", 10.0), 10.0, scaling, 1, ready=1).replicas <= 9


def test_a_reporter_that_is_gone_counts_no_longer_and_nothing_is_known_without_any() -> None:
    found = windows()
    found.take("p1", said(arrived=100), 10.0)
    for second in range(12):
        found.take("p2", said(arrived=7), 11.0 + second)
    load = found.load("a", 22.5)
    assert load is not None
    assert load.requests_per_second == 7
    assert found.load("a", 22.0 + LOST_SECONDS + 1) is None


def test_nobody_has_asked_only_as_far_as_it_was_looked_at() -> None:
    found = windows()
    found.take("p1", said(arrived=1), 10.0)
    for now in (15.0, 20.0, 25.0):
        found.take("p1", said(), now)
    load = found.load("a", 25.0)
    assert load is not None
    assert load.idle_seconds == 15
    found.take("p1", said(), 25.0 + LOST_SECONDS + 1)
    load = found.load("a", 25.0 + LOST_SECONDS + 2)
    assert load is not None
    assert load.idle_seconds == 1, "what happened while nobody spoke, nobody knows"


@pytest.mark.parametrize("busy", [{"arrived": 1}, {"in_flight": 1}, {"held": 1}])
def test_whoever_asks_or_waits_is_somebody(busy: dict[str, Any]) -> None:
    found = windows()
    found.take("p1", said(), 10.0)
    found.take("p1", said(**busy), 15.0)
    load = found.load("a", 16.0)
    assert load is not None
    assert load.idle_seconds == 1


def test_of_what_is_no_inference_nothing_is_kept_whoever_speaks_of_it() -> None:
    found = windows()
    assert not found.take("p1", said(of="made-up", held=5), 10.0)
    assert found.take("p1", said(held=5), 10.0)
    assert found.load("made-up", 10.0) is None


def test_reporters_without_end_are_not_kept() -> None:
    found = windows()
    for number in range(3 * MOST_REPORTERS):
        found.take(f"p{number}", said(arrived=1), 10.0)
    load = found.load("a", 10.0)
    assert load is not None
    assert load.requests_per_second == MOST_REPORTERS
    found.take("after", said(arrived=1), 10.0 + LOST_SECONDS + 1)
    load = found.load("a", 10.0 + LOST_SECONDS + 1)
    assert load is not None
    assert load.requests_per_second == 1


@pytest.mark.parametrize(
    ("text", "second", "rate"),
    [("340", 0, 340), ("0=340,60=0", 59.9, 340), ("0=340,60=0", 60, 0), ("10=5", 3, 0), (" 7 ", 1, 7)],
)
def test_an_annotation_states_the_load_of_each_second(text: str, second: float, rate: int) -> None:
    assert stated_rate(steps(text), second) == rate


@pytest.mark.parametrize("text", ["", "many", "-1", "1.5", "0=1,0=2", "60=1,0=2", "0=", "=1", "0=1,", "9" * 30, "²"])
def test_an_annotation_that_cannot_be_read_is_none(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        steps(text)


def simulated(text: str, milliseconds: str = "100") -> Workload:
    spec = TrainingSpec(
        image="i",
        annotations=(
            Annotation(name="simulation.muster.dev/requests-per-second", value=text),
            Annotation(name="simulation.muster.dev/request-milliseconds", value=milliseconds),
        ),
    )
    return Workload(workload_id="a", kind="Inference", spec=spec, created_at=BEGIN)


def test_a_stated_load_is_that_of_its_moment() -> None:
    state = simulated("0=340,60=0,120=5", "50")
    busy = stated_load(state, 2, BEGIN + timedelta(seconds=30))
    assert busy is not None
    assert (busy.requests_per_second, busy.concurrency, busy.milliseconds) == (340, 17, 50 * 8.5)
    idle = stated_load(state, 2, BEGIN + timedelta(seconds=100))
    assert idle is not None
    assert (idle.requests_per_second, idle.milliseconds, idle.idle_seconds) == (0, None, 40)
    again = stated_load(state, 0, BEGIN + timedelta(seconds=121))
    assert again is not None
    assert (again.held, again.concurrency, again.idle_seconds) == (5, 0, 0)
    fast = stated_load(state, 2, BEGIN + timedelta(seconds=10), speed=10)
    assert fast is not None
    assert fast.idle_seconds == 40


def test_nothing_is_known_of_the_load_of_one_that_states_none() -> None:
    assert stated_load(Workload(workload_id="a", created_at=BEGIN), 1, BEGIN) is None
    assert stated_load(simulated("many"), 1, BEGIN) is None
