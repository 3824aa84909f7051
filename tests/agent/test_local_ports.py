"""Ports of pods on this machine: which they get, where they answer, and what becomes of one without its own."""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Generator
from pathlib import Path
from typing import Any

import pytest

from development.ports import free_port
from events.cluster_protocol import ObservedPod, RunPod
from events.workload.exposure import FIRST_NODE_PORT, LAST_NODE_PORT
from events.workload.pod_sets import ContainerPort
from events.workload.readiness import Readiness
from tests.agent.given import KEY, PYTHON, Watched, log_text, open_local, run_pod

pytestmark = pytest.mark.anyio

OTHER = "abcdefghijkl-main-1"
SERVE = """
import os, socket, sys
server = socket.create_server(("127.0.0.1", int(os.environ["MUSTER_PORT_" + sys.argv[1]])))
while True:
    with server.accept()[0] as one:
        one.recv(1000)
        one.sendall(b"HTTP/1.0 200 OK\\r\\n\\r\\nhello")
"""


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[Watched]:
    watched = await open_local(tmp_path / "data")
    yield watched
    await watched.close()


def port(container: int, **more: Any) -> ContainerPort:
    return ContainerPort(container=container, **more)


def serving(local: Watched, *ports: ContainerPort, key: str = KEY, **more: Any) -> RunPod:
    arguments = (PYTHON, "-S", "-c", SERVE, str(ports[0].container))
    return run_pod(pod_key=key, node_name=local.node, arguments=arguments, ports=ports, **more)


async def test_no_pod_gets_a_port_of_muster_s_own_servers_also_while_one_is_away(tmp_path: Path) -> None:
    """A server that was killed would not get it back before the pod has ended."""
    own = free_port()
    watched = await open_local(tmp_path / "data", own_ports=frozenset({own}))
    try:
        await watched.backend.apply(serving(watched, port(own)))
        seen = await watched.until("running")
        assert seen.address is not None
        assert seen.address.port(own) != own
    finally:
        await watched.close()


@contextlib.contextmanager
def listening(wanted: int = 0) -> Generator[int]:
    with socket.create_server(("127.0.0.1", wanted)) as server:
        yield server.getsockname()[1]


def free_node_port() -> int:
    for number in range(FIRST_NODE_PORT + os.getpid() % 2000, LAST_NODE_PORT):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", number)):
            return number
    raise AssertionError("no node port is free")


async def answer(seen: ObservedPod, container: int) -> bytes:
    assert seen.address is not None
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(seen.address.host, seen.address.port(container))
                writer.write(b"x")
                said = await reader.read()
                writer.close()
                return said
            await asyncio.sleep(0.05)


async def test_a_pod_gets_its_own_port_where_it_is_free_and_is_reached_there(local: Watched) -> None:
    container = free_port()
    await local.backend.apply(serving(local, port(container)))
    seen = await local.until("running")
    assert seen.address is not None
    assert (seen.address.host, seen.address.port(container), seen.address.node) == ("127.0.0.1", container, "")
    assert (await answer(seen, container)).endswith(b"hello")
    assert "MUSTER_PORT" not in seen.note


async def test_one_that_cannot_have_its_port_gets_another_and_is_told_which(local: Watched) -> None:
    """Two pods of one container port, one that a program has, and one that ordinary users cannot have."""
    container = free_port()
    await local.backend.apply(serving(local, port(container)))
    await local.backend.apply(serving(local, port(container), key=OTHER))
    first, second = await local.until("running"), await local.until("running", key=OTHER)
    assert first.address is not None
    assert second.address is not None
    assert first.address.port(container) != second.address.port(container)
    for seen in (first, second):
        assert (await answer(seen, container)).endswith(b"hello")
    assert f"{container} is {second.address.port(container)} (MUSTER_PORT_{container})" in second.note
    with listening() as taken:
        script = f"echo $MUSTER_PORT_{taken} $MUSTER_PORT_80 $PORT"
        arguments = ("/bin/sh", "-c", script)
        pod = run_pod(2, node_name=local.node, arguments=arguments, ports=(port(80), port(taken, variable="PORT")))
        await local.backend.apply(pod)
        ended = await local.until("succeeded", token=2)
        mine, low, told = map(int, (await log_text(local.backend))[0].split())
    assert taken != mine == told
    assert low >= 1024
    assert ended.address is not None
    assert (ended.address.port(taken), ended.address.port(80)) == (mine, low)


async def test_s030_a_node_port_is_had_or_the_run_has_failed_and_says_so(local: Watched) -> None:
    """S096 as well: the workload fails with it (tests/events/test_workload.py)."""
    wanted = free_node_port()
    with listening(wanted):
        await local.backend.apply(serving(local, port(8888, service="NodePort", external=wanted), key=OTHER))
        failed = await local.until("failed", "running", key=OTHER)
    assert (failed.kind, failed.reason, failed.exit_code) == ("failed", "node_port_taken", None)
    assert failed.message == f"node port {wanted} of this machine is in use: give another one, or none"
    await local.backend.apply(serving(local, port(8888, service="NodePort", external=wanted)))
    seen = await local.until("running")
    assert seen.address is not None
    assert (seen.address.port(8888), seen.address.node, seen.address.ports[0].external) == (wanted, "127.0.0.1", wanted)
    # A pod of the same workload has another, since what leads to the workload leads to the first one.
    await local.backend.apply(serving(local, port(8888, service="NodePort", external=wanted), key=f"{KEY[:-1]}7"))
    sibling = await local.until("running", key=f"{KEY[:-1]}7")
    assert sibling.address is not None
    assert sibling.address.port(8888) != wanted
    strange = serving(local, port(80, service="ClusterIP", external=wanted), key=OTHER, token=2, workload_id="w-2")
    await local.backend.apply(strange)
    assert "is kept for another pod" in (await local.until("failed", key=OTHER, token=2)).message


async def test_a_node_port_that_is_not_named_is_chosen(local: Watched) -> None:
    await local.backend.apply(serving(local, port(8888, service="NodePort")))
    seen = await local.until("running")
    assert seen.address is not None
    assert FIRST_NODE_PORT <= seen.address.ports[0].external <= LAST_NODE_PORT


async def test_it_is_asked_whether_it_is_ready_at_the_port_that_it_has(local: Watched) -> None:
    with listening() as taken:
        probe = Readiness(port=taken, period_seconds=1, failures=60)
        await local.backend.apply(serving(local, port(taken), readiness=probe))
        async with asyncio.timeout(60):
            while not (await local.until("running")).ready:
                await asyncio.sleep(0.05)


async def test_the_next_agent_knows_which_ports_are_whose(tmp_path: Path) -> None:
    container = free_port()
    local = await open_local(tmp_path / "data")
    await local.backend.apply(serving(local, port(container), port(8889, service="NodePort")))
    before = await local.until("running")
    await local.look_away()
    await local.backend.close()
    again = await open_local(tmp_path / "data")
    try:
        (after,) = (await again.backend.list_all()).pods
        assert after.address == before.address
        await again.backend.apply(serving(again, port(container), key=OTHER))
        other = await again.until("running", key=OTHER)
        assert other.address is not None
        assert other.address.port(container) != container
    finally:
        await again.close()
