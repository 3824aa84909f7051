"""A rotation of the store's key that is killed again and again, beside others that are begun meanwhile, and people who
go on storing values: every value that was acknowledged opens in the end, with the one key that is left.
"""

import asyncio
import random
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from development.servers import EVERYTHING, NatsServer
from events.ids import incarnation_id, name_key
from services.runtime.credentials.kept import KeptCredentials
from services.runtime.credentials.keys import Ring, new_ring, read_public, read_ring, write_public, write_ring
from services.runtime.nats.connection import connect
from services.runtime.nats.requests import Requests
from services.runtime.process.settings import Settings
from tests.faults.test_event_readers import Killable

pytestmark = [pytest.mark.faults, pytest.mark.anyio, pytest.mark.timeout(1800)]

VALUES: Final = 1_000
VALUES_IN_SHORT: Final = 100
SETTLE_SECONDS: Final = 300.0
ROTATE: Final = """
import asyncio, sys
from pathlib import Path
from services.runtime.credentials.rotate import USER, rotate
from services.runtime.nats.connection import connect
from services.runtime.nats.requests import Requests
from services.runtime.process.settings import Settings

async def main():
    nc = await connect(Settings(), USER)
    folder = Path(sys.argv[1])
    await rotate(Requests(nc), folder / "private", folder / "public", lambda *_: None, wait_seconds=0.2)
    await nc.close()

asyncio.run(main())
"""


class Store:
    """Of one owner, as the API writes it; and who replaces its key."""

    def __init__(self, requests: Requests, folder: Path, settings: Settings) -> None:
        self.rotation, self.second = (
            Killable(
                *(sys.executable, "-c", ROTATE, str(folder)),
                MUSTER_NATS_URL=settings.nats_url,
                MUSTER_NATS_PASSWORD=settings.nats_password,
            )
            for _ in range(2)
        )
        self.private, self.public = folder / "private", folder / "public"
        write_ring(self.private, new_ring())
        write_public(self.public, read_ring(self.private))
        self.kept = KeptCredentials(requests)
        self.stored: dict[str, str] = {}
        """Values that were acknowledged, by their ids."""

    async def put(self, number: int) -> None:
        id_, value = incarnation_id(name_key("c", str(number)), "made"), f"value-{number}"
        public = b""
        while read_public(self.public) != public:
            public = read_public(self.public)
            await self.kept.put("ann", id_, {"key": value}, public)
        self.stored[id_] = value

    async def lost(self) -> list[str]:
        """Ids of values that do not open as they were stored."""
        ring = read_ring(self.private)
        return [id_ for id_, value in self.stored.items() if await self._opened(id_, ring) != {"key": value}]

    async def _opened(self, id_: str, ring: Ring) -> object:
        try:
            return await self.kept.get("ann", id_, ring)
        except Exception as error:  # noqa: BLE001 (whatever it is, it is lost)
            return repr(error)


@pytest.fixture
async def store(fresh_log: NatsServer, tmp_path: Path) -> AsyncIterator[Store]:
    nc = await connect(fresh_log.settings(EVERYTHING), EVERYTHING)
    yield Store(Requests(nc), tmp_path, fresh_log.settings("rotate"))
    await nc.close()


async def test_no_value_is_lost_however_often_a_rotation_is_killed(
    store: Store, rounds: int, chance: random.Random, request: pytest.FixtureRequest
) -> None:
    count = VALUES_IN_SHORT if request.config.option.short else VALUES
    for number in range(count):
        await store.put(number)
    rotation = store.rotation
    first, newest = read_ring(store.private), count
    for _ in range(rounds):
        rotation.start()
        begun = asyncio.get_running_loop().time()
        until = begun + chance.uniform(0.5, 3.0)
        while asyncio.get_running_loop().time() < until and rotation.runs():
            await store.put(newest)
            newest += 1
        if chance.random() < 0.3 and rotation.runs():
            # One that stands still while another is begun, and goes on beside it.
            with rotation.paused():
                store.second.start()
                await asyncio.sleep(2)
                store.second.end()
        rotation.end()
        assert await store.lost() == []
    rotation.start()
    async with asyncio.timeout(SETTLE_SECONDS):
        while rotation.runs():
            await store.put(newest)
            newest += 1
            await asyncio.sleep(0.01)
    assert await store.lost() == []
    left = read_ring(store.private)
    assert len(left.keys) == 1
    assert left.keys[0] not in first.keys
    print(f"\n{len(store.stored)} values, {rounds} kills, none lost")
