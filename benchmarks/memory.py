"""What two hundred thousand workloads in the log cost: resident memory of every process, and the time to start.

The lives are written into the data folder of a stopped `muster up`, through a server of this benchmark's on the same
files. Then it is started twice: once with the whole log to read, once with its snapshots.
"""

import asyncio
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.report import Figure, Report
from benchmarks.synthetic import write_lives
from services.runtime.connection import connect
from tests.support.servers import EVERYTHING, NatsServer
from tests.support.stack import PARTS, Stack, until


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


async def _fill(data_dir: Path, project: str, cluster: str, count: int) -> None:
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
        server = NatsServer(Path(folder), store_dir=data_dir / "nats" / "jetstream")
        server.start()
        try:
            nc = await connect(server.settings(EVERYTHING), EVERYTHING)
            await write_lives(nc, project, cluster, count)
            await nc.close()
        finally:
            server.stop()


def _started(stack: Stack, count: int) -> float:
    """Seconds until it is ready and the tables have every workload."""
    began = time.perf_counter()
    stack.start(timeout_seconds=300)
    ready = time.perf_counter() - began
    api = stack.api()
    until(lambda: api.get("/workloads/count")["count"] >= count or None, 600)
    return ready


def run(report: Report, *, short: bool) -> None:
    """Print memory and start-up."""
    count = 5_000 if short else 200_000
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
        finally:
            stack.close()
    for name in PARTS:
        report.add(Figure(name=f"resident at {count:,} workloads: {name}", value=again[name], unit="MiB"))
        growth = 2**20 * (again[name] - empty[name]) / count
        report.add(Figure(name="  growth per workload since the empty log", value=growth, unit="bytes"))
        report.add(Figure(name="  right after reading the whole log", value=full[name], unit="MiB"))
    report.add(Figure(name=f"start with {count:,} workloads to read", value=first, unit="s"))
    report.add(
        Figure(name=f"start with {count:,} workloads and snapshots", value=second, unit="s", goal=10, at_most=True)
    )
