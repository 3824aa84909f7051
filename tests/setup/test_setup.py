"""Setup: everything is there after it, and a second run changes nothing."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from nats.aio.client import Client

from development.commands import carry_out
from development.servers import EVERYTHING, NatsServer
from development.streams import STREAMS, delete_streams
from events.aggregate import CLUSTER, PROJECT, TENANT
from events.ids import TENANT_KEY, cluster_key, project_key
from events.subjects import EVENTS_STREAM, FEED_STREAM
from events.tenant import GrantTenantRole
from services.runtime.identity.actors import Actors
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.log.memory import MemoryEventStore
from services.runtime.nats.calls import call
from services.runtime.nats.connection import connect
from services.runtime.nats.declared import DECLARED
from services.runtime.nats.requests import Requests
from services.runtime.nats.streams import StreamError, assert_streams
from services.runtime.process.settings import Settings
from services.setup import program
from services.setup.migrate import STRICTER, is_stricter, migrate
from services.setup.service import SetupError, grant_first_administrator, make_first_places, set_up
from tests.support.refusals import raw

pytestmark = pytest.mark.anyio


async def test_setup_makes_everything_and_a_second_run_changes_nothing(
    nats_server: NatsServer, postgres_database: str, tmp_path: Path
) -> None:
    everything = await connect(nats_server.settings(EVERYTHING), EVERYTHING)
    for stream in STREAMS:
        await delete_streams(everything, stream)
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
    ada = await Actors(everything, Requests(everything)).find("muster", "ada")
    assert (await store.load(TENANT, TENANT_KEY)).state.roles == {ada: ("administrator",)}
    assert await store.last_seq() == 1
    assert (tmp_path / "key").read_bytes() == first_key
    assert (tmp_path / "jwks.json").exists()
    database = await asyncpg.connect(postgres_database)
    assert await database.fetchval("SELECT count(*) FROM muster.current_projection") == 1
    await database.close()
    await everything.close()


async def test_setup_makes_the_log_as_large_as_it_is_told(nats_server: NatsServer, fresh_log: NatsServer) -> None:
    more = Settings().log_max_bytes + 2**20
    async with raw(nats_server, EVERYTHING) as (everything, _):
        await delete_streams(everything, EVENTS_STREAM)
        await set_up(nats_server.settings("setup", log_max_bytes=more))
        assert (await config_of(everything))["max_bytes"] == more


async def test_a_log_that_the_server_has_no_room_for_is_told_in_a_sentence(
    nats_server: NatsServer, fresh_log: NatsServer
) -> None:
    async with raw(nats_server, EVERYTHING) as (everything, _):
        await delete_streams(everything, EVENTS_STREAM)
    ran = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "services.setup"],
        env=os.environ
        | {
            "MUSTER_NATS_URL": nats_server.url,
            "MUSTER_NATS_PASSWORD_DIR": str(nats_server.password_dir()),
            "MUSTER_LOG_MAX_BYTES": str(2**60),
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 1
    assert "max_file_store" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert '"exception"' not in ran.stderr


async def test_setup_changes_no_stream_and_says_which_migration_would(
    nats_server: NatsServer, fresh_log: NatsServer
) -> None:
    """What `log_full` tells an operator to do is the migration's."""
    more = Settings().log_max_bytes + 2**20
    async with raw(nats_server, EVERYTHING) as (everything, _):
        before = await config_of(everything)
        with pytest.raises(StreamError, match=rf"stream EVENTS: max_bytes {before['max_bytes']} -> {more}\n.*migrate"):
            await set_up(nats_server.settings("setup", log_max_bytes=more))
        assert await config_of(everything) == before

        told = await migrate(nats_server.settings("migrate", log_max_bytes=more))

        assert told == [f"stream EVENTS: max_bytes {before['max_bytes']} -> {more}"]
        assert await config_of(everything) == {**before, "max_bytes": more}
        await set_up(nats_server.settings("setup", log_max_bytes=more))
        assert await migrate(nats_server.settings("migrate", log_max_bytes=more)) == []
        with pytest.raises(StreamError, match=r"max_bytes .* -> 1152921504606846976.*`max_file_store`"):
            await migrate(nats_server.settings("migrate", log_max_bytes=2**60))


