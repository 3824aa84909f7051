"""HTTP as the command line needs it: one server, one connection, answers as they come.

Over the standard library's own client: a library with more to it takes longer to import than most commands take. It
knows no API: what an answer means, muster.cli.client decides.
"""

import codecs
import os
import select
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPMessage, HTTPResponse
from socket import IPPROTO_TCP, SO_KEEPALIVE, SOL_SOCKET, TCP_KEEPCNT, TCP_KEEPIDLE, TCP_KEEPINTVL, socket
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, quote, urlencode, urlsplit

if TYPE_CHECKING:
    from ssl import SSLContext

CONNECT_SECONDS: Final = 3.0
"""A server that is there accepts at once, also across an ocean."""
READ_SECONDS: Final = 15.0
"""The API itself waits 5 s for the decision; the rest is for a slow disk and a slow line."""
SILENT_SECONDS: Final = 30
"""Of a connection, after which it is asked three times whether somebody is there."""
PIECE_BYTES: Final = 64 * 1024

_PATH_SAFE: Final = "/%:@!$&'()*+,;=~"
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_ERRORS_FROM: Final = 400

type Parameters = Sequence[tuple[str, str | int]]


class BadUrlError(ValueError):
    """No request can be sent to this URL, or with these headers; the message says why."""


class TransportError(Exception):
    """No answer, or no whole one."""

    def __init__(self, error: Exception, *, sent: bool) -> None:
        super().__init__(str(error) or type(error).__name__)
        self.sent = sent
        """Whether the request may have arrived."""


