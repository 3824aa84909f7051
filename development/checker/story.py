"""A log written by hand, right or wrong: for tests of the checker."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from development.checker.log import LogChecker, check_log
from development.checker.records import RawMessage

BEGIN = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
GPU_SPEC = {"completions": 1, "parallelism": 1, "backoffLimit": 0, "compute": {"gpuDevicesRequest": 1}}
ID = "0190-workload-1"
KEY = "aaaaaaaaaaaa"
NODE = "nnnnnnnnnnnn"
SERVICES = {"scheduler", "cluster_sync", "auto_deletion", "restore"}


def pod(index: int = 0, *, attempt: int = 1, try_: int = 0) -> dict[str, Any]:
    return {"pod_set": "main", "index": index, "attempt": attempt, "try": try_}


@dataclass
class Story:
    """Each method appends what it says, whether it may be so or not; `check` asks the checker."""

    messages: list[RawMessage] = field(default_factory=list[RawMessage])
    last: dict[str, int] = field(default_factory=dict[str, int])
    now: datetime = BEGIN
    specs: dict[str, Any] = field(default_factory=dict[str, Any])

    def later(self, seconds: float) -> Self:
        self.now += timedelta(seconds=seconds)
        return self

    def text(self, seconds: float = 0) -> str:
        return (self.now + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")

    def commit(
        self, subject: str, *events: tuple[str, Mapping[str, Any]], by: str = "user", **fields: Any
    ) -> RawMessage:
        seq = len(self.messages) + 1
        actor = {"id": f"muster.{by}", "kind": "service"} if by in SERVICES else {"id": by}
        record = {
            "commit_id": f"commit-{seq}",
            "command_id": f"command-{seq}",
            "actor": actor,
            "occurred_at": self.text(),
            "parent_seq": self.last.get(subject, 0),
            "events": [{"type": type_, "data": data} for type_, data in events],
            **fields,
        }
        message = RawMessage(seq, subject, json.dumps(record).encode())
        self.messages.append(message)
        self.last[subject] = seq
        return message

    def check(self, **options: Any) -> LogChecker:
        return check_log(self.messages, **options)

    def wrong(self) -> set[str]:
        """The invariants that the checker finds broken."""
        return {text.split(": ")[1] for text in self.check().report.violations}

    # -- the usual -----------------------------------------------------------------------------------------------------

    def node(self, *, name: str = NODE, **facts: Any) -> Self:
        has = {"cpu_milli": 8000, "memory_bytes": 2**36, "gpu_count": 8, "gpu_memory_bytes": 2**36} | facts
        data = {"cluster_id": "c1", "name": name, "facts": has}
        self.commit(f"ev.node.{name}", ("NodeRegistered", data), by="cluster_sync")
        return self

    def node_says(self, **facts: Any) -> Self:
        has = {"cpu_milli": 8000, "memory_bytes": 2**36, "gpu_count": 8, "gpu_memory_bytes": 2**36} | facts
        self.commit(f"ev.node.{NODE}", ("NodeChanged", {"facts": has}), by="cluster_sync")
        return self

    def created(
        self,
        spec: Mapping[str, Any] | None = None,
        *,
        id_: str = ID,
        key: str = KEY,
        name: str = "",
        distributed: Mapping[str, Any] | None = None,
        inference: Mapping[str, Any] | None = None,
        among: tuple[str, ...] = (),
    ) -> Self:
        data: dict[str, Any] = {
            "workload_id": id_,
            "name": name or f"name-of-{key}",
            "requested_name": name or f"name-of-{key}",
            "kind": "Training",
            "project_id": "p1",
            "cluster_id": "" if among else "c1",
            "owner": "alice",
            "at": self.text(),
            "spec": GPU_SPEC if spec is None else {**GPU_SPEC, **spec},
        }
        if among:
            data |= {"among": among}
        if distributed is not None:
            data |= {"kind": "Distributed", "distributed": distributed}
        if inference is not None:
            data |= {"kind": "Inference", "inference": inference}
        self.specs[key] = data["spec"]
        self.commit(f"ev.workload.{key}", ("WorkloadCreated", data))
        return self

    def says(self, *events: tuple[str, Mapping[str, Any]], key: str = KEY, by: str = "cluster_sync") -> Self:
        self.commit(f"ev.workload.{key}", *events, by=by)
        return self

    def bound(
        self,
        *pods: Mapping[str, Any],
        id_: str = ID,
        key: str = KEY,
        device: int = 0,
        milli: int = 1000,
        queued: bool = False,
        node: str = NODE,
        held: Mapping[str, Any] | None = None,
        chosen: str = "",
    ) -> Self:
        """Bind pods to devices from `device` on, and reserve them, in one batch; `chosen`: and choose this cluster."""
        subject = f"ev.workload.{key}"
        numbered = list(enumerate(pods or (pod(),), start=device))
        placements = [
            {"pod": each, "node_key": node, "node_name": node, "pool": "default", "devices": _share(at, milli)}
            for at, each in numbered
        ]
        reservations = [
            {
                "id": f"{id_}/{each['pod_set']}-{each['index']}/{each['attempt']}.{each['try']}",
                "workload_id": id_,
                "workload_key": key,
                "devices": _share(at, milli),
                **(held or {}),
            }
            for at, each in numbered
        ]
        count, batch = 2, f"batch-{len(self.messages)}"
        token = self.last.get(subject, 0)
        begin: list[tuple[str, dict[str, Any]]] = [("WorkloadQueued", {})] if not queued else []
        begin += [("ClusterChosen", {"cluster_id": chosen, "name": "lab"})] if chosen else []
        events = (*begin, ("PodsBound", {"placements": placements, "token": token}))
        self.commit(subject, *events, by="scheduler", batch={"id": batch, "index": 1, "count": count})
        self.commit(
            f"ev.node.{node}",
            ("PodsReserved", {"reservations": reservations}),
            by="scheduler",
            batch={"id": batch, "index": 2, "count": count},
        )
        return self

    def fact(self, type_: str, each: Mapping[str, Any] | None = None, *, key: str = KEY, **more: Any) -> Self:
        return self.says(self.told(type_, each, **more), key=key)

    def told(self, type_: str, each: Mapping[str, Any] | None = None, **more: Any) -> tuple[str, dict[str, Any]]:
        return type_, {"pod": each or pod(), "at": self.text(), **more}

    def ran(self, each: Mapping[str, Any] | None = None) -> Self:
        return self.fact("PodStarting", each).later(1).fact("PodRunning", each).later(1)

    def completed(self, succeeded: int = 1, seconds: int = 30 * 24 * 3600) -> tuple[str, dict[str, Any]]:
        data = {"at": self.text(), "succeeded": succeeded, "delete_at": self.text(seconds)}
        return "WorkloadCompleted", data

    def failed(self) -> tuple[str, dict[str, Any]]:
        data = {"at": self.text(), "reason": "backoff_limit_exceeded", "message": "", "exit_code": 3}
        return "WorkloadFailed", {**data, "delete_at": self.text(30 * 24 * 3600)}

    def released(self, *pods: Mapping[str, Any], id_: str = ID, node: str = NODE) -> Self:
        ids = [f"{id_}/{each['pod_set']}-{each['index']}/{each['attempt']}.{each['try']}" for each in pods or (pod(),)]
        self.commit(f"ev.node.{node}", ("ReservationsReleased", {"ids": ids}), by="scheduler")
        return self

    def done(self) -> Self:
        """One workload's whole life, as it should be."""
        self.node().created().bound().ran()
        return self.says(self.told("PodSucceeded"), self.completed()).released()


def _share(device: int, milli: int) -> list[dict[str, int]]:
    return [{"device": device, "milli": milli}] if milli else []
