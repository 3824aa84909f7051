"""Two proxies that are killed and paused again and again, while the replicas behind them end and others come: who asks
is answered by the right workload, nothing is carried out twice, and no more is lost than what was under way at a kill.
"""

import asyncio
import contextlib
import random
import sys
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx
import pytest
from nats.aio.client import Client

from development.ports import free_port
from development.servers import EVERYTHING, NatsServer
from events.codec import encode_commit
from events.node import reservation_id
from events.subjects import aggregate_subject
from events.workload.commands import PodFact
from events.workload.exposure import label_of
from events.workload.pod import PodAddress, PodRef, PortAddress
from services.runtime.identity.local_keys import load_or_create_key, sign_token, write_jwks
from services.runtime.nats.connection import connect
from tests.faults.test_event_readers import Killable
from tests.proxy.given import head_of
from tests.proxy.test_holding import PORT, Inferred
from tests.support.lives import World

pytestmark = [pytest.mark.faults, pytest.mark.anyio, pytest.mark.timeout(3600)]

REQUESTS: Final = 10_000
REQUESTS_IN_SHORT: Final = 300
CLIENTS: Final = 8
REPLICAS: Final = 3
SETTLE_SECONDS: Final = 60.0
PAUSED_SECONDS: Final = 1.0


@dataclass
class Replica:
    """A program in place of a pod, which says whose it is."""

    index: int
    try_: int
    port: int
    server: asyncio.Server
    open: set[asyncio.StreamWriter] = field(default_factory=set[asyncio.StreamWriter])

    @property
    def ref(self) -> PodRef:
        return PodRef(pod_set="replica", index=self.index, attempt=1, try_=self.try_)

    def kill(self) -> None:
        """As SIGKILL would: nobody listens, and what is under way breaks off."""
        self.server.close()
        for writer in self.open:
            writer.transport.abort()


class Scene:
    """One inference with replicas that come and go, its log, and what each request came to."""

    def __init__(self, client: Client) -> None:
        self.given = Inferred()
        self.given.scale(REPLICAS, 1)
        self.done: Counter[str] = Counter()
        """Requests that a replica has carried out, by their bodies."""
        self.replicas: list[Replica] = []
        self._client = client
        self._written = 0

    @property
    def world(self) -> World:
        return self.given.world

    @property
    def host(self) -> str:
        (url,) = self.world.state("workload", self.given.key).exposed_urls
        return f"{label_of(url, 'chat', self.given.workload_id)}.apps.test"

    async def write(self) -> None:
        """What the log does not hold yet."""
        for commit in self.world.commits[self._written :]:
            await self._client.request(
                aggregate_subject(commit.aggregate, commit.key), encode_commit(commit.record), timeout=20
            )
        self._written = len(self.world.commits)

    async def start(self, index: int, try_: int = 0) -> None:
        writers = set[asyncio.StreamWriter]()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writers.add(writer)
            try:
                head = await head_of(reader)
                if b"content-length" not in head.lower():
                    return  # only whether somebody listens was asked
                body = (await reader.readexactly(8)).decode()
                self.done[body] += 1
                await asyncio.sleep(0.005)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\nchat %s" % body.encode())
                await writer.drain()
            except (OSError, asyncio.IncompleteReadError):
                pass
            finally:
                writers.discard(writer)
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        replica = Replica(index, try_, server.sockets[0].getsockname()[1], server, writers)
        self.replicas.append(replica)
        self.world.place([(self.given.key, replica.ref, self.given.node, index)])
        address = PodAddress(host="127.0.0.1", ports=(PortAddress(container=PORT, port=replica.port),))
        running = PodFact(pod=replica.ref, kind="running", at=self.world.now, address=address)
        self.given.report(self.given.key, running)
        await self.write()

    async def end_one(self, chance: random.Random) -> None:
        """Kill one; the log tells of it a moment later, and then another run of it comes."""
        victim = chance.choice(self.replicas)
        victim.kill()
        self.replicas.remove(victim)
        await asyncio.sleep(chance.uniform(0.0, 0.5))
        fact = PodFact(pod=victim.ref, kind="failed", at=self.world.now, exit_code=137)
        self.given.report(self.given.key, fact)
        self.world.release(
            self.given.node, [reservation_id(self.given.workload_id, victim.ref.pod_set, victim.index, 1, victim.try_)]
        )
        await self.write()
        self.world.later(3600)
        await self.start(victim.index, victim.try_ + 1)


