"""Writes down every request to the API and what came of it, for the checker; also those that nobody answered."""

import base64
import itertools
import json
import secrets
import ssl
import threading
import time
from typing import Any, Final

import httpx

from development.checker.calls import Call

API = "/api/v1"
STREAMS = ("/logs", "/events")
"""Ends of paths whose answers may never end."""


class History:
    """All calls of one test, from any thread."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self.setbacks: list[float] = []
        """When the server of the tables was killed: it may have lost what it committed last."""
        self._lock = threading.Lock()
        self._name = secrets.token_hex(4)
        self._numbers = itertools.count(1)

    def calls(self) -> list[Call]:
        with self._lock:
            return list(self._calls)

    def tables_went_back(self) -> None:
        self.setbacks.append(time.time())

    def add(self, call: Call) -> None:
        with self._lock:
            self._calls.append(call)

    def request_id(self) -> str:
        return f"{self._name}-{next(self._numbers)}"


NO_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For clients of plain HTTP: httpx would read every known authority for each of them, which takes 30 ms."""


class Recording(httpx.BaseTransport):
    """Between a client and the network: each request gets an id of its own, and is written down when it is over."""

    def __init__(self, history: History, token: str) -> None:
        self._history = history
        self._user = subject_of(token)
        self._inner = httpx.HTTPTransport(verify=NO_TLS)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.headers["X-Request-Id"] = request_id = self._history.request_id()
        path = request.url.path.removeprefix(API)
        began = time.time()

        def over(status: int, answer: Any = None, headers: Any = None) -> None:
            body = request.content.decode(errors="replace")
            self._history.add(
                Call(
                    user=self._user,
                    method=request.method,
                    path=path,
                    began=began,
                    ended=time.time(),
                    status=status,
                    request_id=request_id,
                    key=request.headers.get("Idempotency-Key", ""),
                    query=request.url.query.decode(),
                    body=_json(body),
                    answer=answer,
                    headers={name.lower(): value for name, value in (headers or {}).items()},
                )
            )

        try:
            response = self._inner.handle_request(request)
            if not path.endswith(STREAMS):
                response.read()
        except httpx.TransportError:
            over(0)
            raise
        answer = None if path.endswith(STREAMS) else _json(response.text)
        over(response.status_code, answer, response.headers)
        return response

    def close(self) -> None:
        self._inner.close()


def subject_of(token: str) -> str:
    """Whom a token speaks for; nothing is verified."""
    claims = token.split(".")[1]
    return str(json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["sub"])


def _json(text: str) -> Any:
    try:
        return json.loads(text) if text else None
    except ValueError:
        return text