class TlsError(TransportError):
    """No connection over TLS, for a cause that does not pass by itself: nothing was sent."""

    def __init__(self, why: str, *, todo: str) -> None:
        super().__init__(ConnectionError(why), sent=False)
        self.todo = todo
        """What the user can do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """The answer to one request, whole."""

    method: str
    base: str
    """Scheme, host and port that were asked."""
    path: str
    status: int
    reason: str
    headers: HTTPMessage
    content: bytes

    @property
    def is_error(self) -> bool:
        return self.status >= _ERRORS_FROM

    @property
    def is_redirect(self) -> bool:
        return self.status in _REDIRECTS and "Location" in self.headers

    @property
    def text(self) -> str:
        return self.content.decode("utf-8", errors="replace")


class Stream:
    """An answer that comes piece by piece."""

    def __init__(self, response: HTTPResponse, connection: socket) -> None:
        self._response = response
        self._connection = connection
        self.headers = response.headers
        self.end_after(None)

    def end_after(self, seconds: float | None) -> None:
        """How long the next piece may take to come; None: for ever."""
        self._connection.settimeout(seconds)

    def texts(self) -> Iterator[str]:
        """What came, as it comes. Raises TransportError where it ends too early."""
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        try:
            while piece := self._response.read1(PIECE_BYTES):
                yield decoder.decode(piece)
            if self._response.length:
                raise TransportError(ConnectionError("it ended before its end"), sent=True)
        except (OSError, HTTPException) as error:
            raise TransportError(error, sent=True) from error
        yield decoder.decode(b"", final=True)

    def lines(self) -> Iterator[str]:
        """Its lines, each as soon as it is whole."""
        held = ""
        for text in self.texts():
            *whole, held = (held + text).split("\n")
            yield from whole
        if held:
            yield held


class Http:
    """One server. Its connection is made with the first request, and kept."""

    def __init__(self, url: str, headers: Mapping[str, str], *, ca_file: str = "") -> None:
        """`ca_file`: whose certificates alone are trusted (`trusted`). Raises BadUrlError."""
        try:
            self._url = urlsplit(url)
            self._port = self._url.port
            for value in headers.values():
                value.encode("ascii")
            host = self._url.hostname or ""
            self._host = host if host.isascii() else host.encode("idna").decode("ascii")
        except ValueError as error:
            raise BadUrlError(str(error)) from error
        self._headers = dict(headers)
        self._ca_file = ca_file
        self._connection: HTTPConnection | None = None
        self._proxy = proxy_of(self._url)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def request(
        self,
        method: str,
        path: str,
        *,
        parameters: Parameters = (),
        body: bytes | None = None,
        headers: Mapping[str, str],
    ) -> Response:
        """Raises TransportError and BadUrlError."""
        answer = self._send(method, path, parameters=parameters, body=body, headers=headers, read_seconds=READ_SECONDS)
        return self._whole(method, path, answer)

    @contextmanager
    def stream(self, path: str, parameters: Parameters, headers: Mapping[str, str]) -> Generator[Response | Stream]:
        """A GET with no limit between the pieces of its answer; a refusal comes whole. Raises as `request`."""
        connection = self._connected().sock
        assert connection is not None
        answer = self._send("GET", path, parameters=parameters, body=None, headers=headers, read_seconds=READ_SECONDS)
        try:
            yield self._whole("GET", path, answer) if answer.status >= _ERRORS_FROM else Stream(answer, connection)
        finally:
            self.close()

    def _whole(self, method: str, path: str, answer: HTTPResponse) -> Response:
        try:
            content = answer.read()
        except (OSError, HTTPException) as error:
            self.close()
            raise TransportError(error, sent=True) from error
        return Response(
            method=method,
            base=f"{self._url.scheme}://{self._url.netloc.rpartition('@')[2]}",
            path=self._url.path.rstrip("/") + path,
            status=answer.status,
            reason=answer.reason,
            headers=answer.headers,
            content=content,
        )

    def _send(
        self,
        method: str,
        path: str,
        *,
        parameters: Parameters,
        body: bytes | None,
        headers: Mapping[str, str],
        read_seconds: float | None,
    ) -> HTTPResponse:
        """The answer's head."""
        target = quote(self._url.path.rstrip("/") + path, safe=_PATH_SAFE)
        if parameters:
            target += "?" + urlencode(parameters, quote_via=quote)
        if self._proxy is not None and self._url.scheme == "http":
            target = f"http://{self._url.netloc.rpartition('@')[2]}{target}"
        connection = self._connected()
        try:
            assert connection.sock is not None
            connection.sock.settimeout(read_seconds)
            connection.request(method, target, body, {**self._headers, **headers})
            return connection.getresponse()
        except (OSError, HTTPException) as error:
            self.close()
            raise TransportError(error, sent=True) from error
        except ValueError as error:
            self.close()
            raise BadUrlError(str(error)) from error

    def _connected(self) -> HTTPConnection:
        """The connection, made again where its server has closed it."""
        if self._connection is not None and self._connection.sock is not None:
            if not select.select([self._connection.sock], [], [], 0)[0]:
                return self._connection
            self.close()
        connection = self._new_connection()
        try:
            connection.connect()
            _watch_over(connection.sock)
        except (OSError, HTTPException) as error:
            # Only who speaks TLS has loaded what its errors are told by.
            lasting = self._url.scheme == "https" and tls_error(error, self._url)
            raise lasting or TransportError(error, sent=False) from error
        except ValueError as error:
            raise BadUrlError(str(error)) from error
        self._connection = connection
        return connection

    def _new_connection(self) -> HTTPConnection:
        scheme = self._url.scheme
        if scheme not in {"http", "https"} or not self._host:
            raise TransportError(ValueError("a URL begins with http:// or https:// and a host"), sent=False)
        if scheme == "http":
            if self._proxy is None:
                return HTTPConnection(self._host, self._port, timeout=CONNECT_SECONDS)
            self._headers |= _proxy_authorization(self._proxy)
            return HTTPConnection(self._proxy.hostname or "", self._proxy.port, timeout=CONNECT_SECONDS)
        from http.client import HTTPSConnection

        if self._proxy is None:
            return HTTPSConnection(self._host, self._port, timeout=CONNECT_SECONDS, context=trusted(self._ca_file))
        through = HTTPSConnection(
            self._proxy.hostname or "", self._proxy.port, timeout=CONNECT_SECONDS, context=trusted(self._ca_file)
        )
        through.set_tunnel(self._host, self._port, headers=_proxy_authorization(self._proxy))
        return through


