"""Rows about workloads: one declaration per column (projections/columns.py). Pure, and light: the command line
reads it.

They hold no references in circles, so the garbage collector need not look at them (`gc=False`): the projector keeps
tens of thousands.
"""

from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, get_args

import msgspec

from events.ids import ANY_CLUSTER
from events.phases import PHASE_REASONS, DesiredPhase, Phase
from events.workload.fields.distribution import DistributedFramework
from events.workload.kinds import KINDS
from events.workload.spec import PRIORITY_RANK
from projections.columns import Column, Public
from projections.values import clean, fit, indexed, to_json

if TYPE_CHECKING:
    from projections.workloads.facts import RunFacts, WorkloadFacts

    _Column = Column[WorkloadFacts]
    _OfRun = Column[RunFacts]
else:
    _Column = _OfRun = Column

PhaseReason: Final = StrEnum("PhaseReason", {reason.upper(): reason for reason in PHASE_REASONS})
Framework: Final = StrEnum("Framework", {word.upper(): word for word in get_args(DistributedFramework)})
STANDARD: Final = "Standard"
DISTRIBUTED: Final = "Distributed"
GUARANTEED: Final = "unlimited"
NOT_GUARANTEED: Final = "none"
Priority: Final = StrEnum("Priority", {word.upper(): word for word in PRIORITY_RANK})


class WorkloadRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One incarnation of a workload. GPU and CPU in thousandths, memory in bytes, times UTC.

    The order is that of the API's rows and exports.
    """

    id: Annotated[
        str,
        _Column(lambda w: w.state.workload_id, key=True),
        Public("id", "ID", "UUID of this incarnation of the name.", place=99, searched=True),
    ]
    key: Annotated[str, _Column(lambda w: w.key)]
    """Of its subject in the log."""
    name: Annotated[
        str,
        _Column(lambda w: indexed(w.state.name)),
        Public("name", "NAME", "Unique among the living workloads of its project.", "always", 1, searched=True),
    ]
    requested_name: Annotated[
        str,
        _Column(lambda w: clean(w.state.requested_name)),
        Public("requestedName", "REQUESTED-NAME", "Name in the request, or the given prefix of the name.", "csv"),
    ]
    type: Annotated[
        str,
        _Column(lambda w: clean(w.state.kind)),
        Public(
            "type",
            "TYPE",
            "Kind of the workload, such as Training.",
            "always",
            2,
            values=tuple(KINDS),
            synonyms={kind.kubernetes_name: kind.name for kind in KINDS.values()},
        ),
    ]
    distributed_framework: Annotated[
        str,
        _Column(lambda w: w.asked.framework),
        Public(
            "distributedFramework",
            "FRAMEWORK",
            "Framework of a distributed training.",
            empty_is_null=True,
            values=Framework,
        ),
    ]
    project_id: Annotated[
        str,
        _Column(lambda w: indexed(w.state.project_id), often=True),
        Public("projectId", "PROJECT-ID", "UUID of its project.", "csv"),
    ]
    project_name: ClassVar[Column[Any]] = Column(
        null=True, public=Public("projectName", "PROJECT", "Name of its project.", "always", 2, searched=True)
    )
    department_id: ClassVar[Column[Any]] = Column(
        null=True, public=Public("departmentId", "DEPARTMENT-ID", "UUID of the department of its project.", "csv")
    )
    department_name: ClassVar[Column[Any]] = Column(
        null=True, public=Public("departmentName", "DEPARTMENT", "Name of the department of its project.")
    )
    cluster_id: Annotated[
        str,
        _Column(lambda w: clean(w.state.cluster_id) or ANY_CLUSTER),
        Public("clusterId", "CLUSTER-ID", "UUID of the cluster that runs it; only zeros while none is chosen.", "csv"),
    ]
    cluster_name: ClassVar[Column[Any]] = Column(
        null=True, public=Public("clusterName", "CLUSTER", "Name of the cluster that runs it.", searched=True)
    )
    cluster_lost_since: ClassVar[Column[Any]] = Column(
        type="time",
        null=True,
        public=Public(
            "clusterLostSince",
            "LOST-SINCE",
            "Since when the cluster of its pods is lost: it does not report, or its agent cannot work with it, so "
            "nobody knows whether they still run. Null where its cluster reports, and where none of its pods "
            "holds a node.",
        ),
    )
    submitted_by: Annotated[
        str,
        _Column(lambda w: indexed(w.state.owner)),
        Public(
            "submittedBy",
            "OWNER",
            "Subject of its owner: who submitted it, or was given it since.",
            "always",
            6,
            searched=True,
        ),
    ]
    phase: Annotated[
        str,
        _Column(lambda w: w.state.phase.value, often=True),
        Public("phase", "PHASE", "Current phase.", "always", 3, values=Phase, searched=True),
    ]
    phase_reason: Annotated[
        str,
        _Column(lambda w: clean(w.state.reason), often=True),
        Public("phaseReason", "REASON", "Code of the reason for the phase.", empty_is_null=True, values=PhaseReason),
    ]
    phase_message: Annotated[
        str,
        _Column(lambda w: clean(w.state.message) or w.warning, often=True),
        Public("phaseMessage", "WHY", "The reason for the phase, as a sentence.", "always", 8, empty_is_null=True),
    ]
    desired_phase: Annotated[
        str,
        _Column(lambda w: w.state.desired.value, often=True),
        Public(
            "desiredPhase",
            "DESIRED",
            "The phase that its users want.",
            values=DesiredPhase,
        ),
    ]
    phase_updated_at: Annotated[
        datetime,
        _Column(lambda w: w.spent.phase_updated_at, often=True),
        Public("phaseUpdatedAt", "PHASE-SINCE", "When it entered this phase.", "csv"),
    ]
    created_at: Annotated[
        datetime,
        _Column(lambda w: w.state.created_at),
        Public("createdAt", "CREATED", "When it was submitted.", "always", 7),
    ]
    started_at: Annotated[
        datetime | None,
        _Column(lambda w: w.spent.started_at, often=True),
        Public("startedAt", "STARTED", "When its first pod began to run."),
    ] = None
    completed_at: Annotated[
        datetime | None,
        _Column(lambda w: w.state.completed_at, often=True),
        Public("completedAt", "ENDED", "When it completed or failed."),
    ] = None
    deleted_at: Annotated[
        datetime | None,
        _Column(lambda w: w.state.deleted_at, often=True),
        Public("deletedAt", "DELETED", "When it was deleted."),
    ] = None
    priority_class: Annotated[
        str,
        _Column(lambda w: w.asked.priority_class),
        Public("priorityClassName", "PRIORITY", "Priority class.", values=Priority),
    ]
    priority_rank: Annotated[
        int,
        _Column(lambda w: PRIORITY_RANK[w.asked.priority_class]),
        Public("priority", "", "Place of the priority, 0 for the least.", ranks=PRIORITY_RANK, only_asked_for=True),
    ]
    preemptibility: Annotated[
        str,
        _Column(lambda w: w.asked.preemptibility),
        Public("preemptibility", "PREEMPTIBILITY", "Whether the scheduler may preempt it."),
    ]
    category: Annotated[
        str,
        _Column(lambda w: w.asked.category),
        Public("category", "CATEGORY", "Category in the spec.", empty_is_null=True),
    ]
    image: Annotated[
        str,
        _Column(lambda w: w.asked.image),
        Public("image", "IMAGE", "Image in the spec.", empty_is_null=True, searched=True),
    ]
    environment: Annotated[
        str,
        _Column(lambda w: w.asked.environment),
        Public(
            "environment",
            "ENVIRONMENT",
            "Name of the environment that it was made from.",
            empty_is_null=True,
        ),
    ]
    architecture: Annotated[
        str,
        _Column(lambda w: DISTRIBUTED if w.state.distributed is not None else STANDARD),
        Public(
            "architecture",
            "ARCHITECTURE",
            "Distributed: its pods work together. Standard: each by itself.",
            values=(STANDARD, DISTRIBUTED),
        ),
    ]
    connections: Annotated[
        tuple[str, ...],
        _Column(lambda w: w.asked.connections),
        Public("connections", "CONNECTIONS", "Exposed URLs and ports, each as `name=type`."),
    ] = ()
    data_sources: Annotated[
        tuple[str, ...],
        _Column(lambda w: w.asked.data_sources),
        Public(
            "dataSources",
            "DATA-SOURCES",
            "Volumes that hold data, each as `name=kind`; of one without a name, where pods find it.",
        ),
    ] = ()
    node_pools: Annotated[
        tuple[str, ...],
        _Column(lambda w: w.asked.node_pools),
        Public("nodePools", "NODE-POOLS", "Node pools in the spec, the preferred one first.", "csv"),
    ]
    labels: Annotated[
        tuple[str, ...],
        _Column(lambda w: w.asked.labels),
        Public("labels", "LABELS", "Labels in the spec, each as `key=value`.", "csv"),
    ] = ()
    label_keys: Annotated[tuple[str, ...], _Column(lambda w: w.asked.label_keys)] = ()
    current_node_pools: Annotated[
        tuple[str, ...],
        _Column(lambda w: w.current_node_pools, often=True),
        Public("currentNodePools", "POOLS", "Node pools that its pods are in now.", aliases=("nodepool",)),
    ] = ()
    current_nodes: Annotated[
        tuple[str, ...],
        _Column(lambda w: w.current_nodes, often=True),
        Public("currentNodes", "NODES", "Nodes that its pods are on now."),
    ] = ()
    running_pods: Annotated[
        int,
        _Column(lambda w: w.pods.running, often=True),
        Public("runningPods", "PODS", "Number of pods that are running.", "always", 4),
    ] = 0
    live_pods: Annotated[int, _Column(lambda w: w.pods.live.size, often=True)] = 0
    """Pods that hold a node."""
    requested_pods: Annotated[
        int,
        _Column(lambda w: w.asked.pods),
        Public(
            "requestedPods",
            "REQUESTED-PODS",
            "Number of pods that may exist at the same time; of an elastic training those that it starts with.",
            "csv",
        ),
    ]
    most_pods: Annotated[
        int,
        _Column(lambda w: w.asked.most_pods),
        Public(
            "mostPods",
            "MOST-PODS",
            "Number of pods that an elastic training may grow to; otherwise the same as the requested pods.",
            "csv",
        ),
    ]
    completions: Annotated[
        int,
        _Column(lambda w: w.asked.completions),
        Public("completions", "COMPLETIONS", "Number of pods that must succeed.", "csv", aliases=("requestedRuns",)),
    ]
    parallelism: Annotated[
        int,
        _Column(lambda w: w.asked.parallelism),
        Public("parallelism", "PARALLELISM", "Number of pods that may run at the same time.", "csv"),
    ]
    backoff_limit: Annotated[int, _Column(lambda w: w.asked.backoff_limit)]
    auto_deletion_seconds: Annotated[int, _Column(lambda w: w.asked.auto_deletion_seconds)]
    succeeded_pods: Annotated[
        int,
        _Column(lambda w: w.state.succeeded, often=True),
        Public("succeededPods", "RUNS", "Number of pods that have succeeded."),
    ] = 0
    failed_runs: Annotated[
        int,
        _Column(lambda w: w.state.failures, often=True),
        Public("failedRuns", "FAILED-RUNS", "Number of failed runs in this attempt. Each uses a retry.", "csv"),
    ] = 0
    attempt: Annotated[
        int,
        _Column(lambda w: w.state.attempt, often=True),
        Public("attempt", "ATTEMPT", "Number of the attempt, from 1. It rises with each resume."),
    ] = 1
    pod_cpu_milli: Annotated[int, _Column(lambda w: w.asked.pod_cpu_milli)]
    pod_memory_bytes: Annotated[int, _Column(lambda w: w.asked.pod_memory_bytes)]
    gpu_request_milli: Annotated[
        int,
        _Column(lambda w: w.asked.gpu_milli),
        Public("gpuRequest", "GPU-REQUEST", "GPUs that all pods at the same time request.", "csv"),
    ]
    gpu_allocated_milli: Annotated[
        int,
        _Column(lambda w: fit(w.pods.gpu_milli), often=True),
        Public("gpuAllocated", "GPU", "GPUs reserved now.", "always", 5, aliases=("allocatedGPU",)),
    ] = 0
    gpu_memory_request_bytes: Annotated[
        int,
        _Column(lambda w: w.asked.gpu_memory_bytes),
        Public(
            "gpuMemoryRequestBytes",
            "GPU-MEMORY",
            "GPU memory that all pods at the same time request.",
            "csv",
        ),
    ]
    gpu_memory_allocated_bytes: Annotated[
        int,
        _Column(lambda w: fit(w.pods.gpu_memory_bytes), often=True),
        Public(
            "gpuMemoryAllocatedBytes",
            "GPU-MEMORY-ALLOCATED",
            "GPU memory reserved now: its share of each GPU that it holds. 0 where nobody knows their memory.",
        ),
    ] = 0
    idle_gpus: ClassVar[Column[Any]] = Column(
        type="integer",
        null=True,
        public=Public(
            "idleGpus",
            "IDLE-GPUS",
            "GPUs reserved now that have computed nothing for more than five minutes. Null where none of them is "
            "measured, and of the past.",
            aliases=("idleAllocatedGpus",),
        ),
    )
    checkpoint_at: Annotated[
        datetime | None,
        _Column(lambda w: w.state.checkpoint_at, often=True),
        Public(
            "checkpointAt",
            "CHECKPOINT",
            "When the newest file of its checkpoint folder was changed. Null where it has no such folder, no file is "
            "in it, or its cluster cannot look: on Kubernetes the agent needs the rights for `muster exec`. It may be "
            "up to ten minutes behind.",
        ),
    ] = None
    work_at_risk: ClassVar[Column[Any]] = Column(
        type="number",
        null=True,
        public=Public(
            "workAtRisk",
            "AT-RISK-GPU-H",
            "GPU-hours that its runs have worked since its checkpoint, or since they began: what an eviction would "
            "lose now. Null of an inference, and of the past.",
        ),
    )
    lost_gpu_hours_milli: Annotated[
        int,
        _Column(lambda w: fit(w.state.gpu_milli_seconds_lost // 3600), often=True),
        Public(
            "lostGpuHours",
            "LOST-GPU-H",
            "GPU-hours that runs which were evicted or interrupted had worked since their last checkpoint.",
        ),
    ] = 0
    guaranteed_time_left: Annotated[
        str,
        _Column(lambda w: GUARANTEED if w.asked.preemptibility == "non-preemptible" else NOT_GUARANTEED),
        Public(
            "guaranteedTimeLeft",
            "GUARANTEED-TIME",
            "How long it may keep its nodes, by its own preemptibility alone: unlimited while it is non-preemptible, "
            "else none. A minimum runtime of its project or department is not counted: explain says until when that "
            "holds.",
            values=(GUARANTEED, NOT_GUARANTEED),
        ),
    ]
    cpu_request_milli: Annotated[
        int,
        _Column(lambda w: w.asked.cpu_milli),
        Public("cpuRequestCores", "CPU", "CPU cores that all pods at the same time request."),
    ]
    cpu_allocated_milli: Annotated[
        int,
        _Column(lambda w: fit(w.held_of(lambda asked: asked.cpu_milli)), often=True),
        Public("cpuAllocatedCores", "CPU-ALLOCATED", "CPU cores reserved now.", "csv"),
    ] = 0
    memory_request_bytes: Annotated[
        int,
        _Column(lambda w: w.asked.memory_bytes),
        Public("cpuMemoryRequestBytes", "MEMORY", "Memory that all pods at the same time request."),
    ]
    memory_allocated_bytes: Annotated[
        int,
        _Column(lambda w: fit(w.held_of(lambda asked: asked.memory_bytes)), often=True),
        Public("cpuMemoryAllocatedBytes", "MEMORY-ALLOCATED", "Memory reserved now.", "csv"),
    ] = 0
    pending_micros: Annotated[int, _Column(lambda w: w.spent.pending_micros, often=True)] = 0
    """Microseconds in phases in which it waits for a node, without the present one; likewise running."""
    running_micros: Annotated[int, _Column(lambda w: w.spent.running_micros, often=True)] = 0
    total_pending_seconds: ClassVar[Column[Any]] = Column(
        type="number",
        public=Public("totalPendingTimeSeconds", "WAITED", "Time that it has waited, in all attempts."),
    )
    total_running_seconds: ClassVar[Column[Any]] = Column(
        type="number",
        public=Public("totalRunningTimeSeconds", "RAN", "Time that it has run, in all attempts."),
    )
    exit_code: Annotated[
        int | None,
        _Column(lambda w: w.spent.exit_code, often=True),
        Public("exitCode", "EXIT", "Exit code of the run that ended it; 0 if it completed."),
    ] = None
    delete_at: Annotated[
        datetime | None,
        _Column(lambda w: w.state.delete_at, often=True),
        Public("autoDeleteAt", "DELETES", "When it will be deleted, once it has ended."),
    ] = None
    generation: Annotated[int, _Column(lambda w: w.state.generation, often=True)] = 0
    """Of the auto-deletion."""
    version: Annotated[
        int,
        _Column(lambda w: w.version, often=True),
        Public("version", "VERSION", "Rises with every change. `If-Match` is compared with it."),
    ]
    """Sequence of its last commit."""


class PodRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One run of one pod: ended ones stay to be read."""

    workload_id: Annotated[str, _OfRun(lambda r: r.workload_id, key=True)]
    pod_set: Annotated[str, _OfRun(lambda r: indexed(r.pod_set), key=True)]
    index: Annotated[int, _OfRun(lambda r: r.index, key=True)]
    attempt: Annotated[int, _OfRun(lambda r: r.pod.attempt, key=True)]
    try_: Annotated[int, _OfRun(lambda r: r.pod.try_, key=True)]
    phase: Annotated[str, _OfRun(lambda r: r.pod.phase.value if r.end is None else r.end.phase)]
    """Pending, Bound, Starting, Running, Unknown or Stopping; ended: Succeeded, Failed, Interrupted or Stopped."""
    node_key: Annotated[str, _OfRun(lambda r: clean(r.pod.node_key))] = ""
    node_name: Annotated[str, _OfRun(lambda r: clean(r.pod.node_name))] = ""
    node_pool: Annotated[str, _OfRun(lambda r: clean(r.pod.pool))] = ""
    devices: Annotated[str, _OfRun(lambda r: to_json(r.pod.devices), type="json")] = "[]"
    """JSON: [{"device", "milli"}]."""
    gpu_milli: Annotated[int, _OfRun(lambda r: fit(sum(share.milli for share in r.pod.devices)))] = 0
    gpu_model: Annotated[str, _OfRun(lambda r: clean(r.pod.gpu_model))] = ""
    """Of its devices; empty if unknown."""
    token: Annotated[int, _OfRun(lambda r: r.pod.token)] = 0
    interruptions: Annotated[int, _OfRun(lambda r: r.pod.interruptions)] = 0
    not_before: Annotated[datetime | None, _OfRun(lambda r: r.pod.not_before)] = None
    bound_at: Annotated[datetime | None, _OfRun(lambda r: r.told.bound_at)] = None
    started_at: Annotated[datetime | None, _OfRun(lambda r: r.told.started_at)] = None
    finished_at: Annotated[datetime | None, _OfRun(lambda r: r.end and r.end.at)] = None
    exit_code: Annotated[int | None, _OfRun(lambda r: r.end and r.end.exit_code)] = None
    reason: Annotated[str, _OfRun(lambda r: r.told.reason)] = ""
    message: Annotated[str, _OfRun(lambda r: r.told.message)] = ""


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
