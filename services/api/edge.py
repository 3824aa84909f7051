"""The outermost ASGI layer: what holds for every request before anybody looks at what it asks for.

Limits of headers and body, content type, request id, security headers, and that whatever goes wrong is answered in our
form. It knows no endpoint.
"""

import asyncio
import re
import secrets
from collections.abc import Collection
from typing import Final

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.api.body import MAX_BODY_BYTES, MAX_LARGE_BODY_BYTES
from services.api.errors import ApiError, outcome_unknown, unavailable

MAX_HEADER_BYTES: Final = 16 * 1024
"""Room for a token of 8 KiB and a browser's own (log.md section 6.7)."""

CONTENT_SECURITY_POLICY: Final = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
SECURITY_HEADERS: Final[tuple[tuple[bytes, bytes], ...]] = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (b"strict-transport-security", b"max-age=31536000; includeSubDomains"),
)

_REQUEST_ID: Final = re.compile(rb"^[A-Za-z0-9._-]{1,64}$")
_JSON: Final = re.compile(rb"^application/json\s*(;\s*charset\s*=\s*\"?utf-8\"?\s*)?$", re.IGNORECASE)
_METHODS_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})

log = structlog.get_logger(__name__)


class BodyTooLargeError(ApiError):
    def __init__(self, most: int = MAX_BODY_BYTES) -> None:
        super().__init__(413, f"the body is larger than {most} bytes", details="body_too_large")


class Edge:
    """Middleware around the whole application. To paths of `large` bodies of MAX_LARGE_BODY_BYTES may be sent."""

    def __init__(self, app: ASGIApp, *, sockets: ASGIApp | None = None, large: Collection[str] = ()) -> None:
        """`sockets`: what answers WebSockets; None: nothing does."""
        self._app = app
        self._sockets = sockets
        self._large = large

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = _given_request_id(scope)
        request_id = given if given is not None else secrets.token_hex(12)
        scope["state"] = {**scope.get("state", {}), "request_id": request_id}
        if scope["type"] == "websocket":
            await self._socket(scope, receive, send, request_id)
            return
        started = False
        most = MAX_LARGE_BODY_BYTES if scope["path"] in self._large else MAX_BODY_BYTES

        async def answer(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = _with_headers(message.get("headers", []), request_id)
            await send(message)

        try:
            error = _objection(scope, most)
            if error is None:
                await self._app(scope, _counted(receive, most), answer)
                return
        except ApiError as raised:
            error = raised
        except asyncio.CancelledError:
            # The process ends, and has waited for its requests as long as it does.
            log.warning("request_cut_short", request_id=request_id, method=scope["method"], path=scope["path"])
            changes = scope["method"] in _METHODS_WITH_BODY
            error = outcome_unknown() if changes else unavailable("this server is stopping; ask again")
        except Exception:
            log.exception("request_failed", request_id=request_id, method=scope["method"], path=scope["path"])
            error = ApiError(
                500, "an error in Muster; an operator finds its cause in the log, by the request id", details=request_id
            )
        if not started:
            await error.response()(scope, receive, answer)

    async def _socket(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        """A WebSocket is refused as any request, until it is agreed on."""
        begun = False

        async def say(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await receive()  # that somebody connects
            error = _objection({**scope, "method": "GET"}, 0)
            if error is None and self._sockets is None:
                error = ApiError(404, "no WebSocket stands at this path")
            if error is None and self._sockets is not None:
                await self._sockets(scope, receive, say)
                return
        except ApiError as raised:
            error = raised
        except asyncio.CancelledError:
            error = unavailable("this server is stopping; ask again")
        except Exception:
            log.exception("request_failed", request_id=request_id, method="WEBSOCKET", path=scope["path"])
            error = ApiError(
                500, "an error in Muster; an operator finds its cause in the log, by the request id", details=request_id
            )
        if not begun and error is not None:
            response = error.response()
            headers = _with_headers([*response.raw_headers, (b"connection", b"close")], request_id)
            await send({"type": "websocket.http.response.start", "status": response.status_code, "headers": headers})
            await send({"type": "websocket.http.response.body", "body": response.body})


def _counted(receive: Receive, most: int) -> Receive:
    """The same, but a body ends with 413 once more bytes came than are read, whatever its Content-Length said."""
    received = 0

    async def counting() -> Message:
        nonlocal received
        message = await receive()
        if message["type"] == "http.request":
            received += len(message.get("body", b""))
            if received > most:
                raise BodyTooLargeError(most)
        return message

    return counting


_ONCE: Final = frozenset(
    (b"authorization", b"content-type", b"idempotency-key", b"if-match", b"x-log-sequence", b"x-request-id")
)
"""Headers that say one thing: something before us may have looked at another than we do."""


def _objection(scope: Scope, most: int) -> ApiError | None:
    """What is wrong with the request's head."""
    size, content_type, length, chunked = 0, b"", b"", False
    once: set[bytes] = set()
    for name, value in scope["headers"]:
        size += len(name) + len(value)
        if name in once:
            shown = name.decode("latin-1")
            return ApiError(400, f"the header {shown} is given twice; send it once", details="header_given_twice")
        if name in _ONCE:
            once.add(name)
        if name == b"content-type":
            content_type = value
        elif name == b"content-length":
            length = value
        elif name == b"transfer-encoding":
            chunked = True
    if size + len(scope.get("query_string", b"")) > MAX_HEADER_BYTES:
        return ApiError(431, f"headers and query are larger than {MAX_HEADER_BYTES} bytes", details="headers_too_large")
    if length and (not length.isdigit() or int(length) > most):
        return BodyTooLargeError(most)
    has_body = chunked or length.strip(b"0") != b""
    if has_body and scope["method"] in _METHODS_WITH_BODY and not _JSON.match(content_type):
        return ApiError(
            415, "the body's Content-Type must be application/json, in UTF-8", details="unsupported_content_type"
        )
    return None


def _given_request_id(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.match(value):
            return value.decode("ascii")
    return None


def _with_headers(headers: list[tuple[bytes, bytes]], request_id: str) -> list[tuple[bytes, bytes]]:
    present = {name for name, _ in headers}
    added = [*headers, (b"x-request-id", request_id.encode("ascii"))]
    added += [header for header in SECURITY_HEADERS if header[0] not in present]
    if b"content-security-policy" not in present:
        added.append((b"content-security-policy", CONTENT_SECURITY_POLICY.encode()))
    return added
