"""Rows of workloads that left lost clusters (issue 14 section 2, S007, ADR 0138): hourly use is the same however the
log is cut into batches, and what was left behind counts as lost, and no more as at risk.
"""

import random
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from development.servers import PostgresServer
from events.cluster import ReportCluster
from events.commit import Commit
from events.ids import cluster_key
from events.workload.at_risk import gpu_hours_at_risk
from projections.filters import WorkloadQuery
from projections.migrate import prepare
from projections.queries import Queries
from projections.tables import SUMS, derived, numbers_of
from services.projector.engine import Engine, open_pool
from services.projector.writer import Writer
from services.runtime.log.memory import MemoryEventStore
from tests.projections.conftest import as_reader
from tests.scheduler.test_lost_cluster import moved, old_pods
from tests.scheduler.world import World
from tests.support.draws import draws
from tests.support.random_lives import Lives
from tests.support.tables import Tables


def tables_of(batches: Iterable[Sequence[Commit]]) -> dict[str, dict[Any, dict[str, Any]]]:
    """All rows but sums of nothing, which a batch may leave behind or not, and those of the past, which there are by
    batches.
    """
    tables = Tables()
    for batch in batches:
        tables.project(batch)
    found = {name: rows for name, rows in tables.plain().items() if name != "moments" and not name.endswith("_past")}
    for name in SUMS:
        numbers = numbers_of(derived.tables[f"projection.{name}"])
        found[name] = {key: row for key, row in found[name].items() if any(row[number] for number in numbers)}
    return found


def test_waiting_of_what_left_a_lost_cluster_is_the_same_however_the_log_is_cut() -> None:
    world, _, _ = moved()
    whole = tables_of([world.commits])
    single = tables_of([commit] for commit in world.commits)
    for name, rows in whole.items():
        assert single[name] == rows, name


@settings(max_examples=draws(15), deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 200), cuts=st.integers(2, 20))
@example(seed=0, steps=200, cuts=7)  # with departures
def test_rows_of_lives_that_lose_clusters_are_the_same_however_the_log_is_cut(seed: int, steps: int, cuts: int) -> None:
    lives = Lives(random.Random(seed))
    for _ in range(steps):
        lives.step()
    commits = lives.world.commits
    whole = tables_of([commits])
    for size in (1, cuts):
        batches = tables_of(commits[start : start + size] for start in range(0, len(commits), size))
        for name, rows in whole.items():
            assert batches[name] == rows, (name, size)


@pytest.mark.anyio
async def test_what_was_left_behind_is_no_more_at_risk_nor_idle(
    postgres_server: PostgresServer, postgres_database: str
) -> None:
    """Given a workload that runs on another cluster, and whose old run is not known to have ended."""
    world, both, key = moved()
    world.fact(key, "running")
    state = world.workload(key)
    assert len(old_pods(world, key, both[0])) == len(state.pods.live) == 1
    reader_url = as_reader(postgres_database)
    await prepare(postgres_database, reader_url)
    pool, queries = await open_pool(postgres_database), Queries(reader_url)
    writer = Writer(pool, "muster_v1")
    engine = Engine(MemoryEventStore(), writer, await writer.checkpoint())
    owner = await asyncpg.connect(postgres_database)
    try:
        await engine.apply(world.commits)
        await engine.flush()
        runs = [*state.left[both[0]].items(), *state.pods.live.items()]
        await owner.executemany(
            "INSERT INTO muster.usage_samples VALUES ($1, $2, $3, $4, $5, $6, now() - $7 * interval '1 s', 1, 1, 0)",
            [
                (state.cluster_id, state.workload_id, name, index, pod.attempt, pod.try_, ago)
                for (name, index), pod in runs
                for ago in (0, 150, 310)
            ],
        )
        (row,) = (await queries.within(None).workloads(WorkloadQuery(projects=None))).rows
        now: datetime = await owner.fetchval("SELECT now()")
    finally:
        await owner.close()
        await queries.close()
        await pool.close()
    at_risk = gpu_hours_at_risk(state, now)
    assert at_risk
    assert row["work_at_risk"] == pytest.approx(at_risk, rel=0.001)
    assert row["idle_gpus"] == 1


@pytest.mark.anyio
async def test_a_row_says_since_when_the_cluster_of_its_pods_is_lost(
    postgres_server: PostgresServer, postgres_database: str
) -> None:
    """Given one workload that runs and one that waits, when their cluster is lost: only of the first something is not
    known. Its agent says a problem later, and is heard again in the end.
    """
    world = World()
    cluster_id = world.cluster()
    world.project()
    world.node("n", gpu_count=1)
    runs, waits = world.submit("runs", gpu_devices_request=1), world.submit("waits", gpu_devices_request=1)
    world.settle()
    world.fact(runs, "running")
    reader_url = as_reader(postgres_database)
    await prepare(postgres_database, reader_url)
    pool, queries = await open_pool(postgres_database), Queries(reader_url)
    writer = Writer(pool, "muster_v1")
    engine = Engine(MemoryEventStore(), writer, await writer.checkpoint())
    told = 0

    async def lost_since() -> dict[str, datetime | None]:
        nonlocal told
        await engine.apply(world.commits[told:])
        await engine.flush()
        told = len(world.commits)
        rows = (await queries.within(None).workloads(WorkloadQuery(projects=None))).rows
        return {row["name"]: row["cluster_lost_since"] for row in rows}

    try:
        assert await lost_since() == {"runs": None, "waits": None}
        since = world.now
        world.connect(cluster_id, connected=False)
        assert await lost_since() == {"runs": since, "waits": None}
        world.now += timedelta(minutes=1)
        problem = ReportCluster(cluster_id=cluster_id, connected=False, problem="no API server")
        world.do("cluster", cluster_key("local"), problem)
        assert await lost_since() == {"runs": since, "waits": None}
        world.connect(cluster_id)
        assert await lost_since() == {"runs": None, "waits": None}
        assert world.workload(waits).phase == "Pending"
    finally:
        await queries.close()
        await pool.close()
