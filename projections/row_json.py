"""Rows as the JSON of the public API: camelCase, units last, times RFC 3339 in UTC."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, cast

from events.actors import Person
from projections.columns import Column, Public, public_columns
from projections.workloads.rows import WorkloadRow

Json = dict[str, Any]
Row = Mapping[Any, Any]


def history_to_json(row: Row, actor: Person) -> Json:
    """A row of `Queries.history`, told of whoever its actor id means; its sentence and details name no other person."""
    told: Json = camel_keys(row["details"])  # every key is a field's name: no event has keys that a person chose
    if told.get("owner") == row["actor_id"]:
        told["owner"] = actor.subject
    record: Json = {
        "sequence": row["seq"],
        "index": row["index"],
        "at": timestamp(row["at"]),
        "type": row["type"],
        "phase": row["phase"],
        "message": row["message"].replace(row["actor_id"], actor.subject) if row["actor_id"] else row["message"],
        "actor": {"iss": actor.issuer, "sub": actor.subject, "kind": row["actor_kind"]},
        "details": told,
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


def _made(column: Column[Any], public: Public) -> Callable[[Any], Any] | None:
    """How a value becomes the API's; None where it is the same."""
    if column.type == "time":
        return timestamp
    if column.in_thousandths:
        return lambda value: None if value is None else value / 1000
    if column.type == "number":
        return lambda value: round(value, 3)
    return (lambda value: value or None) if public.empty_is_null else None


_WORKLOAD: Final = tuple((p.name, column.name, _made(column, p)) for column, p in public_columns(WorkloadRow))
WORKLOAD_COLUMNS: Final = tuple(name for name, _, _ in _WORKLOAD)
"""What an export can be asked for, in the order of its default."""


def row_to_json(row: Row) -> Json:
    """A row of `Queries.workloads`."""
    return {name: row[column] if made is None else made(row[column]) for name, column, made in _WORKLOAD}
