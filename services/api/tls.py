"""TLS at the API's edge: the certificate, read again when it is renewed, and one connection's layer of TLS.

The layer is ours, and not the event loop's (`ssl=`): the loop shows a connection only after its handshake, so nothing
would count those before it, a client that speaks plain HTTP would get no answer, and no connection could be ended
gently (services/api/connections.py). The cryptography is OpenSSL's, by `ssl.MemoryBIO`. See ADR 0059.
"""

import asyncio
import os
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any, Final, cast

import structlog
from prometheus_client import Gauge
from uvicorn.protocols.utils import get_remote_addr

from services.api.connections import CUT, BoundedProtocol, ConnectionLimits
from services.api.errors import ApiError
from services.api.transports import TransportOver
from services.runtime.process.place import address_of
from services.runtime.process.settings import Settings

FILE_CHECK_SECONDS: Final = 1.0
"""How often the files are looked at, and only when somebody connects."""
AGAIN_SECONDS: Final = 30.0
"""After which files that could not be used are tried again unchanged: what was short may be there again, such as file
descriptors. Some keys take a quarter of a second.
"""
HANDSHAKE_BYTE: Final = b"\x16"
"""What a connection of TLS begins with: the record of a handshake (RFC 8446 section 5.1)."""
PIECE_BYTES: Final = 64 * 1024
"""Of decrypted data, read at once: more than one record of TLS holds."""
MOST_UNREAD_BYTES: Final = 256 * 1024
"""That may wait for a client that makes TLS itself answer again and again, as by changing keys, and reads nothing."""
CERTIFICATE, KEY = "MUSTER_HTTP_CERTIFICATE_FILE", "MUSTER_HTTP_KEY_FILE"

EXPIRES: Final = Gauge(
    "muster_api_certificate_expires_timestamp_seconds", "When the API's certificate expires, in seconds since 1970"
)

log = structlog.get_logger(__name__)


class CertificateError(Exception):
    """The API cannot use the certificate or key that it was given; the message names the setting."""


