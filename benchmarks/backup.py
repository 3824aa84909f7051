"""A backup of a log of creations, its checks, and its restore, beside bare loops on the same kind of server in the same
run: one that reads the messages and keeps nothing, one that publishes as many bytes in atomic batches of 1,000.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from nats.aio.client import Client

from benchmarks.bare import bare_client, batches, server_with_bare_account
from benchmarks.report import Figure, Report
from benchmarks.store import creation
from development.servers import EVERYTHING, NatsServer
from services.runtime.backup.check import check, compare, read_manifest
from services.runtime.backup.place import Place
from services.runtime.backup.restore import restore
from services.runtime.backup.seal import sealer_of
from services.runtime.backup.source import Source
from services.runtime.backup.write import back_up
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.nats.connection import connect
from services.runtime.nats.requests import Requests
from services.runtime.nats.streams import create_streams

MESSAGES: Final = 100_000
MESSAGES_SHORT: Final = 3_000
BATCH: Final = 1_000
BARE_SECONDS: Final = 3.0
PASSPHRASE: Final = b"a passphrase of benchmarks"


def nothing(_done: int, _total: int) -> None:
    """Shows no progress."""


@asynccontextmanager
async def connected(server: NatsServer, user: str) -> AsyncGenerator[Client]:
    client = await connect(server.settings(user), user)
    try:
        yield client
    finally:
        await client.close()


async def timed(work: Awaitable[object]) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


async def filled(server: NatsServer, messages: int) -> None:
    async with connected(server, EVERYTHING) as nc:
        await create_streams(nc, 1)
        store = JetStreamEventStore(nc)
        for _ in range(messages // BATCH):
            await store.append_batch([creation() for _ in range(BATCH)], deadline_seconds=60)


async def read_only(source: Source, messages: int) -> int:
    """Reads the log and keeps nothing; the bytes of all payloads."""
    size = 0
    async for several in source.log(1, messages):
        size += sum(len(message.data) for message in several)
    return size


async def _measure(report: Report, folder: Path, messages: int) -> None:
    full, empty = NatsServer(folder / "full"), server_with_bare_account(folder / "empty")
    full.start()
    empty.start()
    try:
        await filled(full, messages)
        place = Place(str(folder / "backup"))
        async with connected(full, "backup") as nc:
            source = Source(Requests(nc))
            began = time.perf_counter()
            size = await read_only(source, messages)
            bare = time.perf_counter() - began

            async def backed_up() -> None:
                await back_up(source, place, PASSPHRASE, {}, version="", progress=nothing)

            _tell(report, "backup", seconds=await timed(backed_up()), bare=bare, messages=messages, size=size)
            manifest = read_manifest(place)
            compared = await timed(compare(place, manifest, source, nothing))
            _tell(report, "backup --verify, with the server", seconds=compared, bare=bare, messages=messages, size=size)
        began = time.perf_counter()
        check(place, manifest, nothing)
        _tell(
            report,
            "backup --verify --offline",
            seconds=time.perf_counter() - began,
            bare=bare,
            messages=messages,
            size=size,
        )
        async with bare_client(empty) as client:
            bare = messages / await batches(client, size=BATCH, seconds=BARE_SECONDS)
        _tell(report, "restore", seconds=await timed(_restored(empty, place)), bare=bare, messages=messages, size=size)
    finally:
        full.stop()
        empty.stop()


async def _restored(server: NatsServer, place: Place) -> None:
    manifest = read_manifest(place)
    async with connected(server, "restore") as nc:
        await restore(
            nc,
            place,
            manifest,
            sealer_of(manifest.sealing, PASSPHRASE),
            replicas=1,
            log_max_bytes=2**30,
            put_files=_no_files,
            now=datetime.now(UTC),
            progress=_no_progress,
        )


def _no_files(_: object) -> None:
    """There are none."""


def _no_progress(_what: str, _done: int, _total: int) -> None:
    """Shows none."""


def _tell(report: Report, name: str, *, seconds: float, bare: float, messages: int, size: int) -> None:
    report.add(Figure(name=f"{name}: messages", value=messages / seconds, unit="/s", baseline=messages / bare))
    report.add(Figure(name=f"{name}: payloads", value=size / seconds / 1e6, unit="MB/s", baseline=size / bare / 1e6))


def run(report: Report, *, short: bool) -> None:
    """Print the figures of backup, verify and restore."""
    with TemporaryDirectory(prefix="muster-bench-") as folder:
        asyncio.run(_measure(report, Path(folder), MESSAGES_SHORT if short else MESSAGES))
