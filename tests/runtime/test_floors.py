"""No read goes back behind what is known to be in the log, though its leader stood still and answers from before.

Requirement rows: S1; docs/adr/0029.
"""

import asyncio
import contextlib
import signal
from collections.abc import AsyncGenerator, AsyncIterator

import msgspec
import pytest

from development.servers import EVERYTHING, NatsCluster, NatsServer
from development.streams import recreate_streams
from events.aggregate import PROJECT, TENANT, Chain, Draft
from events.commit import About
from events.ids import TENANT_KEY
from events.subjects import EVENTS_STREAM
from services.ownership.gate import about_reader
from services.runtime.log.floors import Floors, StaleLogError
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.log.store import Committed
from services.runtime.nats.connection import connect
from services.runtime.nats.requests import UnansweredError
from services.runtime.process.settings import Settings
from tests.support.drafts import grant, of_incarnation, project_grant, subjects_of
from tests.support.stale import StaleLeader
from tests.support.stores import seqs

pytestmark = pytest.mark.anyio

ELECTION_SECONDS = 60.0


@contextlib.asynccontextmanager
async def opened(settings: Settings, suffix: str) -> AsyncGenerator[tuple[JetStreamEventStore, StaleLeader]]:
    """A store, and the leader that it asks."""
    client = await connect(settings, "commands", suffix=suffix)
    leader = StaleLeader(client)
    try:
        yield JetStreamEventStore(client, requests=leader), leader
    finally:
        await client.close()


@pytest.fixture
async def writer(fresh_log: NatsServer) -> AsyncIterator[JetStreamEventStore]:
    async with opened(fresh_log.settings("commands"), "writer") as (store, _):
        yield store


@pytest.fixture
async def reader(fresh_log: NatsServer) -> AsyncIterator[tuple[JetStreamEventStore, StaleLeader]]:
    async with opened(fresh_log.settings("commands"), "reader") as made:
        yield made


async def test_what_this_process_appended_it_reads(reader: tuple[JetStreamEventStore, StaleLeader]) -> None:
    store, leader = reader
    await store.append(grant("a", 0, subject="s1"))
    assert (await store.load(TENANT, "a")).version == 1
    assert await store.last_seq() == await store.last_seq(aggregates=["tenant"]) == 1
    assert seqs(await store.append_batch([grant("a", 1, subject="s2"), project_grant("p", 0)])) == [2, 3]

    leader.stands_still(4)
    assert subjects_of(await store.load(TENANT, "a")) == {"s1", "s2"}
    assert leader.old_answers == 0, "it answered from before, and was asked again"
    for question in (store.last_seq(), store.last_seq(aggregates=["tenant", "project"])):
        leader.stands_still(2)
        assert await question == 3


async def test_what_was_acknowledged_to_another_process_is_read_where_it_was_heard_of(
    writer: JetStreamEventStore, reader: tuple[JetStreamEventStore, StaleLeader]
) -> None:
    store, leader = reader
    await writer.append(grant("a", 0))
    assert (await store.load(TENANT, "a")).version == 1
    await writer.append(grant("a", 1))

    leader.stands_still(3)
    assert (await store.load(TENANT, "a")).version == 1, "nobody told it"
    store.saw("tenant", "a", 2)
    assert (await store.load(TENANT, "a")).version == 2
    assert store.seen("tenant", "a") == 2


async def test_what_was_read_once_is_not_unread(
    writer: JetStreamEventStore, reader: tuple[JetStreamEventStore, StaleLeader]
) -> None:
    store, leader = reader
    await writer.append(of_incarnation(grant("a", 0), "one"))
    await writer.append(of_incarnation(grant("a", 1), "two"))
    assert (await store.load(TENANT, "a")).version == 2
    await writer.append(of_incarnation(grant("a", 2), "three"))
    leader.stands_still(0)
    old = dict(leader._told)
    assert (await store.load(TENANT, "a")).version == 3
    leader._told.update(old)

    leader.stands_still(2)
    assert (await store.load(TENANT, "a")).version == 3
    leader._told.update(old)
    leader.stands_still(2)
    newest = await store.load_at(TENANT, "a", "three")
    assert newest is not None
    assert newest.version == 3


