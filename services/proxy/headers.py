"""Which headers pass the proxy. Pure.

What is of one connection stays on it, and what signs somebody in to Muster never reaches a workload.
"""

from collections.abc import Iterable
from typing import Final

type Headers = Iterable[tuple[bytes, bytes]]

WEBSOCKET: Final = b"websocket"
"""The only protocol that a connection may switch to."""
SECURE_COOKIE: Final = b"__Host-muster-session"
"""Browsers let no other host set one of this name."""
PLAIN_COOKIE: Final = b"muster-session"
"""Over plain HTTP, where they do not take that name."""
COOKIES: Final = frozenset({SECURE_COOKIE, PLAIN_COOKIE})

_OF_A_CONNECTION: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_SAID_BY_PROXIES: Final = frozenset(
    {b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-port", b"x-forwarded-proto", b"x-real-ip"}
)
"""By us alone: who asks may not say them."""
_OURS: Final = _SAID_BY_PROXIES | {b"host", b"cookie", b"authorization", b"content-length"}
_BEARER: Final = b"bearer "


def value_of(headers: Headers, name: bytes) -> bytes:
    """Of the first one of this name (small letters); empty where there is none."""
    return next((value for each, value in headers if each == name), b"")


def bearer_token(headers: Headers) -> str:
    """Empty where there is none."""
    given = value_of(headers, b"authorization")
    return given[len(_BEARER) :].strip().decode("latin-1") if given[: len(_BEARER)].lower() == _BEARER else ""


def cookie_of(headers: Headers, name: bytes) -> str:
    """The value of the first cookie of this name; empty where there is none."""
    for each, value in headers:
        if each == b"cookie":
            for part in value.split(b";"):
                key, _, content = part.strip().partition(b"=")
                if key == name:
                    return content.decode("latin-1")
    return ""


def wants_websocket(headers: Headers) -> bool:
    return WEBSOCKET in _words(headers, b"upgrade") and b"upgrade" in _words(headers, b"connection")


def is_chunked(headers: Headers) -> bool:
    return b"chunked" in _words(headers, b"transfer-encoding")


def request_headers(headers: list[tuple[bytes, bytes]], *, scheme: str, client: str) -> list[tuple[bytes, bytes]]:
    """What a workload gets. Its own host name stays, so that it can write addresses of itself."""
    upgrade, chunked = wants_websocket(headers), is_chunked(headers)
    dropped = _OF_A_CONNECTION | _SAID_BY_PROXIES | _words(headers, b"connection")
    passed: list[tuple[bytes, bytes]] = []
    for name, value in headers:
        if name == b"cookie":
            if kept := _other_cookies(value):
                passed.append((name, kept))
        elif name == b"authorization" and value[: len(_BEARER)].lower() == _BEARER:
            continue
        elif name == b"content-length":
            # Beside the other length it would be for whoever reads it to say which counts.
            passed += [] if chunked else [(name, value)]
        elif name == b"host" or not (name in dropped or _reads_as_another(name)):
            passed.append((name, value))
    if chunked:
        passed.append((b"transfer-encoding", b"chunked"))
    passed += [
        (b"x-forwarded-for", client.encode("latin-1", "replace")),
        (b"x-forwarded-host", value_of(headers, b"host")),
        (b"x-forwarded-proto", scheme.encode()),
    ]
    # One connection, one request: none is ever reused in a state that nobody knows.
    return passed + ([(b"connection", b"upgrade"), (b"upgrade", WEBSOCKET)] if upgrade else [(b"connection", b"close")])


def answer_headers(headers: list[tuple[bytes, bytes]], *, upgrade: bool = False) -> list[tuple[bytes, bytes]]:
    """What a client gets of a workload's answer: it sets cookies for its own host alone, and never ours."""
    dropped = _OF_A_CONNECTION | _words(headers, b"connection")
    passed: list[tuple[bytes, bytes]] = []
    for name, value in headers:
        if name == b"set-cookie":
            if (kept := _own_cookie(value)) is not None:
                passed.append((name, kept))
        elif name not in dropped or name == b"content-length":
            passed.append((name, value))
    return passed + ([(b"connection", b"upgrade"), (b"upgrade", WEBSOCKET)] if upgrade else [])


def _reads_as_another(name: bytes) -> bool:
    """Whether a program may take it for a header that only we say: many read `_` in a name as `-`."""
    plain = name.replace(b"_", b"-")
    return plain != name and (plain in _OURS or plain in _OF_A_CONNECTION)


def _words(headers: Headers, name: bytes) -> frozenset[bytes]:
    values = b",".join(value for each, value in headers if each == name)
    return frozenset(filter(None, (word.strip().lower() for word in values.split(b","))))


def _other_cookies(value: bytes) -> bytes:
    parts = (part.strip() for part in value.split(b";"))
    return b"; ".join(part for part in parts if part and part.partition(b"=")[0].strip() not in COOKIES)


def _own_cookie(value: bytes) -> bytes | None:
    first, *attributes = (part.strip() for part in value.split(b";"))
    if first.partition(b"=")[0].strip() in COOKIES:
        return None
    kept = (part for part in attributes if part.partition(b"=")[0].strip().lower() != b"domain")
    return b"; ".join((first, *kept))


def sets_cookie(name: bytes, value: str, seconds: int) -> tuple[bytes, bytes]:
    """Ours; not to be read by pages, and not sent where another site asks for anything but the page."""
    secure = b"; Secure" if name == SECURE_COOKIE else b""
    kept = b"%s=%s; Path=/; Max-Age=%d; HttpOnly; SameSite=Lax%s" % (name, value.encode("latin-1"), seconds, secure)
    return b"set-cookie", kept


def is_elsewhere(headers: Headers, origin: bytes) -> bool:
    """Whether a page of another address made the request. A browser sends cookies with it all the same where that one
    has the same domain, and so also to one workload what the page of another makes up.
    """
    given = value_of(headers, b"origin")
    if given and given.lower() != origin:
        return True
    if value_of(headers, b"sec-fetch-site") not in (b"same-site", b"cross-site"):
        return False
    mode, destination = value_of(headers, b"sec-fetch-mode"), value_of(headers, b"sec-fetch-dest")
    # A link may lead here. A frame may not: whoever clicks in it sees the page around it.
    return mode != b"navigate" or destination not in (b"", b"document")
