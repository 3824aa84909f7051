"""Real input: pods of a production trace on its own 1,213 nodes, through the API (section 6, 6 and 8).

They come in the trace's own order, with its gaps and its running times, all shorter by the same factor. The trace is
data of others and no part of the project: without it these tests say so.
"""

import contextlib
import itertools
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from threading import Event
from typing import Any, Final

import pytest

from development.stack import Api, Stack, served, training, until
from development.stack_check import check_stack
from tests.support import openb
from tests.support.second import second

DOUBLED = ("scheduler", "cluster_sync", "projector")
RUNTIME: Final = "simulation.muster.dev/runtime-seconds"
PER_SECOND: Final = 40
"""So many pods come, on the average."""
LONGEST_SECONDS: Final = 10.0
READY_FOR_SECONDS: Final = 3.0
"""So long after it serves again, the scheduler is killed."""
MIN_KILLS: Final = 2
UP: Final = ("muster.cli.main", "up")
STANDS_SECONDS: Final = 180.0
"""Where none completes for so long, none does."""

pytestmark = [pytest.mark.faults, pytest.mark.one_in(2), pytest.mark.timeout(1800)]


@dataclass(frozen=True, kw_only=True)
class Arrival:
    name: str
    at: float
    """Seconds after the first."""
    spec: dict[str, Any]


def arrivals(count: int) -> Iterator[Arrival]:
    """The first pods of the default list; GPU models are left out."""
    rows = list(islice(openb.rows("openb_pod_list_default"), count))
    factor = len(rows) / PER_SECOND / max(float(rows[-1]["creation_time"]), 1)
    for row in rows:
        gpus, milli = int(row["num_gpu"]), int(row["gpu_milli"])
        compute: dict[str, Any] = {
            "cpuCoreRequest": int(row["cpu_milli"]) / 1000,
            "cpuMemoryRequest": f"{row['memory_mib']}Mi",
        }
        if gpus:
            compute["gpuDevicesRequest"] = gpus
        if gpus and milli < 1000:
            compute |= {"gpuRequestType": "portion", "gpuPortionRequest": milli / 1000}
        ran = float(row["deletion_time"] or 0) - float(row["scheduled_time"] or row["creation_time"])
        runs = min(max(ran * factor, 0.2), LONGEST_SECONDS)
        annotations = [{"name": RUNTIME, "value": f"{runs:.2f}"}]
        at = float(row["creation_time"]) * factor
        yield Arrival(name=row["name"], at=at, spec={"compute": compute, "annotations": annotations})


def submit_all(api: Api, cluster: str, count: int) -> dict[str, str]:
    """Submit the trace's pods when they are due, in their order; the acknowledged ids by name."""
    project, cluster_id = api.project(), api.cluster(cluster)

    def submit(pod: Arrival) -> tuple[str, str]:
        time.sleep(max(begun + pod.at - time.monotonic(), 0))
        answer = api.http.post("/workloads/trainings", json=training(pod.name, project, cluster_id, **pod.spec))
        assert answer.status_code == 202, answer.text
        return pod.name, answer.json()["workloadId"]

    with ThreadPoolExecutor(8) as pool:
        begun = time.monotonic()
        return dict(pool.map(submit, arrivals(count)))


def all_complete(api: Api, count: int) -> None:
    """How long it takes is a matter of the machine; that it goes on is not."""

    def completed_beyond(known: int) -> int | None:
        now = api.get("/workloads/count", filterBy="phase==Completed")["count"]
        return now if now > known else None

    def what_lacks() -> str:
        return str(api.get("/workloads", filterBy="phase!=Completed", limit=5))

    completed = 0
    while completed < count:
        completed = until(partial(completed_beyond, completed), STANDS_SECONDS, what_lacks)


def nothing_is_held(api: Api, cluster: str) -> bool:
    nodes = api.get("/nodes", clusterId=api.cluster(cluster))["nodes"]
    return not any(node["reserved"]["pods"] for node in nodes)


@contextlib.contextmanager
def nothing_more(_: Stack) -> Generator[None]:
    yield


@contextlib.contextmanager
def doubled(stack: Stack) -> Generator[None]:
    """Second instances of these services."""
    with second(stack, *DOUBLED):
        yield


@contextlib.contextmanager
def killed(stack: Stack) -> Generator[None]:
    """The only scheduler, a process of its own, is killed again and again; nothing else is."""
    over = Event()

    def kill() -> int:
        for kills in itertools.count():
            if over.wait(READY_FOR_SECONDS):
                return kills
            scheduler.kill()
            scheduler.wait_ready()
        raise AssertionError

    with second(stack, "scheduler") as (scheduler,), ThreadPoolExecutor(1) as pool:
        killing = pool.submit(kill)
        try:
            yield
        finally:
            over.set()
        assert killing.result() >= MIN_KILLS


def all_run(stack: Stack, count: int, beside: Callable[[Stack], AbstractContextManager[None]]) -> None:
    """Submit this many pods of the trace to its own nodes, beside what else goes on; check it all."""
    with served(stack):
        nodes = openb.FOLDER / f"{openb.NODES}.csv"
        added = stack.muster("cluster", "add", "openb", "--nodes", str(nodes))
        assert added.returncode == 0, added.stderr
        api = stack.api()
        until(lambda: len(api.get("/nodes", clusterId=api.cluster("openb"))["nodes"]) == 1213 or None, 60)
        with beside(stack):
            acknowledged = submit_all(api, "openb", count)
            assert len(acknowledged) == count
            all_complete(api, count)
            # Whoever gives it back is among what goes on beside.
            until(partial(nothing_is_held, api, "openb"), STANDS_SECONDS)
        report = check_stack(stack, acknowledged)
        assert set(acknowledged.values()) == report.completed
        assert (report.bindings, report.left_reserved, report.left_live) == (count, 0, 0)
        for command in (("log", "verify"), ("projections", "rebuild"), ("log", "verify")):
            done = stack.muster(*command, timeout_seconds=240)
            assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("beside", "program", "count"),
    [
        pytest.param(nothing_more, UP, 2_000, id="single"),
        pytest.param(doubled, UP, 2_000, id="doubled"),
        pytest.param(killed, ("tests.support.alone", "scheduler"), 8_152, id="killed", marks=pytest.mark.in_full),
    ],
)
def test_pods_of_the_trace_all_complete_and_no_node_is_ever_over_capacity(
    tmp_path: Path,
    beside: Callable[[Stack], AbstractContextManager[None]],
    program: tuple[str, ...],
    count: int,
    request: pytest.FixtureRequest,
) -> None:
    all_run(Stack(tmp_path, program=program), 500 if request.config.option.short else count, beside)