async def test_where_all_passwords_are_at_hand_setup_migrates(nats_server: NatsServer, fresh_log: NatsServer) -> None:
    """As in `muster up`, after an upgrade: here of a log as it was before its consumers had limits."""
    async with raw(nats_server, EVERYTHING) as (everything, _):
        now = await config_of(everything)
        await change(everything, {**now, "consumer_limits": {}, "deny_delete": True, "duplicate_window": 120 * 10**9})
        await set_up(nats_server.settings("setup", nats_password_dir=nats_server.password_dir()))
        assert await config_of(everything) == now


async def test_a_migration_makes_nothing_looser_and_says_what_it_found(
    nats_server: NatsServer, fresh_log: NatsServer
) -> None:
    async with raw(nats_server, EVERYTHING) as (everything, _):
        now = await config_of(everything)
        foreign = {**now, "subjects": ["ev.>", "other.>"], "consumer_limits": {}}
        await change(everything, foreign)
        with pytest.raises(
            StreamError, match=r'stream EVENTS: subjects is \["ev.>","other.>"\] and must be \["ev.>"\]'
        ):
            await migrate(nats_server.settings("migrate"))
        assert await config_of(everything) == foreign


@pytest.mark.parametrize(
    ("key", "before", "after"),
    [
        *(("max_age", None, 10**9), ("max_age", 2, 1), ("max_msgs", -1, 5), ("max_msgs", 5, 4)),
        *(("max_msgs_per_subject", -1, 1), ("max_bytes", 10, 9), ("max_msg_size", -1, 1), ("duplicate_window", 2, 1)),
        *(("discard", "new", "old"), ("deny_delete", True, False), ("deny_purge", True, None)),
        *(("allow_rollup_hdrs", False, True), ("allow_msg_ttl", None, True), ("republish", None, {"src": ">"})),
        *(("consumer_limits", {"max_ack_pending": 1}, {}), ("placement", {"tags": ["sync:always"]}, None)),
        *(("storage", "file", "memory"), ("num_replicas", 3, 1), ("sources", None, [{}]), ("sealed", False, True)),
    ],
)
def test_a_change_that_could_lose_something_is_no_migration(key: str, before: object, after: object) -> None:
    assert not is_stricter(key, before, after)
    assert is_stricter(key, after, before) == (key in STRICTER)


async def config_of(everything: Client) -> dict[str, Any]:
    answer = await everything.request(call("STREAM.INFO", EVENTS_STREAM), b"", timeout=60)
    return json.loads(answer.data)["config"]


async def change(everything: Client, config: dict[str, Any]) -> None:
    answer = await everything.request(call("STREAM.UPDATE", EVENTS_STREAM), json.dumps(config).encode(), timeout=60)
    assert "error" not in json.loads(answer.data), answer.data


async def test_only_setup_may_create_streams(nats_server: NatsServer, fresh_log: NatsServer) -> None:
    """Also `commands`, which may append, cannot make or drop a stream: the server does not listen to it."""
    connection = await connect(nats_server.settings("commands"), "commands")
    for verb in ("STREAM.CREATE", "STREAM.DELETE", "STREAM.PURGE", "STREAM.UPDATE"):
        with pytest.raises(Exception, match=r"(?i)timeout"):
            await connection.request(call(verb, EVENTS_STREAM), b"{}", timeout=0.3)
    await connection.close()


async def test_of_all_streams_the_migration_can_delete_the_feed_alone(fresh_log: NatsServer) -> None:
    connection = await connect(fresh_log.settings("migrate"), "migrate")
    for declared in DECLARED:
        if declared.name != FEED_STREAM:
            with pytest.raises(Exception, match=r"(?i)timeout|no responders"):
                await connection.request(call("STREAM.DELETE", declared.name), b"", timeout=0.2)
    await connection.close()


