"""A NATS server whose disk is full and has room again: nothing that was acknowledged is lost, all goes on by itself.

The server alone does not write again before it is started anew, and answers every append with silence until then.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from development.servers import EVERYTHING, NatsServer
from development.streams import delete_streams, recreate_streams
from events.aggregate import TENANT
from services.commands.counts import Counts
from services.commands.handle import Commands
from services.commands.keys import JetStreamKeys
from services.commands.limits import CreationLimits
from services.commands.watch import LogWatch
from services.runtime.identity.directory import Directory
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.log.log_state import log_trouble
from services.runtime.log.store import Committed
from services.runtime.nats.connection import ServiceClient, connect
from services.runtime.nats.requests import Requests
from services.runtime.process.host import Health
from tests.support.drafts import grant
from tests.support.keeping import Kept
from tests.support.small_disk import SmallDisk, small_disk

pytestmark = pytest.mark.anyio

UNTIL_SECONDS = 60.0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", 24) as disk:
        yield disk


@pytest.fixture
async def server(disk: SmallDisk, tmp_path: Path) -> AsyncIterator[NatsServer]:
    server = NatsServer(tmp_path / "nats", store_dir=disk.path / "js")
    server.start()
    await recreate_streams(server.settings())
    yield server
    server.kill()


@pytest.fixture
async def commands(server: NatsServer) -> AsyncIterator[ServiceClient]:
    connection = await connect(server.settings("commands"), "commands")
    yield connection
    await connection.close()


async def append(store: JetStreamEventStore, key: str) -> bool:
    return isinstance(await store.append(grant(key, 0, subject="s" * 600), deadline_seconds=0.5), Committed)


async def test_a_server_that_met_a_full_disk_is_started_again_as_soon_as_there_is_room(
    server: NatsServer, disk: SmallDisk, commands: ServiceClient
) -> None:
    store, kept = JetStreamEventStore(commands), Kept(server, disk.path, server.stop)
    await kept.look()
    acknowledged = [key for key in ("a", "b") if await append(store, key)]
    assert len(acknowledged) == 2

    disk.fill()
    for number in range(50):
        if not await append(store, f"full-{number}"):
            break
        acknowledged.append(f"full-{number}")
    assert len(acknowledged) < 52, "the disk did not become full"
    await kept.look()
    assert (kept.restarts, len(kept.said)) == (0, 1)
    assert "the disk is full" in kept.said[0]
    # What can be read is read: that is why it is left alone.
    assert all([(await store.load(TENANT, key)).version for key in acknowledged])

    disk.empty()
    assert not await append(store, "later"), "the server heals by itself now: the keeper can go"
    await kept.look()
    assert kept.restarts == 1
    assert "cannot write" in kept.said[1]
    assert "no space left on device" in kept.said[1]
    again = await appended(store, "again")
    assert (await store.load(TENANT, again)).version
    assert all([(await store.load(TENANT, key)).version for key in acknowledged])
    await kept.look()
    assert (kept.restarts, kept.said[2:]) == (1, ["the event log is written to again"])


async def test_a_full_disk_refuses_what_is_new_before_it_is_full_and_then_nothing_is_ready(
    server: NatsServer, disk: SmallDisk, commands: ServiceClient
) -> None:
    store, kept, health = JetStreamEventStore(commands), Kept(server, disk.path, server.stop), Health("commands")
    counts = Counts(
        store,
        CreationLimits(living=10, creations_per_hour=10, project_bytes_per_hour=2**20, user_bytes_per_hour=2**20),
        store.snapshots,
    )
    keys = JetStreamKeys(Requests(commands))
    carried_out = Commands(store=store, keys=keys, directory=Directory(store), counts=counts)
    api = await connect(server.settings("api"), "api")
    watch = LogWatch(commands, store, carried_out, health, clock=asyncio.get_running_loop().time)
    looking = asyncio.create_task(watch.run())
    try:
        await until(lambda: health.serving)
        assert (await log_trouble(Requests(api)), carried_out.log_full) == ("", "")

        disk.fill(leave_bytes=2 * 1024**2)
        await kept.look()
        await until(lambda: bool(carried_out.log_full))
        assert "the disk of server muster-test is nearly full" in carried_out.log_full
        assert health.serving, "what is known can still be changed"

        disk.fill()
        await until(lambda: not health.serving)
        assert "the log cannot be written" in health.reason
        assert await log_trouble(Requests(api)) in health.reason

        disk.empty()
        await kept.look()
        await kept.look()  # of the server that was started again: it has room
        await until(lambda: health.serving and not carried_out.log_full)
        assert await log_trouble(Requests(api)) == ""
    finally:
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking
        await api.close()


async def test_what_nobody_says_is_no_reason_to_start_a_server_again(server: NatsServer, disk: SmallDisk) -> None:
    """One that is starting, stands still, or has no streams yet; and one whose cluster lost a member."""
    kept = Kept(server, disk.path, server.stop)
    everything = await connect(server.settings(EVERYTHING), EVERYTHING)
    await delete_streams(everything, "SNAPSHOTS")
    await everything.close()
    for _ in range(4):
        await kept.look()
    server.kill()
    for _ in range(4):
        await kept.look()
    assert (kept.restarts, kept.said) == (0, [])
    server.start()


async def appended(store: JetStreamEventStore, name: str) -> str:
    """The key of the first append that was acknowledged, as soon as the connection is there again."""
    async with asyncio.timeout(UNTIL_SECONDS):
        for number in itertools.count():
            if await append(store, f"{name}-{number}"):
                return f"{name}-{number}"
    raise AssertionError


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(UNTIL_SECONDS):
        while not condition():
            await asyncio.sleep(0.02)
