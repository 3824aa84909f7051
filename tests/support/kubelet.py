"""A node's log endpoint, as a kubelet has it, that can refuse and break off. The API server asks it."""

import contextlib
import ssl
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from development.kubernetes.control_plane import ControlPlane
from development.kubernetes.simulated.nodes import node


class Kubelet:
    """Options are read as a kubelet does: `sinceTime` to the second, `limitBytes` to the byte, `follow` to the end of
    the container.
    """

    def __init__(self) -> None:
        self.refuses = False
        self.following: list[str] = []
        """Pods whose logs are being followed now."""
        self._lines: dict[str, list[tuple[datetime, bytes]]] = {}
        self._ended: set[str] = set()
        self._age = 0
        """Rises when all answers break off."""
        self._changed = threading.Condition()

    def write(self, pod: str, *lines: str, at: datetime | None = None) -> None:
        """The container of a pod writes."""
        with self._changed:
            self._lines.setdefault(pod, []).extend((at or datetime.now(UTC), line.encode()) for line in lines)
            self._changed.notify_all()

    def end(self, pod: str) -> None:
        """The container ends, its log stays."""
        with self._changed:
            self._ended.add(pod)
            self._changed.notify_all()

    def break_off(self) -> None:
        """Cut every answer in the middle."""
        with self._changed:
            self._age += 1
            self._changed.notify_all()

    @contextmanager
    def followed(self, pod: str) -> Generator[None]:
        with self._changed:
            self.following.append(pod)
        try:
            yield
        finally:
            with self._changed:
                self.following.remove(pod)

    def pieces(self, pod: str, *, since: datetime, limit: int, follow: bool) -> Iterator[bytes]:
        """The body of an answer; empty pieces while nothing is written. Raises ConnectionAbortedError."""
        said, age = 0, self._age
        while limit > 0:
            with self._changed:
                new = self._lines.get(pod, [])[said:]
                if not new and (not follow or pod in self._ended):
                    return
                if age != self._age:
                    raise ConnectionAbortedError
                if not new:
                    self._changed.wait(0.1)
            said += len(new)
            lines = [
                f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond:06d}000Z ".encode() + text + b"\n"
                for at, text in new
                if at >= since
            ]
            piece = b"".join(lines)[:limit]
            limit -= len(piece)
            yield piece


@contextmanager
def kubelet_of(control_plane: ControlPlane, node_name: str) -> Generator[Kubelet]:
    """A node whose logs come from here; everything else about it is simulated."""
    kubelet = Kubelet()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            _, _, _, pod, _ = url.path.split("/")
            query = {key: values[0] for key, values in parse_qs(url.query).items()}
            if kubelet.refuses:
                self.send_error(500, "the container runtime is away")
                return
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            follow = query.get("follow") == "true"
            pieces = kubelet.pieces(
                pod,
                since=datetime.fromisoformat(query.get("sinceTime", "1970-01-01T00:00:00Z")),
                limit=int(query.get("limitBytes", 2**60)),
                follow=follow,
            )
            self.close_connection = True
            with kubelet.followed(pod) if follow else contextlib.nullcontext(), contextlib.suppress(OSError):
                for piece in pieces:
                    if piece:
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                    elif self.gone():
                        return
                self.wfile.write(b"0\r\n\r\n")

        def gone(self) -> bool:
            self.connection.settimeout(0.001)
            try:
                return self.connection.recv(1) == b""
            except TimeoutError:
                return False
            finally:
                self.connection.settimeout(None)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (as the base class has it)
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    credentials = control_plane.cluster.credentials
    context.load_cert_chain(credentials / "server.crt", credentials / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    serving.start()
    control_plane.admin("POST", "/api/v1/nodes", _node_body(node_name, server.server_address[1]))
    try:
        yield kubelet
    finally:
        kubelet.break_off()
        server.shutdown()
        server.server_close()
        serving.join()


def _node_body(name: str, kubelet_port: int) -> dict[str, object]:
    return node(
        name,
        cpu="64",
        memory="512Gi",
        gpus=8,
        gpu_product="NVIDIA-H100",
        gpu_memory_mib=81920,
        pods=1000,
        labels={},
        taints=[],
        kubelet_port=kubelet_port,
    )
