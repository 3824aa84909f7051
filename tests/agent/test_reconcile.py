"""The agent's decisions as a table, and as properties: never two live runs, done means nothing more."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from events.cluster_protocol import ObservedPod, StartPod, WantedPod
from services.agent.backends.interface import LIVE_KINDS
from services.agent.reconcile import Absent, Action, Forget, Known, Start, Stop, for_pod, orphans, reconcile
from tests.agent.given import KEY, WORKLOAD, ref, run_pod, seen, settled, start_pod, stop_pod
from tests.support.draws import draws

GRACE = 30


def wanted_run(token: int) -> StartPod:
    return start_pod(run_pod(token))


def absent(token: int, reason: str) -> Absent:
    return Absent(pod_key=KEY, token=token, workload_id=WORKLOAD, pod=ref(try_=token), reason=reason)  # pyright: ignore[reportArgumentType]


def stop(token: int, grace_seconds: int = GRACE) -> Stop:
    return Stop(pod_key=KEY, token=token, grace_seconds=grace_seconds)


def forget(token: int) -> Forget:
    return Forget(pod_key=KEY, token=token)


TABLE: dict[str, tuple[WantedPod, Known, int, tuple[Action, ...]]] = {
    "a wanted run that is not there is started": (wanted_run(1), Known(), 0, (Start(pod=wanted_run(1)),)),
    "its fence does not keep it from being started": (wanted_run(1), Known(), 1, (Start(pod=wanted_run(1)),)),
    "a run that is there is left alone": (wanted_run(1), Known(runs=(seen("running"),)), 1, ()),
    "a run that ended is not started again": (wanted_run(1), Known(runs=(seen("failed"),)), 1, ()),
    "a run that was started and is not shown yet is not started again": (wanted_run(1), Known(started_token=1), 1, ()),
    "an older token than the newest run's does nothing": (wanted_run(1), Known(runs=(seen("running", 2),)), 2, ()),
    "a token below the fence is never started, and that is said": (wanted_run(1), Known(), 2, (absent(1, "fenced"),)),
    "having said so is enough": (wanted_run(1), Known(runs=(seen("stopped"),)), 2, ()),
    "a newer token stops the older run first": (wanted_run(2), Known(runs=(seen("running"),)), 1, (stop(1),)),
    "and waits while it goes": (wanted_run(2), Known(runs=(seen("running"),), asked={1: GRACE}), 2, ()),
    "and starts when it is gone": (wanted_run(2), Known(runs=(seen("stopped"),)), 2, (Start(pod=wanted_run(2)),)),
    "a stop ends the run": (stop_pod(1), Known(runs=(seen("running"),)), 1, (stop(1, 5),)),
    "a stop ends a run that only starts": (stop_pod(1), Known(runs=(seen("starting"),)), 1, (stop(1, 5),)),
    "a stop with a newer token ends the older run": (stop_pod(3), Known(runs=(seen("running"),)), 1, (stop(3, 5),)),
    "a stop is asked once": (stop_pod(1), Known(runs=(seen("running"),), asked={1: 5}), 2, ()),
    "a longer grace changes nothing": (stop_pod(1), Known(runs=(seen("running"),), asked={1: 2}), 2, ()),
    "a shorter grace is asked": (stop_pod(1), Known(runs=(seen("running"),), asked={1: 9}), 2, (stop(1, 5),)),
    "a stop of an older token leaves a newer run alone": (stop_pod(1), Known(runs=(seen("running", 2),)), 2, ()),
    "a stop of what was never here moves the fence": (stop_pod(1), Known(), 0, (stop(1, 5),)),
    "and is then answered": (stop_pod(1), Known(), 2, (absent(1, "stopped"),)),
    "once": (stop_pod(1), Known(runs=(seen("stopped"),)), 2, ()),
    "a stop of a run that ended by itself says nothing new": (stop_pod(1), Known(runs=(seen("succeeded"),)), 2, ()),
    "a settled run is forgotten": (settled(1), Known(runs=(seen("succeeded"),)), 1, (forget(1),)),
    "a settled run that lives is ended": (settled(1), Known(runs=(seen("running"),)), 1, (stop(1),)),
    "what settles an older run leaves the newer": (settled(1), Known(runs=(seen("running", 2),)), 2, ()),
    "what is settled and unknown costs nothing": (settled(1), Known(), 0, ()),
    "what is settled and fenced costs nothing": (settled(1), Known(), 2, ()),
}


@pytest.mark.parametrize("case", TABLE)
def test_reconcile(case: str) -> None:
    want, known, fence, actions = TABLE[case]
    assert for_pod(want, known, fence) == actions


def test_a_run_that_nothing_mentions_is_an_orphan_and_nothing_is_done_about_it() -> None:
    known = {KEY: Known(runs=(seen("running"),))}
    assert reconcile({}, known, {}, [KEY]) == {}
    assert orphans({}, [seen("running")]) == (f"{KEY}/1",)
    assert orphans({}, [seen("succeeded")]) == ()
    assert orphans({KEY: settled(0)}, [seen("running")]) == ()


class World:
    """A cluster that does what it is told, sometimes later; it counts live runs of one pod."""

    def __init__(self) -> None:
        self.runs: dict[int, ObservedPod] = {}
        self.fence = 0
        self.asked: dict[int, int] = {}
        self.started: list[int] = []

    def known(self) -> Known:
        return Known(runs=tuple(self.runs.values()), asked=self.asked)

    def live(self) -> list[int]:
        return [token for token, run in self.runs.items() if run.kind in LIVE_KINDS]

    def do(self, action: Action) -> None:
        match action:
            case Start(pod=pod):
                assert pod.token >= self.fence
                self.started.append(pod.token)
                self.fence = pod.token
                self.runs[pod.token] = seen("starting", pod.token)
            case Stop(token=token, grace_seconds=grace):
                self.fence = max(self.fence, token + 1)
                self.asked |= {live: grace for live in self.live() if live <= token}
            case Forget(token=token):
                self.fence = max(self.fence, token + 1)
                self.runs = {t: run for t, run in self.runs.items() if t > token or run.kind in LIVE_KINDS}
            case Absent(token=token):
                self.runs[token] = seen("stopped", token)

    def end(self, token: int) -> None:
        self.runs[token] = replace(self.runs[token], kind="stopped" if token in self.asked else "succeeded")


WORDS = st.builds(lambda make, token: make(token), st.sampled_from([wanted_run, stop_pod, settled]), st.integers(1, 5))


@settings(max_examples=draws(300))
@given(st.lists(st.tuples(WORDS, st.booleans(), st.booleans()), max_size=20))
def test_whatever_comes_in_whatever_order_there_are_never_two_live_runs_and_never_an_older_one(
    words: list[tuple[WantedPod, bool, bool]],
) -> None:
    world = World()
    for want, asked_ones_end, one_ends in words:
        for _ in range(4):
            for action in for_pod(want, world.known(), world.fence):
                world.do(action)
            assert len(world.live()) <= 1
            if asked_ones_end:
                for token in [token for token in world.live() if token in world.asked]:
                    world.end(token)
        if asked_ones_end:
            assert for_pod(want, world.known(), world.fence) == ()
        if one_ends and world.live():
            world.end(world.live()[0])
    assert world.started == sorted(set(world.started))
