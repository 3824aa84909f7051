"""How the agent works on its Kubernetes cluster, from the settings."""

from typing import Final

import msgspec

from services.agent.backends.kubernetes.act.security import Security
from services.runtime.process.settings import Settings

RESERVATION_ACCOUNT: Final = "muster-gpu-reservation"
"""ServiceAccount of the pods that hold shared devices (deploy/kubernetes)."""
UNUSED_SHARED_SECONDS: Final = 30.0
"""How long the claim of a data volume stays after its last pod: the next one of a workload often comes soon."""
SUPERSEDED_GRACE_SECONDS: Final = 30
"""Grace of a run that a newer one replaces: Kubernetes' default."""


class Configuration(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str = "muster-system"
    """The agent's own."""
    project_namespace: str = "muster-{project}"
    pod_security: Security = "baseline"
    """Of namespaces that the agent makes, for projects that want no stricter one."""
    reservation_image: str = "muster"
    data_source_ports: frozenset[int] = frozenset()
    """Of servers of data sources at which the agent looks."""
    reservation_account: str = RESERVATION_ACCOUNT
    gpu_metrics_namespace: str = ""
    """Of the exporters of GPU metrics; empty: none are asked."""
    gpu_metrics_selector: str = ""
    gpu_metrics_port: int = 9400
    not_ready_seconds: float = 5.0
    node_lost_seconds: float = 3600.0
    replace_lost_pods: bool = False
    watch_silence_seconds: float = 60.0
    unused_shared_seconds: float = UNUSED_SHARED_SECONDS
    superseded_grace_seconds: int = SUPERSEDED_GRACE_SECONDS


def configuration_of(settings: Settings) -> Configuration:
    return Configuration(
        namespace=settings.kubernetes_namespace,
        project_namespace=settings.kubernetes_project_namespace,
        pod_security=settings.kubernetes_pod_security,
        reservation_image=settings.kubernetes_reservation_image,
        data_source_ports=frozenset(int(port) for port in settings.kubernetes_data_source_ports.split(",") if port),
        gpu_metrics_namespace=settings.kubernetes_gpu_metrics.partition("/")[0],
        gpu_metrics_selector=settings.kubernetes_gpu_metrics.partition("/")[2],
        gpu_metrics_port=settings.kubernetes_gpu_metrics_port,
        not_ready_seconds=settings.kubernetes_not_ready_seconds,
        node_lost_seconds=settings.kubernetes_node_lost_seconds,
        replace_lost_pods=settings.kubernetes_replace_lost_pods,
        watch_silence_seconds=settings.kubernetes_watch_silence_seconds,
    )
