"""Commands that wait outlive every part of a real `muster up`: killed under them, or stopped as a whole (issue 11)."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from development.servers import NatsServer, PostgresServer
from development.stack import Part, Stack, running, until
from tests.support.api import Served, serving
from tests.support.commands import GoingOn, going_on

pytestmark = pytest.mark.faults

AWAY_SECONDS = 9
"""Longer than a command gives up after that does not wait."""
COUNTS = 'import itertools, time; [(print("line", n, flush=True), time.sleep(0.02)) for n in itertools.count()]'
"""A pod that writes fifty numbered lines a second."""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running(tmp_path_factory.mktemp("up")) as stack:
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


@pytest.mark.parametrize("part", ["control", "workers", "nats", "postgres"])
def test_no_line_and_no_event_is_missed_or_told_twice_where_a_part_is_killed(
    stack: Stack, part: Part, rounds: int
) -> None:
    counts, waited = f"counts-{part}", f"waited-{part}"
    identifier = started(stack, counts)
    commands = (
        ("training", "logs", counts, "-f"),
        ("log", "tail", "-n", "1", "-o", "jsonl"),
        ("workload", "history", counts, "-w", "-o", "jsonl"),
        ("training", "submit", waited, "-i", "a", "--wait", "--command", "--", sys.executable, "-c", COUNTS),
    )
    with going_on(stack.environment, *commands) as commands_:
        logs, tail, history, waiting = commands_
        until(lambda: all(one.out for one in commands_) or None, 30)
        for _ in range(rounds):
            assert stack.kill(part)
            grown(logs, 200)
        suspend(stack, identifier)
        assert logs.wait() == 0, logs.err
        until(lambda: json.loads(history.out[-1])["type"] == "WorkloadStopped" or None, 30)
        assert stack.muster("training", "suspend", waited).returncode == 0
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
    with going_on(stack.environment, ("training", "logs", "counts", "-f"), ("log", "tail", "-o", "jsonl")) as both:
        logs, tail = both
        until(lambda: all(one.out for one in both) or None, 30)
        grown(logs, 20)
        stack.stop()
        stack.start()
        grown(logs, 50)
        suspend(stack, identifier)
        assert logs.wait() == 0, logs.err
        until(lambda: all(one.outage[-1:] == [True] for one in both) or None, 30)  # after its pause
        assert all(one.outage == [False, True] for one in both), (logs.err, tail.err)
    counted = numbers(logs)
    second = counted.index(0, 1)
    assert counted == [*range(second), *range(len(counted) - second)]


@pytest.fixture
def served(nats_server: NatsServer, postgres_server: PostgresServer, tmp_path: Path) -> Iterator[Served]:
    with serving(nats_server, postgres_server, tmp_path) as running:
        yield running


def test_commands_that_wait_go_on_where_they_were_when_the_api_comes_back(served: Served, tmp_path: Path) -> None:
    mine = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    environment = os.environ | mine | {"MUSTER_URL": served.url, "MUSTER_TOKEN": served.token("admin")}
    with served.client() as client:
        made = client.post("/api/v1/workloads/trainings", json=served.training(name="long"))
        assert made.status_code == 202, made.text
        identifier = made.json()["workloadId"]
        commands = (
            ("log", "tail", "-n", "1", "-o", "jsonl"),
            ("workload", "list", "-A", "-w", "-o", "jsonl"),
            ("workload", "history", "long", "-w", "-o", "jsonl"),
            ("training", "logs", "long", "-f"),
            ("training", "submit", "waited", "-i", "a", "-p", "default", "--wait", "--timeout", "2m", "-o", "name"),
        )
        with going_on(environment, *commands) as started:
            tail, listed, history, logs, waiting = started
            until(lambda: all(one.out for one in (tail, listed, history, waiting)) and logs.err and waiting.err, 30)
            served.restart(AWAY_SECONDS)
            until(lambda: all(one.outage == [False, True] for one in started) or None, 30)
            assert client.post(f"/api/v1/workloads/trainings/{identifier}/suspend").status_code == 202
            assert logs.wait() == 0, logs.err
            waited = waiting.out[0]
            [row] = [row for row in client.get("/api/v1/workloads").json()["workloads"] if row["name"] == "waited"]
            assert waited == "waited"
            assert client.delete(f"/api/v1/workloads/trainings/{row['id']}").status_code == 202
            assert waiting.wait() == 8, waiting.err
            last = client.get("/api/v1/events", params={"limit": 1}).headers["X-Log-Sequence"]
            until(lambda: json.loads(tail.out[-1])["sequence"] == int(last) or None, 20)
            until(lambda: json.loads(history.out[-1])["type"] == "WorkloadStopped" or None, 20)
            until(
                lambda: sum("deletedAt" in line and '"deletedAt": null' not in line for line in listed.out) or None, 20
            )
    sequences = [json.loads(line)["sequence"] for line in tail.out]
    assert sequences == list(range(sequences[0], int(last) + 1))
    records = [(json.loads(line)["sequence"], json.loads(line)["index"]) for line in history.out]
    assert len(records) == len(set(records))
    rows = [(json.loads(line)["name"], json.loads(line)["version"]) for line in listed.out]
    assert len(rows) == len(set(rows)), "no row is printed again where nothing changed"
    for one in started:
        assert one.outage == [False, True], one.err
