"""Which node ports a workload gets. The API server gives each to one Service of the whole cluster, and is asked before
the pod is made, without making anything: a taken one is the end of the run (S030).

Until the Service is there, the server would give the same one to another workload. So what is promised is known here,
and then from the pods.
"""

import asyncio
import hashlib
from collections.abc import Iterator
from typing import Any, Final

from msgspec.structs import replace

from events.cluster_protocol import RunPod
from events.workload.exposure import FIRST_NODE_PORT, LAST_NODE_PORT
from events.workload.pod_sets import ContainerPort
from services.agent.backends.kubernetes.act.port_manifests import port_service_manifest, read_ports
from services.agent.backends.kubernetes.client import CONFLICT, ApiError, KubeClient
from services.agent.backends.kubernetes.read.view import View

CANDIDATES: Final = 30
"""That are tried where none was named. Of a cluster with half of them taken, one in a thousand million finds none."""
PROMISED_SECONDS: Final = 10.0
"""From the answer of the API server to when the pod is seen, at most. The pod says its ports from then on."""
_INVALID: Final = 422
_ALLOCATED: Final = "already allocated"


class NodePortTakenError(Exception):
    """It cannot be had; the message says which, and what would do."""


class NodePorts:
    def __init__(self, client: KubeClient, view: View, cluster_id: str) -> None:
        self._client = client
        self._view = view
        self._cluster_id = cluster_id
        self._promised: dict[int, tuple[str, float]] = {}
        """(workload id, until when) by node port."""

    async def chosen(self, run: RunPod, namespace: str) -> RunPod:
        """The run with a number for each of its node ports. Raises NodePortTakenError, ApiError."""
        if not any(port.service == "NodePort" for port in run.ports):
            return run
        if (same := self._of_sibling(run)) is not None:
            return replace(run, ports=same)
        ports = [
            replace(port, external=await self._free(run, port, namespace)) if port.service == "NodePort" else port
            for port in run.ports
        ]
        return replace(run, ports=tuple(ports))

    def _of_sibling(self, run: RunPod) -> tuple[ContainerPort, ...] | None:
        """What another pod of the workload has: their Service is one."""
        wanted = [port.container for port in run.ports]
        for pod in self._view.pods.values():
            if pod.metadata.labels.workload == run.workload_id and not pod.ended:
                ports = read_ports(pod.metadata.annotations.ports)
                if [port.container for port in ports] == wanted:
                    return ports
        return None

    async def _free(self, run: RunPod, port: ContainerPort, namespace: str) -> int:
        for number in _candidates(run, port):
            if await self._is_free(run, replace(port, external=number), namespace):
                return number
        if port.external:
            raise NodePortTakenError(
                f"node port {port.external} of the cluster is in use by another Service: give another one, or none"
            )
        raise NodePortTakenError(f"none of {CANDIDATES} node ports is free for container port {port.container}")

    async def _is_free(self, run: RunPod, port: ContainerPort, namespace: str) -> bool:
        if self._is_anothers(run.workload_id, port.external):
            return False
        # Before it is asked for: who asks meanwhile must not have it.
        self._promised[port.external] = (run.workload_id, asyncio.get_running_loop().time() + PROMISED_SECONDS)
        free = False
        try:
            free = await self._is_free_there(run, port, namespace)
        finally:
            if not free:
                self._promised.pop(port.external, None)
        return free

    def _is_anothers(self, workload_id: str, number: int) -> bool:
        """Whether a pod of another workload has it, or is to have it."""
        now = asyncio.get_running_loop().time()
        self._promised = {port: promise for port, promise in self._promised.items() if promise[1] > now}
        if self._promised.get(number, (workload_id, now))[0] != workload_id:
            return True
        return any(
            port.external == number and port.service == "NodePort"
            for pod in self._view.pods.values()
            if pod.metadata.labels.workload != workload_id and not pod.ended
            for port in read_ports(pod.metadata.annotations.ports)
        )

    async def _is_free_there(self, run: RunPod, port: ContainerPort, namespace: str) -> bool:
        manifest: dict[str, Any] = port_service_manifest(
            "NodePort",
            (port,),
            namespace=namespace,
            workload_id=run.workload_id,
            workload_name=run.workload_name,
            pod_set=run.pod.pod_set,
            cluster_id=self._cluster_id,
        )
        try:
            await self._client.create(f"/api/v1/namespaces/{namespace}/services", manifest, dryRun="All")
        except ApiError as error:
            if error.status == CONFLICT:
                return True  # it is there from a moment ago, and has its ports
            if error.status == _INVALID and _ALLOCATED in error.message:
                return False
            raise
        return True


def _candidates(run: RunPod, port: ContainerPort) -> Iterator[int]:
    if port.external:
        yield port.external
        return
    count = LAST_NODE_PORT - FIRST_NODE_PORT + 1
    for step in range(CANDIDATES):
        said = f"{run.workload_id} {port.container} {step}".encode()
        yield FIRST_NODE_PORT + int.from_bytes(hashlib.blake2b(said, digest_size=8).digest()) % count
