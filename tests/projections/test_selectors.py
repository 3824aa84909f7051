"""Selectors of labels: their grammar, what they find, and that one index does, also for readers of some projects."""

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from projections.filters import WorkloadQuery
from projections.queries import Queries
from projections.selectors import BadSelectorError, Requirement, parse_selector
from tests.projections.small_world import PROJECTS

pytestmark = pytest.mark.anyio

OURS, THEIRS = frozenset({PROJECTS["default"]}), frozenset({PROJECTS["other"]})
EVERYBODY: tuple[tuple[frozenset[str] | None, str], ...] = (
    (None, "alpha beta gamma_50%"),
    (OURS | THEIRS, "alpha beta gamma_50%"),
    (OURS, "alpha beta"),
    (THEIRS, "gamma_50%"),
    (frozenset(), ""),
)


@pytest.mark.parametrize(
    ("text", "requirements"),
    [
        ("a=b", [("a", "in", ("b",))]),
        ("a==b", [("a", "in", ("b",))]),
        ("a = b", [("a", "in", ("b",))]),
        ("a=", [("a", "in", ("",))]),
        ("a!=b", [("a", "notin", ("b",))]),
        ("a in (b)", [("a", "in", ("b",))]),
        ("a in(b, c ,)", [("a", "in", ("b", "c", ""))]),
        ("a notin (b,c)", [("a", "notin", ("b", "c"))]),
        ("a", [("a", "exists", ())]),
        ("in", [("in", "exists", ())]),
        ("in in (in)", [("in", "in", ("in",))]),
        ("!a", [("a", "absent", ())]),
        ("! a", [("a", "absent", ())]),
        ("example.com/a.b_c=d-e", [("example.com/a.b_c", "in", ("d-e",))]),
        (
            "a=b,c in (d,e),!f, g",
            [("a", "in", ("b",)), ("c", "in", ("d", "e")), ("f", "absent", ()), ("g", "exists", ())],
        ),
    ],
)
def test_the_grammar_is_kubernetes(text: str, requirements: list[tuple[str, Any, tuple[str, ...]]]) -> None:
    assert parse_selector(text) == tuple(Requirement(key=k, op=op, values=values) for k, op, values in requirements)


@pytest.mark.parametrize(
    "text",
    ["", " ", ",", "a,", ",a", "a b", "a=b c", "a=b=c", "a in", "a in b", "a in (b", "a in (b))", "a>1", "-a", "a=-b",
     "a/b/c=d", "!a=b", "a=" + "b" * 64, "a in (" + ",".join(["b"] * 101) + ")", ",".join(["a"] * 33), "ä", "a='b'"],
)  # fmt: skip
def test_what_is_no_selector_is_refused_with_what_would_do(text: str) -> None:
    with pytest.raises(BadSelectorError) as refused:
        parse_selector(text)
    assert any(word in str(refused.value) for word in ("write KEY=VALUE", "at most"))


@pytest.fixture
async def pool(reader_database: str) -> AsyncIterator[Queries]:
    queries = Queries(reader_database)
    yield queries
    await queries.close()


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        ("team=vision", "alpha gamma_50%"),
        ("team==nlp", "beta"),
        ("team=Vision", ""),
        ("team!=vision", "beta"),
        ("stage!=dev", "beta gamma_50%"),
        ("team in (nlp, vision)", "alpha beta gamma_50%"),
        ("team in (nlp), stage", ""),
        ("team notin (nlp)", "alpha gamma_50%"),
        ("stage", "alpha"),
        ("!stage", "beta gamma_50%"),
        ("!team", ""),
        ("old", "alpha"),
        ("old=", "alpha"),
        ("team=vision,stage in (dev,test),!new", "alpha"),
        ("team=vision,!stage", "gamma_50%"),
        ("team,stage=dev,old", "alpha"),
    ],
)
async def test_what_a_selector_finds_within_what_its_asker_may_read(pool: Queries, selector: str, found: str) -> None:
    for projects, readable in EVERYBODY:
        query = WorkloadQuery(projects=projects, labels=parse_selector(selector), sort_by="name", descending=False)
        queries = pool.within(projects)
        page = await queries.workloads(query)
        wanted = [name for name in found.split() if name in readable.split()]
        assert [row["name"] for row in page.rows] == wanted, (selector, projects)
        assert (await queries.count(query)).count == len(wanted)


async def test_the_function_tells_nothing_of_other_projects_whoever_calls_it(reader_database: str) -> None:
    connection = await asyncpg.connect(reader_database)
    try:
        asked = """SELECT muster.labelled('[{"labels": ["team=vision"]}]')"""
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.fetch(asked)
        for projects, count in (("", 0), (PROJECTS["other"], 1), (",".join(PROJECTS.values()), 2)):
            async with connection.transaction():
                await connection.execute("SET LOCAL ROLE muster_project_reader")
                await connection.execute("SELECT set_config('app.projects', $1, true)", projects)
                assert len(await connection.fetch(asked)) == count
                quoted = (
                    """SELECT muster.labelled('[{"labels": ["a''b\\\\\\"{},=c"]}, {"keys": ["x'') OR true --"]}]')"""
                )
                assert await connection.fetch(quoted) == []
    finally:
        await connection.close()


async def test_one_index_finds_them_also_for_readers_of_some_projects(database: str, reader_database: str) -> None:
    connection = await asyncpg.connect(reader_database)
    owner = await asyncpg.connect(database)

    async def scans() -> int:
        return int(
            await owner.fetchval("SELECT idx_scan FROM pg_stat_all_indexes WHERE indexrelname = 'workloads_labels'")
        )

    try:
        for role, projects, asked in (
            ("muster_tenant_reader", "", "SELECT id FROM muster_v1.workloads WHERE labels && '{team=nlp}'"),
            ("muster_project_reader", PROJECTS["default"], """SELECT muster.labelled('[{"labels": ["team=nlp"]}]')"""),
        ):
            before = await scans()
            async with connection.transaction():
                await connection.execute(f"SET LOCAL ROLE {role}")
                await connection.execute("SELECT set_config('app.projects', $1, true)", projects)
                # So small a table is otherwise read whole.
                await connection.execute("SET LOCAL enable_seqscan = off")
                assert len(await connection.fetch(asked)) == 1
            await connection.execute("SELECT pg_stat_force_next_flush()")
            await connection.execute("SELECT 1")
            assert await scans() == before + 1, role
    finally:
        await connection.close()
        await owner.close()
