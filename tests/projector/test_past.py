"""Rows as of a moment are those that a fold of the log up to there makes, whatever the batches were."""

import random
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import asyncpg
import msgspec
import pytest

from development.checker.log import LogChecker
from development.checker.reading import read_past
from development.checker.records import RawMessage
from development.checker.tables import check_past
from events.codec import encode_commit
from events.commit import Commit
from projections.fold import fold
from projections.past_views import NOT_KEPT
from projections.postgres import Connection
from projections.queries import Queries
from projections.tables import PAST, ROW_TYPES, history, project_use
from services.projector.engine import Engine, open_pool
from services.projector.writer import Writer
from services.runtime.log.memory import MemoryEventStore
from tests.support.lives import feed, pieces
from tests.support.random_lives import Lives

pytestmark = pytest.mark.anyio

SCHEMA = "muster_v1"


def test_every_table_is_kept_or_said_not_to_be() -> None:
    assert set(ROW_TYPES) == {*PAST, *NOT_KEPT, history.name, project_use.name}


def random_log(seed: int, *, commits: int) -> list[Commit]:
    lives = Lives(random.Random(seed))
    while len(lives.world.commits) < commits:
        lives.step()
    return lives.world.commits


async def write(url: str, commits: Sequence[Commit], sizes: Sequence[int]) -> None:
    """As a projector that begins anew after each piece, and so reads its entries back."""
    pool, store = await open_pool(url), MemoryEventStore()
    feed(store, commits)
    writer = Writer(pool, SCHEMA)
    start = 0
    for size in sizes:
        engine = Engine(store, writer, await writer.checkpoint())
        for piece in pieces(commits[start:], size):
            await engine.apply(piece)
            start += len(piece)
            break
        await engine.flush()
    engine = Engine(store, writer, await writer.checkpoint())
    await engine.apply(commits[start:])
    await engine.flush()
    pool.terminate()


def plain(rows: Mapping[Any, msgspec.Struct]) -> dict[Any, dict[str, Any]]:
    return {
        key: {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in msgspec.structs.asdict(row).items()
        }
        for key, row in rows.items()
    }


async def rows_at(connection: Connection, table: str, seq: int) -> dict[Any, dict[str, Any]]:
    await connection.execute("SELECT set_config('app.as_of', $1, false)", str(seq))
    records = await connection.fetch(f'SELECT * FROM "{SCHEMA}_past"."{table}"')
    key = "key" if table == "nodes" else "id"
    return {record[key]: dict(record) for record in records}


def moments_of(commits: Sequence[Commit]) -> list[int]:
    return [commit.seq for commit in commits if commit.ends_batch]


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
async def test_rows_of_the_past_are_those_of_the_log_up_to_there(database: str, seed: int) -> None:
    commits = random_log(seed, commits=400)
    rng = random.Random(seed)
    await write(database, commits, [rng.choice((1, 5, 30, 90)) for _ in range(8)])
    connection = await asyncpg.connect(database)
    try:
        moments = moments_of(commits)
        for seq in [0, *sorted(rng.sample(moments, 40)), moments[-1]]:
            _, changes = fold({}, commits[:seq])
            for table in PAST:
                assert await rows_at(connection, table, seq) == plain(changes.put.get(table, {})), (table, seq)
            used = await connection.fetch(f'SELECT * FROM "{SCHEMA}_past".project_use')
            assert {(row["project_id"], row["phase"]): dict(row) for row in used} == plain(changes.use), seq
    finally:
        await connection.close()


async def test_rows_of_200_moments_are_those_of_the_checker(database: str) -> None:
    """The checker knows nothing of projections, and folds the log its own way."""
    commits, rng = random_log(11, commits=500), random.Random(11)
    await write(database, commits, [7, 40])
    wanted = set(rng.sample(moments_of(commits), 200))
    checker, past = LogChecker(), await read_past(database, 0)
    for commit in commits:
        checker.feed(RawMessage(commit.seq, f"ev.{commit.aggregate}.{commit.key}", encode_commit(commit.record)))
        if commit.seq in wanted:
            past = await read_past(database, commit.seq)
            assert check_past(past, checker) == [], commit.seq
    assert past.rows["history"]


async def test_the_checker_sees_where_the_past_is_wrong(database: str) -> None:
    commits = random_log(12, commits=200)
    await write(database, commits, [50])
    seq, checker = max(seq for seq in moments_of(commits) if seq <= 120), LogChecker()
    for commit in commits[:seq]:
        checker.feed(RawMessage(commit.seq, f"ev.{commit.aggregate}.{commit.key}", encode_commit(commit.record)))
    connection = await asyncpg.connect(database)
    await connection.execute(f"UPDATE {SCHEMA}.workloads_past SET running_pods = running_pods + 1")
    await connection.execute(f"UPDATE {SCHEMA}.nodes_past SET used_cpu_milli = -1")
    await connection.close()
    wrong = check_past(await read_past(database, seq), checker)
    assert any("running_pods" in text for text in wrong)
    assert any("used_cpu_milli" in text for text in wrong)


async def test_clocks_that_go_back_and_batches_leave_moments_in_order(database: str) -> None:
    commits = random_log(13, commits=120)
    rng = random.Random(13)
    turned = [
        msgspec.structs.replace(
            commit,
            record=msgspec.structs.replace(
                commit.record, occurred_at=commit.record.occurred_at + timedelta(hours=rng.choice((-5, 0, 0, 5)))
            ),
        )
        for commit in commits
    ]
    await write(database, turned, [1, 3, 20])
    queries = Queries(database).within(None)
    try:
        ends = moments_of(turned)
        latest, greatest = None, {}
        for commit in turned:
            at = commit.record.occurred_at
            latest = at if latest is None else max(latest, at)
            if commit.ends_batch:
                greatest[commit.seq] = latest
        for seq in range(1, len(turned) + 1):
            before = max((end for end in ends if end <= seq), default=0)
            found = (await queries.moment(seq)).moment
            assert (found.seq, found.at) == (before, greatest.get(before))
        for at in sorted({*greatest.values()}):
            last = max(seq for seq, time in greatest.items() if time <= at)
            assert (await queries.moment(at)).moment.seq == last
            earlier = [seq for seq, time in greatest.items() if time < at]
            assert (await queries.moment(at - timedelta(microseconds=1))).moment.seq == max(earlier, default=0)
    finally:
        await queries.close()
