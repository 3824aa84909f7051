"""Tables made beside those in use: as of a moment, and to be compared; and what a process that died left of them."""

import asyncio
import os
import random
import signal
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from development.servers import NatsServer
from events.commit import Commit
from projections.past_views import AS_OF, past_schema
from projections.postgres import Pool
from projections.queries import Queries
from projections.schemas import Schema
from projections.tables import PAST, SHAPE
from services.projector.arrivals import MomentError
from services.projector.diff import compare
from services.projector.expected import Expected
from services.projector.rebuild import rebuild
from services.projector.service import current_schema
from services.projector.shadow import RebuildError, drop, make_until, only_one
from services.projector.verify import _compare, verify
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.log.memory import MemoryEventStore
from services.runtime.nats.connection import connect
from tests.feed.given import a_log
from tests.projections.happenings import Happenings
from tests.projector.conftest import Run
from tests.projector.test_projector import everything, quiet, reached
from tests.support.lives import busy_world, feed, pieces

pytestmark = pytest.mark.anyio

ROOT: Final = Path(__file__).resolve().parents[2]
DEATHS: Final = ("shadow_begun", "rebuild_filled", "rebuild_swapping", "rebuild_swapped")


def some_log(seed: int, steps: int) -> list[Commit]:
    happenings = Happenings(seed)
    for _ in range(steps):
        happenings.step()
    return happenings.world.commits


def meant(commits: list[Commit], seq: int) -> int:
    """The moment that a sequence means."""
    return max((one.seq for one in commits if one.ends_batch and one.seq <= seq), default=0)


async def filled(store: MemoryEventStore, commits: list[Commit], queries: Queries, running: Run) -> None:
    feed(store, commits)
    async with running(store):
        await reached(queries, len(commits))


async def by_name(queries: Queries) -> dict[str, Schema]:
    return {one.name: one for one in (await queries.status()).schemas}


async def holds(pool: Pool, schema: str, commits: list[Commit]) -> None:
    """The schema is what the log folded in plain Python makes."""
    expected = Expected()
    for commit in commits:
        expected.apply(commit)
    async with pool.acquire() as connection, connection.transaction():
        for table, rows in expected.tables().items():
            assert await _compare(connection, schema, table, rows) == []


async def test_a_shadow_is_as_the_tables_were_at_the_moment(
    database: str, pool: Pool, queries: Queries, running: Run, chance: random.Random
) -> None:
    """Given a sequence, also one within a batch: its rows are those of a fold of the log up to there, and the rows that
    the living tables show as of that moment.
    """
    commits, store = some_log(chance.randint(0, 2**32), 200), MemoryEventStore()
    await filled(store, commits, queries, running)
    current = await current_schema(pool)
    seq = chance.randint(1, len(commits) - 1)
    name, note = await make_until(store, database, str(seq), quiet)
    assert (name, note.seq) == (f"muster_until_{meant(commits, seq)}", meant(commits, seq))
    await holds(pool, name, commits[: note.seq])
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT set_config($1, $2, true)", AS_OF, str(note.seq))
        for table in PAST:
            then = await connection.fetch(f'SELECT to_json(t)::text FROM "{past_schema(current)}"."{table}" t')
            shown = await connection.fetch(f'SELECT to_json(t)::text FROM "{name}"."{table}" t')
            assert sorted(row[0] for row in shown) == sorted(row[0] for row in then)
    assert await current_schema(pool) == current
    assert (await by_name(queries))[name].state == "shadow"


