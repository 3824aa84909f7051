"""Pods and nodes of a simulated cluster, for tests of that cluster itself: as an administrator sees them."""

import http.client
import itertools
import ssl
import time
from collections.abc import Callable, Generator
from typing import Any
from urllib.parse import urlsplit

from development.kubernetes.control_plane import ControlPlane
from development.kubernetes.simulated.admin import AdminError

SIMULATION = "simulation.muster.dev"
PODS = "/api/v1/namespaces/default/pods"
NUMBERS = itertools.count()


def until[T](condition: Callable[[], T | None], *, seconds: float = 60.0) -> T:
    """The first answer that is something."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.05)
    return answer


class Pods:
    """Pods of one test on a node of its own."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.node = f"node-{next(NUMBERS)}"
        plane.add_nodes([self.node])

    def create(self, *, labels: dict[str, str] | None = None, finalizer: bool = False, **simulation: str) -> str:
        """Its name; `simulation`: annotations, with _ for -."""
        name = f"pod-{next(NUMBERS)}"
        metadata: dict[str, Any] = {
            "name": name,
            "labels": labels or {},
            "annotations": {f"{SIMULATION}/{key.replace('_', '-')}": value for key, value in simulation.items()},
            "finalizers": ["muster.dev/observed"] if finalizer else [],
        }
        spec = {"nodeName": self.node, "restartPolicy": "Never", "containers": [{"name": "main", "image": "image"}]}
        self.plane.admin("POST", PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        return name

    def read(self, name: str) -> dict[str, Any]:
        return self.plane.admin("GET", f"{PODS}/{name}")

    def until_phase(self, name: str, phase: str) -> dict[str, Any]:
        return until(lambda: pod if (pod := self.read(name))["status"]["phase"] == phase else None)

    def ended(self, name: str, phase: str = "Failed") -> dict[str, Any]:
        """How its container ended."""
        return self.until_phase(name, phase)["status"]["containerStatuses"][0]["state"]["terminated"]

    def delete(self, name: str, grace_seconds: int = 30) -> None:
        self.plane.admin("DELETE", f"{PODS}/{name}", gracePeriodSeconds=grace_seconds)

    def is_gone(self, name: str) -> bool:
        try:
            self.read(name)
        except AdminError as error:
            return error.status == http.client.NOT_FOUND
        return False


def stream(plane: ControlPlane, path: str) -> Generator[bytes]:
    """Lines of an answer that does not end."""
    tls = ssl.create_default_context(cafile=str(plane.ca_file))
    connection = http.client.HTTPSConnection(urlsplit(plane.url).netloc, timeout=30, context=tls)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {plane.admin_token}"})
        answer = connection.getresponse()
        while line := answer.readline():
            yield line
    finally:
        connection.close()
