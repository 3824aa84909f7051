"""What every store of keys promises: the one in memory, one JetStream server, and three in a cluster."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from development.servers import EVERYTHING
from development.streams import recreate_streams
from events.envelope import Accepted
from services.commands.keys import JetStreamKeys, Kept, Keys, Pledged, Released, Settled
from services.runtime.nats.connection import connect
from services.runtime.nats.requests import Requests
from tests.support.memory_keys import MemoryKeys

pytestmark = pytest.mark.anyio

PLEDGED = Pledged(target="ev.workload.a", body_hash="h", after_seq=7)
SETTLED = Settled(target="ev.workload.a", body_hash="h", answer=Accepted(seq=9, changed=False))


@pytest.fixture(params=["memory", "one server", "three servers"])
async def keys(request: pytest.FixtureRequest) -> AsyncIterator[Keys]:
    if request.param == "memory":
        yield MemoryKeys()
        return
    server = request.getfixturevalue("nats_server" if request.param == "one server" else "nats_cluster")
    await recreate_streams(server.settings(EVERYTHING))
    connection = await connect(server.settings("commands"), "commands")
    yield JetStreamKeys(Requests(connection))
    await connection.close()


async def test_a_record_is_read_as_it_was_written(keys: Keys) -> None:
    assert await keys.read("k") is None
    seq = 0
    for entry in (PLEDGED, SETTLED, Released()):
        seq = await keys.write("k", entry, over=seq) or 0
        assert await keys.read("k") == Kept(entry, seq)
    assert await keys.read("other") is None


async def test_a_record_is_written_only_over_the_newest(keys: Keys) -> None:
    first = await keys.write("k", PLEDGED, over=0)
    assert first
    assert await keys.write("k", SETTLED, over=0) is None
    assert await keys.write("k", SETTLED, over=first + 1) is None
    assert await keys.read("k") == Kept(PLEDGED, first)
    assert await keys.write("other", PLEDGED, over=0)
    assert await keys.write("k", SETTLED, over=first)


async def test_of_many_writers_at_once_one_wins(keys: Keys) -> None:
    entries = [Pledged(target=f"ev.workload.{number}", body_hash="h") for number in range(16)]
    written = await asyncio.gather(*(keys.write("k", entry, over=0) for entry in entries))
    (won,) = (number for number, seq in enumerate(written) if seq is not None)
    assert await keys.read("k") == Kept(entries[won], written[won] or 0)
