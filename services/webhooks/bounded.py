"""Connections of which a receiver's answer takes only so much.

An answer may say ever more, all of it well-formed: interim answers without an end, or pieces of one byte with a long
remark each. Reading that keeps one core busy for as long as a try may take, and everybody else's deliveries waiting.
Apart from `post.py`, because the library of HTTP comes with the first post.
"""

import ssl
from collections.abc import Iterable
from typing import Any, Final, cast

import httpcore

MOST_BYTES: Final = 64 * 1024
"""Of one answer, with its head: many times what is kept of it."""
PIECE_BYTES: Final = 16 * 1024
"""Read at once: others have their turn in between."""


class BoundedBackend(httpcore.AsyncNetworkBackend):
    """Connects; what comes on a connection is bounded."""

    def __init__(self) -> None:
        self._backend = cast("httpcore.AsyncNetworkBackend", httpcore.AnyIOBackend())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        return _Bounded(await self._backend.connect_tcp(host, port, timeout, local_address, socket_options))


class _Bounded(httpcore.AsyncNetworkStream):
    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream = stream
        self._left = MOST_BYTES

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Raises httpcore.ReadError where more came than an answer may have."""
        data = await self._stream.read(min(max_bytes, PIECE_BYTES), timeout)
        self._left -= len(data)
        if self._left < 0:
            raise httpcore.ReadError(f"the answer is longer than {MOST_BYTES} bytes")
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.AsyncNetworkStream:
        return _Bounded(await self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