def test_a_word_that_setup_does_not_know_is_refused_before_anything_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["rebuild"]) == 2
    assert "give nothing, migrate or rebuild-feed" in capsys.readouterr().err


@pytest.fixture
async def actors(fresh_log: NatsServer) -> AsyncIterator[Actors]:
    nc = await connect(fresh_log.settings("setup"), "setup")
    yield Actors(nc, Requests(nc))
    await nc.close()


async def test_a_tenant_that_has_an_administrator_gets_no_other(actors: Actors) -> None:
    store = MemoryEventStore()
    root = await actors.find_or_make("muster", "root")
    await carry_out(store, "1", GrantTenantRole(subject="root", role="administrator", actor=root))

    assert not await grant_first_administrator(store, actors, "muster", "admin")
    assert (await store.load(TENANT, TENANT_KEY)).state.roles == {root: ("administrator",)}


async def test_a_tenant_whose_administrators_can_have_no_token_gets_one_who_can(actors: Actors) -> None:
    """Their records are lost, or they have tokens of another issuer than the present one."""
    store = MemoryEventStore()
    elsewhere = await actors.find_or_make("https://old", "root")
    for number, lost in enumerate(("a_" + 26 * "a", elsewhere)):
        grant = GrantTenantRole(subject="root", role="administrator", actor=lost)
        await carry_out(store, str(number), grant)

    assert await grant_first_administrator(store, actors, "muster", "admin")
    made = await actors.find("muster", "admin")
    assert (await store.load(TENANT, TENANT_KEY)).state.roles[made or ""] == ("administrator",)
    assert not await grant_first_administrator(store, actors, "muster", "admin")


async def test_of_several_setups_at_once_one_grants(actors: Actors) -> None:
    store = MemoryEventStore()

    granted = await asyncio.gather(*(grant_first_administrator(store, actors, "muster", "admin") for _ in range(5)))

    assert sum(granted) == 1
    made = await actors.find("muster", "admin")
    assert (await store.load(TENANT, TENANT_KEY)).state.roles == {made: ("administrator",)}


async def test_the_first_cluster_and_project_are_made_once_and_stay_as_people_leave_them() -> None:
    store = MemoryEventStore()
    await make_first_places(store, "4x8")
    cluster = (await store.load(CLUSTER, cluster_key("simulated"))).state
    assert (cluster.name, cluster.kind) == ("simulated", "simulated")
    assert sum(nodes.gpu_count * len(nodes.names) for nodes in cluster.simulated_nodes) == 32
    assert (await store.load(PROJECT, project_key("default"))).state.name == "default"
    seq = await store.last_seq()
    await make_first_places(store, "4x8")
    assert await store.last_seq() == seq


def test_the_password_of_the_database_may_stand_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("p/w@rd\n")
    settings = Settings(postgres_url="postgresql://muster@db:5432/muster", postgres_password_file=tmp_path / "password")
    assert settings.database_url == "postgresql://muster:p%2Fw%40rd@db:5432/muster"
    assert Settings(postgres_url="postgresql://a:b@db/c").database_url == "postgresql://a:b@db/c"


async def test_an_empty_log_beside_tables_of_another_is_refused_before_anything_is_written(
    fresh_log: NatsServer, postgres_database: str
) -> None:
    settings = fresh_log.settings("setup", postgres_url=postgres_database, admin_subject="ada")
    await set_up(settings)
    tables = await asyncpg.connect(postgres_database)
    schema = await tables.fetchval("SELECT schema_name FROM muster.current_projection")
    await tables.execute(f'UPDATE "{schema}".checkpoint SET seq = 4711')
    await tables.close()
    everything = await connect(fresh_log.settings(EVERYTHING), EVERYTHING)
    await set_up(settings)  # with its log it is well
    for stream in STREAMS:
        await delete_streams(everything, stream)
    with pytest.raises(SetupError, match=r"log is empty, .*went up to 4,711\. Give NATS its data back .*nats-data"):
        await set_up(settings)
    assert (await everything.jetstream().stream_info(EVENTS_STREAM)).state.messages == 0
    await everything.close()
