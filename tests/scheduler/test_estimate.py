"""When a waiting workload is expected to start: from what the log says of runs and of past estimates, as a range, and
never without ground (issue 14 section 3).
"""

import random
from collections.abc import Callable
from copy import deepcopy
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Final

import msgspec
import pytest

from events.why import Why
from events.workload.commands import DeleteWorkload, PodFact, PodFactKind, ReportPods, SuspendWorkload
from events.workload.life import WorkloadWaiting
from events.workload.pod import PodRef
from services.runtime.log.folding import take
from services.scheduler.fold import SchedulingState
from services.scheduler.forecast import LEAST_ESTIMATES, LEAST_RUNS, MOST_GROUPS, MOST_RUNS, Forecast
from services.scheduler.why import why
from tests.scheduler.test_take_back import gang
from tests.scheduler.world import World

MINUTE: Final = 60.0


class Day:
    """A node with two GPUs, and workloads that come, run for some time and end. The clock is the test's."""

    def __init__(self, *, gpus: int = 2, **project: Any) -> None:
        self.world = World()
        self.world.cluster()
        self.world.project(**project)
        self.world.node("a", gpu_count=gpus)
        self.world.settle()
        self.ends: dict[str, datetime] = {}
        self.lasting: Callable[[], float] = lambda: MINUTE
        self.started: dict[str, datetime] = {}

    def submit(self, name: str, **spec: Any) -> str:
        asked: dict[str, Any] = {"gpu_devices_request": 1} | spec
        key = self.world.submit(name, **asked)
        self.turn()
        return key

    def turn(self) -> None:
        """The scheduler, and the pods that begin to run."""
        self.world.settle()
        for key in list(self.world.fold.workloads):
            if key not in self.ends and self.world.places(key):
                self.facts(key, "running")
                self.started[key] = self.world.now
                self.ends[key] = self.world.now + timedelta(seconds=self.lasting())

    def facts(self, key: str, kind: PodFactKind) -> None:
        state = self.world.workload(key)
        for (pod_set, index), pod in list(state.pods.live.items()):
            ref = PodRef(pod_set=pod_set, index=index, attempt=pod.attempt, try_=pod.try_)
            fact = PodFact(pod=ref, kind=kind, at=self.world.now)
            self.world.do("workload", key, ReportPods(workload_id=state.workload_id, facts=(fact,)))

    def until(self, moment: datetime) -> None:
        while self.ends and min(self.ends.values()) <= moment:
            key = min(self.ends, key=lambda each: self.ends[each])
            self.world.now = max(self.world.now, self.ends.pop(key))
            self.facts(key, "succeeded")
            self.turn()
        self.world.now = max(self.world.now, moment)

    def all_end(self) -> None:
        while self.ends:
            self.until(min(self.ends.values()))

    def asked(self, key: str) -> Why:
        return why(self.world.fold, self.world.workload(key).workload_id, self.world.now, None)

    def expected(self) -> list[datetime]:
        """As the log has it."""
        events = [event for commit in self.world.commits for event in commit.events]
        return [
            event.expected_start
            for event in events
            if isinstance(event, WorkloadWaiting) and event.expected_start is not None
        ]


@cache
def _learnt() -> Day:
    return after(2 * LEAST_ESTIMATES)


def learnt() -> Day:
    """After runs of a minute, which others waited for."""
    return deepcopy(_learnt())


def after(count: int, *, lasting: Callable[[], float] = lambda: MINUTE, **project: Any) -> Day:
    """After so many workloads, all of which have ended."""
    day = Day(**project)
    day.lasting = lasting
    for number in range(count):
        day.submit(f"past{number}")
        day.until(day.world.now + timedelta(seconds=20))
    day.all_end()
    return day


def test_without_ground_nothing_is_estimated_and_it_says_why() -> None:
    day = Day()
    keys = [day.submit(f"w{number}") for number in range(3)]
    found = day.asked(keys[2])
    assert (found.outcome, found.estimate) == ("waits", None)
    assert f"once {LEAST_RUNS} like it have ended" in found.no_estimate
    assert day.expected() == []
    day.all_end()
    for number in range(3, LEAST_RUNS + 2):
        day.submit(f"w{number}")
        day.all_end()
    more = [day.submit(f"more{number}") for number in range(3)]
    # How long runs last is known now, and not how good such estimates are.
    assert len(day.expected()) == 1
    found = day.asked(more[2])
    assert found.estimate is None
    assert f"of {LEAST_ESTIMATES} estimates that a range needs, 0 can be compared" in found.no_estimate


def test_runs_that_always_last_the_same_give_a_narrow_range_that_holds_what_happens() -> None:
    day = learnt()
    keys = [day.submit(f"w{number}") for number in range(3)]
    found = day.asked(keys[2])
    assert found.estimate is not None, found.no_estimate
    assert found.no_estimate == ""
    assert found.estimate.measured >= LEAST_ESTIMATES
    assert found.estimate.typical_error < 0.1
    day.all_end()
    slack = timedelta(seconds=2)
    assert found.estimate.earliest - slack <= day.started[keys[2]] <= found.estimate.latest + slack
    assert not day.world.check().violations


