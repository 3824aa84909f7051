"""One connection to NATS per service: its own user, its own inbox, reconnecting for ever, loud when it is gone."""

import asyncio
import base64
import contextlib
import logging
from collections.abc import Callable
from typing import Any, Final

import structlog
from nats.aio.client import PING_PROTO, Client, Srv
from nats.errors import UnexpectedEOF
from nats.js import JetStreamContext

from services.runtime.nats.calls import PREFIX
from services.runtime.nats.inboxes import inbox_prefix
from services.runtime.nats.nkeys import KeyPair
from services.runtime.nats.wire import SteadyClient
from services.runtime.process.settings import Settings
from services.runtime.trust import trusting

PING_INTERVAL_SECONDS: Final = 10
"""Two unanswered pings end the connection: a server that hangs is noticed in 20 to 30 s."""
RECONNECT_WAIT_SECONDS: Final = 0.25
"""A restarted server is found again within its own start-up time, without a storm of connections."""
CONNECT_TIMEOUT_SECONDS: Final = 5
STARTUP_SECONDS: Final = 30.0
"""How long a service waits for a server that is not there yet, before it ends and its supervisor tries again."""
PENDING_BYTES: Final = 16 * 1024 * 1024
"""What may wait for a slow socket: an atomic batch of 1,000 large records fits."""

log = structlog.get_logger(__name__)


class ConnectionLostError(Exception):
    """The connection cannot be had, or was closed for good: the process ends, and its supervisor restarts it."""


class ServiceClient(SteadyClient):
    """A client that knows whether it was meant to close, and tells those who wait for answers when it was cut off."""

    def __init__(self, service: str, key: KeyPair | None = None) -> None:
        super().__init__()
        if key is not None:
            # The library would read it from the seed, with a library of its own.
            self._public_nkey = key.public
        self.service = service
        self.meant_to_close = False
        self.on_cut_off: list[Callable[[], None]] = []
        """Called whenever the connection is lost: the library itself lets requests wait for their whole timeout."""

    async def _send_ping(self, future: asyncio.Future[Any] | None = None) -> None:
        """Behind all that waits to be sent. The library's own PING (nats-py 2.16) overtakes it: `flush` returned before
        the server has heard of a subscription.
        """
        self._pongs.append(future or asyncio.Future())  # pyright: ignore[reportUnknownMemberType]
        await self._send_command(PING_PROTO)
        await self._flush_pending()

    async def _connect_to_server(self, s: Srv) -> None:
        """First close the last connection. The library (nats-py 2.16) forgets one that broke before the server let it
        in: its socket stayed open until Python found it.
        """
        if self._transport is not None:
            self._transport.close()
        await super()._connect_to_server(s)

    async def _process_connect_init(self) -> None:
        """The library (nats-py 2.16) takes a connection that ends without a word for one that the server let in. A
        refusal can be lost on its way: `connect` returned, and whoever was refused went on.
        """
        await super()._process_connect_init()
        if self._status != Client.CONNECTED:
            for name in ("_reading_task", "_ping_interval_task", "_flusher_task"):
                task: asyncio.Task[Any] | None = getattr(self, name)
                if task is not None:
                    task.cancel()
            raise UnexpectedEOF

    def jetstream(self, **options: Any) -> JetStreamContext:
        """The library's, which asks for the streams where they are found here."""
        return super().jetstream(**{"prefix": PREFIX, **options})  # pyright: ignore[reportUnknownMemberType]

    async def close(self) -> None:
        self.meant_to_close = True
        await super().close()

    async def drain(self) -> None:
        self.meant_to_close = True
        await super().drain()


def user_of(client: Client) -> str:
    """As whom a client is connected."""
    return client.service if isinstance(client, ServiceClient) else str(client.options.get("user") or "")


async def connect(settings: Settings, service: str, *, suffix: str = "", key: KeyPair | None = None) -> ServiceClient:
    """Connect as the service, or as the user of NATS that has this key; `suffix` only tells its connections apart in
    logs and in the server's list.

    Waits up to STARTUP_SECONDS for a server; raises ConnectionLostError after that, or at once where the server refuses
    the password. From then on it reconnects for ever; where it is closed for good nevertheless, the event loop's
    exception handler is called with a ConnectionLostError, at which the host ends the process.
    """
    name = f"{service}-{suffix}" if suffix else service
    client = ServiceClient(service, key)
    loop = asyncio.get_running_loop()
    last_error: list[str] = []
    refused = asyncio.Event()

    async def on_error(error: Exception) -> None:
        text = str(error) or type(error).__name__
        last_error[:] = [text]
        if "authorization" in text.lower():
            refused.set()
        log.warning("nats_error", connection=name, error=text)

    async def on_disconnect() -> None:
        for tell in client.on_cut_off:
            tell()
        if not client.meant_to_close:
            log.warning("nats_disconnected", connection=name)

    async def on_reconnect() -> None:
        log.info("nats_reconnected", connection=name)

    async def on_closed() -> None:
        if client.meant_to_close:
            return
        error = ConnectionLostError(f"{name}: the connection to NATS was closed: {last_error or 'no reason given'}")
        loop.call_exception_handler({"message": str(error), "exception": error})

    options: dict[str, Any] = (
        {"user": service, "password": settings.password_of(service)} if key is None else {"signature_cb": _signer(key)}
    )
    if settings.nats_ca_file is not None:
        options["tls"] = trusting(settings.nats_ca_file)
        logging.getLogger("asyncio").addFilter(_is_news)
    connecting = asyncio.ensure_future(
        client.connect(
            settings.nats_servers,
            name=name,
            inbox_prefix=inbox_prefix(service).encode(),
            max_reconnect_attempts=-1,
            reconnect_time_wait=RECONNECT_WAIT_SECONDS,  # pyright: ignore[reportArgumentType] (declared int)
            ping_interval=PING_INTERVAL_SECONDS,
            max_outstanding_pings=2,
            connect_timeout=CONNECT_TIMEOUT_SECONDS,
            pending_size=PENDING_BYTES,
            error_cb=on_error,
            disconnected_cb=on_disconnect,
            reconnected_cb=on_reconnect,
            closed_cb=on_closed,
            **options,
        )
    )
    if await _connected(connecting, refused):
        return client
    await client.close()
    raise ConnectionLostError(
        f"{name}: no connection to NATS at {', '.join(settings.nats_servers)}: "
        f"{last_error[0] if last_error else 'no answer'}; check MUSTER_NATS_URL and the password of user {service!r}"
    )


def _is_news(record: logging.LogRecord) -> bool:
    """At the end of a connection with TLS, the library's protocol asks for what only one without TLS can have. The loop
    does the right thing and warns; in a terminal, that warning stood below every result.
    """
    return "eof_received() has no effect" not in record.getMessage()


def _signer(key: KeyPair) -> Callable[[str], bytes]:
    return lambda nonce: base64.b64encode(key.sign(nonce.encode()))


async def _connected(connecting: asyncio.Future[None], refused: asyncio.Event) -> bool:
    """Whether the connection stands in time and was not refused. Raises what connecting raises."""
    refusing = asyncio.ensure_future(refused.wait())
    try:
        done, _ = await asyncio.wait(
            (connecting, refusing), timeout=STARTUP_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        if connecting in done:
            connecting.result()
            return True
    finally:
        refusing.cancel()
        connecting.cancel()
    with contextlib.suppress(asyncio.CancelledError, Exception):
        await connecting
    return False
