"""How soon `muster up` serves again after everything was killed, with as many busy loops as there are cores.

Each round kills the whole tree (SIGKILL), starts it anew on the same data, and takes the time until `/readyz` is 200, a
list answers, and a training is accepted; and the CPU that the tree used until it was ready. CPU decides: beside busy
loops a process gets a share of a core. The baseline is one bare interpreter that imports the libraries of one service.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import httpx
import psutil

from benchmarks.report import Figure, Report
from development.stack import Stack, training

OK: Final = 200
ACCEPTED: Final = 202
ROUNDS: Final = 12
ROUNDS_SHORT: Final = 1
READY_SECONDS: Final = 120.0
"""After that a round has failed."""
GOAL_SECONDS: Final = 10.0
POLL_SECONDS: Final = 0.02
SAMPLE_SECONDS: Final = 0.05
BARE_ROUNDS: Final = 3
BARE: Final = "import starlette.routing, uvicorn, nats, pydantic_settings, sqlalchemy.ext.asyncio, structlog"


@dataclass(frozen=True, kw_only=True)
class Round:
    """Seconds from the start of the command."""

    ready: float
    read: float
    accepted: float
    cpu: Mapping[str, float] = field(default_factory=dict[str, float])
    """Until it was ready, in CPU seconds, by process."""


@contextlib.contextmanager
def busy_loops() -> Generator[None]:
    """One per core, ended by their process ids."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@dataclass(frozen=True, kw_only=True)
class Bare:
    """An interpreter that imports the libraries of one service, and ends."""

    seconds: float
    cpu: float


def bare() -> Bare:
    """Runs it a few times, one after the other; the mean."""
    began, before = time.perf_counter(), os.times()
    for _ in range(BARE_ROUNDS):
        subprocess.run([sys.executable, "-c", BARE], check=True)
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return Bare(seconds=(time.perf_counter() - began) / BARE_ROUNDS, cpu=cpu / BARE_ROUNDS)


def one_round(
    began: float, http: httpx.Client, body: dict[str, Any], *, cpu: Callable[[], Mapping[str, float]]
) -> Round:
    """Wait for readiness, read, submit. `began` is of `time.perf_counter`."""
    _until(lambda: http.get("/readyz").status_code == OK)
    ready = time.perf_counter() - began
    used = cpu()
    _until(lambda: http.get("/api/v1/workloads").status_code == OK)
    read = time.perf_counter() - began
    _until(lambda: http.post("/api/v1/workloads/trainings", json=body).status_code == ACCEPTED)
    return Round(ready=ready, read=read, accepted=time.perf_counter() - began, cpu=used)


def tell(report: Report, what: str, rounds: list[Round], *, beside: Bare) -> None:
    """Print least, median and most of each."""
    for name, values in (
        ("/readyz is 200", sorted(each.ready for each in rounds)),
        ("a list answers", sorted(each.read for each in rounds)),
        ("a training is accepted", sorted(each.accepted for each in rounds)),
    ):
        median, goal = values[len(values) // 2], GOAL_SECONDS
        report.add(Figure(name=f"{what}, busy: until {name}, least", value=values[0], unit="s"))
        report.add(Figure(name="  median", value=median, unit="s", baseline=beside.seconds))
        report.add(Figure(name=f"  most of {len(values)}", value=values[-1], unit="s", goal=goal, at_most=True))
    for name in sorted({name for each in rounds for name in each.cpu}):
        values = sorted(each.cpu.get(name, 0.0) for each in rounds)
        baseline = beside.cpu if name == "all" else None
        median = values[len(values) // 2]
        report.add(Figure(name=f"{what}: CPU until ready, {name}", value=median, unit="s", baseline=baseline))


def run(report: Report, *, short: bool) -> None:
    """Print how soon it serves again."""
    rounds: list[Round] = []
    with tempfile.TemporaryDirectory(prefix="muster-bench-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        stack = Stack(Path(folder) / "up").start()
        try:
            api = stack.api()
            project, cluster = api.project(), api.cluster("local")
            headers = {"Authorization": api.http.headers["Authorization"]}
            with busy_loops(), httpx.Client(base_url=stack.url, headers=headers, timeout=2, trust_env=False) as http:
                beside = bare()
                for number in range(ROUNDS_SHORT if short else ROUNDS):
                    stack.kill_everything()
                    began = time.perf_counter()
                    with _Sampling(stack.launch()) as cpu:
                        body = training(f"again-{number}", project, cluster, command="true")
                        rounds.append(one_round(began, http, body, cpu=cpu.until_now))
                    stack.await_ready(READY_SECONDS)
        finally:
            stack.close()
    tell(report, "muster up after SIGKILL", rounds, beside=beside)


class _Sampling:
    """CPU seconds of a process tree by what its processes are; what ends between two samples counts up to the last."""

    def __init__(self, root: subprocess.Popen[str]) -> None:
        self._root = psutil.Process(root.pid)
        self._seen: dict[tuple[int, float], tuple[str, float]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def until_now(self) -> dict[str, float]:
        """By name, and `all`: that holds what the samples missed, too."""
        self._sample()
        own = self._root.cpu_times()
        living = sum(_used(child.cpu_times()) for child in self._root.children(recursive=True))
        found: defaultdict[str, float] = defaultdict(float)
        for name, used in list(self._seen.values()):
            found[name] += used
        return {**found, "all": _used(own) + living}

    def _follow(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS):
            self._sample()

    def _sample(self) -> None:
        with contextlib.suppress(psutil.Error):
            for process in [self._root, *self._root.children(recursive=True)]:
                with contextlib.suppress(psutil.Error):
                    times = process.cpu_times()
                    key = process.pid, process.create_time()
                    known = self._seen.get(key, ("", 0.0))[0]
                    # A zombie has no name any more.
                    name = "supervisor" if process == self._root else _name(process.cmdline()) or known
                    self._seen[key] = (name, times.user + times.system)


def _used(times: Any) -> float:
    """With the children that a process has waited for."""
    return times.user + times.system + times.children_user + times.children_system


def _name(command: list[str]) -> str:
    words = command or [""]
    if "-m" in words:
        module = words[words.index("-m") + 1 :]
        return " ".join(module[:2]) if module[0].endswith(".process") else module[0]
    return Path(words[0].split(" ", 1)[0].rstrip(":")).name


def _until(done: Callable[[], bool]) -> None:
    """Raises AssertionError where it does not come within READY_SECONDS."""
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.TransportError):
            if done():
                return
        time.sleep(POLL_SECONDS)
    raise AssertionError(f"not so after {READY_SECONDS:.0f} s")
