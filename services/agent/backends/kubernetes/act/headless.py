"""Services of a workload, there as long as one of its pods is: a headless one, by which its pods find each other, and
those of its ports.

Their names are the pods' subdomains, or follow from an annotation, so what should be there follows from the pods alone,
whoever made them. A Service
is made after its first pod and deleted before its last one is let go: who dies in between finds a pod that says so.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable

import structlog

from services.agent.backends.interface import BackendError
from services.agent.backends.kubernetes import names
from services.agent.backends.kubernetes.act.manifests import Manifest, service_manifest
from services.agent.backends.kubernetes.act.objects import Pod
from services.agent.backends.kubernetes.act.pauses import Pauses
from services.agent.backends.kubernetes.act.port_manifests import port_service_manifest, read_ports, types_of
from services.agent.backends.kubernetes.client import CONFLICT, NOT_FOUND, ApiError, KubeClient
from services.agent.backends.kubernetes.read.view import View

type _Name = tuple[str, str]
"""Namespace and name."""

log = structlog.get_logger(__name__)


class HeadlessServices:
    def __init__(self, client: KubeClient, view: View, cluster_id: str, be_sure: Callable[[], None]) -> None:
        """`be_sure` is asked right before anything is made or deleted, and raises BackendError where another agent
        acts: it may have made, or deleted, what has the same name.
        """
        self._client = client
        self._view = view
        self._cluster_id = cluster_id
        self._be_sure = be_sure
        self._there: set[_Name] = set()
        """Made or found by us, and not deleted since."""
        self._doubted: set[_Name] = set()
        """Of those, which somebody may have deleted."""
        self._pauses = Pauses[_Name]()
        """Of those that could not be deleted."""
        self._leaving: set[str] = set()
        """Uids of pods that are just being let go."""
        self._turn = asyncio.Lock()
        """One call at a time, so that none is deleted that was just found to be there."""

    def doubt(self) -> None:
        """Everything was listed anew, but Services are not."""
        self._doubted |= self._there

    async def ensure(self, pod: Pod) -> None:
        """Make those that this pod belongs to, where they are not there. Raises ApiError, BackendError."""
        for name in _services_of(pod):
            if self._is_sure(name):
                continue
            async with self._turn:
                if self._is_sure(name):
                    continue
                try:
                    await self._client.create(_path(name[0]), self._manifest(pod, name), sure=self._be_sure)
                except ApiError as error:
                    if error.status != CONFLICT:
                        raise
                self._there.add(name)
                self._doubted.discard(name)

    def _manifest(self, pod: Pod, name: _Name) -> Manifest:
        namespace, service = name
        labels, workload_name = pod.metadata.labels, pod.metadata.annotations.workload_name
        if service == pod.spec.subdomain:
            return service_manifest(
                service,
                namespace=namespace,
                workload_key=names.workload_key_of(labels.pod_key),
                workload_name=workload_name,
                cluster_id=self._cluster_id,
            )
        ports = read_ports(pod.metadata.annotations.ports)
        made = (
            port_service_manifest(
                type_,
                ports,
                namespace=namespace,
                workload_id=labels.workload,
                workload_name=workload_name,
                pod_set=labels.pod_set,
                cluster_id=self._cluster_id,
            )
            for type_ in types_of(ports)
        )
        return next(one for one in made if one["metadata"]["name"] == service)

    @contextlib.asynccontextmanager
    async def leaving(self, pod: Pod) -> AsyncGenerator[None]:
        """The pod is let go inside; the last one's Services are deleted before that. Raises ApiError, BackendError."""
        self._leaving.add(pod.metadata.uid)
        try:
            for name in _services_of(pod):
                await self._delete_unused(name)
            yield
        finally:
            self._leaving.discard(pod.metadata.uid)

    async def tidy(self) -> None:
        """Level-based, called every second or so: makes what live pods need, and deletes what another agent's pods used
        and none uses any more. Errors are logged; the next call tries again.
        """
        try:
            for pod in [pod for pod in self._view.pods.values() if _services_of(pod) and not pod.ended]:
                await self.ensure(pod)
            for name in self._there - self._used():
                if not self._pauses.is_resting(name):
                    await self._delete_unused(name)
        except (ApiError, BackendError) as error:
            log.warning("services_not_tidied", reason=str(error))

    def _is_sure(self, name: _Name) -> bool:
        return name in self._there and name not in self._doubted

    def _used(self) -> set[_Name]:
        pods = (pod for pod in self._view.pods.values() if pod.metadata.uid not in self._leaving)
        return {name for pod in pods for name in _services_of(pod)}

    async def _delete_unused(self, name: _Name) -> None:
        async with self._turn:
            if name in self._used():
                return
            try:
                await self._client.delete(f"{_path(name[0])}/{name[1]}", sure=self._be_sure)
            except ApiError as error:
                if error.unreachable:
                    raise
                if error.status != NOT_FOUND:
                    self._leave(name, error)
                    return
            self._there.discard(name)
            self._doubted.discard(name)
            self._pauses.end(name)

    def _leave(self, name: _Name, error: ApiError) -> None:
        """It harms nobody, and must not keep a pod that has ended: it is deleted when order is made. An API server that
        just began refuses what it allows a moment later, while it has not read its roles.
        """
        self._there.add(name)
        pause = self._pauses.rest(name)
        log.warning("service_left", namespace=name[0], service=name[1], again_seconds=pause, reason=str(error))


def _services_of(pod: Pod) -> tuple[_Name, ...]:
    namespace, annotations = pod.metadata.namespace, pod.metadata.annotations
    found = ((namespace, pod.spec.subdomain),) if pod.spec.subdomain else ()
    if not annotations.ports:
        return found
    types = types_of(read_ports(annotations.ports))
    workload = annotations.workload_name, pod.metadata.labels.workload
    return (*found, *((namespace, names.port_service_name(*workload, one)) for one in types))


def _path(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/services"
