"""How the pods of a distributed training find each other: the environment variables that each framework reads. Pure.

A variable's value may hold the address of a pod, which only the cluster knows that runs it: the value says which pod,
and the agent puts the address there (`with_addresses`).

Sources: Kubeflow's training operator (PyTorchJob, TFJob, XGBoostJob, JAXJob) for names, ports and ranks; torchrun reads
each of its flags from `PET_<FLAG>`; `jax.distributed.initialize` takes the three values of `JAX_*`; XGBoost's tracker
hands out `DMLC_*`.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from events.workload import mpi
from events.workload.fields.distribution import DistributedFramework
from events.workload.mpi import Mpi

RESTARTS: Final = {"PET_MAX_RESTARTS": "100"}
"""Of elastic PyTorch. Torchrun takes a pod that goes for a failure of its group, and by default gives up at the first.
"""
PYTORCH_PORT: Final = 23456
TENSORFLOW_PORT: Final = 2222
XGBOOST_PORT: Final = 9999
JAX_PORT: Final = 6666
"""Ports that Kubeflow's operator names, where every pod has an address of its own."""

_ADDRESS: Final = re.compile(r"<(?:host (?P<set>[a-z]{1,20})-(?P<index>\d+)|port (?P<port>\d+) of (?P<rank>\d+))>")


class Peers(msgspec.Struct, frozen=True, kw_only=True):
    """The pods of one workload that find each other, as one of its pod sets sees them."""

    framework: DistributedFramework
    sets: tuple[tuple[str, int], ...]
    """Pod sets with their pods, in the order of the ranks: the pod of rank 0 is where the others meet."""
    first_rank: int
    """Of the pod with index 0 of this set. A pod keeps its index, and so its rank, in every run."""
    processes: int = 1
    """That a launcher starts in each pod of this set: one for each whole GPU."""
    elastic: tuple[int, int] | None = None
    """(least, most) pods that may take part."""
    mpi: Mpi | None = None
    """With MPI alone. Its host files are the agent's to make, and its variables say where it did."""

    @property
    def size(self) -> int:
        return sum(count for _, count in self.sets)


def variables(peers: Peers, index: int) -> dict[str, str]:
    """What the pod of this index finds in its environment; addresses are still to be filled in."""
    return _OF_FRAMEWORK[peers.framework](peers, peers.first_rank + index)


def with_addresses(
    values: Mapping[str, str], *, host: Callable[[str, int], str], port: Callable[[int, int], int]
) -> dict[str, str]:
    """The variables with every address in its place.

    Args:
        host: of a pod, by its pod set and index.
        port: on which a pod listens, by its rank and by the port that is usual.
    """

    def address(found: re.Match[str]) -> str:
        if found["set"]:
            return host(found["set"], int(found["index"]))
        return str(port(int(found["rank"]), int(found["port"])))

    return {name: _ADDRESS.sub(address, value) for name, value in values.items()}


def names(framework: DistributedFramework) -> frozenset[str]:
    """Every variable that this framework's pods may get."""
    if framework == "MPI":
        return mpi.NAMES
    plain = Peers(framework=framework, sets=(("worker", 1),), first_rank=0)
    elastic = Peers(framework=framework, sets=(("worker", 1),), first_rank=0, elastic=(1, 1))
    return frozenset({*variables(plain, 0), *variables(elastic, 0)})


def _host(peers: Peers, rank: int) -> str:
    for name, count in peers.sets:
        if rank < count:
            return f"<host {name}-{rank}>"
        rank -= count
    raise AssertionError("a rank beyond the last pod")


def _port(usual: int, rank: int = 0) -> str:
    return f"<port {usual} of {rank}>"


def _pytorch(peers: Peers, rank: int) -> dict[str, str]:
    host, port, size = _host(peers, 0), _port(PYTORCH_PORT), str(peers.size)
    found, processes = {"MASTER_ADDR": host, "MASTER_PORT": port}, str(peers.processes)
    if peers.elastic is None:
        return {
            **found,
            "WORLD_SIZE": size,
            "RANK": str(rank),
            # Of a process that is started without torchrun: one in each pod.
            "LOCAL_RANK": "0",
            "PET_NPROC_PER_NODE": processes,
            "PET_NODE_RANK": str(rank),
            "PET_NNODES": size,
            "PET_MASTER_ADDR": host,
            "PET_MASTER_PORT": port,
        }
    # Ranks and their number change with each pod that comes or goes: torchrun hands them out anew each time.
    least, most = peers.elastic
    return {
        **found,
        "PET_NPROC_PER_NODE": processes,
        "PET_NNODES": f"{least}:{most}",
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": f"{host}:{port}",
    }


def _tensorflow(peers: Peers, rank: int) -> dict[str, str]:
    cluster: dict[str, list[str]] = {}
    task: dict[str, str | int] = {}
    first = 0
    for name, count in peers.sets:
        # TensorFlow's word for the one that does the work of a master.
        role = "chief" if name == "master" else name
        ranks = range(first, first + count)
        cluster[role] = [f"{_host(peers, each)}:{_port(TENSORFLOW_PORT, each)}" for each in ranks]
        if rank in ranks:
            task = {"type": role, "index": rank - first}
        first += count
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task, "environment": "cloud"})}


def _xgboost(peers: Peers, rank: int) -> dict[str, str]:
    host, port, size = _host(peers, 0), _port(XGBOOST_PORT), str(peers.size)
    return {
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
        "WORLD_SIZE": size,
        "RANK": str(rank),
        # The tracker is started by the program of rank 0, and listens there.
        "DMLC_TRACKER_URI": host,
        "DMLC_TRACKER_PORT": port,
        "DMLC_NUM_WORKER": size,
        "DMLC_TASK_ID": str(rank),
    }


def _jax(peers: Peers, rank: int) -> dict[str, str]:
    host, port, size = _host(peers, 0), _port(JAX_PORT), str(peers.size)
    return {
        "JAX_COORDINATOR_ADDRESS": f"{host}:{port}",
        "JAX_NUM_PROCESSES": size,
        "JAX_PROCESS_ID": str(rank),
        "COORDINATOR_ADDRESS": host,
        "COORDINATOR_PORT": port,
        "NUM_PROCESSES": size,
        "PROCESS_ID": str(rank),
    }


_OF_FRAMEWORK: Final[dict[DistributedFramework, Callable[[Peers, int], dict[str, str]]]] = {
    "PyTorch": _pytorch,
    "TensorFlow": _tensorflow,
    "XGBoost": _xgboost,
    "JAX": _jax,
    # Its variables name files, which only the agent knows.
    "MPI": lambda _, __: {},
}
