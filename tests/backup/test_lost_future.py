"""A cluster ran on after the moment that a backup has: no run lives twice, none is lost from sight, all goes on."""

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

from events.workload.commands import ResumeWorkload, SuspendWorkload
from events.workload.pod import split_token
from tests.backup import given
from tests.backup.world import World

pytestmark = pytest.mark.anyio


@pytest.fixture
async def world(server_folder: Path) -> AsyncIterator[World]:
    made = World(server_folder / f"lost-{uuid4().hex[:6]}")
    await made.begin()
    yield made
    await made.end()


async def test_what_ran_on_is_ended_or_goes_on_and_nothing_lives_twice(world: World, tmp_path: Path) -> None:
    stays = await world.submit("stays")
    again = await world.submit("again")
    await world.running(stays, again)
    waits = await world.submit("waits")
    await given.backed_up(world.server, tmp_path)

    # What is lost: a run of one that was waiting, other runs of one that was running, a workload nobody will know.
    await world.running(stays, again, waits)
    for _ in range(2):
        await world.do(SuspendWorkload(workload_id=await world.ids(again)))
        await world.running(stays, waits)
        await world.do(ResumeWorkload(workload_id=await world.ids(again)))
        await world.running(stays, again, waits)
    unknown = await world.submit("unknown")
    await world.running(stays, again, waits, unknown)
    tokens = dict(world.live())

    await world.lose(tmp_path)
    await world.running(stays, again, waits)
    now = dict(world.live())
    assert now[f"{stays}-main-0"] == tokens[f"{stays}-main-0"], "a run that the backup knows goes on"
    assert split_token(now[f"{again}-main-0"])[0] == 1, "what is bound after a restore is newer than all before"
    assert world.twice == set()
    assert await world.violations() == []

    # And after a second one.
    await given.backed_up(world.server, tmp_path / "second")
    more = await world.submit("more")
    await world.running(stays, again, waits, more)
    await world.lose(tmp_path / "second")
    await world.running(stays, again, waits)
    assert world.twice == set()
    assert await world.violations() == []
