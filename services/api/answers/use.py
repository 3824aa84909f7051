"""Who uses what now. Pure."""

from events.phases import Phase
from services.api.answers.forms import Form


class Amounts(Form, frozen=True, kw_only=True):
    """GPUs, CPU and memory of nodes."""

    gpus: float
    """GPUs, with shares of them as fractions."""
    gpu_memory_bytes: int
    """Memory of these GPUs, or of the shares; 0 for GPUs whose memory is not known."""
    cpu_cores: float
    """CPU cores."""
    memory_bytes: int
    """Memory in bytes."""


class Allocated(Amounts, frozen=True, kw_only=True):
    """What nodes reserve for pods, by the scheduler's own count: from the moment that a pod gets its node until it is
    gone and released. So a pod that is being stopped counts; a workload that waits, is suspended or has ended does not.
    """

    non_preemptible_gpus: float
    """GPUs of these that non-preemptible workloads hold: what counts against a project's quota."""


class Used(Form, frozen=True, kw_only=True):
    """What the pods really used, by the newest measurement of each in the last two minutes."""

    pods: int
    """Number of pods that were measured. The other numbers are of these only."""
    gpu_utilization_percent: float | None
    """How busy the GPUs are, on average. Null if no GPU was measured."""
    gpu_memory_bytes: int | None
    """GPU memory in use. Null if no GPU was measured."""
    cpu_cores: float
    """CPU cores in use."""
    memory_bytes: int
    """Memory in use."""


class UseSum(Form, frozen=True, kw_only=True):
    """What some workloads use now."""

    running: int
    """Number of workloads that have nodes: they are Initializing, Running or Unknown."""
    pending: int | None
    """Number of workloads that wait for nodes: they are Creating, Pending or Resuming. Null for pools and nodes."""
    ending: int
    """Number of workloads that are stopped, deleted or finished, and whose pods still hold something."""
    pods: int
    """Number of pods that hold something."""
    allocated: Allocated
    """What is reserved for these pods."""
    used: Used | None
    """What these pods really used. Null if none was measured."""
    capacity: Amounts | None
    """What the nodes have, for anybody. Null for projects, users and workloads."""
    free: Amounts | None
    """What of the capacity nobody holds, on nodes that take new pods. Null for projects, users and workloads."""


class UseRow(UseSum, frozen=True, kw_only=True):
    """What one project, user, node pool, node or workload uses now."""

    name: str
    """Name of the project, node pool, node or workload; subject of the user."""
    id: str | None
    """Id of the project or workload. Null for others."""
    gpu_quota: float | None
    """GPUs that non-preemptible workloads of the project may hold. Null: no limit, or not a project."""
    cluster_name: str | None
    """Cluster of the node pool, node or workload."""
    project_name: str | None
    """Project of the workload."""
    submitted_by: str | None
    """Who submitted the workload."""
    phase: Phase | None
    """What the workload is doing."""


class UseNow(Form, frozen=True, kw_only=True):
    """Who uses what now, as far as the caller may read. Capacity and what is free are of everybody's nodes."""

    rows: list[UseRow]
    """Sums, in the order that was asked for."""
    total: UseSum
    """The sum of everything that the filters leave."""
    next: int | None
    """Offset of the next page. Null if this is the last."""
