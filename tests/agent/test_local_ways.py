"""Ways into pods on this machine: where a command runs, what it gets, how it ends, and whose ports are reached."""

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from events.channels import CONNECT, DATA, END, EOF, RESET, RESIZE, STDERR, STDIN, STDOUT, TAKEN
from events.cluster_protocol import SealedValues, SessionOpen
from events.workload.pod_sets import ContainerPort
from services.agent.backends.interface import NoWayError, Way, WayEnd
from services.agent.backends.local import shim
from services.runtime.forwarding import frame_of
from tests.agent.given import KEY, PYTHON, WORKLOAD, Watched, log_text, open_local, run_pod

pytestmark = pytest.mark.anyio
SESSION = "0b7a5c9e-5c3f-4c57-a4f5-2f9c9b6b1a10"
WAITS = ("/bin/sh", "-c", "echo here; while :; do sleep 0.1; done")


@pytest.fixture(params=["isolated", "shared"])
async def local(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Watched]:
    watched = await open_local(tmp_path / "data", **({"isolation": None} if request.param == "shared" else {}))
    yield watched
    await watched.close()


@pytest.fixture
async def isolated(tmp_path: Path) -> AsyncIterator[Watched]:
    watched = await open_local(tmp_path / "data")
    yield watched
    await watched.close()


async def running(local: Watched, *arguments: str, values: SealedValues | None = None, **more: Any) -> None:
    pod = run_pod(1, node_name=local.node, arguments=arguments or WAITS, **more)
    await local.backend.apply(pod, *([] if values is None else [values]))
    await local.until("running")


async def writes(local: Watched, line: str) -> None:
    """Until the pod has written it."""
    async with asyncio.timeout(60):
        while line not in await log_text(local.backend):
            await asyncio.sleep(0.02)


def asked(*command: str, **more: Any) -> SessionOpen:
    kind = more.pop("kind", "exec")
    return SessionOpen(
        session_id=SESSION, kind=kind, workload_id=WORKLOAD, pod_key=KEY, token=1, command=command, **more
    )


async def told(way: Way, out: dict[int, bytes] | None = None) -> tuple[bytes, bytes, WayEnd]:
    """What it wrote, which `out` also holds so far, and how it ended."""
    out = {} if out is None else out
    out |= {STDOUT: b"", STDERR: b""}
    try:
        async with asyncio.timeout(60):
            async for frame in way.frames():
                out[frame[0]] += frame[1:]
        return out[STDOUT], out[STDERR], way.end()
    finally:
        await way.close()


async def run(local: Watched, script: str, *typed: bytes, **more: Any) -> tuple[bytes, bytes, WayEnd]:
    way = await local.backend.open_way(asked("/bin/sh", "-c", script, **more))
    for piece in typed:
        await way.take(bytes((STDIN,)) + piece)
    if more.get("stdin"):
        await way.take(bytes((END,)))
    return await told(way)


async def test_a_command_runs_where_and_as_the_pods_own_process_does(local: Watched, tmp_path: Path) -> None:
    values = SealedValues(environment={"PASSWORD": "hush"})
    await running(local, values=values, environment={"NAME": "v"})
    script = 'pwd; echo "$NAME $PASSWORD $MUSTER_POD_SET"; id -u; readlink /proc/self/ns/mnt'
    out, err, end = await run(local, script)
    folder, names, uid, mounts = out.decode().splitlines()
    assert (folder.endswith("/work"), names, uid, err) == (True, "v hush main", str(os.getuid()), b"")
    assert end == WayEnd("ended", "", 0)
    begun = json.loads(next((tmp_path / "data").glob("pods/*/*/started.json")).read_text())
    assert mounts == os.readlink(f"/proc/{begun['pid']}/ns/mnt")  # noqa: PTH115 (no path that is there)


async def test_its_exit_code_its_errors_and_bytes_of_any_kind_come_through(isolated: Watched) -> None:
    await running(isolated)
    blob = bytes(range(256)) * 1024
    way = await isolated.backend.open_way(asked("/bin/sh", "-c", "cat; echo bad >&2; exit 7", stdin=True))
    reading = asyncio.create_task(told(way))
    for at in range(0, len(blob), 60_000):
        await way.take(bytes((STDIN,)) + blob[at : at + 60_000])
    await way.take(bytes((END,)))
    out, err, end = await reading
    assert (out == blob, err, end.exit_code) == (True, b"bad\n", 7)


async def test_a_command_killed_by_a_signal_has_the_exit_code_of_a_shell(isolated: Watched) -> None:
    await running(isolated)
    assert (await run(isolated, "kill -TERM $$"))[2] == WayEnd("ended", "", 128 + signal.SIGTERM)


async def test_a_terminal_is_one_with_its_size_and_can_be_made_larger(local: Watched) -> None:
    await running(local)
    script = 'test -t 0 && test -t 1 && stty size && read line && stty size && echo "got $line"'
    way = await local.backend.open_way(asked("/bin/sh", "-c", script, stdin=True, tty=True, columns=80, rows=24))
    said = dict[int, bytes]()
    reading = asyncio.create_task(told(way, said))
    async with asyncio.timeout(60):
        while b"24 80" not in said.get(STDOUT, b""):
            await asyncio.sleep(0.02)
    await way.take(bytes((RESIZE,)) + b'{"columns": 132, "rows": 50}')
    await way.take(bytes((RESIZE,)) + b'{"columns": -1, "rows": "x"}')
    await way.take(bytes((STDIN,)) + b"word\n")
    out, _, end = await reading
    assert (out.split(), end.exit_code) == ([b"24", b"80", b"word", b"50", b"132", b"got", b"word"], 0)


