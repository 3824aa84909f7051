"""A rebuild gives the same tables while everything goes on, and verify finds what is not as the log says."""

import asyncio
from typing import Any

import asyncpg
import pytest

from projections.migrate import prepare, projection_schemas
from projections.postgres import Pool
from projections.queries import Queries
from projections.tables import SHAPE, SUMS, derived, not_of_zeros
from services.projector.rebuild import rebuild
from services.projector.service import current_schema
from services.projector.shadow import RebuildError
from services.projector.verify import verify
from services.projector.writer import RETIRED
from services.runtime.log.memory import MemoryEventStore
from services.runtime.log.store import LogGapError
from tests.projections.happenings import Happenings
from tests.projector.conftest import Run
from tests.projector.test_projector import everything, quiet, reached
from tests.support.lives import busy_world, feed, pieces

pytestmark = pytest.mark.anyio


async def rows_of(pool: Pool, schema: str) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table but the checkpoint and rows of zeros, in order of their text."""
    found: dict[str, list[tuple[Any, ...]]] = {}
    for table in derived.sorted_tables:
        if table.name == "checkpoint":
            continue
        where = f" WHERE {not_of_zeros(table)}" if table.name in SUMS else ""
        rows = await pool.fetch(f'SELECT * FROM "{schema}"."{table.name}"{where}')
        found[table.name] = sorted((tuple(row) for row in rows), key=repr)
    return found


async def test_a_rebuild_gives_the_same_tables(database: str, pool: Pool, queries: Queries, running: Run) -> None:
    happenings, store = Happenings(11), MemoryEventStore()
    for _ in range(300):
        happenings.step()
    feed(store, happenings.world.commits)
    async with running(store):
        await reached(queries, len(happenings.world.commits))
    old = await current_schema(pool)
    before = await rows_of(pool, old)
    told: list[tuple[int, int]] = []
    rebuilt = await rebuild(store, database, lambda seq, target: told.append((seq, target)))
    assert rebuilt.schema == await current_schema(pool) != old
    assert told[-1] == (len(happenings.world.commits), len(happenings.world.commits))
    assert await rows_of(pool, rebuilt.schema) == before
    assert await verify(store, database, quiet) == []
    status = await queries.status()
    assert (status.schema, status.rebuilding_schema) == (rebuilt.schema, None)


async def test_a_rebuild_makes_the_same_keys_and_indexes(database: str, pool: Pool) -> None:
    async def indexes() -> list[str]:
        schema = await current_schema(pool)
        rows = await pool.fetch("SELECT indexdef FROM pg_indexes WHERE schemaname = $1 ORDER BY 1", schema)
        return [row["indexdef"].replace(f"{schema}.", "") for row in rows]

    before = await indexes()
    await rebuild(MemoryEventStore(), database, quiet)
    assert await indexes() == before
    assert any("history_pkey" in index for index in before)


async def test_projectors_and_queries_go_on_during_rebuilds(database: str, queries: Queries, running: Run) -> None:
    """Three rebuilds while commits come in and somebody keeps asking: no query fails, and nothing is missed."""
    world, store = busy_world(200, nodes=4, at_once=16), MemoryEventStore()
    done = asyncio.Event()
    asked = 0

    async def write() -> None:
        for piece in pieces(world.commits, 8):
            feed(store, piece)
            await asyncio.sleep(0.01)

    async def ask() -> None:
        nonlocal asked
        last_seq = 0
        while not done.is_set():
            page = await queries.workloads(everything())
            assert page.seq >= last_seq, "time ran backwards"
            last_seq = page.seq
            asked += 1

    async with running(store), running(store), asyncio.TaskGroup() as tasks:
        writing = tasks.create_task(write())
        tasks.create_task(ask())
        for _ in range(3):
            await rebuild(store, database, quiet)
        await writing
        await reached(queries, len(world.commits))
        done.set()
    assert asked > 0
    assert await verify(store, database, quiet) == []


async def test_a_schema_that_was_replaced_is_written_to_no_more(
    database: str, pool: Pool, queries: Queries, running: Run
) -> None:
    """Also by a projector that has not heard of the rebuild yet: its next batch finds the checkpoint retired."""
    world, store = busy_world(20, nodes=2, at_once=4), MemoryEventStore()
    feed(store, world.commits)
    async with running(store):
        await reached(queries, len(world.commits))
    old = await current_schema(pool)
    await rebuild(store, database, quiet)
    assert await pool.fetchval(f'SELECT version FROM "{old}".checkpoint') == RETIRED
    assert await pool.fetchval(f'SELECT version FROM "{await current_schema(pool)}".checkpoint') == SHAPE


async def test_a_rebuild_that_was_cut_off_leaves_nothing_that_disturbs_the_next(
    database: str, pool: Pool, queries: Queries, running: Run
) -> None:
    world, store = busy_world(20, nodes=2, at_once=16), MemoryEventStore()
    feed(store, world.commits)
    async with running(store):
        await reached(queries, len(world.commits))
    old = await current_schema(pool)

    def cut_off(_: int, __: int) -> None:
        raise InterruptedError

    # As a kill leaves it: a schema that nobody cleaned up, and a note about it.
    await pool.execute('CREATE SCHEMA "muster_v7"')
    await pool.execute("UPDATE muster.current_projection SET rebuilding_schema = 'muster_v7', rebuild_seq = 3")
    assert (await queries.status()).rebuilding_schema is None
    with pytest.raises(InterruptedError):
        await rebuild(store, database, cut_off)
    assert await current_schema(pool) == old
    rebuilt = await rebuild(store, database, quiet)
    async with pool.acquire() as connection:
        assert sorted(await projection_schemas(connection)) == sorted((old, rebuilt.schema))
    assert await verify(store, database, quiet) == []


async def test_only_one_rebuild_runs_at_a_time(database: str, queries: Queries) -> None:
    world, store = busy_world(5, nodes=1, at_once=5), MemoryEventStore()
    feed(store, world.commits)
    results = await asyncio.gather(
        rebuild(store, database, quiet), rebuild(store, database, quiet), return_exceptions=True
    )
    assert sum(isinstance(result, RebuildError) for result in results) == 1
    assert (await queries.count(everything())).count == 5


async def test_a_halted_projector_goes_on_with_the_rebuilt_schema(
    database: str, pool: Pool, queries: Queries, running: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.projector.service.HALTED_SECONDS", 0.05)
    world, store = busy_world(4, nodes=1, at_once=4), MemoryEventStore()
    feed(store, world.commits)
    schema = await current_schema(pool)
    await pool.execute(f'UPDATE "{schema}".checkpoint SET version = 99')
    async with running(store) as projector:
        while "shape" not in projector.health.reason:
            await asyncio.sleep(0.01)
        await rebuild(store, database, quiet)
        while not projector.health.serving:
            await asyncio.sleep(0.01)
    assert (await queries.count(everything())).count == 4


async def test_preparing_twice_changes_nothing(postgres_database: str) -> None:
    await prepare(postgres_database)
    await asyncio.gather(prepare(postgres_database), prepare(postgres_database))
    connection = await asyncpg.connect(postgres_database)
    try:
        assert await connection.fetchval("SELECT schema_name FROM muster.current_projection") == "muster_v1"
    finally:
        await connection.close()


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("UPDATE {s}.workloads SET phase = 'Failed' WHERE name = 'job-1'", ("workloads", "phase")),
        ("UPDATE {s}.workloads SET running_micros = 1 WHERE name = 'job-1'", ("workloads", "running_micros")),
        ("DELETE FROM {s}.workloads WHERE name = 'job-1'", ("workloads", "")),
        (
            "UPDATE {s}.pods SET exit_code = 7 WHERE workload_id = (SELECT min(id) FROM {s}.workloads)",
            ("pods", "exit_code"),
        ),
        ("DELETE FROM {s}.due WHERE workload_id = (SELECT min(id) FROM {s}.workloads)", ("due", "")),
        ("UPDATE {s}.due SET generation = 9", ("due", "generation")),
        ("DELETE FROM {s}.history WHERE seq = (SELECT max(seq) FROM {s}.history)", ("history", "count")),
        ("UPDATE {s}.nodes SET used_device_milli = '{{1}}' WHERE name = 'node-0'", ("nodes", "used_device_milli")),
        (
            "INSERT INTO {s}.reservations SELECT key, 'x', '', '', 0, 0, '[]', 0 FROM {s}.nodes LIMIT 1",
            ("reservations", ""),
        ),
        ("UPDATE {s}.project_use SET workloads = workloads + 1 WHERE workloads > 0", ("project_use", "workloads")),
        ("UPDATE {s}.projects SET gpu_quota_milli = 1", ("projects", "gpu_quota_milli")),
        ("UPDATE {s}.clusters SET connected = NOT connected", ("clusters", "connected")),
        ("UPDATE {s}.checkpoint SET last_commit_id = 'x'", ("checkpoint", "last_commit_id")),
    ],
)
async def test_verify_finds_a_planted_difference(  # noqa: PLR0917 (fixtures)
    database: str, pool: Pool, queries: Queries, running: Run, statement: str, found: tuple[str, str]
) -> None:
    world, store = busy_world(3, nodes=1, at_once=3), MemoryEventStore()
    feed(store, world.commits)
    async with running(store):
        await reached(queries, len(world.commits))
    assert await verify(store, database, quiet) == []
    schema = await current_schema(pool)
    await pool.execute(statement.format(s=schema))
    differences = await verify(store, database, quiet)
    assert found in {(difference.table, difference.column) for difference in differences}, differences


async def test_verify_says_where_the_log_is_shorter_than_the_tables(
    database: str, queries: Queries, running: Run
) -> None:
    world, store = busy_world(3, nodes=1, at_once=3), MemoryEventStore()
    feed(store, world.commits)
    async with running(store):
        await reached(queries, len(world.commits))
    with pytest.raises(LogGapError):
        await verify(MemoryEventStore(), database, quiet)
