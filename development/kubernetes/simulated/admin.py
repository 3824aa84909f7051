"""A small synchronous client of a Kubernetes API, for what an administrator does: in tests, and at first."""

import http.client
import json
import ssl
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

REQUEST_SECONDS: Final = 30.0
PARALLEL: Final = 8
"""Connections of one mass act."""
LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
"""By which the kubelets of all nodes say that they live."""
FIELD_MANAGER: Final = "muster-administrator"
PATCHES: Final = {
    "PATCH": "application/merge-patch+json",
    "APPLY": "application/apply-patch+yaml",
}
HTTP_ERROR: Final = 400


class AdminError(Exception):
    """The API server refused; `status` is its HTTP status, `body` its Status object (or text)."""

    def __init__(self, status: int, body: Any, what: str) -> None:
        super().__init__(f"{what}: {status} {body if isinstance(body, str) else body['message']}")
        self.status = status
        self.body = body


class Admin:
    """Calls with one token; each call has a connection of its own, so that nothing is left open."""

    def __init__(self, *, url: str, ca_file: Path, token: str) -> None:
        self._netloc = urlsplit(url).netloc
        self._tls = ssl.create_default_context(cafile=str(ca_file))
        self._token = token
        self._resources: dict[str, dict[str, tuple[str, bool]]] = {}

    def call(self, method: str, path: str, body: Any = None, **query: str | int | bool) -> Any:
        """The decoded answer, text where it is no JSON. `APPLY` is a server-side apply. Raises AdminError, OSError."""
        connection = self._connect()
        try:
            return self._call(connection, method, path, body, **query)
        finally:
            connection.close()

    def create_all(self, path: str, bodies: Iterable[Any]) -> None:
        """POST each of them there, several at a time; what exists already is left as it is."""
        bodies = list(bodies)
        slices = [bodies[number::PARALLEL] for number in range(PARALLEL)]
        with ThreadPoolExecutor(PARALLEL) as threads:
            for done in [threads.submit(self._create_each, path, part) for part in slices if part]:
                done.result()

    def apply(self, manifests: Iterable[Mapping[str, Any]]) -> None:
        """Server-side apply, in the order given, of objects of any kind that the server knows."""
        for manifest in manifests:
            self.call("APPLY", self.path_of(manifest), dict(manifest), fieldManager=FIELD_MANAGER, force=True)

    def path_of(self, manifest: Mapping[str, Any]) -> str:
        """Where the object is in the API, found by discovery."""
        version, metadata = manifest["apiVersion"], manifest["metadata"]
        base = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if base not in self._resources:
            found = self.call("GET", base)["resources"]
            self._resources[base] = {
                each["kind"]: (each["name"], each["namespaced"]) for each in found if "/" not in each["name"]
            }
        plural, namespaced = self._resources[base][manifest["kind"]]
        namespace = f"/namespaces/{metadata.get('namespace', 'default')}" if namespaced else ""
        return f"{base}{namespace}/{plural}/{metadata['name']}"

    def token_of(self, namespace: str, account: str, seconds: int) -> str:
        """A token of a service account that exists; 10 minutes is the shortest life that the API server gives."""
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": seconds},
        }
        answer = self.call("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token", body)
        return answer["status"]["token"]

    def _create_each(self, path: str, bodies: list[Any]) -> None:
        connection = self._connect()
        try:
            for body in bodies:
                try:
                    self._call(connection, "POST", path, body)
                except AdminError as error:
                    if error.status != http.HTTPStatus.CONFLICT:
                        raise
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(self._netloc, timeout=REQUEST_SECONDS, context=self._tls)

    def _call(
        self, connection: http.client.HTTPSConnection, method: str, path: str, body: Any, **query: str | int | bool
    ) -> Any:
        headers = {
            "Authorization": f"Bearer {self._token}",
            "Content-Type": PATCHES.get(method, "application/json"),
        }
        values = {key: str(value).lower() if isinstance(value, bool) else value for key, value in query.items()}
        connection.request(
            "PATCH" if method == "APPLY" else method,
            f"{path}?{urlencode(values)}" if query else path,
            None if body is None else json.dumps(body),
            headers,
        )
        answer = connection.getresponse()
        raw = answer.read()
        is_json = answer.headers.get_content_type() == "application/json"
        decoded = json.loads(raw) if is_json else raw.decode("utf-8", "replace")
        if answer.status >= HTTP_ERROR:
            raise AdminError(answer.status, decoded, f"{method} {path}")
        return decoded
