"""What two hundred thousand workloads in the log cost: resident memory of every process, and the time to start.

The lives are written into the data folder of a stopped `muster up`, through a server of this benchmark's on the same
files. Then it is started three times: with the whole log to read and tables to fill, with its snapshots, and with the
tables and no snapshot. At its end some ask for the
logs of a pod that writes much, and read nothing.
"""

import asyncio
import contextlib
import fcntl
import socket
import sys
import tempfile
import termios
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import psutil
from nats.aio.client import Client

from benchmarks.report import Figure, Report
from benchmarks.synthetic import write_lives
from development.servers import EVERYTHING, NatsServer
from development.stack import PARTS, Api, Stack, until
from events.subjects import SNAPSHOTS_STREAM
from services.runtime.nats.connection import connect

STALLED_READERS = 4
STILL_SECONDS = 10.0
"""Without a further byte: then a reader has been sent what the kernel takes. It is cut off later than that
(`http_max_stalled_seconds`)."""
PATIENCE_SECONDS = 120.0
MUCH_OUTPUT = 'import time; any(print(("x" * 199 + "\\n") * 500) or time.sleep(0.01) for _ in iter(int, 1))'
"""Some 10 MB a second without end: much more than the kernel and we keep for one reader."""


def _resident(stack: Stack) -> dict[str, float]:
    """MiB (PSS) by part, with what each started."""
    found: dict[str, float] = {}
    for name in PARTS:
        process = stack.part(name)
        assert process is not None
        tree = [process, *process.children(recursive=True)]
        found[name] = sum(_pss(member) for member in tree) / 2**20
    return found


def _pss(process: psutil.Process) -> float:
    try:
        return process.memory_full_info().pss
    except psutil.NoSuchProcess:
        return 0.0


@contextlib.asynccontextmanager
async def _served(data_dir: Path) -> AsyncGenerator[Client]:
    """The streams of a stopped stack."""
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
        server = NatsServer(Path(folder), store_dir=data_dir / "nats" / "jetstream")
        server.start()
        try:
            nc = await connect(server.settings(EVERYTHING), EVERYTHING)
            yield nc
            await nc.close()
        finally:
            server.stop()


async def _fill(data_dir: Path, project: str, cluster: str, count: int) -> None:
    async with _served(data_dir) as nc:
        await write_lives(nc, project, cluster, count)


async def _wipe_snapshots(data_dir: Path) -> None:
    async with _served(data_dir) as nc:
        await nc.jetstream().purge_stream(SNAPSHOTS_STREAM)


def _started(stack: Stack, count: int) -> float:
    """Seconds until it is ready and the tables have every workload."""
    began = time.perf_counter()
    stack.start(timeout_seconds=900)
    ready = time.perf_counter() - began
    api = stack.api()
    until(lambda: api.get("/workloads/count")["count"] >= count or None, 600)
    return ready


def _with_stalled_readers(stack: Stack) -> float:
    """MiB (PSS) at most of the process with the api, while readers of logs are open that do not read."""
    api = stack.api()
    made = api.submit("writes-much", python=MUCH_OUTPUT)
    api.wait(made["workloadId"], "Running")
    control = stack.part("control")
    assert control is not None
    with contextlib.ExitStack() as opened:
        readers = [opened.enter_context(_unread_logs(stack, api, made["workloadId"])) for _ in range(STALLED_READERS)]
        most = _most_until_all_stand_still(readers, control)
    assert api.act("delete", made["workloadId"]).is_success
    return most


def _most_until_all_stand_still(readers: list[socket.socket], process: psutil.Process) -> float:
    began = still_since = time.perf_counter()
    waiting: list[int] = []
    most = 0.0
    while time.perf_counter() - still_since < STILL_SECONDS or not all(waiting):
        assert time.perf_counter() - began < PATIENCE_SECONDS, f"readers do not stand still: {waiting} bytes wait"
        before, waiting = waiting, [_unread_bytes(reader) for reader in readers]
        if waiting != before:
            still_since = time.perf_counter()
        most = max(most, _pss(process) / 2**20)
        time.sleep(0.2)
    return most


def _unread_bytes(connection: socket.socket) -> int:
    """What the kernel has for it."""
    return int.from_bytes(fcntl.ioctl(connection, termios.FIONREAD, bytes(4)), sys.byteorder)


def _unread_logs(stack: Stack, api: Api, workload_id: str) -> socket.socket:
    """A connection on which logs were asked for, and of whose answer nothing but the status is read."""
    connection = socket.create_connection(("127.0.0.1", stack.port), timeout=60)
    path = f"/api/v1/workloads/{workload_id}/logs?follow=true"
    authorization = api.http.headers["Authorization"]
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: {authorization}\r\n\r\n".encode())
    head = connection.recv(17)
    assert b" 200" in head, head
    return connection


def run(report: Report, *, short: bool) -> None:
    """Print memory and start-up."""
    count = 1_500 if short else 200_000
    with tempfile.TemporaryDirectory(prefix="muster-bench-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        stack = Stack(Path(folder) / "up").start()
        try:
            api = stack.api()
            project, cluster = api.project(), api.cluster("local")
            time.sleep(5)
            empty = _resident(stack)
            stack.stop()
            asyncio.run(_fill(stack.data_dir, project, cluster, count))
            first = _started(stack, count)
            time.sleep(5)
            full = _resident(stack)
            stack.stop()
            second = _started(stack, count)
            time.sleep(5)
            again = _resident(stack)
            stack.stop()
            asyncio.run(_wipe_snapshots(stack.data_dir))
            wiped = _started(stack, count)
            stalled = _with_stalled_readers(stack)
            stack.stop()
        finally:
            stack.close()
    for name in PARTS:
        report.add(Figure(name=f"resident at {count:,} workloads: {name}", value=again[name], unit="MiB"))
        growth = 2**20 * (again[name] - empty[name]) / count
        report.add(Figure(name="  growth per workload since the empty log", value=growth, unit="bytes"))
        report.add(Figure(name="  right after reading the whole log", value=full[name], unit="MiB"))
    growth = stalled - again["control"]
    name = f"control: growth by {STALLED_READERS} readers of logs that stand still"
    report.add(Figure(name=name, value=growth, unit="MiB", goal=32, at_most=True))
    report.add(Figure(name=f"start with {count:,} workloads to read", value=first, unit="s"))
    report.add(
        Figure(name=f"start with {count:,} workloads and snapshots", value=second, unit="s", goal=10, at_most=True)
    )
    report.add(
        Figure(
            name=f"start with {count:,} workloads, tables, no snapshot", value=wiped, unit="s", goal=60, at_most=True
        )
    )
