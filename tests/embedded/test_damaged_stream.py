"""A disk that has damaged the file of a stream: what is made again is thrown away and goes on, and nothing else is
touched.
"""

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from development.servers import EVERYTHING, NatsServer
from development.streams import recreate_streams
from muster.embedded.canary import CANARY_BYTES
from muster.embedded.damaged import can_go
from services.runtime.log.snapshots import Snapshots
from services.runtime.nats.connection import connect
from services.runtime.nats.declared import DECLARED
from services.runtime.nats.requests import Requests, UnansweredError
from services.runtime.nats.streams import create_disposable_streams, stream_config
from tests.support.keeping import Kept

pytestmark = pytest.mark.anyio

ROUNDS = 20
"""Looks within which a keeper must have found out; each takes three seconds at most."""


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    server = NatsServer(tmp_path / "nats")
    server.start()
    await recreate_streams(server.settings())
    yield server
    server.kill()


def kept_by(server: NatsServer) -> Kept:
    return Kept(server, server.store_dir, server.kill)


async def until_said(kept: Kept, count: int) -> str:
    for _ in range(ROUNDS):
        await kept.look()
        if len(kept.said) >= count:
            return kept.said[count - 1]
    raise AssertionError(kept.said)


def damage(server: NatsServer, stream: str, message: bytes) -> None:
    """One byte of a message that stands there."""
    server.stop()
    (file,) = server.store_dir.rglob(f"streams/{stream}/msgs/1.blk")
    content = bytearray(file.read_bytes())
    content[content.index(message) + 5] ^= 0xFF
    file.write_bytes(content)
    server.start()


async def fill(server: NatsServer, user: str) -> None:
    connection = await connect(server.settings(user), user)
    try:
        snapshots, chance = Snapshots(connection, Requests(connection)), random.Random(1)
        for number in range(5):
            assert await snapshots.save(f"fold.{user}", 1, number, chance.randbytes(200_000))
    finally:
        await connection.close()


async def pledge(server: NatsServer) -> None:
    connection = await connect(server.settings(EVERYTHING), EVERYTHING)
    try:
        await Requests(connection).ask("key.1", b"pledged", seconds=1)
    finally:
        await connection.close()


async def test_snapshots_that_a_disk_has_damaged_are_thrown_away_and_made_again(server: NatsServer) -> None:
    await fill(server, "scheduler")
    kept = kept_by(server)
    await kept.look()
    damage(server, "SNAPSHOTS", b"." * CANARY_BYTES)
    said = await until_said(kept, 1)
    assert "without the stream SNAPSHOTS, which holds nothing that is not made again" in said
    connection = await connect(server.settings("cluster_sync"), "cluster_sync")
    try:
        assert await stream_config(connection, "SNAPSHOTS") is None
        await create_disposable_streams(connection, 1)
        assert await stream_config(connection, "SNAPSHOTS") is not None
    finally:
        await connection.close()
    assert await until_said(kept, 2) == "the event log is written to again"
    await fill(server, "scheduler")


def test_what_may_go_is_all_that_is_written_again_from_the_log() -> None:
    assert {declared.name for declared in DECLARED if can_go(declared.name)} == {
        *("FEED", "OBSERVED", "SNAPSHOTS", "WANTED"),
    }


async def test_what_is_not_made_again_stays_as_the_disk_left_it_and_the_way_out_is_named(server: NatsServer) -> None:
    await pledge(server)
    damage(server, "KEYS", b"pledged")
    with pytest.raises(UnansweredError):  # what it would write over cannot be read
        await pledge(server)
    said = await until_said(kept_by(server), 1)
    assert "stream 'STORE_KEYS > KEYS'" in said
    assert "docs/concepts/operating.md, A damaged stream (KEYS)" in said
    assert list(server.store_dir.rglob("streams/KEYS"))
