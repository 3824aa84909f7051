"""Following through trouble: restarts, cut connections, gaps (log.md sections 2.5, 3.2 and 4.2)."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator

import msgspec
import pytest
from nats.aio.client import Client

from development.servers import EVERYTHING, NatsServer
from development.streams import recreate_streams
from events.aggregate import Draft
from events.subjects import OBSERVED_STREAM
from services.runtime.identity.directory import START_SECONDS
from services.runtime.log import follower
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.log.latest import read_latest
from services.runtime.log.store import EventStore, LogGapError, UnreadableMessageError
from services.runtime.nats.connection import connect
from services.runtime.nats.requests import Requests
from tests.support.drafts import grant, project_grant
from tests.support.erasable import erasable_log
from tests.support.proxy import proxied
from tests.support.stores import collect, flat

pytestmark = pytest.mark.anyio


@pytest.fixture
def store(client: Client) -> EventStore:
    return JetStreamEventStore(client)


async def _until(following: AsyncIterator[list], last_seq: int) -> list[int]:
    seen: list[int] = []
    async with asyncio.timeout(60):
        async for commits in following:
            seen.extend(commit.seq for commit in commits)
            if seen and seen[-1] >= last_seq:
                return seen
    raise AssertionError


async def test_a_follower_outlives_a_killed_server_and_misses_nothing(
    nats_server: NatsServer, store: EventStore
) -> None:
    async with contextlib.aclosing(store.follow(0, idle_seconds=0.1)) as following:
        await store.append_batch([grant(f"a{n}", 0) for n in range(50)])
        assert await _until(following, 50) == list(range(1, 51))
        await asyncio.to_thread(nats_server.kill)
        assert await anext(following) == []  # what is due is not kept waiting by a server that is away
        await asyncio.to_thread(nats_server.start)
        await store.append_batch([grant(f"b{n}", 0) for n in range(50)], deadline_seconds=60)
        assert await _until(following, 100) == list(range(51, 101))


async def test_a_connection_that_is_cut_again_and_again_delivers_everything_once(
    fresh_log: NatsServer, store: EventStore
) -> None:
    for start in range(0, 3_000, 1_000):
        await store.append_batch([grant(f"k{start + n}", 0) for n in range(1_000)], deadline_seconds=60)
    async with proxied(fresh_log.port) as proxy:
        proxy.cut_after_bytes = 700_000
        reader = await connect(fresh_log.settings("projector", nats_url=proxy.url), "projector")
        seen = flat(await collect(JetStreamEventStore(reader), 0, 3_000))
        assert [commit.seq for commit in seen] == list(range(1, 3_001))
        assert proxy.cuts > 0
        await reader.close()


async def test_a_slow_reader_bounds_what_is_buffered(store: JetStreamEventStore, client: Client) -> None:
    for start in range(0, 5_000, 1_000):
        await store.append_batch([grant(f"k{start + n}", 0) for n in range(1_000)], deadline_seconds=60)
    for start in range(500):
        await store.append(grant(f"single{start}", 0))
    before = client.stats["in_msgs"]
    async with contextlib.aclosing(store.follow(0)) as following:
        first = await anext(following)
        await asyncio.sleep(0.5)  # the reader is busy; nobody asks the server for more than the bound
        assert client.stats["in_msgs"] - before < follower.UNREAD_MESSAGES + 1_500
        rest = await _until(following, 5_500)
    assert [commit.seq for commit in first] + rest == list(range(1, 5_501))


async def test_a_hole_in_the_log_halts_a_follower(client: Client, store: EventStore) -> None:
    await erasable_log(client)
    for n in range(5):
        await store.append(grant(f"k{n}", 0))
    await client.jetstream().delete_msg("EVENTS", 3)
    following = store.follow(0)
    with pytest.raises(LogGapError, match="from 2 to 4"):
        await _until(following, 5)


async def test_a_hole_in_a_chain_halts_a_follower_of_its_kind(client: Client, store: EventStore) -> None:
    await erasable_log(client)
    await store.append(project_grant("p", 0))
    await store.append(grant("a", 0))
    await store.append(project_grant("p", 1))
    await store.append(project_grant("p", 3))
    await client.jetstream().delete_msg("EVENTS", 3)
    for after in (0, 1):
        with pytest.raises(
            UnreadableMessageError, match=r"message 4 .*ev\.project\.p.* follows 3, which was never seen"
        ):
            await _until(store.follow(after, aggregates=["project"]), 4)


async def test_a_log_whose_front_part_is_gone_halts_a_follower(client: Client, store: EventStore) -> None:
    await erasable_log(client)
    for n in range(5):
        await store.append(grant(f"k{n}", 0))
    await client.jetstream().purge_stream("EVENTS", seq=4)
    with pytest.raises(LogGapError, match="begins at 4, after position 1"):
        await _until(store.follow(1), 5)
    assert await _until(store.follow(3), 5) == [4, 5]


async def test_a_log_that_was_made_anew_halts_a_follower(
    fresh_log: NatsServer, store: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "SILENCE_SECONDS", 0.5)
    await store.append(grant("a", 0))
    following = store.follow(0, idle_seconds=0.1)
    assert await _until(following, 1) == [1]
    await recreate_streams(fresh_log.settings(EVERYTHING))
    await store.append(grant("b", 0))
    with pytest.raises(LogGapError, match="read before"):
        await _until(following, 2)


async def test_an_event_of_a_later_version_halts_a_follower(store: EventStore) -> None:
    await store.append(grant("a", 0))
    await store.append(_from_the_future(grant("b", 0)))
    following = store.follow(0)
    with pytest.raises(UnreadableMessageError, match="TenantRoleGranted version 99"):
        await _until(following, 2)


def _from_the_future(made: Draft) -> Draft:
    later = tuple(msgspec.structs.replace(event, version=99) for event in made.record.events)
    return msgspec.structs.replace(made, record=msgspec.structs.replace(made.record, events=later))


async def test_a_closed_follower_leaves_nothing_behind(client: Client, store: EventStore) -> None:
    await store.append(grant("a", 0))
    for _ in range(3):
        await collect(store, 0, 1)
    async with asyncio.timeout(60):
        while (await client.jetstream().stream_info("EVENTS")).state.consumer_count:
            await asyncio.sleep(0.02)


LEAVES_BEHIND = """
import asyncio, sys
from services.runtime.nats.connection import connect
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.process.settings import Settings

