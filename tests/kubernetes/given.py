"""The Kubernetes backend on the real API server, as an administrator set it up."""

import asyncio
import itertools
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, override

from msgspec.structs import replace

from development.kubernetes.control_plane import ControlPlane
from development.kubernetes.simulated.admin import AdminError
from events.cluster_protocol import UsageSample
from services.agent.backends.kubernetes.act.lease import Identity
from services.agent.backends.kubernetes.backend import KubernetesBackend
from services.agent.backends.kubernetes.client import Timeouts
from services.agent.backends.kubernetes.configuration import Configuration
from services.agent.backends.kubernetes.connect import connect
from services.agent.backends.kubernetes.read.logs import PodLogs
from services.agent.code import BadCodeError, CodeArchives
from services.runtime.code.kept import Code
from tests.agent.given import Watched

METRICS = "metrics.k8s.io"
_NUMBERS = itertools.count()


class KeptArchives:
    """Archives by their digests, of any project; how often each was read."""

    def __init__(self, archives: dict[str, bytes]) -> None:
        self.archives = archives
        self.asked: list[Code] = []

    async def read(self, code: Code, *, most_bytes: int) -> bytes:
        self.asked.append(code)
        if (archive := self.archives.get(code.digest)) is None:
            raise BadCodeError(
                f"its code cannot be used: code {code.digest[:12]} is not kept any more; submit it again"
            )
        assert len(archive) <= most_bytes
        return archive


class KubernetesWatched(Watched):
    """A backend with a cluster id, a namespace and nodes of its own, on an API server that others use, too."""

    def __init__(self, backend: KubernetesBackend, plane: ControlPlane, node: str, project: str) -> None:
        super().__init__(backend, "kubernetes", node, real=True)
        self.plane = plane
        self.project = project
        self.run = {"project_name": project, "project_id": f"id-of-{project}", "image": "python:3.13"}

    async def close(self) -> None:
        await super().close()
        # Connections with TLS take their time to close, and uvloop does not close a loop before them.
        await asyncio.sleep(0.25)

    @property
    def namespace(self) -> str:
        return f"muster-{self.project}"

    def pods(self) -> list[dict[str, Any]]:
        """All objects in the project's namespace."""
        return self.plane.admin("GET", f"/api/v1/namespaces/{self.namespace}/pods")["items"]

    @override
    async def measured(self) -> list[UsageSample]:
        # A metrics server says what it measured: here an administrator writes it down.
        await asyncio.to_thread(_measure, self.plane, self.namespace)
        return await super().measured()


async def open_kubernetes(
    plane: ControlPlane,
    folder: Path,
    *,
    nodes: int = 2,
    gpus: int = 2,
    kubeconfig: Path | None = None,
    cluster_id: str | None = None,
    archives: CodeArchives | None = None,
    **configuration: Any,
) -> KubernetesWatched:
    number = next(_NUMBERS)
    mark = cluster_id or f"c{number}-{secrets.token_hex(4)}"
    names = [f"{mark}-n{index}" for index in range(nodes)]
    await asyncio.to_thread(plane.add_nodes, names, gpus=gpus)
    client = await connect(kubeconfig or plane.kubeconfig(), None, timeouts=Timeouts())
    logs = PodLogs(client, folder, max_bytes=2**20, retention_seconds=3600, total_max_bytes=2**24)
    settings = replace(Configuration(namespace=f"muster-system-{mark}"), **configuration)
    backend = KubernetesBackend(
        client,
        await logs.open(),
        mark,
        settings,
        identity=Identity(folder / "identity"),
        archives=archives or KeptArchives({}),
    )
    await backend.list_all()
    return KubernetesWatched(backend, plane, names[0], mark)


@asynccontextmanager
async def two_agents(
    plane: ControlPlane, folder: Path, **configuration: Any
) -> AsyncGenerator[tuple[KubernetesWatched, KubernetesWatched]]:
    """Of one cluster."""
    one = await open_kubernetes(plane, folder / "one", **configuration)
    other = await open_kubernetes(plane, folder / "other", cluster_id=one.project, **configuration)
    try:
        yield one, other
    finally:
        await one.close()
        await other.close()


def _measure(plane: ControlPlane, namespace: str) -> None:
    """PodMetrics for every pod, served by the API server itself from a resource of the same name and shape."""
    crd = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"pods.{METRICS}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, for tests only"},
        },
        "spec": {
            "group": METRICS,
            "scope": "Namespaced",
            "names": {"plural": "pods", "kind": "PodMetrics", "singular": "podmetrics"},
            "versions": [
                {
                    "name": "v1beta1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
                }
            ],
        },
    }
    plane.apply([crd])
    for pod in plane.admin("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]:
        metadata = pod["metadata"]
        metrics = {
            "apiVersion": f"{METRICS}/v1beta1",
            "kind": "PodMetrics",
            "metadata": {"name": metadata["name"], "labels": metadata["labels"]},
            "timestamp": pod["status"]["startTime"],
            "containers": [{"name": "main", "usage": {"cpu": "1234567n", "memory": "1024Ki"}}],
        }
        for _ in range(100):
            try:
                plane.admin("POST", f"/apis/{METRICS}/v1beta1/namespaces/{namespace}/pods", metrics)
                break
            except AdminError as error:
                if error.status != 404:
                    raise
                # The definition is there, and served a moment later.
