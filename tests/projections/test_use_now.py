"""Who uses what now: the sums are those of the aggregates' own fold, whoever asks; and no history is read for them."""

import random
import re
import secrets
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import cycle
from typing import Any

import asyncpg
import pytest
from sqlalchemy import Executable, Select, func, select
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import ClauseElement

from development.servers import PostgresServer
from events.commit import Actor
from events.ids import node_key
from events.node import Node
from events.workload.state import Workload
from projections.access import scope_values
from projections.found import UseNow
from projections.queries import Queries
from projections.tables import DERIVED_SCHEMA
from projections.use_now import COLUMNS, PLACES, By, UseQuery, use_statement
from services.projector.engine import Engine, open_pool
from services.projector.writer import Writer
from services.runtime.log.memory import MemoryEventStore
from tests.projections.small_world import PROJECTS, fill
from tests.support.lives import ALICE
from tests.support.random_lives import DEVICE_BYTES, NODES, Lives

pytestmark = pytest.mark.anyio

EVERYTHING = "everything"
BOB = Actor(id="bob")
RUNNING = {"Initializing", "Running", "Unknown", "Degraded", "Updating"}
PENDING = {"Creating", "Pending", "Resuming"}


class Explained(Executable, ClauseElement):
    """The plan of a statement, as lines of text."""

    inherit_cache = False

    def __init__(self, statement: Select[Any]) -> None:
        self.statement = statement


@compiles(Explained)
def explain(element: Explained, compiler: Any, **options: Any) -> str:
    return f"EXPLAIN {compiler.process(element.statement, **options)}"


class ManyLives(Lives):
    """Of two people in two projects."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(chance)
        self.projects = [self.project_id, self.world.project("other")]
        self.every: dict[str, Workload] = {}
        """By id, also those whose name is another's now."""

    def step(self) -> None:
        self.project_id = self.chance.choice(self.projects)
        super().step()
        self.every |= {state.workload_id: state for key in self.keys for state in [self.world.state("workload", key)]}

    def _do(self, aggregate: str, key: str, command: Any, actor: Actor = ALICE) -> None:
        super()._do(aggregate, key, command, self.chance.choice((ALICE, BOB)) if actor is ALICE else actor)


@dataclass
class Sum:
    """What one row must say."""

    running: int = 0
    pending: int = 0
    ending: set[str] = field(default_factory=set[str])
    pods: int = 0
    gpu_milli: int = 0
    firm_gpu_milli: int = 0
    gpu_memory_bytes: int = 0
    cpu_milli: int = 0
    memory_bytes: int = 0
    held_by: set[str] = field(default_factory=set[str])


def key_of(by: By | None, workload: Workload, node: Node | None) -> str | None:
    match by:
        case By.PROJECT:
            return workload.project_id
        case By.USER:
            return workload.owner
        case By.WORKLOAD:
            return workload.workload_id
        case By.NODE:
            return None if node is None else node.name
        case By.NODE_POOL:
            return None if node is None else node.facts.pool
        case None:
            return EVERYTHING


def expected(lives: ManyLives, by: By | None, projects: set[str]) -> dict[str, Sum]:
    """By plain loops over the folds of nodes and workloads."""
    sums: dict[str, Sum] = {}
    if by is By.PROJECT:
        sums = {project: Sum() for project in projects}
    for node in lives.nodes():
        for reservation in node.reservations.values():
            workload = lives.every[reservation.workload_id]
            if workload.project_id not in projects:
                continue
            one = sums.setdefault(key_of(by, workload, node) or "", Sum())
            milli = sum(share.milli for share in reservation.devices)
            one.pods += 1
            one.gpu_milli += milli
            one.firm_gpu_milli += milli if workload.spec.preemptibility == "non-preemptible" else 0
            one.gpu_memory_bytes += milli * DEVICE_BYTES // 1000
            one.cpu_milli += reservation.cpu_milli
            one.memory_bytes += reservation.memory_bytes
            goes_on = workload.phase.value in RUNNING | PENDING and workload.deleted_at is None
            (one.held_by if goes_on else one.ending).add(workload.workload_id)
    if by in PLACES:
        for one in sums.values():
            one.running = len(one.held_by)
        return sums
    for workload in lives.every.values():
        if workload.project_id in projects and workload.deleted_at is None:
            phase = workload.phase.value
            if phase in RUNNING | PENDING:
                one = sums.setdefault(key_of(by, workload, None) or "", Sum())
                one.running += phase in RUNNING
                one.pending += phase in PENDING
    return sums


def row_key(by: By | None, row: Any) -> str:
    return EVERYTHING if by is None else row["name"] if by in PLACES else row["id"]


