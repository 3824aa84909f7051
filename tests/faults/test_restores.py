"""Restores under load, each from a backup that lacks the last seconds, while the cluster runs on."""

import asyncio
import random
from pathlib import Path
from uuid import uuid4

import pytest

from events.phases import Phase
from events.workload.commands import DeleteWorkload, ResumeWorkload, SuspendWorkload
from tests.backup import given
from tests.backup.world import World

pytestmark = [pytest.mark.faults, pytest.mark.anyio, pytest.mark.timeout(3600)]

SHORTEST, LONGEST = 0.3, 4.0
"""Seconds that a simulated run lasts: some end between the backup and the loss."""
ACTS_BEFORE, ACTS_LOST = 25, 15


async def act(world: World, names: list[str], chance: random.Random) -> None:
    """Something that a person does."""
    if len(names) < 4 or chance.random() < 0.4:
        name = f"w{len(names)}-{uuid4().hex[:4]}"
        names.append(await world.submit(name, seconds=chance.uniform(SHORTEST, LONGEST)))
    else:
        key = chance.choice(names[-8:])
        command = chance.choice([SuspendWorkload, ResumeWorkload, DeleteWorkload, ResumeWorkload])
        await world.try_to(key, command)
    await asyncio.sleep(chance.uniform(0.0, 0.2))


async def test_restores_under_load_lose_no_run_from_sight_and_run_none_twice(
    server_folder: Path, tmp_path: Path, rounds: int, chance: random.Random
) -> None:
    world = World(server_folder / f"restores-{uuid4().hex[:6]}")
    await world.begin()
    try:
        names: list[str] = []
        for number in range(rounds):
            for _ in range(ACTS_BEFORE):
                await act(world, names, chance)
            backing_up = asyncio.create_task(given.backed_up(world.server, tmp_path / str(number)))
            for _ in range(ACTS_LOST):
                await act(world, names, chance)
            await backing_up
            for _ in range(ACTS_LOST):
                await act(world, names, chance)
            await world.lose(tmp_path / str(number))
            names = await world.known(names)
            assert world.twice == set()
        await world.settled(names, {Phase.COMPLETED, Phase.STOPPED, Phase.FAILED})
        assert world.live() == []
        assert world.twice == set()
        assert await world.violations() == []
    finally:
        await world.end()
