"""An HTTPS proxy before an API server that misbehaves as told: what a load balancer, a broken server or a network does.

Used as `async with proxied(control_plane) as proxy`, with a kubeconfig for `proxy.url`; `proxy.mode` may be changed
at any time, `proxy.only` narrows whom it strikes, `proxy.struck` counts.
"""

import asyncio
import contextlib
import gzip
import json
import ssl
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Final

from development.kubernetes.control_plane import ControlPlane

HELD_LOOK_SECONDS: Final = 0.02


class Mode(Enum):
    PASS = auto()
    TOO_MANY = auto()
    """429, with Retry-After where `retry_after_seconds` says; the server never hears."""
    ERROR = auto()
    """500; the server never hears."""
    FORBIDDEN = auto()
    """403, as an API server answers that just began and has not read its roles; the server never hears."""
    CUT = auto()
    """The server does it; the connection breaks in the middle of its answer, a stream with what it tells next."""
    SILENT = auto()
    """Half-open: whatever is said on a connection meets silence from now on, streams included, and such a connection
    stays dead when the mode is changed back. New ones can be made, and are dead as well."""
    EMPTY_LIST = auto()
    """Lists answer that there is nothing. Watches and single objects are as they are."""
    END_WATCH = auto()
    """A watch ends in order before it told anything."""
    HOLD = auto()
    """A request waits until the mode is another, and goes to the server that is there then."""


REFUSALS: Final = {
    Mode.TOO_MANY: (429, "TooManyRequests"),
    Mode.ERROR: (500, "InternalError"),
    Mode.FORBIDDEN: (403, "Forbidden"),
}
"""Status and reason."""


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    """With the query."""
    raw: bytes

    @property
    def watches(self) -> bool:
        return "watch=true" in self.path


@dataclass(frozen=True)
class Head:
    status: int
    headers: dict[str, str]
    raw: bytes


