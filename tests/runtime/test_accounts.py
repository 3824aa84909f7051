"""Whatever a credential asks, and wherever it has the answer sent, nothing is stored that it may not publish itself,
and what it makes takes no room of others. The calls come from the table of permissions (docs/adr/0023).
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterable
from typing import Any

import msgspec
import pytest
from nats.aio.client import Client
from nats.errors import NoRespondersError
from nats.js.errors import NotFoundError

from development.servers import EVERYTHING, NatsServer
from development.streams import STREAMS, delete_streams, recreate_streams
from events.subjects import FEED_STREAM, OBSERVED_STREAM
from services.agent.wanted import Whole, follow
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.log.latest import read_latest
from services.runtime.nats.calls import FEW_CONSUMERS, PREFIX, call
from services.runtime.nats.connection import connect
from services.runtime.nats.declared import DECLARED
from services.runtime.nats.inboxes import agent_user
from services.runtime.nats.jetstream_api import message_at
from services.runtime.nats.permissions import Permission, agent_permission
from services.runtime.nats.requests import Requests
from services.runtime.services import SERVICES
from tests.support.drafts import grant
from tests.support.refusals import raw, settle
from tests.support.stores import collect, flat, seqs
from tests.support.wanted import wanted_of

pytestmark = pytest.mark.anyio

AGENT = agent_user("one")
CREDENTIALS: dict[str, Permission] = {
    **{name: service.rights for name, service in SERVICES.items()},
    AGENT: agent_permission("one"),
}
TARGETS = (
    *("ev.tenant.default", "ev.project.t", "ev.cluster.t", "ev.workload.t", "ev.node.t", "ev.void.t"),
    *("snap.chain.tenant.t.0", "snap.chain.node.t.0", "snap.fold.scheduler.0"),
    *("want.one.pod.t", "obs.one.pod.t", "obs.other.pod.t", "audit.tenant", "refused.t", "key.t", "actor.t.t"),
    *("code.one.t.t.part.0", "feed.p.w.T", "stand.t", "credential.t.t"),
)
"""Subjects of every kind, in every stream."""
SEEDS = (
    *("ev.seed.s", "want.one.pod.seed", "obs.one.pod.seed", "audit.seed", "refused.seed", "snap.seed.0", "key.seed"),
    "actor.seed.s",
    *("code.one.seed.s.part.0", "feed.p.seed.T", "stand.seed", "credential.seed.s"),
)
"""What there is to be told: one message in each stream."""
OWN = b"published by itself"
BODIES: dict[str, tuple[bytes, ...]] = {
    "STREAM.MSG.GET": (b'{"seq":1}', b"nonsense"),
    "DIRECT.GET": (b'{"seq":1}', b'{"seq":1,"batch":5}', b'{"seq":9}'),
    "CONSUMER.MSG.NEXT": (b"1", b'{"batch":2,"no_wait":true}', b'{"batch":2,"expires":100000000}'),
}
"""What a call is asked with, so that it answers in each of its ways; others with nothing."""


def matches(pattern: str, subject: str) -> bool:
    wanted, tokens = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        return len(tokens) >= len(wanted) and matches(".".join(wanted[:-1]), ".".join(tokens[: len(wanted) - 1]))
    return len(wanted) == len(tokens) and all(one in ("*", token) for one, token in zip(wanted, tokens, strict=True))


def concrete(subject: str) -> str:
    return subject.replace("*", "x").replace(">", "x")


def calls_of(user: str) -> list[str]:
    """Every subject it may publish on; of its consumers' names, which are all alike, the first two: one is deleted
    again and again, the other stays to be pulled from.
    """
    published = CREDENTIALS[user].publish
    others = {f"{user}-{number}" for number in range(2, 200)}
    kept = {subject for subject in published if subject.endswith(f"{user}-0") and ".DELETE." in subject}
    return [subject for subject in published if subject not in kept and others.isdisjoint(subject.split("."))]


def consumer(subject: str, **config: Any) -> bytes:
    """The request that makes the consumer that its subject names."""
    stream, name, *filters = subject.removeprefix(f"{PREFIX}.CONSUMER.CREATE.").split(".")
    settings: dict[str, Any] = {"name": name, "deliver_policy": "all", "ack_policy": "none", "mem_storage": True}
    if filters:
        settings["filter_subject"] = ".".join(filters)
    return msgspec.json.encode({"stream_name": stream, "config": {**settings, **config}, "action": "create"})


async def ask(client: Client, subject: str, target: str, headers: dict[str, str] | None = None) -> None:
    """Ask in every way, with the answers going to `target`."""
    verb = subject.removeprefix(f"{PREFIX}.")
    if verb == subject:
        bodies: Iterable[bytes] = (OWN,)
    elif verb.startswith("CONSUMER.CREATE"):
        # One to pull from, and one that pushes to the target.
        pushed = {"deliver_subject": target} if "-1" in subject else {}
        bodies = (consumer(subject, **pushed), b"nonsense")
    else:
        bodies = next((ways for name, ways in BODIES.items() if verb.startswith(f"{name}.")), (b"",))
    for body in bodies:
        await client.publish(concrete(subject), body, reply=target, headers=headers)


@pytest.fixture
async def seeded(fresh_log: NatsServer) -> AsyncGenerator[NatsServer]:
    for cluster in ("one", "other"):
        if cluster not in fresh_log.agents:
            fresh_log.add_agent(cluster)
    everything = await connect(fresh_log.settings(EVERYTHING), EVERYTHING)
    for subject in SEEDS:
        await everything.jetstream().publish(subject, b"seed")
    yield fresh_log
    await everything.close()
    await recreate_streams(fresh_log.settings(EVERYTHING))  # what this test has stored is no commit


async def all_stored(server: NatsServer) -> list[tuple[str, bytes]]:
    everything = await connect(server.settings(EVERYTHING), EVERYTHING)
    requests = Requests(everything)
    found: list[tuple[str, bytes]] = []
    for stream in STREAMS:
        try:
            last = (await everything.jetstream().stream_info(stream)).state.last_seq
        except NotFoundError:
            assert stream == FEED_STREAM, "only the feed may be deleted, by the migration"
            continue
        stored = [await message_at(requests, stream, seq, seconds=60) for seq in range(1, last + 1)]
        found += [(message.subject, message.data) for message in stored if message is not None]
    await everything.close()
    return found


def foreign(user: str, stored: Iterable[tuple[str, bytes]]) -> list[str]:
    """Subjects of what is stored and neither was there before, nor may be published by the user."""
    own = CREDENTIALS[user].publish
    return [
        subject
        for subject, _ in stored
        if subject not in SEEDS and not any(matches(pattern, subject) for pattern in own)
    ]


def test_the_targets_are_subjects_of_every_stream() -> None:
    for declared in DECLARED:
        for subject in declared.subjects:
            assert any(matches(subject, target) for target in TARGETS), subject
            assert any(matches(subject, seed) for seed in SEEDS), subject


@pytest.mark.parametrize("user", CREDENTIALS)
async def test_no_answer_is_stored_wherever_it_is_sent(seeded: NatsServer, user: str) -> None:
    async with raw(seeded, user) as (client, _):
        for target in TARGETS:
            for subject in calls_of(user):
                await ask(client, subject, target)
        await settle(client)
        # What was asked for and not there yet arrives late.
        async with raw(seeded, EVERYTHING) as (everything, _):
            for subject in SEEDS:
                await everything.publish(subject, b"seed")
            await settle(everything)
        await settle(client)
    stored = await all_stored(seeded)
    assert foreign(user, stored) == []
    assert {data for _, data in stored} <= {OWN, b"seed"}


@pytest.mark.parametrize("user", CREDENTIALS)
async def test_no_trace_of_a_message_is_stored(seeded: NatsServer, user: str) -> None:
    """The server tells, on a subject of the sender's choice, which way a message took."""
    async with raw(seeded, user) as (client, _):
        for target in TARGETS:
            for subject in calls_of(user):
                await ask(client, subject, target, {"Nats-Trace-Dest": target, "Nats-Trace-Only": "true"})
                await ask(client, subject, target, {"Nats-Trace-Dest": target})
        await settle(client)
    assert foreign(user, await all_stored(seeded)) == []


