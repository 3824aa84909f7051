"""Manifests of simulated nodes with GPUs, as NVIDIA's device plugin and feature discovery label them."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict


class Shape(TypedDict, total=False):
    """What a node has; a machine with 8 H100 where it is not said."""

    cpu: str
    memory: str
    gpus: int
    gpu_product: str
    gpu_memory_mib: int
    pods: int
    labels: Mapping[str, str]
    taints: Sequence[Mapping[str, str]]


def node(
    name: str,
    *,
    kubelet_port: int,
    cpu: str = "64",
    memory: str = "512Gi",
    gpus: int = 8,
    gpu_product: str = "NVIDIA-H100",
    gpu_memory_mib: int = 81920,
    pods: int = 110,
    labels: Mapping[str, str] | None = None,
    taints: Sequence[Mapping[str, str]] = (),
) -> dict[str, Any]:
    """A node that is ready from its first moment; kwok keeps it so."""
    resources = {"cpu": cpu, "memory": memory, "pods": str(pods), "ephemeral-storage": "1Ti"}
    gpu_labels: dict[str, str] = {}
    if gpus:
        resources["nvidia.com/gpu"] = str(gpus)
        gpu_labels = {
            "nvidia.com/gpu.product": gpu_product,
            "nvidia.com/gpu.memory": str(gpu_memory_mib),
            "nvidia.com/gpu.count": str(gpus),
        }
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "message": "kubelet is posting ready status",
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **gpu_labels, **(labels or {})}},
        "spec": {"taints": [dict(taint) for taint in taints]} if taints else {},
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": [ready],
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": name}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet_port}},
            "nodeInfo": {
                "architecture": "amd64",
                "operatingSystem": "linux",
                "osImage": "simulated",
                "kernelVersion": "simulated",
                "containerRuntimeVersion": "simulated://1",
                "kubeletVersion": "v1.36.3",
                "kubeProxyVersion": "",
                "machineID": "",
                "systemUUID": "",
                "bootID": "",
            },
        },
    }