@contextlib.asynccontextmanager
async def proxies(server: NatsServer, folder: Path) -> AsyncGenerator[list[tuple[Killable, int]]]:
    """Two, each with its port."""
    settings = server.settings("proxy")
    found: list[tuple[Killable, int]] = []
    for _ in range(2):
        port = free_port()
        process = Killable(
            *(sys.executable, "-m", "services.proxy"),
            MUSTER_NATS_URL=settings.nats_url,
            MUSTER_NATS_PASSWORD=settings.nats_password,
            MUSTER_JWKS_FILE=str(folder / "jwks.json"),
            MUSTER_PROXY_URL="http://apps.test:8083",
            MUSTER_PROXY_PORT=str(port),
        )
        process.start()
        found.append((process, port))
    try:
        for _, port in found:
            await listens(port)
        yield found
    finally:
        for process, _ in found:
            process.kill()


async def listens(port: int) -> None:
    async with asyncio.timeout(SETTLE_SECONDS):
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return
            await asyncio.sleep(0.05)


@dataclass
class Clients:
    """People who ask by either proxy, and go to the other where one does not listen."""

    ports: list[int]
    headers: dict[str, str]
    chance: random.Random
    todo: list[str]
    answered: set[str] = field(default_factory=set[str])
    lost: Counter[str] = field(default_factory=Counter[str])
    """Why requests have no answer of a replica."""

    async def run(self) -> None:
        async with httpx.AsyncClient(timeout=SETTLE_SECONDS, trust_env=False, headers=self.headers) as client:
            while self.todo:
                await self._ask(client, self.todo.pop())

    async def _ask(self, client: httpx.AsyncClient, body: str) -> None:
        async with asyncio.timeout(SETTLE_SECONDS):
            while True:
                try:
                    port = self.chance.choice(self.ports)
                    answer = await client.post(f"http://127.0.0.1:{port}/", content=body.encode())
                except httpx.ConnectError:
                    await asyncio.sleep(0.02)  # nothing was sent
                    continue
                except httpx.TransportError as error:
                    self.lost[type(error).__name__] += 1
                    return
                if answer.status_code == httpx.codes.OK:
                    assert answer.text == f"chat {body}"
                    self.answered.add(body)
                else:
                    self.lost[answer.text[:120]] += 1
                return


async def test_no_more_is_lost_than_what_was_under_way_at_a_kill_and_nothing_is_done_twice(
    fresh_log: NatsServer, tmp_path: Path, rounds: int, chance: random.Random, request: pytest.FixtureRequest
) -> None:
    key = load_or_create_key(tmp_path / "key.json")
    write_jwks(key, tmp_path / "jwks.json")
    token = sign_token(key, subject="ann", issuer="muster", audience="muster")
    count = REQUESTS_IN_SHORT if request.config.option.short else REQUESTS
    nc = await connect(fresh_log.settings(EVERYTHING), EVERYTHING)
    scene = Scene(nc)
    try:
        for index in range(REPLICAS):
            await scene.start(index)
        async with proxies(fresh_log, tmp_path) as both:
            headers = {"host": scene.host, "authorization": f"Bearer {token}"}
            clients = Clients([port for _, port in both], headers, chance, [f"{n:08}" for n in range(count)])
            asking = [asyncio.create_task(clients.run()) for _ in range(CLIENTS)]
            for done in range(rounds):
                # However fast the machine is, the kills are spread over the requests.
                async with asyncio.timeout(3 * SETTLE_SECONDS):
                    while len(clients.todo) > count * (rounds - done) // (rounds + 1):
                        await asyncio.sleep(0.01)
                process, port = both[done % 2]
                await scene.end_one(chance)
                if chance.random() < 0.3:
                    with process.paused():
                        await asyncio.sleep(PAUSED_SECONDS)
                process.kill()
                process.start()
                await listens(port)
            await asyncio.gather(*asking)
            answered, lost = clients.answered, clients.lost
            for _ in range(10):
                clients.todo = [f"{len(clients.answered) + count:08}"]
                await clients.run()
    finally:
        for replica in scene.replicas:
            replica.kill()
        await nc.close()
    assert len(answered) + lost.total() == count + 10
    assert not [body for body, times in scene.done.items() if times > 1], "carried out twice"
    assert answered <= scene.done.keys(), "answered by nobody"
    # One kill of a proxy and one of a replica in each round.
    assert lost.total() <= 2 * rounds * CLIENTS, lost
    assert not [why for why in lost if "does not answer" in why], "nothing was sent, so another replica could have it"
    print(f"\n{count} requests, {2 * rounds} kills, {lost.total()} lost: {dict(lost)}")
