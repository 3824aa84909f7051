"""Takes connections, finds out who asks for what, and has it forwarded, or says why not.

Who is not signed in learns of no address whether it exists.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qs

import h11
import msgspec
import structlog
from prometheus_client import Counter, Gauge

from events.refusal import Refusal
from events.service_accounts import is_account_token, token_hash
from events.workload.exposure import ProxyAddress
from services.proxy.authorize import objection
from services.proxy.forward import (
    BadAnswerError,
    ClientGoneError,
    Exchange,
    StandsStillError,
    TooLargeError,
    UnreachableError,
)
from services.proxy.headers import (
    PLAIN_COOKIE,
    SECURE_COOKIE,
    bearer_token,
    cookie_of,
    is_elsewhere,
    request_headers,
    sets_cookie,
    value_of,
)
from services.proxy.replicas import NoReplicaError, Replicas
from services.proxy.routes import Route, Routes
from services.proxy.sessions import BadTicketError, Session, Sessions
from services.proxy.wire import Peer
from services.runtime.identity.authentication import Identity

HEAD_SECONDS: Final = 10.0
"""From the opening of a connection to the end of the first request's head."""
KEEP_ALIVE_SECONDS: Final = 65.0
"""To the next request on a connection; longer than the 60 s of common load balancers."""
DRAIN_SECONDS: Final = 1.0
"""For which the rest of a refused request is read, so that its client reads the refusal."""
DRAIN_PIECES: Final = 64
MOST_PODS: Final = 3
"""To which a request is offered, where none of them takes the connection."""
OWN_PATHS: Final = "/.muster/"
"""Below it the proxy answers itself, at every address."""
SIGN_IN: Final = f"{OWN_PATHS}sign-in"
SIGN_OUT: Final = f"{OWN_PATHS}sign-out"
_NOT_SIGNED_IN: Final = (
    "sign in first: `muster workload open` opens an address in a browser; programs send the header "
    "Authorization: Bearer TOKEN"
)

_ANSWERS: Final = Counter("muster_proxy_answers", "Answers to requests, by who gave them and status", ["by", "status"])
_CONNECTIONS: Final = Gauge("muster_proxy_connections", "Connections of clients that are open")

log = structlog.get_logger(__name__)

type Verify = Callable[[str], Awaitable[Identity | Refusal]]
type AccountThere = Callable[[str], bool]


