"""Public events: how fast FEED follows the log, and how soon a subscriber has them.

Baselines, on the same server: pipelined publishes of the very same messages by nats-py; and a bare publish read by a
bare pull consumer, at the same rate.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import nats
from nats.aio.client import Client
from nats.errors import TimeoutError as NatsTimeoutError
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig

from benchmarks.bare import PAYLOAD, STREAM, bare_client, server_with_bare_account
from benchmarks.report import Figure, Report, quantile
from benchmarks.synthetic import COMMITS_PER_LIFE, Model, write_lives
from development.commands import carry_out
from development.processes import ServiceProcess
from development.servers import EVERYTHING, NatsServer
from development.streams import recreate_streams
from events.aggregate import CLUSTER, PROJECT
from events.cluster import AddCluster
from events.ids import cluster_key, incarnation_id, project_key
from events.project import CreateProject
from events.public.cloudevents import place_of
from events.subjects import FEED_STREAM
from events.subscriptions import DOMAIN, CreateSubscription, inbox_of
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.nats.connection import connect
from services.runtime.nats.nkeys import KeyPair, new_seed
from services.runtime.process.host import run_loop

GOAL_RATIO: Final = 0.5
RATE: Final = 50
"""Public events a second."""
WAIT_SECONDS: Final = 120.0
IN_FLIGHT: Final = 1_000


@dataclass
class World:
    """A log with one project, in which workloads live."""

    server: NatsServer
    nc: Client
    store: JetStreamEventStore
    project_id: str = ""
    cluster_id: str = ""
    lives: int = 0
    told: dict[int, float] = field(default_factory=dict[int, float])
    """By sequence of the log, when that commit was sent."""

    async def live(self, seconds: float, commits_per_second: float) -> None:
        """One commit after the other, at this rate."""
        model, end, next_ = Model(self.project_id, self.cluster_id), time.perf_counter() + seconds, time.perf_counter()
        waiting: list[tuple[str, bytes]] = []
        while time.perf_counter() < end or waiting:
            if not waiting:
                self.lives += 1
                waiting = model.life(self.lives, await self.store.last_seq() + 1)
            subject, payload = waiting.pop(0)
            sent = time.perf_counter()
            answer = await self.nc.jetstream().publish(subject, payload)
            self.told[answer.seq] = sent
            next_ = max(next_ + 1 / commits_per_second, time.perf_counter() - 1)
            await asyncio.sleep(max(next_ - time.perf_counter(), 0))


@contextlib.asynccontextmanager
async def world(server: NatsServer) -> AsyncGenerator[World]:
    await recreate_streams(server.settings(EVERYTHING))
    nc = await connect(server.settings(EVERYTHING), EVERYTHING)
    try:
        made = World(server, nc, JetStreamEventStore(nc))
        await carry_out(made.store, "project", CreateProject(name="default"))
        await carry_out(made.store, "cluster", AddCluster(name="c", kind="simulated"))
        made.project_id = (await made.store.load(PROJECT, project_key("default"))).state.project_id
        made.cluster_id = (await made.store.load(CLUSTER, cluster_key("c"))).state.cluster_id
        yield made
    finally:
        await nc.close()


async def in_feed(nc: Client, seq: int) -> int:
    """Wait until FEED holds what follows from the commit of this sequence; how many messages it has."""
    jetstream, deadline = nc.jetstream(), time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        state = (await jetstream.stream_info(FEED_STREAM)).state
        if state.messages:
            last = await jetstream.get_msg(FEED_STREAM, state.last_seq)
            if place_of((last.headers or {})["ce-sequence"]).seq >= seq:
                return state.messages
        await asyncio.sleep(0.02)
    raise TimeoutError(f"FEED did not come to {seq}")


async def _throughput(report: Report, made: World, lives: int) -> int:
    """FEED's messages for each life."""
    await write_lives(made.nc, made.project_id, made.cluster_id, lives)
    made.lives = lives
    last_seq = await made.store.last_seq()
    started = time.perf_counter()
    feed = ServiceProcess(made.server, "feed")
    try:
        first = await in_feed(made.nc, 1)
        began = time.perf_counter()
        count = await in_feed(made.nc, last_seq) - first
        seconds = time.perf_counter() - began
    finally:
        feed.stop()
    print(f"(the service was there after {began - started:.1f} s)")
    report.add(
        Figure(
            name="feed: public events written",
            value=count / seconds,
            unit="events/s",
            baseline=await _bare_publishes(made),
            goal_ratio=GOAL_RATIO,
        )
    )
    return round(count / lives)


