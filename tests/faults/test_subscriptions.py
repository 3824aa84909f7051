"""The service as a process that is killed between two steps and started again: nothing stays half done. And two
hundred subscriptions at once.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from development.servers import NatsServer
from tests.support.subscribing import Given, given_on, is_let_in, reader, serving, until

pytestmark = [pytest.mark.faults, pytest.mark.anyio, pytest.mark.one_in(3)]


@pytest.fixture
async def given(fresh_log: NatsServer) -> AsyncGenerator[Given]:
    async with given_on(fresh_log) as scene:
        yield scene


def started(given: Given, failpoint: str, log: Path) -> subprocess.Popen[bytes]:
    """The service as a process of its own, which ends itself at that point."""
    server = given.server
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
    environment |= {
        "MUSTER_NATS_URL": server.url,
        "MUSTER_NATS_PASSWORD": server.passwords["subscriptions"],
        "MUSTER_CALLOUT_KEY_DIR": str(server.callout_key_dir()),
        "MUSTER_FAILPOINT": failpoint,
    }
    with log.open("wb") as output:
        return subprocess.Popen([sys.executable, "-m", "services.subscriptions"], env=environment, stderr=output)


async def killed(process: subprocess.Popen[bytes]) -> None:
    async with asyncio.timeout(60):
        while process.poll() is None:
            await asyncio.sleep(0.05)
    assert process.returncode == -signal.SIGKILL


async def test_killed_after_it_made_a_consumer_the_next_one_goes_on(given: Given, tmp_path: Path) -> None:
    project = await given.project("one")
    credentials = [await given.subscription("one") for _ in range(2)]
    await killed(started(given, "subscription_consumer_made", tmp_path / "log"))
    assert len(await given.consumers()) == 1
    async with serving(given.server):
        await given.ready(*credentials)
        await given.publish(project, "a")
        for credential in credentials:
            async with reader(given.server, credential) as program:
                assert await program.read(1) == ["a"]


async def test_killed_after_it_deleted_a_consumer_the_next_one_closes_the_connection(
    given: Given, tmp_path: Path
) -> None:
    await given.project("one")
    credential = await given.subscription("one")
    process = started(given, "subscription_consumer_deleted", tmp_path / "log")
    await given.ready(credential)
    await until(lambda: is_let_in(given.server, credential), "it is let in")
    async with reader(given.server, credential) as program:
        await given.delete(credential)
        await killed(process)
        assert not program.closed.is_set()
        async with serving(given.server):
            await until(program.closed.is_set, "its connection ends")
    assert await given.consumers() == set()


async def test_two_hundred_are_made_read_and_deleted(given: Given) -> None:
    async with serving(given.server):
        projects = [await given.project("one"), await given.project("two")]
        credentials = [await given.subscription(name) for name in ("one", "two") for _ in range(100)]
        await given.ready(*credentials)
        for project in projects:
            await given.publish(project, project)
        for credential in credentials[::20]:
            async with reader(given.server, credential) as program:
                assert await program.read(1) == [credential.project_id]
        for project in projects:
            await given.delete_project(project)

        async def gone() -> bool:
            return not await given.consumers()

        await until(gone, "all their consumers are gone")