class _Answer(Exception):
    """What the proxy says itself."""

    def __init__(
        self,
        status: int,
        message: str = "",
        *,
        headers: tuple[tuple[bytes, bytes], ...] = (),
        body: bytes | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers
        self.body = msgspec.json.encode({"code": status, "message": message}) if body is None else body


class Door:
    """One proxy.

    Args:
        address: where it is reached.
        verify: whom a token speaks for.
        account_there: whether the service account with a token of this hash is still there.
    """

    def __init__(
        self,
        *,
        address: ProxyAddress,
        routes: Routes,
        replicas: Replicas,
        sessions: Sessions,
        verify: Verify,
        account_there: AccountThere,
        session_seconds: float,
        idle_seconds: float,
        most_bytes: int,
        most_connections: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._address = address
        self._routes = routes
        self._replicas = replicas
        self._sessions = sessions
        self._verify = verify
        self._account_there = account_there
        self._session_seconds = session_seconds
        self._idle_seconds = idle_seconds
        self._most_bytes = most_bytes
        self._most_connections = most_connections
        self._clock = clock
        self._cookie = SECURE_COOKIE if address.scheme == "https" else PLAIN_COOKIE
        self.open: set[asyncio.Task[None]] = set()
        """Connections of clients."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of a client, to its end."""
        task = asyncio.current_task()
        assert task is not None
        self.open.add(task)
        _CONNECTIONS.inc()
        client = Peer(h11.SERVER, reader, writer)
        try:
            if len(self.open) > self._most_connections:
                message = f"{self._most_connections} connections are open already; try again"
                await _say(client, _Answer(503, message, headers=((b"retry-after", b"1"),)))
                return
            await self._requests(client)
        except (OSError, TimeoutError, h11.LocalProtocolError):
            pass  # it went, or never came
        except asyncio.CancelledError:
            client.abort()  # nobody waits for who reads slowly
            raise
        finally:
            try:
                await client.close()
            finally:
                # Until then it takes a file and memory, and counts.
                self.open.discard(task)
                _CONNECTIONS.dec()

    async def _requests(self, client: Peer) -> None:
        seconds = HEAD_SECONDS
        while True:
            try:
                async with asyncio.timeout(seconds):
                    request = await client.next()
                if not isinstance(request, h11.Request):
                    return
                await self._request(client, request)
            except h11.RemoteProtocolError as error:
                with contextlib.suppress(h11.LocalProtocolError):
                    await _say(client, _Answer(error.error_status_hint or 400, f"this is no HTTP request: {error}"))
                return
            if client.http.our_state is not h11.DONE or client.http.their_state is not h11.DONE:
                return
            client.http.start_next_cycle()
            seconds = KEEP_ALIVE_SECONDS

    async def _request(self, client: Peer, request: h11.Request) -> None:
        try:
            route = await self._admit(request)
            await self._forward(client, request, route)
        except _Answer as answer:
            if client.http.our_state is not h11.SEND_RESPONSE:
                raise ConnectionAbortedError from None  # some of another answer is out
            await _drain(client)
            await _say(client, answer)

    # -- who asks for what -----------------------------------------------------------------------------------------

    async def _admit(self, request: h11.Request) -> Route:
        """Where it may go. Raises _Answer."""
        headers, target = list(request.headers), request.target.decode("latin-1")
        if request.method == b"CONNECT" or not target.startswith("/"):
            raise _Answer(400, "ask for a path, such as /")
        label = self._address.label_of_host(_host_of(headers))
        path, _, query = target.partition("?")
        if path.startswith(OWN_PATHS):
            raise await self._own(request.method, path, query, headers, label)
        if label is not None and (cookie := cookie_of(headers, self._cookie)) and not bearer_token(headers):
            session = await self._sessions.open(cookie, label)
            if session is not None and (route := self._of_session(session)) is not None:
                if is_elsewhere(headers, self._address.url(label).encode()):
                    raise _Answer(403, "a page of another address asked for this; open it by itself")
                return route
        identity = await self._identity(headers)
        return self._allowed(label, identity)

    async def _identity(self, headers: list[tuple[bytes, bytes]]) -> Identity:
        token = bearer_token(headers)
        if not token:
            raise _Answer(401, _NOT_SIGNED_IN, headers=((b"www-authenticate", b"Bearer"),))
        identity = await self._verify(token)
        if isinstance(identity, Refusal):
            raise _Answer(401, identity.message, headers=((b"www-authenticate", b"Bearer"),))
        return identity

    def _allowed(self, label: str | None, identity: Identity) -> Route:
        route = self._routes.find(label) if label is not None else None
        if route is None:
            raise _Answer(404, "no workload has this address now; `muster workload connections` shows those of one")
        if problem := objection(route.access, identity.member):
            raise _Answer(403, problem)
        return route

    def _of_session(self, session: Session) -> Route | None:
        """Where a session is good; None where its workload has gone, or its account's token is no more."""
        route = self._routes.find(session.label)
        if route is None or route.workload_id != session.workload_id:
            return None
        return route if not session.account or self._account_there(session.account) else None

    # -- signing in ------------------------------------------------------------------------------------------------

    async def _own(
        self, method: bytes, path: str, query: str, headers: list[tuple[bytes, bytes]], label: str | None
    ) -> _Answer:
        if path == SIGN_IN and method == b"POST":
            return await self._ticket(headers, label)
        if path == SIGN_IN and method == b"GET":
            return await self._signed_in(query, label)
        if path == SIGN_OUT and method == b"POST":
            return _Answer(204, headers=(sets_cookie(self._cookie, "", 0),), body=b"")
        return _Answer(404, f"the proxy has POST and GET {SIGN_IN}, and POST {SIGN_OUT}")

    async def _ticket(self, headers: list[tuple[bytes, bytes]], label: str | None) -> _Answer:
        """For who has a token and wants to use a browser."""
        token, identity = bearer_token(headers), await self._identity(headers)
        route = self._allowed(label, identity)
        session = Session(
            label=route.label,
            workload_id=route.workload_id,
            who=identity.sub,
            until=min(self._clock() + self._session_seconds, identity.expires_at.timestamp()),
            account=token_hash(token) if is_account_token(token) else "",
        )
        ticket, expires_at = await self._sessions.ticket(session)
        url = f"{self._address.url(route.label)}{SIGN_IN}?ticket={ticket}"
        return _Answer(200, body=msgspec.json.encode({"url": url, "expiresAt": int(expires_at)}))

    async def _signed_in(self, query: str, label: str | None) -> _Answer:
        given = parse_qs(query, max_num_fields=5).get("ticket", [""])[0]
        try:
            cookie, session = await self._sessions.exchange(given, label or "")
        except BadTicketError as error:
            return _Answer(400, str(error))
        seconds = max(int(session.until - self._clock()), 0)
        # Always to the beginning of this very address: nobody is led elsewhere.
        return _Answer(
            303,
            headers=(
                (b"location", b"/"),
                sets_cookie(self._cookie, cookie, seconds),
                (b"referrer-policy", b"no-referrer"),
            ),
            body=b"",
        )

    # -- forwarding ------------------------------------------------------------------------------------------------

    async def _forward(self, client: Peer, request: h11.Request, route: Route) -> None:
        peer = client.writer.get_extra_info("peername")
        head = h11.Request(
            method=request.method,
            target=request.target,
            headers=request_headers(
                list(request.headers), scheme=self._address.scheme, client=peer[0] if peer else "unknown"
            ),
        )
        exchange = Exchange(client, idle_seconds=self._idle_seconds, most_bytes=self._most_bytes)
        try:
            await self._to_one(client, route, exchange, head)
        except ClientGoneError:
            raise ConnectionAbortedError from None
        except NoReplicaError as error:
            again = ((b"retry-after", b"%d" % error.again_seconds),)
            raise _Answer(503, str(error), headers=again) from None
        except UnreachableError as error:
            message = f"port {route.container} of workload {route.workload_name} does not answer: {error}"
            raise _Answer(502, message, headers=((b"retry-after", b"5"),)) from None
        except BadAnswerError as error:
            message = f"port {route.container} of workload {route.workload_name} gives no whole answer: {error}"
            raise _Answer(502, message) from None
        except StandsStillError as error:
            raise _Answer(504, f"workload {route.workload_name}: {error}") from None
        except TooLargeError as error:
            raise _Answer(413, str(error)) from None

    async def _to_one(self, client: Peer, route: Route, exchange: Exchange, head: h11.Request) -> None:
        """To the first pod that takes the connection: of one that ended just now, the log tells a moment later. Nothing
        of the request was sent to one that does not take it.
        """
        for left in reversed(range(MOST_PODS)):
            try:
                async with self._replicas.one(route, client.gone) as target:
                    await exchange.run(target, head)
                    _count("pod", exchange.status)
                    return
            except UnreachableError:
                alone = not route.serves and len(self._routes.targets(route)) <= 1
                if alone or not left:
                    raise
        raise AssertionError("the last one returned, or raised")


def _host_of(headers: list[tuple[bytes, bytes]]) -> str:
    """Without its port."""
    return value_of(headers, b"host").decode("latin-1").rpartition("]")[2].partition(":")[0]


def _count(by: str, status: int) -> None:
    """By class: a pod may say any number. 0: it said none, since its client had gone."""
    if status:
        _ANSWERS.labels(by, f"{status // 100}xx").inc()


async def _say(client: Peer, answer: _Answer) -> None:
    _count("proxy", answer.status)
    reason = HTTPStatus(answer.status).phrase.encode()
    headers = [
        *answer.headers,
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
    ]
    if answer.status != HTTPStatus.NO_CONTENT:
        headers += [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer.body))]
    # Who is not signed in holds no connection for longer than it takes to say so.
    if client.http.their_state is not h11.DONE or answer.status == HTTPStatus.UNAUTHORIZED:
        headers.append((b"connection", b"close"))
    await client.send(
        h11.Response(status_code=answer.status, headers=headers, reason=reason),
        *([h11.Data(data=answer.body)] if answer.body else []),
        h11.EndOfMessage(),
    )


async def _drain(client: Peer) -> None:
    """Read what is left of a request that is refused, if it is little and comes soon."""
    if client.http.they_are_waiting_for_100_continue:
        return
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            for _ in range(DRAIN_PIECES):
                if client.http.their_state is not h11.SEND_BODY:
                    return
                if not isinstance(await client.next(), h11.Data):
                    return
