"""The proxy on a real log: what it learns, whatever is killed; with real tokens, and its own credential."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path

import httpx
import pytest

from development.ports import free_port
from development.servers import EVERYTHING, NatsServer
from events.codec import encode_commit
from events.subjects import aggregate_subject
from services.proxy.service import run
from services.runtime.identity.local_keys import load_or_create_key, sign_token, write_jwks
from services.runtime.nats.connection import connect
from services.runtime.process.host import Health
from tests.proxy.given import Given, echo, program

pytestmark = pytest.mark.anyio
SECONDS = 60.0


@contextlib.asynccontextmanager
async def proxying(server: NatsServer, keys: Path) -> AsyncGenerator[str]:
    """The service, until the block ends: its address."""
    stop, health, port = asyncio.Event(), Health("proxy"), free_port()
    settings = server.settings(
        "proxy", jwks_file=keys / "jwks.json", proxy_url="http://apps.test:8083", proxy_port=port, health_port=0
    )
    task = asyncio.create_task(run(settings, health, stop))
    try:
        async with asyncio.timeout(SECONDS):
            while not health.serving:
                if task.done():
                    task.result()
                await asyncio.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        stop.set()
        await task


async def answers(url: str, host: str, status: int, token: str) -> httpx.Response:
    """Its answer, once that is so: what was committed arrives in a moment."""
    async with asyncio.timeout(SECONDS), httpx.AsyncClient() as client:
        while True:
            answer = await client.get(url, headers={"host": host, "authorization": f"Bearer {token}"})
            if answer.status_code == status:
                return answer
            await asyncio.sleep(0.05)


async def test_it_learns_of_addresses_from_the_log_and_so_does_the_next_one(
    fresh_log: NatsServer, tmp_path: Path
) -> None:
    """Two at once, one that is stopped while the log grows, and one that begins with all of it."""
    key = load_or_create_key(tmp_path / "key.json")
    write_jwks(key, tmp_path / "jwks.json")
    token, given, written = sign_token(key, subject="ann", issuer="muster", audience="muster"), Given(), 0
    nc = await connect(fresh_log.settings(EVERYTHING), EVERYTHING)

    async def write() -> None:
        nonlocal written
        for commit in given.world.commits[written:]:
            await nc.request(aggregate_subject(commit.aggregate, commit.key), encode_commit(commit.record), timeout=60)
        written = len(given.world.commits)

    async with program(echo) as port:
        one = given.workload("one")
        await write()
        async with proxying(fresh_log, tmp_path) as first, proxying(fresh_log, tmp_path) as second:
            for proxy in (first, second):
                told = await answers(proxy, given.host(one), 503, token)
                assert "workload one is" in told.json()["message"]
            given.runs(one, port)
            await write()
            for proxy in (first, second):
                assert f"host: {given.host(one)}" in (await answers(proxy, given.host(one), 200, token)).text.lower()
        two = given.workload("two")
        given.runs(two, port)
        await write()
        async with proxying(fresh_log, tmp_path) as third:
            for workload in (one, two):
                await answers(third, given.host(workload), 200, token)
            await answers(third, given.host(one), 401, f"{token}x")
    await nc.close()


async def test_without_an_address_of_its_own_it_serves_nothing_and_is_well(fresh_log: NatsServer) -> None:
    stop, health = asyncio.Event(), Health("proxy")
    task = asyncio.create_task(run(fresh_log.settings("proxy"), health, stop))
    async with asyncio.timeout(SECONDS):
        while not health.serving:
            await asyncio.sleep(0.01)
    stop.set()
    await task
