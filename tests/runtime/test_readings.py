"""All who follow the log in one process: it is read and decoded once, and nobody depends on how another does."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator

import pytest
from nats.aio.client import Client

from development.servers import EVERYTHING, NatsServer
from events.commit import Commit
from services.runtime.log import follower, readings
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.log.readings import READINGS, Readings
from services.runtime.log.store import EventStore, UnreadableMessageError
from services.runtime.nats.connection import connect
from tests.support.drafts import grant, project_grant

pytestmark = pytest.mark.anyio

HELD = 40
"""Few, so that one who is slow falls out soon."""


class Process:
    """Stores of one process, each on the connection that it got."""

    def __init__(self, held_commits: int = HELD) -> None:
        self._readings = Readings(held_commits=held_commits)

    def store(self, client: Client) -> EventStore:
        token = READINGS.set(self._readings)
        try:
            return JetStreamEventStore(client)
        finally:
            READINGS.reset(token)


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Process:
    monkeypatch.setattr(readings, "READ_AT_ONCE", 10)
    monkeypatch.setattr(readings, "KEPT_COMMITS", 5)
    return Process()


@pytest.fixture
async def other(nats_server: NatsServer) -> AsyncIterator[Client]:
    """The connection of another service of the process."""
    connection = await connect(nats_server.settings(EVERYTHING), EVERYTHING)
    yield connection
    await connection.close()


async def until(following: AsyncGenerator[list[Commit], None], last_seq: int) -> list[Commit]:
    seen: list[Commit] = []
    async with asyncio.timeout(60):
        while not seen or seen[-1].seq < last_seq:
            seen.extend(await anext(following))
    return seen


async def write(store: EventStore, first: int, last: int) -> None:
    for number in range(first, last + 1, 10):
        await store.append_batch([grant(f"a{n}", 0) for n in range(number, min(number + 10, last + 1))])


async def come_to_consumers(client: Client, count: int) -> None:
    """Those that are dropped go a moment later."""
    async with asyncio.timeout(60):
        while len(await client.jetstream().consumers_info("EVENTS")) != count:
            await asyncio.sleep(0.02)


async def read_on(following: AsyncGenerator[list[Commit], None]) -> None:
    async with asyncio.timeout(60):
        async for _ in following:
            pass


async def test_several_followers_of_one_process_read_once_and_get_the_very_same_commits(
    client: Client, other: Client, process: Process
) -> None:
    stores = [process.store(client), process.store(other), process.store(client)]
    await write(stores[0], 1, 20)
    followers = [store.follow(0, idle_seconds=0.1) for store in stores]
    seen = await asyncio.gather(*(until(each, 20) for each in followers))
    await write(stores[0], 21, 30)
    later = await asyncio.gather(*(until(each, 30) for each in followers))
    await come_to_consumers(client, 1)
    for mine, first in (*zip(seen, [seen[0]] * 3, strict=True), *zip(later, [later[0]] * 3, strict=True)):
        assert [commit.seq for commit in mine] == [commit.seq for commit in first]
        assert all(one is another for one, another in zip(mine, first, strict=True))
    for each in followers:
        await each.aclose()
    await come_to_consumers(client, 0)


async def test_those_who_follow_some_kinds_share_a_reading_of_their_own(client: Client, process: Process) -> None:
    store = process.store(client)
    await store.append_batch([grant("a", 0), project_grant("b", 0), grant("c", 0)])
    some = [store.follow(0, aggregates=["project"], idle_seconds=0.1) for _ in range(2)]
    for each in some:
        assert [c.seq for c in await until(each, 2)] == [2]
    await come_to_consumers(client, 1)
    for each in some:
        await each.aclose()


@pytest.mark.parametrize("began_alone", [False, True])
async def test_who_follows_some_kinds_goes_along_with_who_reads_the_whole_log(
    client: Client,
    other: Client,
    process: Process,
    began_alone: bool,
) -> None:
    store = process.store(client)
    await store.append_batch([grant("a", 0), project_grant("b", 0), grant("c", 0)])
    everything, some = store.follow(0, idle_seconds=0.1), process.store(other).follow(0, aggregates=["project"])
    for each, last in ((some, 2), (everything, 3)) if began_alone else ((everything, 3), (some, 2)):
        await until(each, last)
    seen: list[int] = []
    for number in range(4, 13, 3):
        await store.append_batch([grant(f"a{number}", 0), project_grant(f"b{number}", 0), grant(f"c{number}", 0)])
        await until(everything, number + 2)
        seen += [commit.seq for commit in await until(some, number + 1)]
    assert seen == [5, 8, 11]
    await come_to_consumers(client, 1)
    for each in (everything, some):
        await each.aclose()
    await come_to_consumers(client, 0)


async def test_who_follows_some_kinds_does_not_stand_before_what_is_of_another(
    client: Client, process: Process
) -> None:
    store = process.store(client)
    await store.append_batch([grant("a", 0), project_grant("b", 0)])
    everything, some = store.follow(0, idle_seconds=0.1), store.follow(0, aggregates=["project"], idle_seconds=0.1)
    await until(everything, 2)
    await until(some, 2)
    await client.jetstream().publish("ev.tenant.broken", b"{")
    await store.append_batch([project_grant("c", 0), project_grant("d", 0)])
    with pytest.raises(UnreadableMessageError):
        await read_on(everything)
    assert [c.seq for c in await until(some, 5)] == [4, 5]
    for each in (everything, some):
        await each.aclose()


async def test_one_who_stands_still_holds_up_nobody_and_goes_on_later_without_a_gap(
    client: Client, process: Process
) -> None:
    store = process.store(client)
    await write(store, 1, 10)
    slow, quick = (store.follow(0, idle_seconds=0.1) for _ in range(2))
    seen = await until(slow, 10)
    await until(quick, 10)
    await write(store, 11, 200)
    assert [c.seq for c in await until(quick, 200)] == list(range(11, 201))
    seen += await until(slow, 200)
    assert [c.seq for c in seen] == list(range(1, 201))
    # They meet again.
    await write(store, 201, 210)
    mine, others = await asyncio.gather(until(slow, 210), until(quick, 210))
    await write(store, 211, 220)
    mine, others = await asyncio.gather(until(slow, 220), until(quick, 220))
    assert all(one is another for one, another in zip(mine, others, strict=True))
    await come_to_consumers(client, 1)
    for each in (slow, quick):
        await each.aclose()


async def test_one_who_begins_behind_catches_up_by_itself_and_then_joins(client: Client, process: Process) -> None:
    store = process.store(client)
    await write(store, 1, 200)
    ahead = store.follow(195, idle_seconds=0.1)
    await until(ahead, 200)
    behind = store.follow(0, idle_seconds=0.1)
    assert [c.seq for c in await until(behind, 200)] == list(range(1, 201))
    await write(store, 201, 205)
    mine, others = await asyncio.gather(until(behind, 205), until(ahead, 205))
    assert all(one is another for one, another in zip(mine, others, strict=True))
    for each in (ahead, behind):
        await each.aclose()


async def test_two_who_begin_in_the_same_moment_but_not_at_once_come_to_read_once(
    client: Client, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they meet is chance: the one ahead may have come to the end before."""
    monkeypatch.setattr(follower, "HANDED_OUT_COMMITS", 10)
    monkeypatch.setattr(readings, "PATIENCE_SECONDS", 60.0)
    for wait in ("WAIT_SECONDS", "WAIT_AT_A_START_SECONDS"):
        monkeypatch.setattr(readings, wait, 60.0)  # the test may be kept from running for long
    store = process.store(client)
    await write(store, 1, 600)
    ahead = store.follow(0, idle_seconds=0.1)
    await until(ahead, 100)
    behind = store.follow(0, idle_seconds=0.1)
    _, mine = await asyncio.gather(until(ahead, 600), until(behind, 600))
    assert [c.seq for c in mine] == list(range(1, 601))
    await write(store, 601, 610)
    others, mine = await asyncio.gather(until(ahead, 610), until(behind, 610))
    assert all(one is another for one, another in zip(mine, others, strict=True))
    await come_to_consumers(client, 1)
    for each in (ahead, behind):
        await each.aclose()


