"""The feed is killed again and again at one point, beside another that comes and goes: nothing is lost or repeated."""

import asyncio
import os
import random
import signal
import sys
from pathlib import Path
from typing import Final

import pytest

from development.servers import NatsServer
from tests.feed.given import a_log, cut_anywhere, feeding, some_log

pytestmark = [pytest.mark.faults, pytest.mark.anyio, pytest.mark.one_in(2)]

ROOT: Final = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("point", ["feed_written", "feed_batch_open"])
async def test_a_process_that_is_killed_loses_and_repeats_nothing(
    fresh_log: NatsServer, chance: random.Random, point: str
) -> None:
    """Given a service that dies each time at one point, and one beside it that comes and goes."""
    commits = some_log(chance.randint(0, 2**32))
    async with a_log(fresh_log) as log:
        for number, piece in enumerate(cut_anywhere(commits, chance)):
            await log.append(piece)
            if number % 4 == 0:
                await killed(fresh_log, f"{point}:{chance.randint(1, 2)}")
        async with feeding(fresh_log):
            await log.holds(commits)


async def killed(server: NatsServer, failpoint: str) -> None:
    """Run the service as a process until it dies at the point, or has nothing to do there."""
    settings = server.settings("feed")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "services.feed",
        cwd=ROOT,
        env={
            **os.environ,
            "MUSTER_NATS_URL": settings.nats_url,
            "MUSTER_NATS_PASSWORD": settings.nats_password,
            "MUSTER_FAILPOINT": failpoint,
        },
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        code = await asyncio.wait_for(process.wait(), 8)
    except TimeoutError:
        process.kill()
        await process.wait()
    else:
        assert code == -signal.SIGKILL
