"""Whatever a subscriber asks, and wherever the answer is sent: it gets nothing of another project, changes nothing of
another subscription, and nothing is stored in any stream. Generated: subjects of calls × replies × credentials.
"""

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncGenerator
from typing import Final

import pytest
from nats.aio.msg import Msg

from development.streams import STREAMS
from services.runtime.nats.nats_config import SUBSCRIBER_LIMITS
from services.subscriptions import connections, service
from tests.support.refusals import settle
from tests.support.subscribing import Credential, Given, Reader, is_let_in, reader

pytestmark = pytest.mark.anyio

SECRET: Final = "secret"
VERBS: Final = (
    *("STREAM.INFO.FEED", "STREAM.LIST", "STREAM.NAMES", "STREAM.MSG.GET.FEED", "DIRECT.GET.FEED", "STREAM.PURGE.FEED"),
    *("STREAM.DELETE.FEED", "STREAM.UPDATE.FEED", "STREAM.CREATE.MINE", "STREAM.SNAPSHOT.FEED"),
    *("CONSUMER.LIST.FEED", "CONSUMER.NAMES.FEED", "CONSUMER.CREATE.FEED", "CONSUMER.CREATE.FEED.mine"),
    *("CONSUMER.CREATE.FEED.mine.feed.>", "CONSUMER.DURABLE.CREATE.FEED.mine", "INFO", "ACCOUNT.INFO"),
    *("STREAM.INFO.EVENTS", "STREAM.MSG.GET.EVENTS", "DIRECT.GET.EVENTS", "CONSUMER.CREATE.EVENTS.mine"),
)
OF_CONSUMERS: Final = ("MSG.NEXT", "INFO", "RESET", "DELETE", "PAUSE", "UNPIN", "LEADER.STEPDOWN", "CREATE")
PREFIXES: Final = ("$JS.API", "$JS.feed.API", "$JS.store.API")
BODIES: Final = (b"", b"1", b'{"batch":5,"no_wait":true}', b'{"seq":1}', b'{"seq":1,"batch":9}', b"nonsense")
REPLIES: Final = (
    *("feed.p.w.T", "ev.project.t", "ev.tenant.default", "want.one.pod.t", "obs.one.pod.t", "snap.fold.scheduler.0"),
    *("audit.t", "refused.t", "key.t", "actor.t.t", "code.one.t.t.part.0", "cmd.admitted.DeleteProject"),
    *("cmd.request.DeleteProject", "muster.log", "$SYS.REQ.SERVER.PING.CONNZ"),
)


def calls(own: Credential, other: Credential) -> list[str]:
    """Everything that might be asked, allowed or not."""
    ids = (own.id, other.id, "*", ">")
    return [
        *(f"{prefix}.{verb}" for prefix in PREFIXES for verb in VERBS),
        *(f"{prefix}.CONSUMER.{verb}.FEED.{id_}" for prefix in PREFIXES for verb in OF_CONSUMERS for id_ in ids),
        *(f"$JS.ACK.FEED.{id_}.1.{seq}.{seq}.1.1" for id_ in ids for seq in range(1, 8)),
        f"$JS.ACK.FEED.{own.id}.>",
        *(f"feed.{project}.w.WorkloadSubmitted" for project in (own.project_id, other.project_id)),
        *REPLIES,
        *("muster.servers.x.kick", "muster.servers.connections", "$SYS.REQ.USER.AUTH", "$SYS.REQ.SERVER.x.KICK"),
        *(f"_INBOX_{other.id}.x", "_INBOX_api.x", "_INBOX_commands.x"),
    ]


@contextlib.asynccontextmanager
async def scene(given: Given) -> AsyncGenerator[tuple[Reader, Reader]]:
    """A thief in one project, and a reader with some events in another."""
    mine, theirs = await given.project("mine"), await given.project("theirs")
    await given.publish(theirs, *(f"{SECRET} {number}" for number in range(5)))
    await given.publish(mine, "own")
    own, other = await given.subscription("mine"), await given.subscription("theirs")
    await given.ready(own, other)
    async with reader(given.server, own) as thief, reader(given.server, other) as victim:
        yield thief, victim


async def counts(given: Given) -> dict[str, int]:
    jetstream = given.nc.jetstream()
    # What the service itself keeps is not what is looked for.
    return {stream: (await jetstream.stream_info(stream)).state.last_seq for stream in STREAMS if stream != "SNAPSHOTS"}


async def consumers(given: Given) -> dict[str, tuple[int, int]]:
    infos = await given.nc.jetstream().consumers_info("FEED")
    return {
        str(info.name): (info.num_pending or 0, info.ack_floor.stream_seq if info.ack_floor else 0) for info in infos
    }


