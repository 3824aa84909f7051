"""The scheduler, cluster_sync and the agent of a simulated cluster on one server, which can be lost and restored.

The agent lives through it, with all that it has seen: runs of commits that were lost, and fences above tokens that are
given out again.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

from development.checker.log import check
from development.checker.reading import read_log
from development.commands import RunningService, carry_out
from development.servers import NatsServer
from events.aggregate import WORKLOAD
from events.cluster import AddCluster
from events.cluster_protocol import WantedCluster
from events.ids import cluster_key, incarnation_id, project_key, workload_key
from events.phases import Phase, PodPhase
from events.project import CreateProject
from events.simulated import SimulatedNodes
from events.workload.commands import CreateWorkload
from events.workload.fields.compute import ComputeSpec
from events.workload.fields.metadata import Annotation
from events.workload.spec import TrainingSpec
from services.agent.backends.interface import Backend
from services.agent.backends.simulated import RUNTIME_ANNOTATION, SimulatedBackend
from services.agent.clock import RealClock
from services.agent.host import AgentHost
from services.cluster_sync.service import run as cluster_sync
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.nats.connection import connect
from services.runtime.nats.streams import create_streams
from services.scheduler.service import run as scheduler
from tests.backup.given import connected, restored

SECONDS = 60.0
CLUSTER_ID, PROJECT_ID = incarnation_id(cluster_key("c"), "add"), incarnation_id(project_key("p"), "make")
NODES = SimulatedNodes(
    names=("n0", "n1"), cpu_milli=64_000, memory_bytes=2**36, gpu_count=4, gpu_model="x", gpu_memory_bytes=2**30
)


class World:
    """The services, which come and go with their server, and one agent, which stays."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = NatsServer(folder / "first")
        self.backend = SimulatedBackend((NODES,), RealClock())
        self.services: list[RunningService] = []
        self.twice: set[str] = set()
        """Pods of which two runs were alive at once."""
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        self.server.start()
        async with connected(self.server) as nc:
            await create_streams(nc, 1)
            store = JetStreamEventStore(nc)
            await carry_out(store, "add", AddCluster(name="c", kind="simulated", simulated_nodes=(NODES,)))
            await carry_out(store, "make", CreateProject(name="p"))
        await self.serve()
        self._tasks = [asyncio.create_task(self._agent()), asyncio.create_task(self._watch())]

    async def serve(self) -> None:
        self.services = [
            RunningService(run, self.server.settings(name), name)
            for name, run in (("cluster_sync", cluster_sync), ("scheduler", scheduler))
        ]

    async def end(self) -> None:
        self._stop.set()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(service.kill() for service in self.services), return_exceptions=True)
        self.server.stop()

    async def lose(self, backup: Path) -> None:
        """Everything but the agent dies; another server has the same address, and what the backup has."""
        lost = self.server
        lost.kill()
        await asyncio.gather(*(service.kill() for service in self.services), return_exceptions=True)
        self.server = NatsServer(self.folder / uuid4().hex, passwords=lost.passwords)
        self.server.port = lost.port
        self.server.configure(self.server._rendered())
        self.server.start()
        await restored(self.server, backup)
        async with connected(self.server) as nc:
            await create_streams(nc, 1)
        await self.serve()

    async def _agent(self) -> None:
        async def opened(_: WantedCluster) -> Backend:
            return self.backend

        nc = await connect(self.server.settings("agent"), "agent")
        try:
            await AgentHost(nc, {"simulated": opened}, version="t", list_again_seconds=2).run(self._stop, lambda: None)
        finally:
            await nc.close()

    async def _watch(self) -> None:
        while not self._stop.is_set():
            live = self.live()
            self.twice |= {key for key, _ in live if sum(key == other for other, _ in live) > 1}
            await asyncio.sleep(0.005)

    def live(self) -> list[tuple[str, int]]:
        return [key for key, run in self.backend._runs.items() if run.live]

    async def submit(self, name: str, seconds: float = 600) -> str:
        spec = TrainingSpec(
            image="i",
            command="true",
            compute=ComputeSpec(gpu_devices_request=1),
            annotations=(Annotation(name=RUNTIME_ANNOTATION, value=str(seconds)),),
        )
        command = CreateWorkload(
            kind="Training", name=name, requested_name=name, project_id=PROJECT_ID, cluster_id=CLUSTER_ID, spec=spec
        )
        async with connected(self.server) as nc:
            await carry_out(JetStreamEventStore(nc), f"create {name} {uuid4()}", command)
        return workload_key(PROJECT_ID, name)

    async def do(self, command: object) -> None:
        async with connected(self.server) as nc:
            for _ in range(20):
                try:
                    await carry_out(JetStreamEventStore(nc), str(uuid4()), command)  # pyright: ignore[reportArgumentType]
                except AssertionError:
                    await asyncio.sleep(0.05)  # another one was first
                else:
                    return
        raise AssertionError(f"{command} is never carried out")

    async def try_to(self, key: str, command: type[Any]) -> None:
        """As a person does who may be too late."""
        async with connected(self.server) as nc:
            store = JetStreamEventStore(nc)
            state = (await store.load(WORKLOAD, key)).state
            with contextlib.suppress(AssertionError):  # refused, or another one was first
                await carry_out(store, str(uuid4()), command(workload_id=state.workload_id))

    async def known(self, keys: list[str]) -> list[str]:
        """Those of which the log knows."""
        async with connected(self.server) as nc:
            store = JetStreamEventStore(nc)
            return [key for key in keys if (await store.load(WORKLOAD, key)).version]

    async def settled(self, keys: list[str], phases: set[Phase]) -> None:
        """Until all of them are deleted or in one of these phases, and nothing lives in the cluster."""

        async def so(store: JetStreamEventStore) -> bool:
            states = [(await store.load(WORKLOAD, key)).state for key in keys]
            return not self.live() and all(not state.living or state.phase in phases for state in states)

        await self.until(so)

    async def until(self, condition: Callable[[JetStreamEventStore], Awaitable[bool]]) -> None:
        async with asyncio.timeout(SECONDS), connected(self.server) as nc:
            store = JetStreamEventStore(nc)
            while not await condition(store):
                for service in self.services:
                    assert not service.ended
                await asyncio.sleep(0.05)

    async def running(self, *keys: str) -> None:
        """Until the log says that all of them run, and exactly these runs live in the cluster."""

        async def so(store: JetStreamEventStore) -> bool:
            tokens = set[tuple[str, int]]()
            for key in keys:
                pods = (await store.load(WORKLOAD, key)).state.pods
                tokens |= {
                    (f"{key}-{name}-{index}", pod.token)
                    for (name, index), pod in pods.live.items()
                    if pod.phase is PodPhase.RUNNING
                }
            return len(tokens) == len(keys) and tokens == set(self.live())

        await self.until(so)

    async def ids(self, key: str) -> str:
        async with connected(self.server) as nc:
            return (await JetStreamEventStore(nc).load(WORKLOAD, key)).state.workload_id

    async def violations(self) -> list[str]:
        async with connected(self.server) as nc:
            return check(await read_log(nc), stand_ins=True).violations
