"""A whole `muster up` on a disk that becomes full, again and again: clean refusals, nothing lost, back by itself."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from development.stack import Api, Stack, until
from tests.support.small_disk import SmallDisk, small_disk

pytestmark = pytest.mark.faults

MEGABYTES = 220
"""Some 40 are in use after the first start."""


@pytest.fixture
def disk(server_folder: Path) -> Iterator[SmallDisk]:
    with small_disk(server_folder / "small", MEGABYTES) as disk:
        yield disk


@pytest.fixture
def stack(disk: SmallDisk) -> Iterator[Stack]:
    stack = Stack(disk.path / "up").start()
    yield stack
    stack.close()


def readiness(stack: Stack) -> tuple[int, str]:
    answer = httpx.get(f"{stack.url}/readyz", trust_env=False, timeout=10)
    return answer.status_code, answer.text


def tried(api: Api, method: str, path: str, body: Any = None) -> int:
    answer = api.http.request(method, path, json=body)
    assert answer.status_code in {202, 409, 503}, answer.text
    return answer.status_code


def test_a_disk_that_was_full_is_forgotten_as_soon_as_there_is_room(stack: Stack, disk: SmallDisk, rounds: int) -> None:
    api = stack.api()
    acknowledged: list[str] = []
    for number in range(rounds):
        made = api.submit(f"before-{number}", command="true")["workloadId"]
        api.wait(made, "Completed")
        acknowledged.append(made)

        disk.fill()
        deadline = time.monotonic() + 60
        while readiness(stack)[0] == 200:
            assert time.monotonic() < deadline, "a full disk was not noticed"
            tried(api, "POST", f"/workloads/trainings/{made}/suspend")
        # What is known can be read.
        assert api.training(made)["actualPhase"] == "Completed"

        disk.empty()
        until(lambda: readiness(stack)[0] == 200, 60, lambda: str(readiness(stack)))
        after = until(lambda number=number: submitted(api, f"after-{number}"), 60)
        api.wait(after, "Completed")
        acknowledged.append(after)
    assert "cannot write" in "".join(stack.output)
    assert [api.training(one)["actualPhase"] for one in acknowledged] == ["Completed"] * len(acknowledged)
    verified = stack.muster("log", "verify")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    stack.stop()


def submitted(api: Api, name: str) -> str | None:
    try:
        return api.submit(name, command="true")["workloadId"]
    except AssertionError:
        return None  # the keeper's word that there is room takes a moment
