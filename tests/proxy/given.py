"""Workloads with addresses, as the deciders make them, and programs that answer in their place."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from events.cluster import AddCluster, ClusterKind
from events.commit import Commit
from events.ids import cluster_key
from events.refusal import Refusal
from events.workload.commands import PodFact, ReportPods
from events.workload.exposure import ProxyAddress, label_of, proxy_address
from events.workload.fields.connections import ExposedUrl
from events.workload.pod import PodAddress, PodRef, PortAddress
from events.workload.spec import ComputeSpec, TrainingSpec
from services.proxy.door import Door
from services.proxy.replicas import InTurn
from services.proxy.routes import Bounds, Routes
from services.proxy.sessions import Sessions
from services.runtime.identity.authentication import Identity, not_authenticated
from services.runtime.identity.identities import NEVER
from services.runtime.identity.member import Member
from tests.support.lives import CLUSTER_SYNC, FIRST, World

type Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

FOUND = proxy_address("http://apps.test:8083")
assert FOUND is not None
ADDRESS: ProxyAddress = FOUND
CONTAINER = 8888
PEOPLE = {
    "alice-token": Member(names=("alice", "Alice@example.com"), groups=("research",)),
    "bob-token": Member(names=("bob",), groups=("sales",)),
}


class Given:
    """A log, and the routes that follow it."""

    def __init__(self, kind: ClusterKind = "local", bounds: Bounds | None = None, routes: Routes | None = None) -> None:
        self.world = World()
        self.routes = Routes(bounds) if routes is None else routes
        self._read = 0
        self._devices = itertools.count()
        name = "local" if kind == "local" else "c"
        assert self.world.do("cluster", cluster_key(name), AddCluster(name=name, kind=kind)) is None
        self.cluster = self.world.state("cluster", cluster_key(name)).cluster_id
        self.project = self.world.project()
        self.node = self.world.node(self.cluster, "n1")

    def follow(self) -> None:
        for commit in self.world.commits[self._read :]:
            self.take(commit)
        self._read = len(self.world.commits)

    def take(self, commit: Commit) -> None:
        self.routes.apply(commit)

    def workload(self, name: str, *urls: ExposedUrl, **spec: Any) -> str:
        """The workload's key."""
        key = self.world.training(
            name,
            self.project,
            self.cluster,
            TrainingSpec(image="i", compute=ComputeSpec(), exposed_urls=urls or (url(),), **spec),
        )
        self.follow()
        return key

    def runs(
        self, key: str, port: int, host: str = "127.0.0.1", pod: PodRef = FIRST, container: int = CONTAINER
    ) -> None:
        """Its pod runs, and answers there."""
        self.world.place([(key, pod, self.node, next(self._devices))])
        address = PodAddress(host=host, ports=(PortAddress(container=container, port=port),))
        self.report(key, PodFact(pod=pod, kind="running", at=self.world.now, address=address))

    def report(self, key: str, fact: PodFact) -> None:
        command = ReportPods(workload_id=self.world.state("workload", key).workload_id, facts=(fact,))
        self.world.do("workload", key, command, CLUSTER_SYNC)
        self.follow()

    def host(self, key: str, index: int = 0) -> str:
        """Of the workload's address."""
        state = self.world.state("workload", key)
        return f"{label_of(state.spec.exposed_urls[index], state.name, state.workload_id)}.apps.test"


def url(container: int = CONTAINER, **more: Any) -> ExposedUrl:
    return ExposedUrl(container=container, **more)


@contextlib.asynccontextmanager
async def program(handler: Handler) -> AsyncGenerator[int]:
    """A program that listens on loopback; its port."""

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(one, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def head_of(reader: asyncio.StreamReader) -> bytes:
    return await reader.readuntil(b"\r\n\r\n")


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers with the head that it was sent."""
    head = await head_of(reader)
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(head), head))
    await writer.drain()


async def verify(token: str) -> Identity | Refusal:
    if token not in PEOPLE:
        return not_authenticated("nobody has this token")
    member = PEOPLE[token]
    return Identity(iss="muster", sub=member.names[0], expires_at=NEVER, member=member)


@contextlib.asynccontextmanager
async def proxy(given: Given, *, secret: str = "s" * 24, **limits: Any) -> AsyncGenerator[tuple[Door, int]]:
    """A proxy over those routes, and its port."""
    numbers: dict[str, Any] = {
        "session_seconds": 3600.0,
        "idle_seconds": 20.0,
        "most_bytes": 1024 * 1024,
        "most_connections": 100,
        "most_connections_per_address": 100,
        "address": ADDRESS,
        **limits,
    }
    most = numbers.pop("most", 50)
    door = Door(
        routes=given.routes,
        replicas=InTurn(given.routes, most=most),
        sessions=Sessions(secret),
        verify=numbers.pop("verify", verify),
        account_there=numbers.pop("account_there", lambda _: False),
        **numbers,
    )
    server = await asyncio.start_server(door.serve, "127.0.0.1", 0)
    try:
        yield door, server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tuple(door.open):
            task.cancel()
        await asyncio.gather(*door.open, return_exceptions=True)
