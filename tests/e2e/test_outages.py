"""Commands that wait outlive every part of a real `muster up`: killed under them, or stopped as a whole (issue 11)."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from development.stack import Part, Stack, running, until
from tests.support.commands import GoingOn, going_on

pytestmark = pytest.mark.slow

COUNTS = 'import itertools, time; [(print("line", n, flush=True), time.sleep(0.05)) for n in itertools.count()]'
"""A pod that writes twenty numbered lines a second."""


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    with running(tmp_path / "up") as stack:
        yield stack


def numbers(logs: GoingOn) -> list[int]:
    return [int(line.split()[1]) for line in logs.out]


def grown(logs: GoingOn, by: int) -> None:
    before = len(logs.out)
    until(lambda: len(logs.out) >= before + by or None, 90)


def started(stack: Stack, name: str) -> str:
    made = stack.api().submit(name, python=COUNTS, terminationGracePeriodSeconds=1)
    stack.api().wait(made["workloadId"], "Running")
    return made["workloadId"]


def suspend(stack: Stack, identifier: str) -> None:
    """As soon as it can be done again."""
    api = stack.api()
    until(lambda: api.act("suspend", identifier).status_code == 202 or None, 30)


@pytest.mark.parametrize("part", ["control", "workers", "nats"])
def test_no_line_and_no_event_is_missed_or_told_twice_where_a_part_is_killed(stack: Stack, part: Part) -> None:
    identifier = started(stack, "counts")
    commands = (
        ("training", "logs", "counts", "-f"),
        ("events", "tail", "-n", "1", "-o", "jsonl"),
        ("workload", "history", "counts", "-w", "-o", "jsonl"),
        ("training", "submit", "waited", "-i", "a", "--wait", "--command", "--", sys.executable, "-c", COUNTS),
    )
    with going_on(stack.environment, *commands) as commands_:
        logs, tail, history, waiting = commands_
        until(lambda: all(one.out for one in commands_) or None, 30)
        for _ in range(2):
            assert stack.kill(part)
            grown(logs, 100)
        suspend(stack, identifier)
        assert logs.wait() == 0, logs.err
        until(lambda: json.loads(history.out[-1])["type"] == "WorkloadStopped" or None, 30)
        assert stack.muster("training", "suspend", "waited").returncode == 0
        assert waiting.wait() == 8, waiting.err
        last = stack.api().http.get("/events", params={"limit": 1}).headers["X-Log-Sequence"]
        until(lambda: json.loads(tail.out[-1])["sequence"] >= int(last) or None, 30)
    assert numbers(logs) == list(range(len(logs.out)))
    sequences = [json.loads(line)["sequence"] for line in tail.out]
    assert sequences == list(range(sequences[0], sequences[-1] + 1))
    records = [(json.loads(line)["sequence"], json.loads(line)["index"]) for line in history.out]
    assert len(records) == len(set(records))
    for one in commands_:
        assert one.outage == [False, True] * (len(one.outage) // 2), one.err


def test_muster_up_is_stopped_and_started_again_under_its_commands(stack: Stack) -> None:
    """Its pods are interrupted and run again: the lines of both runs come, in order."""
    identifier = started(stack, "counts")
    with going_on(stack.environment, ("training", "logs", "counts", "-f"), ("events", "tail", "-o", "jsonl")) as both:
        logs, tail = both
        until(lambda: all(one.out for one in both) or None, 30)
        grown(logs, 20)
        stack.stop()
        stack.start()
        grown(logs, 50)
        suspend(stack, identifier)
        assert logs.wait() == 0, logs.err
        assert all(one.outage == [False, True] for one in both), (logs.err, tail.err)
    counted = numbers(logs)
    second = counted.index(0, 1)
    assert counted == [*range(second), *range(len(counted) - second)]
