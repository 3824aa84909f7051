"""Services for the ports of a workload, one of each type that it asks for, and what its pods say of them. Pure.

A pod's annotation says which ports it has, so what should be there follows from the pods alone.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, get_args

from events.cluster_protocol import RunPod
from events.workload.exposure import PORT_VARIABLE
from events.workload.fields.connections import ServiceType
from events.workload.pod import PodAddress, PortAddress
from events.workload.pod_sets import ContainerPort
from services.agent.backends.kubernetes import names
from services.agent.backends.kubernetes.act.objects import Pod

type Manifest = dict[str, Any]

_TYPES: Final[tuple[ServiceType, ...]] = get_args(ServiceType)
_BY_NAME: Final[dict[str, ServiceType]] = {one: one for one in _TYPES}
_PARTS: Final = 3


def ports_text(ports: Sequence[ContainerPort]) -> str:
    """`8888:NodePort:30080,6006::0`: container port, type (none: it is reached by the proxy alone), port outside."""
    return ",".join(f"{port.container}:{port.service or ''}:{port.external}" for port in ports)


def read_ports(text: str) -> tuple[ContainerPort, ...]:
    """Of what is none, as many as can be read: somebody may have changed the annotation."""
    found: list[ContainerPort] = []
    for part in text.split(","):
        words = part.split(":")
        if len(words) == _PARTS and words[0].isdecimal() and words[2].isdecimal():
            service = _BY_NAME.get(words[1])
            found.append(ContainerPort(container=int(words[0]), service=service, external=int(words[2])))
    return tuple(found)


def port_variables(run: RunPod) -> dict[str, str]:
    """As on the local cluster, where a pod may have others."""
    return {f"{PORT_VARIABLE}{port.container}": str(port.container) for port in run.ports}


def types_of(ports: Iterable[ContainerPort]) -> tuple[ServiceType, ...]:
    """Of the Services that these ports need."""
    asked = {port.service for port in ports}
    return tuple(one for one in _TYPES if one in asked)


def port_service_manifest(
    service: ServiceType,
    ports: Iterable[ContainerPort],
    *,
    namespace: str,
    workload_id: str,
    workload_name: str,
    pod_set: str,
    cluster_id: str,
) -> Manifest:
    """The Service of this type: it leads to the pods of one incarnation of the workload that are ready."""
    marks = {names.CLUSTER: cluster_id, names.WORKLOAD: workload_id}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": names.port_service_name(workload_name, workload_id, service),
            "namespace": namespace,
            "labels": {names.MANAGED_BY: names.MANAGER, **marks},
            "annotations": {names.WORKLOAD_NAME: workload_name},
        },
        "spec": {
            "type": service,
            "selector": {**marks, names.POD_SET: pod_set},
            "ports": [_port(port) for port in ports if port.service == service],
        },
    }


def _port(port: ContainerPort) -> Manifest:
    node_port = port.service == "NodePort"
    return {
        "name": f"port-{port.container}",
        "protocol": "TCP",
        "port": port.container if node_port or not port.external else port.external,
        "targetPort": port.container,
        **({"nodePort": port.external} if node_port and port.external else {}),
    }


def address_of(pod: Pod) -> PodAddress | None:
    """Where the pod answers; None where it has no ports, or no address yet."""
    ports = read_ports(pod.metadata.annotations.ports)
    if not ports or not pod.status.pod_ip:
        return None
    by_name: list[ServiceType] = [one for one in types_of(ports) if one != "NodePort"]
    labels, annotations = pod.metadata.labels, pod.metadata.annotations
    service = names.port_service_name(annotations.workload_name, labels.workload, by_name[0]) if by_name else ""
    external = tuple(
        PortAddress(container=port.container, port=port.container, external=port.external)
        for port in ports
        if port.service == "NodePort" and port.external
    )
    return PodAddress(
        host=pod.status.pod_ip,
        ports=external,
        node=pod.status.host_ip if external else "",
        service=f"{service}.{pod.metadata.namespace}.svc" if service else "",
    )
