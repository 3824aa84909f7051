"""kill -9 under a load of people: every 202 is in the log exactly once, no answer is untrue, and everything ends.

What is counted is counted by the checker, which reads the raw log, the answers and the pods' own words, and shares no
code with the services (development/checker).
"""

import json
import random
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest

from development.stack import PARTS, Api, Part, Stack, until
from development.stack_check import check_at_rest
from tests.support.load import Effects, Onlooker, Person, Restless, Submitter
from tests.support.second import EACH, Second, second

pytestmark = [pytest.mark.faults, pytest.mark.one_in(2)]

FIRST: tuple[Part, ...] = ("control", "workers")
"""Processes of `muster up` that have services."""
SIMULATION = "simulation.muster.dev/runtime-seconds"
ONE_GPU = {"gpuDevicesRequest": 1, "cpuCoreRequest": 0.5}
HALF_GPU = {"gpuDevicesRequest": 1, "gpuRequestType": "portion", "gpuPortionRequest": 0.5}


def brief(chance: random.Random) -> dict[str, object]:
    """A pod of a simulated node that runs for a moment."""
    compute = chance.choice((ONE_GPU, HALF_GPU))
    return {"annotations": [{"name": SIMULATION, "value": "0.5"}], "compute": compute}


def lasting(_: random.Random) -> dict[str, object]:
    return {"annotations": [{"name": SIMULATION, "value": "600"}], "compute": ONE_GPU}


class Run:
    """A stack with people who use it, and what must hold of it at the end. `urls`: of further apis."""

    def __init__(self, stack: Stack, chance: random.Random, *, urls: Sequence[str] = ()) -> None:
        self.stack = stack
        added = stack.muster("cluster", "add", "sim", "--simulated", "8x8")
        assert added.returncode == 0, added.stderr
        self.effects = Effects(stack.folder / "effects")
        self.effects.prepare()
        api = stack.api()
        project, sim, local = api.project(), api.cluster("sim"), api.cluster("local")

        def apis() -> list[Api]:
            return [stack.api(url=url) for url in (None, *urls)]

        def own() -> random.Random:
            return random.Random(chance.random())

        self.real = Submitter(
            apis(),
            own(),
            "real",
            cluster_id=local,
            project_id=project,
            per_second=1,
            spec=self.effects.spec,
        )
        self.submitters = [
            self.real,
            Submitter(apis(), own(), "sim", cluster_id=sim, project_id=project, per_second=8, spec=brief),
            Restless(apis(), own(), "restless", cluster_id=sim, project_id=project, spec=lasting),
        ]
        self.people: list[Person] = [*self.submitters, Onlooker(apis(), own(), "onlooker", made=self.made)]
        for person in self.people:
            person.start()

    def made(self) -> list[str]:
        return [id_ for submitter in self.submitters for id_ in list(submitter.acknowledged.values())]

    def finish(self) -> str:
        """Let everybody go, wait for the end of everything, and check; gives back the figures."""
        for person in self.people:
            person.stop()
        assert [problem for person in self.people for problem in person.problems] == []
        acknowledged = {name: id_ for s in self.submitters for name, id_ in s.acknowledged.items()}
        api = self.stack.api()
        until(lambda: all_over(api, len(acknowledged)), 180, lambda: unfinished(api))
        time.sleep(1)
        real = self.real.acknowledged.values()
        report = check_at_rest(self.stack, acknowledged, self.effects.lines, real)
        verified = self.stack.muster("log", "verify", timeout_seconds=120)
        assert verified.returncode == 0, verified.stdout + verified.stderr
        repeats = sum(person.repeats for person in self.people)
        calls = len(self.stack.history.calls())
        return (
            f"{len(acknowledged)} acknowledged, {calls} calls, {repeats} repeats, {report.messages} messages, "
            f"{report.bindings} bindings, 0 violations"
        )


def all_over(api: Api, count: int) -> bool:
    """False also while what was killed last is still away."""
    try:
        known = sum(_count(api, deleted=deleted) for deleted in (False, True))
        return known >= count and not _count(api, filterBy=["phase!=Completed", "phase!=Failed"])
    except (httpx.TransportError, AssertionError):
        return False


def _count(api: Api, **query: object) -> int:
    return int(api.get("/workloads/count", **query)["count"])


def unfinished(api: Api) -> str:
    rows = api.get("/workloads", filterBy=["phase!=Completed", "phase!=Failed"], limit=20)["workloads"]
    return json.dumps([[r["name"], r["phase"], r["phaseReason"], r["phaseMessage"]] for r in rows], indent=1)


@pytest.fixture
def stack(tmp_path: Path):
    stack = Stack(tmp_path, "--gpus", "1").start()
    yield stack
    stack.close()


def pause(chance: random.Random) -> None:
    time.sleep(chance.uniform(0.3, 2.5))


@pytest.mark.parametrize("part", PARTS)
def test_kill_9_of_one_part_loses_nothing(stack: Stack, part: Part, rounds: int, chance: random.Random) -> None:
    run = Run(stack, chance)
    kills = 0
    deadline = time.monotonic() + rounds * 20
    while kills < rounds:
        assert time.monotonic() < deadline, f"only {kills} kills: {part} does not come back"
        pause(chance)
        kills += stack.kill(part)
    figures = run.finish()
    print(f"\n{part}: {kills} kills, {figures}")
    stack.stop()


def test_kill_9_of_everything_at_once_loses_nothing(stack: Stack, rounds: int, chance: random.Random) -> None:
    run = Run(stack, chance)
    for _ in range(rounds):
        pause(chance)
        stack.kill_everything()
        stack.start()
    figures = run.finish()
    print(f"\nwhole tree: {rounds} kills, {figures}")
    stack.stop()


def test_two_of_each_and_kill_9_of_either_loses_nothing(stack: Stack, rounds: int, chance: random.Random) -> None:
    """Section 6, 8: two of every service at once, people at either api, and both sides die now and then."""
    with second(stack, *EACH) as seconds:
        victims: list[Part | Second] = [*FIRST, *seconds]
        run = Run(stack, chance, urls=[one.url for one in seconds if one.service == "api"])
        for _ in range(rounds):
            pause(chance)
            victim = chance.choice(victims)
            if isinstance(victim, Second):
                victim.kill()
            else:
                stack.kill(victim)
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
