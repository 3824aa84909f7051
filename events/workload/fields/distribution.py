"""How the pods of a distributed training divide into a master and workers, and find each other."""

from typing import Annotated, ClassVar, Final, Literal

from events.fields.declare import About, Section
from events.fields.values import Int32

DistributedFramework = Literal["PyTorch", "TensorFlow", "XGBoost", "JAX"]
CleanPodPolicy = Literal["None", "All", "Running"]
MOST_WORKERS: Final = 499
"""With a master a gang of 500, which is bound in one atomic step."""


class Distribution(Section, frozen=True, kw_only=True):
    """Framework, workers, what becomes of pods at the end."""

    TITLE: ClassVar[str] = "Distribution"

    distributed_framework: Annotated[DistributedFramework, About(rows="S063 C13", example="PyTorch")]
    """Framework whose variables the pods get, so that they find each other: PyTorch, TensorFlow, XGBoost or JAX.
    Mandatory.
    """
    num_workers: Annotated[Int32, About(rows="S065", flag="--workers")] = 1
    """Number of workers, 1 to 499; a master comes on top. Default: 1."""
    min_replicas: Annotated[Int32 | None, About(rows="S065", flag="--min-replicas")] = None
    """Elastic PyTorch: number of workers that it needs at least. So many run. Default: numWorkers."""
    max_replicas: Annotated[Int32 | None, About(rows="S065", flag="--max-replicas")] = None
    """Elastic PyTorch: number of workers that it may grow to. Not in force yet. Default: minReplicas."""
    clean_pod_policy: Annotated[CleanPodPolicy, About(rows="S063", flag="--clean-pod-policy")] = "Running"
    """What becomes of pods that still run when it completes or fails. Running and All: they are stopped. None: they
    run until they end by themselves, or until it is deleted. Default: Running.
    """
