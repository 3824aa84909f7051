"""Rows as of a moment are those that a fold of the log up to there makes, whatever the batches were; at more moments in
tests/faults.
"""

import random
from datetime import timedelta

import asyncpg
import msgspec
import pytest

from development.checker.log import LogChecker
from development.checker.reading import read_past
from development.checker.records import RawMessage
from development.checker.tables import check_past
from events.codec import encode_commit
from projections.past_views import NOT_KEPT
from projections.queries import Queries
from projections.tables import PAST, ROW_TYPES, history, project_use
from tests.support.past import (
    SCHEMA,
    moments_of,
    random_log,
    rows_are_those_of_the_checker,
    rows_are_those_of_the_log,
    write,
)

pytestmark = pytest.mark.anyio


def test_every_table_is_kept_or_said_not_to_be() -> None:
    assert set(ROW_TYPES) == {*PAST, *NOT_KEPT, history.name, project_use.name}


@pytest.mark.parametrize("seed", [1, 2])
async def test_rows_of_the_past_are_those_of_the_log_up_to_there(database: str, seed: int) -> None:
    await rows_are_those_of_the_log(database, seed, moments=12)


async def test_rows_of_the_past_are_those_of_the_checker(database: str) -> None:
    await rows_are_those_of_the_checker(database, moments=40)


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
