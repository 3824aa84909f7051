"""What the tables must hold, from the log alone: one fold from its beginning, in plain Python.

Rows of nodes, clusters and projects are made as the projector makes them, of the aggregates' states. Those of workloads
are made here anew: their fold in projections/workloads is what they are compared with.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final, cast

import msgspec

from events.aggregate import AGGREGATES, Chain, apply
from events.commit import Commit
from events.phases import PodPhase
from events.workload.pod import DeviceShare, PodFailed, PodInterrupted, PodRef, PodRunning, PodStopped, PodSucceeded
from events.workload.spec import PRIORITY_RANK, with_defaults
from events.workload.state import (
    Workload,
    WorkloadCompleted,
    WorkloadCreated,
    WorkloadFailed,
)
from projections.fold import STATE_KINDS, Fold
from projections.values import MAX_BIGINT, clean, indexed

Key = tuple[Any, ...]
Row = dict[str, Any]

CHECKSUM_MODULUS: Final = 1_000_003
_WAITING_PHASES: Final = frozenset({"Creating", "Pending", "Resuming"})


class _Life:
    """What the state of a workload does not keep, told by its events."""

    __slots__ = ("exit_code", "history", "last_phase_at", "pending", "running", "started_at", "version")

    def __init__(self, at: datetime) -> None:
        self.version = 0
        self.started_at: datetime | None = None
        self.exit_code: int | None = None
        self.last_phase_at = at
        self.pending = timedelta()
        self.running = timedelta()
        self.history = [0, 0, 0, 0]
        """Count, first, last, checksum."""

    def told(self, seq: int, index: int, type_: str) -> None:
        history = self.history
        history[0] += 1
        history[1] = history[1] or seq
        history[2] = seq
        history[3] += (seq * 31 + index + len(type_)) % CHECKSUM_MODULUS

    def stayed(self, phase: str, until: datetime) -> None:
        span = max(until - self.last_phase_at, timedelta())
        if phase in _WAITING_PHASES:
            self.pending += span
        elif phase == "Running":
            self.running += span


class Expected:
    """The rows that the log up to `seq` stands for."""

    def __init__(self) -> None:
        self.seq = 0
        self.last_commit_id = ""
        self._chains: dict[tuple[str, str], Chain[Any]] = {}
        self._lives: dict[str, _Life] = {}
        self._workloads: dict[Key, Row] = {}
        self._ended_runs: dict[Key, Row] = {}
        self._open_runs: dict[str, dict[Key, Row]] = {}
        self._due: dict[Key, Row] = {}
        self._use: defaultdict[Key, Counter[str]] = defaultdict(Counter)
        self._others = Fold({})
        """Of all that has rows made of states."""

    def add(self, commit: Commit) -> None:
        """One more commit of the log, in order. Raises BrokenChainError."""
        self.seq = commit.seq
        self.last_commit_id = commit.record.commit_id
        kind = AGGREGATES.get(commit.aggregate)
        if kind is None:
            return  # a void message on a subject of no aggregate
        if commit.aggregate in STATE_KINDS:
            self._others.add([commit])
            return
        key = (commit.aggregate, commit.key)
        before: Chain[Any] = self._chains.get(key) or Chain(state=kind.initial)
        after = apply(kind, before, commit)
        if commit.aggregate == "workload":
            self._workload(before.state, commit)
        # What a chain remembers for repeated commands is of no use here, and large.
        self._chains[key] = Chain(state=after.state, version=after.version)

    def tables(self) -> dict[str, dict[Key, Row]]:
        """Rows by table and key; of each table the columns that the log determines."""
        for (aggregate, _), chain in self._chains.items():
            if aggregate == "workload":
                self._rows_of(chain.state)
        for row in self._workloads.values():
            if row["deleted_at"] is None:
                self._used(row)
        pods = dict(self._ended_runs)
        for runs in self._open_runs.values():
            pods.update(runs)
        lives = {(id_,): life for id_, life in self._lives.items()}
        names = ("count", "first", "last", "checksum")
        others = self._others.finish().put
        return {
            **{table: _plain(others.get(table, {})) for table in ("clusters", "projects", "nodes", "reservations")},
            "workloads": self._workloads,
            "pods": pods,
            "due": self._due,
            "history": {key: dict(zip(names, life.history, strict=True)) for key, life in lives.items()},
            "project_use": {key: dict(use) for key, use in self._use.items() if any(use.values())},
        }

    # -- workloads -------------------------------------------------------------------------------------------------

    def _workload(self, state: Workload, commit: Commit) -> None:
        """The commit's events one by one: what a state does not keep is told between two of them."""
        at = commit.record.occurred_at
        evolve = AGGREGATES["workload"].evolve
        first = commit.events[0] if commit.events else None
        if state.exists and not (isinstance(first, WorkloadCreated) and first.workload_id != state.workload_id):
            self._lives[state.workload_id].version = commit.seq
        for index, event in enumerate(commit.events):
            after = evolve(state, event)
            if after is state:
                continue  # it does not fit
            if isinstance(event, WorkloadCreated):
                if state.exists:
                    # The name begins a new incarnation: the rows of the old one are final.
                    self._rows_of(state)
                self._lives[event.workload_id] = _Life(at)
            else:
                self._run_over(state, event)
            before, state = state, after
            life = self._lives[state.workload_id]
            life.told(commit.seq, index, type(event).__name__)
            life.version = commit.seq
            if isinstance(event, PodRunning) and life.started_at is None:
                life.started_at = event.at
            if isinstance(event, WorkloadFailed):
                life.exit_code = _code(event.exit_code)
            if isinstance(event, WorkloadCompleted):
                life.exit_code = 0
            if before.workload_id == state.workload_id and before.phase is not state.phase:
                life.stayed(before.phase, at)
                life.last_phase_at = at
            if state.deleted_at is not None:
                life.stayed(state.phase, at)

    def _run_over(self, state: Workload, event: Any) -> None:
        """The row of a run that ends with this event."""
        match event:
            case PodSucceeded():
                phase, code, reason, message = "Succeeded", 0, "", None
            case PodFailed():
                phase, code, reason, message = "Failed", _code(event.exit_code), event.reason, event.message
            case PodInterrupted():
                phase, code, reason, message = "Interrupted", None, event.reason, event.message
            case PodStopped():
                phase, code, reason, message = "Stopped", _code(event.exit_code), "", None
            case _:
                return
        ref: PodRef = event.pod
        pod = state.pods[ref.pod_set, ref.index]
        row: Row = {
            "phase": phase,
            "exit_code": code,
            "reason": clean(reason),
            "finished_at": event.at,
            "node_key": clean(pod.node_key),
            "node_name": clean(pod.node_name),
            "node_pool": clean(pod.pool),
            "devices": _devices_json(pod.devices),
            "token": pod.token,
        }
        if message is not None:
            row["message"] = clean(message)
        self._ended_runs[state.workload_id, indexed(ref.pod_set), ref.index, ref.attempt, ref.try_] = row

    def _rows_of(self, state: Workload) -> None:
        """The rows of an incarnation as they are now."""
        if not state.exists:
            return
        id_ = state.workload_id
        life = self._lives[id_]
        self._workloads[id_,] = _workload_row(state, life)
        self._open_runs[id_] = {
            (id_, indexed(pod_set), index, pod.attempt, pod.try_): {
                "phase": str(pod.phase),
                "node_key": clean(pod.node_key),
                "node_name": clean(pod.node_name),
                "node_pool": clean(pod.pool),
                "devices": _devices_json(pod.devices),
                "token": pod.token,
                "interruptions": pod.interruptions,
                "not_before": pod.not_before,
                "finished_at": None,
            }
            for (pod_set, index), pod in state.pods.items()
        }
        if state.delete_at is not None and state.deleted_at is None:
            self._due[id_,] = {"generation": state.generation, "due_at": state.delete_at}

    def _used(self, row: Row) -> None:
        firm = row["gpu_allocated_milli"] if row["preemptibility"] == "non-preemptible" else 0
        self._use[row["project_id"], row["phase"]].update(
            workloads=1,
            pods=row["live_pods"],
            gpu_milli=row["gpu_allocated_milli"],
            non_preemptible_gpu_milli=firm,
            cpu_milli=row["cpu_allocated_milli"],
            memory_bytes=row["memory_allocated_bytes"],
        )


