"""A small HTTP server that answers as the API's shapes say, laid out by the test: for what a real one rarely says."""

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass
class Ran:
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: Any


@dataclass
class Reply:
    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict[str, str])
    text: str | None = None
    hang_up: bool = False
    """Cut the connection instead of answering."""
    broken_off: bool = False
    """Cut the connection before the end of the text."""


ACCEPTED = Reply(202, {"code": 202, "message": "accepted"})


type Route = Reply | list[Reply] | Callable[[Request], Reply]


class ShapeServer:
    """Answers what the test has laid out, by method and path; remembers what was asked."""

    def __init__(self) -> None:
        self.routes: dict[tuple[str, str], Route] = {}
        self.requests: list[Request] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                raw = self.rfile.read(length)
                parts = urlsplit(self.path)
                request = Request(
                    self.command,
                    parts.path.removeprefix("/api/v1"),
                    parse_qs(parts.query),
                    {key.lower(): value for key, value in self.headers.items()},
                    json.loads(raw) if raw else None,
                )
                server.requests.append(request)
                self.answer(server.reply(request))

            def answer(self, reply: Reply) -> None:
                if reply.hang_up:
                    self.close_connection = True
                    return
                content = reply.text if reply.text is not None else json.dumps(reply.body)
                # Without the standard headers, so that a test may set its own Date.
                self.send_response_only(reply.status)
                self.send_header("Content-Length", str(len(content.encode()) + reply.broken_off))
                self.close_connection = self.close_connection or reply.broken_off
                for key, value in reply.headers.items():
                    self.send_header(key, value)
                self.end_headers()
                self.wfile.write(content.encode())

            # Names that the library looks for.
            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_one  # noqa: N815

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        self._thread = threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def on(self, method: str, path: str, route: Route) -> None:
        self.routes[method, path] = route

    def reply(self, request: Request) -> Reply:
        route = self.routes.get((request.method, request.path))
        match route:
            case None:
                return Reply(404, {"code": 404, "message": f"there is no {request.path}", "details": "not_found"})
            case Reply():
                return route
            case list():
                return route.pop(0) if len(route) > 1 else route[0]
            case _:
                return route(request)

    def asked(self, method: str, path: str) -> list[Request]:
        return [request for request in self.requests if (request.method, request.path) == (method, path)]

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()
        self._thread.join(60)


WORKLOAD_ID = "0a1b2c3d-4e5f-8a6b-9c7d-0123456789ab"


def workload_row(**more: Any) -> dict[str, Any]:
    return {
        "id": WORKLOAD_ID,
        "name": "hello",
        "type": "Training",
        "projectName": "default",
        "submittedBy": "ann",
        "phase": "Running",
        "phaseMessage": None,
        "runningPods": 1,
        "requestedPods": 1,
        "gpuRequest": 2.0,
        "gpuAllocated": 1.5,
        "createdAt": "2026-01-02T03:04:05Z",
        **more,
    }


def use_row(
    name: str,
    *,
    gpus: float = 0.0,
    firm: float = 0.0,
    quota: float | None = None,
    capacity: int = 0,
    free: float = 0.0,
    used: bool = False,
    **more: Any,
) -> dict[str, Any]:
    """A row of who uses what now; `capacity`: GPUs of a node or pool."""

    def amounts(count: float) -> dict[str, Any]:
        return {
            "gpus": count,
            "gpuMemoryBytes": int(count * 80 * 2**30),
            "cpuCores": count * 8,
            "memoryBytes": int(count * 64 * 2**30),
        }

    measured = {
        "pods": 1,
        "gpuUtilizationPercent": 83.4,
        "gpuMemoryBytes": int(gpus * 61.5 * 2**30),
        "cpuCores": 12.345,
        "memoryBytes": 77 * 2**30,
    }
    return {
        "name": name,
        "id": None,
        "gpuQuota": quota,
        "clusterName": None,
        "projectName": None,
        "submittedBy": None,
        "phase": None,
        "running": 0,
        "pending": 0,
        "ending": 0,
        "pods": 0,
        "allocated": amounts(gpus) | {"nonPreemptibleGpus": firm},
        "used": measured if used else None,
        "capacity": amounts(capacity) if capacity else None,
        "free": amounts(free) if capacity else None,
        **more,
    }
