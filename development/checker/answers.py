"""What lists and items must say of a moment, from the checker's own books, which were fed up to there and no more."""

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final

from development.checker.log import LogChecker
from development.checker.nodes import Node
from development.checker.places import DEFAULT_POOL, Cluster, Project
from development.checker.records import moment
from development.checker.tables import PHASES
from development.checker.workloads import ANY_CLUSTER, Run, Workload

WAITS: Final = frozenset({"Creating", "Pending", "Resuming"})
"""Phases in which it should run and has no node."""
DEFAULT_PODS: Final = 110
"""That a node takes where its cluster says nothing."""

type Answer = dict[str, Any]
"""What an answer must say; of each object some fields, of each list all entries, in order."""


def lists(log: LogChecker) -> Iterator[tuple[str, Answer]]:
    """Every list: its path below the version of the API, for one who may read all, and what it must say."""
    made = sorted(log.workloads.values(), key=lambda each: each.created_at, reverse=True)
    for deleted, query in ((False, ""), (True, "deleted=true&")):
        rows = [_row(log, each) for each in made if each.deleted == deleted]
        yield f"/workloads?{query}limit=500", {"workloads": rows, "next": None}
        yield f"/workloads/count?{query}".rstrip("?&"), {"count": len(rows)}
    for removed, query in ((False, ""), (True, "?removed=true")):
        yield f"/clusters{query}", {"clusters": list(map(_cluster, log.places.last_clusters(removed=removed)))}
    yield "/org-unit/projects", {"projects": [_project(log, each) for each in log.places.living_projects]}
    living = log.places.last_clusters(removed=False)
    yield "/node-pools", {"nodePools": [pool for each in living for pool in _pools(log, each)]}
    yield "/nodes", {"nodes": list(_nodes(log))}


def items(log: LogChecker, whole: LogChecker) -> Iterator[tuple[str, Answer | None]]:
    """Every item that there ever is, `whole` has the log to its end; None: it was not there."""
    for id_, made in whole.workloads.items():
        workload = log.workloads.get(id_)
        path = f"/workloads/{id_}"
        yield path, workload and _row(log, workload) | {"actualPhase": workload.phase}
        # One of another kind stands elsewhere.
        is_training = not made.inference and not made.distributed
        yield f"/workloads/trainings/{id_}", workload and _training(workload) if is_training else None
        told = [{"sequence": seq, "index": at, "type": type_} for seq, at, type_ in workload.told] if workload else []
        yield f"{path}/history?limit=500", {"records": told, "next": None} if workload else None
        yield f"{path}/pods", {"pods": list(_runs(workload))} if workload else None
    living = {each.id: each for each in log.places.last_clusters(removed=False)}
    for id_ in whole.places.clusters:
        cluster = living.get(id_)
        yield f"/clusters/{id_}", cluster and _cluster(cluster)
        yield f"/node-pools?clusterId={id_}", {"nodePools": list(_pools(log, cluster))} if cluster else None
        yield f"/nodes?clusterId={id_}", {"nodes": [row for row in _nodes(log) if row["clusterId"] == id_]}
    for id_ in whole.places.projects:
        project = log.places.projects.get(id_)
        yield f"/org-unit/projects/{id_}", None if project is None or project.deleted else _project(log, project)


def differences(expected: Any, given: Any, where: str = "") -> Iterator[str]:
    """What an answer says that it must not, by the place in it."""
    match expected:
        case dict():
            for name, value in expected.items():
                if name not in given:
                    yield f"{where}.{name} is not given, it must be {value}"
                else:
                    yield from differences(value, given[name], f"{where}.{name}")
        case list():
            if len(expected) != len(given):
                yield f"{where} has {len(given)} entries, it must have {len(expected)}"
            for at, (one, other) in enumerate(zip(expected, given, strict=False)):
                yield from differences(one, other, f"{where}[{at}]")
        case datetime():
            if given is None or moment(str(given)) != expected:
                yield f"{where} is {given}, it must be {expected}"
        case float():
            if given is None or abs(given - expected) > 1e-6:
                yield f"{where} is {given}, it must be {expected}"
        case _:
            if given != expected:
                yield f"{where} is {given}, it must be {expected}"


