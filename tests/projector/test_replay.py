"""Playing the log into a sandbox: to a moment, on from where it stopped, at a speed, and beside others."""

import asyncio
import random
from datetime import timedelta
from typing import Any

import pytest

from events.commit import Commit
from projections.migrate import drop_schema
from projections.postgres import Pool
from services.projector.arrivals import MomentError
from services.projector.play import Player, RemovedError, Wanted, factor_of, player, until_removed
from services.projector.sandboxes import BadReplayError, NoSandboxError, SandboxError, listed, remove
from services.runtime.log.memory import MemoryEventStore
from tests.projector.test_projector import quiet
from tests.projector.test_shadows import holds, meant, some_log
from tests.support.lives import busy_world, feed

pytestmark = pytest.mark.anyio


def wanted(name: str = "s", **more: Any) -> Wanted:
    return Wanted(name=name, from_=more.get("from_"), to=more.get("to"), speed=more.get("speed"))


async def played(store: MemoryEventStore, database: str, what: Wanted) -> tuple[int, bool]:
    """Play until the end; where it is then, and whether it got there."""
    async with player(store, database, what, quiet) as playing:
        await playing.prepare(asyncio.Event())
        done = await playing.play(asyncio.Event())
        return playing.played.position, done


async def test_a_sandbox_is_what_the_log_makes_up_to_its_moments(
    database: str, pool: Pool, chance: random.Random
) -> None:
    commits, store = some_log(chance.randint(0, 2**32), 200), MemoryEventStore()
    feed(store, commits)
    first, last = sorted(chance.sample(range(1, len(commits)), 2))
    async with player(store, database, wanted(from_=str(first), to=str(last)), quiet) as playing:
        await playing.prepare(asyncio.Event())
        assert playing.played.position == meant(commits, first)
        await holds(pool, playing.schema, commits[: meant(commits, first)])
        assert await playing.play(asyncio.Event())
    await holds(pool, playing.schema, commits[: meant(commits, last)])
    (one,) = await listed(database)
    assert (one.name, one.seq, one.playing) == ("s", meant(commits, last), False)
    assert one.note.ready_at is not None
    assert one.at == max((each.record.occurred_at for each in commits[: one.seq]), default=None)


async def test_it_goes_on_where_it_stopped(database: str, pool: Pool) -> None:
    """Given a player that is stopped in the middle, one that fails, and one that goes on."""
    commits, store = some_log(3, 150), MemoryEventStore()
    feed(store, commits)
    stop = asyncio.Event()
    async with player(store, database, wanted(), lambda _, __: stop.set()) as playing:
        await playing.prepare(asyncio.Event())
        playing.progress = lambda _, __: stop.set()
        assert not await asyncio.wait_for(_stopped(playing, stop), 60)
        assert playing.played.position == playing.engine.seq
    await holds(pool, playing.schema, commits[: playing.played.position])

    with pytest.raises(InterruptedError):
        await _failing(store, database)
    assert await played(store, database, wanted()) == (len(commits), True)
    await holds(pool, "muster_replay_s", commits)
    assert await played(store, database, wanted()) == (len(commits), True), "again, it is only served"


async def _failing(store: MemoryEventStore, database: str) -> None:
    def fail(_: int, __: int) -> None:
        raise InterruptedError

    async with player(store, database, wanted(), fail) as playing:
        await playing.prepare(asyncio.Event())
        await playing.play(asyncio.Event())
        fail(0, 0)


async def _stopped(playing: Player, stop: asyncio.Event) -> bool:
    stop.set()
    return await playing.play(stop)


async def test_the_speed_is_that_of_the_commits_times(database: str) -> None:
    """Given commits a tenth of a second apart at ten times their speed: each is played when it is due, none early."""
    commits, store = busy_world(5, nodes=1, at_once=5).commits, MemoryEventStore()
    feed(store, commits)
    span = commits[-1].record.occurred_at - commits[0].record.occurred_at
    speed = f"{max(span / timedelta(seconds=1), 0.01):.3f}x"
    loop = asyncio.get_running_loop()
    async with player(store, database, wanted(speed=speed), quiet) as playing:
        await playing.prepare(asyncio.Event())
        begun = loop.time()
        assert await playing.play(asyncio.Event())
        assert loop.time() - begun >= 0.9, "one second for all of them"
        assert playing.played.position == len(commits)


@pytest.mark.parametrize("speed", ["fast", "0x", "-1x", "x", "nanx", "1e9x", "10"])
def test_what_is_no_speed_is_refused(speed: str) -> None:
    with pytest.raises(BadReplayError, match="is no speed"):
        factor_of(speed)


