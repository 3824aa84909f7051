"""A random log, its tables written in pieces, and what their rows of the past must be."""

import random
from collections.abc import Mapping, Sequence
from typing import Any, Final

import asyncpg
import msgspec

from development.checker.log import LogChecker
from development.checker.reading import read_past
from development.checker.records import RawMessage
from development.checker.tables import check_past
from events.codec import encode_commit
from events.commit import Commit
from projections.fold import fold
from projections.postgres import Connection
from projections.tables import PAST
from services.projector.engine import Engine, open_pool
from services.projector.writer import Writer
from services.runtime.log.memory import MemoryEventStore
from tests.support.lives import feed, pieces
from tests.support.random_lives import Lives

SCHEMA: Final = "muster_v1"


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


async def rows_are_those_of_the_log(database: str, seed: int, *, moments: int) -> None:
    """At so many moments of a log of 400 commits."""
    commits = random_log(seed, commits=400)
    rng = random.Random(seed)
    await write(database, commits, [rng.choice((1, 5, 30, 90)) for _ in range(8)])
    connection = await asyncpg.connect(database)
    try:
        whole = moments_of(commits)
        for seq in [0, *sorted(rng.sample(whole, moments)), whole[-1]]:
            _, changes = fold({}, commits[:seq])
            for table in PAST:
                assert await rows_at(connection, table, seq) == plain(changes.put.get(table, {})), (table, seq)
            used = await connection.fetch(f'SELECT * FROM "{SCHEMA}_past".project_use')
            assert {(row["project_id"], row["phase"]): dict(row) for row in used} == plain(changes.use), seq
    finally:
        await connection.close()


async def rows_are_those_of_the_checker(database: str, *, moments: int) -> None:
    """At so many moments of a log of 500 commits. The checker knows nothing of projections, and folds its own way."""
    commits, rng = random_log(11, commits=500), random.Random(11)
    await write(database, commits, [7, 40])
    wanted = set(rng.sample(moments_of(commits), moments))
    checker, past = LogChecker(), await read_past(database, 0)
    for commit in commits:
        checker.feed(RawMessage(commit.seq, f"ev.{commit.aggregate}.{commit.key}", encode_commit(commit.record)))
        if commit.seq in wanted:
            past = await read_past(database, commit.seq)
            found = check_past(past, checker)
            assert found == [], (commit.seq, found[:4])
    assert past.rows["history"]
