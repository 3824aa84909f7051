"""A restore gives the log back as it was: sequences, subjects, payloads and hash; into nothing that lives."""

import asyncio
import os
import random
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from nats.aio.client import Client

from development.servers import EVERYTHING, NatsServer
from development.streams import recreate_streams
from events.aggregate import LOG
from events.installation import LOG_KEY, Log
from services.runtime.backup.archive import BackupError, Message
from services.runtime.backup.check import read_manifest
from services.runtime.backup.place import Place
from services.runtime.backup.restore import Restored, restore
from services.runtime.backup.seal import sealer_of
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.nats.connection import connect
from services.runtime.nats.streams import StreamError, assert_streams, create_streams
from tests.backup import given

pytestmark = pytest.mark.anyio

OF_WRITING = ("Nats-Batch-", "Nats-Expected-", "Nats-Msg-Id")


@pytest.fixture
async def client(fresh_log: NatsServer) -> AsyncIterator[Client]:
    made = await connect(fresh_log.settings(EVERYTHING), EVERYTHING)
    yield made
    await made.close()


@pytest.fixture
def empty(server_folder: Path, request: pytest.FixtureRequest) -> Iterator[NatsServer]:
    """A server without any stream."""
    server = NatsServer(server_folder / f"empty-{abs(hash(request.node.name))}")
    server.start()
    yield server
    server.stop()


async def restored(server: NatsServer, folder: Path, put: dict[str, bytes] | None = None) -> Restored:
    """As `muster restore` does it, with its own user."""
    files: dict[str, bytes] = {} if put is None else put
    nc = await connect(server.settings("restore"), "restore")
    place = Place(str(folder))
    try:
        manifest = read_manifest(place)
        return await restore(
            nc,
            place,
            manifest,
            await asyncio.to_thread(sealer_of, manifest.sealing, given.PASSPHRASE),
            replicas=1,
            log_max_bytes=64 * 2**20,
            put_files=files.update,
            now=datetime.now(UTC),
            progress=lambda _what, _done, _total: None,
        )
    finally:
        await nc.close()


def told(messages: list[Message]) -> list[tuple[int, str, bytes, Mapping[str, str]]]:
    """All of a message but when it was stored, and how it was to be written."""
    return [
        (m.seq, m.subject, m.data, {k: v for k, v in m.headers.items() if not k.startswith(OF_WRITING)})
        for m in messages
    ]


async def state(server: NatsServer) -> Log:
    async with connected(server) as nc:
        return (await JetStreamEventStore(nc).load(LOG, LOG_KEY)).state


@asynccontextmanager
async def connected(server: NatsServer, user: str = EVERYTHING) -> AsyncGenerator[Client]:
    nc = await connect(server.settings(user), user)
    try:
        yield nc
    finally:
        await nc.close()


async def test_the_log_comes_back_as_it_was_and_says_that_it_was_restored(
    fresh_log: NatsServer, client: Client, empty: NatsServer, tmp_path: Path
) -> None:
    await given.commits(client, 20)
    await given.batch(client, 7)
    await given.odd(client)
    await given.people(client, 5)
    done = await given.backed_up(fresh_log, tmp_path)
    files: dict[str, bytes] = {}
    result = await restored(empty, tmp_path, files)
    before, after = await given.in_log(fresh_log), await given.in_log(empty)
    assert told(after[:-1]) == told(before)
    assert given.chain_of(after[:-1]) == done.manifest.chain
    assert (result.seq, result.incarnation) == (len(before), 1)
    assert (await state(empty)) == Log(incarnation=1, restored_seq=len(before))
    assert files == given.FILES
    async with connected(empty) as there:
        await create_streams(there, 1)  # as setup does
        await assert_streams(there, replicas=1)
        for stream in ("ACTORS", "AUDIT", "KEYS"):
            assert (await there.jetstream().stream_info(stream)).state.messages == 5
        message = await there.request(
            "$JS.store.API.STREAM.MSG.GET.ACTORS", b'{"last_by_subj":"actor.k3.a3"}', timeout=5
        )
        assert msgspec.json.decode(message.data)["message"]["data"] == "cGVyc29uIDM="


async def test_each_restore_raises_the_incarnation_and_its_log_can_be_backed_up_again(
    fresh_log: NatsServer, client: Client, empty: NatsServer, tmp_path: Path
) -> None:
    await given.commits(client, 5)
    await given.backed_up(fresh_log, tmp_path / "first")
    await restored(empty, tmp_path / "first")
    await given.backed_up(empty, tmp_path / "second")
    await recreate_streams(fresh_log.settings(EVERYTHING))
    async with connected(fresh_log) as nc:
        for stream in (
            "EVENTS",
            "WANTED",
            "OBSERVED",
            "AUDIT",
            "REFUSALS",
            "SNAPSHOTS",
            "KEYS",
            "ACTORS",
            "CODE",
            "FEED",
        ):
            await nc.request(f"$JS.store.API.STREAM.DELETE.{stream}", b"", timeout=5)
    assert (await restored(fresh_log, tmp_path / "second")).incarnation == 2
    await recreate_streams(fresh_log.settings(EVERYTHING))


async def test_what_lives_is_refused_by_name_and_stays_as_it_is(
    fresh_log: NatsServer, client: Client, tmp_path: Path
) -> None:
    await given.commits(client, 3)
    await given.backed_up(fresh_log, tmp_path)
    await given.commits(client, 2)
    before = await given.in_log(fresh_log)
    files: dict[str, bytes] = {}
    with pytest.raises(BackupError, match="there is an installation already: the stream EVENTS exists"):
        await restored(fresh_log, tmp_path, files)
    assert (await given.in_log(fresh_log), files) == (before, {})


async def test_a_damaged_backup_changes_nothing(
    fresh_log: NatsServer, client: Client, empty: NatsServer, tmp_path: Path
) -> None:
    await given.commits(client, 3)
    done = await given.backed_up(fresh_log, tmp_path)
    file = tmp_path / done.manifest.segments[0].file
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(BackupError, match=r"events/\S+ is damaged"):
        await restored(empty, tmp_path)
    async with connected(empty) as nc:
        await create_streams(nc, 1)  # there are none
        assert (await nc.jetstream().stream_info("EVENTS")).state.last_seq == 0


KILLED = """
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
            KILLED,
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
        async with connected(empty) as nc:
            with pytest.raises(StreamError, match=r"is being restored into it|is missing"):
                await assert_streams(nc, replicas=1)
    else:
        await restored(empty, tmp_path)
    assert told((await given.in_log(empty))[:-1]) == told(await given.in_log(fresh_log))
    assert (await state(empty)).incarnation == 1
    async with connected(empty) as nc:
        await create_streams(nc, 1)
        await assert_streams(nc, replicas=1)
        assert (await nc.jetstream().stream_info("AUDIT")).state.messages == 40


async def test_another_backup_does_not_go_on_with_a_restore(
    fresh_log: NatsServer, client: Client, empty: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await given.commits(client, 3)
    await given.backed_up(fresh_log, tmp_path / "one")
    await given.commits(client, 3)
    await given.backed_up(fresh_log, tmp_path / "other")

    async def cut_off(*_: object) -> None:
        raise BackupError("cut off")

    with monkeypatch.context() as broken:
        broken.setattr("services.runtime.backup.restore._Restore.log", cut_off)
        with pytest.raises(BackupError, match="cut off"):
            await restored(empty, tmp_path / "one")
    with pytest.raises(BackupError, match=r"another backup is being restored here, with the head 3:"):
        await restored(empty, tmp_path / "other")
    assert (await restored(empty, tmp_path / "one")).seq == 3
