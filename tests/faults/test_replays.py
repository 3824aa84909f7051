"""kill -9 of replays while people work: the next one goes on, and shows in the end what was there at that moment."""

import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from development.stack import Stack
from tests.api.test_as_of import without_clock
from tests.faults.test_kills import brief
from tests.support.load import Submitter

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600)]

LISTS = ("/workloads?limit=500&sortBy=name", "/workloads/count", "/org-unit/projects", "/clusters", "/nodes")


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    stack = Stack(tmp_path).start()
    yield stack
    stack.close()


@contextmanager
def begun(stack: Stack, *words: str, failpoint: str = "") -> Generator[subprocess.Popen[str]]:
    """Ends with the block: a check that fails in it would else wait for ever for what is served until Ctrl-C."""
    with subprocess.Popen(
        [sys.executable, "-m", "muster.cli.main", "replay", "--into", "again", *words],
        env=os.environ | stack.environment | {"MUSTER_FAILPOINT": failpoint},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def of_the_log(value: Any) -> Any:
    """Without what goes on with the clock, and without what is measured: samples stand in the tables alone."""
    told = without_clock(value)
    for row in told.get("workloads", ()):
        row.pop("idleGpus", None)
    return told


def test_what_dies_hinders_no_replay(stack: Stack, rounds: int, chance: random.Random) -> None:
    added = stack.muster("cluster", "add", "sim", "--simulated", "8x8")
    assert added.returncode == 0, added.stderr
    api = stack.api()
    person = Submitter(
        [stack.api()], random.Random(chance.random()), "sim", cluster_id=api.cluster("sim"), project_id=api.project(),
        per_second=8, spec=brief,
    )  # fmt: skip
    person.start()
    time.sleep(10)
    end = int(api.get("/projections")["logSequence"])
    for number in range(rounds):
        is_there = stack.muster("replay", "status", "again").returncode == 0
        again = () if is_there else ("--from", str(end // 3), "--to", str(end))
        with begun(stack, *again, failpoint="" if number % 3 else "replay_prepared") as process:
            time.sleep(chance.uniform(0.5, 8.0))
            process.kill()
    person.stop()
    assert person.problems == []
    with begun(stack) as serving:
        assert serving.stderr is not None
        heard = ""
        while "it is served until Ctrl-C" not in heard:
            line = serving.stderr.readline()
            assert line, heard
            heard += line
        found = re.search(r"http://\S+?(?=:? )", heard)
        assert found is not None, heard
        (row,) = json.loads(stack.muster("replay", "list", "-o", "json").stdout)
        with httpx.Client(headers=api.http.headers, trust_env=False, timeout=30) as sandbox:
            for path in LISTS:
                shown = sandbox.get(f"{found.group()}/api/v1{path}")
                assert shown.status_code == 200, shown.text
                then = api.http.get(f"{path}{'&' if '?' in path else '?'}as_of={row['sequence']}")
                assert of_the_log(shown.json()) == of_the_log(then.json()), path
        assert stack.muster("replay", "rm", "again").returncode == 0
        assert serving.wait(30) == 1
    assert json.loads(stack.muster("replay", "list", "-o", "json").stdout) == []