def _row(log: LogChecker, workload: Workload) -> Answer:
    live, spec = workload.live.values(), workload.spec
    asked = [workload.asked_of(pod_set) for pod_set, _ in workload.live]
    project, cluster = log.places.projects.get(workload.project_id), log.places.clusters.get(workload.cluster_id)
    return {
        "id": workload.id,
        "version": workload.version,
        "name": workload.name,
        "projectId": workload.project_id,
        "projectName": project and project.name,
        "departmentName": project and project.department,
        "clusterId": workload.cluster_id or ANY_CLUSTER,
        "clusterName": cluster and cluster.name,
        "submittedBy": workload.owner,
        "createdAt": workload.created_at,
        "phase": workload.phase,
        "desiredPhase": workload.desired,
        "priorityClassName": spec.get("priorityClass", "low"),
        "attempt": workload.attempt,
        "failedRuns": workload.failed_runs,
        "succeededPods": len(workload.succeeded),
        "runningPods": sum(run.phase == "running" for run in live),
        "currentNodes": sorted({run.node_name for run in live}),
        "gpuAllocated": sum(share["milli"] for run in live for share in run.devices) / 1000,
        "cpuAllocatedCores": sum(each.cpu_milli for each in asked) / 1000,
        "cpuMemoryAllocatedBytes": sum(each.memory_bytes for each in asked),
        "exitCode": workload.exit_code,
        "totalPendingTimeSeconds": _spent(log, workload, WAITS),
        "totalRunningTimeSeconds": _spent(log, workload, frozenset({"Running", "Degraded"})),
    }


def _training(workload: Workload) -> Answer:
    return {
        "workloadId": workload.id,
        "name": workload.name,
        "projectId": workload.project_id,
        "clusterId": workload.cluster_id or ANY_CLUSTER,
        "createdBy": workload.created_by,
        "createdAt": workload.created_at,
        "desiredPhase": workload.desired,
        "actualPhase": workload.phase,
    }


def _spent(log: LogChecker, workload: Workload, phases: frozenset[str]) -> float:
    """Seconds in these phases, up to the newest time in the log or its deletion."""
    ends = [each.at for each in workload.moments[1:]] + [workload.moments[-1].at if workload.deleted else log.now]
    stays = zip(workload.moments, ends, strict=True)
    return sum((end - each.at for each, end in stays if each.phase in phases), timedelta()).total_seconds()


def _runs(workload: Workload) -> Iterator[Answer]:
    """Every run of every pod, in order."""
    rows: list[tuple[tuple[str, int, int, int], Answer]] = []
    open_ = {pod.name: pod for pod in workload.live.values()} | {name: run for name, (_, run) in workload.left.items()}
    for name in {*workload.ends, *open_}:
        pod_set, _, index = name.split("/")[1].rpartition("-")
        attempt, _, try_ = name.split("/")[2].partition(".")
        phase = PHASES[open_[name].phase] if name in open_ else PHASES[workload.ends[name]]
        row = {"phase": phase, "node": workload.nodes[name], "devices": workload.devices[name], "notBefore": None}
        rows.append(((pod_set, int(index), int(attempt), int(try_)), row))
    for (pod_set, index), pod in workload.pods.items():
        if not isinstance(pod, Run):
            row = {"phase": "Pending", "node": None, "devices": [], "notBefore": pod.not_before}
            rows.append(((pod_set, index, pod.attempt, pod.try_), row))
    for (pod_set, index, attempt, try_), row in sorted(rows, key=lambda one: one[0]):
        yield {"name": f"{pod_set}-{index}", "attempt": attempt, "run": try_ + 1} | row


def _cluster(cluster: Cluster) -> Answer:
    own, classes = cluster.own_protection, cluster.storage_classes
    silent = "WaitingToConnect" if cluster.heard_at is None else "Disconnected"
    by = "cluster" if own is not None else "administrator" if cluster.set_protection else "default"
    return {
        "id": cluster.id,
        "name": cluster.name,
        "kind": cluster.kind,
        "status": "Connected" if cluster.connected else silent,
        "statusChangedAt": cluster.heard_at,
        "cutOffAt": cluster.cut_off_at,
        "problem": cluster.problem or None,
        "refusedReports": [{"about": each["about"], "rule": each["rule"]} for each in cluster.refused],
        "storageClasses": classes and [{"name": one["name"], "default": one.get("default", False)} for one in classes],
        "ownershipProtection": cluster.set_protection if own is None else own,
        "ownershipProtectionSource": by,
        "createdAt": cluster.created_at,
        "nodes": len(cluster.simulated) if cluster.kind == "simulated" else None,
        "agentVersion": cluster.agent_version or None,
    }


