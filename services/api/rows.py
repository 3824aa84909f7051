"""The row of one workload made from the log, by the projection that also makes the tables: for an answer that is whole
and of one moment while the tables are behind, or Postgres is away.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, Final
from weakref import WeakValueDictionary

import msgspec

from events.aggregate import CLUSTER, PROJECT, WORKLOAD, Chain
from events.ids import key_of_id
from events.phases import RUNS
from events.workload.at_risk import gpu_hours_at_risk
from events.workload.state import Workload
from projections.changes import Changes
from projections.filters import WAITING_PHASES
from projections.row_json import row_to_json
from projections.workloads.project import EMPTY, WorkloadEntry, WorkloadWork
from projections.workloads.rows import PodRow, WorkloadRow
from services.runtime.identity.directory import Directory
from services.runtime.log.store import EventReader
from services.runtime.process.turn import Turn

KEPT_ENTRIES: Final = 100
"""Rows that are kept, the least recently used going first, so that the next read costs only what is new."""


class LoggedRows:
    """Rows of single workloads, made from the log."""

    def __init__(
        self, store: EventReader, directory: Directory, *, now: Callable[[], datetime | None] = lambda: None
    ) -> None:
        """`now`: up to when present times are counted; None: the present."""
        self._store = store
        self._directory = directory
        self._now = now
        self._entries: OrderedDict[str, WorkloadEntry] = OrderedDict()
        self._making: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By workload: held by who makes its row."""

    async def of(self, chain: Chain[Workload], *, now: datetime | None = None) -> dict[str, Any]:
        """What the row says at the chain's version, at this time where it is not the present one."""
        state = chain.state
        # Of several who ask for one, each goes on where the one before got to, also where that one gave up.
        async with self._making.setdefault(state.workload_id, asyncio.Lock()):
            entry = self._entries.get(state.workload_id, EMPTY)
            if entry.version > chain.version:
                entry = EMPTY
            entry = await self._up_to(entry, state.workload_id, chain.version)
            self._keep(state.workload_id, entry)
        assert entry.row is not None, "a workload that was loaded was created"
        return row_to_json(
            msgspec.structs.asdict(entry.row)
            | _totals(entry.row, now or self._now() or datetime.now(UTC))
            | {
                **await self._of_project(state.project_id),
                "cluster_name": await self._cluster_name(state.cluster_id),
                "cluster_lost_since": self._lost_since(state),
                # Measured use stands in the tables alone.
                "idle_gpus": None if entry.row.gpu_allocated_milli else 0,
                "work_at_risk": gpu_hours_at_risk(state, now or self._now() or datetime.now(UTC)),
            }
        )

    async def runs_of(self, chain: Chain[Workload]) -> list[dict[str, Any]]:
        """Rows of every run of every pod at the chain's version, as the tables have and order them."""
        id_, entry, changes, turn = chain.state.workload_id, EMPTY, Changes(), Turn()
        key = key_of_id(id_) or ""
        async with aclosing(self._store.commits(WORKLOAD, key, after_seq=0, until_seq=chain.version)) as pages:
            async for commits in pages:
                work = WorkloadWork(key, entry, tells=False)
                for commit in commits:
                    work.add(commit, changes)
                    await turn.pass_on()
                entry = work.finish(changes)
        runs: list[PodRow] = [row for row in changes.put.get("pods", {}).values() if row.workload_id == id_]
        runs.sort(key=lambda run: (run.pod_set, run.index, run.attempt, run.try_))
        return [msgspec.structs.asdict(run) | {"devices": msgspec.json.decode(run.devices)} for run in runs]

    async def _up_to(self, entry: WorkloadEntry, workload_id: str, version: int) -> WorkloadEntry:
        """The entry with what came since. A chain may begin with other workloads of the same name."""
        key = key_of_id(workload_id) or ""
        turn = Turn()
        async with aclosing(self._store.commits(WORKLOAD, key, after_seq=entry.version, until_seq=version)) as pages:
            async for commits in pages:
                work = WorkloadWork(key, entry, tells=False)
                for commit in commits:
                    work.add(commit, Changes())
                    await turn.pass_on()
                entry = work.finish(Changes())
                self._keep(workload_id, entry)
        return entry

    def _keep(self, workload_id: str, entry: WorkloadEntry) -> None:
        self._entries[workload_id] = entry
        self._entries.move_to_end(workload_id)
        while len(self._entries) > KEPT_ENTRIES:
            self._entries.popitem(last=False)

    async def _of_project(self, project_id: str) -> dict[str, str | None]:
        """Names of its project and department."""
        known, key = self._directory.project(project_id), key_of_id(project_id)
        if known is None and key is not None:
            # Whatever was made on one chain has one name, also where another one has it now.
            known = (await self._store.load(PROJECT, key)).state
        there = known is not None and bool(known.name)
        return {
            "project_name": known.name if known is not None and there else None,
            "department_id": known.department_id if known is not None and there else None,
            "department_name": known.department_name if known is not None and there else None,
        }

    def _lost_since(self, state: Workload) -> datetime | None:
        known = self._directory.cluster(state.cluster_id) if state.pods.live.size else None
        lost = known is not None and known.exists and not known.connected
        return known.connection_changed_at if known is not None and lost else None

    async def _cluster_name(self, cluster_id: str) -> str | None:
        known, key = self._directory.cluster(cluster_id), key_of_id(cluster_id)
        if known is not None or key is None:
            return None if known is None else known.name
        # A removed cluster keeps its name here, as in the tables.
        return (await self._store.load(CLUSTER, key)).state.name or None


def _totals(row: WorkloadRow, now: datetime) -> dict[str, float]:
    """Past stays, and the present one up to now; as the queries count them."""
    present = max((now - row.phase_updated_at).total_seconds(), 0.0) if row.deleted_at is None else 0.0
    return {
        "total_pending_seconds": row.pending_micros / 1e6 + (present if row.phase in WAITING_PHASES else 0.0),
        "total_running_seconds": row.running_micros / 1e6 + (present if row.phase in RUNS else 0.0),
    }
