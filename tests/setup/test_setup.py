"""Setup: everything is there after it, and a second run changes nothing."""

import asyncio
from pathlib import Path

import asyncpg
import pytest

from events.aggregate import TENANT
from events.ids import TENANT_KEY
from events.subjects import EVENTS_STREAM
from events.tenant import GrantTenantRole
from services.runtime.connection import connect
from services.runtime.jetstream import JetStreamEventStore
from services.runtime.memory import MemoryEventStore
from services.runtime.settings import Settings
from services.runtime.streams import assert_streams
from services.setup.service import grant_first_administrator, set_up
from tests.support.commands import carry_out
from tests.support.servers import EVERYTHING, NatsServer
from tests.support.streams import STREAMS

pytestmark = pytest.mark.anyio


async def test_setup_makes_everything_and_a_second_run_changes_nothing(
    nats_server: NatsServer, postgres_database: str, tmp_path: Path
) -> None:
    everything = await connect(nats_server.settings(EVERYTHING), EVERYTHING)
    for stream in STREAMS:
        await everything.request(f"$JS.API.STREAM.DELETE.{stream}", b"", timeout=10)
    settings = nats_server.settings(
        "setup",
        postgres_url=postgres_database,
        admin_subject="ada",
        key_file=tmp_path / "key",
        jwks_file=tmp_path / "jwks.json",
    )

    await set_up(settings)
    first_key = (tmp_path / "key").read_bytes()
    await set_up(settings)

    await assert_streams(everything, replicas=1)
    store = JetStreamEventStore(everything)
    assert (await store.load(TENANT, TENANT_KEY)).state.roles == {"ada": ("administrator",)}
    assert await store.last_seq() == 1
    assert (tmp_path / "key").read_bytes() == first_key
    assert (tmp_path / "jwks.json").exists()
    database = await asyncpg.connect(postgres_database)
    assert await database.fetchval("SELECT count(*) FROM muster.current_projection") == 1
    await database.close()
    await everything.close()


async def test_setup_gives_a_log_that_is_there_more_room(nats_server: NatsServer, fresh_log: NatsServer) -> None:
    """What `log_full` tells an operator to do."""
    more = Settings().log_max_bytes + 2**20
    await set_up(nats_server.settings("setup", log_max_bytes=more))
    everything = await connect(nats_server.settings(EVERYTHING), EVERYTHING)
    info = await everything.jetstream().stream_info(EVENTS_STREAM)
    assert info.config.max_bytes == more
    await everything.close()


async def test_only_setup_may_create_streams(nats_server: NatsServer, fresh_log: NatsServer) -> None:
    """Also `commands`, which may append, cannot make or drop a stream: the server does not listen to it."""
    connection = await connect(nats_server.settings("commands"), "commands")
    for verb in ("CREATE", "DELETE", "PURGE", "UPDATE"):
        with pytest.raises(Exception, match=r"(?i)timeout"):
            await connection.request(f"$JS.API.STREAM.{verb}.{EVENTS_STREAM}", b"{}", timeout=0.3)
    await connection.close()


async def test_a_tenant_that_has_an_administrator_gets_no_other() -> None:
    store = MemoryEventStore()
    await carry_out(store, "1", GrantTenantRole(subject="root", role="administrator"))

    assert not await grant_first_administrator(store, "admin")
    assert (await store.load(TENANT, TENANT_KEY)).state.roles == {"root": ("administrator",)}


async def test_of_several_setups_at_once_one_grants() -> None:
    store = MemoryEventStore()

    granted = await asyncio.gather(*(grant_first_administrator(store, "admin") for _ in range(5)))

    assert sum(granted) == 1
    assert (await store.load(TENANT, TENANT_KEY)).state.roles == {"admin": ("administrator",)}
