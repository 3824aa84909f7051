"""One connection of a client, bounded: how many there are, in all and from one address, how long a head may take and
be, how many requests may wait, how long a reader may stand still.

uvicorn's own protocol has none of these: it waits for ever for a head that comes byte by byte, and for a client that
does not read, and keeps whatever comes of a head that never ends. And it closes a connection while its client still
sends, which takes the answer from the client again (`_LingeringTransport`). It knows no endpoint; what a cut stream
says at its end stands in the request's state (`LAST_WORDS`).
"""

import asyncio
import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, Final, cast

import structlog
from prometheus_client import Counter
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from services.api.errors import RETRY_AFTER_SECONDS, ApiError, unavailable
from services.api.transports import TransportOver

LAST_WORDS: Final = "last_words"
"""In the state of a request's scope: the line that a stream ends with where its reader stood still."""
GONE: Final = "gone"
"""In the state of a WebSocket's scope: an asyncio.Event, set once its connection is no more. Where what came is not
asked for, since nobody can take it, ASGI says that to nobody.
"""
LEAST_PROGRESS_BYTES: Final = 16 * 1024
"""That a reader must take within the time it has: below, it only keeps memory and a connection of ours."""

MOST_HEAD_BYTES: Final = 32 * 1024
"""Of a head, or of trailers, that is not whole yet: what is whole is judged by the edge, which allows half of it."""
PIECE_BYTES: Final = 16 * 1024
"""What is parsed before the next look at the bounds: one read may bring 256 KiB, and 30,000 headers in them."""
MOST_WAITING: Final = 32
"""Requests that may wait behind the one that is being answered: each costs us some hundred times its bytes."""

LINGER_SECONDS: Final = 1.0
"""That a client which still sends has for reading why it was refused."""
MOST_LINGERING: Final = 64
"""Connections at a time; any more are closed at once, read or not."""

