"""A distributed training: a master and workers, or workers only, placed together and told of each other.

Where there is a master, its end completes the workload; without one all workers must succeed. Any pod that fails is run
again, with the same index and so the same rank, as often as the backoff limit allows in all. With MPI the master is the
launcher. An elastic one starts with the workers that it needs at least, and grows by what is left over.
"""

from collections.abc import Mapping
from typing import Final, Literal

from msgspec.structs import replace

from events.workload.exposure import container_ports
from events.workload.fields.creation import DistributedCreation
from events.workload.fields.distribution import MOST_WORKERS, Distribution
from events.workload.fields.scheduling import DEFAULT_TRAINING_PRIORITY
from events.workload.kinds.kind import Kind
from events.workload.kinds.training import backoff_limit, stop_by, template, with_checkpoint
from events.workload.mpi import SSH_FOLDER, Mpi
from events.workload.pod_sets import PodSet
from events.workload.rendezvous import Peers
from events.workload.spec import (
    OF_WORKERS,
    WHOLE_GPU_MILLI,
    Beside,
    Distributed,
    DistributedSpec,
    MasterSpec,
    PodRequest,
    TrainingSpec,
    shown,
    with_defaults,
)
from events.workload.volumes import volumes, within

MASTER: Final = "master"
WORKER: Final = "worker"
_ALONE: Final = Distributed(distribution=Distribution(distributed_framework="PyTorch"), master=None)
"""Of a spec without any: what nobody decides, and an event may say all the same."""


def pod_sets(spec: TrainingSpec, beside: Beside) -> tuple[PodSet, ...]:
    distributed = _distributed(beside)
    distribution, master = distributed.distribution, distributed.master
    sizes = ((WORKER, min(max(workers(distribution), 1), MOST_WORKERS)),)
    if master is None:
        return (_pod_set(WORKER, spec, spec, distributed, sizes),)
    sizes = ((MASTER, 1), *sizes)
    return _pod_set(MASTER, master, spec, distributed, sizes), _pod_set(WORKER, spec, spec, distributed, sizes)


def workers(distribution: Distribution) -> int:
    """How many start together: of an elastic one as many as it needs at least."""
    return distribution.num_workers if distribution.min_replicas is None else distribution.min_replicas


def most_workers(distribution: Distribution) -> int:
    """How many it may grow to."""
    return distribution.num_workers if distribution.max_replicas is None else distribution.max_replicas


def completed(sets: tuple[PodSet, ...], succeeded: Mapping[str, int]) -> bool:
    """The master's end, where there is one; else that of all workers."""
    return succeeded.get(sets[0].name, 0) >= sets[0].count


def shown_spec(spec: TrainingSpec, beside: Beside) -> DistributedSpec:
    return shown(DistributedSpec, spec, _distributed(beside).distribution)


def _distributed(beside: Beside) -> Distributed:
    return beside if isinstance(beside, Distributed) else _ALONE


def shown_master(spec: TrainingSpec, distributed: Distributed | None) -> tuple[bool, MasterSpec | None]:
    """(whether there is a master that is made as the workers are, how one is made that is not)."""
    if distributed is None or distributed.master is None:
        return False, None
    master = shown(MasterSpec, distributed.master)
    if master == shown(MasterSpec, spec):
        return True, None
    # As it was asked for: null for what is the workers', such as volumes, which go where theirs go.
    return False, replace(master, **{name: None for name in OF_WORKERS if getattr(master, name) == getattr(spec, name)})


def _pod_set(
    name: str,
    own: TrainingSpec,
    workload: TrainingSpec,
    distributed: Distributed,
    sizes: tuple[tuple[str, int], ...],
) -> PodSet:
    """Args: own, what its pods are made of; workload, what holds for all pods; sizes, of all pod sets by rank."""
    distribution = distributed.distribution
    count = dict(sizes)[name]
    made = template(own, workload)
    pods = sum(each for _, each in sizes)
    growth = max(min(most_workers(distribution), MOST_WORKERS) - dict(sizes)[WORKER], 0)
    grows = name == WORKER and growth > 0
    elastic = distribution.min_replicas is not None or distribution.max_replicas is not None
    return PodSet(
        name=name,
        count=count,
        parallelism=count,
        minimum=count,
        wanted=distribution.num_workers if grows else 0,
        most=count + growth if grows else 0,
        template=with_checkpoint(
            replace(made, grace_seconds=workload.termination_grace_period_seconds, stop_by=stop_by(workload)),
            workload,
            pods + growth,
        ),
        peers=Peers(
            framework=distribution.distributed_framework,
            sets=sizes,
            first_rank=0 if name == sizes[0][0] else sizes[0][1],
            processes=_processes(made.request),
            elastic=(pods, pods + growth) if elastic else None,
            mpi=_mpi(name, workload, distributed, dict(sizes)[WORKER]),
        ),
        starts_after=WORKER if name == MASTER and _waits_for_workers(distribution) else "",
        outlives=distribution.clean_pod_policy == "None",
        node_pools=workload.node_pools,
        pod_affinity=workload.pod_affinity,
        # The master, where there is one, is where people look.
        ports=container_ports(workload.exposed_urls, workload.ports) if name == sizes[0][0] else (),
    )


def _mpi(name: str, workers_spec: TrainingSpec, distributed: Distributed, count: int) -> Mpi | None:
    distribution = distributed.distribution
    if distribution.distributed_framework != "MPI":
        return None
    role: Literal["launcher", "worker"] = "launcher" if name == MASTER else "worker"
    return Mpi(
        role=role,
        workers=count,
        slots=distribution.slots_per_worker or 1,
        ssh=distribution.ssh_auth_mount_path or _usual_ssh_folder(workers_spec, distributed.master),
        serves=not (workers_spec.command or workers_spec.args),
    )


def _usual_ssh_folder(spec: TrainingSpec, master: TrainingSpec | None) -> str:
    """None where a volume of the workload is there, or its checkpoint folder: it brings keys of its own."""
    of_master = () if master is None else volumes(master.storage)
    places = [volume.mount_path for volume in (*volumes(spec.storage), *of_master)]
    if spec.checkpoint is not None:
        places.append(spec.checkpoint.path)
    return "" if any(within(place, SSH_FOLDER) for place in places) else SSH_FOLDER


def _waits_for_workers(distribution: Distribution) -> bool:
    with_mpi = distribution.distributed_framework == "MPI"
    return with_mpi and distribution.mpi_launcher_creation_policy == "WaitForWorkersReady"


def _processes(request: PodRequest) -> int:
    return max(request.gpu_devices, 1) if request.gpu_milli == WHOLE_GPU_MILLI else 1


DISTRIBUTED: Final = Kind(
    name="Distributed",
    kubernetes_name="DistributedWorkload",
    collection="distributed",
    priority=DEFAULT_TRAINING_PRIORITY,
    creation=DistributedCreation,
    shown=shown_spec,
    with_defaults=with_defaults,
    pod_sets=pod_sets,
    completed=completed,
    backoff_limit=backoff_limit,
)
