"""What a pod on this machine finds in its environment. Pure."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec

from events.cluster_protocol import RunPod
from events.workload.rendezvous import with_addresses
from events.workload.volumes import checkpoint_variables
from services.agent.backends.gpu_share import gpu_share
from services.agent.backends.local.checkpoints import LOOK_SECONDS
from services.agent.backends.local.gpus import Gpu
from services.agent.backends.local.run_folder import Isolation

LOOPBACK: Final = "127.0.0.1"
"""Where all pods of this machine find each other."""
FIRST_PORT: Final = 10_000
PORTS: Final = 20_000
"""Below those that Linux gives to whoever asks for any (32768 on)."""


class LocalMachine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine and how it is to be used, as the wiring found it."""

    data_dir: Path
    """Of this cluster alone."""
    cluster_id: str
    cpu_milli: int
    memory_bytes: int
    stand_in_gpus: int
    path: str
    """PATH of the pods: this machine's, since there is no image that brings programs along."""
    home: str
    log_max_bytes: int
    log_retention_seconds: float
    logs_total_max_bytes: int
    isolation: Isolation | None
    """What pods are shut off from; None: from nothing."""
    look_at_checkpoints_seconds: float = LOOK_SECONDS
    own_ports: frozenset[int] = frozenset()
    """Of Muster's own servers: no pod gets one, also while a server is away for a moment."""


def run_mark(machine: LocalMachine, pod_key: str, token: int | str) -> str:
    """The environment entry by which the processes of a run are found when nobody watches them any more."""
    return f"MUSTER_RUN_ID={machine.cluster_id}/{pod_key}/{token}"


def pod_environment(
    pod: RunPod,
    machine: LocalMachine,
    devices: Sequence[Gpu],
    *,
    home: str = "",
    more: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """A clean base, then the workload's own, then what Muster says, which nobody may change.

    `devices`: those that stand behind the pod's shares, in their order; empty where it cannot be started. `home`: the
    run's own home folder; empty: it has that of this machine's user. `more`: variables that only the backend knows.
    """
    key, _, value = run_mark(machine, pod.pod_key, pod.token).partition("=")
    return {
        "PATH": machine.path,
        "HOME": machine.home,
        "LANG": "C.UTF-8",
        # What a Python program wrote is in its log at once, and is not lost when the program is killed.
        "PYTHONUNBUFFERED": "1",
        **pod.environment,
        **({"HOME": home} if home else {}),
        **with_addresses(pod.rendezvous, host=_host, port=lambda rank, _: _port(pod.workload_id, rank)),
        "MUSTER_WORKLOAD_ID": pod.workload_id,
        "MUSTER_WORKLOAD_NAME": pod.workload_name,
        "MUSTER_PROJECT_ID": pod.project_id,
        "MUSTER_POD_SET": pod.pod.pod_set,
        "MUSTER_POD_INDEX": str(pod.pod.index),
        "MUSTER_ATTEMPT": str(pod.pod.attempt),
        "MUSTER_RUN": str(pod.pod.try_ + 1),
        "MUSTER_NODE_NAME": pod.node_name,
        **checkpoint_variables(pod.volumes),
        **more,
        # As Kubernetes' indexed Jobs call it.
        "JOB_COMPLETION_INDEX": str(pod.pod.index),
        key: value,
        **_devices(pod, devices),
    }


def _host(_pod_set: str, _index: int) -> str:
    return LOOPBACK


def _port(workload_id: str, rank: int) -> int:
    """On which the pod of this rank listens. All pods share the machine's loopback, so each has a port of its own; two
    workloads may come to the same ones, and whoever is second then fails to listen and is run again.
    """
    first = int.from_bytes(hashlib.blake2b(workload_id.encode(), digest_size=8).digest()) % PORTS
    return FIRST_PORT + (first + rank) % PORTS


def held_devices(pod: RunPod, environment: Mapping[str, str]) -> dict[int, str]:
    """Which device stands behind each number of this run: the names in its environment, for it cannot change them."""
    names = environment.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return {share.device: name for share, name in zip(pod.devices, names, strict=False) if name}


def _devices(pod: RunPod, devices: Sequence[Gpu]) -> dict[str, str]:
    """Which devices to use, and how much of them."""
    names = ",".join(gpu.name for gpu in devices)
    visible = {"CUDA_VISIBLE_DEVICES": names, "NVIDIA_VISIBLE_DEVICES": names or "void"}
    if not names:
        return visible
    return {**visible, **gpu_share(pod, devices[0].memory_bytes)}
