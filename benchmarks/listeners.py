"""A thousand readers of public events over HTTP, of fifty people, at one API: how soon they have an event, and what
they cost it.

Baseline: a bare server that writes the same bytes to as many connections, as soon as it is told of them.
"""

import asyncio
import contextlib
import re
import sys
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, override

import httpx
import psutil

from benchmarks.bare import server_with_bare_account
from benchmarks.feed import World, in_feed, world
from benchmarks.report import Figure, Report, quantile
from benchmarks.synthetic import COMMITS_PER_LIFE, write_lives
from development.commands import carry_out, introduce
from development.limits import UNLIMITED_ENVIRONMENT
from development.ports import free_port
from development.processes import ServiceProcess
from development.servers import PostgresServer
from events.project import GrantProjectRole
from projections.migrate import prepare
from services.runtime.identity.local_keys import load_or_create_key, sign_token, write_jwks
from services.runtime.process.host import run_loop

READERS: Final = 1_000
READERS_SHORT: Final = 200
PEOPLE: Final = 50
SLOW: Final = 10
FAST: Final = 50
"""Events a second."""
GOAL_SECONDS: Final = 1.0
GOAL_BYTES: Final = 50_000
GOAL_CORE: Final = 0.5
OPEN_AT_ONCE: Final = 20
WAIT_SECONDS: Final = 60.0
_PLACE: Final = re.compile(rb"id: 0*(\d+)\.")
_BARE: Final = """
import asyncio, sys

async def main():
    loop, writers = asyncio.get_running_loop(), []

    async def serve(reader, writer):
        await reader.readuntil(b"\\r\\n\\r\\n")
        writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Type: text/event-stream\\r\\n\\r\\nretry: 2000\\nid: 0.0\\n\\n")
        writers.append(writer)

    server = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]), backlog=1_000)
    told = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(told), sys.stdin)
    while line := await told.readline():
        frame = b"id: %s\\ndata: %s\\n\\n" % (line.strip(), b"x" * 700)
        for writer in writers:
            writer.write(frame)

import uvloop
uvloop.run(main())
"""
"""It reads a line for each event: the number in its id."""

type Take = Callable[[int], None]


class Listening(asyncio.Protocol):
    """One reader, which only looks for ids."""

    def __init__(self, take: Take, opened: asyncio.Future[bytes]) -> None:
        self._take = take
        self._opened = opened
        self._head = b""

    @override
    def data_received(self, data: bytes) -> None:
        if not self._opened.done():
            self._head += data
            if b"\nid: " in self._head or b" 200 " not in self._head[:20]:
                self._opened.set_result(self._head)
            return
        for found in _PLACE.findall(data):
            self._take(int(found))

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if not self._opened.done():
            self._opened.set_result(self._head)


@contextlib.asynccontextmanager
async def listeners(port: int, requests: list[bytes], take: Take) -> AsyncGenerator[None]:
    """As many as there are requests, all of them open."""
    loop, room = asyncio.get_running_loop(), asyncio.Semaphore(OPEN_AT_ONCE)

    async def opened(request: bytes) -> asyncio.Transport:
        async with room:
            answer = loop.create_future()
            made, _ = await loop.create_connection(lambda: Listening(take, answer), "127.0.0.1", port)
            made.write(request)
            head = await asyncio.wait_for(answer, WAIT_SECONDS)
            assert b" 200 " in head[:20], head.decode()
            return made

    transports = await asyncio.gather(*map(opened, requests))
    try:
        yield
    finally:
        for transport in transports:
            transport.close()