async def test_no_call_tells_or_changes_anything_of_others_and_no_reply_is_stored(served: Given) -> None:
    async with scene(served) as (thief, victim):
        before, untouched = await counts(served), (await consumers(served))[victim.credential.id]
        heard: list[Msg] = []

        async def on_message(message: Msg) -> None:
            heard.append(message)

        inbox = f"_INBOX_{thief.credential.id}.x"
        await thief.nc.subscribe(inbox, cb=on_message)
        asked = calls(thief.credential, victim.credential)
        replies = (inbox, *REPLIES, f"_INBOX_{victim.credential.id}.x")
        for number, (subject, body) in enumerate(itertools.product(asked, BODIES)):
            for reply in (inbox, replies[number % len(replies)]):
                await thief.nc.publish(subject, body, reply=reply)
            if number % 500 == 0:
                await settle(thief.nc)
        # Of what it may ask, every reply.
        for verb, reply, body in itertools.product(("MSG.NEXT", "INFO", "RESET"), replies, BODIES):
            subject = f"$JS.feed.API.CONSUMER.{verb}.FEED.{thief.credential.id}"
            await thief.nc.publish(subject, body, reply=reply)
            await thief.nc.publish(subject, body, reply=reply, headers={"Nats-Trace-Dest": reply})
        await settle(thief.nc)
        await served.publish(victim.credential.project_id, f"{SECRET} late")
        await settle(thief.nc)
        stored = await counts(served)
        told = b"".join(message.subject.encode() + message.data for message in heard)
        assert thief.credential.id.encode() in told, "what it may ask is answered"
        assert SECRET.encode() not in told
        assert victim.credential.id.encode() not in told
        assert victim.credential.project_id.encode() not in told
        assert stored == before | {"FEED": before["FEED"] + 1}  # the late one
        assert (await consumers(served))[victim.credential.id] == (untouched[0] + 1, untouched[1])
        assert set(await consumers(served)) == {thief.credential.id, victim.credential.id}
        assert len(await victim.read(6)) == 6


@pytest.mark.parametrize(
    "subject",
    [
        *(">", "*", "feed.>", "ev.>", "_INBOX.>", "_INBOX_api.>", "_INBOX_{other}.>", "$JS.>", "$SYS.>"),
        *("$JS.ACK.>", "$JS.EVENT.>", "muster.>", "want.>", "snap.>"),
    ],
)
async def test_it_hears_its_own_inbox_only(served: Given, subject: str) -> None:
    async with scene(served) as (thief, victim):
        heard: list[Msg] = []

        async def on_message(message: Msg) -> None:
            heard.append(message)

        await thief.nc.subscribe(subject.replace("{other}", victim.credential.id), cb=on_message)
        await settle(thief.nc)
        assert any("permissions violation" in refusal for refusal in thief.refusals)
        await victim.read(5)
        await served.publish(victim.credential.project_id, SECRET)
        await settle(thief.nc)
        assert heard == []


@pytest.mark.parametrize("end", ["subscription", "project"])
async def test_a_deleted_one_may_do_nothing(served: Given, end: str) -> None:
    async with scene(served) as (thief, _):
        own = thief.credential
        await (served.delete(own) if end == "subscription" else served.delete_project(own.project_id))
        async with asyncio.timeout(60):
            await thief.closed.wait()
        assert not await is_let_in(served.server, own)
        info = json.dumps(await consumers(served))
        assert own.id not in info


async def test_the_server_holds_one_connection_to_few_subscriptions_of_nats(served: Given) -> None:
    async with scene(served) as (thief, victim):
        for number in range(SUBSCRIBER_LIMITS["max_subscriptions"] + 1):
            await thief.nc.subscribe(f"_INBOX_{thief.credential.id}.{number}")
        async with asyncio.timeout(60):
            await thief.closed.wait()
        assert len(await victim.read(5)) == 5


async def test_the_server_takes_no_large_message_of_a_subscriber(served: Given) -> None:
    async with scene(served) as (thief, victim):
        subject = f"$JS.feed.API.CONSUMER.INFO.FEED.{thief.credential.id}"
        thief.nc._server_info["max_payload"] = 1024**2  # whatever the server told it
        await thief.nc.publish(subject, b"x" * (SUBSCRIBER_LIMITS["max_payload"] + 1))
        async with asyncio.timeout(60):
            await thief.closed.wait()
        assert len(await victim.read(5)) == 5


async def test_who_sends_without_end_is_cut_off_and_others_are_not(
    served: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(connections, "MEASURED_SECONDS", 0.1)
    monkeypatch.setattr(connections, "MOST_PER_SECOND", 100)
    async with scene(served) as (thief, victim):
        subject = f"$JS.feed.API.CONSUMER.MSG.NEXT.FEED.{thief.credential.id}"
        for _ in range(5_000):
            await thief.nc.publish(subject, b'{"no_wait":true}', reply="nowhere")
        async with asyncio.timeout(60):
            await thief.closed.wait()
        assert len(await victim.read(5)) == 5
        assert not victim.closed.is_set()
        assert await is_let_in(served.server, thief.credential)
