"""The API over https: the certificate it is given, and what a connection may do before and after its handshake."""

import asyncio
import contextlib
import os
import resource
import shutil
import socket
import ssl
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import uvicorn
import uvloop
from cryptography.hazmat.primitives import serialization
from prometheus_client import REGISTRY
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from muster.embedded.certificates import Authority, authority_in, new_key, server_certificate
from services.api.connections import ConnectionLimits, bounded
from services.api.tls import AGAIN_SECONDS, FILE_CHECK_SECONDS, Certificate, CertificateError, certificate_of, over_tls
from services.runtime.process.settings import Settings

PATIENCE_SECONDS = 60
NOBODY = 65534
LONG = 60.0
"""Of a limit that a test is not about."""
DOWNLOAD = bytes(range(256)) * 4096


@dataclass(kw_only=True)
class Edge:
    """A server of nothing but the edge: an application that echoes, over TLS."""

    port: int
    folder: Path
    state: ServerState
    seen: list[str] = field(default_factory=list[str])
    """Schemes of the requests that came through."""

    def plain(self, *, of: str = "127.0.0.1") -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_SECONDS, source_address=(of, 0))

    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.folder / "ca.crt")

    def secure(self, *, of: str = "127.0.0.1", context: ssl.SSLContext | None = None) -> ssl.SSLSocket:
        # An end that TLS did not say is an error here.
        return (context or self.context()).wrap_socket(
            self.plain(of=of), server_hostname="localhost", suppress_ragged_eofs=False
        )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With ca.crt, server.crt and server.key."""
    made = tmp_path_factory.mktemp("tls")
    renew(made, authority_in(made))
    return made


def renew(folder: Path, authority: Authority) -> None:
    certificate, key = server_certificate(authority, ["localhost"])
    (folder / "server.crt").write_bytes(certificate)
    (folder / "server.key").write_bytes(key)


@contextlib.contextmanager
def edge(folder: Path, **limits: float) -> Generator[Edge]:
    """In a thread of its own, in the event loop that the product has."""
    all_limits = ConnectionLimits(
        connections=int(limits.get("connections", 100)),
        per_address=int(limits.get("per_address", 100)),
        head_seconds=limits.get("head_seconds", LONG),
        stalled_seconds=limits.get("stalled_seconds", LONG),
    )
    certificate = Certificate(folder / "server.crt", folder / "server.key")
    listening: Future[Edge] = Future()
    stop: Future[Callable[[], object]] = Future()

    async def serve() -> None:
        served = Edge(port=0, folder=folder, state=ServerState())

        async def echo(scope: Scope, receive: Receive, send: Send) -> None:
            served.seen.append(scope["scheme"])
            body, more = b"", True
            while more:
                message = await receive()
                body, more = body + message.get("body", b""), message.get("more_body", False)
            answer = DOWNLOAD * 16 if scope["path"] == "/much" else body
            length = str(len(answer)).encode()
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
            await send({"type": "http.response.body", "body": answer})

        loop, stopped = asyncio.get_running_loop(), asyncio.Event()
        config = uvicorn.Config(echo, lifespan="off", ws="none", log_config=None, access_log=False)
        config.load()
        made = over_tls(bounded(all_limits), all_limits, certificate)
        server = await loop.create_server(
            lambda: made(config=config, server_state=served.state, app_state={}, _loop=loop), "127.0.0.1", 0
        )
        served.port = server.sockets[0].getsockname()[1]
        stop.set_result(lambda: loop.call_soon_threadsafe(stopped.set))
        listening.set_result(served)
        await stopped.wait()
        server.close()

    thread = threading.Thread(target=lambda: uvloop.run(serve()))
    thread.start()
    try:
        yield listening.result(PATIENCE_SECONDS)
    finally:
        stop.result(PATIENCE_SECONDS)()
        thread.join(PATIENCE_SECONDS)


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Edge]:
    with edge(folder) as running:
        yield running


def cut(why: str) -> float:
    return REGISTRY.get_sample_value("muster_api_connections_cut_total", {"why": why}) or 0.0


def everything(connection: socket.socket) -> bytes:
    """What comes until the other side ends it."""
    return b"".join(iter(lambda: connection.recv(65_536), b""))


def is_ended(connection: socket.socket) -> bool:
    """Waits until the other side ends the connection, without having said anything."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def ask(connection: socket.socket, body: bytes = b"", *, path: str = "/", more: bytes = b"") -> None:
    head = b"POST %s HTTP/1.1\r\nHost: x\r\n%bContent-Length: %d\r\n\r\n" % (path.encode(), more, len(body))
    connection.sendall(head + body)


