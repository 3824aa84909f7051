"""What a pod of an MPI training has beside its own: host files, as annotations that the node lays into a folder. Pure.

Annotations and not a ConfigMap: they come and go with the pod, and need no right that the agent does not have.
"""

from typing import Any, Final

from events.cluster_protocol import RunPod
from events.workload.kinds.distributed import WORKER
from events.workload.mpi import HOSTFILE, HOSTFILE_FOLDER, MACHINEFILE, hostfile, machinefile, variables
from services.agent.backends.kubernetes import names

type Manifest = dict[str, Any]

_VOLUME: Final = "mpi"
_ANNOTATIONS: Final = {HOSTFILE: names.MPI_HOSTFILE, MACHINEFILE: names.MPI_MACHINEFILE}
_SSH_SERVER: Final = ("/usr/sbin/sshd", "-De")
"""What a worker runs that says nothing itself, as with Kubeflow's operator."""


def mpi_variables(run: RunPod) -> dict[str, str]:
    return {} if run.mpi is None else variables(run.mpi, HOSTFILE_FOLDER)


def mpi_annotations(run: RunPod, service: str) -> dict[str, str]:
    """The launcher's host files."""
    if not _is_launcher(run) or run.mpi is None:
        return {}
    hosts = [f"{names.hostname_of(WORKER, index)}.{service}" for index in range(run.mpi.workers)]
    return {
        names.MPI_HOSTFILE: hostfile(hosts, run.mpi.slots),
        names.MPI_MACHINEFILE: machinefile(hosts, run.mpi.slots),
    }


def mpi_mounts(run: RunPod) -> list[Manifest]:
    return [{"name": _VOLUME, "mountPath": HOSTFILE_FOLDER, "readOnly": True}] if _is_launcher(run) else []


def mpi_volumes(run: RunPod) -> list[Manifest]:
    if not _is_launcher(run):
        return []
    items = [
        {"path": path, "fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{key}']"}}
        for path, key in _ANNOTATIONS.items()
    ]
    return [{"name": _VOLUME, "downwardAPI": {"items": items}}]


def server_arguments(run: RunPod) -> tuple[str, ...]:
    """What a worker runs where the workload says nothing; empty for every other pod."""
    return _SSH_SERVER if run.mpi is not None and run.mpi.role == "worker" and not run.arguments else ()


def _is_launcher(run: RunPod) -> bool:
    return run.mpi is not None and run.mpi.role == "launcher"