class Proxy:
    def __init__(self, target_port: int, server_tls: ssl.SSLContext, client_tls: ssl.SSLContext) -> None:
        self.mode = Mode.PASS
        self.only: Callable[[Request], bool] = lambda _: True
        """Which requests the mode strikes."""
        self.struck: Counter[Mode] = Counter()
        """Requests, and streams under way, that met the mode."""
        self.requests: Counter[tuple[str, str]] = Counter()
        """Everything that was asked: method and path without its query."""
        self.retry_after_seconds: int | None = 1
        self.target_port = target_port
        self.port = 0
        self._server_tls = server_tls
        self._client_tls = client_tls
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self._server_tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Refuse connections and break those that are there; `listen` comes back on the same port."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        upstream: asyncio.StreamWriter | None = None
        try:
            server, upstream = await asyncio.open_connection("127.0.0.1", self.target_port, ssl=self._client_tls)
            while (request := await _request(reader)) is not None:
                await self._answer(request, reader, writer, server, upstream)
        except (OSError, EOFError, asyncio.CancelledError, ssl.SSLError):
            pass
        finally:
            for each in (writer, upstream):
                if each is not None:
                    each.transport.abort()
            self._connections.discard(task)

    async def _answer(
        self,
        request: Request,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        server: asyncio.StreamReader,
        upstream: asyncio.StreamWriter,
    ) -> None:
        self.requests[request.method, request.path.partition("?")[0]] += 1
        mode = self._meets(request)
        match mode:
            case Mode.TOO_MANY | Mode.ERROR | Mode.FORBIDDEN:
                self.struck[mode] += 1
                writer.write(self._refusal(mode))
                await writer.drain()
                return
            case Mode.SILENT:
                self.struck[mode] += 1
                await _never(reader)
            case Mode.END_WATCH if request.watches:
                self.struck[mode] += 1
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 0\r\n\r\n")
                await writer.drain()
                return
            case Mode.HOLD:
                self.struck[mode] += 1
                await self._held(request, reader, writer)
                raise EOFError
            case _:
                pass
        await self._pass_on(request, reader, writer, server, upstream, mode=mode)

    async def _held(self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while self._meets(request) is Mode.HOLD:
            await asyncio.sleep(HELD_LOOK_SECONDS)
        server, upstream = await asyncio.open_connection("127.0.0.1", self.target_port, ssl=self._client_tls)
        try:
            await self._pass_on(request, reader, writer, server, upstream)
        finally:
            upstream.transport.abort()

    async def _pass_on(
        self,
        request: Request,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        server: asyncio.StreamReader,
        upstream: asyncio.StreamWriter,
        *,
        mode: Mode = Mode.PASS,
    ) -> None:
        upstream.write(request.raw)
        await upstream.drain()
        head = await _head(server)
        if mode is Mode.EMPTY_LIST and request.method == "GET" and not request.watches:
            self.struck[mode] += 1
            writer.write(_emptied(head, b"".join([data async for _, data in _body(server, head)])))
            await writer.drain()
            return
        writer.write(head.raw)
        async for raw, _ in _body(server, head):
            # Asked anew for each piece: a mode that begins during a stream strikes it.
            match self._meets(request):
                case Mode.SILENT as now:
                    self.struck[now] += 1
                    await _never(reader)
                case Mode.CUT as now:
                    self.struck[now] += 1
                    writer.write(raw[: len(raw) // 2])
                    await writer.drain()
                    raise EOFError
                case _:
                    writer.write(raw)
                    await writer.drain()

    def _meets(self, request: Request) -> Mode:
        return self.mode if self.only(request) else Mode.PASS

    def _refusal(self, mode: Mode) -> bytes:
        code, reason = REFUSALS[mode]
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason}
        body = json.dumps(status | {"message": f"the proxy says {reason}"}).encode()
        asked = mode is Mode.TOO_MANY and self.retry_after_seconds is not None
        wait = f"Retry-After: {self.retry_after_seconds}\r\n" if asked else ""
        return (
            f"HTTP/1.1 {code} {reason}\r\nContent-Type: application/json\r\n{wait}Content-Length: {len(body)}\r\n\r\n"
        ).encode() + body


@contextlib.asynccontextmanager
async def proxied(control_plane: ControlPlane) -> AsyncGenerator[Proxy]:
    """Under the API server's own certificate, so that a kubeconfig for `proxy.url` trusts it."""
    folder: Path = control_plane.cluster.credentials
    server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_tls.load_cert_chain(folder / "server.crt", folder / "server.key")
    proxy = Proxy(control_plane.cluster.ports.api, server_tls, ssl.create_default_context(cafile=folder / "ca.crt"))
    await proxy.listen()
    try:
        yield proxy
    finally:
        await proxy.close()


async def _never(reader: asyncio.StreamReader) -> None:
    """Take in whatever the client says until it gives up."""
    while await reader.read(65536):
        pass
    raise EOFError


async def _request(reader: asyncio.StreamReader) -> Request | None:
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, headers = _parsed(raw)
    method, path, _ = first.split(" ", 2)
    if length := int(headers.get("content-length", "0")):
        raw += await reader.readexactly(length)
    return Request(method, path, raw)


async def _head(server: asyncio.StreamReader) -> Head:
    raw = await server.readuntil(b"\r\n\r\n")
    first, headers = _parsed(raw)
    return Head(int(first.split(" ")[1]), headers, raw)


async def _body(server: asyncio.StreamReader, head: Head) -> AsyncIterator[tuple[bytes, bytes]]:
    """Pieces as they come: as they stand on the wire, and what they hold."""
    if head.headers.get("transfer-encoding") == "chunked":
        while True:
            size = await server.readuntil(b"\r\n")
            data = await server.readexactly(int(size, 16) + 2)
            yield size + data, data[:-2]
            if len(data) == 2:
                return
    elif length := int(head.headers.get("content-length", "0")):
        data = await server.readexactly(length)
        yield data, data


def _parsed(raw: bytes) -> tuple[str, dict[str, str]]:
    first, *lines = raw.decode("latin-1").rstrip("\r\n").split("\r\n")
    headers = (line.partition(":") for line in lines)
    return first, {name.strip().lower(): value.strip() for name, _, value in headers}


def _emptied(head: Head, body: bytes) -> bytes:
    if head.headers.get("content-encoding") == "gzip":
        body = gzip.decompress(body)
    said = json.loads(body)
    if isinstance(said, dict) and "items" in said:
        said["items"] = []
        said["metadata"].pop("continue", None)
    body = json.dumps(said).encode()
    first = head.raw.partition(b"\r\n")[0]
    return first + b"\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
