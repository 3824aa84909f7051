"""The namespaces of projects: made when the first pod needs one, marked as ours, never deleted."""

from typing import Final

import msgspec

from services.agent.backends.interface import BackendError
from services.agent.backends.kubernetes import names
from services.agent.backends.kubernetes.client import ApiError, KubeClient
from services.agent.backends.kubernetes.configuration import Configuration
from services.agent.backends.kubernetes.manifests import Security, namespace_manifest, security_of
from services.agent.backends.kubernetes.objects import Namespace

_CONFLICT: Final = 409


class Place(msgspec.Struct, frozen=True):
    name: str
    security: Security
    """What its pods must keep to."""


class _Namespaces(msgspec.Struct, frozen=True):
    items: tuple[Namespace, ...] = ()


class Namespaces:
    def __init__(self, client: KubeClient, cluster_id: str, configuration: Configuration) -> None:
        self._client = client
        self._cluster_id = cluster_id
        self._configuration = configuration
        self._known: dict[str, Place] = {}

    async def load(self) -> None:
        """Read again which there are, and what they enforce: an administrator may have changed it. Raises ApiError."""
        answer = await self._client.read("/api/v1/namespaces", labelSelector=f"{names.CLUSTER}={self._cluster_id}")
        found = msgspec.json.decode(answer, type=_Namespaces).items
        self._known = {one.metadata.name: _place(one) for one in found if one.status.phase == "Active"}

    def doubt(self, name: str) -> None:
        """It may be gone."""
        self._known.pop(name, None)

    async def ensure(self, project_id: str, project_name: str) -> Place:
        """The project's namespace, made where it is not there. Raises ApiError, and BackendError where another cluster
        of Muster has it, or it is being deleted.
        """
        name = names.namespace_of(self._configuration.project_namespace, project_name)
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = _place(await self._make(name, project_id, project_name))
        return known

    async def _make(self, name: str, project_id: str, project_name: str) -> Namespace:
        manifest = namespace_manifest(
            name,
            cluster_id=self._cluster_id,
            project_id=project_id,
            project_name=project_name,
            security=self._configuration.pod_security,
        )
        try:
            return _decode(await self._client.create("/api/v1/namespaces", manifest))
        except ApiError as error:
            if error.status != _CONFLICT:
                raise
        return await self._adopt(name, manifest["metadata"]["labels"])

    async def _adopt(self, name: str, labels: dict[str, str]) -> Namespace:
        """It was there before: made by an administrator, by an earlier agent, or by another cluster of Muster."""
        found = _decode(await self._client.read(f"/api/v1/namespaces/{name}"))
        if found.status.phase != "Active":
            raise BackendError(f"namespace {name} is being deleted")
        owner = found.metadata.labels.get(names.CLUSTER, self._cluster_id)
        if owner != self._cluster_id:
            raise BackendError(
                f"namespace {name} belongs to another cluster of Muster ({owner}); give this agent names of its own "
                "with MUSTER_KUBERNETES_PROJECT_NAMESPACE"
            )
        missing = {key: value for key, value in labels.items() if key not in found.metadata.labels}
        if not missing:
            return found
        version = {"resourceVersion": found.metadata.resource_version}
        return _decode(
            await self._client.patch(f"/api/v1/namespaces/{name}", {"metadata": {**version, "labels": missing}})
        )


def _place(namespace: Namespace) -> Place:
    return Place(namespace.metadata.name, security_of(namespace.metadata.labels))


def _decode(answer: bytes) -> Namespace:
    return msgspec.json.decode(answer, type=Namespace)
