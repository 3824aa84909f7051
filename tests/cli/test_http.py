"""The command line's own HTTP: over TLS, and through proxies as the environment names them."""

import base64
import http.server
import socket
import ssl
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from muster.cli.http import Http, Stream, TransportError
from muster.embedded.certificates import authority_in, server_certificate

NAME = "api.muster.test"
"""A name that no resolver knows: only a proxy can lead there."""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """What was asked, as a proxy or a server sees it."""
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


def test_over_tls_the_authority_that_is_named_is_believed_and_no_other(
    secure: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = Http(f"https://localhost:{secure}", {})
    with pytest.raises(TransportError, match="certificate verify failed") as refused:
        stranger.request("GET", "/a", headers={})
    assert not refused.value.sent

    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.crt"))
    http_ = Http(f"https://localhost:{secure}", {})
    for path in ("/a", "/b"):
        assert http_.request("GET", path, headers={}).text.splitlines()[:2] == [path, f"localhost:{secure}"]
    with http_.stream("/c", (), {}) as answer:
        assert isinstance(answer, Stream)
        assert next(iter(answer.lines())) == "/c"
    http_.close()


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
