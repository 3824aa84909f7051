"""Whether servers of data sources answer: a connection and no more, and to no address of the agent itself."""

import asyncio
import socket
import threading
from typing import Any

import pytest

from development.ports import free_port
from events.workload.volumes import BucketFolder, ClonedFolder, EmptyFolder, NfsFolder
from services.agent.backends.reach import MOST_NAMES, server_of, unreachable

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("volume", "server"),
    [
        (NfsFolder(mount_path="/a", server="nfs.example.com", path="/e"), ("nfs.example.com", 2049)),
        (ClonedFolder(mount_path="/a", repository="https://git.example.com/a"), ("git.example.com", 443)),
        (ClonedFolder(mount_path="/a", repository="http://git.example.com:3000/a"), ("git.example.com", 3000)),
        (ClonedFolder(mount_path="/a", repository="https://git.example.com:port/a"), None),
        (ClonedFolder(mount_path="/a", repository="ssh://git@git.example.com/a"), ("git.example.com", 22)),
        (ClonedFolder(mount_path="/a", repository="ssh://git@git.example.com:2222/a"), ("git.example.com", 2222)),
        (ClonedFolder(mount_path="/a", repository="git@git.example.com:team/a"), ("git.example.com", 22)),
        (BucketFolder(mount_path="/a", bucket="b"), ("s3.amazonaws.com", 443)),
        (BucketFolder(mount_path="/a", bucket="b", url="http://[::1]:9000"), ("::1", 9000)),
        (EmptyFolder(mount_path="/a"), None),
    ],
)
def test_each_kind_has_its_server(volume: Any, server: tuple[str, int] | None) -> None:
    assert server_of(volume) == server


async def test_a_server_that_takes_connections_is_told_nothing() -> None:
    said: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said.append(await reader.read())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        assert await unreachable("127.0.0.1", port, own=True) == ""
        async with asyncio.timeout(60):
            while not said:
                await asyncio.sleep(0.01)
    assert said == [b""]


async def test_one_that_does_not_is_told_by_its_name() -> None:
    port = free_port()
    assert await unreachable("localhost", port, own=True) == f"localhost takes no connections on port {port}"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "169.254.169.254", "0.0.0.0", "224.0.0.1"])
async def test_where_pods_run_elsewhere_nobody_is_sent_to_the_agents_own_addresses(host: str) -> None:
    assert await unreachable(host, free_port(), own=False) == ""


@pytest.mark.parametrize("host", ["a" * 70, "a..b", "ex\u00e4mple..", "-"])
async def test_a_name_that_is_none_breaks_nothing(host: str) -> None:
    assert isinstance(await unreachable(host, 443, own=False), str)


async def test_names_that_nobody_answers_hold_up_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resolver waits for half a minute, and nothing ends that; whoever types addresses can have it wait for many."""
    answered, look, waiting = threading.Event(), socket.getaddrinfo, list[str]()

    def wait(host: Any, *given: Any, **named: Any) -> Any:
        if host == "slow.example.com":
            waiting.append(host)
            answered.wait(60)
        return look("127.0.0.1", *given, **named)

    monkeypatch.setattr(socket, "getaddrinfo", wait)
    looks = [asyncio.create_task(unreachable("slow.example.com", free_port(), own=True)) for _ in range(64)]
    try:
        async with asyncio.timeout(60):
            while len(waiting) < MOST_NAMES:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(lambda: None)
    finally:
        answered.set()
        for task in looks:
            task.cancel()
        await asyncio.gather(*looks, return_exceptions=True)
