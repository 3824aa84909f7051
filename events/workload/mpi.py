"""How the launcher of an MPI training finds its workers and is let in: host files, files for ssh, and the variables
that say where they are. Pure.

Sources: Kubeflow's MPI operator for paths, roles and variables; the manuals of Open MPI (`OMPI_MCA_*` up to version 4,
`PRTE_MCA_*` from version 5 on), MPICH (`HYDRA_*`) and Intel MPI (`I_MPI_*`) for what each reads; those of OpenSSH for
its options.
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
SSH_FOLDER: Final = "/root/.ssh"
"""Where pods find their keys for ssh that say nothing else, as with Kubeflow's operator."""
KEY, AUTHORIZED, KNOWN_HOSTS, CONFIG = "id_ed25519", "authorized_keys", "known_hosts", "config"
"""Names of files in that folder, as ssh and sshd know them."""
_OTHER_KEY: Final = "id_rsa"
"""What images call it that were made for Kubeflow's operator. ssh looks into a key for its kind."""


class Mpi(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod is in an MPI training, and what its launcher is to find."""

    role: Literal["launcher", "worker"]
    workers: int
    slots: int
    """Processes that each worker has room for."""
    ssh: str = ""
    """Folder in which its pods find their keys for ssh; empty: they get none."""
    serves: bool = False
    """Whether its workers run the sshd that Muster starts, which has the same key: then ssh knows whom it talks to."""


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

_ATTEMPTS: Final = {"ConnectionAttempts": "10"}
"""A worker may listen a moment after the launcher begins."""
_ARGUMENTS: Final = (
    "OMPI_MCA_plm_rsh_args",
    "PRTE_MCA_plm_ssh_args",
    "HYDRA_LAUNCHER_EXTRA_ARGS",
    "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS",
)
"""Variables with what each MPI calls ssh with."""


def suggested(mpi: Mpi) -> dict[str, str]:
    """What a launcher has where the workload says nothing else."""
    if mpi.role != "launcher":
        return {}
    return dict.fromkeys(_ARGUMENTS, " ".join(f"-o {name}={value}" for name, value in _ssh_options(mpi).items()))


def ssh_files(mpi: Mpi, private: str, public: str) -> dict[str, str]:
    """What pods find in `mpi.ssh`, by name: the pair, whom it lets in, and whom ssh believes.

    Args:
        private, public: as OpenSSH writes them.
    """
    options = "".join(f"    {name} {value}\n" for name, value in _ssh_options(mpi).items())
    return {
        **dict.fromkeys((KEY, _OTHER_KEY), private),
        **{f"{name}.pub": public for name in (KEY, _OTHER_KEY)},
        AUTHORIZED: public,
        # sshd has the same key. Nobody else has it, so its name need not be known.
        KNOWN_HOSTS: f"* {public}",
        CONFIG: f"Host *\n{options}",
    }


def sshd_options(mpi: Mpi) -> tuple[str, ...]:
    """Words for the sshd that Muster starts in a worker: with them, an image needs no keys or settings of its own."""
    if not mpi.ssh:
        return ()
    options = {
        "HostKey": f"{mpi.ssh}/{KEY}",
        "AuthorizedKeysFile": f"{mpi.ssh}/{AUTHORIZED} .ssh/{AUTHORIZED}",
        # Whom the folder of a Secret belongs to, sshd would not believe.
        "StrictModes": "no",
    }
    return tuple(word for name, value in options.items() for word in ("-o", f"{name}={value}"))


def _ssh_options(mpi: Mpi) -> dict[str, str]:
    if not mpi.ssh:
        return _ATTEMPTS
    own = {**_ATTEMPTS, "IdentityFile": f"{mpi.ssh}/{KEY}"}
    if not mpi.serves:
        # An sshd of the workload's own: nobody knows which key it has.
        return {**own, "StrictHostKeyChecking": "no", "UserKnownHostsFile": "/dev/null"}
    return {
        **own,
        "StrictHostKeyChecking": "yes",
        "UserKnownHostsFile": f"{mpi.ssh}/{KNOWN_HOSTS}",
        "HostKeyAlgorithms": "ssh-ed25519",
    }
