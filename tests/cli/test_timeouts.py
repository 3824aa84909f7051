"""Commands that follow something end at their `--timeout` (issue 11, item 4)."""

import os
from collections.abc import Generator
from pathlib import Path

import pytest

from development.servers import NatsServer, PostgresServer
from tests.support.api import Served, serving
from tests.support.commands import going_on


@pytest.fixture(scope="module")
def served(
    nats_server: NatsServer, postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Served]:
    """With a workload that says nothing."""
    with serving(nats_server, postgres_server, tmp_path_factory.mktemp("timeouts")) as running:
        with running.client() as client:
            made = client.post("/api/v1/workloads/trainings", json=running.training(name="silent"))
            assert made.status_code == 202, made.text
        yield running


def environment(served: Served, home: Path) -> dict[str, str]:
    mine = {"HOME": str(home), "XDG_CONFIG_HOME": str(home)}
    return os.environ | mine | {"MUSTER_URL": served.url, "MUSTER_TOKEN": served.token("admin")}


@pytest.mark.parametrize(
    "command", [("events", "tail"), ("training", "logs", "silent", "-f"), ("workload", "list", "-w")]
)
def test_what_follows_ends_at_its_timeout_also_where_nothing_comes(
    served: Served, tmp_path: Path, command: tuple[str, ...]
) -> None:
    with going_on(environment(served, tmp_path), (*command, "--timeout", "2s")) as [one]:
        assert one.wait() == 7, one.err
        assert one.err[-1].endswith("ed for 2s")