async def test_a_sequence_that_the_caller_brings_holds_for_all_that_is_read(
    writer: JetStreamEventStore, reader: tuple[JetStreamEventStore, StaleLeader]
) -> None:
    """Of another aggregate, too: what answers must have come as far, whether the aggregate itself did or not."""
    store, leader = reader
    await writer.append(grant(TENANT_KEY, 0))
    await writer.append(project_grant("p", 0))
    assert (await store.load(PROJECT, "p")).version == 2
    assert (await store.load(TENANT, "never")).version == 0
    await writer.append(project_grant("p", 2))
    await writer.append(grant(TENANT_KEY, 1))

    leader.stands_still(3)
    assert (await store.load(PROJECT, "p", min_seq=4)).version == 3
    assert (await store.load(PROJECT, "p", min_seq=3)).version == 3
    leader.stands_still(1)
    assert (await store.load(TENANT, "never", min_seq=4)).version == 0
    with pytest.raises(StaleLogError, match="5 is known"):
        await store.load(PROJECT, "p", min_seq=5, seconds=0.1)


async def test_a_leader_that_goes_on_being_wrong_is_an_error_and_no_answer(
    reader: tuple[JetStreamEventStore, StaleLeader],
) -> None:
    store, leader = reader
    await store.append(grant("a", 0))
    await store.load(TENANT, "a")
    await store.append(grant("a", 1))
    leader.stands_still(10_000)
    with pytest.raises(StaleLogError, match="2 is known"):
        await store.load(TENANT, "a", seconds=0.1)


async def test_the_gate_reads_about_a_workload_no_older_than_the_api_knows(
    fresh_log: NatsServer, writer: JetStreamEventStore
) -> None:
    def of(owner: str, parent: int) -> Draft:
        made = grant("k", parent)
        record = msgspec.structs.replace(made.record, about=About(id="w", owner=owner))
        return msgspec.structs.replace(made, aggregate="workload", record=record)

    client = await connect(fresh_log.settings("ownership"), "ownership")
    try:
        leader = StaleLeader(client)
        read = about_reader(JetStreamEventStore(client, requests=leader))
        await writer.append(of("ada", 0))
        assert (about := await read("k", 0)) is not None
        assert about.owner == "ada"
        await writer.append(of("bob", 1))

        leader.stands_still(3)
        assert (about := await read("k", 2)) is not None
        assert about.owner == "bob"
    finally:
        await client.close()


async def test_floors_are_bounded() -> None:
    floors = Floors(None, kept=10)  # pyright: ignore[reportArgumentType] - nothing is asked
    for number in range(100):
        floors.saw(f"ev.tenant.k{number}", number + 1)
    assert floors.of("ev.tenant.k0") == 0
    assert floors.of("ev.tenant.k99") == 100
    floors.saw("ev.tenant.k99", 5)
    assert floors.of("ev.tenant.k99") == 100


async def test_three_servers_whose_leader_stood_still_answer_no_reader_with_what_was(nats_cluster: NatsCluster) -> None:
    """The leader is stopped, another one elected and a commit acknowledged; then the old one goes on, and its first
    questions have waited for it.
    """
    await recreate_streams(nats_cluster.settings(EVERYTHING))
    everything = await connect(nats_cluster.settings(EVERYTHING), EVERYTHING)
    try:
        cluster = (await everything.jetstream().stream_info(EVENTS_STREAM)).cluster
    finally:
        await everything.close()
    assert cluster is not None
    (leader,) = (s for s in nats_cluster.servers if s.member is not None and s.member.name == cluster.leader)
    others = ",".join(server.url for server in nats_cluster.servers if server is not leader)
    settings = leader.settings("commands")
    async with (
        opened(settings, "reader") as (reader, _),
        opened(settings.model_copy(update={"nats_url": others}), "writer") as (writer, _),
    ):
        assert seqs(await writer.append(grant("a", 0))) == [1]
        assert (await reader.load(TENANT, "a")).version == 1
        assert leader.process is not None
        leader.process.send_signal(signal.SIGSTOP)
        try:
            async with asyncio.timeout(ELECTION_SECONDS):
                while not isinstance(outcome := await writer.append(grant("a", 1)), Committed):
                    pass
            reader.saw("tenant", "a", outcome.commits[0].seq)  # as the api does with an answer's sequence
            reads = [asyncio.create_task(reader.load(TENANT, "a", seconds=ELECTION_SECONDS)) for _ in range(20)]
            await asyncio.sleep(0.1)  # so that they wait in the socket
        finally:
            leader.process.send_signal(signal.SIGCONT)
        told = await asyncio.gather(*reads, return_exceptions=True)
        await asyncio.to_thread(nats_cluster.wait_whole)
        afterwards = await reader.load(TENANT, "a", seconds=ELECTION_SECONDS)

    # Three servers that have just changed their leader may answer that they cannot: never with what was.
    assert all(isinstance(one, Chain | UnansweredError) for one in told), told
    assert {one.version for one in [*told, afterwards] if isinstance(one, Chain)} == {2}
