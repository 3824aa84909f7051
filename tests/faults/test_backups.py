"""Backups and restores are killed, and backups are made while others write."""

import asyncio
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from nats.aio.client import Client

from development.servers import EVERYTHING, NatsServer
from services.runtime.backup.check import check, read_manifest, unlisted
from services.runtime.backup.place import Place
from services.runtime.nats.connection import connect
from services.runtime.nats.streams import StreamError, assert_streams, create_streams
from tests.backup import given

pytestmark = [pytest.mark.faults, pytest.mark.anyio, pytest.mark.one_in(3)]


@pytest.fixture
async def client(fresh_log: NatsServer) -> AsyncIterator[Client]:
    made = await connect(fresh_log.settings(EVERYTHING), EVERYTHING)
    yield made
    await made.close()


@pytest.fixture
def empty(server_folder: Path) -> Iterator[NatsServer]:
    """A server without any stream."""
    server = NatsServer(server_folder / "empty")
    server.start()
    yield server
    server.stop()


async def test_writers_go_on_and_a_backup_ends_at_a_whole_batch(
    fresh_log: NatsServer, client: Client, tmp_path: Path
) -> None:
    stop = asyncio.Event()

    async def write() -> int:
        written = 0
        while not stop.is_set():
            await given.batch(client, 50)
            written += 50
        return written

    writing = asyncio.create_task(write())
    ends = [(await given.backed_up(fresh_log, tmp_path)).manifest.seq for _ in range(6)]
    stop.set()
    assert await writing > ends[-1] - 50
    assert ends == sorted(ends)
    assert [end % 50 for end in ends] == [0] * 6
    assert await given.compared(fresh_log, tmp_path) >= ends[-1]


KILLED_BACKUP = """
import asyncio, sys
from pathlib import Path
from services.runtime.backup import archive
from services.runtime.backup.place import Place
from services.runtime.backup.source import Source
from services.runtime.backup.write import back_up
from services.runtime.nats.connection import connect
from services.runtime.nats.requests import Requests
from services.runtime.process.settings import Settings
archive.SEGMENT_MESSAGES = 20
async def main():
    client = await connect(Settings(nats_url=sys.argv[1], nats_password=sys.argv[2]), "backup")
    print("begins", flush=True)
    await back_up(Source(Requests(client)), Place(sys.argv[3]), sys.argv[4].encode(), {}, version="1",
                  progress=lambda done, total: None)
    print("done", flush=True)
asyncio.run(main())
"""


async def test_a_backup_that_is_killed_leaves_the_one_before_and_the_next_makes_it_whole(
    fresh_log: NatsServer, client: Client, tmp_path: Path, chance: random.Random
) -> None:
    for round_ in range(5):
        await given.commits(client, 60)
        arguments = (fresh_log.url, fresh_log.passwords["backup"], str(tmp_path), given.PASSPHRASE.decode())
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            KILLED_BACKUP,
            *arguments,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": "."},
        )
        assert process.stdout is not None
        assert await process.stdout.readline() == b"begins\n"
        await asyncio.sleep(chance.uniform(0.0, 1.2))
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.communicate()
        place = Place(str(tmp_path))
        if place.exists("manifest.json"):
            check(place, read_manifest(place), given.nothing)
        if round_ % 2:
            await given.backed_up(fresh_log, tmp_path)
            assert unlisted(place, read_manifest(place)) == []
            assert await given.compared(fresh_log, tmp_path) == read_manifest(place).seq == 60 * (round_ + 1)


KILLED_RESTORE = """
import asyncio, sys
from datetime import UTC, datetime
from services.runtime.backup import restore as module
from services.runtime.backup.check import read_manifest
from services.runtime.backup.place import Place
from services.runtime.backup.seal import sealer_of
from services.runtime.nats.connection import connect
from services.runtime.process.settings import Settings
module.BATCH = 10
async def main():
    nc = await connect(Settings(nats_url=sys.argv[1], nats_password=sys.argv[2]), "restore")
    place = Place(sys.argv[3])
    manifest = read_manifest(place)
    sealer = sealer_of(manifest.sealing, sys.argv[4].encode())
    print("begins", flush=True)
    await module.restore(nc, place, manifest, sealer, replicas=1, log_max_bytes=64 * 2**20, put_files=lambda _: None,
                         now=datetime.now(UTC), progress=lambda *_: None)
    print("done", flush=True)
asyncio.run(main())
"""


async def test_a_restore_that_is_killed_lets_nothing_start_and_goes_on(
    fresh_log: NatsServer, client: Client, empty: NatsServer, tmp_path: Path, chance: random.Random
) -> None:
    await given.commits(client, 400)
    await given.people(client, 40)
    await given.backed_up(fresh_log, tmp_path)
    arguments = (empty.url, empty.passwords["restore"], str(tmp_path), given.PASSPHRASE.decode())
    for _ in range(4):
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            KILLED_RESTORE,
            *arguments,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": "."},
        )
        assert process.stdout is not None
        assert await process.stdout.readline() == b"begins\n"
        await asyncio.sleep(chance.uniform(0.0, 0.4))
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        rest, _ = await process.communicate()
        if b"done" in rest:
            break
        async with given.connected(empty) as nc:
            with pytest.raises(StreamError, match=r"is being restored into it|is missing"):
                await assert_streams(nc, replicas=1)
    else:
        await given.restored(empty, tmp_path)
    assert given.told((await given.in_log(empty))[:-1]) == given.told(await given.in_log(fresh_log))
    assert (await given.state(empty)).incarnation == 1
    async with given.connected(empty) as nc:
        await create_streams(nc, 1)
        await assert_streams(nc, replicas=1)
        assert (await nc.jetstream().stream_info("AUDIT")).state.messages == 40