def assert_sums(by: By | None, rows: Any, sums: dict[str, Sum]) -> None:
    there = {row_key(by, row): row for row in rows if by not in PLACES or row["pods"]}
    assert there.keys() == sums.keys(), by
    for key, one in sums.items():
        for name, value in vars(one).items():
            if name != "held_by":
                want = len(value) if isinstance(value, set) else value
                assert there[key][name] == want, (by, key, name)


async def asked(queries: Queries, by: By, **more: Any) -> UseNow:
    return await queries.use_now(UseQuery(projects=None, by=by, **more))


async def test_the_sums_are_those_of_the_folds_of_nodes_and_workloads_whatever_happens(prepared_database: str) -> None:
    lives, told, seen = ManyLives(random.Random(11)), 0, Counter[str]()
    pool, queries = await open_pool(prepared_database), Queries(prepared_database)
    writer = Writer(pool, "muster_v1")
    engine = Engine(MemoryEventStore(), writer, await writer.checkpoint())
    try:
        for readable in [{lives.projects[1]}, set(lives.projects)] * 5:
            for _ in range(50):
                lives.step()
            await engine.apply(lives.world.commits[told:])
            await engine.flush()
            told = len(lives.world.commits)
            reader = queries.within(frozenset(readable) if len(readable) == 1 else None)
            for by in By:
                page = await asked(reader, by)
                assert page.seq == told
                assert_sums(by, page.rows, expected(lives, by, readable))
                assert_sums(None, [page.total], expected(lives, None, readable) or {EVERYTHING: Sum()})
                seen.update({name: int(page.total[name]) for name in ("running", "pending", "ending", "gpu_milli")})
            assert_room(lives, (await asked(queries.within(None), By.NODE)).rows)
    finally:
        await queries.close()
        await pool.close()
    assert all(seen[name] for name in ("running", "pending", "ending", "gpu_milli")), seen


def assert_room(lives: ManyLives, rows: Any) -> None:
    """Capacity, and what is free of it, of every node that is there."""
    by_name = {row["name"]: row for row in rows}
    for name in NODES:
        node: Node = lives.world.state("node", node_key(lives.cluster_id, name))
        if not node.present:
            assert by_name.get(name, {}).get("capacity_gpu_milli") is None
            continue
        row = by_name[name]
        assert row["capacity_gpu_milli"] == node.facts.gpu_count * 1000
        assert row["capacity_cpu_milli"] == node.facts.cpu_milli
        # Nothing is free in a cluster that is not connected: no agent ever was, here.
        assert row["free_gpu_milli"] == row["free_cpu_milli"] == 0


SAMPLE = """
    INSERT INTO muster.usage_samples
        (cluster_id, project_id, workload_id, pod_set, index, attempt, try_, at, cpu_milli, memory_bytes,
         gpu_utilization_percent, gpu_memory_bytes)
    SELECT w.cluster_id, w.project_id, w.id, 'main', 0, 1, 0, $2, $3, 5000, $4, 7000
    FROM muster_v1.workloads w WHERE w.name = $1
"""


@pytest.fixture
async def measured(database: str) -> Any:
    """Alpha, which runs, was measured thrice, once long ago; and gamma, which holds nothing."""
    owner = await asyncpg.connect(database)
    now = datetime.now(UTC)
    await owner.execute(SAMPLE, "alpha", now - timedelta(minutes=20), 9000, 1.0)
    await owner.execute(SAMPLE, "alpha", now - timedelta(seconds=20), 100, 10.0)
    await owner.execute(SAMPLE, "alpha", now, 200, 80.0)
    await owner.execute(SAMPLE, "gamma_50%", now, 8000, 99.0)
    yield
    await owner.execute("DELETE FROM muster.usage_samples")
    await owner.close()


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize("by", By)
async def test_what_is_used_is_what_the_newest_samples_of_runs_that_hold_something_say(
    reader_database: str, by: By
) -> None:
    queries = Queries(reader_database)
    try:
        for readable, there in (
            (None, True),
            (frozenset({PROJECTS["default"]}), True),
            (frozenset({PROJECTS["other"]}), False),
        ):
            page = await queries.within(readable).use_now(UseQuery(projects=readable, by=by, sort_by="used_cpu_milli"))
            for row in (page.rows[0], page.total):
                assert row["measured_pods"] == int(there)
                assert row["used_cpu_milli"] == (200 if there else None)
                assert row["used_memory_bytes"] == (5000 if there else None)
                assert row["used_gpu_memory_bytes"] == (7000 if there else None)
                assert row["gpu_utilization_percent"] == (80 if there else None)
    finally:
        await queries.close()


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize("by", By)
async def test_a_sample_of_a_clock_that_was_ahead_does_not_outlast_those_of_now(
    database: str, reader_database: str, by: By
) -> None:
    owner, queries = await asyncpg.connect(database), Queries(reader_database)
    try:
        await owner.execute(SAMPLE, "alpha", datetime.now(UTC) + timedelta(hours=3), 9000, 1.0)
        page = await asked(queries.within(None), by)
        assert (page.total["measured_pods"], page.total["used_cpu_milli"]) == (1, 200)
    finally:
        await owner.close()
        await queries.close()