async def test_who_begins_at_the_end_reads_for_itself_until_the_others_have_come(
    client: Client, process: Process
) -> None:
    store = process.store(client)
    await write(store, 1, 300)
    at_the_end = store.follow(299, idle_seconds=0.1)
    assert [c.seq for c in await until(at_the_end, 300)] == [300]
    first, second = (store.follow(0, idle_seconds=0.1) for _ in range(2))
    seen = await asyncio.gather(until(first, 300), until(second, 300))
    assert all(one is another for one, another in zip(*seen, strict=True))
    await write(store, 301, 310)
    later = await asyncio.gather(*(until(each, 310) for each in (first, second, at_the_end)))
    assert all(one is two is three for one, two, three in zip(*later, strict=True))
    await come_to_consumers(client, 1)
    for each in (first, second, at_the_end):
        await each.aclose()


@pytest.mark.parametrize("times", [1, 2])
async def test_one_who_is_cancelled_leaves_nothing_dead_behind(client: Client, process: Process, times: int) -> None:
    store = process.store(client)
    await write(store, 1, 10)

    async def follow() -> None:
        async with contextlib.aclosing(store.follow(0, idle_seconds=60)) as following:
            async for _ in following:
                pass

    stays = store.follow(0, idle_seconds=0.1)
    await until(stays, 10)
    for alone in (False, True):
        if alone:
            await stays.aclose()
        following = asyncio.create_task(follow())
        await asyncio.sleep(0.2)  # it reads on, for all
        for _ in range(times):
            following.cancel()
            await asyncio.sleep(0)
        await asyncio.gather(following, return_exceptions=True)
        last = 20 if alone else 15
        await write(store, last - 4 if not alone else 16, last)
        later = store.follow(0, idle_seconds=0.1)
        assert [c.seq for c in await until(later, last)] == list(range(1, last + 1))
        if not alone:
            assert [c.seq for c in await until(stays, last)] == list(range(11, last + 1))
        await later.aclose()


