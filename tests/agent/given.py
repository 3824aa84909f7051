"""Runs, machines and backends that the agent's tests start from."""

import asyncio
import heapq
import itertools
import os
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from events.cluster_protocol import LogsRequest, ObservedPod, RunPod, SettledPod, StartPod, StopPod, UsageSample
from events.simulated import SimulatedNodes
from events.workload.commands import PodFactKind
from events.workload.pod import PodRef
from services.agent.backends.interface import Backend
from services.agent.backends.local.backend import LocalBackend
from services.agent.backends.local.environment import LocalMachine
from services.agent.backends.local.run_folder import Isolation
from services.agent.backends.simulated import SimulatedBackend
from services.agent.clock import RealClock

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
CLUSTER = f"c{os.getpid()}"
"""Of this process alone: whatever on this machine carries the mark of a run, its cluster's agent finds, and kills."""
KEY = "abcdefghijkl-main-0"
WORKLOAD = "w-1"
GIB = 1024**3
NODES = (
    SimulatedNodes(names=("n1", "n2"), cpu_milli=8000, memory_bytes=32 * GIB, gpu_count=2, gpu_memory_bytes=80 * GIB),
)
PYTHON = sys.executable


def ref(*, attempt: int = 1, try_: int = 0, index: int = 0) -> PodRef:
    return PodRef(pod_set="main", index=index, attempt=attempt, try_=try_)


def run_pod(token: int = 1, **more: Any) -> RunPod:
    fields: dict[str, Any] = {
        "pod_key": KEY,
        "token": token,
        "workload_id": WORKLOAD,
        "workload_name": "train",
        "project_id": "p1",
        "pod": ref(try_=token),
        "node_name": "n1",
        "image": "python:3.13",
        "grace_seconds": 5,
    }
    return RunPod(**(fields | more))


def start_pod(pod: RunPod) -> StartPod:
    """What WANTED says of the run with this recipe."""
    return StartPod(
        pod_key=pod.pod_key,
        token=pod.token,
        workload_id=pod.workload_id,
        pod=pod.pod,
        node_name=pod.node_name,
        devices=pod.devices,
    )


def stop_pod(token: int = 1, *, grace_seconds: int = 5, key: str = KEY) -> StopPod:
    return StopPod(
        pod_key=key,
        token=token,
        workload_id=WORKLOAD,
        pod=ref(try_=token),
        grace_seconds=grace_seconds,
        reason="suspended",
    )


def settled(token: int = 1, *, key: str = KEY) -> SettledPod:
    return SettledPod(pod_key=key, token=token)


def seen(kind: PodFactKind, token: int = 1, *, key: str = KEY) -> ObservedPod:
    return ObservedPod(pod_key=key, token=token, workload_id=WORKLOAD, pod=ref(try_=token), kind=kind, at=NOW)


def machine(folder: Path, **more: Any) -> LocalMachine:
    """Its data is in `folder`, and its pods do not see that."""
    fields: dict[str, Any] = {
        "data_dir": folder,
        "cluster_id": CLUSTER,
        "cpu_milli": 2000,
        "memory_bytes": 4 * GIB,
        "stand_in_gpus": 2,
        "path": "/usr/local/bin:/usr/bin:/bin",
        "home": "/",
        "log_max_bytes": 1024 * 1024,
        "log_retention_seconds": 3600.0,
        "logs_total_max_bytes": 100 * 1024 * 1024,
        "isolation": Isolation(hidden=(str(folder),)),
    }
    return LocalMachine(**(fields | more))


class NoCode:
    """Where no code was ever sent."""

    async def bring(self, cluster_id: str, pod: RunPod, folder: Path) -> str:
        return f"its code cannot be used: code {pod.code[:12]} is no longer stored; submit the workload again"


