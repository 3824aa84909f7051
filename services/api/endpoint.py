"""From an operation to a route: authentication, limits, query parameters, deadline, errors and figures.

The hot path stays plain: one function, no dependency tree. Handlers are given a `Call` and raise `ApiError`.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Final, assert_never
from urllib.parse import parse_qsl

import structlog
from nats.errors import ConnectionClosedError, NoRespondersError, NoServersError, OutboundBufferLimitError
from nats.errors import TimeoutError as NatsTimeoutError
from prometheus_client import Counter, Histogram
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from events.authorize import Grants
from events.refusal import Refusal
from events.service_accounts import is_account_token, token_hash
from projections.filters import InvalidQueryError
from projections.unanswered import ProjectionsUnavailableError, QueriesBusyError, QueryTimeoutError
from services.api.context import MAX_DIGITS, MAX_WAIT_SECONDS, Api, Call, Look, Readers, bearer_token
from services.api.errors import ApiError, bad_request, outcome_unknown, refused, unavailable
from services.api.issues import MAX_ISSUES, MAX_SHOWN_CHARACTERS, BadValueError, Issue, none_of, shown
from services.api.operations import LookHandler, Operation, Query
from services.api.tickets import BadTicketError, Ticket
from services.runtime.identity.actors import ActorsAwayError
from services.runtime.identity.authentication import Identity
from services.runtime.identity.identities import principal
from services.runtime.log.store import UnreadableMessageError
from services.runtime.nats.bus import GateAwayError
from services.runtime.nats.jetstream_api import JetStreamError
from services.runtime.nats.requests import UnansweredError

REQUEST_SECONDS: Final = 10.0
"""Longer than the 5 s for a decision and the 5 s that Postgres has for a statement."""
BODY_SECONDS: Final = 4.0
"""512 KiB over a line of a megabit; leaves room for a decision within REQUEST_SECONDS."""
LARGE_SECONDS: Final = 60.0
"""As REQUEST_SECONDS, of what has a large body: some twenty decisions, one after the other."""
LARGE_BODY_SECONDS: Final = 30.0
"""16 MiB over a line of five megabits."""
MAX_QUERY_PARAMETERS: Final = 200

REQUESTS: Final = Counter("muster_api_requests", "Requests by operation and status", ["operation", "status"])
SECONDS: Final = Histogram(
    "muster_api_request_seconds",
    "Time to the answer's head, by operation",
    ["operation"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)

log = structlog.get_logger(__name__)

_NOBODY: Final = Identity(iss="", sub="", expires_at=datetime.max.replace(tzinfo=UTC))
"""Who asks a public operation."""
_NOTHING: Final = Grants()

_LOG_AWAY: Final = (
    NatsTimeoutError,
    NoRespondersError,
    NoServersError,
    ConnectionClosedError,
    OutboundBufferLimitError,
    UnansweredError,
    JetStreamError,
)


class Endpoint:
    """Answers requests for one operation: an ASGI application, which nothing of Starlette's stands around."""

    def __init__(self, operation: Operation, serve: Callable[[Request], Awaitable[Response]]) -> None:
        self._operation = operation
        self._serve = serve
        self._seconds = SECONDS.labels(operation.id)
        self._answered = REQUESTS.labels(operation.id, str(operation.ok))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        operation = self._operation
        request = Request(scope, receive)
        started = time.perf_counter()
        try:
            async with asyncio.timeout(LARGE_SECONDS if operation.large else REQUEST_SECONDS):
                response = await self._serve(request)
        except ApiError as error:
            response = error.response()
        except Exception as error:  # noqa: BLE001 - the last one who can answer
            response = _of_exception(error, operation, request).response()
        self._seconds.observe(time.perf_counter() - started)
        if response.status_code == operation.ok:
            self._answered.inc()
        else:
            REQUESTS.labels(operation.id, str(response.status_code)).inc()
        await response(scope, receive, send)


def endpoint(api: Api, operation: Operation) -> Endpoint:
    async def serve(request: Request) -> Response:
        call = Call(api=api, operation=operation, request=request, identity=_NOBODY, grants=_NOTHING)
        if not operation.public:
            token, call.ticket = await _token(api, operation, request)
            await _admit(call, token)
            if is_account_token(token) and (used := api.roles.account_with(token_hash(token))) is not None:
                api.account_use.note(*used, token, min_roles=api.roles.known)
        if not operation.large:
            return await _answer(call, operation.handler)
        # Before the body is read: so many bodies are held at once, whoever sends how many.
        give_back = call.take_slot(api.batches, "batches")
        try:
            return await _answer(call, operation.handler)
        finally:
            give_back()

    return Endpoint(operation, serve)


type Carry = Callable[[Receive, Send], Awaitable[None]]
"""Agrees on a WebSocket, and carries what goes through it to its end."""
type SocketHandler = Callable[[Call], Awaitable[Carry]]