async def test_a_time_means_the_last_commit_that_is_not_later(
    database: str, queries: Queries, running: Run, pool: Pool
) -> None:
    commits, store = some_log(5, 60), MemoryEventStore()
    await filled(store, commits, queries, running)
    at = commits[len(commits) // 2].record.occurred_at
    name, note = await make_until(store, database, at.isoformat(), quiet)
    later = next(one.seq for one in commits if one.record.occurred_at > at)
    assert note.seq == meant(commits, later - 1)
    await holds(pool, name, commits[: note.seq])


@pytest.mark.parametrize(
    ("moment", "says"),
    [
        ("61", "the log ends at 6, got 61"),
        ("2999-01-01T00:00:00Z", "must be a moment of the past"),
        ("soon", "neither a time"),
    ],
)
async def test_the_future_and_nonsense_are_refused(database: str, moment: str, says: str) -> None:
    store = MemoryEventStore()
    feed(store, some_log(5, 60)[:6])
    with pytest.raises(MomentError, match=says):
        await make_until(store, database, moment, quiet)


async def test_a_shadow_stays_through_rebuilds_until_it_is_dropped(
    database: str, pool: Pool, queries: Queries, running: Run
) -> None:
    world, store = busy_world(10, nodes=2, at_once=5), MemoryEventStore()
    await filled(store, world.commits, queries, running)
    name, note = await make_until(store, database, "7", quiet)
    again = await make_until(store, database, str(note.seq), quiet)
    assert again == (name, note), "what is there already is not made again"
    old = await current_schema(pool)
    await rebuild(store, database, quiet)
    states = {one.name: one.state for one in (await queries.status()).schemas}
    assert states == {old: "replaced", name: "shadow", await current_schema(pool): "current"}
    with pytest.raises(RebuildError, match="is in use"):
        await drop(database, await current_schema(pool))
    with pytest.raises(RebuildError, match="there is no schema 'muster'"):
        await drop(database, "muster")
    await drop(database, name)
    await drop(database, old)
    assert list(await by_name(queries)) == [await current_schema(pool)]


async def test_the_status_says_what_made_the_tables(database: str, pool: Pool, queries: Queries, running: Run) -> None:
    world, store = busy_world(5, nodes=1, at_once=5), MemoryEventStore()
    await filled(store, world.commits, queries, running)
    first = (await by_name(queries))[await current_schema(pool)]
    assert first.note is not None
    assert (first.note.by, first.note.shape) == ("setup", SHAPE)
    rebuilt = await rebuild(store, database, quiet)
    now = (await by_name(queries))[rebuilt.schema]
    assert now.note is not None
    assert (now.state, now.note.by, now.note.events, now.note.seq) == (
        "current",
        "rebuild",
        rebuilt.events,
        rebuilt.seq,
    )
    assert now.note.ready_at is not None
    assert timedelta(0) <= datetime.now(UTC) - now.note.ready_at < timedelta(minutes=2)
    assert now.bytes > 0


# -- comparing -------------------------------------------------------------------------------------------------------


CHANGES: Final = (
    ("UPDATE {s}.workloads SET phase = 'Failed' WHERE name = 'job-1'", ("workloads", "phase", "'Failed'")),
    ("DELETE FROM {s}.workloads WHERE name = 'job-2'", ("workloads", "", "no row")),
    ("UPDATE {s}.history SET message = 'x' WHERE seq = 9", ("history", "message", "'x'")),
    ("UPDATE {s}.project_use SET workloads = workloads + 1 WHERE workloads > 0", ("project_use", "workloads", "")),
    ("INSERT INTO {s}.workloads_past SELECT * FROM {s}.workloads_past LIMIT 1", ("workloads_past", "", " rows")),
    ("INSERT INTO {s}.moments VALUES (-1, now())", ("moments", "", "a row")),
    ("ALTER TABLE {s}.pods DROP COLUMN exit_code CASCADE", ("pods", "exit_code", "no column")),
    ("ALTER TABLE {s}.due ALTER COLUMN generation TYPE integer", ("due", "generation", "integer")),
    ("DROP TABLE {s}.reservations", ("reservations", "", "no table")),
)
"""What somebody did to the tables, and which difference it is: table, column, and part of what the table says."""


async def test_a_comparison_finds_what_a_rebuild_would_change(
    database: str, pool: Pool, queries: Queries, running: Run
) -> None:
    """Given tables that somebody changed, and nothing is changed or left behind."""
    world, store = busy_world(3, nodes=1, at_once=3), MemoryEventStore()
    await filled(store, world.commits, queries, running)
    schema = await current_schema(pool)
    assert (await compare(store, database, quiet, most=100)).differences == []
    for statement, _ in CHANGES:
        await pool.execute(statement.format(s=schema))
    compared = await compare(store, database, quiet, most=100)
    assert (compared.seq, compared.more) == (len(world.commits), False)
    found = [(one.table, one.column, one.actual) for one in compared.differences]
    for statement, (table, column, actual) in CHANGES:
        assert any((one[:2]) == (table, column) and actual in one[2] for one in found), (statement, found)
    assert {table for table, _, _ in found} == {of[0] for _, of in CHANGES}
    assert list(await by_name(queries)) == [schema]


async def test_only_the_first_differences_are_told(database: str, pool: Pool, queries: Queries, running: Run) -> None:
    world, store = busy_world(9, nodes=1, at_once=3), MemoryEventStore()
    await filled(store, world.commits, queries, running)
    await pool.execute(f"UPDATE {await current_schema(pool)}.workloads SET image = 'other'")
    few = await compare(store, database, quiet, most=4)
    assert (len(few.differences), few.more) == (4, True)
    every = await compare(store, database, quiet, most=9)
    assert (len(every.differences), every.more) == (9, False)
    assert [one.key for one in every.differences] == sorted(one.key for one in every.differences)


async def test_nothing_differs_while_commits_come_in(database: str, queries: Queries, running: Run) -> None:
    """Given a projector at work: both are compared at the same commit."""
    world, store = busy_world(120, nodes=4, at_once=16), MemoryEventStore()
    half = meant(world.commits, len(world.commits) // 2)
    feed(store, world.commits[:half])

    async def write() -> None:
        for piece in pieces(world.commits[half:], 1):
            feed(store, piece)
            await asyncio.sleep(0)

    async with running(store), asyncio.TaskGroup() as tasks:
        await reached(queries, half)
        tasks.create_task(write())
        compared = await compare(store, database, quiet, most=20)
        await reached(queries, len(world.commits))
    assert compared.differences == []
    assert compared.seq >= half


# -- one at a time, and what dies ------------------------------------------------------------------------------------


async def test_a_second_one_is_refused_and_says_what_the_first_does(database: str) -> None:
    store = MemoryEventStore()
    feed(store, busy_world(5, nodes=1, at_once=5).commits)
    async with only_one(database) as (connection, _):
        await connection.execute(
            "UPDATE muster.current_projection SET rebuilding_schema = 'muster_v2', rebuild_seq = 3, "
            "rebuild_target_seq = 4000"
        )
        for attempt in (
            rebuild(store, database, quiet),
            compare(store, database, quiet, most=1),
            make_until(store, database, "3", quiet),
            drop(database, "muster_v2"),
        ):
            with pytest.raises(RebuildError, match=r"it fills muster_v2 and is at 3 of 4,000"):
                await attempt
    await rebuild(store, database, quiet)


async def test_a_death_leaves_the_old_tables_or_the_new_ones_whole(
    fresh_log: NatsServer, prepared_database: str, chance: random.Random
) -> None:
    """Given a rebuild that is killed at one of its points (tests/faults goes through all): the next one cleans up."""
    commits = some_log(chance.randint(0, 2**32), 40)
    point = chance.choice(DEATHS)
    print(f"dies at {point}")
    nc = await connect(fresh_log.settings("operator"), "operator")
    queries, store = Queries(prepared_database).within(None), JetStreamEventStore(nc)
    try:
        async with a_log(fresh_log) as log:
            await log.append(commits)
        await rebuild(store, prepared_database, quiet)
        assert await command(fresh_log, prepared_database, "rebuild", failpoint=point) == -signal.SIGKILL
        states = [one.state for one in (await queries.status()).schemas]
        assert states == (["replaced", "current"] if point == "rebuild_swapped" else ["current", "leftover"])
        assert await verify(store, prepared_database, quiet) == []
        await rebuild(store, prepared_database, quiet)
        assert [one.state for one in (await queries.status()).schemas] == ["replaced", "current"]
        assert (await queries.count(everything())).seq == len(commits)
    finally:
        await queries.close()
        await nc.close()


async def command(server: NatsServer, postgres_url: str, verb: str, *, failpoint: str) -> int | None:
    environment: dict[str, Any] = os.environ | {
        "MUSTER_NATS_URL": server.url,
        "MUSTER_NATS_PASSWORD_DIR": str(server.password_dir()),
        "MUSTER_POSTGRES_URL": postgres_url,
        "MUSTER_FAILPOINT": failpoint,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "muster.cli.main", "projections", verb, cwd=ROOT, env=environment
    )
    async with asyncio.timeout(60):
        return await process.wait()