class Cost:
    """What a process takes, from now on."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self._began = time.perf_counter()
        self._cpu_before = self._cpu()
        self.bytes_before = process.memory_full_info().uss

    def _cpu(self) -> float:
        times = self._process.cpu_times()
        return times.user + times.system

    def cores(self) -> float:
        return (self._cpu() - self._cpu_before) / (time.perf_counter() - self._began)

    def more_bytes(self) -> int:
        return self._process.memory_full_info().uss - self.bytes_before


@contextlib.asynccontextmanager
async def _serving(
    made: World, postgres: PostgresServer, folder: Path
) -> AsyncGenerator[tuple[psutil.Process, int, list[str]]]:
    """The API and the feed; its port, and a token of each reader."""
    key = load_or_create_key(folder / "key.json")
    write_jwks(key, folder / "jwks.json")
    await prepare(postgres.url())
    tokens: list[str] = []
    for number in range(PEOPLE):
        name = f"reader-{number}"
        await introduce(made.nc, name)
        command = GrantProjectRole(project_id=made.project_id, subject=name, role="viewer")
        await carry_out(made.store, f"grant-{name}", command)
        tokens.append(sign_token(key, subject=name, issuer="muster", audience="muster"))
    port = free_port()
    others = UNLIMITED_ENVIRONMENT | {
        "MUSTER_POSTGRES_URL": postgres.url(),
        "MUSTER_HTTP_PORT": str(port),
        "MUSTER_JWKS_FILE": str(folder / "jwks.json"),
    }
    services = [ServiceProcess(made.server, "feed"), ServiceProcess(made.server, "api", **others)]
    try:
        await _ready(port)
        yield psutil.Process(services[1].process.pid), port, tokens
    finally:
        for service in services:
            service.stop()


async def _ready(port: int) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    async with httpx.AsyncClient(trust_env=False) as client:
        while True:
            with contextlib.suppress(httpx.HTTPError):
                if (await client.get(f"http://127.0.0.1:{port}/api/v1/version")).status_code < 500:
                    return
            assert time.monotonic() < deadline, "the API is not there"
            await asyncio.sleep(0.1)


def _asking(token: str) -> bytes:
    head = f"GET /api/v1/events/stream HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n\r\n"
    return head.encode()


async def _bare(readers: int, seconds: float, events_per_second: float) -> tuple[list[float], float]:
    """Seconds after which readers had an event, and cores of the bare server."""
    port, seen, told = free_port(), list[float](), dict[int, float]()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _BARE, str(port), stdin=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None

    def take(seq: int) -> None:
        seen.append(time.perf_counter() - told[seq])

    try:
        await asyncio.sleep(2)
        async with listeners(port, [b"GET / HTTP/1.1\r\n\r\n"] * readers, take):
            cost = Cost(psutil.Process(process.pid))
            for number in range(1, int(seconds * events_per_second) + 1):
                told[number] = time.perf_counter()
                process.stdin.write(b"%d.0\n" % number)
                await asyncio.sleep(1 / events_per_second)
            return seen, cost.cores()
    finally:
        process.kill()
        await process.wait()


async def _measure(report: Report, made: World, postgres: PostgresServer, folder: Path, *, short: bool) -> None:
    readers, seconds = (READERS_SHORT, 5.0) if short else (READERS, 20.0)
    before = 100
    await write_lives(made.nc, made.project_id, made.cluster_id, before)
    made.lives, last_seq = before, await made.store.last_seq()
    async with _serving(made, postgres, folder) as (api, port, tokens):
        per_life = await in_feed(made.nc, last_seq) / before
        seen: list[float] = []

        def take(seq: int) -> None:
            if seq in made.told:
                seen.append(time.perf_counter() - made.told[seq])

        idle = Cost(api)
        async with listeners(port, [_asking(tokens[number % PEOPLE]) for number in range(readers)], take):
            for rate in (SLOW, FAST):
                seen.clear()
                cost = Cost(api)
                await made.live(seconds, rate * COMMITS_PER_LIFE / per_life)
                cores = cost.cores()
                await in_feed(made.nc, await made.store.last_seq())
                await asyncio.sleep(1)
                if rate == SLOW:
                    # Faster, a client that cannot follow would be measured, too: what waits for it.
                    memory, goal = idle.more_bytes() / readers / 1000, GOAL_BYTES / 1000
                    report.add(Figure(name="memory of each reader", value=memory, unit="KB", goal=goal, at_most=True))
                bare, bare_cores = await _bare(readers, seconds, rate)
                name = f"{readers:,} readers of {PEOPLE} people, {rate} events/s"
                print(f"({len(seen):,} events were read)")
                for label, q, goal in (("p50", 0.5, None), ("p99", 0.99, GOAL_SECONDS if rate == SLOW else None)):
                    report.add(
                        Figure(
                            name=f"{name}: {label}",
                            value=1000 * quantile(seen, q),
                            unit="ms",
                            goal=goal and 1000 * goal,
                            at_most=True,
                            baseline=1000 * quantile(bare, q),
                        )
                    )
                report.add(
                    Figure(
                        name=f"{name}: CPU",
                        value=cores,
                        unit="cores",
                        goal=GOAL_CORE if rate == FAST else None,
                        at_most=True,
                        baseline=bare_cores,
                    )
                )


def run(report: Report, *, short: bool) -> None:
    """Print the figures of readers over HTTP."""
    with TemporaryDirectory(prefix="muster-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)  # Postgres runs as another user where we are root
        server, postgres = server_with_bare_account(folder / "nats"), PostgresServer(folder / "postgres")
        server.start()
        postgres.start()

        async def measure() -> None:
            async with world(server) as made:
                await _measure(report, made, postgres, folder, short=short)

        try:
            run_loop(measure())
        finally:
            server.stop()
            postgres.stop()
