"""A subscription lets its reader read exactly its project, from where it may, until it ends; whatever is killed, made
anew or there twice meanwhile.
"""

import pytest
from nats.errors import Error as NatsError

from development.servers import NatsServer
from development.streams import delete_streams
from services.runtime.nats.streams import create_streams
from services.subscriptions.callout import KNOCKS, MAX_CONNECTIONS
from tests.support.subscribing import SECONDS, Credential, Given, given_on, is_let_in, reader, serving, until

pytestmark = pytest.mark.anyio


async def test_it_reads_its_project_and_no_other(served: Given) -> None:
    one, other = await served.project("one"), await served.project("other")
    await served.publish(one, "a", "b")
    await served.publish(other, "secret")
    await served.publish(one, "c")
    credential = await served.subscription("one")
    await served.ready(credential)
    async with reader(served.server, credential) as program:
        assert await program.read(3) == ["a", "b", "c"]
        assert await program.reads_nothing_more()
        await served.publish(other, "secret")
        await served.publish(one, "d")
        assert await program.read(1) == ["d"]
        assert program.refusals == []


async def test_it_begins_where_it_may_and_can_be_put_back_there_and_no_further(served: Given) -> None:
    project = await served.project("one")
    await served.publish(project, *"abcdef")
    credential = await served.subscription("one", from_seq=3)
    await served.ready(credential)
    async with reader(served.server, credential) as program:
        assert await program.read(4) == [*"cdef"]
        for seq, expected in ((5, [*"ef"]), (3, [*"cdef"])):
            answer = await program.nc.request(
                f"$JS.feed.API.CONSUMER.RESET.FEED.{credential.id}", b'{"seq":%d}' % seq, timeout=5
            )
            assert b"error" not in answer.data
            assert await program.read(len(expected)) == expected
        answer = await program.nc.request(f"$JS.feed.API.CONSUMER.RESET.FEED.{credential.id}", b'{"seq":2}', timeout=60)
        assert b"below start seq" in answer.data


async def test_who_has_another_key_or_none_is_not_let_in(served: Given) -> None:
    await served.project("one")
    credential = await served.subscription("one")
    await served.ready(credential)
    other = Credential(id=credential.id, project_id=credential.project_id, seed=stranger_seed())
    assert await is_let_in(served.server, credential)
    assert not await is_let_in(served.server, other)


def stranger_seed() -> str:
    from services.runtime.nats.nkeys import new_seed

    return new_seed("user")


@pytest.mark.parametrize("end", ["subscription", "project"])
async def test_whose_subscription_ends_is_cut_off_at_once_and_not_let_in_again(served: Given, end: str) -> None:
    project = await served.project("one")
    await served.project("other")
    credential, bystander = await served.subscription("one"), await served.subscription("other")
    await served.ready(credential, bystander)
    async with reader(served.server, credential) as program, reader(served.server, bystander) as other:
        await (served.delete(credential) if end == "subscription" else served.delete_project(project))
        await until(program.closed.is_set, "its connection ends")
        assert not other.closed.is_set()
    assert not await is_let_in(served.server, credential)
    assert await served.consumers() == {bystander.id}


async def test_what_ended_while_the_service_was_away_is_cut_off_when_it_is_back(given: Given) -> None:
    await given.project("one")
    credential = await given.subscription("one")
    async with serving(given.server):
        await given.ready(credential)
        program_left = reader(given.server, credential)
        program = await program_left.__aenter__()
    try:
        await given.delete(credential)
        assert not program.closed.is_set()
        async with serving(given.server):
            await until(program.closed.is_set, "its connection ends")
            assert await given.consumers() == set()
    finally:
        await program_left.__aexit__(None, None, None)


async def test_without_the_service_users_and_open_connections_go_on(given: Given) -> None:
    project = await given.project("one")
    credential = await given.subscription("one")
    async with serving(given.server):
        await given.ready(credential)
        left_open = reader(given.server, credential)
        program = await left_open.__aenter__()
    try:
        async with given_on(given.server) as another:  # a user of the server's file
            await another.publish(project, "a")
        assert await program.read(1) == ["a"]
        assert not await is_let_in(given.server, credential)
    finally:
        await left_open.__aexit__(None, None, None)
    async with serving(given.server):
        assert await is_let_in(given.server, credential)