@pytest.mark.parametrize("leaves", ["closes", "ends by itself"])
async def test_what_a_command_started_is_dead_once_its_session_is_over(local: Watched, leaves: str) -> None:
    await running(local)
    script = "setsid sleep 300 & sleep 301 & echo started; " + ("wait" if leaves == "closes" else "exit 0")
    way = await local.backend.open_way(asked("/bin/sh", "-c", script))
    frames = aiter(way.frames())
    assert await anext(frames) == bytes((STDOUT,)) + b"started\n"
    if leaves == "ends by itself":
        assert [frame async for frame in frames] == []
    await way.close()
    async with asyncio.timeout(60):
        while _of_session():
            await asyncio.sleep(0.05)
    assert (await local.backend.list_all()).pods[0].kind == "running"


def _of_session() -> list[int]:
    mark = f"MUSTER_SESSION_ID={SESSION}".encode()
    found: list[int] = []
    for pid, entry in shim.process_table().items():
        with contextlib.suppress(OSError):
            if entry.state != b"Z" and mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
    return found


async def test_a_session_ends_with_its_pod(local: Watched) -> None:
    await running(local)
    way = await local.backend.open_way(asked("/bin/sh", "-c", "echo up; exec sleep 300"))
    frames = aiter(way.frames())
    await anext(frames)
    await local.backend.delete(KEY, 1, 0)
    async with asyncio.timeout(60):
        assert [frame async for frame in frames] == []
    assert way.end().reason == "pod_ended"
    await way.close()


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (asked("no-such-program"), "command_not_found"),
        (asked("/etc/hostname"), "not_executable"),
        (asked("true", kind="attach", stdin=True), "no_stdin"),
    ],
)
async def test_what_cannot_be_opened_is_refused_by_name(isolated: Watched, request_: SessionOpen, code: str) -> None:
    await running(isolated)
    with pytest.raises(NoWayError) as refused:
        await isolated.backend.open_way(request_)
    assert refused.value.code == code


async def test_nothing_leads_into_a_pod_that_is_over_or_is_anothers(isolated: Watched) -> None:
    await running(isolated, "/bin/sh", "-c", "exit 0")
    await isolated.until("succeeded")
    for wrong in (asked("true"), replace(asked("true"), workload_id="x"), replace(asked("true"), token=2)):
        with pytest.raises(NoWayError):
            await isolated.backend.open_way(wrong)


async def test_whoever_attaches_sees_what_is_written_from_then_on_and_how_it_ends(
    isolated: Watched, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    script = f"echo before; while ! test -e {go}; do echo on; sleep 0.05; done; echo after; echo bad >&2; exit 3"
    await running(isolated, "/bin/sh", "-c", script)
    await writes(isolated, "before")
    said = dict[int, bytes]()
    reading = asyncio.create_task(told(await isolated.backend.open_way(asked(kind="attach")), said))
    async with asyncio.timeout(60):
        while b"on" not in said.get(STDOUT, b""):
            await asyncio.sleep(0.02)
    go.touch()
    out, err, end = await reading
    assert (set(out.split()), out.endswith(b"\nafter\n")) == ({b"on", b"after"}, True)
    assert (err, end.reason, end.exit_code) == (b"bad\n", "pod_ended", 3)


SERVER = """
import os, socket
s = socket.create_server(("127.0.0.1", int(os.environ["MUSTER_PORT_80"])))
print("listens", flush=True)
while True:
    c, _ = s.accept()
    while data := c.recv(65536):
        c.sendall(data.upper())
    c.close()
"""


async def test_ports_of_the_pods_own_processes_are_reached_and_nobody_elses(isolated: Watched) -> None:
    await running(isolated, PYTHON, "-S", "-c", SERVER, ports=(ContainerPort(container=80),))
    with socket.create_server(("127.0.0.1", 0)) as ours:
        foreign = ours.getsockname()[1]
        way = await isolated.backend.open_way(asked(kind="port-forward", ports=(80, foreign)))
        frames = aiter(way.frames())
        await writes(isolated, "listens")
        await way.take(frame_of(CONNECT, 1, (80).to_bytes(2)))
        await way.take(frame_of(DATA, 1, b"hello"))
        await way.take(frame_of(EOF, 1))
        got = [await anext(frames) for _ in range(3)]
        assert sorted(got) == sorted([frame_of(TAKEN, 1), frame_of(DATA, 1, b"HELLO"), frame_of(EOF, 1)])
        await way.take(frame_of(CONNECT, 2, foreign.to_bytes(2)))
        frame = await anext(frames)
        assert (frame[0], b"no process of the pod listens" in frame) == (RESET, True)
        await way.take(frame_of(CONNECT, 3, (81).to_bytes(2)))
        assert b"none of those" in await anext(frames)
    await way.close()
