"""What pods use, as the cluster's metrics server says (metrics.k8s.io); a cluster without one says nothing. What they
use of GPUs comes from exporters (gpu_usage.py), and is told beside it.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from events.cluster_protocol import UsageSample
from events.quantities import parse_bytes, parse_quantity
from events.workload.needs import GPU
from events.workload.pod import PodRef
from services.agent.backends.kubernetes import names
from services.agent.backends.kubernetes.act.objects import ObjectMeta, Pod
from services.agent.backends.kubernetes.client import ApiError, KubeClient
from services.agent.backends.kubernetes.read.gpu_usage import NOTHING, GpuMetrics, GpuUse

PATH: Final = "/apis/metrics.k8s.io/v1beta1/pods"
NO_METRICS: Final = frozenset({403, 404, 503})
"""Not installed, not allowed, or installed and not working: nothing is known then."""


class _Amounts(msgspec.Struct, frozen=True):
    cpu: str = "0"
    memory: str = "0"


class _Container(msgspec.Struct, frozen=True):
    usage: _Amounts = _Amounts()


class _PodMetrics(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    timestamp: datetime
    containers: tuple[_Container, ...] = ()


class _PodMetricsList(msgspec.Struct, frozen=True):
    items: tuple[_PodMetrics, ...] = ()


async def pod_usage(
    client: KubeClient, cluster_id: str, pods: Mapping[str, Pod], gpus: GpuMetrics
) -> Sequence[UsageSample]:
    """Of the live pods among `pods` (by pod key). Raises ApiError."""
    try:
        answer = await client.read(PATH, labelSelector=f"{names.CLUSTER}={cluster_id}")
    except ApiError as error:
        if error.status in NO_METRICS:
            return ()
        raise
    by_name = {(pod.metadata.namespace, pod.metadata.name): pod for pod in pods.values() if not pod.ended}
    used = await gpus.read({name: pod.spec.node_name for name, pod in by_name.items() if _has_gpu(pod)})
    samples: list[UsageSample] = []
    for measured in msgspec.json.decode(answer, type=_PodMetricsList).items:
        pod = by_name.get((measured.metadata.namespace, measured.metadata.name))
        if pod is not None:
            samples.append(_sample(pod, measured, used.get((pod.metadata.namespace, pod.metadata.name), NOTHING)))
    return samples


def _has_gpu(pod: Pod) -> bool:
    """Whether whole devices are its own: of shared ones, exporters know the reservation pods alone."""
    return any(GPU in container.resources.requests for container in pod.spec.containers)


def _sample(pod: Pod, measured: _PodMetrics, gpu: GpuUse) -> UsageSample:
    labels = pod.metadata.labels
    return UsageSample(
        workload_id=labels.workload,
        pod=PodRef(pod_set=labels.pod_set, index=int(labels.index), attempt=int(labels.attempt), try_=int(labels.try_)),
        at=measured.timestamp,
        cpu_milli=int(sum(parse_quantity(one.usage.cpu) for one in measured.containers) * 1000),
        memory_bytes=sum(parse_bytes(one.usage.memory) for one in measured.containers),
        gpu_utilization_percent=gpu.utilization_percent,
        gpu_memory_bytes=gpu.memory_bytes,
    )
