"""What a pod of an MPI training has beside its own: host files, as annotations that the node lays into a folder, and
keys for ssh, from the Secret of the pod. Pure.

Annotations and not a ConfigMap: they come and go with the pod, and need no right that the agent does not have.
"""

from typing import Any, Final

from events.cluster_protocol import RunPod
from events.workload.kinds.distributed import WORKER
from events.workload.mpi import (
    HOSTFILE,
    HOSTFILE_FOLDER,
    MACHINEFILE,
    hostfile,
    machinefile,
    sshd_options,
    variables,
)
from events.workload.volumes import within
from services.agent.backends.kubernetes import names
from services.agent.backends.kubernetes.act.secret_manifests import Needs, ssh_items
from services.agent.backends.kubernetes.act.security import Security

type Manifest = dict[str, Any]

_VOLUME, _SSH_VOLUME = "mpi", "ssh"
_OF_ROOT: Final = "/root"
_OWNER_ALONE, _EVERYBODY = 0o600, 0o444
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


def mpi_mounts(run: RunPod, needs: Needs) -> list[Manifest]:
    mounts = [{"name": _VOLUME, "mountPath": HOSTFILE_FOLDER, "readOnly": True}] if _is_launcher(run) else []
    if run.mpi is not None and needs.ssh:
        mounts.append({"name": _SSH_VOLUME, "mountPath": run.mpi.ssh, "readOnly": True})
    return mounts


def mpi_volumes(run: RunPod, needs: Needs, level: Security) -> list[Manifest]:
    volumes: list[Manifest] = []
    if _is_launcher(run):
        items = [
            {"path": path, "fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{key}']"}}
            for path, key in _ANNOTATIONS.items()
        ]
        volumes.append({"name": _VOLUME, "downwardAPI": {"items": items}})
    if run.mpi is not None and needs.ssh:
        secret = {"secretName": needs.secret, "items": ssh_items(needs), "defaultMode": _mode(run, run.mpi.ssh, level)}
        volumes.append({"name": _SSH_VOLUME, "secret": secret})
    return volumes


def server_arguments(run: RunPod) -> tuple[str, ...]:
    """What a worker runs where the workload says nothing; empty for every other pod."""
    if run.mpi is None or run.mpi.role != "worker" or run.arguments:
        return ()
    return (*_SSH_SERVER, *sshd_options(run.mpi))


def _mode(run: RunPod, folder: str, level: Security) -> int:
    """Rights of the files, which are root's: ssh takes no key of its own user that others may read, and any key of
    another user that it can read. Whether an image's user is root, the folder tells, where nothing else does.
    """
    container = run.container
    never_root = container.non_root or level == "restricted"
    is_root = within(folder, _OF_ROOT) if container.user is None else container.user == 0
    return _OWNER_ALONE if is_root and not never_root else _EVERYBODY


def _is_launcher(run: RunPod) -> bool:
    return run.mpi is not None and run.mpi.role == "launcher"