CLOSE = b"Connection: close\r\n"


def test_a_request_is_answered_over_tls_to_its_last_byte_and_the_end_is_said(served: Edge) -> None:
    with served.secure() as client:
        for body in (b"a", DOWNLOAD, b""):
            ask(client, body)
            head, _, begun = _until(client, b"\r\n\r\n").partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            assert begun + _exactly(client, len(body) - len(begun)) == body
        ask(client, b"last", more=CLOSE)
        assert everything(client).endswith(b"\r\n\r\nlast")
    assert set(served.seen) == {"https"}


def _until(connection: socket.socket, mark: bytes) -> bytes:
    read = b""
    while mark not in read:
        piece = connection.recv(65_536)
        assert piece
        read += piece
    return read


def _exactly(connection: socket.socket, count: int) -> bytes:
    read = b""
    while len(read) < count:
        piece = connection.recv(min(65_536, count - len(read)))
        assert piece
        read += piece
    return read


def test_records_may_come_byte_by_byte(served: Edge) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = served.context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with served.plain() as raw:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def pump(act: Callable[[], object]) -> object:
            while True:
                try:
                    return act()
                except ssl.SSLWantReadError:
                    for byte in outgoing.read():
                        raw.sendall(bytes([byte]))
                    incoming.write(raw.recv(65_536))

        pump(tls.do_handshake)
        tls.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = pump(lambda: tls.read(4096))
    assert isinstance(answer, bytes)
    assert answer.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(("version", "spoken"), [("TLSv1_1", False), ("TLSv1_2", True), ("TLSv1_3", True)])
def test_tls_1_2_is_the_oldest_that_is_spoken(served: Edge, version: str, spoken: bool) -> None:
    context, before = served.context(), cut("failed_handshake")
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
    if spoken:
        with served.secure(context=context) as client:
            assert client.version() == version.replace("_", ".")
    else:
        with pytest.raises(ssl.SSLError):
            served.secure(context=context).close()
    assert cut("failed_handshake") == before + (not spoken)


