"""The runs that this machine has, and what is told of them."""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from events.cluster_protocol import ObservedPod, RunPod
from events.workload.pod import PortAddress
from services.agent.backends.interface import LIVE_KINDS, Observation
from services.agent.backends.local.mpi import TEMPORARY
from services.agent.backends.local.run_folder import RunFolder

WORK: Final = "work"
HOME: Final = "home"
"""Folders of a run."""


class Run(msgspec.Struct, kw_only=True):
    pod: RunPod
    folder: RunFolder
    seen: ObservedPod
    pid_fd: int | None = None
    """Of the shim; None once it is gone."""
    shim_pid: int = 0
    devices: dict[int, str] = {}
    """Names of the devices that it holds, by their number on this node."""
    ports: tuple[PortAddress, ...] = ()
    """Those that it has of this machine."""
    status_fd: int | None = None
    refused: bool = False
    """Whether it is never started."""
    asking: asyncio.Task[None] | None = None
    """Asks whether it is ready."""
    force: asyncio.TimerHandle | None = None

    @property
    def live(self) -> bool:
        return self.seen.kind in LIVE_KINDS


class Runs:
    """All that were started here and are not forgotten, by key and token of their pod."""

    def __init__(self) -> None:
        self.by_key: dict[tuple[str, int], Run] = {}
        self.news: asyncio.Queue[Observation] = asyncio.Queue()
        """What is seen of them, until it is fetched."""
        self._tasks: set[asyncio.Task[None]] = set()

    def all(self) -> Iterable[Run]:
        return self.by_key.values()

    def of(self, pod_key: str, up_to: int) -> Sequence[Run]:
        return [run for (key, token), run in self.by_key.items() if key == pod_key and token <= up_to]

    def lives(self, workload_id: str) -> bool:
        return any(run.live and run.pod.workload_id == workload_id for run in self.all())

    def tell(self, run: Run) -> None:
        self.news.put_nowait(run.seen)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Have this done beside; it is cancelled when the agent goes."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def own_folders(pod: RunPod) -> tuple[str, ...]:
    """Of a run: where it starts, its home where it has one of its own, and what MPI needs."""
    return (WORK, *((HOME,) if pod.container.home else ()), *((TEMPORARY,) if pod.mpi is not None else ()))


def now() -> datetime:
    return datetime.now(UTC)