CUT: Final = Counter("muster_api_connections_cut", "Connections that were ended by us", ["why"])

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Of one api process."""

    connections: int
    per_address: int
    """From one place (`address_of`), so that no client takes the places of all others."""
    head_seconds: float
    """From the first byte of a request, or from the connection on, until its head is there."""
    stalled_seconds: float
    """Within which a client that is sent something must take LEAST_PROGRESS_BYTES, or all of it."""


def bounded(limits: ConnectionLimits) -> "Callable[..., BoundedProtocol]":
    """What makes the protocol of each connection, from what uvicorn gives it."""
    lingering: set[BoundedProtocol] = set()
    return partial(BoundedProtocol, limits, lingering)


class _LingeringTransport(TransportOver):
    """A connection's own transport, but `close` ends it gently where `lingers()` says so: it writes the end, and the
    protocol discards what still comes until the client ends its side, or LINGER_SECONDS are over.

    Where bytes lie unread in a socket that is closed, the kernel resets the connection, and the client may lose an
    answer that it already had.
    """

    def __init__(self, transport: asyncio.Transport, lingers: Callable[[], bool]) -> None:
        super().__init__(transport)
        self._lingers = lingers
        self._end: asyncio.TimerHandle | None = None

    def close(self) -> None:
        if self.is_closing():
            return
        if self._lingers():
            self._transport.write_eof()
            self._end = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._transport.close)
        else:
            self._transport.close()

    def lost(self) -> None:
        """The connection is no more."""
        self._end = _cancelled(self._end)

    def is_closing(self) -> bool:
        return self._end is not None or super().is_closing()


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol and its bounds."""

    def __init__(
        self, limits: ConnectionLimits, lingering: "set[BoundedProtocol]", *arguments: Any, **named: Any
    ) -> None:
        super().__init__(*arguments, **named)
        self._limits = limits
        self._lingering = lingering
        """Those of this server that were answered for the last time."""
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._serving = False
        """Whether a request's head is there and its answer is not yet out."""
        self._unfinished_bytes = 0
        """That came since a head, or a part of a body, was whole."""
        self._more_may_come = False
        """Whether the client is in the middle of a request, or was refused before its end."""
        self._socket: WebSocketsSansIOProtocol | None = None
        """What speaks from here on, where a WebSocket was agreed on."""
        self._gone = asyncio.Event()

    # -- heads -----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(_LingeringTransport(transport, self._lingers))
        if len(self.connections) - len(self._lingering) > self._limits.connections:
            message = f"{self._limits.connections} connections are open already; try again"
            self.end_with(unavailable(message, details="too_many_connections"), "too_many")
        elif self._are_from_here() > self._limits.per_address:
            message = (
                f"{self._limits.per_address} connections are open from your address already; close some, or, behind a "
                "proxy, have MUSTER_HTTP_MAX_CONNECTIONS_PER_ADDRESS raised"
            )
            error = ApiError(
                429, message, details="too_many_connections_of_address", headers={"Retry-After": RETRY_AFTER_SECONDS}
            )
            self.end_with(error, "too_many_of_address")
        else:
            self._expect_head()

    def _are_from_here(self) -> int:
        """Connections from this one's place, with this one; 0 on a socket without addresses."""
        here = address_of(self.client)
        if here is None:
            return 0
        others = cast("set[HttpToolsProtocol]", self.connections) - self._lingering
        return sum(address_of(other.client) == here for other in others)

    def _lingers(self) -> bool:
        """Whether this connection, which ends, waits for its client to read the answer."""
        if not self._more_may_come or len(self._lingering) >= MOST_LINGERING:
            return False
        self._lingering.add(self)
        self.flow.resume_reading()
        return True

    def handle_websocket_upgrade(self) -> None:
        """As uvicorn does it, but this stays the transport's protocol: what holds for every connection still does."""
        self.connections.discard(self)
        request = [self.scope["method"].encode(), b" ", self.url, b" HTTP/1.1\r\n"]
        for name, value in self.scope["headers"]:
            request += [name, b": ", value, b"\r\n"]
        self._more_may_come = False
        self._socket = WebSocketsSansIOProtocol(
            config=self.config, server_state=self.server_state, app_state={**self.app_state, GONE: self._gone}
        )
        self._socket.connection_made(self.transport)
        self._socket.data_received(b"".join([*request, b"\r\n"]))

    def data_received(self, data: bytes) -> None:
        if self._socket is not None:
            if not self.transport.is_closing():
                self._socket.data_received(data)
            return
        for start in range(0, len(data), PIECE_BYTES):
            if self.transport.is_closing():
                return
            if self._socket is not None:
                self._socket.data_received(data[start:])
                return
            piece = data[start : start + PIECE_BYTES]
            self._unfinished_bytes += len(piece)
            super().data_received(piece)
            if self._unfinished_bytes > MOST_HEAD_BYTES:
                self._head_is_too_long()
        if not self._serving and not self.transport.is_closing():
            self._expect_head()

    def on_body(self, body: bytes) -> None:
        self._unfinished_bytes = 0
        super().on_body(body)

    def on_message_begin(self) -> None:
        self._more_may_come = True
        super().on_message_begin()

    def on_message_complete(self) -> None:
        self._unfinished_bytes = 0
        self._more_may_come = False
        super().on_message_complete()

    def on_headers_complete(self) -> None:
        self._unfinished_bytes = 0
        if self.transport.is_closing():
            return
        if len(self.pipeline) >= MOST_WAITING:
            CUT.labels("too_many_waiting").inc()
            self.transport.abort()
            return
        self._serving = True
        self._head_timer = _cancelled(self._head_timer)
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        # A request that waits behind this one (pipelined) is being served from here on.
        self._serving = bool(self.pipeline)
        super().on_response_complete()
        if self.transport.is_closing():
            self._watch_writes()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._watch_writes()

    def eof_received(self) -> None:
        if self._socket is not None:
            self._socket.eof_received()
            return
        super().eof_received()
        # The connection closes, once its client has read what was written; where it does not, the watch ends it.
        self._watch_writes()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_timer = _cancelled(self._head_timer)
        self._write_timer = _cancelled(self._write_timer)
        self._lingering.discard(self)
        cast("_LingeringTransport", self.transport).lost()
        if self._socket is not None:
            self._gone.set()
            self._socket.connection_lost(exc)
            return
        super().connection_lost(exc)

    def _expect_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self._limits.head_seconds, self._head_did_not_come)

    def _head_did_not_come(self) -> None:
        message = f"the request's head was not there within {self._limits.head_seconds:g} s"
        self.end_with(ApiError(408, message, details="head_too_slow"), "slow_head")

    def _head_is_too_long(self) -> None:
        if self._serving:
            # Some of another answer may be out: nothing can be said between its bytes.
            CUT.labels("long_head").inc()
            self.transport.abort()
        else:
            message = f"the request's head is longer than {MOST_HEAD_BYTES} bytes"
            self.end_with(ApiError(431, message, details="head_too_large"), "long_head")

    def send_400_response(self, msg: str) -> None:
        self._more_may_come = True
        super().send_400_response(msg)

    def end_with(self, error: ApiError, why: str) -> None:
        """Answer without a request, and end the connection."""
        if self.transport.is_closing():
            return
        CUT.labels(why).inc()
        self._more_may_come = True
        response = error.response()
        headers = [*response.raw_headers, (b"connection", b"close")]
        head = b"".join(b"%s: %s\r\n" % header for header in headers)
        phrase = HTTPStatus(error.status).phrase.encode()
        self.transport.write(b"HTTP/1.1 %d %s\r\n%s\r\n%s" % (error.status, phrase, head, response.body))
        self.transport.close()
        self._watch_writes()

    # -- readers that stand still ------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        if self._socket is not None:
            self._socket.pause_writing()  # whoever writes there has a deadline of its own
            return
        super().pause_writing()
        self._watch_writes()

    def resume_writing(self) -> None:
        if self._socket is not None:
            self._socket.resume_writing()
            return
        super().resume_writing()
        if not self.transport.is_closing():
            self._write_timer = _cancelled(self._write_timer)

    def _watch_writes(self) -> None:
        """Look after a while whether what waits to be written has become less."""
        waiting = self._waiting_bytes()
        if waiting and self._write_timer is None:
            self._write_timer = self.loop.call_later(self._limits.stalled_seconds, self._look_at_writes, waiting)

    def _look_at_writes(self, before: int) -> None:
        self._write_timer = None
        waiting = self._waiting_bytes()
        if waiting == 0:
            return
        if before - waiting >= LEAST_PROGRESS_BYTES:
            self._watch_writes()
        elif self.transport.is_closing():
            self.transport.abort()
        else:
            self._cut()

    def _cut(self) -> None:
        """End what a client does not read. A stream has the reason as its last line, for a client that reads later."""
        CUT.labels("stalled_reader").inc()
        cycle = self.cycle
        log.info("stalled_reader_cut", path=cycle.scope["path"])
        cycle.disconnected = True
        cycle.message_event.set()
        words: bytes | None = cycle.scope.get("state", {}).get(LAST_WORDS)
        if words is None or not cycle.chunked_encoding:
            self.transport.abort()
        else:
            self.transport.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(words), words))
            self.transport.close()
            self._watch_writes()
        self.flow.resume_writing()

    def _waiting_bytes(self) -> int:
        return self.transport.get_write_buffer_size()


def address_of(client: tuple[str, int] | None) -> str | None:
    """What counts as one place: an IPv4 address, or the /64 that any one host of IPv6 has all of."""
    if client is None:
        return None
    try:
        address = ipaddress.ip_address(client[0].partition("%")[0])
    except ValueError:
        return client[0]
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Address(int(address) >> 64 << 64))


def _cancelled(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
