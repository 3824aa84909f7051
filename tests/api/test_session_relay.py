"""Bounds of what goes through a session between a client, an api and an agent: who stands still holds up whoever sends
to them and nobody else, and costs a bounded amount; how many a person has; and that one which is not used ends.

The api and the agent's part are real, over a real NATS. What stands for the pod is written here.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

from development.servers import EVERYTHING, NatsServer, PostgresServer
from events.channels import FRAME_BYTES, STATUS, STDIN, STDOUT, SUBPROTOCOL
from events.cluster_protocol import SessionOpen
from services.agent.backends.interface import Backend, Way, WayEnd
from services.agent.sessions import SessionServer
from services.api import service
from services.runtime.nats.connection import connect as connect_nats
from tests.api.test_one_moment import SPEC, happens, placed, seen
from tests.support.api import Served, serving

pytestmark = pytest.mark.anyio
V1 = "/api/v1"
IDLE_SECONDS, STALLED_SECONDS = 4.0, 3.0
PER_USER = 2
MOST_HELD_BYTES = 32 * 2**20
"""Of one session, on all its ways: what buffers of the kernel hold, and a few frames."""


@pytest.fixture(scope="module")
def served(
    nats_server: NatsServer, postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    limits = {"sessions_per_user": PER_USER, "session_idle_minutes": IDLE_SECONDS / 60}
    limits |= {"http_max_stalled_seconds": STALLED_SECONDS}
    with pytest.MonkeyPatch.context() as patch:
        # By these the api sees that a client is gone from which it reads nothing, since nobody can take it.
        patch.setattr(service, "PING_SECONDS", 1.0)
        with serving(nats_server, postgres_server, tmp_path_factory.mktemp("relay"), **limits) as running:
            yield running


@pytest.fixture(scope="module")
def workload(served: Served, nats_server: NatsServer) -> str:
    """Of alice, with a pod that runs."""
    with served.client("alice") as alice:
        id_ = alice.post(f"{V1}/workloads/trainings", json=served.training(spec=SPEC)).json()["workloadId"]
    happens(nats_server, id_, placed(id_))
    happens(nats_server, id_, seen(id_, "running", 1))
    return id_


class Pod:
    """What a command does: `floods` writes without end, `deaf` reads nothing, any other gives back what it reads."""

    def __init__(self, request: SessionOpen) -> None:
        self.does = request.command[0]
        self.written = 0
        self.taken = 0
        self._echo: asyncio.Queue[bytes] = asyncio.Queue(1)

    async def frames(self) -> AsyncIterator[bytes]:
        while True:
            if self.does == "floods":
                self.written += 1
                yield bytes((STDOUT,)) + b"o" * (FRAME_BYTES - 1)
            else:
                yield bytes((STDOUT,)) + (await self._echo.get())

    async def take(self, frame: bytes) -> None:
        if self.does == "deaf":
            await asyncio.Event().wait()
        self.taken += 1
        await self._echo.put(frame[1:])

    def end(self) -> WayEnd:
        return WayEnd()

    async def close(self) -> None:
        pass


class Pods:
    """As much of a backend as sessions need."""

    def __init__(self) -> None:
        self.opened: list[Pod] = []

    def standby(self) -> str:
        return ""

    async def open_way(self, request: SessionOpen) -> Way:
        self.opened.append(Pod(request))
        return self.opened[-1]


@asynccontextmanager
async def agent(served: Served, nats_server: NatsServer) -> AsyncGenerator[Pods]:
    nc = await connect_nats(nats_server.settings(EVERYTHING), EVERYTHING)
    pods = Pods()
    serving_ = asyncio.create_task(SessionServer(nc, served.cluster, cast("Backend", pods)).serve())
    await asyncio.sleep(0)
    await nc.flush()
    try:
        yield pods
    finally:
        serving_.cancel()
        await asyncio.gather(serving_, return_exceptions=True)
        await nc.close()


def opened(served: Served, workload: str, does: str, subject: str = "alice") -> connect:
    return connect(
        f"{served.url.replace('http', 'ws', 1)}{V1}/workloads/{workload}/exec?command={does}&stdin=true",
        additional_headers={"Authorization": f"Bearer {served.token(subject)}"},
        subprotocols=[Subprotocol(SUBPROTOCOL)],
        proxy=None,
        max_queue=2,
        close_timeout=1,
    )


async def stands_still(count: Callable[[], int]) -> None:
    before = -1
    async with asyncio.timeout(60):
        while count() != before or not before:
            before = count()
            await asyncio.sleep(0.2)


async def echoes(connection: ClientConnection, words: bytes) -> None:
    await connection.send(bytes((STDIN,)) + words)
    async with asyncio.timeout(60):
        assert await connection.recv() == bytes((STDOUT,)) + words


async def end_of(connection: ClientConnection) -> str:
    """The reason that the last frame has."""
    async with asyncio.timeout(60):
        while True:
            frame = await connection.recv()
            if isinstance(frame, bytes) and frame[0] == STATUS:
                return msgspec.json.decode(frame[1:])["reason"]


async def closed(served: Served, workload: str, session: str) -> dict[str, Any]:
    """What the history says of its end."""
    with served.client("alice") as alice:
        async with asyncio.timeout(60):
            while True:
                records = alice.get(f"{V1}/workloads/{workload}/history", params={"limit": 500}).json()["records"]
                for one in records:
                    if one["type"] == "SessionClosed" and one["details"]["sessionId"] == session:
                        return one["details"]
                await asyncio.sleep(0.1)


def session_of(connection: ClientConnection) -> str:
    assert connection.response is not None
    return connection.response.headers["X-Session-Id"]


async def test_a_pod_that_floods_a_client_who_reads_nothing_is_held_up_and_the_session_ends_as_stalled(
    served: Served, nats_server: NatsServer, workload: str
) -> None:
    async with agent(served, nats_server) as pods:
        connection = await opened(served, workload, "floods")
        async with opened(served, workload, "echo") as beside:
            (flooding, _) = pods.opened
            await stands_still(lambda: flooding.written)
            assert flooding.written * FRAME_BYTES < MOST_HELD_BYTES
            await echoes(beside, b"still here")
            end = await closed(served, workload, session_of(connection))
        connection.transport.abort()
    assert (end["reason"], end["bytesOut"] < MOST_HELD_BYTES) == ("stalled", True)


async def test_a_client_that_floods_a_pod_which_reads_nothing_is_held_up(
    served: Served, nats_server: NatsServer, workload: str
) -> None:
    sent = 0
    async with agent(served, nats_server), opened(served, workload, "deaf") as connection:

        async def floods() -> None:
            nonlocal sent
            while True:
                await connection.send(bytes((STDIN,)) + b"i" * (FRAME_BYTES - 1))
                sent += 1

        flooding = asyncio.create_task(floods())
        await stands_still(lambda: sent)
        assert sent * FRAME_BYTES < MOST_HELD_BYTES
        async with opened(served, workload, "echo") as beside:
            await echoes(beside, b"still here")
        flooding.cancel()
        await asyncio.gather(flooding, return_exceptions=True)
        connection.transport.abort()
        end = await closed(served, workload, session_of(connection))
        assert (end["reason"], end["bytesIn"] < MOST_HELD_BYTES) == ("left", True)


async def test_a_person_has_so_many_and_a_session_that_is_not_used_ends_while_one_that_is_goes_on(
    served: Served, nats_server: NatsServer, workload: str
) -> None:
    async with (
        agent(served, nats_server),
        opened(served, workload, "echo") as idle,
        opened(served, workload, "echo") as used,
    ):
        with pytest.raises(InvalidStatus) as refused:
            await opened(served, workload, "echo")
        body = msgspec.json.decode(refused.value.response.body or b"{}")
        assert (refused.value.response.status_code, f"{PER_USER}" in body["message"]) == (429, True), body
        async with opened(served, workload, "echo", "admin") as of_another:
            await echoes(of_another, b"mine")
        ending = asyncio.create_task(end_of(idle))
        while not ending.done():
            await echoes(used, b"I am")
            await asyncio.sleep(0.2)
        assert ending.result() == "idle"
        assert (await closed(served, workload, session_of(idle)))["reason"] == "idle"
        async with opened(served, workload, "echo") as again:
            await echoes(again, b"room")
        await echoes(used, b"and still am")
