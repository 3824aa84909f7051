"""Readiness of pods on this machine: asked over HTTP until it is there, and warned of once it is gone."""

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from events.cluster_protocol import ObservedPod
from events.workload.readiness import Readiness
from services.agent.backends.local.readiness import ask
from tests.agent.given import PYTHON, Watched, open_local, run_pod

pytestmark = pytest.mark.anyio

SERVER = """
import http.server, pathlib, sys
class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        where = self.path.strip("/")
        self.send_response(int(where) if where.isdigit() else 200 if pathlib.Path("ready").exists() else 503)
        self.send_header("Location", "http://127.0.0.1:1/")
        self.end_headers()
    def log_message(self, *said): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answers).serve_forever()
"""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[Watched]:
    watched = await open_local(tmp_path / "data")
    yield watched
    await watched.close()


async def until(local: Watched, *, ready: bool) -> ObservedPod:
    async with asyncio.timeout(60):
        while (seen := local.newest()) is None or seen.kind != "running" or seen.ready is not ready:
            await asyncio.sleep(0.02)
    return seen


async def test_a_pod_is_ready_once_it_answers_and_its_history_warns_when_it_does_no_more(
    local: Watched, tmp_path: Path
) -> None:
    """R21."""
    port = free_port()
    probe = Readiness(port=port, period_seconds=1, failures=1)
    await local.backend.apply(
        run_pod(node_name=local.node, arguments=(PYTHON, "-S", "-c", SERVER, str(port)), readiness=probe)
    )
    await until(local, ready=False)
    (work,) = (tmp_path / "data" / "pods").glob("*/1/work")
    (work / "ready").touch()
    assert (await until(local, ready=True)).warnings == ()
    (work / "ready").unlink()
    (warning,) = (await until(local, ready=False)).warnings
    assert warning.reason == "not_ready"
    assert f"port {port} answered 503" in warning.message


async def test_what_answers_is_ready_and_a_redirect_is_not_followed(local: Watched) -> None:
    port = free_port()
    await local.backend.apply(run_pod(node_name=local.node, arguments=(PYTHON, "-S", "-c", SERVER, str(port))))
    async with asyncio.timeout(60):
        while await ask(Readiness(port=port, path="/200")):
            await asyncio.sleep(0.05)
    assert await ask(Readiness(port=port, path="/302")) == ""
    assert await ask(Readiness(port=port, path="/404")) == f"port {port} answered 404"
    assert "port" in await ask(Readiness(port=port, https=True))
    assert "port" in await ask(Readiness(port=free_port()))


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-x\r\n", b"HTTP/1.1 ok fine\r\n", b"HTTP/1.1 200" + b"x" * 100_000])
async def test_an_answer_that_is_none_is_no_readiness(answer: bytes) -> None:
    async def say(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(say, "127.0.0.1", 0)
    async with server:
        assert await ask(Readiness(port=server.sockets[0].getsockname()[1]))


async def test_one_that_says_nothing_is_given_up() -> None:
    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(say, "127.0.0.1", 0)
    async with server:
        assert "no answer within 1 s" in await ask(Readiness(port=server.sockets[0].getsockname()[1]))
