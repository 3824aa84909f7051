"""Runs one agent for every cluster that this process serves, as `want.<cluster>.cluster` says."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
import structlog
from nats.aio.client import Client

from events.cluster import ClusterKind
from events.cluster_protocol import WantedCluster
from events.codec import UNDECODABLE
from services.agent.agent import LIST_AGAIN_SECONDS, Agent
from services.agent.backends.interface import Backend, BackendError
from services.agent.last_values import Lost, follow_last

FIRST_RETRY_SECONDS: Final = 1.0
LAST_RETRY_SECONDS: Final = 30.0

log = structlog.get_logger(__name__)

OpenBackend = Callable[[WantedCluster], Awaitable[Backend]]


class _Served:
    """One cluster's agent, as a task with a stop of its own."""

    def __init__(self, cluster: WantedCluster) -> None:
        self.cluster = cluster
        self.stop = asyncio.Event()
        self.task: asyncio.Task[None] | None = None


class AgentHost:
    def __init__(
        self,
        nc: Client,
        backends: dict[ClusterKind, OpenBackend],
        *,
        version: str,
        cluster_id: str = "*",
        list_again_seconds: float = LIST_AGAIN_SECONDS,
    ) -> None:
        """Every cluster of a kind that there is a backend for, or of those only the named one."""
        self._nc = nc
        self._backends = backends
        self._followed = f"want.{cluster_id}.cluster"
        self._version = version
        self._list_again_seconds = list_again_seconds
        self._served: dict[str, _Served] = {}

    async def run(self, stop: asyncio.Event, ready: Callable[[], None]) -> None:
        """Work until `stop` is set, then end all agents as they need. `ready` is called at the first picture."""
        following = asyncio.create_task(self._follow(ready))
        stopping = asyncio.create_task(stop.wait())
        try:
            while not stop.is_set():
                agents = [served.task for served in self._served.values() if served.task is not None]
                changed = asyncio.create_task(asyncio.sleep(1.0))
                done, _ = await asyncio.wait(
                    [following, stopping, changed, *agents], return_when=asyncio.FIRST_COMPLETED
                )
                changed.cancel()
                for task in done - {changed}:
                    task.result()
        finally:
            following.cancel()
            stopping.cancel()
            await asyncio.gather(following, stopping, return_exceptions=True)
            await self._end_all(gracefully=stop.is_set())

    async def _end_all(self, *, gracefully: bool) -> None:
        tasks = [served.task for served in self._served.values() if served.task is not None]
        for served in self._served.values():
            if gracefully:
                served.stop.set()
            elif served.task is not None:
                # Something broke: the pods live on, and the next agent finds them.
                served.task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, ready: Callable[[], None]) -> None:
        async for news in follow_last(self._nc, self._followed):
            if isinstance(news, Lost):
                continue
            # A cluster that is missing from a picture is not gone: the stream may have been wiped a moment ago.
            for data in news.values.values():
                await self._take(data)
            ready()

    async def _take(self, data: bytes) -> None:
        try:
            cluster = msgspec.json.decode(data, type=WantedCluster)
        except UNDECODABLE as error:
            log.warning("wanted_cluster_unreadable", error=str(error))
            return
        served = self._served.get(cluster.cluster_id)
        if served is not None and served.cluster != cluster:
            await self._leave(served)
            served = None
        if served is None and not cluster.removed and cluster.kind in self._backends:
            served = self._served[cluster.cluster_id] = _Served(cluster)
            served.task = asyncio.create_task(self._serve(served))

    async def _leave(self, served: _Served) -> None:
        log.info("cluster_left", cluster=served.cluster.name)
        del self._served[served.cluster.cluster_id]
        served.stop.set()
        if served.task is not None:
            await served.task

    async def _serve(self, served: _Served) -> None:
        cluster = served.cluster
        open_backend = self._backends[cluster.kind]
        wait = FIRST_RETRY_SECONDS
        while not served.stop.is_set():
            try:
                backend = await open_backend(cluster)
            except (BackendError, OSError) as error:
                await _pause(cluster, error, wait, served.stop)
                wait = min(wait * 2, LAST_RETRY_SECONDS)
                continue
            log.info("cluster_served", cluster=cluster.name, kind=cluster.kind)
            try:
                agent = Agent(
                    cluster,
                    backend,
                    self._nc,
                    version=self._version,
                    list_again_seconds=self._list_again_seconds,
                )
                await agent.run(served.stop)
            except BackendError as error:
                await _pause(cluster, error, wait, served.stop)
                wait = min(wait * 2, LAST_RETRY_SECONDS)
            finally:
                await backend.close()


async def _pause(cluster: WantedCluster, error: Exception, seconds: float, stop: asyncio.Event) -> None:
    log.error("cluster_not_reached", cluster=cluster.name, reason=str(error), again_seconds=seconds)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()
