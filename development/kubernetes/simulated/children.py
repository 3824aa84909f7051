"""The simulated cluster as children of the supervisor of `make up-kubernetes`. Imports next to nothing."""

import asyncio
import contextlib
import json
import signal
import ssl
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from development.kubernetes.simulated import programs
from muster.embedded.datadir import DataDir, free_ports, write_private
from muster.embedded.processes import Child, Spec, StartError

NODE_MONITOR_GRACE_SECONDS: Final = 20
"""A laptop that sleeps shorter than that loses no node."""
PROBE_SECONDS: Final = 2.0
LOOK_SECONDS: Final = 1.0
"""How often it is looked at whether one of them was started again."""
KUBELETS: Final = "development.kubernetes.simulated.kubelets"
"""By its name only: what it imports must not weigh on the supervisor."""
IMPORTABLE: Final = {"PYTHONPATH": str(Path(__file__).resolve().parents[3])}
"""Lets a child import this package, which is installed nowhere."""


def cluster(data: DataDir) -> programs.Cluster:
    """The one in this data folder, on the ports of last time where they are free. Raises ToolsMissingError."""
    tools = programs.find_tools()
    folder = programs.folder_of(data.root)
    folder.mkdir(mode=0o700, exist_ok=True)
    kept = folder / programs.PORTS_FILE
    before: dict[str, int] = json.loads(kept.read_text()) if kept.exists() else {}
    chosen = free_ports({name: before.get(name, 0) for name in programs.Ports.__slots__})
    write_private(kept, json.dumps(chosen, indent=2))
    return programs.Cluster(
        folder=folder,
        tools=tools,
        ports=programs.Ports(**chosen),
        node_monitor_grace_seconds=NODE_MONITOR_GRACE_SECONDS,
        fsync=True,
    )


def etcd(made: programs.Cluster, fds: tuple[int, ...]) -> Spec:
    return _spec(
        made, "etcd", programs.etcd(made), fds, stop=signal.SIGTERM, ready=_answers(made, made.ports.etcd, "/health")
    )


def api_server(made: programs.Cluster, fds: tuple[int, ...]) -> Spec:
    return _spec(
        made, "kube-apiserver", programs.api_server(made), fds, ready=_answers(made, made.ports.api, "/readyz")
    )


def controller_manager(made: programs.Cluster, fds: tuple[int, ...]) -> Spec:
    return _spec(made, "kube-controller-manager", programs.controller_manager(made), fds)


def kwok(made: programs.Cluster, fds: tuple[int, ...]) -> Spec:
    start = [sys.executable, "-m", KUBELETS, "start", str(made.folder)]
    return _spec(made, "kwok", [*start, *programs.kwok(made)], fds)


async def keep_kubelets(
    kwok: Child, servers: Sequence[Child], show: Callable[[], Awaitable[object]], *, stop_seconds: float
) -> None:
    """For ever: have kwok come back where etcd or the API server did, and look at the pods that were there before it.

    `servers` run when this begins; `show` has kwok look, and raises StartError where it could not.
    """
    before, shown = [server.pid for server in servers], None
    while True:
        now = [server.pid for server in servers]
        if None not in now and now != before:
            before = now
            await kwok.restart(stop_seconds)
        pid = kwok.pid
        if pid is not None and pid != shown:
            with contextlib.suppress(StartError):
                await show()
                shown = pid
        await asyncio.sleep(LOOK_SECONDS)


def _spec(
    made: programs.Cluster,
    name: str,
    argv: list[str],
    fds: tuple[int, ...],
    *,
    # Only etcd has anything to put in order.
    stop: signal.Signals = signal.SIGKILL,
    ready: Callable[[int], Awaitable[bool]] | None = None,
) -> Spec:
    env = {"HOME": str(made.folder), **IMPORTABLE}
    return Spec(name=name, argv=argv, env=env, ready=ready, stop_signal=stop, keep_fds=fds)


def _answers(made: programs.Cluster, port: int, path: str) -> Callable[[int], Awaitable[bool]]:
    async def ready(_pid: int) -> bool:
        return await answers_ok(port, path, made.credentials)

    return ready


async def answers_ok(port: int, path: str, credentials: Path) -> bool:
    """Whether a GET there is answered with 200."""
    tls = ssl.create_default_context(cafile=str(credentials / "ca.crt"))
    tls.load_cert_chain(credentials / "server.crt", credentials / "server.key")
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
            try:
                writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
                return b" 200 " in await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