class Certificate:
    """The API's certificate and its key, in two files."""

    def __init__(self, certificate_file: Path, key_file: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises CertificateError."""
        self._files = (certificate_file, key_file)
        self._clock = clock
        self._checked_at = clock()
        self._seen = self._look()
        self._context = load(*self._files)
        self._again_at: float | None = None
        """Where the newest files could not be used."""
        self._refusal = ""
        """Why that was, as it was logged."""

    def context(self) -> ssl.SSLContext:
        """For the next connection. Where the files have changed, of the new ones; one that cannot be used changes
        nothing.
        """
        now = self._clock()
        if now - self._checked_at >= FILE_CHECK_SECONDS:
            self._checked_at = now
            seen = self._look()
            if seen != self._seen or (self._again_at is not None and now >= self._again_at):
                self._seen = seen
                self._take_over(now)
        return self._context

    def _take_over(self, now: float) -> None:
        try:
            self._context = load(*self._files)
        except CertificateError as error:
            self._again_at = now + AGAIN_SECONDS
            if str(error) != self._refusal:
                self._refusal = str(error)
                log.error("certificate_not_taken_over", error=self._refusal)  # noqa: TRY400 - its sentence says all
            return
        self._again_at, self._refusal = None, ""
        log.info("certificate_taken_over", path=str(self._files[0]))

    def _look(self) -> tuple[tuple[int, ...] | None, ...]:
        """What differs once one of the files is another."""
        return tuple(_stat(file) for file in self._files)


def certificate_of(settings: Settings) -> Certificate | None:
    """None where the API serves plain HTTP. Raises CertificateError."""
    certificate_file, key_file = settings.http_certificate_file, settings.http_key_file
    if certificate_file is None and key_file is None:
        return None
    if certificate_file is None or key_file is None:
        given, missing = (CERTIFICATE, KEY) if key_file is None else (KEY, CERTIFICATE)
        raise CertificateError(f"{given} is set and {missing} is not: https needs both; for plain HTTP set neither")
    return Certificate(certificate_file, key_file)


def load(certificate_file: Path, key_file: Path) -> ssl.SSLContext:
    """A context for servers. Raises CertificateError, which says what is wrong with which of the two."""
    # A tenth of a second, for those alone who serve https.
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    chain, secret = _read(CERTIFICATE, certificate_file), _read(KEY, key_file)
    try:
        leaf = x509.load_pem_x509_certificates(chain)[0]
        expires = leaf.not_valid_after_utc.timestamp()
        public_key = leaf.public_key()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise CertificateError(f"{CERTIFICATE}: {certificate_file} is not a certificate in PEM: {error}") from error
    try:
        key = load_pem_private_key(secret, None)
    except TypeError as error:
        raise CertificateError(f"{KEY}: {key_file} is encrypted; give the key without a passphrase") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise CertificateError(f"{KEY}: {key_file} does not hold a private key in PEM") from error
    if key.public_key() != public_key:
        raise CertificateError(
            f"{KEY}: {key_file} is not the key of the certificate in {certificate_file} ({CERTIFICATE}). Give the "
            "two that were made together; where the file holds several certificates, the server's own comes first"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate_file, key_file, password="")
    except (OSError, ValueError) as error:
        raise CertificateError(f"{CERTIFICATE} and {KEY} cannot be used: {error}") from error
    EXPIRES.set(expires)
    return context


def _read(setting: str, file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        who = f"user {os.geteuid()}, as whom the api runs" if isinstance(error, PermissionError) else "the api"
        raise CertificateError(f"{setting}: {file} cannot be read by {who}: {error.strerror}") from error


def _stat(file: Path) -> tuple[int, ...] | None:
    try:
        stat = file.stat()
    except OSError:
        return None
    # The last changes with the rights, too: who could not read it may do so now.
    return stat.st_mtime_ns, stat.st_size, stat.st_ino, stat.st_ctime_ns


def over_tls(
    inner: Callable[..., BoundedProtocol], limits: ConnectionLimits, certificate: Certificate
) -> "Callable[..., TlsProtocol]":
    """What makes the protocol of each connection: the inner one, over TLS."""
    handshakes: set[TlsProtocol] = set()

    def made(*arguments: Any, **named: Any) -> TlsProtocol:
        return TlsProtocol(inner(*arguments, **named), limits, certificate, handshakes)

    return made


class TlsTransport(TransportOver):
    """What the inner protocol writes to: encrypted here, and sent by the connection's own transport."""

    def __init__(self, transport: asyncio.Transport, tls: ssl.SSLObject, outgoing: ssl.MemoryBIO) -> None:
        super().__init__(transport)
        self._tls = tls
        self._outgoing = outgoing
        self.ended = False
        """Whether our side is over: nothing that still comes is read."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.ended or self.is_closing():
            return
        left = memoryview(data)
        try:
            while left:
                left = left[self._tls.write(left) :]
        except ssl.SSLError:
            self.abort()
        self.flush()

    def flush(self) -> int:
        """Send what TLS has to say; how many bytes that were."""
        said = self._outgoing.read()
        if said and not self._transport.is_closing():
            self._transport.write(said)
        return len(said)

    def write_eof(self) -> None:
        self._end()
        self._transport.write_eof()

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        self._end()
        self._transport.close()

    def _end(self) -> None:
        """Say that nothing more comes: without that, a client cannot tell the end from a line that was cut."""
        if self.ended or self.is_closing():
            return
        self.ended = True
        with suppress(ssl.SSLError):  # it would wait for the other side's end
            self._tls.unwrap()
        self.flush()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "sslcontext":
            return self._tls.context
        return super().get_extra_info(name, default)


class _Phase(Enum):
    CONNECTED = "nothing has come yet"
    HANDSHAKE = "TLS is being agreed on"
    OPEN = "the inner protocol speaks over TLS"
    PLAIN = "it spoke no TLS: the inner protocol refuses it"


class TlsProtocol(asyncio.Protocol):
    """One connection: a handshake that is bounded in time and number, and then the inner protocol over TLS."""

    def __init__(
        self,
        inner: BoundedProtocol,
        limits: ConnectionLimits,
        certificate: Certificate,
        handshakes: "set[TlsProtocol]",
    ) -> None:
        self._inner = inner
        self._limits = limits
        self._certificate = certificate
        self._handshakes = handshakes
        """Those of this server that are not done."""
        self._phase = _Phase.CONNECTED
        self._timer: asyncio.TimerHandle | None = None
        self.place: str | None = None
        """Where the client is, as `address_of` counts it."""
        self._transport: asyncio.Transport
        self._tls: ssl.SSLObject
        self._incoming: ssl.MemoryBIO
        self._secure: TlsTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.place = address_of(get_remote_addr(self._transport))
        if self._is_one_too_many():
            # Nothing can be said before there is a handshake.
            self._cut("too_many_handshakes")
            return
        self._handshakes.add(self)
        self._timer = asyncio.get_running_loop().call_later(self._limits.head_seconds, self._cut, "slow_handshake")

    def _is_one_too_many(self) -> bool:
        """Handshakes have as many places as connections; those that are done are counted by the inner protocol."""
        from_here = sum(other.place == self.place for other in self._handshakes)
        return len(self._handshakes) >= self._limits.connections or (
            self.place is not None and from_here >= self._limits.per_address
        )

    def _cut(self, why: str) -> None:
        CUT.labels(why).inc()
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._phase is _Phase.CONNECTED:
            if data[:1] != HANDSHAKE_BYTE:
                self._refuse_plain()
                return
            self._begin()
        if self._phase is _Phase.PLAIN or self._secure.ended:
            return
        self._incoming.write(data)
        try:
            if self._phase is _Phase.HANDSHAKE:
                self._tls.do_handshake()
                self._open()
            self._pass_on()
        except ssl.SSLWantReadError:
            if self._secure.flush() and self._transport.get_write_buffer_size() > MOST_UNREAD_BYTES:
                self._cut("long_tls")
        except ssl.SSLError as error:
            self._fail(error)

    def _begin(self) -> None:
        self._phase = _Phase.HANDSHAKE
        self._incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = self._certificate.context().wrap_bio(self._incoming, outgoing, server_side=True)
        self._secure = TlsTransport(self._transport, self._tls, outgoing)

    def _open(self) -> None:
        self._phase = _Phase.OPEN
        self._no_handshake_any_more()
        self._secure.flush()
        self._inner.connection_made(self._secure)

    def _pass_on(self) -> None:
        """What came whole, to the inner protocol. Raises ssl.SSLWantReadError at the end of it."""
        while not self._secure.ended and not self._transport.is_closing():
            piece = self._tls.read(PIECE_BYTES)
            if not piece:
                # The client has said that nothing more comes.
                self._inner.eof_received()
                self._secure.close()
                return
            self._inner.data_received(piece)

    def _refuse_plain(self) -> None:
        self._phase = _Phase.PLAIN
        self._no_handshake_any_more()
        self._inner.connection_made(self._transport)
        message = "this port accepts only https, and the request was plain HTTP: write the URL with https://"
        self._inner.end_with(ApiError(400, message, details="https_needed"), "plain_http")

    def _fail(self, error: ssl.SSLError) -> None:
        """What came is not TLS as both sides agreed on, or the client does not take our certificate."""
        CUT.labels("failed_handshake" if self._phase is _Phase.HANDSHAKE else "broken_tls").inc()
        log.debug("tls_failed", phase=self._phase.name, reason=error.reason)
        self._secure.flush()
        if self._phase is _Phase.HANDSHAKE:
            # The alert goes out; where nobody reads it, the handshake's timer ends the connection.
            self._transport.close()
        else:
            self._transport.abort()

    def _no_handshake_any_more(self) -> None:
        self._handshakes.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- what the inner protocol is told as it comes -----------------------------------------------------------------

    def eof_received(self) -> None:
        if self._is_inner_told():
            self._inner.eof_received()

    def pause_writing(self) -> None:
        if self._is_inner_told():
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._is_inner_told():
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._no_handshake_any_more()
        if self._is_inner_told():
            self._inner.connection_lost(exc)

    def _is_inner_told(self) -> bool:
        return self._phase in {_Phase.OPEN, _Phase.PLAIN}
