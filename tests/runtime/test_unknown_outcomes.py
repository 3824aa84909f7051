"""Appends whose answer is lost: nobody is told that a command failed when it was stored, and nothing is stored twice.

Requirement S1 and architecture.md section 3; measured causes in log.md section 2.2.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

import pytest

from development.servers import EVERYTHING, NatsCluster, NatsServer
from development.streams import recreate_streams
from events.aggregate import TENANT, WORKLOAD, Draft
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.log.store import Committed, Conflict, EventStore, LogUnavailableError, Rejected, Unknown
from services.runtime.nats.connection import connect
from tests.support.drafts import grant, subjects_of
from tests.support.people import People
from tests.support.proxy import Fate, Proxy, proxied
from tests.support.stores import collect, flat, seqs

pytestmark = pytest.mark.anyio

APPEND = b"HPUB ev."
UNKNOWN_AFTER_SECONDS = 5.0
"""The deadline of an append where none is given."""
SHAPES = pytest.mark.parametrize("batch", [1, 3], ids=["one message", "atomic batch"])


@pytest.fixture
async def proxy(fresh_log: NatsServer) -> AsyncIterator[Proxy]:
    async with proxied(fresh_log.port) as made:
        yield made


@contextlib.asynccontextmanager
async def opened(server: NatsServer, **settings: object) -> AsyncGenerator[JetStreamEventStore, None]:
    client = await connect(server.settings("commands", **settings), "commands")
    try:
        yield JetStreamEventStore(client)
    finally:
        await client.close()


@pytest.fixture
async def direct(fresh_log: NatsServer) -> AsyncIterator[EventStore]:
    """A store that the proxy does not touch."""
    async with opened(fresh_log) as store:
        yield store


@pytest.fixture
async def struck(fresh_log: NatsServer, proxy: Proxy) -> AsyncIterator[EventStore]:
    """A store behind the proxy."""
    async with opened(fresh_log, nats_url=proxy.url) as store:
        await store.last_seq()
        yield store


def drafts_of(batch: int, parent: int = 0, command_id: str = "ours") -> list[Draft]:
    """The first one is of aggregate `a`."""
    return [grant(key, parent if key == "a" else 0, command_id=command_id) for key in "abc"[:batch]]


@SHAPES
@pytest.mark.parametrize("fate", list(Fate))
async def test_a_lost_answer_is_looked_up_and_the_commit_is_there_once(
    struck: EventStore, direct: EventStore, proxy: Proxy, batch: int, fate: Fate
) -> None:
    proxy.strike(APPEND, fate)
    outcome = await struck.append_batch(drafts_of(batch))
    assert proxy.struck.is_set()
    assert seqs(outcome) == list(range(1, batch + 1))
    await asyncio.sleep(0.8)  # what is late arrives, and finds its guard gone
    assert await direct.last_seq() == batch
    assert isinstance(outcome, Committed)
    stored = flat(await collect(direct, 0, batch))
    assert [commit.events for commit in stored] == [commit.events for commit in outcome.commits]
    assert [commit.record.batch for commit in stored] == [commit.record.batch for commit in outcome.commits]


@SHAPES
async def test_a_commit_that_another_one_already_follows_is_still_found(
    struck: EventStore, direct: EventStore, proxy: Proxy, batch: int
) -> None:
    """The chain's last message hides ours: the look begins at our own guard."""
    proxy.strike(APPEND, Fate.STORED, keep_out=True)
    appending = asyncio.ensure_future(struck.append_batch(drafts_of(batch)))
    await proxy.struck.wait()
    assert seqs(await direct.append(grant("a", 1))) == [batch + 1]
    proxy.admits.set()
    assert seqs(await appending) == list(range(1, batch + 1))


@SHAPES
@pytest.mark.parametrize("taken", ["first", "last"])
async def test_where_another_took_the_place_it_is_a_conflict(
    struck: EventStore, direct: EventStore, proxy: Proxy, batch: int, taken: str
) -> None:
    drafts = drafts_of(batch)
    proxy.strike(APPEND, Fate.LOST, keep_out=True)
    appending = asyncio.ensure_future(struck.append_batch(drafts))
    await proxy.struck.wait()
    await direct.append(grant(drafts[0 if taken == "first" else -1].key, 0))
    proxy.admits.set()
    assert await appending == Conflict()
    assert await direct.last_seq() == 1


async def test_the_same_command_in_another_batch_is_not_ours(
    struck: EventStore, direct: EventStore, proxy: Proxy
) -> None:
    proxy.strike(APPEND, Fate.LOST, keep_out=True)
    appending = asyncio.ensure_future(struck.append_batch(drafts_of(3)))
    await proxy.struck.wait()
    await direct.append_batch(drafts_of(2))
    proxy.admits.set()
    assert await appending == Conflict()
    assert await direct.last_seq() == 2


async def test_a_command_whose_message_is_known_is_answered_with_its_first_commit(direct: EventStore) -> None:
    """The server's window of duplicates: the answer names the first commit, whatever the guard."""
    first = await direct.append(grant("a", 0, command_id="same"))
    await direct.append(grant("a", 1))
    again = await direct.append(grant("a", 2, command_id="same"))
    assert seqs(again) == seqs(first) == [1]
    assert await direct.last_seq() == 2