async def _bare_publishes(made: World) -> float:
    """The same messages a second."""
    config = ConsumerConfig(ack_policy=AckPolicy.NONE, mem_storage=True)
    reader = await made.nc.jetstream().pull_subscribe("feed.>", stream=FEED_STREAM, config=config)
    messages: list[tuple[dict[str, str], bytes]] = []
    with contextlib.suppress(NatsTimeoutError):
        while True:
            messages += [(found.headers or {}, found.data) for found in await reader.fetch(500, timeout=1)]
    await reader.unsubscribe()
    async with bare_client(made.server) as client:
        jetstream = client.jetstream(publish_async_max_pending=IN_FLIGHT)
        started = time.perf_counter()
        for headers, payload in messages:
            ours = {name: value for name, value in headers.items() if name.startswith("ce-")}
            await jetstream.publish_async("bare.feed", payload, headers=ours)
        await jetstream.publish_async_completed()
        return len(messages) / (time.perf_counter() - started)


async def _latency(report: Report, made: World, seconds: float, events_of_life: int) -> None:
    seed = new_seed("user")
    chain = await made.store.load(PROJECT, project_key("default"))
    command = CreateSubscription(
        project_id=chain.state.project_id, public_key=KeyPair(seed).public, from_seq=await made.store.last_seq() + 1
    )
    await carry_out(made.store, "subscription", command)
    id_ = incarnation_id(project_key("default"), "subscription")
    key_dir = str(made.server.callout_key_dir())
    services = [
        ServiceProcess(made.server, "subscriptions", MUSTER_CALLOUT_KEY_DIR=key_dir),
        ServiceProcess(made.server, "feed"),
    ]
    seen: list[float] = []

    def take(headers: dict[str, str]) -> None:
        seq = place_of(headers["ce-sequence"]).seq
        if seq in made.told:
            seen.append(time.perf_counter() - made.told[seq])

    try:
        async with _subscriber(made, id_, seed) as reader:
            await in_feed(made.nc, await made.store.last_seq() - 1)
            async with reading(reader, take):
                await made.live(seconds, RATE * COMMITS_PER_LIFE / events_of_life)
                await in_feed(made.nc, await made.store.last_seq())
    finally:
        for service in services:
            service.stop()
    bare = await _bare_latency(made.server, seconds)
    for name, q, goal in (("p50", 0.5, 20), ("p99", 0.99, 100)):
        report.add(
            Figure(
                name=f"commit sent -> subscriber at {RATE} events/s: {name}",
                value=1000 * quantile(seen, q),
                unit="ms",
                goal=goal,
                at_most=True,
                baseline=1000 * quantile(bare, q),
            )
        )


@contextlib.asynccontextmanager
async def _subscriber(made: World, id_: str, seed: str) -> AsyncGenerator[JetStreamContext.PullSubscription]:
    """Somebody's program, as soon as it is let in and its consumer is there."""
    deadline = time.monotonic() + WAIT_SECONDS
    while id_ not in {info.name for info in await made.nc.jetstream().consumers_info(FEED_STREAM)}:
        assert time.monotonic() < deadline, "the subscription has no consumer"
        await asyncio.sleep(0.1)
    client = await nats.connect(made.server.url, nkeys_seed_str=seed, inbox_prefix=inbox_of(id_).encode())
    try:
        yield await client.jetstream(domain=DOMAIN).pull_subscribe_bind(id_, stream=FEED_STREAM)
    finally:
        await client.close()


@contextlib.asynccontextmanager
async def reading(
    reader: JetStreamContext.PullSubscription, take: Callable[[dict[str, str]], None]
) -> AsyncGenerator[None]:
    """Meanwhile, and a little longer."""
    task = asyncio.create_task(_read(reader, take))
    try:
        yield
        await asyncio.sleep(0.5)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _read(reader: JetStreamContext.PullSubscription, take: Callable[[dict[str, str]], None]) -> None:
    while True:
        with contextlib.suppress(NatsTimeoutError):
            for message in await reader.fetch(1, timeout=5):
                take(message.headers or {})
                await message.ack()


async def _bare_latency(server: NatsServer, seconds: float) -> list[float]:
    seen: list[float] = []
    async with bare_client(server) as client:
        jetstream = client.jetstream()
        reader = await jetstream.pull_subscribe("bare.*", stream=STREAM, durable="bare")
        told: dict[str, float] = {}
        async with reading(reader, lambda headers: seen.append(time.perf_counter() - told[headers["n"]])):
            for number in range(int(seconds * RATE)):
                told[str(number)] = time.perf_counter()
                await jetstream.publish("bare.one", PAYLOAD, headers={"n": str(number)})
                await asyncio.sleep(1 / RATE)
    return seen


async def _measure(report: Report, server: NatsServer, *, short: bool) -> None:
    async with world(server) as made:
        events_of_life = await _throughput(report, made, 500 if short else 5_000)
        await _latency(report, made, 5 if short else 30, events_of_life)


def run(report: Report, *, short: bool) -> None:
    """Print the figures of FEED and of its subscribers."""
    with TemporaryDirectory(prefix="muster-bench-", ignore_cleanup_errors=True) as folder:
        server = server_with_bare_account(Path(folder))
        server.start()
        try:
            run_loop(_measure(report, server, short=short))
        finally:
            server.stop()
