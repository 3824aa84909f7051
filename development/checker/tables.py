"""Rows of the read models against the checker's own books: the columns that both know."""

from collections.abc import Iterator
from typing import Any

from development.checker.log import LogChecker
from development.checker.reading import Tables
from development.checker.workloads import ANY_CLUSTER, Run, Waiting, Workload

type Row = dict[str, Any]
PHASES = {
    "bound": "Bound",
    "starting": "Starting",
    "running": "Running",
    "unknown": "Unknown",
    "stopping": "Stopping",
    "PodSucceeded": "Succeeded",
    "PodFailed": "Failed",
    "PodInterrupted": "Interrupted",
    "PodStopped": "Stopped",
}


def check_tables(tables: Tables, log: LogChecker) -> list[str]:
    """`log`: fed with every message up to the tables' own place, and no more."""
    if (tables.seq, tables.last_commit_id) != (log.seq, log.last_commit_id):
        return [f"tables: they are at {tables.seq} {tables.last_commit_id}, the log at {log.seq} {log.last_commit_id}"]
    return [text for table, rows in _expected(log).items() for text in _compare(table, rows, tables.rows[table])]


def check_past(tables: Tables, log: LogChecker) -> list[str]:
    """`tables`: as the views of the past give them; `log`: fed with every message up to that moment, and no more."""
    if tables.seq != log.seq:
        return [f"past: the views are of {tables.seq}, the log is at {log.seq}"]
    expected = _expected(log)
    return [text for table, rows in tables.rows.items() for text in _compare(table, expected[table], rows)]


def _expected(log: LogChecker) -> dict[str, dict[str, Row]]:
    """Rows by table and key, as the checker's own books have them."""
    return {
        "workloads": {workload.id: _workload(workload) for workload in log.workloads.values()},
        "pods": {run: row for workload in log.workloads.values() for run, row in _runs(workload)},
        "due": {
            workload.id: {"generation": workload.generation, "due_at": workload.delete_at}
            for workload in log.workloads.values()
            if workload.delete_at is not None and not workload.deleted
        },
        "nodes": {node.key: _node(node) for node in log.nodes.by_key.values()},
        "reservations": {
            id_: {"node_key": node.key, "workload_id": held["workload_id"]}
            for node in log.nodes.by_key.values()
            for id_, held in node.held.items()
        },
        "history": {workload.id: {"count": len(workload.told)} for workload in log.workloads.values()},
    }


def _compare(table: str, expected: dict[str, Row], actual: list[Row]) -> Iterator[str]:
    left = dict(expected)
    for row in actual:
        key = _key(table, row)
        wanted = left.pop(key, None)
        if wanted is None:
            yield f"tables: {table} has {key}, and the log has not"
            continue
        for column, value in wanted.items():
            if row[column] != value:
                yield f"tables: {table} {key}: {column} is {row[column]}, and the log says {value}"
    for key in left:
        yield f"tables: {table} lacks {key}"


def _key(table: str, row: Row) -> str:
    match table:
        case "pods":
            return f"{row['workload_id']}/{row['pod_set']}-{row['index']}/{row['attempt']}.{row['try_']}"
        case "nodes":
            return row["key"]
        case "due" | "history":
            return row["workload_id"]
        case _:
            return row["id"]


def _workload(workload: Workload) -> Row:
    live = workload.live.values()
    return {
        "key": workload.key,
        "version": workload.version,
        "name": workload.name,
        "project_id": workload.project_id,
        "cluster_id": workload.cluster_id or ANY_CLUSTER,
        "submitted_by": workload.owner,
        "phase": workload.phase,
        "desired_phase": workload.desired,
        "attempt": workload.attempt,
        "failed_runs": workload.failed_runs,
        "succeeded_pods": len(workload.succeeded),
        "running_pods": sum(run.phase == "running" for run in live),
        "live_pods": len(live),
        "current_nodes": sorted({run.node_name for run in live}),
        "gpu_allocated_milli": sum(share["milli"] for run in live for share in run.devices),
        "exit_code": workload.exit_code,
        "delete_at": workload.delete_at,
        "generation": workload.generation,
    }


def _runs(workload: Workload) -> Iterator[tuple[str, Row]]:
    for run, how in workload.ends.items():
        yield run, {"phase": PHASES[how], "token": workload.tokens[run]}
    for run, (_, left) in workload.left.items():
        yield run, {"phase": "Stopping", "token": left.token, "node_name": left.node_name}
    for (pod_set, index), pod in workload.pods.items():
        match pod:
            case Run():
                yield pod.name, {"phase": PHASES[pod.phase], "token": pod.token, "node_name": pod.node_name}
            case Waiting():
                name = f"{workload.id}/{pod_set}-{index}/{pod.attempt}.{pod.try_}"
                yield name, {"phase": "Pending", "not_before": pod.not_before}


def _node(node: Any) -> Row:
    row: Row = {
        "version": node.version,
        "name": node.name,
        "cluster_id": node.cluster_id,
        "present": node.present,
        "cordoned_by": node.cordoned_by,
        "used_cpu_milli": node.cpu_milli,
        "used_memory_bytes": node.memory_bytes,
        "reserved_pods": len(node.held),
    }
    facts = ("cpu_milli", "memory_bytes", "gpu_count", "foreign_cpu_milli", "foreign_memory_bytes", "foreign_gpus")
    return row | {name: node.facts.get(name, 0) for name in facts}
