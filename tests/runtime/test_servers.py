"""The servers that all other tests stand on are as the log's rules want them."""

import asyncpg
import pytest

from development.servers import EVERYTHING, NatsCluster, NatsServer
from development.streams import recreate_streams
from services.runtime.nats.connection import connect
from services.runtime.nats.streams import assert_streams

pytestmark = pytest.mark.anyio


async def test_one_server_passes_the_check_at_boot(fresh_log: NatsServer) -> None:
    nc = await connect(fresh_log.settings("api"), "api")
    await assert_streams(nc, replicas=1)
    await nc.close()


async def test_three_servers_pass_the_check_at_boot(nats_cluster: NatsCluster) -> None:
    await recreate_streams(nats_cluster.settings(EVERYTHING))
    nc = await connect(nats_cluster.settings("api"), "api")
    await assert_streams(nc, replicas=3)
    await nc.close()


async def test_a_database_of_its_own(postgres_database: str) -> None:
    connection = await asyncpg.connect(postgres_database)
    assert await connection.fetchval("SELECT 1") == 1
    await connection.close()
