"""Posts to an address of somebody's choice: looked up once, checked, and the connection goes to what was checked.

The name is not looked up a second time by whoever connects, redirects are not followed, and no proxy is taken from the
environment, so nothing leads past the check. The certificate must be for the name.
"""

import asyncio
import contextlib
import ipaddress
import socket
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final

import psutil

from services.runtime.trust import trusting
from services.runtime.webhooks.addresses import (
    Address,
    BadAddressError,
    Network,
    Target,
    as_address,
    check_addresses,
    target_of,
)
from services.webhooks.due import SUCCESS, Outcome

if TYPE_CHECKING:
    import httpcore

TRY_SECONDS: Final = 15.0
"""From the lookup to the head of the answer."""
LOOKUPS: Final = 32
"""Names that are looked up at once: each takes a thread until the system's resolver gives up."""
LOOKUPS_OF_PROJECT: Final = 2
"""So that names that nobody answers for keep no others waiting."""
ADDRESSES: Final = 3
"""Of one name that are tried, one after the other."""
EXCERPT_BYTES: Final = 1_024
EXCERPT_SECONDS: Final = 1.0
"""After the head: the status counts also where the rest does not come."""
EXCERPT: Final = 200
"""Characters of it that are kept."""
ERROR: Final = 200
OWN_SECONDS: Final = 60.0
"""For which this machine's addresses are remembered."""
USER_AGENT: Final = "Muster-Webhooks/1"
_REDIRECTS: Final = range(300, 400)


class Poster:
    """One for all webhooks.

    Args:
        allowed: networks that the operator has allowed, beside what is public.
        own_ports: of the control plane's servers, closed also there.
    """

    def __init__(self, allowed: Iterable[Network], own_ports: Iterable[int]) -> None:
        self._allowed = tuple(allowed)
        self._own_ports = frozenset(own_ports)
        self._threads = ThreadPoolExecutor(LOOKUPS, thread_name_prefix="lookup")
        self._lookups: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(LOOKUPS_OF_PROJECT))
        self._own: frozenset[Address] = frozenset()
        self._own_until = 0.0
        self._opened: httpcore.AsyncConnectionPool | None = None
        """With the first post: most installations have no webhook, and the library takes memory."""

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.aclose()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, *, project_id: str) -> Outcome:
        """Never raises for what the address, the network or the receiver does."""
        import httpcore

        try:
            async with asyncio.timeout(TRY_SECONDS):
                target = target_of(url, self._allowed)
                addresses = await self._addresses(target, project_id)
                response = await self._try_each(target, addresses, headers, body)
            return await _outcome(response)
        except TimeoutError:
            return Outcome(None, f"no answer within {TRY_SECONDS:.0f} s")
        except BadAddressError as error:
            return Outcome(None, f"not sent: the URL {error}")
        except (
            httpcore.NetworkError,
            httpcore.ProtocolError,
            httpcore.TimeoutException,
            OSError,
            UnicodeError,
        ) as error:
            return Outcome(None, (str(error) or type(error).__name__)[:ERROR])

    def _connections(self) -> "httpcore.AsyncConnectionPool":
        import httpcore

        from services.webhooks.bounded import BoundedBackend

        if self._opened is None:
            self._opened = httpcore.AsyncConnectionPool(
                ssl_context=trusting(None), max_keepalive_connections=0, network_backend=BoundedBackend()
            )
        return self._opened

    async def _addresses(self, target: Target, project_id: str) -> list[Address]:
        """Looked up once, and all fit to be connected to. Raises BadAddressError, OSError."""
        literal = as_address(target.host)
        if literal is not None:
            found = [literal]
        else:
            answers = await self._looked_up(target, project_id)
            found = list(dict.fromkeys(ipaddress.ip_address(answer) for answer in answers))
        if not found:
            raise BadAddressError("stands for no address")
        check_addresses(target, found, self._allowed, own=self._own_addresses(), own_ports=self._own_ports)
        return found[:ADDRESSES]

    async def _looked_up(self, target: Target, project_id: str) -> list[str]:
        loop, room = asyncio.get_running_loop(), self._lookups[project_id]
        await room.acquire()
        lookup = self._threads.submit(_look_up, target.host, target.port)

        # Its room is free when the thread is, which may be long after this try has ended.
        def ended(_: Future[list[str]]) -> None:
            with contextlib.suppress(RuntimeError):  # the service has stopped since
                loop.call_soon_threadsafe(room.release)

        lookup.add_done_callback(ended)
        return await asyncio.wrap_future(lookup)

    def _own_addresses(self) -> frozenset[Address]:
        if time.monotonic() >= self._own_until:
            texts = (one.address.partition("%")[0] for all_ in psutil.net_if_addrs().values() for one in all_)
            self._own = frozenset(address for text in texts if (address := as_address(text)) is not None)
            self._own_until = time.monotonic() + OWN_SECONDS
        return self._own

    async def _try_each(
        self, target: Target, addresses: list[Address], headers: Mapping[str, str], body: bytes
    ) -> "httpcore.Response":
        import httpcore

        for address in addresses[:-1]:
            try:
                return await self._request(target, address, headers, body)
            except httpcore.ConnectError:
                continue
        return await self._request(target, addresses[-1], headers, body)

    async def _request(
        self, target: Target, address: Address, headers: Mapping[str, str], body: bytes
    ) -> "httpcore.Response":
        """The head of the answer; the rest is still to be read."""
        import httpcore

        given = {"host": target.authority, "user-agent": USER_AGENT, "connection": "close", **headers}
        request = httpcore.Request(
            b"POST",
            httpcore.URL(
                scheme=b"https" if target.secure else b"http",
                host=str(address).encode(),
                port=target.port,
                target=target.path.encode(),
            ),
            headers={**given, "content-length": str(len(body))},
            content=body,
            extensions={
                "sni_hostname": target.host,
                "timeout": dict.fromkeys(("connect", "read", "write", "pool"), TRY_SECONDS),
            },
        )
        return await self._connections().handle_async_request(request)


async def _outcome(response: "httpcore.Response") -> Outcome:
    status = response.status
    try:
        excerpt = "" if status in SUCCESS else await _excerpt(response)
    finally:
        await response.aclose()
    error = "redirects are not followed: give the address that it leads to" if status in _REDIRECTS else ""
    wish = _retry_after(_header(response, b"retry-after"), datetime.now(UTC))
    return Outcome(status, error, excerpt, wish)


def _look_up(host: str, port: int) -> list[str]:
    """Raises OSError."""
    answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(answer[4][0]).partition("%")[0] for answer in answers]


def _header(response: "httpcore.Response", name: bytes) -> str:
    """Empty where there is none."""
    return next((value.decode("latin-1") for given, value in response.headers if given.lower() == name), "")


async def _excerpt(response: "httpcore.Response") -> str:
    """How the answer's body begins, as it was sent: unpacking it could make much of little. What came of it, where the
    rest does not come.
    """
    import httpcore

    read = b""
    with contextlib.suppress(TimeoutError, httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException):
        async with asyncio.timeout(EXCERPT_SECONDS):
            async for part in response.aiter_stream():
                read += part
                if len(read) >= EXCERPT_BYTES:
                    break
    text = read[:EXCERPT_BYTES].decode("utf-8", "replace")
    return "".join(one if one.isprintable() else " " for one in text)[:EXCERPT]


def _retry_after(text: str, now: datetime) -> timedelta | None:
    """Of seconds, or of a time as HTTP writes it; None where it is neither."""
    if text.isascii() and text.isdigit():
        return timedelta(seconds=min(int(text[:9]), 10**8))
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, IndexError, OverflowError):
        return None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)) - now