SECOND_RUN = """
    INSERT INTO muster_v1.reservations
    SELECT (jsonb_populate_record(r, jsonb_build_object('id', replace(r.id, '/main-0/', '/main-1/')))).*
    FROM muster_v1.reservations r JOIN muster_v1.workloads w ON w.id = r.workload_id WHERE w.name = 'alpha'
"""


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize("by", By)
async def test_gpus_that_an_agent_says_are_busy_for_next_to_nothing_are_idle(
    database: str, reader_database: str, by: By
) -> None:
    smallest = 5e-324  # half of it is too small for a double
    owner, queries = await asyncpg.connect(database), Queries(reader_database)
    try:
        await owner.execute(SECOND_RUN)
        await owner.execute("DELETE FROM muster.usage_samples")
        await owner.execute(SAMPLE, "alpha", datetime.now(UTC), 100, smallest)
        await owner.execute(SAMPLE.replace("'main', 0", "'main', 1"), "alpha", datetime.now(UTC), 100, 0.0)
        page = await asked(queries.within(None), by)
        assert page.total["measured_pods"] == 2
        for row in (page.rows[0], page.total):
            assert round(row["gpu_utilization_percent"], 1) == 0
    finally:
        await owner.execute("DELETE FROM muster_v1.reservations WHERE id LIKE '%/main-1/%'")
        await owner.close()
        await queries.close()


@pytest.mark.parametrize(("by", "column"), list(zip(cycle(By), COLUMNS, strict=False)))
async def test_every_column_sorts_both_ways_and_pages_neither_repeat_nor_skip(
    database: str, by: By, column: str
) -> None:
    queries = Queries(database).within(None)
    try:
        whole = (await asked(queries, by, sort_by=column, descending=False)).rows
        assert len(whole) == len((await asked(queries, by, sort_by=column)).rows)
        paged: list[Any] = []
        offset: int | None = 0
        while offset is not None:
            page = await asked(queries, by, sort_by=column, descending=False, offset=offset, limit=1)
            paged, offset = [*paged, *page.rows], page.next
        assert [dict(row) for row in paged] == [dict(row) for row in whole]
        values = [row[column] for row in whole if row[column] is not None]
        assert values == sorted(values)
    finally:
        await queries.close()


PAST = """
    INSERT INTO muster_v1.workloads
    SELECT (jsonb_populate_record(w, jsonb_build_object(
        'id', 'past' || i, 'key', 'past' || i, 'phase', 'Completed', 'completed_at', now(), 'deleted_at', now()
    ))).* FROM muster_v1.workloads w, generate_series(1, 3000) i WHERE w.name = 'alpha'
"""
HELD = """
    INSERT INTO muster_v1.reservations
    SELECT n.key, 'held' || i, 'past' || i, '', 1, 1, '[]', 0 FROM muster_v1.nodes n, generate_series(1, 1500) i
"""


@pytest.fixture(scope="module")
async def long_past(postgres_server: PostgresServer) -> str:
    """The small world after 3,000 workloads that are over, with so many reservations that a join would read all."""
    name = f"past_{secrets.token_hex(4)}"
    await fill(postgres_server, name, "")
    owner = await asyncpg.connect(postgres_server.url(name))
    await owner.execute(PAST)
    await owner.execute(HELD)
    await owner.execute("VACUUM ANALYZE")
    await owner.close()
    return postgres_server.url(name)


@pytest.mark.parametrize("readable", [None, frozenset({PROJECTS["default"]})], ids=["everything", "one project"])
@pytest.mark.parametrize("by", By)
async def test_what_is_over_is_not_read(long_past: str, by: By, readable: frozenset[str] | None) -> None:
    engine = create_async_engine(long_past.replace("postgresql:", "postgresql+asyncpg:"))
    statement = use_statement(UseQuery(projects=readable, by=by))
    async with engine.connect() as connection:
        bound = await connection.execution_options(schema_translate_map={DERIVED_SCHEMA: "muster_v1"})
        await bound.execute(select(*(func.set_config(*one, True) for one in scope_values(readable).items())))
        plan = "\n".join(line for (line,) in await bound.execute(Explained(statement)))
    await engine.dispose()
    assert "workloads_pkey" in plan
    assert not re.search(r"Seq Scan on (workloads|pods|history)\b", plan), plan