def test_the_range_is_as_wide_as_past_estimates_were_off_and_holds_what_it_says() -> None:
    draw = random.Random(7)
    day = after(45, lasting=lambda: draw.lognormvariate(4.0, 0.7))
    within, widths = 0, list[float]()
    for number in range(25):
        key = day.submit(f"w{number}")
        if (found := day.asked(key)).estimate is None:
            day.until(day.world.now + timedelta(seconds=40))
            continue
        range_, now = found.estimate, day.world.now
        while key not in day.started:
            day.until(min(day.ends.values()))
        widths.append((range_.latest - range_.earliest) / max(range_.latest - now, timedelta(seconds=1)))
        within += range_.earliest <= day.started[key] <= range_.latest
    assert len(widths) >= 8
    assert min(widths) > 0.2
    # Four in five, of few.
    assert within >= 0.5 * len(widths)


def test_who_waits_behind_others_is_expected_later() -> None:
    day = learnt()
    keys = [day.submit(f"w{number}") for number in range(8)]
    latest = [day.asked(key).estimate for key in keys[2:]]
    assert all(latest)
    starts = [each.earliest for each in latest if each is not None]
    assert starts == sorted(starts)
    assert starts[-1] - starts[0] > timedelta(seconds=30)


def test_a_gang_is_expected_once_enough_is_free_for_all_of_it() -> None:
    day = learnt()
    first = day.submit("first")
    day.until(day.world.now + timedelta(seconds=30))
    second = day.submit("second")
    key = gang(day.world, "wide", workers=2)
    day.turn()
    (expected,) = day.expected()[-1:]
    assert day.ends[first] < expected
    assert abs(expected - day.ends[second]) < timedelta(seconds=10)
    day.until(day.ends[first])
    assert day.asked(key).outcome == "waits"


def test_what_waits_for_a_quota_is_expected_when_its_holders_end() -> None:
    day = after(30, limit=1_000)
    holder = day.submit("holder")
    key = day.submit("w")
    found = day.asked(key)
    assert found.reason == "limit_used"
    assert found.estimate is not None, found.no_estimate
    assert abs(found.estimate.latest - day.ends[holder]) < timedelta(seconds=30)


def test_what_only_somebody_can_change_has_no_estimate() -> None:
    day = learnt()
    key = day.submit("w", gpu_devices_request=3)
    assert (day.asked(key).outcome, day.asked(key).estimate) == ("never", None)
    assert day.asked(key).no_estimate


def test_suspended_and_deleted_ones_teach_nothing_of_estimates_but_how_long_runs_last() -> None:
    day = learnt()
    forecast, before = day.world.fold.forecast, day.world.fold.forecast.known
    for number in range(2):
        day.submit(f"w{number}")
    for name, command in (("x", SuspendWorkload), ("y", DeleteWorkload)):
        day.world.command(day.submit(name), command)
    day.all_end()
    assert forecast.known == before


def test_what_was_learnt_is_kept_with_the_fold_and_follows_from_the_log() -> None:
    day = learnt()
    kept = SchedulingState()
    fold = day.world.fold
    kept.restore(fold.seq, fold.chains, beside=fold.beside())
    assert kept.forecast.stored() == fold.forecast.stored()
    assert Forecast.restored(b"junk").stored() == Forecast().stored()
    again = SchedulingState()
    assert take(again, day.world.commits) is None
    assert again.forecast.stored() == fold.forecast.stored()


def test_what_is_learnt_is_bounded() -> None:
    day = after(1)
    state = day.world.workload(day.submit("w"))
    forecast = Forecast()
    for number in range(MOST_GROUPS + 10):
        forecast.ran(msgspec.structs.replace(state, project_id=f"p{number}"), "main", 1.0)
    for _ in range(2 * MOST_RUNS):
        forecast.ran(state, "main", 2.0)
    stored = msgspec.msgpack.decode(forecast.stored())
    assert len(stored[0]) <= MOST_GROUPS
    assert max(len(lasted) for _, lasted in stored[0]) == MOST_RUNS


def test_what_has_run_for_longer_than_any_like_it_is_expected_to_go_on_as_long_again() -> None:
    day = learnt()
    long = day.submit("long")
    state, forecast = day.world.workload(long), day.world.fold.forecast
    assert forecast.left_seconds(state, "main") == pytest.approx(MINUTE, abs=2)
    assert forecast.left_seconds(state, "main", 30.0) == pytest.approx(MINUTE - 30, abs=2)
    assert forecast.left_seconds(state, "main", 300.0) == pytest.approx(300)