class SocketEndpoint:
    """Answers one operation that is a WebSocket. Raises ApiError where it is refused."""

    def __init__(self, api: Api, operation: Operation, handler: SocketHandler) -> None:
        self._api = api
        self._operation = operation
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        operation = self._operation
        request = Request({**scope, "type": "http", "method": "GET"})
        call = Call(api=self._api, operation=operation, request=request, identity=_NOBODY, grants=_NOTHING)
        started = time.perf_counter()
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                await _admit(call, bearer_token(request))
                call.values, faults = query_values(operation, scope["query_string"])
                if not scope["query_string"]:
                    faults = [*operation.rules(call.values, frozenset())]  # something is always needed
                if faults := [*faults, *call.header_faults()]:
                    raise bad_request(faults)  # noqa: TRY301 (counted below, as any other)
                await call.check_min_seq()
                carry = await self._handler(call)
        except ApiError as error:
            REQUESTS.labels(operation.id, str(error.status)).inc()
            raise
        except Exception as error:
            told = _of_exception(error, operation, request)
            REQUESTS.labels(operation.id, str(told.status)).inc()
            raise told from error
        SECONDS.labels(operation.id).observe(time.perf_counter() - started)
        REQUESTS.labels(operation.id, str(operation.ok)).inc()
        await carry(receive, send)


def sandbox_endpoint(readers: Readers, operation: Operation, handler: LookHandler) -> Endpoint:
    """The same over readers alone."""

    async def serve(request: Request) -> Response:
        look = Look(api=readers, operation=operation, request=request, identity=_NOBODY, grants=_NOTHING)
        if not operation.public:
            await _admit(look, bearer_token(request))
        return await _answer(look, handler)

    return Endpoint(operation, serve)


async def _admit(call: Look, token: str) -> None:
    """Who asks, and what they may. Raises what they are refused with."""
    api = call.api
    if is_account_token(token):
        await _fresh_roles(api)  # the token itself stands there
    identity = await api.identities.verify(token)
    if isinstance(identity, Refusal):
        raise refused(identity, creation=True)
    wait = api.limiter.wait_seconds(principal(identity))
    if wait > 0:
        raise ApiError(
            429,
            f"you may send {api.limiter.rate:g} requests a second, and {api.limiter.burst:g} at once; "
            f"the next is taken in {wait:.2f} s",
            details="rate_limited",
            headers={"Retry-After": str(math.ceil(wait))},
        )
    await _fresh_roles(api)
    call.identity, call.token = identity, token
    call.actor = await api.identities.actor(identity)
    call.grants = api.roles.grants(call.actor)


async def _answer[C: Look](call: C, handler: Callable[[C], Awaitable[Response]]) -> Response:
    """Check the query and the headers, read the body, and have the handler answer."""
    operation, request = call.operation, call.request
    call.values, query_faults = query_values(operation, request.scope["query_string"])
    call.faults = [*query_faults, *call.header_faults()]
    if operation.mutates or operation.body is not None:
        call.raw = await _body(request, LARGE_BODY_SECONDS if operation.large else BODY_SECONDS)
        if operation.body is None and call.raw.strip() not in {b"", b"{}"}:
            call.faults.append(Issue(field="body", details="this request takes no body; leave it out"))
    if call.faults and operation.body is None:
        raise bad_request(call.faults)
    if not operation.public:
        await call.check_min_seq()
    try:
        answer = await handler(call)
    except ApiError as error:
        if call.faults and error.issues is not None:
            raise bad_request([*call.faults, *error.issues][:MAX_ISSUES]) from None
        raise
    if call.faults:
        # It sent no command, which would have told them.
        raise bad_request(call.faults)
    return answer


async def _token(api: Api, operation: Operation, request: Request) -> tuple[str, Ticket | None]:
    """Who asks, by the header or, where that will do, by a ticket. Raises 401."""
    given = request.query_params.getlist("ticket") if operation.ticketed else []
    if not given or "authorization" in request.headers:
        return bearer_token(request), None
    try:
        ticket = await api.tickets.open(given[0])
    except BadTicketError as error:
        raise refused(Refusal(code="not_authenticated", message=str(error)), creation=True) from None
    return ticket.token, ticket


async def _fresh_roles(api: Readers) -> None:
    """Raises 503 where this api does not know yet what it was told of roles and accounts."""
    if not await api.roles.fresh(timeout_seconds=MAX_WAIT_SECONDS):
        raise unavailable("roles are not known as new as they were changed here; try again", details="roles_behind")


async def _body(request: Request, seconds: float) -> bytes:
    """Raises 408: whoever sends it too slowly has not given a command whose outcome could be unknown."""
    try:
        async with asyncio.timeout(seconds):
            return await request.body()
    except TimeoutError:
        raise ApiError(
            408,
            f"the body was not there within {seconds:.0f} s; nothing was done",
            details="body_too_slow",
            headers={"Connection": "close"},
        ) from None