@pytest.mark.parametrize(
    ("user", "stream"),
    [
        (user, stream)
        for user in CREDENTIALS
        for stream in STREAMS
        if call("STREAM.CREATE", stream) in CREDENTIALS[user].publish
    ],
)
async def test_who_may_create_a_stream_cannot_have_it_write_elsewhere(
    fresh_log: NatsServer, user: str, stream: str
) -> None:
    """As cluster_sync may, after each restart of a server, for what was kept in its memory."""
    declared = next(declared for declared in DECLARED if declared.name == stream)
    others = [target for target in TARGETS if not matches(declared.subjects[0], target)]
    own = next(target for target in TARGETS if target not in others)
    async with raw(fresh_log, EVERYTHING) as (everything, _), raw(fresh_log, user) as (client, _):
        for target in others:
            await delete_streams(everything, stream)
            config = {"name": stream, "subjects": [*declared.subjects], "storage": "memory"}
            repeating = {**config, "republish": {"src": own, "dest": target}}
            answer = await client.request(call("STREAM.CREATE", stream), msgspec.json.encode(repeating), timeout=60)
            assert "error" not in msgspec.json.decode(answer.data), answer.data
            await everything.request(own, b"to be repeated", timeout=60)
    stored = {subject for subject, _ in await all_stored(fresh_log)}
    await recreate_streams(fresh_log.settings(EVERYTHING))
    assert stored == {own}