@pytest.mark.parametrize("instances", [1, 2])
async def test_a_program_that_was_killed_goes_on_in_the_order_of_the_log(given: Given, instances: int) -> None:
    """What it had taken and not acknowledged comes first, and at once. NATS alone gives it 30 s later, at the end."""
    project = await given.project("one")
    credential = await given.subscription("one")
    bodies = [f"{number:02}" for number in range(20)]
    async with serving(given.server, instances):
        await given.ready(credential)
        await given.publish(project, *bodies)
        async with reader(given.server, credential) as program:
            subscription = await program.jetstream.pull_subscribe_bind(credential.id, stream="FEED")
            taken = await subscription.fetch(8, timeout=SECONDS)
            assert [message.data.decode() for message in taken] == bodies[:8]
            for message in taken[:3]:
                await message.ack_sync(timeout=SECONDS)
        seen: list[str] = []
        async with reader(given.server, credential) as program:
            while len(seen) < 17:
                seen = list(dict.fromkeys([*seen, *await program.read(1)]))
    assert seen == bodies[3:]


async def test_two_instances_are_one_service(given: Given) -> None:
    project = await given.project("one")
    async with serving(given.server, 2) as services:
        credentials = [await given.subscription("one") for _ in range(5)]
        await given.ready(*credentials)
        assert len(await given.consumers()) == len(credentials)
        await given.publish(project, "a")
        for credential in credentials:
            async with reader(given.server, credential) as program:
                assert await program.read(1) == ["a"]
        async with reader(given.server, credentials[0]) as program:
            await given.delete(credentials[0])
            await until(program.closed.is_set, "its connection ends")
        await services[0].stop()
        late = await given.subscription("one")
        await given.ready(late)
        assert await is_let_in(given.server, late)


async def test_after_feed_was_made_anew_everybody_goes_on_where_they_were(given: Given) -> None:
    project = await given.project("one")
    events = [f"e{number}" for number in range(1, 31)]
    async with serving(given.server):
        credential, fresh = await given.subscription("one"), await given.subscription("one", from_seq=11)
        await given.ready(credential, fresh)
        await given.publish(project, *events[:20])
        async with reader(given.server, credential) as program:
            assert await program.read(15) == events[:15]
            await noted(given, credential)
            await delete_streams(given.nc, "FEED")
            await create_streams(given.nc, 1)
            for number, body in enumerate(events[:20], start=1):
                await given.publish(project, body, seq=number)
            await given.ready(credential, fresh)
            assert await program.read(5, known=events[:15]) == events[15:20]
            await given.publish(project, *events[20:])
            assert await program.read(10, known=events[:20]) == events[20:]
        async with reader(given.server, fresh) as program:
            assert await program.read(20) == events[10:]


async def noted(given: Given, credential: Credential) -> None:
    """Until the service has written down how far it has read."""
    from services.runtime.log.snapshots import Snapshots
    from services.runtime.nats.requests import Requests
    from services.subscriptions.feed import Feed
    from services.subscriptions.positions import Positions

    async def is_noted() -> bool:
        requests = Requests(given.nc)
        positions = Positions(Snapshots(given.nc, requests), Feed(requests))
        await positions.load()
        return positions.get(credential.id) == (15, 0)

    await until(is_noted, "its position is kept")


async def test_who_knocks_again_and_again_is_answered_seldom(served: Given) -> None:
    await served.project("one")
    credential = await served.subscription("one")
    await served.ready(credential)
    await served.delete(credential)
    refused = [await refusal_of(served.server, credential) for _ in range(KNOCKS + 2)]
    assert all("authorization" in text or "timeout" in text or "eof" in text for text in refused), refused
    other = await served.subscription("one")
    await served.ready(other)
    assert await is_let_in(served.server, other)


async def refusal_of(server: NatsServer, credential: Credential) -> str:
    try:
        async with reader(server, credential):
            return "let in"
    except (TimeoutError, NatsError, OSError) as error:
        return f"{type(error).__name__} {error}".lower()


async def test_one_subscription_does_not_take_all_connections(served: Given) -> None:
    await served.project("one")
    credential, other = await served.subscription("one"), await served.subscription("one")
    await served.ready(credential, other)
    readers = [reader(served.server, credential) for _ in range(MAX_CONNECTIONS)]
    for one in readers:
        await one.__aenter__()
    try:
        assert not await is_let_in(served.server, credential)
        assert await is_let_in(served.server, other)
    finally:
        for one in readers:
            await one.__aexit__(None, None, None)
    await until(lambda: is_let_in(served.server, credential), "there is room again")
