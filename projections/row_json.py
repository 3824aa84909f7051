"""Rows as the JSON of the public API: camelCase, units last, times RFC 3339 in UTC."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, cast

Json = dict[str, Any]
Row = Mapping[Any, Any]

_SAME: Final[dict[str, str]] = {
    "id": "id",
    "name": "name",
    "requestedName": "requested_name",
    "type": "type",
    "projectId": "project_id",
    "projectName": "project_name",
    "clusterId": "cluster_id",
    "clusterName": "cluster_name",
    "submittedBy": "submitted_by",
    "phase": "phase",
    "phaseReason": "phase_reason",
    "phaseMessage": "phase_message",
    "desiredPhase": "desired_phase",
    "phaseUpdatedAt": "phase_updated_at",
    "createdAt": "created_at",
    "startedAt": "started_at",
    "completedAt": "completed_at",
    "deletedAt": "deleted_at",
    "priorityClassName": "priority_class",
    "preemptibility": "preemptibility",
    "category": "category",
    "image": "image",
    "nodePools": "node_pools",
    "currentNodePools": "current_node_pools",
    "currentNodes": "current_nodes",
    "runningPods": "running_pods",
    "requestedPods": "requested_pods",
    "completions": "completions",
    "parallelism": "parallelism",
    "succeededPods": "succeeded_pods",
    "failedRuns": "failed_runs",
    "attempt": "attempt",
    "gpuRequest": "gpu_request_milli",
    "gpuAllocated": "gpu_allocated_milli",
    "gpuMemoryRequestBytes": "gpu_memory_request_bytes",
    "cpuRequestCores": "cpu_request_milli",
    "cpuAllocatedCores": "cpu_allocated_milli",
    "cpuMemoryRequestBytes": "memory_request_bytes",
    "cpuMemoryAllocatedBytes": "memory_allocated_bytes",
    "totalPendingTimeSeconds": "total_pending_seconds",
    "totalRunningTimeSeconds": "total_running_seconds",
    "exitCode": "exit_code",
    "autoDeleteAt": "delete_at",
    "version": "version",
}
"""Public name to column. Columns that end in `_milli` are given in whole units."""

WORKLOAD_COLUMNS: Final = tuple(_SAME)
"""What an export can be asked for, in the order of its default."""


def row_to_json(row: Row) -> Json:
    """A row of `Queries.workloads`."""
    return {name: _plain(column, row[column]) for name, column in _SAME.items()}


def history_to_json(row: Row) -> Json:
    record: Json = {
        "sequence": row["seq"],
        "index": row["index"],
        "at": timestamp(row["at"]),
        "type": row["type"],
        "phase": row["phase"],
        "message": row["message"],
        "actor": {"iss": row["actor_iss"], "sub": row["actor_sub"], "kind": row["actor_kind"]},
        # Every key is a field's name: no event of a workload has keys that a person chose.
        "details": camel_keys(row["details"]),
    }
    if row["reason"]:
        record["reason"] = row["reason"]
    return record


def camel_keys(value: Any) -> Any:
    """The same with `pod_set` as `podSet`, at every depth: the log names its fields otherwise than the API."""
    match value:
        case dict():
            return {_camel(key): camel_keys(inner) for key, inner in cast("Json", value).items()}
        case list():
            return [camel_keys(inner) for inner in cast("list[Any]", value)]
        case _:
            return value


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def pod_to_json(row: Row) -> Json:
    return {
        "name": f"{row['pod_set']}-{row['index']}",
        "podSet": row["pod_set"],
        "index": row["index"],
        "attempt": row["attempt"],
        "run": row["try_"] + 1,  # people count from 1, as the history does
        "phase": row["phase"],
        "node": row["node_name"] or None,
        "nodePool": row["node_pool"] or None,
        "devices": row["devices"],
        "notBefore": timestamp(row["not_before"]),
        "boundAt": timestamp(row["bound_at"]),
        "startedAt": timestamp(row["started_at"]),
        "finishedAt": timestamp(row["finished_at"]),
        "exitCode": row["exit_code"],
        "reason": row["reason"],
        "message": row["message"],
    }


def node_to_json(row: Row) -> Json:
    milli: list[int] = list(row["used_device_milli"])
    devices = max(row["gpu_count"], len(milli))
    milli.extend([0] * (devices - len(milli)))
    return {
        "key": row["key"],
        "name": row["name"],
        "clusterId": row["cluster_id"],
        "clusterName": row["cluster_name"],
        "nodePool": row["pool"],
        "ready": row["ready"],
        "schedulable": row["ready"] and not row["unschedulable"],
        "capacity": {
            "cpuCores": row["cpu_milli"] / 1000,
            "memoryBytes": row["memory_bytes"],
            "gpus": row["gpu_count"],
            "gpuModel": row["gpu_model"],
            "gpuMemoryBytes": row["gpu_memory_bytes"],
            "pods": row["max_pods"],
        },
        "foreign": {
            "cpuCores": row["foreign_cpu_milli"] / 1000,
            "memoryBytes": row["foreign_memory_bytes"],
            "gpus": row["foreign_gpus"],
            "pods": row["foreign_pods"],
        },
        "reserved": {
            "cpuCores": row["used_cpu_milli"] / 1000,
            "memoryBytes": row["used_memory_bytes"],
            "gpus": sum(milli) / 1000,
            "pods": row["reserved_pods"],
        },
        "devices": [{"device": device, "reservedMilli": held} for device, held in enumerate(milli)],
        "standInGpus": row["stand_in"],
        "labels": row["labels"],
        "taints": row["taints"],
        "version": row["version"],
    }


def timestamp(value: datetime | None) -> str | None:
    """RFC 3339 in UTC with Z."""
    return None if value is None else value.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _plain(column: str, value: Any) -> Any:
    if isinstance(value, datetime):
        return timestamp(value)
    if column.endswith("_milli"):
        return value / 1000
    if column in ("total_pending_seconds", "total_running_seconds"):
        return round(value, 3)
    if column in ("phase_reason", "phase_message", "category", "image"):
        return value or None
    return value