def _pools(log: LogChecker, cluster: Cluster) -> Iterator[Answer]:
    there = Counter(
        node.facts.get("pool", DEFAULT_POOL)
        for node in log.nodes.by_key.values()
        if node.present and node.cluster_id == cluster.id
    )
    for name in sorted({DEFAULT_POOL, *cluster.pools}):
        pool = cluster.pools.get(name, {})
        yield {
            "clusterId": cluster.id,
            "clusterName": cluster.name,
            "name": name,
            "labelKey": pool.get("label_key"),
            "labelValue": pool.get("label_value"),
            "nodes": there[name],
        }


def _nodes(log: LogChecker) -> Iterator[Answer]:
    """Those that are there, by the names of their clusters and their own."""
    rows = [_node(log, node) for node in log.nodes.by_key.values() if node.present]
    yield from sorted(rows, key=lambda row: (row["clusterName"], row["name"], row["clusterId"]))


def _node(log: LogChecker, node: Node) -> Answer:
    facts, ready = node.facts, node.facts.get("ready", True)
    closed = facts.get("unschedulable", False)
    count = max(facts.get("gpu_count", 0), *(device + 1 for device, milli in node.device_milli.items() if milli), 0)
    return {
        "name": node.name,
        "clusterId": node.cluster_id,
        "clusterName": log.places.clusters[node.cluster_id].name,
        "nodePool": facts.get("pool", DEFAULT_POOL),
        "ready": ready,
        "schedulable": ready and not closed and not node.cordoned_by,
        "cordonedByCluster": closed,
        "cordonedBy": node.cordoned_by or None,
        "capacity": {
            "cpuCores": facts["cpu_milli"] / 1000,
            "memoryBytes": facts["memory_bytes"],
            "gpus": facts.get("gpu_count", 0),
            "gpuMemoryBytes": facts.get("gpu_memory_bytes", 0),
            "pods": facts.get("max_pods", DEFAULT_PODS),
        },
        "foreign": {
            "cpuCores": facts.get("foreign_cpu_milli", 0) / 1000,
            "memoryBytes": facts.get("foreign_memory_bytes", 0),
            "gpus": facts.get("foreign_gpus", 0),
            "pods": facts.get("foreign_pods", 0),
        },
        "reserved": {
            "cpuCores": node.cpu_milli / 1000,
            "memoryBytes": node.memory_bytes,
            "gpus": sum(node.device_milli.values()) / 1000,
            "pods": len(node.held),
        },
        "devices": [{"device": at, "reservedMilli": node.device_milli[at]} for at in range(count)],
        "labels": facts.get("labels", {}),
        "version": node.version,
    }


def _project(log: LogChecker, project: Project) -> Answer:
    its = [each for each in log.workloads.values() if each.project_id == project.id and not each.deleted]
    live = [(each, run) for each in its for run in each.live.values()]
    asked = [each.asked_of(pod_set) for each in its for pod_set, _ in each.live]
    gpus = [(each, sum(share["milli"] for share in run.devices) / 1000) for each, run in live]
    return {
        "id": project.id,
        "name": project.name,
        "createdAt": project.created_at,
        "gpuQuota": None if project.gpu_quota_milli is None else project.gpu_quota_milli / 1000,
        "nodePools": project.node_pools,
        "podSecurity": project.pod_security,
        "privileged": project.privileged,
        "nodeTypes": project.node_types,
        "gpuLimit": None if project.gpu_limit_milli is None else project.gpu_limit_milli / 1000,
        "overQuotaWeight": project.over_quota_weight,
        "departmentName": project.department,
        "use": {
            "workloads": dict(Counter(each.phase for each in its)),
            "pods": len(live),
            "gpuAllocated": float(sum(milli for _, milli in gpus)),
            "gpuAllocatedNonPreemptible": float(sum(held for each, held in gpus if not _preemptible(each))),
            "cpuAllocatedCores": sum(each.cpu_milli for each in asked) / 1000,
            "cpuMemoryAllocatedBytes": sum(each.memory_bytes for each in asked),
        },
    }


def _preemptible(workload: Workload) -> bool:
    return workload.spec.get("preemptibility", "preemptible") == "preemptible"
