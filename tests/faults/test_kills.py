"""kill -9 under a stream of submits: every 202 is in the log exactly once, and everything completes (section 6, 7).

What is counted is counted by a checker that reads the raw log and shares no code with the services.
"""

import json
import random
import time
from pathlib import Path

import httpx
import pytest

from tests.support.load import Submitter
from tests.support.second import second
from tests.support.stack import PARTS, Api, Part, Stack, until
from tests.support.stack_check import check_stack

pytestmark = pytest.mark.faults

SIMULATED = {
    "annotations": [{"name": "simulation.muster.dev/runtime-seconds", "value": "0.5"}],
    "compute": {"gpuDevicesRequest": 1, "cpuCoreRequest": 0.5},
}


class Run:
    """A stack with two streams of submits, and what must hold of it at the end."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        api = stack.api()
        added = stack.muster("cluster", "add", "sim", "--simulated", "8x8")
        assert added.returncode == 0, added.stderr
        self.submitters = [
            Submitter(stack.api(), api.cluster("sim"), api.project(), per_second=8, prefix="sim", spec=SIMULATED),
            Submitter(
                stack.api(),
                api.cluster("local"),
                api.project(),
                per_second=1,
                prefix="real",
                spec={"python": "import time; time.sleep(0.3)"},
            ),
        ]
        for submitter in self.submitters:
            submitter.start()

    def finish(self) -> str:
        """Stop submitting, wait for the end of everything, and check; gives back the figures."""
        for submitter in self.submitters:
            submitter.stop()
            assert submitter.problems == []
        acknowledged = {name: id_ for s in self.submitters for name, id_ in s.acknowledged.items()}
        api = self.stack.api()
        until(lambda: _all_completed(api, len(acknowledged)) or None, 180, lambda: _unfinished(api))
        time.sleep(1)
        report = check_stack(self.stack, acknowledged)
        assert set(acknowledged.values()) <= report.completed
        assert (report.left_reserved, report.left_live) == (0, 0)
        verified = self.stack.muster("log", "verify", timeout_seconds=120)
        assert verified.returncode == 0, verified.stdout + verified.stderr
        repeats = sum(submitter.repeats for submitter in self.submitters)
        return f"{len(acknowledged)} acknowledged, {repeats} repeats, {report.messages} messages, 0 violations"


def _all_completed(api: Api, count: int) -> bool:
    """False also while what was killed last is still away."""
    try:
        answer = api.http.get("/workloads/count", params={"filterBy": "phase==Completed"})
    except httpx.TransportError:
        return False
    return answer.status_code == 200 and answer.json()["count"] >= count


def _unfinished(api: Api) -> str:
    rows = api.get("/workloads", filterBy="phase!=Completed", limit=20)["workloads"]
    return json.dumps([[r["name"], r["phase"], r["phaseReason"], r["phaseMessage"]] for r in rows], indent=1)


@pytest.fixture
def stack(tmp_path: Path):
    stack = Stack(tmp_path, "--gpus", "1").start()
    yield stack
    stack.close()


def pause() -> None:
    time.sleep(random.uniform(0.3, 2.5))


@pytest.mark.parametrize("part", PARTS)
def test_kill_9_of_one_part_loses_nothing(stack: Stack, part: Part, rounds: int) -> None:
    run = Run(stack)
    kills = 0
    deadline = time.monotonic() + rounds * 20
    while kills < rounds:
        assert time.monotonic() < deadline, f"only {kills} kills: {part} does not come back"
        pause()
        kills += stack.kill(part)
    figures = run.finish()
    print(f"\n{part}: {kills} kills, {figures}")
    stack.stop()


def test_kill_9_of_everything_at_once_loses_nothing(stack: Stack, rounds: int) -> None:
    run = Run(stack)
    for _ in range(rounds):
        pause()
        stack.kill_everything()
        stack.start()
    figures = run.finish()
    print(f"\nwhole tree: {rounds} kills, {figures}")
    stack.stop()


def test_two_of_each_and_kill_9_of_either_loses_nothing(stack: Stack, rounds: int) -> None:
    """Section 6, 8: two schedulers, two cluster_syncs and two projectors at once, and both sides die now and then."""
    run = Run(stack)
    with second(stack, "scheduler", "cluster_sync", "projector") as seconds:
        for _ in range(rounds):
            pause()
            victim = random.choice([None, *seconds])
            if victim is None:
                stack.kill("workers")
            elif victim.process is not None:
                victim.process.kill()
                victim.process.wait()
                victim.start()
        figures = run.finish()
    print(f"\ntwo of each: {rounds} kills, {figures}")
    stack.stop()


def test_what_fell_due_while_everything_was_dead_is_deleted_soon_after_it_is_back(stack: Stack) -> None:
    """S072: at most 3 s after it is ready again."""
    api = stack.api()
    made = api.submit("due", python="pass", autoDeletionTimeAfterCompletionSeconds=3)
    api.wait(made["workloadId"], "Completed")
    stack.kill_everything()
    time.sleep(4)
    stack.start()
    ready = time.monotonic()
    until(lambda: stack.api().training(made["workloadId"]).get("deletedAt"), 10)
    assert time.monotonic() - ready <= 3
    stack.stop()
