"""Runs one agent for every cluster that this process serves, as `want.<cluster>.cluster` says, and tells each what is
wanted of it.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import msgspec
import structlog
from nats.aio.client import Client
from nats.errors import Error as NatsError

from events.cluster import ClusterKind
from events.cluster_protocol import WantedCluster
from events.codec import UNDECODABLE
from events.subjects import ALL_WANTED, WANTED_STREAM, wanted_filter
from services.agent.agent import LIST_AGAIN_SECONDS, Agent
from services.agent.backends.interface import Backend, BackendError
from services.agent.wanted import Changed, Lost, Wanted, Whole, by_cluster, follow
from services.runtime.log.latest import Latest
from services.runtime.nats.requests import Requests

FIRST_RETRY_SECONDS: Final = 1.0
LAST_RETRY_SECONDS: Final = 30.0

log = structlog.get_logger(__name__)

OpenBackend = Callable[[WantedCluster], Awaitable[Backend]]


class _Served:
    """One cluster's agent, as a task with a stop of its own."""

    def __init__(self, cluster: WantedCluster) -> None:
        self.cluster = cluster
        self.wanted = Wanted()
        self.stop = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.backend: Backend | None = None
        """While it is open."""
        self.turned = asyncio.Event()
        """Set when it was cut off, or is no longer."""

    def follows(self, cluster: WantedCluster) -> bool:
        """Whether its agent goes on with another configuration."""
        if cluster.removed or self.backend is None or not self.backend.follow(cluster):
            return False
        if cluster.cut_off != self.cluster.cut_off:
            self.turned.set()
        self.cluster = cluster
        return True


class AgentHost:
    def __init__(
        self,
        nc: Client,
        backends: dict[ClusterKind, OpenBackend],
        *,
        version: str,
        cluster_id: str = "",
        list_again_seconds: float = LIST_AGAIN_SECONDS,
    ) -> None:
        """Every cluster of a kind that there is a backend for, or of those only the named one."""
        self._nc = nc
        self._backends = backends
        followed = wanted_filter(cluster_id) if cluster_id else ALL_WANTED
        self._reader = Latest(nc, Requests(nc), WANTED_STREAM, followed, held_to_filter=True)
        self._version = version
        self._list_again_seconds = list_again_seconds
        self._served: dict[str, _Served] = {}
        self._left: set[asyncio.Task[None]] = set()
        """Agents that are ending."""

    async def run(self, stop: asyncio.Event, ready: Callable[[], None]) -> None:
        """Work until `stop` is set, then end all agents as they need. `ready` is called at the first picture."""
        following = asyncio.create_task(self._follow(ready))
        stopping = asyncio.create_task(stop.wait())
        try:
            while not stop.is_set():
                changed = asyncio.create_task(asyncio.sleep(1.0))
                done, _ = await asyncio.wait(
                    [following, stopping, changed, *self._tasks()], return_when=asyncio.FIRST_COMPLETED
                )
                changed.cancel()
                self._left -= done
                for task in done - {changed}:
                    task.result()
        finally:
            following.cancel()
            stopping.cancel()
            await asyncio.gather(following, stopping, return_exceptions=True)
            await self._end_all(gracefully=stop.is_set())

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [*self._left, *(served.task for served in self._served.values() if served.task is not None)]

    async def _end_all(self, *, gracefully: bool) -> None:
        tasks = self._tasks()
        for served in self._served.values():
            if gracefully:
                served.stop.set()
            elif served.task is not None:
                # Something broke: the pods live on, and the next agent finds them.
                served.task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, ready: Callable[[], None]) -> None:
        async for news in follow(self._reader):
            if isinstance(news, Lost):
                for served in self._served.values():
                    served.wanted.put(news)
                continue
            # A cluster that is missing from a picture is not gone: the stream may have been wiped a moment ago.
            clusters, pods = by_cluster(news.values)
            for data in clusters:
                self._take(data)
            for cluster_id, served in self._served.items():
                if isinstance(news, Whole):
                    served.wanted.put(Whole(pods.get(cluster_id, {})))
                elif cluster_id in pods:
                    served.wanted.put(Changed(pods[cluster_id]))
                if not served.wanted.begun:
                    self._reader.again()
            ready()

    def _take(self, data: bytes) -> None:
        try:
            cluster = msgspec.json.decode(data, type=WantedCluster)
        except UNDECODABLE as error:
            log.warning("wanted_cluster_unreadable", error=str(error))
            return
        served, before = self._served.get(cluster.cluster_id), None
        if served is not None and served.cluster != cluster and not served.follows(cluster):
            before, served = self._leave(served), None
        if served is None and not cluster.removed and cluster.kind in self._backends:
            served = self._served[cluster.cluster_id] = _Served(cluster)
            served.task = asyncio.create_task(self._serve(served, before))

    def _leave(self, served: _Served) -> asyncio.Task[None] | None:
        """Its agent ends by itself, and nobody else waits for it."""
        log.info("cluster_left", cluster=served.cluster.name)
        del self._served[served.cluster.cluster_id]
        served.stop.set()
        if served.task is not None:
            self._left.add(served.task)
        return served.task

    async def _serve(self, served: _Served, before: asyncio.Task[None] | None) -> None:
        """`before`: its agent of another configuration, which ends first."""
        if before is not None:
            await asyncio.wait([before])
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
            served.backend = backend
            try:
                await self._work(served, backend)
            except BackendError as error:
                await _pause(cluster, error, wait, served.stop)
                wait = min(wait * 2, LAST_RETRY_SECONDS)
                self._reader.again()  # the next one knows nothing of what this one took
            except (NatsError, OSError):
                raise  # what all clusters have in common
            except Exception as error:  # a fault with one cluster is no reason to leave all others
                log.exception("cluster_broke", cluster=cluster.name)
                await _pause(cluster, error, wait, served.stop)
                wait = min(wait * 2, LAST_RETRY_SECONDS)
                self._reader.again()
            finally:
                served.backend = None
                await backend.close()

    async def _work(self, served: _Served, backend: Backend) -> None:
        """Its agent, until it is asked to stop. Where the cluster is cut off there is none: the cluster goes on alone,
        and a new agent finds what became of it, as one that was killed and started again.
        """
        first = True
        while not served.stop.is_set():
            served.turned.clear()
            if not first and not served.cluster.cut_off:
                self._reader.again()  # what is wanted was told to another one, or to none
            first = False
            if served.cluster.cut_off:
                log.info("cluster_cut_off", cluster=served.cluster.name)
                await _until(served.turned, _until(served.stop, _unheard(backend)))
                continue
            agent = Agent(
                served.cluster,
                backend,
                self._nc,
                served.wanted,
                version=self._version,
                list_again_seconds=self._list_again_seconds,
            )
            # Cut short without last words: whoever is cut off has none.
            await _until(served.turned, agent.run(served.stop))


async def _until(event: asyncio.Event, part: Coroutine[Any, Any, None]) -> None:
    """Until it ends, or is cut short once that is set: without last words. Raises what it raises."""
    working, waiting = asyncio.create_task(part), asyncio.create_task(event.wait())
    try:
        done, _ = await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if working in done:
            working.result()
    finally:
        for task in (working, waiting):
            task.cancel()
        await asyncio.gather(working, waiting, return_exceptions=True)


async def _unheard(backend: Backend) -> None:
    """The cluster goes on alone."""
    async for _ in backend.watch():
        pass


async def _pause(cluster: WantedCluster, error: Exception, seconds: float, stop: asyncio.Event) -> None:
    log.error("cluster_not_reached", cluster=cluster.name, reason=str(error), again_seconds=seconds)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()
