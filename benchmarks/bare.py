"""The bare baselines: what nats-py alone does on a server with our settings.

Muster's streams are in accounts that no user is in, so a bare client has an account of its own on the same server.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import nats
from nats.aio.client import Client

from development.servers import NatsServer
from events.subjects import EVENTS_STREAM
from services.runtime.nats.streams import DECLARED

ACCOUNT, USER, PASSWORD = "BARE", "bare", "bare"
STREAM = "BARE"
PAYLOAD = b"x" * 900
"""As long as the commit record of a small training."""
GUARD = "Nats-Expected-Last-Subject-Sequence"


def server_with_bare_account(folder: Path) -> NatsServer:
    """One nats-server as every deployment configures it, and an account for the bare client beside the others."""
    server = NatsServer(folder)
    account = f"  {ACCOUNT} {{ jetstream: enabled, users: [{{ user: {USER}, password: {PASSWORD} }}] }}"
    before, accounts, after = server.config.partition("accounts {\n")
    assert accounts, "the configuration has no accounts"
    server.configure(f"{before}{accounts}{account}\n{after}")
    return server


@asynccontextmanager
async def bare_client(server: NatsServer) -> AsyncGenerator[Client]:
    """A nats-py client as its documentation opens one, and a stream with the settings of EVENTS."""
    client = await nats.connect(server.url, user=USER, password=PASSWORD)
    events = next(declared for declared in DECLARED if declared.name == EVENTS_STREAM)
    config = events.config(replicas=1) | {"name": STREAM, "subjects": ["bare.*"]}
    made = await client.request(f"$JS.API.STREAM.CREATE.{STREAM}", json.dumps(config).encode(), timeout=5)
    assert b'"error"' not in made.data, made.data
    yield client
    await client.jetstream().delete_stream(STREAM)
    await client.close()


async def appends(client: Client, *, in_flight: int, seconds: float) -> float:
    """Guarded appends per second by `js.publish`, each to a new subject, `in_flight` at a time."""
    js = client.jetstream()
    until = time.perf_counter() + seconds
    count = 0

    async def loop() -> None:
        nonlocal count
        while time.perf_counter() < until:
            await js.publish(f"bare.{uuid4().hex}", PAYLOAD, headers={GUARD: "0"})
            count += 1

    started = time.perf_counter()
    await asyncio.gather(*(loop() for _ in range(in_flight)))
    return count / (time.perf_counter() - started)


async def batches(client: Client, *, size: int, seconds: float) -> float:
    """Messages per second in atomic batches: plain publishes, and one request that commits."""
    until = time.perf_counter() + seconds
    started, count = time.perf_counter(), 0
    while time.perf_counter() < until:
        batch = uuid4().hex
        for number in range(1, size):
            headers = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number), GUARD: "0"}
            await client.publish(f"bare.{uuid4().hex}", PAYLOAD, headers=headers)
        headers = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(size), "Nats-Batch-Commit": "1", GUARD: "0"}
        answer = await client.request(f"bare.{uuid4().hex}", PAYLOAD, timeout=5, headers=headers)
        assert b'"error"' not in answer.data, answer.data
        count += size
    return count / (time.perf_counter() - started)


def bare_appends(*, in_flight: int, seconds: float) -> float:
    """`appends` on a server of its own, gone afterwards."""

    async def measure(server: NatsServer) -> float:
        async with bare_client(server) as client:
            return await appends(client, in_flight=in_flight, seconds=seconds)

    with TemporaryDirectory(prefix="muster-bench-") as folder:
        server = server_with_bare_account(Path(folder))
        server.start()
        try:
            return asyncio.run(measure(server))
        finally:
            server.stop()
