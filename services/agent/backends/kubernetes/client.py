"""Calls of a Kubernetes API server: JSON bytes in and out, every call bounded in time, every refusal an `ApiError`.

Configuration, authentication and the HTTPS session are kubernetes_asyncio's. Its models are not used, for they cost
more time than everything else about a call: callers decode what they need. Nothing here knows pods, or sends again
what the server may already have acted upon.
"""

import asyncio
import random
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from http import HTTPStatus
from typing import Any, Final, Literal, cast
from urllib.parse import urlencode

import aiohttp
import msgspec
from kubernetes_asyncio.client import ApiClient

CALLS: Final = 64
"""How many calls may be under way at once; others wait their turn. A server answers 429 to a client that asks for more
than its share (by default 200 changing requests at once, for everybody together). Streams do not count.
"""
TRIES: Final = 3
"""How often a call is sent at most, when the server surely has not acted upon it."""
PAUSE_SECONDS: Final = 0.2
"""Before the second try, doubled before the third; jittered."""
SURE_CONNECT_SECONDS: Final = 2.0
"""For a connection on which something is sent that was looked at before: it must not be old news when it arrives."""
FIELD_MANAGER: Final = "muster-agent"
"""Under which name the server notes what we wrote."""

MESSAGE_BYTES: Final = 500
"""How much of an answer that is no `Status` is quoted."""

MOST_MESSAGE_BYTES: Final = 2**20
"""Of a WebSocket, in one message: kubelets send 32 KiB at most."""
FAREWELL_SECONDS: Final = 1.0
"""For the other end of a WebSocket to take leave, too."""
KEEP_ALIVE: Final = ((socket.TCP_KEEPIDLE, 20), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))
"""Seconds, and tries, after which the kernel gives up a WebSocket on which nothing goes and nobody answers. Pings of
the WebSocket itself would not do: the server answers none while a command reads nothing of what is sent to it.
"""

PATCHES: Final[Mapping[str, str]] = {
    "merge": "application/merge-patch+json",
    "apply": "application/apply-patch+yaml",
}


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    connect_seconds: float = 5.0
    """For a TCP connection; a packet filter that drops everything is noticed so."""
    call_seconds: float = 30.0
    """For one call with all its tries, waiting for a turn not counted. A stream has none: its silence is bounded."""


FORBIDDEN: Final = 403
NOT_FOUND: Final = 404
CONFLICT: Final = 409
"""What the API server answers."""


class ApiError(Exception):
    """The API server did not do it; or, with status 0, gave no answer, and whether it did it is not known."""

    def __init__(self, status: int, reason: str, message: str, retry_after_seconds: float = 0.0) -> None:
        super().__init__(f"{message} ({status} {reason})" if status else f"{message} ({reason})")
        self.status = status
        """HTTP status; 0: no answer."""
        self.reason = reason
        """Kubernetes' word, such as `NotFound`, `Conflict`, `Expired`; without an answer one of `Refused` (nothing was
        sent), `Timeout`, `Silence`, `Cut`, `Untrusted` (its certificate), `Credentials` (ours cannot be had).
        """
        self.message = message
        """A sentence for people, the server's own where it gave one."""
        self.retry_after_seconds = retry_after_seconds
        """What the server asks for; 0: nothing."""

    @property
    def unreachable(self) -> bool:
        """Asked again later it may do: no answer, too many requests, or the server's own fault."""
        return self.status in {0, HTTPStatus.TOO_MANY_REQUESTS} or self.status >= HTTPStatus.INTERNAL_SERVER_ERROR


