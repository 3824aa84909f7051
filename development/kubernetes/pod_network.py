"""The network of simulated pods, without any rights: a network namespace in which every address of a pod answers.

    proxy = stack.second("proxy", …)
    with PodNetwork(folder, into=[port, proxy.health_port], out=[nats_port]) as network:
        proxy.within = network
        proxy.start()

Pods of kwok have addresses and no programs. Here one program answers in place of all of them, and says at which address
it was asked: `POD_PORT` on each address of POD_NETWORK. Whatever runs inside reaches pods, and of all else only the
ports of loopback that are named: `into` lead from outside into it, `out` from it to servers outside. Files of sockets
lead through, since a namespace has no other way out.
"""

import asyncio
import contextlib
import fcntl
import functools
import http.server
import os
import signal
import socket
import socketserver
import struct
import sys
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from ipaddress import ip_network
from pathlib import Path
from typing import Final, Self

from development.kubernetes.simulated.programs import POD_NETWORK

POD_PORT: Final = 8000
SLOW_SECONDS: Final = 0.5
"""For which a request to a path below /slow is worked on."""
_CHUNK: Final = 65_536
# linux/sockios.h and linux/if.h
_SIOCSIFADDR, _SIOCSIFNETMASK, _SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8916, 0x891C, 0x8913, 0x8914, 0x1

type Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


class PodNetwork:
    """The side outside: it listens on `into`, and takes what comes out to `out`, in a thread of its own."""

    def __init__(self, folder: Path, *, into: Sequence[int], out: Sequence[int]) -> None:
        self._folder = folder
        self._into, self._out = list(into), list(out)
        self._stop: Callable[[], object]
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pod network", daemon=True)

    def argv(self, program: Sequence[str]) -> list[str]:
        """What runs this program inside; the network is there as long as it runs."""
        ports = [",".join(map(str, ports)) for ports in (self._into, self._out)]
        return [sys.executable, "-m", "development.kubernetes.pod_network", str(self._folder), *ports, *program]

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True)
        self._thread.start()
        assert self._ready.wait(10), "nobody listens for the network of pods"
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        self._stop = functools.partial(loop.call_soon_threadsafe, stop.set)
        async with contextlib.AsyncExitStack() as servers:
            for port in self._into:
                await servers.enter_async_context(_from_port(port, self._folder / f"into-{port}"))
            for port in self._out:
                await servers.enter_async_context(_from_file(self._folder / f"out-{port}", port))
            self._ready.set()
            await stop.wait()


class _Pod(http.server.BaseHTTPRequestHandler):
    """In place of every pod."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path.startswith("/slow"):
            time.sleep(SLOW_SECONDS)
        told = f"{self.connection.getsockname()[0]} answers {self.path}\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(told)))
        self.end_headers()
        self.wfile.write(told)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (of the base)
        pass


class _Pods(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 128


def main(folder: str, into: str, out: str, *program: str) -> int:
    """The side inside: makes the network, and runs the program in it until that ends."""
    os.unshare(os.CLONE_NEWUSER | os.CLONE_NEWNET)
    _addresses()
    return asyncio.run(_inside(Path(folder), _ports(into), _ports(out), program))


def _ports(text: str) -> list[int]:
    return [int(port) for port in text.split(",") if port]


def _addresses() -> None:
    """All of 127.0.0.0/8, and all of POD_NETWORK, are this namespace's own."""
    pods = ip_network(POD_NETWORK)
    with socket.socket() as any_socket:
        name = struct.pack("16sH", b"lo", 0)
        (flags,) = struct.unpack("16xH", fcntl.ioctl(any_socket, _SIOCGIFFLAGS, name.ljust(40, b"\0"))[:18])
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", flags | _IFF_UP))
        for ask, address in ((_SIOCSIFADDR, str(pods[1])), (_SIOCSIFNETMASK, str(pods.netmask))):
            packed = struct.pack("16sHH4s16x", b"lo:1", socket.AF_INET, 0, socket.inet_aton(address))
            fcntl.ioctl(any_socket, ask, packed)


async def _inside(folder: Path, into: list[int], out: list[int], program: Sequence[str]) -> int:
    pods = _Pods(("0.0.0.0", POD_PORT), _Pod)
    threading.Thread(target=pods.serve_forever, name="pods", daemon=True).start()
    async with contextlib.AsyncExitStack() as servers:
        for port in into:
            await servers.enter_async_context(_from_file(folder / f"into-{port}", port))
        for port in out:
            await servers.enter_async_context(_from_port(port, folder / f"out-{port}"))
        leash = [sys.executable, "-m", "muster.embedded.leash", str(os.getpid())]
        child = await asyncio.create_subprocess_exec(*leash, *program)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, child.terminate)
        return await child.wait()


def _from_port(port: int, to: Path) -> contextlib.AbstractAsyncContextManager[None]:
    """Connections to a port of loopback go to the file of a socket."""
    return _relay(lambda serve: asyncio.start_server(serve, "127.0.0.1", port), lambda: _open(to))


def _from_file(file: Path, to: int) -> contextlib.AbstractAsyncContextManager[None]:
    """The other way round. Another life of the program finds the file of the one before."""
    file.unlink(missing_ok=True)
    return _relay(
        lambda serve: asyncio.start_unix_server(serve, file), lambda: asyncio.open_connection("127.0.0.1", to)
    )


async def _open(path: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_unix_connection(path)


@contextlib.asynccontextmanager
async def _relay(
    listen: Callable[
        [Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]], Awaitable[asyncio.Server]
    ],
    connect: Connect,
) -> AsyncGenerator[None]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await connect()
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy(reader, back), _copy(there, writer))

    server = await listen(serve)
    try:
        yield
    finally:
        server.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()
    with contextlib.suppress(OSError):
        # Each end of it takes both: who speaks HTTP never closes one direction alone.
        writer.close()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