async def test_when_the_service_that_reads_stops_the_others_read_on(
    nats_server: NatsServer, client: Client, process: Process
) -> None:
    ending = await connect(nats_server.settings(EVERYTHING), EVERYTHING)
    store = process.store(client)
    await write(store, 1, 10)
    first = process.store(ending).follow(0, idle_seconds=0.1)
    await until(first, 10)
    second = store.follow(0, idle_seconds=0.1)
    await until(second, 10)
    await ending.close()
    await write(store, 11, 20)
    assert [c.seq for c in await until(second, 20)] == list(range(11, 21))
    for each in (first, second):
        await each.aclose()


async def test_an_atomic_batch_is_handed_out_whole_to_everybody(client: Client, process: Process) -> None:
    store = process.store(client)
    followers = [store.follow(0, idle_seconds=0.1) for _ in range(2)]
    for first in range(0, 120, 30):
        await store.append_batch([grant(f"b{n}", 0) for n in range(first, first + 30)])
    for each in followers:
        seen = 0
        async with asyncio.timeout(60):
            while seen < 120:
                commits = await anext(each)
                assert not commits or commits[-1].ends_batch
                seen = commits[-1].seq if commits else seen
    for each in followers:
        await each.aclose()


async def test_what_cannot_be_read_stops_each_of_them_behind_all_that_stands_before_it(
    client: Client, process: Process
) -> None:
    store = process.store(client)
    await write(store, 1, 10)
    await client.jetstream().publish("ev.tenant.bad", b"no commit")
    for _ in range(2):
        followers = [store.follow(0, idle_seconds=0.1) for _ in range(2)]
        for each in followers:
            assert [c.seq for c in await until(each, 10)] == list(range(1, 11))
        for each in followers:
            with pytest.raises(UnreadableMessageError):
                await read_on(each)
            await each.aclose()


async def test_who_goes_along_is_told_nothing_only_where_nothing_came(client: Client, process: Process) -> None:
    """The reading of the whole log is behind: what it reads first is of other kinds."""
    store = process.store(client)
    everything = store.follow(0, idle_seconds=0.1)
    await write(store, 1, 20)
    await until(everything, 20)
    await write(store, 21, 60)
    await store.append_batch([project_grant("b", 0)])
    some = store.follow(17, aggregates=["project"], idle_seconds=5)
    assert [c.seq for c in await anext(some)] == [61]
    for each in (some, everything):
        await each.aclose()