def _watch_over(connection: socket) -> None:
    """A server that went without a word is noticed, also where nothing is to be sent or heard for hours."""
    connection.setsockopt(SOL_SOCKET, SO_KEEPALIVE, 1)
    connection.setsockopt(IPPROTO_TCP, TCP_KEEPIDLE, SILENT_SECONDS)
    connection.setsockopt(IPPROTO_TCP, TCP_KEEPINTVL, SILENT_SECONDS // 3)
    connection.setsockopt(IPPROTO_TCP, TCP_KEEPCNT, 3)


def _is_remote(url: SplitResult) -> bool:
    return url.hostname not in {"127.0.0.1", "localhost", "::1"}


def proxy_of(url: SplitResult) -> SplitResult | None:
    """Of the environment. A control plane on this machine is never behind one."""
    if not _is_remote(url) or not any(name.lower().endswith("_proxy") for name in os.environ):
        return None
    from urllib.request import getproxies, proxy_bypass

    proxies = getproxies()
    given = proxies.get(url.scheme) or proxies.get("all")
    if not given or proxy_bypass(url.netloc.rpartition("@")[2]):
        return None
    return urlsplit(given if "://" in given else f"http://{given}")


def _proxy_authorization(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    from base64 import b64encode
    from urllib.parse import unquote

    login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": "Basic " + b64encode(login.encode()).decode("ascii")}


def trusted(ca_file: str = "") -> "SSLContext":
    """Whose certificates are trusted: those of the authorities in a file, and no other. Where none is named,
    SSL_CERT_FILE or SSL_CERT_DIR, or the authorities that browsers trust. Raises TlsError.
    """
    from ssl import SSLError

    from services.runtime.trust import trusting

    try:
        return trusting(ca_file or _public_authorities())
    except OSError as error:
        if not ca_file:
            raise
        why = "does not hold a certificate in PEM" if isinstance(error, SSLError) else f"{error.strerror}"
        todo = "--ca-file, MUSTER_CA_FILE or the context names it: the certificate of the server's authority, in PEM"
        raise TlsError(f"the file {ca_file} cannot be used: {why}", todo=todo) from error


def _public_authorities() -> str | None:
    """A file of them; None where the environment names one, which Python itself reads."""
    if os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR"):
        return None
    import certifi

    return certifi.where()


_UNKNOWN_AUTHORITY: Final = "--ca-file FILE (or MUSTER_CA_FILE) names the certificate of the authority that signed it"
_OTHER_NAME: Final = "use a name of the certificate in the URL, or have one made that has this name"
_CERTIFICATE_TODO: Final[dict[int, str]] = {
    9: "check the clock of this machine, and the day from which the certificate is valid",
    10: "renew the certificate on the server",
    **dict.fromkeys((2, 18, 19, 20, 21), _UNKNOWN_AUTHORITY),
    **dict.fromkeys((62, 64), _OTHER_NAME),
}
"""By OpenSSL's code of what verification found (X509_V_ERR_...)."""
_NO_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST"})
"""OpenSSL's reasons for words that are none of TLS."""


def tls_error(error: Exception, url: SplitResult) -> TlsError | None:
    """What keeps a client from speaking TLS with this server; None where it may pass."""
    import ssl

    name = f"https://{url.netloc.rpartition('@')[2]}"
    if isinstance(error, ssl.SSLCertVerificationError):
        told = f"the certificate of {name} is not trusted: {error.verify_message.rstrip('.')}"
        todo = _CERTIFICATE_TODO.get(error.verify_code, "have another certificate made for the server")
        return TlsError(told, todo=todo)
    if isinstance(error, ssl.SSLError) and error.reason in _NO_TLS:
        plain = f"http://{url.netloc.rpartition('@')[2]}"
        return TlsError(
            f"the server at {name} does not speak TLS", todo=f"if it should speak plain HTTP, use --url {plain}"
        )
    return None
