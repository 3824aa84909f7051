"""kill -9 of rebuilds, comparisons and shadows while people work: lists answer all along, and the tables stay whole."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from development.stack import Stack
from tests.faults.test_kills import brief
from tests.support.load import Submitter

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600)]

POINTS: Final = ("shadow_begun", "shadow_filled", "rebuild_filled", "rebuild_swapping", "rebuild_swapped")
LONGEST_SECONDS: Final = 4.0
"""After which one is killed, wherever it is: the start of the program takes some of it."""


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    stack = Stack(tmp_path).start()
    yield stack
    stack.close()


def begun(stack: Stack, chance: random.Random) -> subprocess.Popen[bytes]:
    words = chance.choice((["rebuild"], ["rebuild"], ["diff"], ["rebuild", "--until", "20"]))
    point = chance.choice(POINTS) if chance.random() < 0.5 else ""
    print(*words, f"dies at {point}" if point else "dies at any time")
    return subprocess.Popen(
        [sys.executable, "-m", "muster.cli.main", "projections", *words],
        env=os.environ | stack.environment | {"MUSTER_FAILPOINT": point},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def test_what_dies_leaves_the_tables_whole(stack: Stack, rounds: int, chance: random.Random) -> None:
    added = stack.muster("cluster", "add", "sim", "--simulated", "8x8")
    assert added.returncode == 0, added.stderr
    api = stack.api()
    person = Submitter(
        [stack.api()], random.Random(chance.random()), "sim", cluster_id=api.cluster("sim"), project_id=api.project(),
        per_second=8, spec=brief,
    )  # fmt: skip
    person.start()
    killed = 0
    while killed < rounds:
        process = begun(stack, chance)
        deadline = time.monotonic() + chance.uniform(0.5, LONGEST_SECONDS)
        while process.poll() is None and time.monotonic() < deadline:
            assert api.get("/workloads/count")["count"] >= 0
            time.sleep(0.05)
        process.kill()
        killed += process.wait(10) == -signal.SIGKILL
        states = [one["state"] for one in api.get("/projections")["others"]]
        assert states.count("leftover") <= 1, states
    person.stop()
    assert person.problems == []
    for verb in ("rebuild", "diff"):
        ran = stack.muster("projections", verb, timeout_seconds=300)
        assert ran.returncode == 0, ran.stdout + ran.stderr
    verified = stack.muster("log", "verify", timeout_seconds=300)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert "leftover" not in [one["state"] for one in api.get("/projections")["others"]]
