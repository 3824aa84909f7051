"""A real API that is stopped and started again under commands that wait (issue 11, item 4)."""

import json
import os
from collections.abc import Generator
from pathlib import Path

import pytest

from development.servers import NatsServer, PostgresServer
from development.stack import until
from tests.support.api import Served, serving
from tests.support.commands import going_on

AWAY_SECONDS = 9
"""Longer than a command gives up after that does not wait."""


@pytest.fixture
def served(nats_server: NatsServer, postgres_server: PostgresServer, tmp_path: Path) -> Generator[Served]:
    with serving(nats_server, postgres_server, tmp_path) as running:
        yield running


def environment(served: Served, home: Path) -> dict[str, str]:
    mine = {"HOME": str(home), "XDG_CONFIG_HOME": str(home)}
    return os.environ | mine | {"MUSTER_URL": served.url, "MUSTER_TOKEN": served.token("admin")}


def test_commands_that_wait_go_on_where_they_were_when_the_api_comes_back(served: Served, tmp_path: Path) -> None:
    with served.client() as client:
        made = client.post("/api/v1/workloads/trainings", json=served.training(name="long"))
        assert made.status_code == 202, made.text
        identifier = made.json()["workloadId"]
        commands = (
            ("events", "tail", "-n", "1", "-o", "jsonl"),
            ("workload", "list", "-A", "-w", "-o", "jsonl"),
            ("workload", "history", "long", "-w", "-o", "jsonl"),
            ("training", "logs", "long", "-f"),
            ("training", "submit", "waited", "-i", "a", "-p", "default", "--wait", "--timeout", "2m", "-o", "name"),
        )
        with going_on(environment(served, tmp_path), *commands) as started:
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


@pytest.mark.parametrize(
    "command", [("events", "tail"), ("training", "logs", "silent", "-f"), ("workload", "list", "-w")]
)
def test_what_follows_ends_at_its_timeout_also_where_nothing_comes(
    served: Served, tmp_path: Path, command: tuple[str, ...]
) -> None:
    with served.client() as client:
        assert client.post("/api/v1/workloads/trainings", json=served.training(name="silent")).status_code == 202
    with going_on(environment(served, tmp_path), (*command, "--timeout", "2s")) as [one]:
        assert one.wait() == 7, one.err
        assert one.err[-1].endswith("ed for 2s")
