"""The tables are what the checker, who knows nothing of projections, makes of the same log; and it sees where not."""

import random
from dataclasses import replace
from typing import Any

import pytest

from development.checker.log import check_log
from development.checker.reading import Tables, read_tables
from development.checker.records import RawMessage
from development.checker.tables import check_tables
from events.codec import encode_commit
from projections.queries import Queries
from services.runtime.log.memory import MemoryEventStore
from tests.projector.conftest import Run
from tests.projector.test_projector import reached
from tests.support.lives import feed
from tests.support.random_lives import Lives

pytestmark = pytest.mark.anyio

CHANGES: dict[str, Any] = {
    "workloads": {"phase": "Nowhere", "gpu_allocated_milli": 1, "version": 0, "exit_code": 99, "generation": 77},
    "pods": {"phase": "Nowhere", "token": 0},
    "due": {"generation": 99},
    "nodes": {"used_cpu_milli": -1, "reserved_pods": -1, "present": None},
    "reservations": {"node_key": "elsewhere"},
    "history": {"count": 0},
}


def changed(tables: Tables, table: str, **columns: Any) -> Tables:
    first, *others = tables.rows[table]
    return replace(tables, rows={**tables.rows, table: [first | columns, *others]})


def has_due(lives: Lives) -> bool:
    states = (lives.world.state("workload", key) for key in lives.keys)
    return any(state.living and state.delete_at is not None for state in states)


async def test_rows_are_what_the_checker_makes_of_the_log(database: str, queries: Queries, running: Run) -> None:
    lives, store = Lives(random.Random(5)), MemoryEventStore()
    while len(lives.world.commits) < 500 or not any(n.reservations for n in lives.nodes()) or not has_due(lives):
        lives.step()
    commits = lives.world.commits
    feed(store, commits)
    async with running(store):
        await reached(queries, len(commits))
    tables = await read_tables(database)
    log = check_log(RawMessage(c.seq, f"ev.{c.aggregate}.{c.key}", encode_commit(c.record)) for c in commits)
    assert check_tables(tables, log) == []
    for table, columns in CHANGES.items():
        assert check_tables(replace(tables, rows={**tables.rows, table: tables.rows[table][1:]}), log), table
        for column, value in columns.items():
            assert check_tables(changed(tables, table, **{column: value}), log), (table, column)
    assert check_tables(replace(tables, last_commit_id="another log"), log)