async def test_without_a_server_the_outcome_is_unknown_at_the_deadline(
    struck: EventStore, direct: EventStore, proxy: Proxy
) -> None:
    proxy.strike(APPEND, Fate.STORED, keep_out=True)
    ours = grant("a", 0)
    outcome = await struck.append(ours, deadline_seconds=0.7)
    assert isinstance(outcome, Unknown)
    proxy.admits.set()
    assert subjects_of(await direct.load(TENANT, "a")) == {ours.events[0].actor}


async def test_people_of_tests_ask_again_as_the_same_command(struck: JetStreamEventStore, proxy: Proxy) -> None:
    """A creation whose outcome nobody learned before the deadline was stored: asking again finds it."""
    people = People(struck)
    people.project_id, people.cluster_id = "project", "cluster"
    proxy.strike(b"HPUB ev.workload.", Fate.STORED, keep_out=True)
    submitting = asyncio.ensure_future(people.submit("once"))
    await proxy.struck.wait()
    await asyncio.sleep(UNKNOWN_AFTER_SECONDS + 0.5)
    proxy.admits.set()
    key = await submitting
    assert (await struck.load(WORKLOAD, key)).version == 1


async def test_a_full_log_refuses_and_says_so(fresh_log: NatsServer) -> None:
    client = await connect(fresh_log.settings(EVERYTHING), EVERYTHING)
    js = client.jetstream()
    await js.delete_stream("EVENTS")
    await js.add_stream(
        name="EVENTS", subjects=["ev.>"], max_msgs=2, discard="new", allow_direct=True, allow_atomic=True
    )
    store = JetStreamEventStore(client)
    assert seqs(await store.append(grant("a", 0))) == [1]
    assert seqs(await store.append(grant("b", 0))) == [2]
    outcome = await store.append(grant("c", 0))
    assert isinstance(outcome, Rejected)
    assert outcome.message == "maximum messages exceeded"
    assert isinstance(await store.append_batch([grant("c", 0), grant("d", 0)]), Rejected)
    assert await store.last_seq() == 2
    await client.close()


@SHAPES
async def test_a_record_larger_than_a_message_is_refused_and_the_connection_lives(
    direct: EventStore, batch: int
) -> None:
    drafts = [grant("a", 0, subject="x" * (1024 * 1024)), *drafts_of(batch)[1:]]
    outcome = await direct.append_batch(drafts)
    assert isinstance(outcome, Rejected)
    assert "larger than a message" in outcome.message
    assert seqs(await direct.append(grant("a", 0))) == [1]


async def test_a_killed_server_loses_nothing_that_was_committed_and_stores_nothing_twice(
    nats_server: NatsServer, fresh_log: NatsServer
) -> None:
    async with opened(fresh_log) as store:
        appended = await _append_through(store, lambda: _kill_and_start(nats_server))
        await _check_appended(store, appended)


async def test_a_cluster_that_loses_its_leader_goes_on_and_keeps_its_word(nats_cluster: NatsCluster) -> None:
    await recreate_streams(nats_cluster.settings(EVERYTHING))
    client = await connect(nats_cluster.settings("commands"), "commands")
    store = JetStreamEventStore(client)
    info = await client.jetstream().stream_info("EVENTS")
    assert info.cluster is not None
    leader = next(s for s in nats_cluster.servers if s.member is not None and s.member.name == info.cluster.leader)
    async with contextlib.aclosing(store.follow(0, idle_seconds=0.2)) as following:
        appended = await _append_through(store, lambda: _kill_and_start(leader, pause=1.0))
        await _check_appended(store, appended)
        followed: list[int] = []
        async with asyncio.timeout(60):
            while len(followed) < len(appended):
                followed.extend(commit.seq for commit in await anext(following))
    assert followed == sorted(appended.values())
    await client.close()


async def _kill_and_start(server: NatsServer, *, pause: float = 0.0) -> None:
    await asyncio.to_thread(server.kill)
    await asyncio.sleep(pause)
    await asyncio.to_thread(server.start)


async def _append_through(store: EventStore, trouble: Callable[[], Awaitable[None]]) -> dict[str, int]:
    """Commands that were answered, by their sequences, from six writers with trouble in their midst."""
    appended: dict[str, int] = {}
    over = asyncio.Event()

    async def write(key: str) -> None:
        n = 0
        while not over.is_set():
            version = (await _patiently(lambda: store.load(TENANT, key))).version
            command = f"{key}-{n}"
            outcome = await store.append(grant(key, version, command_id=command), deadline_seconds=60)
            assert isinstance(outcome, Committed), outcome
            appended[command] = outcome.commits[0].seq
            n += 1

    async with asyncio.timeout(100), asyncio.TaskGroup() as tasks:
        for number in range(6):
            tasks.create_task(write(f"w{number}"))
        await asyncio.sleep(0.2)
        await trouble()
        before = len(appended)
        while len(appended) < before + 20:
            await asyncio.sleep(0.05)
        over.set()
    return appended


async def _patiently[T](ask: Callable[[], Awaitable[T]]) -> T:
    while True:
        try:
            return await ask()
        except LogUnavailableError:
            await asyncio.sleep(0.1)


async def _check_appended(store: EventStore, appended: dict[str, int]) -> None:
    stored = flat(await collect(store, 0, await _patiently(store.last_seq)))
    assert {commit.record.command_id: commit.seq for commit in stored} == appended
    assert len(stored) == len(appended)
