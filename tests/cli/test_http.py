"""The command line's own HTTP: over TLS, and through proxies as the environment names them."""

import base64
import datetime as dt
import http.server
import re
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from muster.cli.complete import offered
from muster.cli.http import Http, Stream, TlsError, TransportError
from muster.embedded.certificates import authority_in, server_certificate
from services.runtime.trust import trusting
from tests.support.shapes import Ran, Reply, ShapeServer

NAME = "api.muster.test"
"""A name that no resolver knows: only a proxy can lead there."""


asked_paths: list[str] = []
"""Of every server here."""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """What was asked, as a proxy or a server sees it."""
        asked_paths.append(self.path)
        said = f"{self.path}\n{self.headers.get('Host')}\n{self.headers.get('Proxy-Authorization', '-')}\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def do_CONNECT(self) -> None:
        """A tunnel to the one server behind it, whatever the name."""
        self.server.asked.append((self.path, self.headers.get("Proxy-Authorization", "-")))  # type: ignore[attr-defined]
        with socket.create_connection(("127.0.0.1", self.server.behind)) as behind:  # type: ignore[attr-defined]
            self.send_response(200)
            self.end_headers()
            there = threading.Thread(target=pass_on, args=(behind, self.connection))
            there.start()
            pass_on(self.connection, behind)
            there.join()
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (as the base class has it)
        pass


def pass_on(source: socket.socket, target: socket.socket) -> None:
    try:
        while piece := source.recv(65_536):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


@contextmanager
def serving(context: ssl.SSLContext | None = None, *, behind: int = 0) -> Generator[http.server.ThreadingHTTPServer]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.asked = []  # type: ignore[attr-defined]
    server.behind = behind  # type: ignore[attr-defined]
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def secure(tmp_path: Path) -> Generator[int]:
    """Port of a server with a certificate of an authority that nobody knows but `tmp_path / ca.crt`."""
    (tmp_path / "authority").mkdir()
    authority = authority_in(tmp_path / "authority")
    certificate, key = server_certificate(authority, ["localhost", NAME])
    (tmp_path / "server.crt").write_bytes(certificate)
    (tmp_path / "server.key").write_bytes(key)
    next(iter((tmp_path / "authority").glob("*.crt"))).rename(tmp_path / "ca.crt")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    with serving(context) as server:
        yield server.server_address[1]


@pytest.mark.parametrize("named_by", ["environment", "argument"])
def test_over_tls_the_authority_that_is_named_is_trusted_and_no_other(
    secure: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named_by: str
) -> None:
    stranger = Http(f"https://localhost:{secure}", {})
    with pytest.raises(TlsError, match=rf"^the certificate of https://localhost:{secure} is not trusted: ") as refused:
        stranger.request("GET", "/a", headers={})
    assert not refused.value.sent

    ca_file = str(tmp_path / "ca.crt")
    if named_by == "environment":
        monkeypatch.setenv("SSL_CERT_FILE", ca_file)
    else:
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "server.key"))
    http_ = Http(f"https://localhost:{secure}", {}, ca_file="" if named_by == "environment" else ca_file)
    for path in ("/a", "/b"):
        assert http_.request("GET", path, headers={}).text.splitlines()[:2] == [path, f"localhost:{secure}"]
    with http_.stream("/c", (), {}) as answer:
        assert isinstance(answer, Stream)
        assert next(iter(answer.lines())) == "/c"
    http_.close()


def self_signed(folder: Path, name: str, *, days: tuple[int, int]) -> ssl.SSLContext:
    """Of a server whose certificate is valid from so many days from now on, until so many; ca.crt is its own."""
    key, now = ec.generate_private_key(ec.SECP256R1()), dt.datetime.now(dt.UTC)
    called = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    first, last = (now + dt.timedelta(days=day) for day in days)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(called)
        .issuer_name(called)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(first)
        .not_valid_after(last)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "ca.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private = serialization.PrivateFormat.PKCS8
    pem = key.private_bytes(serialization.Encoding.PEM, private, serialization.NoEncryption())
    (folder / "server.key").write_bytes(pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "ca.crt", folder / "server.key")
    return context


def signed_by_an_authority_of_openssl(folder: Path) -> ssl.SSLContext:
    """Made with the two commands that everybody finds first: neither names what a key is used for."""
    name = "subjectAltName=DNS:localhost"
    for command in (
        "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -days 9 -subj /CN=lab",
        f"req -newkey rsa:2048 -nodes -keyout server.key -out server.csr -subj /CN=localhost -addext {name}",
        "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -copy_extensions copy -days 9 -out server.crt",
    ):
        subprocess.run(["openssl", *command.split()], cwd=folder, check=True, capture_output=True, timeout=60)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.crt", folder / "server.key")
    return context


def test_an_authority_made_with_openssl_s_own_commands_is_trusted(tmp_path: Path) -> None:
    """curl and browsers trust it; services trust NATS in the same way."""
    with serving(signed_by_an_authority_of_openssl(tmp_path)) as server:
        port = server.server_address[1]
        asked = Http(f"https://localhost:{port}", {}, ca_file=str(tmp_path / "ca.crt"))
        assert asked.request("GET", "/a", headers={}).text.startswith("/a\n")
        asked.close()
        plain = socket.create_connection(("127.0.0.1", port), timeout=60)
        trusting(tmp_path / "ca.crt").wrap_socket(plain, server_hostname="localhost").close()


