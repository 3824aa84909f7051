"""Rows about workloads: one declaration per column (projections/columns.py). Pure.

They hold no references in circles, so the garbage collector need not look at them (`gc=False`): the projector keeps
tens of thousands.
"""

from datetime import datetime
from typing import Annotated, Any, ClassVar, Final

import msgspec

from events.phases import DesiredPhase, Phase
from events.workload.spec import PRIORITY_RANK
from projections.columns import Column, Public

_PHASES: Final = tuple(phase.value for phase in Phase)


class WorkloadRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One incarnation of a workload. GPU and CPU in thousandths, memory in bytes, times UTC.

    The order is that of the API's rows and exports.
    """

    id: Annotated[
        str,
        Column(key=True),
        Public("id", "ID", "UUID of this incarnation of the name.", place=99, searched=True),
    ]
    key: str
    """Of its subject in the log."""
    name: Annotated[
        str,
        Public("name", "NAME", "Unique among the living workloads of its project.", "always", 1, searched=True),
    ]
    requested_name: Annotated[
        str,
        Public("requestedName", "REQUESTED-NAME", "Name or prefix of a name that was asked for.", "csv"),
    ]
    type: Annotated[str, Public("type", "TYPE", "Kind of the workload, such as Training.")]
    project_id: Annotated[str, Public("projectId", "PROJECT-ID", "UUID of its project.", "csv")]
    project_name: ClassVar[Column[Any]] = Column(
        null=True, public=Public("projectName", "PROJECT", "Name of its project.", "always", 2, searched=True)
    )
    cluster_id: Annotated[str, Public("clusterId", "CLUSTER-ID", "UUID of the cluster that runs it.", "csv")]
    cluster_name: ClassVar[Column[Any]] = Column(
        null=True, public=Public("clusterName", "CLUSTER", "Name of the cluster that runs it.", searched=True)
    )
    submitted_by: Annotated[
        str,
        Public("submittedBy", "OWNER", "Subject of the token that submitted it.", "always", 6, searched=True),
    ]
    phase: Annotated[
        str,
        Public("phase", "PHASE", "What it is doing.", "always", 3, values=_PHASES, searched=True),
    ]
    phase_reason: Annotated[
        str, Public("phaseReason", "REASON", "Why it is in this phase, as a code.", empty_is_null=True)
    ]
    phase_message: Annotated[
        str,
        Public("phaseMessage", "WHY", "Why it is in this phase, as a sentence.", "always", 8, empty_is_null=True),
    ]
    desired_phase: Annotated[
        str,
        Public(
            "desiredPhase",
            "DESIRED",
            "What its owner wants of it.",
            values=tuple(phase.value for phase in DesiredPhase),
        ),
    ]
    phase_updated_at: Annotated[
        datetime, Public("phaseUpdatedAt", "PHASE-SINCE", "Since when it is in this phase.", "csv")
    ]
    queued: bool
    """Whether the scheduler has taken up the running attempt."""
    ended: bool
    """Completed or Failed: the column that keeps the index of what is still going on small."""
    created_at: Annotated[datetime, Public("createdAt", "CREATED", "When it was submitted.", "always", 7)]
    started_at: Annotated[datetime | None, Public("startedAt", "STARTED", "When its first pod began to run.")] = None
    completed_at: Annotated[datetime | None, Public("completedAt", "ENDED", "When it completed or failed.")] = None
    deleted_at: Annotated[datetime | None, Public("deletedAt", "DELETED", "When it was deleted.")] = None
    priority_class: Annotated[
        str,
        Public("priorityClassName", "PRIORITY", "One of the seven priorities.", values=tuple(PRIORITY_RANK)),
    ]
    priority_rank: Annotated[
        int,
        Public("priority", "", "Place of the priority, 0 for the least.", ranks=PRIORITY_RANK, only_asked_for=True),
    ]
    preemptibility: Annotated[str, Public("preemptibility", "PREEMPTIBILITY", "Whether the scheduler may preempt it.")]
    category: Annotated[str, Public("category", "CATEGORY", "As submitted.", empty_is_null=True)]
    image: Annotated[str, Public("image", "IMAGE", "As submitted.", empty_is_null=True, searched=True)]
    node_pools: Annotated[
        tuple[str, ...], Public("nodePools", "NODE-POOLS", "As submitted, the first preferred.", "csv")
    ]
    labels: Annotated[tuple[str, ...], Public("labels", "LABELS", "As submitted, each as `key=value`.", "csv")] = ()
    label_keys: tuple[str, ...] = ()
    current_node_pools: Annotated[
        tuple[str, ...],
        Public("currentNodePools", "POOLS", "Node pools that its pods are in now.", aliases=("nodepool",)),
    ] = ()
    current_nodes: Annotated[tuple[str, ...], Public("currentNodes", "NODES", "Nodes that its pods are on now.")] = ()
    running_pods: Annotated[int, Public("runningPods", "PODS", "How many pods run now.", "always", 4)] = 0
    live_pods: int = 0
    """Pods that hold a node."""
    requested_pods: Annotated[
        int, Public("requestedPods", "REQUESTED-PODS", "How many pods may live at a time.", "csv")
    ]
    completions: Annotated[int, Public("completions", "COMPLETIONS", "How many pods must succeed.", "csv")]
    parallelism: Annotated[int, Public("parallelism", "PARALLELISM", "As submitted, or its default.", "csv")]
    backoff_limit: int
    auto_deletion_seconds: int
    succeeded_pods: Annotated[int, Public("succeededPods", "RUNS", "How many pods have succeeded.")] = 0
    failed_runs: Annotated[
        int,
        Public("failedRuns", "FAILED-RUNS", "How many runs failed in this attempt; each spends a retry.", "csv"),
    ] = 0
    attempt: Annotated[int, Public("attempt", "ATTEMPT", "1 at first; rises with each resume.")] = 1
    pod_cpu_milli: int
    pod_memory_bytes: int
    gpu_request_milli: Annotated[
        int, Public("gpuRequest", "GPU-REQUEST", "GPUs of all pods that may live at a time.", "csv")
    ]
    gpu_allocated_milli: Annotated[
        int, Public("gpuAllocated", "GPU", "GPUs reserved now.", "always", 5, aliases=("allocatedGPU",))
    ] = 0
    gpu_memory_request_bytes: Annotated[
        int,
        Public(
            "gpuMemoryRequestBytes",
            "GPU-MEMORY",
            "GPU memory of all pods that may live at a time, where memory was asked for.",
            "csv",
        ),
    ]
    cpu_request_milli: Annotated[
        int, Public("cpuRequestCores", "CPU", "CPU cores of all pods that may live at a time.")
    ]
    cpu_allocated_milli: Annotated[
        int, Public("cpuAllocatedCores", "CPU-ALLOCATED", "CPU cores reserved now.", "csv")
    ] = 0
    memory_request_bytes: Annotated[
        int, Public("cpuMemoryRequestBytes", "MEMORY", "Memory of all pods that may live at a time.")
    ]
    memory_allocated_bytes: Annotated[
        int, Public("cpuMemoryAllocatedBytes", "MEMORY-ALLOCATED", "Memory reserved now.", "csv")
    ] = 0
    pending_micros: int = 0
    """Microseconds in phases in which it waits for a node, without the present one; likewise running."""
    running_micros: int = 0
    total_pending_seconds: ClassVar[Column[Any]] = Column(
        type="number",
        public=Public("totalPendingTimeSeconds", "WAITED", "Time spent waiting, in all attempts, up to now."),
    )
    total_running_seconds: ClassVar[Column[Any]] = Column(
        type="number",
        public=Public("totalRunningTimeSeconds", "RAN", "Time spent running, in all attempts, up to now."),
    )
    exit_code: Annotated[int | None, Public("exitCode", "EXIT", "Of the run that ended it; 0 where it completed.")] = (
        None
    )
    delete_at: Annotated[
        datetime | None, Public("autoDeleteAt", "DELETES", "When it will be deleted, once it has ended.")
    ] = None
    generation: int = 0
    """Of the auto-deletion."""
    version: Annotated[int, Public("version", "VERSION", "Rises with every change; what If-Match compares.")]
    """Sequence of its last commit."""


class PodRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One run of one pod: ended ones stay to be read."""

    workload_id: Annotated[str, Column(key=True)]
    pod_set: Annotated[str, Column(key=True)]
    index: Annotated[int, Column(key=True)]
    attempt: Annotated[int, Column(key=True)]
    try_: Annotated[int, Column(key=True)]
    phase: str
    """Pending, Bound, Starting, Running, Unknown or Stopping; ended: Succeeded, Failed, Interrupted or Stopped."""
    node_key: str = ""
    node_name: str = ""
    node_pool: str = ""
    devices: Annotated[str, Column(type="json")] = "[]"
    """JSON: [{"device", "milli"}]."""
    gpu_milli: int = 0
    token: int = 0
    interruptions: int = 0
    not_before: datetime | None = None
    bound_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    exit_code: int | None = None
    reason: str = ""
    message: str = ""


class DueRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An auto-deletion that waits for its time."""

    workload_id: Annotated[str, Column(key=True)]
    generation: int
    due_at: datetime


class HistoryRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One event in the life of a workload, in words."""

    workload_id: Annotated[str, Column(key=True)]
    seq: Annotated[int, Column(key=True)]
    index: Annotated[int, Column(key=True)]
    """Place of the event in its commit."""
    at: datetime
    type: str
    phase: str
    """After the event."""
    reason: str
    message: str
    """The sentence."""
    actor_id: str
    actor_kind: str
    details: Annotated[str, Column(type="json")]
    """JSON: the event's fields."""