class KubeClient:
    """One API server, for one event loop.

    `renew` gets the present credentials into `api`; a call asks for it once when the server does not know the ones
    it had (401), or when the server's certificate is not of the authority that was known.
    """

    def __init__(
        self, api: ApiClient, *, timeouts: Timeouts, renew: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self._api = api
        self._timeouts = timeouts
        self._renew = renew
        self._turns = asyncio.Semaphore(CALLS)

    def aside(self) -> "KubeClient":
        """The same, whose calls wait for no turn behind this one's."""
        return KubeClient(self._api, timeouts=self._timeouts, renew=self._renew)

    async def read(self, path: str, **query: str) -> bytes:
        """GET. `path` begins with a slash, such as `/api/v1/namespaces/x/pods/y`."""
        return await self._call(_Request(method="GET", path=path, query=query))

    async def has(self, path: str) -> bool:
        """Whether this object is there."""
        try:
            await self.read(path)
        except ApiError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return False
        return True

    async def create(
        self,
        path: str,
        body: Mapping[str, Any],
        *,
        tries: int = TRIES,
        sure: Callable[[], None] | None = None,
        **query: str,
    ) -> bytes:
        """POST to a collection, or to a subresource. With one try it is sent now or never: what was looked at before it
        holds still. `sure` is asked whenever it is about to be sent, after every wait; it raises where it may not be.
        """
        query = {"fieldManager": FIELD_MANAGER} | query
        return await self._call(
            _Request(method="POST", path=path, query=query, body=dict(body), tries=tries, sure=sure)
        )

    async def patch(
        self, path: str, body: Mapping[str, Any], *, kind: Literal["merge", "apply"] = "merge", **query: str
    ) -> bytes:
        """`merge`: JSON merge patch (with `metadata.resourceVersion` in it: 409 when the object has changed since).
        `apply`: server-side apply, creates what is not there; what others wrote into our fields is overwritten.
        """
        query = {"fieldManager": FIELD_MANAGER} | ({"force": "true"} if kind == "apply" else {}) | query
        return await self._call(
            _Request(method="PATCH", path=path, query=query, body=dict(body), content_type=PATCHES[kind])
        )

    async def delete(
        self,
        path: str,
        *,
        uid: str | None = None,
        grace_seconds: int | None = None,
        sure: Callable[[], None] | None = None,
    ) -> bytes:
        """With `uid` only that very object: 409 when another stands under its name. `sure` as with `create`."""
        options: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        return await self._call(_Request(method="DELETE", path=path, body=options, sure=sure))

    async def lines(self, path: str, *, silence_seconds: float, **query: str) -> AsyncGenerator[bytes]:
        """Lines of a watch or a log, of any length, without their ends, until the server closes the stream in order.

        Raises ApiError, `Silence` when no byte came for so long and `Cut` when the stream broke off. Close it
        (`contextlib.aclosing`) when leaving early: it holds a connection.
        """
        async with aclosing(self.line_batches(path, silence_seconds=silence_seconds, **query)) as batches:
            async for batch in batches:
                for line in batch:
                    yield line

    async def line_batches(self, path: str, *, silence_seconds: float, **query: str) -> AsyncGenerator[list[bytes]]:
        """As `lines`, all that came together in one list: one turn of the loop for many lines."""
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=self._timeouts.connect_seconds, sock_read=silence_seconds
        )
        response = await self._answer(_Request(method="GET", path=path, query=query), timeout, silence_seconds)
        try:
            rest = _Rest()
            while chunk := await response.content.readany():
                if lines := rest.lines(chunk):
                    yield lines
            if last := rest.take():
                yield [last]
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _no_answer(error, path) from error
        finally:
            # Not back to the pool: what is left of the stream belongs to nobody. Nor with a farewell: a peer that fell
            # silent would never answer it, and the connection would outlive the client.
            if response.connection is not None and response.connection.transport is not None:
                response.connection.transport.abort()
            response.close()

    async def socket(
        self, path: str, query: Sequence[tuple[str, str]], *, protocol: str
    ) -> aiohttp.ClientWebSocketResponse:
        """A WebSocket to a subresource of a pod, with a subprotocol of `channel.k8s.io`. Whoever has it closes it. It
        is asked for once: the server may have begun something. Raises ApiError.

        kubernetes_asyncio's WsApiClient is not used: it has a session of its own, no way through a proxy, no bound of a
        message, and no word of why it was refused.
        """
        path = f"{path}?{urlencode(query)}"
        try:
            return await self._socket(path, protocol)
        except ApiError as error:
            if not _outdated(error) or self._renew is None:
                raise
        await self._renew()
        return await self._socket(path, protocol)

    async def _socket(self, path: str, protocol: str) -> aiohttp.ClientWebSocketResponse:
        library = cast("Any", self._api)
        rest = library.rest_client
        session: aiohttp.ClientSession = rest.pool_manager
        headers = await self._headers() | {"Accept": "*/*"}  # the kubelet gets them, too, and has no JSON to give here
        try:
            async with asyncio.timeout(self._timeouts.call_seconds):
                opened = await session.ws_connect(
                    f"{library.configuration.host}{path}",
                    protocols=(protocol,),
                    headers=headers,
                    proxy=rest.proxy,
                    proxy_headers=rest.proxy_headers,
                    server_hostname=rest.server_hostname,
                    max_msg_size=MOST_MESSAGE_BYTES,
                    timeout=aiohttp.ClientWSTimeout(ws_close=FAREWELL_SECONDS),  # pyright: ignore[reportCallIssue] (attrs)
                )
        except aiohttp.WSServerHandshakeError as error:
            raise await self._why_not(path, error.status) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _no_answer(error, path) from error
        if opened.protocol != protocol:
            await opened.close()
            raise ApiError(HTTPStatus.SWITCHING_PROTOCOLS, "Protocol", f"the API server does not speak {protocol}")
        if (connection := opened.get_extra_info("socket")) is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in KEEP_ALIVE:
                connection.setsockopt(socket.IPPROTO_TCP, option, value)
        return opened

    async def _why_not(self, path: str, status: int) -> ApiError:
        """The words of a refusal: aiohttp drops those that came with a handshake, and the same path answers with the
        same ones where it is asked as any other; where nothing stands in the way, that it has to be a WebSocket.
        """
        try:
            await self.read(path)
        except ApiError as error:
            if error.status == status:
                return error
        return ApiError(status, "", f"{path.partition('?')[0]}: answered {status} in place of a WebSocket")

    async def close(self) -> None:
        """Cut everything that is under way."""
        await self._api.close()

    async def _call(self, request: "_Request") -> bytes:
        seconds = self._timeouts.call_seconds
        connect_seconds = self._timeouts.connect_seconds
        if request.sure is not None:
            connect_seconds = min(connect_seconds, SURE_CONNECT_SECONDS)
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=connect_seconds)
        async with self._turns:
            try:
                async with asyncio.timeout(seconds), await self._answer(request, timeout, seconds) as response:
                    return await response.read()
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise _no_answer(error, request.path) from error

    async def _answer(
        self, request: "_Request", timeout: aiohttp.ClientTimeout, patience_seconds: float
    ) -> aiohttp.ClientResponse:
        """A response of status 2xx whose body is yet to be read. Sends again what the server surely has not acted upon,
        unless the wait alone would take longer than the patience.
        """
        deadline = asyncio.get_running_loop().time() + patience_seconds
        tries, renewed = 0, False
        while True:
            tries += 1
            if request.sure is not None:
                request.sure()
            try:
                return await self._send(request, timeout)
            except ApiError as error:
                if _outdated(error) and self._renew is not None and not renewed:
                    renewed = True
                    await self._renew()
                    continue
                pause = _pause_seconds(error, tries) if tries < request.tries else None
                if pause is None or asyncio.get_running_loop().time() + pause >= deadline:
                    raise
            await asyncio.sleep(pause)

    async def _headers(self) -> dict[str, str]:
        """With the credentials. Raises ApiError."""
        headers = {"Accept": "application/json", "User-Agent": FIELD_MANAGER}
        try:
            await cast("Any", self._api).update_params_for_auth(headers, [], ["BearerToken"])
        except Exception as error:
            # Token files fail in ways of their own; all mean that nothing was sent.
            raise ApiError(0, "Credentials", f"no credentials for the API server: {error}") from error
        # A token file may end its line, a header must not.
        return {name: value.strip() for name, value in headers.items()}

    async def _send(self, request: "_Request", timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        headers = {"Content-Type": request.content_type} | await self._headers()
        library = cast("Any", self._api)  # has no types
        try:
            response: aiohttp.ClientResponse = await library.rest_client.request(
                request.method,
                f"{library.configuration.host}{request.path}",
                query_params=request.query,
                headers=headers,
                body=request.body,
                _preload_content=False,
                _request_timeout=timeout,
            )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _no_answer(error, request.path) from error
        except RuntimeError as error:
            # uvloop's word where a connection that was given up in the middle of its making still counts as open, and
            # the new one got its number. It passes.
            if not str(error).startswith("File descriptor"):
                raise
            raise ApiError(0, "Refused", f"no connection to the API server: {error}") from error
        if response.ok:
            return response
        raise await _refusal(response, request.path)


class _Request(msgspec.Struct, frozen=True, kw_only=True):
    method: Literal["GET", "POST", "PATCH", "DELETE"]
    path: str
    query: dict[str, str] = {}
    body: dict[str, Any] | None = None
    content_type: str = "application/json"
    tries: int = TRIES
    sure: Callable[[], None] | None = None


class _StatusDetails(msgspec.Struct, rename="camel"):
    retry_after_seconds: float = 0.0


class _Status(msgspec.Struct, rename="camel"):
    """The parts that we read of Kubernetes' `Status`, in which it words every refusal."""

    reason: str = ""
    message: str = ""
    details: _StatusDetails | None = None
    code: int = 0


class _Rest:
    """What came of a line that has not ended yet. Pieces are joined once, so that a long line costs no more than its
    length.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def lines(self, chunk: bytes) -> list[bytes]:
        """Lines that end in this chunk."""
        first, *others = chunk.split(b"\n")
        if not others:
            self._pieces.append(first)
            return []
        *middle, last = others
        whole = [b"".join((*self._pieces, first)), *middle]
        self._pieces = [last] if last else []
        return whole

    def take(self) -> bytes:
        return b"".join(self._pieces)


def _outdated(error: ApiError) -> bool:
    """Whether the server does not know our credentials, or we do not know its authority, any more."""
    return error.status == HTTPStatus.UNAUTHORIZED or error.reason == "Untrusted"


def _pause_seconds(error: ApiError, tries: int) -> float | None:
    """How long to wait before the same call is sent again; None: the server may have acted upon it."""
    if error.status == HTTPStatus.TOO_MANY_REQUESTS:
        # Later than asked by up to a half: those who were refused together do not come back together.
        least = error.retry_after_seconds or PAUSE_SECONDS * 2 ** (tries - 1)
        return least * random.uniform(1.0, 1.5)  # noqa: S311 (jitter)
    if error.reason == "Refused":
        return PAUSE_SECONDS * 2 ** (tries - 1) * random.uniform(0.5, 1.5)  # noqa: S311 (jitter)
    return None


async def _refusal(response: aiohttp.ClientResponse, path: str) -> ApiError:
    async with response:
        try:
            body = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError):
            body = b""  # the status says enough
    header = response.headers.get("Retry-After", "")
    seconds = float(header) if header.isdecimal() else 0.0
    return status_error(body, path, status=response.status, reason=response.reason or "", retry_after_seconds=seconds)


def status_error(
    body: bytes | msgspec.Raw, path: str, *, status: int, reason: str = "", retry_after_seconds: float = 0.0
) -> ApiError:
    """The error that a `Status` object words; what stands between us and the server may answer with anything else."""
    try:
        said = msgspec.json.decode(body, type=_Status)
    except msgspec.DecodeError:
        text = bytes(body)[:MESSAGE_BYTES].decode(errors="replace").strip()
        said = _Status(message=text)
    details = said.details or _StatusDetails()
    return ApiError(
        status or said.code,
        said.reason or reason,
        said.message or f"{path}: answered {status or said.code} without a word",
        retry_after_seconds or details.retry_after_seconds,
    )


def _no_answer(error: Exception, path: str) -> ApiError:
    said = str(error) or type(error).__name__
    match error:
        case aiohttp.ClientConnectorCertificateError():
            reason, words = "Untrusted", f"the API server's certificate is not to be trusted: {said}"
        case aiohttp.ClientConnectorError():
            reason, words = "Refused", f"no connection to the API server: {said}"
        case aiohttp.SocketTimeoutError():
            reason, words = "Silence", f"{path}: nothing came from the API server for too long"
        case TimeoutError():
            reason, words = "Timeout", f"{path}: no answer from the API server in time"
        case _:
            reason, words = "Cut", f"{path}: the connection broke off: {said}"
    return ApiError(0, reason, words)
