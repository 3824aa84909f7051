"""The feed on a real NATS: whoever writes it, however often they are killed, and whenever it is deleted, it holds every
public event of the log once, in order, with the same ids and bytes.
"""

import asyncio
import random
from itertools import count
from pathlib import Path
from typing import Final

import pytest

from development.servers import NatsServer
from events.commit import Commit
from events.public.cloudevents import Place
from events.public.publish import FeedMessage
from services.feed.fold import FOLDED, SNAPSHOT_SHAPE, PublicState
from services.feed.publish import MOST_AT_ONCE
from services.runtime.log.fold_snapshots import FoldSnapshots
from services.runtime.log.snapshots import Snapshots
from services.runtime.nats.connection import connect
from services.setup.feed import rebuild_feed
from services.setup.migrate import USER
from tests.feed.given import a_log, cut_anywhere, expected, feeding, some_log
from tests.public.given import every_event
from tests.support.lives import busy_world

pytestmark = pytest.mark.anyio

ROOT: Final = Path(__file__).resolve().parents[2]


async def test_every_public_event_stands_in_the_feed(fresh_log: NatsServer) -> None:
    """Given a log in which each happens, some of it there before the service starts."""
    commits = every_event().commits
    async with a_log(fresh_log) as log:
        await log.append(commits[:20])
        async with feeding(fresh_log):
            await log.holds(commits[:20])
            await log.append(commits[20:])
            await log.holds(commits)


async def test_a_log_of_many_events_is_written_in_its_order(fresh_log: NatsServer) -> None:
    commits = busy_world(130).commits
    assert len(expected(commits)) > MOST_AT_ONCE
    async with a_log(fresh_log) as log:
        await log.append(commits)
        async with feeding(fresh_log):
            await log.holds(commits)


async def test_a_restart_goes_on_from_the_snapshot(fresh_log: NatsServer) -> None:
    """Given a service that stopped in good order: the next one knows the states without the log's first commits."""
    commits = some_log(1)
    async with a_log(fresh_log) as log:
        half = len(commits) // 2
        while not commits[half - 1].ends_batch:
            half += 1
        await log.append(commits[:half])
        async with feeding(fresh_log):
            await log.holds(commits[:half])
        nc = await connect(fresh_log.settings("feed"), "feed")
        found = await FoldSnapshots(Snapshots(nc), "feed", shape_version=SNAPSHOT_SHAPE, aggregates=FOLDED).load()
        await nc.close()
        assert found is not None
        assert found[0] == half
        await log.append(commits[half:])
        async with feeding(fresh_log):
            await log.holds(commits)


@pytest.mark.parametrize("round_", range(3))
async def test_two_at_once_and_restarts_write_every_event_once(
    fresh_log: NatsServer, chance: random.Random, round_: int
) -> None:
    commits = some_log(chance.randint(0, 2**32) + round_)
    async with a_log(fresh_log) as log, feeding(fresh_log):
        for piece in cut_anywhere(commits, chance):
            async with feeding(fresh_log):
                await log.append(piece)
                await asyncio.sleep(chance.random() * 0.1)
        await log.holds(commits)


async def test_a_deleted_feed_is_written_anew_with_the_same_ids_and_bytes(fresh_log: NatsServer) -> None:
    """Also while the service runs, and where a snapshot says that all was written."""
    commits = some_log(2)
    async with a_log(fresh_log) as log:
        await log.append(commits)
        async with feeding(fresh_log):
            await log.holds(commits)
            before = await log.feed()
            assert "writes it again" in await rebuild_feed(fresh_log.settings(USER))
            await log.holds(commits)
            assert await log.feed() == before
        await log.delete_feed()
        assert "is not there" in await rebuild_feed(fresh_log.settings(USER))
        async with feeding(fresh_log):
            await log.holds(commits)


async def test_the_feed_survives_a_killed_server(nats_server: NatsServer, fresh_log: NatsServer) -> None:
    commits = busy_world(120).commits
    async with a_log(fresh_log) as log:
        await log.append(commits)
        async with feeding(fresh_log) as health:
            async with asyncio.timeout(60):
                while not health.serving:
                    await asyncio.sleep(0.01)
            nats_server.kill()
            nats_server.start()
            await log.holds(commits)


async def test_a_feed_of_another_log_is_not_gone_on_with(fresh_log: NatsServer) -> None:
    """Given a log that was made anew beside an old FEED: no event of it is passed by in silence."""
    other = some_log(3)
    at = made_of(other)[-1].place.seq - 1
    another = next(
        each for seed in count(4) if other[at].record.commit_id != (each := some_log(seed))[at].record.commit_id
    )
    async with a_log(fresh_log) as log:
        await log.append(other)
        async with feeding(fresh_log):
            await log.holds(other)
        before = await log.feed()
        await log.remake_log()
        await log.append(another)
        async with feeding(fresh_log) as health:
            async with asyncio.timeout(60):
                while "another log" not in health.reason:
                    await asyncio.sleep(0.01)
            assert await log.feed() == before
            await log.delete_feed()
            await log.holds(another)


def test_forgetting_what_is_over_changes_no_event() -> None:
    """Given a fold that forgets, and one that keeps everything."""
    for seed in range(20):
        commits = some_log(seed, 120)
        fold = PublicState()
        for commit in commits:
            fold.apply(commit)
        made, ends = fold.take_made()
        assert [(m.subject, m.headers, m.payload) for m in made] == [
            (w.subject, w.headers, w.payload) for w in expected(commits)
        ]
        assert len(ends) == len(made)
        assert ends == sorted(ends)


def test_what_is_written_already_is_not_made_again_and_the_rest_is_the_same(chance: random.Random) -> None:
    for seed in range(10):
        commits = some_log(seed, 120)
        whole = made_of(commits)
        written = chance.choice(whole).place
        assert made_of(commits, written=written) == [message for message in whole if message.place > written]


def made_of(commits: list[Commit], *, written: Place | None = None) -> list[FeedMessage]:
    fold = PublicState(written=written)
    for commit in commits:
        fold.apply(commit)
    return fold.take_made()[0]
