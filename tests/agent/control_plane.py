"""What stands on the other side of the agent: publishes WANTED and reads OBSERVED, on a real NATS."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg

from development.servers import EVERYTHING, NatsServer
from events.cluster import ClusterKind
from events.cluster_protocol import (
    LogsChunk,
    LogsRequest,
    LogsTaken,
    ObservedCluster,
    ObservedNode,
    ObservedPod,
    RunPod,
    SettledPod,
    StopPod,
    UsageReport,
    WantedCluster,
    WantedPod,
)
from events.simulated import packed
from events.subjects import agent_logs_subject, recipes_subject, usage_subject, wanted_cluster_subject, wanted_subject
from services.agent import service
from services.runtime.nats.connection import connect
from services.runtime.nats.inboxes import logs_inbox
from services.runtime.process.host import Health
from tests.agent.given import KEY, NODES, start_pod
from tests.support.recipes import answer_recipes

SECONDS = 60.0


class ControlPlane:
    def __init__(self, nc: Client, api: Client, cluster: str) -> None:
        self.nc = nc
        self._api = api
        self.cluster = cluster
        self.said: list[ObservedPod] = []
        self.nodes: dict[str, ObservedNode] = {}
        self.heartbeats: list[ObservedCluster] = []
        self.usage: list[UsageReport] = []
        self.news = asyncio.Event()
        self._recipes: dict[tuple[str, int], RunPod] = {}

    async def open(self) -> None:
        await self.nc.subscribe(f"obs.{self.cluster}.>", cb=self._on_observed)
        await self.nc.subscribe(usage_subject(self.cluster), cb=self._on_usage)
        await answer_recipes(self.nc, self._recipes, recipes_subject(self.cluster))
        await self.nc.flush()

    async def _on_observed(self, message: Msg) -> None:
        match message.subject.split(".")[2]:
            case "pod":
                self.said.append(msgspec.json.decode(message.data, type=ObservedPod))
            case "node":
                node = msgspec.json.decode(message.data, type=ObservedNode)
                self.nodes[node.name] = node
            case _:
                self.heartbeats.append(msgspec.json.decode(message.data, type=ObservedCluster))
        self.news.set()

    async def _on_usage(self, message: Msg) -> None:
        self.usage.append(msgspec.json.decode(message.data, type=UsageReport))
        self.news.set()

    async def want_cluster(self, kind: ClusterKind = "simulated", **more: Any) -> None:
        nodes = NODES if kind == "simulated" else ()
        fields: dict[str, Any] = {"cluster_id": self.cluster, "name": self.cluster, "kind": kind}
        fields |= {"packed_nodes": packed(more.pop("simulated_nodes", nodes)), **more}
        wanted = WantedCluster(**fields)
        await self.nc.jetstream().publish(wanted_cluster_subject(self.cluster), msgspec.json.encode(wanted))

    async def want(self, *pods: RunPod | StopPod | SettledPod) -> None:
        for wanted in pods:
            pod: WantedPod
            if isinstance(wanted, RunPod):
                self._recipes[wanted.pod_key, wanted.token] = wanted
                pod = start_pod(wanted)
            else:
                pod = wanted
            await self.nc.jetstream().publish(wanted_subject(self.cluster, pod.pod_key), msgspec.json.encode(pod))

    async def until(self, condition: Callable[[], bool], *, seconds: float = SECONDS) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                self.news.clear()
                await self.news.wait()

    async def until_still(self, count: Callable[[], int], *, seconds: float) -> None:
        """Until this has not grown for so long: what was on its way may come late."""
        async with asyncio.timeout(SECONDS):
            before = -1
            while before != (before := count()):
                await asyncio.sleep(seconds)

    def newest(self, key: str = KEY) -> ObservedPod | None:
        return next((pod for pod in reversed(self.said) if pod.pod_key == key), None)

    async def until_pod(self, kind: str, token: int = 1, *, key: str = KEY, seconds: float = SECONDS) -> ObservedPod:
        def there() -> bool:
            newest = self.newest(key)
            return newest is not None and (newest.kind, newest.token) == (kind, token)

        await self.until(there, seconds=seconds)
        newest = self.newest(key)
        assert newest is not None
        return newest

    def waiting_chunks(self) -> int:
        """Chunks that came and were not taken, of the newest request for logs."""
        return self._log_chunks.pending_msgs

    async def logs(self, request: LogsRequest) -> AsyncGenerator[LogsChunk]:
        """As the api asks: the agent may answer nobody else."""
        inbox = f"{logs_inbox(self.cluster)}.{uuid4().hex}"
        subscription = self._log_chunks = await self._api.subscribe(inbox)
        try:
            await self._api.publish(agent_logs_subject(self.cluster), msgspec.json.encode(request), reply=inbox)
            while True:
                message = await subscription.next_msg(timeout=SECONDS)
                chunk = msgspec.json.decode(message.data, type=LogsChunk)
                yield chunk
                taken = msgspec.json.encode(LogsTaken(inbox=inbox))
                await self._api.publish(agent_logs_subject(self.cluster), taken)
                if chunk.end:
                    return
        finally:
            await subscription.unsubscribe()


@asynccontextmanager
async def control_plane(server: NatsServer, cluster: str) -> AsyncGenerator[ControlPlane]:
    nc = await connect(server.settings(EVERYTHING), EVERYTHING)
    api = await connect(server.settings("api"), "api")
    plane = ControlPlane(nc, api, cluster)
    await plane.open()
    try:
        yield plane
    finally:
        await nc.close()
        await api.close()


class RunningService:
    """The agent service in this event loop, with its own credentials."""

    def __init__(self, server: NatsServer, data_dir: Path, **more: object) -> None:
        self._settings = server.settings("agent", data_dir=data_dir, local_gpus=2, **more)
        self._stop = asyncio.Event()
        self.health = Health("agent")
        self.task = asyncio.create_task(service.run(self._settings, self.health, self._stop))

    async def stop(self) -> None:
        """As `muster up` stops it."""
        self._stop.set()
        async with asyncio.timeout(SECONDS):
            await self.task

    async def break_down(self) -> None:
        """As a failure of the process does: nobody is told, nothing is cleaned up beyond sockets."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@asynccontextmanager
async def running_service(server: NatsServer, data_dir: Path, **more: object) -> AsyncGenerator[RunningService]:
    running = RunningService(server, data_dir, **more)
    try:
        yield running
    finally:
        if not running.task.done():
            await running.stop()
