"""How the pods of a distributed training divide into a master and workers, and find each other."""

from typing import Annotated, ClassVar, Final, Literal

from msgspec.structs import replace

from events.fields.declare import About, Section
from events.fields.values import FilePath, Int32

DistributedFramework = Literal["PyTorch", "TensorFlow", "XGBoost", "JAX", "MPI"]
LauncherCreationPolicy = Literal["AtStartup", "WaitForWorkersReady"]
CleanPodPolicy = Literal["None", "All", "Running"]
MOST_WORKERS: Final = 499
"""With a master a gang of 500, which is bound in one atomic step."""


class Distribution(Section, frozen=True, kw_only=True):
    """Framework, workers, what becomes of pods at the end."""

    TITLE: ClassVar[str] = "Distribution"

    distributed_framework: Annotated[DistributedFramework, About(rows="S063 C13", example="PyTorch")]
    """Framework whose variables the pods get, so that they find each other: PyTorch, TensorFlow, XGBoost, JAX
    or MPI. Mandatory.
    """
    num_workers: Annotated[Int32, About(rows="S065", flag="--workers")] = 1
    """Number of workers, 1 to 499; a master comes on top. Elastic PyTorch: number that it would like to have. It starts
    with minReplicas, and has so many before others grow beyond theirs. Default: 1.
    """
    min_replicas: Annotated[Int32 | None, About(rows="S065", flag="--min-replicas")] = None
    """Elastic PyTorch: number of workers that it needs at least. It starts once all of these have a place, grows by
    what is left over, and gives that up again before it is evicted. Default: numWorkers.
    """
    max_replicas: Annotated[Int32 | None, About(rows="S065", flag="--max-replicas")] = None
    """Elastic PyTorch: number of workers that it may grow to while nobody waits for the place. Default: numWorkers."""
    slots_per_worker: Annotated[Int32 | None, About(rows="S065", flag="--slots-per-worker")] = None
    """MPI: processes that each worker has room for, 1 to 1024, as the launcher's host file says. Default: 1."""
    mpi_launcher_creation_policy: Annotated[
        LauncherCreationPolicy | None, About(rows="S063", flag="--mpi-launcher-creation-policy")
    ] = None
    """MPI: when the launcher, which is the master, starts. AtStartup: with the workers. WaitForWorkersReady: once all
    workers run and are ready. It has its node from the beginning. Default: AtStartup.
    """
    ssh_auth_mount_path: Annotated[FilePath | None, About(rows="S063", flag="--ssh-auth-mount-path")] = None
    """MPI on Kubernetes: folder in which launcher and workers find the keys with which ssh lets them in. Each attempt
    has other ones. Default: /root/.ssh, unless a volume of the workload is there.
    """
    clean_pod_policy: Annotated[CleanPodPolicy, About(rows="S063", flag="--clean-pod-policy")] = "Running"
    """What becomes of pods that still run when it completes or fails. Running and All: they are stopped. None: they
    run until they end by themselves, or until it is deleted. Default: Running.
    """


def with_distribution_defaults(distribution: Distribution) -> Distribution:
    """Those that depend on the framework: only MPI has slots and a launcher."""
    if distribution.distributed_framework != "MPI":
        return distribution
    return replace(
        distribution,
        slots_per_worker=distribution.slots_per_worker or 1,
        mpi_launcher_creation_policy=distribution.mpi_launcher_creation_policy or "AtStartup",
    )