async def main():
    client = await connect(Settings(), sys.argv[1])
    store = JetStreamEventStore(client)
    following = [store.follow(0, idle_seconds=0.1) for _ in range(8)]
    await asyncio.gather(*(anext(follower) for follower in following))
    print("there", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_what_killed_processes_leave_behind_is_gone_before_the_next_gives_up(
    nats_server: NatsServer, store: EventStore
) -> None:
    """A user may have eight consumers, and what is killed drops none of its own."""
    await store.append_batch([grant("alice", 0)])
    password = nats_server.passwords[EVERYTHING]
    killed = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", LEAVES_BEHIND, EVERYTHING),
        env={**os.environ, "MUSTER_NATS_URL": nats_server.url, "MUSTER_NATS_PASSWORD": password},
        stdout=asyncio.subprocess.PIPE,
    )
    assert killed.stdout is not None
    assert await killed.stdout.readline() == b"there\n"
    killed.kill()
    await killed.wait()
    async with contextlib.aclosing(store.follow(0)) as following, asyncio.timeout(START_SECONDS):
        assert await _until(following, 1) == [1]


async def test_a_message_without_a_body_hides_no_other_from_who_reads_the_newest(
    fresh_log: NatsServer, client: Client
) -> None:
    """Agents may send any bytes. Servers take an empty message for the end of an answer from another account."""
    bodies = {f"obs.{'one' if n % 2 else 'two'}.p.k{n}": b"" if n % 2 else b"word" for n in range(12)}
    for subject, body in bodies.items():
        await client.request(subject, body)
    reads = [read_latest(client, Requests(client), OBSERVED_STREAM, "obs.>") for _ in range(4)]
    assert await asyncio.gather(*reads) == [bodies] * 4
