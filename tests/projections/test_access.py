"""The second barrier: what Postgres itself shows of other projects to a query that forgets to ask whose they are."""

from collections.abc import AsyncIterator
from datetime import timedelta

import asyncpg
import pytest

from projections import access, migrate
from projections.access import OPEN, POLICIES, scope_values
from projections.filters import WorkloadQuery
from projections.queries import Queries
from projections.tables import PAST, derived
from projections.unanswered import ProjectionsUnavailableError
from tests.projections.small_world import PROJECTS, WORLD
from tests.support.lives import BEGIN

pytestmark = pytest.mark.anyio

FORGETFUL = WorkloadQuery(projects=None, sort_by="name", descending=False)
DELETED = WorkloadQuery(projects=None, deleted=True)
OURS, THEIRS = PROJECTS["default"], PROJECTS["other"]


@pytest.fixture
async def pool(reader_database: str) -> AsyncIterator[Queries]:
    queries = Queries(reader_database)
    yield queries
    await queries.close()


@pytest.fixture
async def connection(reader_database: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(reader_database)
    await connection.execute("SET default_transaction_read_only = off")  # which any session may say
    yield connection
    await connection.close()


def id_of(name: str) -> str:
    ids = {
        state.name: state.workload_id for key in WORLD.chains if key[0] == "workload" for state in [WORLD.state(*key)]
    }
    return ids[name]


async def names(queries: Queries) -> set[str]:
    listed = {row["name"] for query in (FORGETFUL, DELETED) for row in (await queries.workloads(query)).rows}
    async with queries.stream(FORGETFUL) as exported:
        assert {row["name"] async for row in exported.rows} <= listed
    counted = (await queries.count(FORGETFUL)).count + (await queries.count(DELETED)).count
    assert counted == len(listed)
    return listed


@pytest.mark.parametrize(
    ("readable", "seen"),
    [
        (frozenset[str](), set[str]()),
        (frozenset({OURS}), {"alpha", "beta", "old"}),
        (frozenset({THEIRS}), {"gamma_50%"}),
        (frozenset({OURS, THEIRS}), {"alpha", "beta", "old", "gamma_50%"}),
        (frozenset({"muster", "*", "x,y"}), set[str]()),
        (None, {"alpha", "beta", "old", "gamma_50%"}),
    ],
)
async def test_a_query_that_forgets_its_filter_is_told_nothing_of_other_projects(
    pool: Queries, readable: frozenset[str] | None, seen: set[str]
) -> None:
    queries = pool.within(readable)
    assert await names(queries) == seen
    for name in ("alpha", "beta", "gamma_50%"):
        found = await queries.workload(id_of(name)), await queries.pods(id_of(name))
        assert bool(found[0].rows) is (name in seen)
        assert bool(found[1].rows) is (name in seen and name != "gamma_50%")
        assert bool((await queries.history(id_of(name))).rows) is (name in seen)
    use = set((await queries.project_use()).projects)
    assert use == ({OURS, THEIRS} if readable is None else {OURS, THEIRS} & readable)


async def test_without_a_reader_there_is_nothing(pool: Queries) -> None:
    assert await names(pool) == set()


async def test_one_readers_projects_are_gone_when_the_next_asks_on_the_same_connection(pool: Queries) -> None:
    for _ in range(5):
        assert await names(pool.within(frozenset({OURS}))) == {"alpha", "beta", "old"}
        assert await names(pool) == set()
        assert await names(pool.within(frozenset({THEIRS}))) == {"gamma_50%"}


async def test_the_same_holds_where_the_api_connects_as_the_owner(database: str) -> None:
    queries = Queries(database)
    assert await names(queries) == set()
    assert await names(queries.within(frozenset({THEIRS}))) == {"gamma_50%"}
    await queries.close()


@pytest.mark.parametrize("table", [*POLICIES, *OPEN, "due", *(table.name for table in PAST.values())])
async def test_the_apis_role_itself_may_read_and_write_nothing(connection: asyncpg.Connection, table: str) -> None:
    for statement in (f"SELECT * FROM muster_v1.{table}", f"DELETE FROM muster_v1.{table}"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute(statement)


async def test_of_the_past_a_reader_sees_the_same_projects(pool: Queries, connection: asyncpg.Connection) -> None:
    moment = (await pool.within(None).moment(len(WORLD.commits) - 4)).moment
    past = pool.as_of(moment)
    assert await names(past.within(frozenset({OURS}))) == {"alpha", "beta", "old"}
    assert await names(past.within(frozenset({THEIRS}))) == {"gamma_50%"}
    assert await names(past) == set()
    kept: dict[str, set[str]] = {}
    for project in (OURS, THEIRS):
        await connection.execute("BEGIN")
        for name, value in scope_values(frozenset({project})).items():
            await connection.execute("SELECT set_config($1, $2, true)", name, value)
        rows = await connection.fetch("SELECT id FROM muster_v1.workloads_past")
        kept[project] = {row["id"] for row in rows}
        await connection.execute("ROLLBACK")
    assert kept[OURS]
    assert not kept[OURS] & kept[THEIRS]


@pytest.mark.parametrize("readable", [frozenset({OURS}), None])
async def test_a_reader_may_change_nothing_and_become_nobody_else(
    connection: asyncpg.Connection, readable: frozenset[str] | None
) -> None:
    for statement in (
        "DELETE FROM muster_v1.workloads",
        "SELECT * FROM muster_v1.due",
        "UPDATE muster.current_projection SET schema_name = 'x'",
        "SET ROLE postgres",
    ):
        await connection.execute("BEGIN")
        for name, value in scope_values(readable).items():
            await connection.execute("SELECT set_config($1, $2, true)", name, value)
        with pytest.raises((asyncpg.InsufficientPrivilegeError, asyncpg.InvalidParameterValueError)):
            await connection.execute(statement)
        await connection.execute("ROLLBACK")


SAMPLES = """
    INSERT INTO muster.usage_samples
        (cluster_id, project_id, workload_id, pod_set, index, attempt, try_, at, cpu_milli, memory_bytes)
    SELECT cluster_id, project_id, id, 'main', 0, 1, 0, $1, 1, 1 FROM muster_v1.workloads
"""


@pytest.mark.parametrize("old", [False, True], ids=["named", "from before samples named their project"])
async def test_samples_of_a_workload_are_for_those_who_may_read_it(database: str, pool: Queries, old: bool) -> None:
    owner = await asyncpg.connect(database)
    await owner.execute(SAMPLES, BEGIN)
    if old:
        await owner.execute("UPDATE muster.usage_samples SET project_id = ''")
    ours, theirs = pool.within(frozenset({OURS})), pool.within(frozenset({THEIRS}))
    for queries, name, there in ((ours, "alpha", True), (ours, "gamma_50%", False), (theirs, "gamma_50%", True)):
        series = await queries.usage(id_of(name), BEGIN, BEGIN + timedelta(seconds=10))
        assert bool(series) is there
    await owner.execute("DELETE FROM muster.usage_samples")
    await owner.close()


@pytest.mark.parametrize(("readable", "names"), [(OURS, {"alpha", "beta", "old"}), (THEIRS, {"gamma_50%"})])
async def test_reservations_and_samples_of_other_projects_are_in_no_statement(
    database: str, connection: asyncpg.Connection, readable: str, names: set[str]
) -> None:
    owner = await asyncpg.connect(database)
    await owner.execute(SAMPLES, BEGIN)
    mine = {id_of(name) for name in names}
    async with connection.transaction():
        for name, value in scope_values(frozenset({readable})).items():
            await connection.execute("SELECT set_config($1, $2, true)", name, value)
        sampled = await connection.fetch("SELECT workload_id FROM muster.usage_samples")
        held = await connection.fetch("SELECT workload_id FROM muster_v1.reservations")
    assert {row["workload_id"] for row in sampled} == mine
    assert {row["workload_id"] for row in held} == mine & {id_of("alpha"), id_of("beta")}
    await owner.execute("DELETE FROM muster.usage_samples")
    await owner.close()


async def test_policies_of_an_installation_of_before_are_made_anew(
    postgres_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples were once shown of the one workload that was asked for, and said nothing of its project."""
    asked = "workload_id = (SELECT current_setting('app.workload', true))"
    with monkeypatch.context() as before:
        before.setattr(migrate, "MIGRATIONS", migrate.MIGRATIONS[:6])
        before.setattr(access, "_SAMPLES", (asked, asked))
        await migrate.prepare(postgres_database)
    owner = await asyncpg.connect(postgres_database)
    await owner.execute("INSERT INTO muster.usage_samples VALUES ('c', 'w', 'main', 0, 1, 0, $1, 1, 1)", BEGIN)
    for _ in range(2):
        await migrate.prepare(postgres_database)
        found = await owner.fetch("SELECT policyname, qual FROM pg_policies WHERE tablename = 'usage_samples'")
        policies = {row["policyname"]: row["qual"] for row in found}
        assert policies["muster_tenant_reader"] == "true"
        assert "project_id" in policies["muster_project_reader"]
        assert await owner.fetchval("SELECT project_id FROM muster.usage_samples") == ""
    await owner.close()


def test_every_table_with_something_of_a_project_is_behind_a_policy_or_closed() -> None:
    of_projects = {
        table.name for table in derived.sorted_tables if {"project_id", "workload_id"} & set(table.columns.keys())
    }
    assert not of_projects & set(OPEN)
    assert {"workloads", "pods", "history", "project_use"} <= of_projects & set(POLICIES)


async def test_a_database_that_was_not_prepared_for_the_api_is_said_to_be_unavailable(
    database: str, reader_database: str
) -> None:
    owner = await asyncpg.connect(database)
    queries = Queries(reader_database).within(None)
    await owner.execute("REVOKE ALL ON muster.current_projection FROM muster_tenant_reader")
    try:
        with pytest.raises(ProjectionsUnavailableError):
            await queries.status()
    finally:
        await owner.execute("GRANT SELECT ON muster.current_projection TO muster_tenant_reader")
        await owner.close()
        await queries.close()
