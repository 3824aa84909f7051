"""How the launcher of an MPI training finds its workers: host files, and the variables that say where they are. Pure.

Sources: Kubeflow's MPI operator for paths, roles and variables; the manuals of Open MPI (`OMPI_MCA_*` up to version 4,
`PRTE_MCA_*` from version 5 on), MPICH (`HYDRA_*`) and Intel MPI (`I_MPI_*`) for what each reads.
"""

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

MOST_SLOTS: Final = 1_024
"""Of one worker: more processes than a machine has processors, and 499 workers still make a number that MPI counts."""

HOSTFILE: Final = "hostfile"
"""Name of the file for Open MPI: `host slots=N`, a line for each worker."""
MACHINEFILE: Final = "machinefile"
"""Name of the file for MPICH and Intel MPI: `host:N`."""
HOSTFILE_FOLDER: Final = "/etc/mpi"
"""Where an image finds both, as with Kubeflow's operator."""


class Mpi(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod is in an MPI training, and what its launcher is to find."""

    role: Literal["launcher", "worker"]
    workers: int
    slots: int
    """Processes that each worker has room for."""


def hostfile(hosts: Iterable[str], slots: int) -> str:
    return "".join(f"{host} slots={slots}\n" for host in hosts)


def machinefile(hosts: Iterable[str], slots: int) -> str:
    return "".join(f"{host}:{slots}\n" for host in hosts)


def variables(mpi: Mpi, folder: str) -> dict[str, str]:
    """What the pod finds in its environment. `folder`: of the host files, as the launcher sees it."""
    found = {"K_MPI_JOB_ROLE": mpi.role}
    if mpi.role == "worker":
        return found
    return {
        **found,
        "OMPI_MCA_orte_default_hostfile": f"{folder}/{HOSTFILE}",
        "PRTE_MCA_prte_default_hostfile": f"{folder}/{HOSTFILE}",
        # Without it the name of a worker would end at its first dot.
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
        "PRTE_MCA_prte_keep_fqdn_hostnames": "true",
        # Who is root in a pod is so there alone.
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_ALLOW_RUN_AS_ROOT": "1",
        "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "HYDRA_HOST_FILE": f"{folder}/{MACHINEFILE}",
        "I_MPI_HYDRA_HOST_FILE": f"{folder}/{MACHINEFILE}",
    }


def variables_of_one_machine(folder: str, agent: str) -> dict[str, str]:
    """What the launcher finds, too, where all pods are on one machine.

    Args:
        folder: for temporary files, at one path and yet another one for each pod: process ids repeat from pod to pod.
        agent: program with which it starts something in a worker.
    """
    return {
        "OMPI_MCA_orte_tmpdir_base": folder,
        "PRTE_MCA_prte_tmpdir_base": folder,
        # Open MPI takes any other interface, also one that leads nowhere.
        "OMPI_MCA_btl_tcp_if_include": "lo",
        # Else MPICH gives the launcher's variables to all processes, and with them its devices.
        "HYDRA_ENV": "none",
        "OMPI_MCA_plm_rsh_agent": agent,
        "PRTE_MCA_plm_ssh_agent": agent,
        "HYDRA_LAUNCHER": "ssh",
        "HYDRA_LAUNCHER_EXEC": agent,
        "I_MPI_HYDRA_BOOTSTRAP": "ssh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC": agent,
    }


NAMES: Final = frozenset(variables(Mpi(role="launcher", workers=1, slots=1), ""))
"""Every variable that Muster sets in a launcher."""
NAMES_OF_ONE_MACHINE: Final = frozenset(variables_of_one_machine("", ""))
"""Those that it sets, too, where all pods are on one machine."""

_SSH_ARGUMENTS: Final = "-o ConnectionAttempts=10"
SUGGESTED: Final = {
    "OMPI_MCA_plm_rsh_args": _SSH_ARGUMENTS,
    "PRTE_MCA_plm_ssh_args": _SSH_ARGUMENTS,
    "HYDRA_LAUNCHER_EXTRA_ARGS": _SSH_ARGUMENTS,
    "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": _SSH_ARGUMENTS,
}
"""What a launcher has where the workload says nothing else: a worker may listen a moment after the launcher begins."""
