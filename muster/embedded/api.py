"""Calls of our own API from `muster up`: plain HTTP on loopback, standard library only."""

import http.client
import json
from typing import Final
from uuid import uuid4

from muster.embedded.processes import DENIED

TIMEOUT_SECONDS: Final = 10.0

type Json = dict[str, "Json"] | list["Json"] | str | int | float | bool | None


class CallError(Exception):
    """The API refused, or did not answer; the message is its own."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    @property
    def exit_code(self) -> int:
        """Of a program that ends by it."""
        return DENIED if self.status == http.client.FORBIDDEN else 1


class Api:
    """The API on this machine, as one user."""

    def __init__(self, port: int, token: str) -> None:
        self._port = port
        self._token = token

    def get(self, path: str) -> dict[str, Json]:
        """The answer as an object. Raises CallError for everything but success."""
        return self._call("GET", path, None)

    def post(self, path: str, body: Json) -> dict[str, Json]:
        """As `get`; with a key of its own, so that nothing is done twice."""
        return self._call("POST", path, body)

    def _call(self, method: str, path: str, body: Json) -> dict[str, Json]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=TIMEOUT_SECONDS)
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        if body is not None:
            headers["Idempotency-Key"] = str(uuid4())
        try:
            connection.request(method, f"/api/v1{path}", None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            text = response.read().decode("utf-8", "replace")
        except OSError as error:
            raise CallError(503, f"{method} {path}: {error}") from error
        finally:
            connection.close()
        if response.status >= http.client.BAD_REQUEST:
            raise CallError(response.status, f"{method} {path}: {response.status} {text[:500]}")
        answer: Json = json.loads(text) if text else {}
        return answer if isinstance(answer, dict) else {}