def _workload_row(state: Workload, life: _Life) -> Row:
    spec = with_defaults(state.spec)
    pod_set = state.pod_sets[0]
    request = pod_set.template.request
    at_once = pod_set.at_once
    live = list(state.pods.live.values())
    return {
        "version": life.version,
        "name": indexed(state.name),
        "requested_name": clean(state.requested_name),
        "type": clean(state.kind),
        "project_id": indexed(state.project_id),
        "cluster_id": clean(state.cluster_id),
        "submitted_by": indexed(state.owner),
        "phase": str(state.phase),
        "phase_reason": clean(state.reason),
        "phase_message": clean(state.message),
        "phase_updated_at": life.last_phase_at,
        "desired_phase": str(state.desired),
        "queued": state.queued,
        "ended": state.completed_at is not None,
        "created_at": state.created_at,
        "started_at": life.started_at,
        "completed_at": state.completed_at,
        "deleted_at": state.deleted_at,
        "priority_class": spec.priority_class or "",
        "priority_rank": PRIORITY_RANK[spec.priority_class or ""],
        "preemptibility": spec.preemptibility or "",
        "image": clean(spec.image or ""),
        "category": clean(spec.category or ""),
        "node_pools": [clean(pool) for pool in spec.node_pools or ()],
        "labels": sorted(clean(f"{label.name}={label.value or ''}") for label in spec.labels or ()),
        "label_keys": sorted(clean(label.name) for label in spec.labels or ()),
        "completions": _fit(pod_set.count),
        "parallelism": _fit(pod_set.parallelism),
        "backoff_limit": _fit(spec.backoff_limit or 0),
        "auto_deletion_seconds": _fit(spec.auto_deletion_time_after_completion_seconds or 0),
        "requested_pods": _fit(at_once),
        "gpu_request_milli": _fit(at_once * request.gpu_devices * request.gpu_milli),
        "gpu_memory_request_bytes": _fit(at_once * request.gpu_devices * request.gpu_memory_bytes),
        "cpu_request_milli": _fit(at_once * request.cpu_milli),
        "memory_request_bytes": _fit(at_once * request.memory_bytes),
        "attempt": state.attempt,
        "failed_runs": state.failures,
        "succeeded_pods": state.succeeded,
        "running_pods": sum(pod.phase is PodPhase.RUNNING for pod in live),
        "live_pods": len(live),
        "current_nodes": sorted({clean(pod.node_name) for pod in live}),
        "current_node_pools": sorted({clean(pod.pool) for pod in live}),
        "gpu_allocated_milli": _fit(sum(_fit(sum(share.milli for share in pod.devices)) for pod in live)),
        "cpu_allocated_milli": _fit(len(live) * _fit(request.cpu_milli)),
        "memory_allocated_bytes": _fit(len(live) * _fit(request.memory_bytes)),
        "pending_micros": _fit(life.pending // timedelta(microseconds=1)),
        "running_micros": _fit(life.running // timedelta(microseconds=1)),
        "exit_code": life.exit_code,
        "delete_at": state.delete_at,
        "generation": state.generation,
    }


def _plain(rows: Mapping[Any, msgspec.Struct]) -> dict[Key, Row]:
    """As Postgres gives them."""
    return {
        key if isinstance(key, tuple) else (key,): {
            name: list(cast("tuple[object, ...]", value)) if isinstance(value, tuple) else value
            for name, value in msgspec.structs.asdict(row).items()
        }
        for key, row in rows.items()
    }


def _devices_json(devices: tuple[DeviceShare, ...]) -> str:
    return _json(devices)


def _code(code: int | None) -> int | None:
    return None if code is None else _fit(code)


def _json(value: object) -> str:
    return msgspec.json.encode(value, order="deterministic").decode()


def _fit(number: int) -> int:
    return max(-MAX_BIGINT, min(number, MAX_BIGINT))