async def greedily(server: NatsServer, user: str, stream: str, *filters: str) -> None:
    """Try to make as many consumers as a stream may have, each as large as may be, and to ask of them all."""
    async with raw(server, user) as (client, _):
        for name in (*(f"{user}-{number}" for number in range(600)), *(f"x{number}" for number in range(600))):
            subject = call("CONSUMER.CREATE", stream, name, *filters)
            greedy = {"durable_name": name, "ack_policy": "explicit", "max_ack_pending": -1, "max_waiting": 100_000}
            await client.publish(subject, consumer(subject, **greedy))
            await client.publish(subject, consumer(subject, max_waiting=100_000))
        await settle(client)
        for _ in range(2_000):
            await client.publish(call("CONSUMER.MSG.NEXT", stream, f"{user}-0"), b"1", reply="_INBOX.nobody")
        await settle(client)


async def consumers(server: NatsServer, stream: str) -> int:
    everything = await connect(server.settings(EVERYTHING), EVERYTHING)
    answer = await everything.request(call("CONSUMER.NAMES", stream), b"", timeout=60)
    await everything.close()
    return msgspec.json.decode(answer.data)["total"]


async def test_an_agent_that_makes_all_the_consumers_it_can_keeps_none_from_another(seeded: NatsServer) -> None:
    await greedily(seeded, AGENT, "WANTED", "want.one.>")
    assert await consumers(seeded, "WANTED") == FEW_CONSUMERS
    other = await connect(seeded.settings("agent-other"), "agent-other")
    everything = await connect(seeded.settings(EVERYTHING), EVERYTHING)
    await everything.jetstream().publish("want.other.pod.k", b"word")
    async with asyncio.timeout(60), contextlib.aclosing(follow(wanted_of(other, "want.other.>"))) as news:
        assert await anext(news) == Whole({"want.other.pod.k": b"word"})
    await other.close()
    await everything.close()


@pytest.mark.parametrize("stream", ["EVENTS", "AUDIT"])
async def test_an_operator_keeps_nobody_from_the_log(fresh_log: NatsServer, stream: str) -> None:
    await greedily(fresh_log, "operator", stream)
    assert await consumers(fresh_log, stream) == (FEW_CONSUMERS if stream == "EVENTS" else 0)
    commands = await connect(fresh_log.settings("commands"), "commands")
    store = JetStreamEventStore(commands)
    assert seqs(await store.append(grant("a", 0))) == [1]
    async with asyncio.timeout(60):
        assert [commit.seq for commit in flat(await collect(store, 0, 1))] == [1]
    await commands.close()


async def test_one_cluster_sync_keeps_nobody_from_what_is_observed(seeded: NatsServer) -> None:
    await greedily(seeded, "cluster_sync", OBSERVED_STREAM)
    assert await consumers(seeded, OBSERVED_STREAM) == FEW_CONSUMERS
    everything = await connect(seeded.settings(EVERYTHING), EVERYTHING)
    found = await read_latest(everything, Requests(everything), OBSERVED_STREAM, "obs.one.>")
    assert found == {"obs.one.pod.seed": b"seed"}
    await everything.close()


async def test_nobody_takes_messages_from_anothers_consumer(fresh_log: NatsServer) -> None:
    """It would miss them, and begin again and again."""
    commands = await connect(fresh_log.settings("commands"), "commands")
    subject = call("CONSUMER.CREATE", "EVENTS", "commands-0")
    await commands.request(subject, consumer(subject), timeout=60)
    for user in set(CREDENTIALS) - {"commands", AGENT}:
        async with raw(fresh_log, user) as (client, refusals):
            with pytest.raises((TimeoutError, NoRespondersError)):
                await client.request(call("CONSUMER.MSG.NEXT", "EVENTS", "commands-0"), b"1", timeout=0.1)
            assert any("permissions violation" in refusal for refusal in refusals), user
    await commands.close()
