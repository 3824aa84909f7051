"""Rows of the tables as answers. Pure."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from events.actors import Person, mentioned, with_names
from events.codec import newest_of
from events.node import Drain as StoredDrain
from events.node import Taint as StoredTaint
from events.workload.pod_sets import PodSet
from services.api.answers import (
    HISTORY,
    Actor,
    Device,
    HistoryRecord,
    Node,
    NodeCapacity,
    NodeDevice,
    NodeDrain,
    NodePod,
    NodeUse,
    Pod,
    Taint,
)
from services.api.shown_events import shown

Row = Mapping[Any, Any]


def people_in(row: Row) -> set[str]:
    """Ids of those whom `history_record` names."""
    owner: str | None = row["details"].get("owner")
    of_details = {owner} if owner else set[str]()
    return {row["actor_id"], *of_details, *mentioned(row["message"]), *mentioned(_sentence(row))}


def _sentence(row: Row) -> str:
    """What the details say in words, such as why a workload waits; empty where they say nothing."""
    said = row["details"].get("message")
    return said if isinstance(said, str) else ""


def history_record(row: Row, person: Callable[[str], Person]) -> HistoryRecord:
    """A row of `Queries.history`, with names in the place of ids: of who acted, and of whom its sentence names."""
    actor = person(row["actor_id"])

    def named(sentence: str) -> str:
        return with_names(sentence, lambda id_: person(id_).subject)

    event = newest_of(row["type"])
    details = dict(row["details"])
    if details.get("owner"):
        details["owner"] = person(details["owner"]).subject
    if _sentence(row):
        details["message"] = named(_sentence(row))
    told = msgspec.convert(msgspec.convert(details, event), shown(event), from_attributes=True)
    make: Any = HISTORY[row["type"]]
    return make(
        sequence=row["seq"],
        index=row["index"],
        at=row["at"],
        phase=row["phase"],
        reason=row["reason"] or msgspec.UNSET,
        message=named(row["message"].replace(row["actor_id"], actor.subject) if row["actor_id"] else row["message"]),
        actor=Actor(iss=actor.issuer, sub=actor.subject, kind=row["actor_kind"]),
        details=told,
    )


def pod_answer(row: Row, sets: Mapping[str, PodSet]) -> Pod:
    """Args: sets, the pod sets of its workload, by name."""
    pod_set = sets.get(row["pod_set"])
    values = pod_set.values(row["index"]) if pod_set is not None else {}
    return Pod(
        name=f"{row['pod_set']}-{row['index']}",
        pod_set=row["pod_set"],
        index=row["index"],
        values=values or msgspec.UNSET,
        attempt=row["attempt"],
        run=row["try_"] + 1,  # people count from 1, as the history does
        phase=row["phase"],
        node=row["node_name"] or None,
        node_pool=row["node_pool"] or None,
        devices=[Device(device=one["device"], milli=one["milli"]) for one in row["devices"]],
        not_before=row["not_before"],
        bound_at=row["bound_at"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        exit_code=row["exit_code"],
        reason=row["reason"],
        message=row["message"],
    )


def _taint(stored: StoredTaint) -> Taint:
    return Taint(key=stored.key, value=stored.value, effect=stored.effect)


def drain_answer(row: Row, person: Callable[[str], Person]) -> NodeDrain | None:
    """Of a row of a node."""
    if not row["drain"]:
        return None
    stored = msgspec.convert(row["drain"], StoredDrain)
    return NodeDrain(
        started_by=person(stored.by).subject,
        started_at=stored.at,
        force=stored.force,
        ended_at=stored.ended_at,
        maintenance=None if stored.maintenance is None else stored.maintenance.name,
    )


def node_pod_answer(row: Row, *, force: bool) -> NodePod:
    """A pod on a node; `force`: of the drain that is asked about."""
    preemptible = row["preemptibility"] != "non-preemptible"
    stays = None
    if row["phase"] == "Unknown":
        stays = "its node does not answer, so nobody knows whether it runs"
    elif row["phase"] != "Stopping" and row["workload_phase"] in ("Completed", "Failed"):
        stays = "it outlives its workload, which has ended; it goes when that is deleted"
    elif row["phase"] != "Stopping" and not preemptible and not force:
        stays = "its workload is non-preemptible: it stays until it ends, or until the node is drained with force"
    return NodePod(
        workload_id=row["workload_id"],
        workload_name=row["name"],
        project_id=row["project_id"],
        project_name=row["project_name"],
        pod=f"{row['pod_set']}-{row['index']}",
        phase=row["phase"],
        preemptible=preemptible,
        stays=stays,
    )


def node_answer(row: Row, person: Callable[[str], Person]) -> Node:
    milli: list[int] = list(row["used_device_milli"])
    milli.extend([0] * (row["gpu_count"] - len(milli)))
    while len(milli) > row["gpu_count"] and not milli[-1]:
        milli.pop()  # a device that was lost, and of which nothing is held any more
    return Node(
        name=row["name"],
        cluster_id=row["cluster_id"],
        cluster_name=row["cluster_name"],
        node_pool=row["pool"],
        ready=row["ready"],
        schedulable=row["ready"] and not row["unschedulable"] and row["cordoned_at"] is None,
        cordoned_by_cluster=row["unschedulable"],
        cordoned_by=None if row["cordoned_at"] is None else person(row["cordoned_by"]).subject,
        cordoned_at=row["cordoned_at"],
        drain=drain_answer(row, person),
        capacity=NodeCapacity(
            cpu_cores=row["cpu_milli"] / 1000,
            memory_bytes=row["memory_bytes"],
            gpus=row["gpu_count"],
            gpu_model=row["gpu_model"],
            gpu_memory_bytes=row["gpu_memory_bytes"],
            pods=row["max_pods"],
            extended_resources=row["extended"],
        ),
        foreign=NodeUse(
            cpu_cores=row["foreign_cpu_milli"] / 1000,
            memory_bytes=row["foreign_memory_bytes"],
            gpus=row["foreign_gpus"],
            pods=row["foreign_pods"],
            extended_resources=row["foreign_extended"],
        ),
        reserved=NodeUse(
            cpu_cores=row["used_cpu_milli"] / 1000,
            memory_bytes=row["used_memory_bytes"],
            gpus=sum(milli) / 1000,
            pods=row["reserved_pods"],
            extended_resources=row["used_extended"],
        ),
        devices=[NodeDevice(device=device, reserved_milli=held) for device, held in enumerate(milli)],
        stand_in_gpus=row["stand_in"],
        labels=row["labels"],
        taints=[_taint(msgspec.convert(taint, StoredTaint)) for taint in row["taints"]],
        version=row["version"],
    )
