"""The table of deliveries, on a real Postgres: what is claimed, and what came of it."""

from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta

import pytest

from projections.postgres import create_pool
from services.runtime.webhooks.protocol import Try
from services.webhooks import table as tables
from services.webhooks.table import Claimed, Row, Table

pytestmark = pytest.mark.anyio

WANTED = [("hook", 8, "project", 32)]
TAKEN = Try(at=datetime.now(UTC), status=204, error="", excerpt="", seconds=0.1)


@pytest.fixture
async def table(prepared_database: str) -> AsyncGenerator[Table]:
    pool = await create_pool(
        prepared_database, min_size=0, max_size=2, timeout_seconds=5, command_timeout_seconds=5, server_settings={}
    )
    table = Table(pool)
    await table.begin("0", 0)
    yield table
    await pool.close()


async def wait_for(table: Table, *events: str) -> None:
    """As `workload/number`, in their order."""
    rows = [
        Row(
            webhook_id="hook",
            event_id=event,
            type="WorkloadSubmitted",
            place=f"{number:03d}",
            about=event.partition("/")[0],
            body="{}",
        )
        for number, event in enumerate(events, 1)
    ]
    await table.take_in(rows, rows[-1].place, since="")


async def claim(table: Table) -> list[Claimed]:
    return sorted(await table.claim(WANTED, 256), key=lambda held: held.id)


async def test_of_each_workload_the_first_that_was_never_tried_is_claimed(table: Table) -> None:
    await wait_for(table, "a/1", "a/2", "b/1", "a/3", "c/1", "b/2")
    held = await claim(table)
    assert [one.event_id for one in held] == ["a/1", "b/1", "c/1"]
    assert await claim(table) == []
    await table.finish(held[0], TAKEN, "delivered", None, free=True)
    await table.finish(held[1], TAKEN, "waiting", timedelta(hours=1), free=False)
    assert [one.event_id for one in await claim(table)] == ["a/2", "b/2"]


async def test_those_that_are_not_looked_at_come_when_others_are_done(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "LOOKED_AT", 2)
    await wait_for(table, "a/1", "a/2", "a/3", "b/1", "a/4", "c/1")
    told: list[str] = []
    while held := await claim(table):
        told += [one.event_id for one in held]
        for one in held:
            await table.finish(one, TAKEN, "delivered", None, free=True)
    assert told == ["a/1", "a/2", "a/3", "b/1", "a/4", "c/1"]


async def test_what_is_delivered_again_holds_up_what_is_newer_of_its_workload_only_until_it_is_tried(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "LOOKED_AT", 2)
    await wait_for(table, *(f"a/{number}" for number in range(1, 7)))
    (first,) = await claim(table)
    await table.finish(first, TAKEN, "delivered", None, free=True)
    assert await table.again("hook", [first.id]) == 1
    told: list[str] = []
    while held := await claim(table):
        told += [one.event_id for one in held]
        for one in held:
            await table.finish(one, TAKEN, "delivered", None, free=True)
    assert told == [f"a/{number}" for number in range(1, 7)]


async def test_an_outcome_that_is_stored_twice_counts_one_try(table: Table) -> None:
    await wait_for(table, "a/1")
    (held,) = await claim(table)
    for _ in range(2):
        assert await table.finish(held, TAKEN, "waiting", timedelta(), free=False)
    (again,) = await claim(table)
    assert (again.tries, len(again.tried)) == (1, 1)


async def test_who_held_it_before_it_was_to_be_delivered_again_changes_nothing(table: Table) -> None:
    await wait_for(table, "a/1")
    (held,) = await claim(table)
    await table.finish(held, TAKEN, "delivered", None, free=True)
    assert await table.again("hook", [held.id]) == 1
    assert not await table.finish(held, TAKEN, "delivered", None, free=True)
    assert [one.event_id for one in await claim(table)] == ["a/1"]


async def test_what_came_for_a_webhook_that_was_enabled_again_is_not_parked(table: Table) -> None:
    await wait_for(table, "a/1")
    found, newest = await table.held()
    assert found == ["hook"]
    row = Row(webhook_id="hook", event_id="b/1", type="T", place="100", about="b", body="{}")
    await table.take_in([row], "100", since="")
    assert await table.park(found, newest) == 1
    assert [one.event_id for one in await claim(table)] == ["b/1"]


async def test_no_deliveries_are_of_no_webhooks(table: Table) -> None:
    assert await table.held() == ([], 0)
    assert await table.forget([], []) == 0