def query_values(operation: Operation, query_string: bytes) -> tuple[dict[str, Any], list[Issue]]:
    """The query parameters, parsed, and everything that is wrong with them; what is wrong has its default."""
    values = {parameter.name: parameter.default for parameter in operation.query}
    if not query_string:
        return values, []
    known = {parameter.name: parameter for parameter in operation.query}
    issues: list[Issue] = []
    try:
        pairs = parse_qsl(
            query_string.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MAX_QUERY_PARAMETERS
        )
    except ValueError:
        details = f"must be at most {MAX_QUERY_PARAMETERS} parameters in percent-encoded UTF-8"
        return values, [Issue(field="query", details=details)]
    seen: set[str] = set()
    for name, text in pairs:
        parameter = known.get(name)
        if parameter is None:
            possible = ", ".join(known) or "none here"
            issues.append(Issue(field=shown_name(name), details=f"is no query parameter; possible: {possible}"))
        elif name in seen and parameter.type != "texts":
            issues.append(Issue(field=name, details="is given twice; leave one out"))
        else:
            try:
                value = _value(parameter, text)
            except BadValueError as error:
                issues.append(Issue(field=name, details=str(error), rule=error.rule))
            else:
                values[name] = (*(values[name] or ()), value) if parameter.type == "texts" else value
        seen.add(name)
    # Where one of several texts is wrong, the others are looked at all the same.
    faulty = {issue.field for issue in issues if (of := known.get(issue.field)) is None or of.type != "texts"}
    issues += [issue for issue in operation.rules(values, seen) if not faulty & {issue.field, *issue.involves}]
    return values, issues[:MAX_QUERY_PARAMETERS]


def shown_name(name: str) -> str:
    return name if name.isascii() and name.isprintable() and len(name) <= MAX_SHOWN_CHARACTERS else shown(name)


def _value(parameter: Query, text: str) -> Any:
    """Raises BadValueError."""
    if "\x00" in text:
        raise BadValueError("contains a NUL character, which is not allowed")
    match parameter.type:
        case "text" | "texts":
            return text if parameter.read is None else parameter.read(text)
        case "boolean":
            if text.lower() not in {"true", "false"}:
                raise BadValueError(f"must be true or false, got {shown(text)}", "options")
            return text.lower() == "true"
        case "choice":
            if parameter.read is not None:
                return parameter.read(text)
            if text not in parameter.options:
                raise BadValueError(none_of(text, parameter.options), "options")
            return text
        case "integer":
            value = _integer(text)
            if value is None or not parameter.least <= value <= parameter.most:
                bounds = f"from {parameter.least} to {parameter.most}"
                raise BadValueError(f"must be a whole number {bounds}, got {shown(text)}")
            return value
        case _:
            assert_never(parameter.type)


def _integer(text: str) -> int | None:
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) <= MAX_DIGITS else None


def _of_exception(error: Exception, operation: Operation, request: Request) -> ApiError:
    """What an exception of somebody else's is over HTTP."""
    match error:
        case ClientDisconnect():
            return ApiError(400, "the client closed the connection before the request was complete")
        case InvalidQueryError():
            return bad_request([Issue(field=error.field, details=error.message)])
        case QueryTimeoutError():
            return unavailable(str(error), details="query_timeout")
        case QueriesBusyError():
            return unavailable(str(error), details="lists_busy")
        case ProjectionsUnavailableError():
            return unavailable(
                "the lists cannot be read now, because Postgres is away; workloads by id can",
                details="lists_unavailable",
            )
        case ActorsAwayError():
            return unavailable(
                "who you are cannot be looked up now; nothing was done, try again", details="actors_away"
            )
        case GateAwayError():
            return unavailable(
                "commands are not taken now, because the gate is away; nothing was done", details="gate_away"
            )
        case TimeoutError() if operation.mutates and not isinstance(error, NatsTimeoutError):
            return outcome_unknown()
        case TimeoutError() if not isinstance(error, NatsTimeoutError):
            return unavailable(f"this took longer than {REQUEST_SECONDS:.0f} s", details="timeout")
        case UnreadableMessageError():
            return unavailable(f"{error}; an administrator must {error.todo}", details="log_unreadable")
        case _ if isinstance(error, _LOG_AWAY):
            log.warning("log_unavailable", request_id=request.state.request_id, error=type(error).__name__)
            return unavailable("the log cannot be reached now; try again", details="log_unavailable")
        case _:
            log.error(
                "request_failed",
                request_id=request.state.request_id,
                method=request.method,
                path=request.url.path,
                exc_info=error,
            )
            return ApiError(
                500,
                "an error in Muster; an operator finds its cause in the log, by the request id",
                details=f"request id {request.state.request_id}",
            )
