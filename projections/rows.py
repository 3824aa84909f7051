"""Rows of the projection tables as values. Fields stand in the order of the table's columns (tables.py). Pure.

They hold no references in circles, so the garbage collector need not look at them (`gc=False`): the projector keeps
tens of thousands.
"""

from datetime import datetime

import msgspec


class WorkloadRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One incarnation of a workload. GPU and CPU in thousandths, memory in bytes, times UTC."""

    id: str
    key: str
    """Of its subject in the log."""
    version: int
    """Sequence of its last commit."""
    name: str
    requested_name: str
    type: str
    project_id: str
    cluster_id: str
    submitted_by: str
    phase: str
    phase_reason: str
    phase_message: str
    phase_updated_at: datetime
    desired_phase: str
    queued: bool
    """Whether the scheduler has taken up the running attempt."""
    ended: bool
    """Completed or Failed: the column that keeps the index of what is still going on small."""
    created_at: datetime
    started_at: datetime | None = None
    """When its first pod began to run."""
    completed_at: datetime | None = None
    deleted_at: datetime | None = None
    priority_class: str
    priority_rank: int
    """Place of the class among the seven, 0 for the least."""
    preemptibility: str
    category: str
    image: str
    node_pools: tuple[str, ...]
    """Asked for, in order."""
    completions: int
    parallelism: int
    backoff_limit: int
    auto_deletion_seconds: int
    requested_pods: int
    """How many run at once when everything has its place."""
    pod_cpu_milli: int
    pod_memory_bytes: int
    gpu_request_milli: int
    """Of all requested pods together; likewise the three below."""
    gpu_memory_request_bytes: int
    cpu_request_milli: int
    memory_request_bytes: int
    attempt: int = 1
    failed_runs: int = 0
    """Of this attempt, counted against the backoff limit."""
    succeeded_pods: int = 0
    running_pods: int = 0
    live_pods: int = 0
    """Pods that hold a node."""
    current_nodes: tuple[str, ...] = ()
    current_node_pools: tuple[str, ...] = ()
    gpu_allocated_milli: int = 0
    cpu_allocated_milli: int = 0
    memory_allocated_bytes: int = 0
    pending_micros: int = 0
    """Microseconds in phases in which it waits for a node, without the present one; likewise running."""
    running_micros: int = 0
    exit_code: int | None = None
    delete_at: datetime | None = None
    generation: int = 0
    """Of the auto-deletion."""


class PodRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One run of one pod: ended ones stay to be read."""

    workload_id: str
    pod_set: str
    index: int
    attempt: int
    try_: int
    phase: str
    """Pending, Bound, Starting, Running, Unknown or Stopping; ended: Succeeded, Failed, Interrupted or Stopped."""
    node_key: str = ""
    node_name: str = ""
    node_pool: str = ""
    devices: str = "[]"
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

    workload_id: str
    generation: int
    due_at: datetime


class HistoryRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One event in the life of a workload, in words."""

    workload_id: str
    seq: int
    index: int
    """Place of the event in its commit."""
    at: datetime
    type: str
    phase: str
    """After the event."""
    reason: str
    message: str
    """The sentence."""
    actor_iss: str
    actor_sub: str
    actor_kind: str
    details: str
    """JSON: the event's fields."""


class NodeRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    key: str
    version: int
    cluster_id: str
    name: str
    present: bool
    pool: str
    ready: bool
    unschedulable: bool
    cpu_milli: int
    memory_bytes: int
    gpu_count: int
    gpu_model: str
    gpu_memory_bytes: int
    max_pods: int
    foreign_cpu_milli: int
    foreign_memory_bytes: int
    foreign_gpus: int
    foreign_pods: int
    stand_in: bool
    labels: str
    """JSON object."""
    taints: str
    """JSON: [{"key", "value", "effect"}]."""
    used_cpu_milli: int = 0
    used_memory_bytes: int = 0
    used_device_milli: tuple[int, ...] = ()
    """Reserved share of each device, in thousandths."""
    reserved_pods: int = 0


class ReservationRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one run of a pod holds of a node."""

    node_key: str
    id: str
    workload_id: str
    workload_key: str
    cpu_milli: int
    memory_bytes: int
    devices: str
    """JSON: [{"device", "milli"}]."""


class ClusterRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    id: str
    version: int
    name: str
    kind: str
    created_at: datetime
    removed: bool = False
    connected: bool = False
    connection_changed_at: datetime | None = None
    problem: str = ""
    """Why it is disconnected, as its agent said."""
    agent_version: str = ""
    protection_reported: bool | None = None
    protection_set: bool = False
    node_pools: str = "{}"
    """JSON object: name to {"name", "label_key", "label_value"}."""


class ProjectRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    id: str
    version: int
    name: str
    created_at: datetime
    gpu_quota_milli: int | None = None
    node_pools: tuple[str, ...] = ()
    roles: str = "{}"
    """JSON object: subject to [role]."""


class UseRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the workloads of one project in one phase hold; rows of zeros may stay."""

    project_id: str
    phase: str
    workloads: int = 0
    pods: int = 0
    gpu_milli: int = 0
    non_preemptible_gpu_milli: int = 0
    cpu_milli: int = 0
    memory_bytes: int = 0