class VirtualClock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._waiting: list[tuple[float, int, asyncio.Event]] = []
        self._count = itertools.count()

    def now(self) -> datetime:
        return NOW + timedelta(seconds=self._seconds)

    def monotonic(self) -> float:
        return self._seconds

    async def wait(self, event: asyncio.Event, seconds: float | None) -> None:
        if seconds is not None:
            heapq.heappush(self._waiting, (self._seconds + seconds, next(self._count), event))
        await event.wait()

    async def advance(self, seconds: float) -> None:
        """Move on step by step, letting everybody who waited do what they waited for."""
        end = self._seconds + seconds
        while self._waiting and self._waiting[0][0] <= end:
            self._seconds, _, event = heapq.heappop(self._waiting)
            event.set()
            for _ in range(5):
                await asyncio.sleep(0)
        self._seconds = end


class Watched:
    """A backend with a reader of its watch, and what it saw, by pod key and token."""

    def __init__(self, backend: Backend, kind: str, node: str, *, real: bool = False) -> None:
        self.backend = backend
        self.kind = kind
        self.node = node
        self.real = real
        """Whether its devices are real ones, and it pulls images."""
        self.run: dict[str, Any] = {}
        """Fields of every run on this cluster."""
        self.history: dict[tuple[str, int], list[ObservedPod]] = {}
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for batch in self.backend.watch():
            for observation in batch:
                if isinstance(observation, ObservedPod):
                    self.history.setdefault((observation.pod_key, observation.token), []).append(observation)
            self._news.set()

    def newest(self, token: int = 1, key: str = KEY) -> ObservedPod | None:
        seen = self.history.get((key, token))
        return seen[-1] if seen else None

    async def until(self, *kinds: PodFactKind, token: int = 1, key: str = KEY, seconds: float = 60) -> ObservedPod:
        async with asyncio.timeout(seconds):
            while (newest := self.newest(token, key)) is None or newest.kind not in kinds:
                self._news.clear()
                await self._news.wait()
        return newest

    def pod(self, token: int = 1, *, seconds: float = 60, exit_code: int = 0, stubborn: bool = False, **more: Any):
        """A run that takes so long and ends so, in the backend's own way."""
        annotations = {
            "simulation.muster.dev/runtime-seconds": str(seconds),
            "simulation.muster.dev/exit-code": str(exit_code),
        }
        if stubborn:
            annotations["simulation.muster.dev/ignore-term"] = "true"
        trap = "trap '' TERM; " if stubborn else ""
        script = f"{trap}echo hello; sleep {seconds}; sleep 0; exit {exit_code}"
        if stubborn:
            script = f"{trap}echo hello; while :; do sleep 0.05; done"
        fields: dict[str, Any] = {
            "node_name": self.node,
            "annotations": annotations,
            "arguments": ("/bin/sh", "-c", script),
        }
        return run_pod(token, **(fields | self.run | more))

    async def measured(self) -> list[UsageSample]:
        """What the running pods use, once it has been measured."""
        async with asyncio.timeout(60):
            while not (samples := list(await self.backend.usage())) or not all(one.memory_bytes for one in samples):
                await asyncio.sleep(0.05)
        return samples

    async def ignores_term(self) -> None:
        """Until a stubborn pod that runs has come so far: a real process begins by saying so, and may be slow to."""
        if self.kind == "local":
            async with asyncio.timeout(60):
                while "hello" not in await log_text(self.backend):
                    await asyncio.sleep(0.02)

    async def look_away(self) -> None:
        """Nothing is heard of the cluster any more."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def close(self) -> None:
        await self.look_away()
        await self.backend.interrupt(2)
        await self.backend.close()


async def open_local(folder: Path, **more: Any) -> Watched:
    backend = await LocalBackend(machine(folder, **more), NoCode()).open()
    node = (await backend.list_all()).nodes[0].name
    return Watched(backend, "local", node)


async def open_simulated(_folder: Path) -> Watched:
    return Watched(SimulatedBackend(NODES, RealClock()), "simulated", "n1")


OPENERS: dict[str, Callable[[Path], Awaitable[Watched]]] = {"local": open_local, "simulated": open_simulated}


async def log_text(backend: Backend, **more: Any) -> list[str]:
    fields: dict[str, Any] = {"workload_id": WORKLOAD, "pod_key": KEY}
    return [line.text async for lines in backend.logs(LogsRequest(**(fields | more))) for line in lines]
