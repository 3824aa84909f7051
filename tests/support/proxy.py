"""A TCP proxy before a NATS server that loses chosen bytes: for outcomes that nobody learns."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from enum import Enum, auto


class Fate(Enum):
    """What happens to a client's message that is picked out. The client's connection is cut each time."""

    STORED = auto()
    """The server gets it, the client never hears."""
    LOST = auto()
    """The server never gets it."""
    LATE = auto()
    """The server gets it half a second later, when the client has long been cut off."""


LATE_SECONDS = 0.5
HEARD_SECONDS = 0.1
"""How long the server has for a message before both sides are cut."""


class Proxy:
    """Forwards connections; `strike` says what becomes of the next client message that holds a marker."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.port = 0
        self.struck = asyncio.Event()
        self.admits = asyncio.Event()
        """While it is not set, nobody gets through anew."""
        self.admits.set()
        self.cut_after_bytes: int | None = None
        """Cut every connection once its server has sent so much."""
        self.cuts = 0
        self._marker = b""
        self._fate = Fate.STORED
        self._keep_out = False
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def strike(self, marker: bytes, fate: Fate, *, keep_out: bool = False) -> None:
        """Once. With `keep_out` the client cannot come back until `admits` is set."""
        self._marker, self._fate, self._keep_out = marker, fate, keep_out
        self.struck.clear()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            self._connections.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.admits.wait()
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
        deaf = asyncio.Event()
        backward = asyncio.ensure_future(self._to_client(server_reader, writer, deaf))
        forward = asyncio.ensure_future(self._to_server(reader, writer, server_writer, deaf))
        try:
            await asyncio.wait((forward, backward), return_when=asyncio.FIRST_COMPLETED)
            if deaf.is_set():
                await forward
        finally:
            for pump in (forward, backward):
                pump.cancel()
            await asyncio.gather(forward, backward, return_exceptions=True)
            server_writer.close()

    async def _to_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, deaf: asyncio.Event) -> None:
        sent = 0
        while data := await reader.read(65536):
            if deaf.is_set():
                continue
            writer.write(data)
            await writer.drain()
            sent += len(data)
            if self.cut_after_bytes is not None and sent > self.cut_after_bytes:
                self.cuts += 1
                return

    async def _to_server(
        self,
        reader: asyncio.StreamReader,
        client: asyncio.StreamWriter,
        server: asyncio.StreamWriter,
        deaf: asyncio.Event,
    ) -> None:
        while data := await reader.read(65536):
            if self._marker and self._marker in data:
                self._marker = b""
                deaf.set()
                await self._strike(data, client, server)
                return
            server.write(data)
            await server.drain()

    async def _strike(self, data: bytes, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        if self._keep_out:
            self.admits.clear()
        if self._fate is Fate.STORED:
            server.write(data)
            await server.drain()
            await asyncio.sleep(HEARD_SECONDS)
        self.struck.set()
        client.close()
        if self._fate is Fate.LATE:
            await asyncio.sleep(LATE_SECONDS)
            server.write(data)
            await server.drain()
            await asyncio.sleep(HEARD_SECONDS)

    async def close(self) -> None:
        for connection in list(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)


@contextlib.asynccontextmanager
async def proxied(target_port: int) -> AsyncGenerator[Proxy, None]:
    proxy = Proxy(target_port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()
