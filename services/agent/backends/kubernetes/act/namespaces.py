"""The namespaces of projects: made when the first pod needs one, marked as ours, never deleted.

Whoever may make pods anywhere in a cluster can give them our marks, by intent or with a copied manifest. But labels of
a namespace are an administrator's, or ours: so only what is in a namespace of ours can be a run of ours.
"""

import time
from typing import Final

import msgspec

from events.cluster_protocol import RunPod
from services.agent.backends.interface import BackendError
from services.agent.backends.kubernetes import names
from services.agent.backends.kubernetes.act.manifests import Manifest, namespace_manifest
from services.agent.backends.kubernetes.act.objects import Namespace
from services.agent.backends.kubernetes.act.security import Security, security_of, with_project
from services.agent.backends.kubernetes.client import CONFLICT, NOT_FOUND, ApiError, KubeClient
from services.agent.backends.kubernetes.configuration import Configuration

FRESH_SECONDS: Final = 10.0
"""For how long a namespace is taken to enforce what it was last seen to: an administrator who changes that waits no
longer for it to count.
"""


class Place(msgspec.Struct, frozen=True):
    name: str
    security: Security
    """What it enforces."""


class _Namespaces(msgspec.Struct, frozen=True):
    items: tuple[Namespace, ...] = ()


class Namespaces:
    def __init__(self, client: KubeClient, cluster_id: str, configuration: Configuration) -> None:
        self._client = client
        self._cluster_id = cluster_id
        self._configuration = configuration
        self._known: dict[str, tuple[Place, float]] = {}
        """And when each was read (monotonic)."""
        self._projects: dict[str, str] = {}
        """Ids by namespace, of all that bear this cluster's label, also those that are being deleted. None is taken
        out: a list that lacks one must not make its pods vanish.
        """

    async def load(self) -> None:
        """Read again which there are, and what they enforce: an administrator may have changed it. Raises ApiError."""
        answer = await self._client.read("/api/v1/namespaces", labelSelector=f"{names.CLUSTER}={self._cluster_id}")
        found = msgspec.json.decode(answer, type=_Namespaces).items
        now = time.monotonic()
        for one in found:
            self._see(one)
        self._known = {one.metadata.name: (_place(one), now) for one in found if one.status.phase == "Active"}

    def has(self, name: str) -> bool:
        """Whether it is a project's, on this cluster."""
        return name in self._projects

    def project_of(self, name: str) -> str:
        """Id of the project that it is for; empty where it is none's."""
        return self._projects.get(name, "")

    def _see(self, namespace: Namespace) -> None:
        self._projects[namespace.metadata.name] = namespace.metadata.labels.get(names.PROJECT, "")

    def doubt(self, name: str) -> None:
        """It may be gone."""
        self._known.pop(name, None)

    async def ensure(self, pod: RunPod) -> Place:
        """The namespace of the pod's project, made where it is not there. Raises ApiError, and BackendError where
        another cluster of Muster has it, or it is being deleted.
        """
        name = names.namespace_of(self._configuration.project_namespace, pod.project_name)
        place, read_at = self._known.get(name, (None, 0.0))
        is_fresh = time.monotonic() - read_at <= FRESH_SECONDS and self.project_of(name) == pod.project_id
        if place is None or not is_fresh:
            began = time.monotonic()
            found = await self._look_or_make(self._manifest(name, pod), expected=place is not None)
            self._see(found)
            place = _place(found)
            self._known[name] = (place, began)
        return place

    async def changed(self, place: Place, pod: RunPod) -> bool:
        """Whether the namespace is not what it was, looked at now. Raises as `ensure` does."""
        self.doubt(place.name)
        return await self.ensure(pod) != place

    def _manifest(self, name: str, pod: RunPod) -> Manifest:
        return namespace_manifest(
            name,
            cluster_id=self._cluster_id,
            project_id=pod.project_id,
            project_name=pod.project_name,
            security=with_project(self._configuration.pod_security, pod.pod_security),
        )

    async def _look_or_make(self, manifest: Manifest, *, expected: bool) -> Namespace:
        """`expected`: it was there some seconds ago."""
        name, labels = manifest["metadata"]["name"], manifest["metadata"]["labels"]
        if expected:
            try:
                return await self._adopt(name, labels)
            except ApiError as error:
                if error.status != NOT_FOUND:
                    raise
        try:
            return _decode(await self._client.create("/api/v1/namespaces", manifest))
        except ApiError as error:
            if error.status != CONFLICT:
                raise
        return await self._adopt(name, labels)

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
        there = found.metadata.labels
        wrong = {key: value for key, value in labels.items() if key not in there}
        if there.get(names.PROJECT) != labels[names.PROJECT]:
            # Another project had this name before, and was deleted.
            wrong[names.PROJECT] = labels[names.PROJECT]
        if not wrong:
            return found
        version = {"resourceVersion": found.metadata.resource_version}
        return _decode(
            await self._client.patch(f"/api/v1/namespaces/{name}", {"metadata": {**version, "labels": wrong}})
        )


def _place(namespace: Namespace) -> Place:
    return Place(namespace.metadata.name, security_of(namespace.metadata.labels))


def _decode(answer: bytes) -> Namespace:
    return msgspec.json.decode(answer, type=Namespace)