@pytest.mark.parametrize("sent", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03half a hello"])
def test_a_handshake_that_does_not_end_is_cut_and_its_place_is_free(folder: Path, sent: bytes) -> None:
    before = cut("slow_handshake")
    with edge(folder, head_seconds=0.3, per_address=1) as served:
        with served.plain() as silent:
            silent.sendall(sent)
            assert is_ended(silent)
        assert cut("slow_handshake") == before + 1
        with served.secure() as client:
            ask(client, b"here", more=CLOSE)
            assert everything(client).endswith(b"here")


@pytest.mark.parametrize(("limit", "others_are_served"), [("per_address", True), ("connections", False)])
def test_handshakes_that_are_not_done_are_counted(folder: Path, limit: str, others_are_served: bool) -> None:
    before = cut("too_many_handshakes")
    with edge(folder, **{limit: 3}) as served, contextlib.ExitStack() as held:
        for _ in range(3):
            held.enter_context(served.plain()).sendall(b"\x16\x03")
        with served.plain() as refused:
            assert is_ended(refused)
        assert cut("too_many_handshakes") == before + 1
        if others_are_served:
            held.enter_context(served.secure(of="127.0.0.2"))
        held.pop_all().close()
        _until_served(served)


def _until_served(served: Edge) -> None:
    """Places of connections that we have closed are free once the server has heard of it."""
    for _ in range(PATIENCE_SECONDS * 20):
        with contextlib.suppress(OSError), served.secure() as client:
            ask(client, b"again", more=CLOSE)
            if everything(client).endswith(b"again"):
                return
        time.sleep(0.05)
    raise AssertionError("no place has become free")


def test_connections_whose_handshake_is_done_are_counted_and_told_so(folder: Path) -> None:
    with edge(folder, per_address=2) as served, contextlib.ExitStack() as held:
        for _ in range(2):
            held.enter_context(served.secure())
        with served.secure() as refused:
            assert everything(refused).startswith(b"HTTP/1.1 429 ")
        assert len(served.state.connections) <= 3
        held.pop_all().close()
        _until_served(served)


@pytest.mark.parametrize("sent", [b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", b"POST / HTTP/1.1\r\n" + b"x" * 300_000])
def test_plain_http_is_told_that_https_is_spoken_here(served: Edge, sent: bytes) -> None:
    before = len(served.seen)
    with served.plain() as client:
        client.sendall(sent)
        answer = everything(client)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"https_needed"' in answer
    assert b"write the URL with https://" in answer
    assert len(served.seen) == before


def test_a_client_that_still_sends_reads_why_it_was_refused(served: Edge) -> None:
    with served.secure() as client:
        with contextlib.suppress(OSError):
            for _ in range(40):
                client.sendall(b"x" * 16_384)
        answer = everything(client)
    assert answer.startswith(b"HTTP/1.1 4")


def test_what_is_not_tls_any_more_ends_the_connection(served: Edge) -> None:
    before = cut("broken_tls")
    with served.secure() as client, contextlib.closing(socket.socket(fileno=client.detach())) as raw:
        raw.settimeout(PATIENCE_SECONDS)
        raw.sendall(b"\x17\x03\x03\x00\x20" + b"not encrypted with our keys" + b"xxxxx")
        with contextlib.suppress(ConnectionResetError):
            everything(raw)
    assert cut("broken_tls") == before + 1


def test_a_reader_that_stands_still_is_cut(folder: Path) -> None:
    before = cut("stalled_reader")
    with edge(folder, stalled_seconds=0.3) as served, served.secure() as client:
        ask(client, path="/much")
        for _ in range(PATIENCE_SECONDS * 20):
            if cut("stalled_reader") > before:
                break
            time.sleep(0.05)
        assert cut("stalled_reader") == before + 1
        with pytest.raises((ConnectionResetError, ssl.SSLError)):
            everything(client)


@pytest.mark.parametrize("asked", [False, True])
def test_a_client_that_says_its_end_is_answered_with_ours(served: Edge, asked: bool) -> None:
    with served.secure() as client:
        if asked:
            ask(client, b"before")
            assert _until(client, b"before").startswith(b"HTTP/1.1 200 ")
        client.unwrap().close()
    _until_served(served)


def test_a_client_that_does_not_take_the_certificate_leaves_nothing_behind(served: Edge) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        served.secure(context=ssl.create_default_context()).close()
    _until_served(served)


# -- the certificate ---------------------------------------------------------------------------------------------------


def test_a_renewed_certificate_is_taken_over_and_a_broken_one_is_not(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    now = [0.0]
    certificate = Certificate(tmp_path / "server.crt", tmp_path / "server.key", clock=lambda: now[0])
    first = certificate.context()

    renew(tmp_path, authority_in(tmp_path))
    assert certificate.context() is first, "the files are not looked at for every connection"
    now[0] += FILE_CHECK_SECONDS
    second = certificate.context()
    assert second is not first

    for broken in (new_key(), b""):
        (tmp_path / "server.key").write_bytes(broken)
        now[0] += FILE_CHECK_SECONDS
        assert certificate.context() is second
    (tmp_path / "server.key").unlink()
    now[0] += FILE_CHECK_SECONDS
    assert certificate.context() is second
    renew(tmp_path, authority_in(tmp_path))
    now[0] += FILE_CHECK_SECONDS
    assert certificate.context() not in {first, second}


def _may_not_be_read(folder: Path) -> Callable[[], object]:
    (folder / "server.key").chmod(0)
    user = os.geteuid()
    if user == 0:  # root may read everything
        os.seteuid(NOBODY)

    def undo() -> None:
        os.seteuid(user)
        (folder / "server.key").chmod(0o600)

    return undo


def _no_descriptor_left(_folder: Path) -> Callable[[], object]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture
def everybodys() -> Iterator[Path]:
    """A folder that any user of the machine may look into, as those of `tmp_path` may not."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.mark.parametrize("hinder", [_may_not_be_read, _no_descriptor_left])
def test_a_renewed_certificate_that_could_not_be_read_is_taken_over_once_it_can(
    folder: Path, everybodys: Path, hinder: Callable[[Path], Callable[[], object]]
) -> None:
    shutil.copytree(folder, everybodys, dirs_exist_ok=True)
    everybodys.chmod(0o755)
    now = [0.0]
    certificate = Certificate(everybodys / "server.crt", everybodys / "server.key", clock=lambda: now[0])
    first = certificate.context()
    renew(everybodys, authority_in(everybodys))
    undo = hinder(everybodys)
    try:
        now[0] += FILE_CHECK_SECONDS
        assert certificate.context() is first
    finally:
        undo()
    now[0] += AGAIN_SECONDS
    assert certificate.context() is not first


def _passphrase(folder: Path) -> None:
    key = serialization.load_pem_private_key((folder / "server.key").read_bytes(), None)
    form = serialization.BestAvailableEncryption(b"secret")
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, form)
    (folder / "server.key").write_bytes(pem)


WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "no certificate file": (
        lambda folder: (folder / "server.crt").unlink(),
        r"^MUSTER_HTTP_CERTIFICATE_FILE: \S+server.crt cannot be read by the api: No such file or directory$",
    ),
    "no key file": (
        lambda folder: (folder / "server.key").unlink(),
        r"^MUSTER_HTTP_KEY_FILE: \S+server.key cannot be read by the api: No such file or directory$",
    ),
    "a folder": (
        lambda folder: ((folder / "server.key").unlink(), (folder / "server.key").mkdir()),
        r"^MUSTER_HTTP_KEY_FILE: \S+server.key cannot be read by the api: Is a directory$",
    ),
    "no certificate in it": (
        lambda folder: (folder / "server.crt").write_text("nothing"),
        r"^MUSTER_HTTP_CERTIFICATE_FILE: \S+server.crt is not a certificate in PEM",
    ),
    "no key in it": (
        lambda folder: shutil.copy(folder / "server.crt", folder / "server.key"),
        r"^MUSTER_HTTP_KEY_FILE: \S+server.key does not hold a private key in PEM$",
    ),
    "the key of another certificate": (
        lambda folder: (folder / "server.key").write_bytes(new_key()),
        r"^MUSTER_HTTP_KEY_FILE: \S+server.key is not the key of the certificate in \S+server.crt \(MUSTER_HTTP_CERT",
    ),
    "a key with a passphrase": (
        _passphrase,
        r"^MUSTER_HTTP_KEY_FILE: \S+server.key is encrypted; give the key without a passphrase$",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_cannot_be_used_is_refused_at_the_start_by_its_setting(folder: Path, tmp_path: Path, wrong: str) -> None:
    spoil, message = WRONG[wrong]
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    spoil(tmp_path)
    given = Settings(http_certificate_file=tmp_path / "server.crt", http_key_file=tmp_path / "server.key")
    with pytest.raises(CertificateError, match=message):
        certificate_of(given)


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ("http_certificate_file", "MUSTER_HTTP_KEY_FILE"),
        ("http_key_file", "MUSTER_HTTP_CERTIFICATE_FILE"),
    ],
)
def test_https_needs_both_files(given: str, missing: str) -> None:
    settings = Settings.model_validate({given: Path("/somewhere")})
    with pytest.raises(CertificateError, match=f"^MUSTER_{given.upper()} is set and {missing} is not"):
        certificate_of(settings)
    assert certificate_of(Settings()) is None