@pytest.mark.parametrize(
    ("what", "error", "says"),
    [
        (wanted("Big"), BadReplayError, "no name for a sandbox"),
        (wanted("a_b"), BadReplayError, "no name for a sandbox"),
        (wanted(to="99"), MomentError, "the log ends at 6"),
        (wanted(from_="5", to="2"), BadReplayError, "is behind --to"),
        (wanted(speed="fast"), BadReplayError, "is no speed"),
    ],
)
async def test_what_cannot_be_played_is_refused_and_leaves_nothing(
    database: str, what: Wanted, error: type[Exception], says: str
) -> None:
    store = MemoryEventStore()
    feed(store, some_log(5, 60)[:6])
    with pytest.raises(error, match=says):
        await played(store, database, what)
    assert await listed(database) == []


async def test_one_plays_at_a_time_and_other_moments_need_another_sandbox(database: str) -> None:
    store = MemoryEventStore()
    feed(store, some_log(5, 60))
    async with player(store, database, wanted(to="5"), quiet):
        with pytest.raises(SandboxError, match="played by another process"):
            await played(store, database, wanted())
    with pytest.raises(SandboxError, match="leave --from and --to out"):
        await played(store, database, wanted(to="9"))
    with pytest.raises(NoSandboxError):
        await remove(database, "other")


async def test_two_are_played_side_by_side_and_one_is_removed_while_it_is_played(database: str, pool: Pool) -> None:
    commits, store = some_log(7, 120), MemoryEventStore()
    feed(store, commits)
    async with (
        player(store, database, wanted("one"), quiet) as one,
        player(store, database, wanted("two", to="9"), quiet) as two,
    ):
        await asyncio.gather(one.prepare(asyncio.Event()), two.prepare(asyncio.Event()))
        await asyncio.gather(one.play(asyncio.Event()), two.play(asyncio.Event()))
        await holds(pool, one.schema, commits)
        await holds(pool, two.schema, commits[: meant(commits, 9)])
        removed = asyncio.create_task(until_removed(one, asyncio.Event()))
        await remove(database, "one")
        with pytest.raises(RemovedError, match="was removed"):
            await asyncio.wait_for(removed, 60)
        assert [each.name for each in await listed(database)] == ["two"]


async def test_one_that_is_removed_is_not_played_on(database: str) -> None:
    """Given a speed at which the next commit is due in hours."""
    store, stop = MemoryEventStore(), asyncio.Event()
    feed(store, some_log(7, 120))
    async with player(store, database, wanted(speed="0.000001x"), quiet) as playing:
        await playing.prepare(stop)
        removed, play = (asyncio.create_task(one) for one in (until_removed(playing, stop), playing.play(stop)))
        await remove(database, "s")
        assert not await asyncio.wait_for(play, 60)
        with pytest.raises(RemovedError, match="was removed"):
            await removed


async def test_what_it_notes_does_not_meet_the_look_whether_it_was_removed(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.projector.play.ALIVE_SECONDS", 0.0001)
    store, stop = MemoryEventStore(), asyncio.Event()
    feed(store, some_log(5, 60))
    async with player(store, database, wanted(), quiet) as playing:
        removed = asyncio.create_task(until_removed(playing, stop))
        await playing.prepare(stop)
        for number in range(20):
            await playing.say(f"http://{number}")
        stop.set()
        await removed


async def test_what_stands_behind_the_position_is_not_there(database: str) -> None:
    """Given a log that is longer than what was played: nobody who reads what was played hears of the rest."""
    commits, store = some_log(9, 120), MemoryEventStore()
    feed(store, commits)
    seq = meant(commits, len(commits) // 2)
    async with player(store, database, wanted(to=str(seq)), quiet) as playing:
        await playing.prepare(asyncio.Event())
        await playing.play(asyncio.Event())
        log = playing.played
        heard: list[Commit] = []
        following = log.follow(0, idle_seconds=0.05)
        async for some in following:
            heard.extend(some)
            if not some and len(heard) >= seq:
                break
        await following.aclose()
        assert heard == commits[:seq]
        assert await log.last_seq() == log.known_seq == seq
        from events.aggregate import AGGREGATES

        for commit in commits:
            chain = await log.load(AGGREGATES[commit.aggregate], commit.key)
            assert chain.version <= seq


async def test_a_sandbox_of_another_shape_is_refused(database: str, pool: Pool) -> None:
    store = MemoryEventStore()
    feed(store, some_log(5, 30))
    await played(store, database, wanted())
    note = await pool.fetchval("SELECT obj_description('muster_replay_s'::regnamespace, 'pg_namespace')")
    await pool.execute("COMMENT ON SCHEMA muster_replay_s IS '" + note.replace('"shape":', '"shape":1') + "'")
    with pytest.raises(SandboxError, match="another version of Muster"):
        await played(store, database, wanted())
    async with pool.acquire() as connection:
        await drop_schema(connection, "muster_replay_s")
    assert await listed(database) == []
