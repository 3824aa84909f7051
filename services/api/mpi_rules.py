"""Rules on MPI trainings: what only they have, and what they cannot do without. Pure."""

import posixpath
import re
from collections.abc import Iterator
from typing import Final

from events.cluster import ClusterKind
from events.workload import mpi
from events.workload.fields.creation import DistributedCreation
from events.workload.fields.distribution import DistributedFramework, Distribution
from events.workload.fields.saving import CheckpointSpec
from events.workload.fields.storage import StorageSpec
from events.workload.spec import Distributed, TrainingSpec
from events.workload.volumes import within
from services.api.issues import Issue, fault, shown
from services.api.master_volumes import of_master, own_volumes
from services.api.storage_rules import OWN_FOLDERS, check_untaken

_FRAMEWORK: Final = "spec.distributedFramework"
_SSH: Final = "spec.sshAuthMountPath"
_TAKEN: Final = {
    **dict.fromkeys((*OWN_FOLDERS, "/dev"), "the system of the pod"),
    mpi.HOSTFILE_FOLDER: "the launcher's host files",
}
_SSH_FOLDER: Final = re.compile(r"(/[A-Za-z0-9_.-]+)+\Z")
"""It becomes a word among others, on a command line and in files of OpenSSH."""
_LAUNCHERS: Final = frozenset({"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "horovodrun"})


def check_mpi(creation: DistributedCreation, beside: Distributed) -> Iterator[Issue]:
    distribution = beside.distribution
    framework, slots = distribution.distributed_framework, distribution.slots_per_worker
    if framework != "MPI":
        given = {
            "slotsPerWorker": slots,
            "mpiLauncherCreationPolicy": distribution.mpi_launcher_creation_policy,
            "sshAuthMountPath": distribution.ssh_auth_mount_path,
        }
        for name, value in given.items():
            if value is not None:
                details = f"is for MPI, and {framework} has no launcher; leave it out"
                yield fault(f"spec.{name}", details, "canAdd", _FRAMEWORK)
        return
    if slots is not None and not 1 <= slots <= mpi.MOST_SLOTS:
        details = f"must be between 1 and {mpi.MOST_SLOTS}, got {slots}"
        yield fault("spec.slotsPerWorker", details, "min" if slots < 1 else "max", _FRAMEWORK)
    if beside.master is None:
        details = (
            "is false, and there is no masterSpec: MPI needs a master, which launches the processes; give masterSpec "
            "with the command that calls mpirun"
        )
        yield fault("masterSpecSameAsWorker", details, "options", _FRAMEWORK, "masterSpec")
    for name, text in (("command", creation.spec.command), ("args", creation.spec.args)):
        program = (text or "").partition(" ")[0].rpartition("/")[2]
        if program in _LAUNCHERS:
            details = (
                f"has every worker call {program}, which the launcher alone does: give it to the master, as "
                "masterSpec.command, and leave it out here"
            )
            yield fault(f"spec.{name}", details, None, _FRAMEWORK, "masterSpec")
    yield from check_places(creation.spec.storage, creation.spec.checkpoint, distribution)
    if (own := own_volumes(creation)) is not None:
        yield from of_master(check_places(own, None, distribution), creation)
    if distribution.ssh_auth_mount_path is not None:
        yield from _ssh_folder(distribution.ssh_auth_mount_path)


def check_places(
    storage: StorageSpec, checkpoint: CheckpointSpec | None, distribution: Distribution
) -> Iterator[Issue]:
    """That no volume, nor the checkpoint folder, is where pods of an MPI training find what Muster lays there."""
    if distribution.distributed_framework != "MPI":
        return
    yield from check_untaken(storage, checkpoint, mpi.HOSTFILE_FOLDER, "the launcher's host files")
    if (folder := distribution.ssh_auth_mount_path) is not None:
        what = "the keys for ssh (spec.sshAuthMountPath)"
        yield from check_untaken(storage, checkpoint, folder, what, below=True)


def _ssh_folder(folder: str) -> Iterator[Issue]:
    if not _SSH_FOLDER.match(folder) or posixpath.normpath(folder) != folder:
        details = f"{shown(folder)} is no folder for keys: write it from `/`, of letters, digits, `-`, `_` and `.`"
        yield fault(_SSH, details)
    elif taken := next((one for one in _TAKEN if within(folder, one)), ""):
        yield fault(_SSH, f"{shown(folder)} is taken by {_TAKEN[taken]}; give another folder, as {mpi.SSH_FOLDER}")


def taken_variables(framework: DistributedFramework, kind: ClusterKind) -> frozenset[str]:
    """Variables of the framework beside those that are its own everywhere."""
    return mpi.NAMES_OF_ONE_MACHINE if framework == "MPI" and kind == "local" else frozenset()


def check_ssh(distribution: Distribution, kind: ClusterKind) -> Iterator[Issue]:
    """This machine's launcher has no use for keys."""
    if kind == "local" and distribution.ssh_auth_mount_path is not None:
        details = (
            "is for clusters of kind kubernetes: on one of kind local mpirun reaches the workers by an agent of "
            "Muster's, and needs no keys; leave it out"
        )
        yield fault(_SSH, details, "canAdd", "clusterId")


def check_launcher(creation: DistributedCreation, master: TrainingSpec, kind: ClusterKind) -> Iterator[Issue]:
    """This machine pulls no images, so nobody knows what the launcher would run."""
    if kind == "local" and not master.command and not master.args:
        field = "masterSpec" if creation.master_spec is None else "masterSpec.command"
        details = (
            "is required with MPI on a cluster of kind local, which knows no image's entry point: what calls mpirun"
        )
        yield fault(field, details, "required", "clusterId", _FRAMEWORK)