REFUSED: dict[str, tuple[tuple[str, int, int], bool, str, str]] = {
    "of nobody known": (("localhost", -1, 1), False, "is not trusted: self.signed certificate", "--ca-file FILE"),
    "of another name": (("other.test", -1, 1), True, "Hostname mismatch", "use a name of the certificate in the URL"),
    "no more": (("localhost", -9, -1), True, "certificate has expired", "renew the certificate on the server"),
    "not yet": (("localhost", 1, 9), True, "certificate is not yet valid", "check the clock of this machine"),
}
"""Name, first and last day of the certificate; whether its authority is named; why and what to do."""


@pytest.mark.parametrize("certificate", REFUSED)
def test_a_certificate_that_is_not_trusted_is_said_at_once_with_what_to_do(
    muster: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, certificate: str
) -> None:
    (name, first, last), named, why, todo = REFUSED[certificate]
    with serving(self_signed(tmp_path, name, days=(first, last))) as server:
        monkeypatch.setenv("MUSTER_URL", f"https://localhost:{server.server_address[1]}")
        if named:
            monkeypatch.setenv("MUSTER_CA_FILE", str(tmp_path / "ca.crt"))
        # Also where it would wait for a server that is away.
        for command in (("workload", "list"), ("events", "tail"), ("workload", "list", "-w")):
            ran = muster(*command)
            assert ran.code == 1, ran.err
            assert re.search(why, ran.err)
            assert f"→ {todo}" in ran.err
            assert "again" not in ran.err
        ran = muster("version")
        assert ran.out.startswith("client: ")
        assert re.search(f"^the API does not say its version: cannot reach Muster at .*{why}", ran.err)


def test_plain_http_where_https_is_meant_is_said_so(muster: Callable[..., Ran], home: Path) -> None:
    with serving() as server:
        port = server.server_address[1]
        ran = muster("workload", "list", "--url", f"https://localhost:{port}")
    assert ran.code == 1
    assert f"the server at https://localhost:{port} does not speak TLS" in ran.err
    assert f"→ if it should speak plain HTTP, use --url http://localhost:{port}" in ran.err


def test_https_where_plain_http_is_meant_is_said_so(api: ShapeServer, muster: Callable[..., Ran]) -> None:
    message = "this port accepts only https, and the request was plain HTTP: write the URL with https://"
    api.on("GET", "/workloads", Reply(400, {"code": 400, "message": message, "details": "https_needed"}))
    ran = muster("workload", "list")
    assert ran.code == 1
    assert message in ran.err
    assert f"→ --url https://{api.url.removeprefix('http://')}; the token went over the line in plain text" in ran.err


@pytest.mark.parametrize(
    ("content", "why"), [(None, "No such file or directory"), ("nothing", "does not hold a certificate in PEM")]
)
def test_a_file_of_authorities_that_cannot_be_used_is_named(
    muster: Callable[..., Ran], home: Path, tmp_path: Path, content: str | None, why: str
) -> None:
    file = tmp_path / "ours.crt"
    if content is not None:
        file.write_text(content)
    ran = muster("workload", "list", "--url", "https://localhost:1", "--ca-file", str(file))
    assert ran.code == 1
    assert f"the file {file} cannot be used: {why}" in ran.err


def test_a_shell_completes_over_tls_by_the_authority_that_is_named(
    secure: int, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_URL", f"https://localhost:{secure}")
    for ca_file, reached in ((str(tmp_path / "ca.crt"), True), ("/nowhere", False), ("", False)):
        monkeypatch.setenv("MUSTER_CA_FILE", ca_file)
        reached_before = len(asked_paths)
        list(offered(["cluster", "describe"], "x"))
        assert (len(asked_paths) > reached_before) is reached


def test_tls_goes_through_a_proxy_as_a_tunnel(secure: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.crt"))
    with serving(behind=secure) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://ann:p%40ss@127.0.0.1:{proxy.server_address[1]}")
        http_ = Http(f"https://{NAME}:8443", {})
        # The tunnel's login is for the proxy alone.
        assert http_.request("GET", "/x", headers={}).text.splitlines() == ["/x", f"{NAME}:8443", "-"]
        http_.close()
        login = "Basic " + base64.b64encode(b"ann:p@ss").decode()
        assert proxy.asked == [(f"{NAME}:8443", login)]  # type: ignore[attr-defined]


def test_plain_http_asks_the_proxy_for_the_whole_url(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.server_address[1]}")
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        http_ = Http(f"http://{NAME}/base", {})
        answer = http_.request("GET", "/y", parameters=[("a", "b c")], headers={})
        assert answer.text.splitlines()[:2] == [f"http://{NAME}/base/y?a=b%20c", NAME]
        http_.close()


@pytest.mark.parametrize("variable", ["NO_PROXY", "no_proxy"])
def test_no_proxy_is_asked_for_names_that_are_left_out(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.server_address[1]}")
        monkeypatch.setenv(variable, "127.0.0.2")
        with pytest.raises(TransportError) as nowhere:
            Http("http://127.0.0.2:1", {}).request("GET", "/", headers={})
        assert not nowhere.value.sent
