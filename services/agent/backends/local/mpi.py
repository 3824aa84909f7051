"""Where the pods of an MPI training meet on this machine: a folder for each workload, which its pods alone see.

In it lie the launcher's host files, the agent with which `mpirun` starts programs in workers (rsh.py), and the workers'
sockets. All pods have their working folder at one path in it: MPI goes to the launcher's wherever it starts a process.
"""

import os
import shlex
import shutil
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Final

from events.cluster_protocol import RunPod
from events.workload.kinds.distributed import WORKER
from events.workload.mpi import (
    HOSTFILE,
    MACHINEFILE,
    Mpi,
    hostfile,
    machinefile,
    variables,
    variables_of_one_machine,
)
from services.agent.backends.local import rsh
from services.agent.backends.local.run_folder import LaidVolume

AGENT: Final = "rsh"
_WORK: Final = "work"
TEMPORARY: Final = "tmp"
"""Of a run: for the files of Open MPI, which are named by process ids; each pod counts its own."""
_RSH: Final = (sys.executable, "-I", "-S", "-B", str(Path(rsh.__file__).absolute()))
_LEFT: Final = ".left-"


class Meetings:
    def __init__(self, root: Path) -> None:
        self._root = root

    def folder(self, pod: RunPod) -> Path:
        return self._root / pod.workload_id

    def prepare(self, pod: RunPod) -> None:
        """Have there what the pod is to find. Every pod of a workload writes the same. Raises OSError."""
        if pod.mpi is None:
            return
        folder = self.folder(pod)
        for name in (_WORK, TEMPORARY):
            (folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        hosts = [f"{WORKER}-{index}" for index in range(pod.mpi.workers)]
        _write(folder / HOSTFILE, hostfile(hosts, pod.mpi.slots), 0o600)
        _write(folder / MACHINEFILE, machinefile(hosts, pod.mpi.slots), 0o600)
        _write(folder / AGENT, f'#!/bin/sh\nexec {shlex.join((*_RSH, str(folder), "run"))} "$@"\n', 0o700)

    def variables(self, pod: RunPod) -> dict[str, str]:
        if pod.mpi is None:
            return {}
        folder = str(self.folder(pod))
        more = variables_of_one_machine(f"{folder}/{TEMPORARY}", agent=f"{folder}/{AGENT}")
        return variables(pod.mpi, folder) | (more if pod.mpi.role == "launcher" else {})

    def arguments(self, pod: RunPod) -> tuple[str, ...]:
        """What the pod runs: a worker that says nothing itself waits for the launcher."""
        if pod.arguments or not _is_worker(pod.mpi):
            return pod.arguments
        return (*_RSH, str(self.folder(pod)), "serve", f"{pod.pod.pod_set}-{pod.pod.index}")

    def work(self, pod: RunPod) -> str:
        """The path of its working folder, where `laid` is; empty: its own."""
        return "" if pod.mpi is None else str(self.folder(pod) / _WORK)

    def laid(self, pod: RunPod, work: str, temporary: str) -> tuple[LaidVolume, ...]:
        """Folders of its own, at the paths that all pods of the workload have."""
        if pod.mpi is None:
            return ()
        folder = self.folder(pod)
        own = ((_WORK, work), (TEMPORARY, temporary))
        return tuple(LaidVolume(kind="own", target=str(folder / name), source=source) for name, source in own)

    def kept(self, pod: RunPod) -> tuple[str, ...]:
        """Folders below hidden ones that it sees all the same."""
        return () if pod.mpi is None else (str(self.folder(pod)),)

    def clear(self, living: Collection[str]) -> None:
        """Delete those of workloads that have no run here any more, and what was left of others. Blocks."""
        for folder in self._root.glob("*"):
            if folder.name not in living:
                shutil.rmtree(folder, ignore_errors=True)

    def leave(self, workload_id: str) -> Path | None:
        """Its last run is gone: what is to be deleted, under a name that no run has. None: nothing. Raises OSError."""
        folder = self._root / workload_id
        if not folder.exists():
            return None
        left = folder.with_name(f"{_LEFT}{workload_id}-{os.urandom(4).hex()}")
        folder.rename(left)
        return left


def is_server(pod: RunPod) -> bool:
    """Whether it runs what Muster brings along."""
    return not pod.arguments and _is_worker(pod.mpi)


def _is_worker(mpi: Mpi | None) -> bool:
    return mpi is not None and mpi.role == "worker"


def _write(path: Path, content: str, mode: int) -> None:
    """Whole or not at all: a launcher may read it just now. By its descriptor: pods of the workload may put a link in
    the place of any name in this folder.
    """
    new = path.with_name(f".{path.name}-{os.urandom(4).hex()}")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "w") as file:
        file.write(content)
        os.fchmod(file.fileno(), mode)
    new.replace(path)
