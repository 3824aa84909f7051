"""Bytes that no library sends: they end nobody's connection, and are what they are wherever they are read."""

import asyncio
import contextlib

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import BadHeaderError

from development.servers import EVERYTHING, NatsServer
from events.subjects import EVENTS_STREAM, OBSERVED_STREAM
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.log.latest import read_latest
from services.runtime.log.store import UnreadableMessageError
from services.runtime.nats.connection import connect
from services.runtime.nats.jetstream_api import next_messages
from services.runtime.nats.requests import Requests
from services.runtime.nats.wire import SteadyClient, SteadyParser, Taken, headers_of
from tests.runtime.test_voids import HEALED_SECONDS, declare_void
from tests.support.drafts import grant
from tests.support.raw import hpub, pub, send
from tests.support.stores import collect, flat

pytestmark = pytest.mark.anyio

FORGED_STATUS = b"\r\nStatus: 409\r\nDescription: Consumer Deleted"
FORGED_PLACE = b"\r\nNats-Sequence: 999\r\nNats-Subject: ev.tenant.default"
STORED = {
    "no UTF-8": pub(b"ev.workload.\xff"),
    "another blank": pub(b"ev.workload.a\x0b7"),
    "a form feed": pub(b"ev.workload.\x0cb"),
    "a control character": pub(b"ev.workload.\x01"),
    "a server's word": hpub(b"ev.workload.zzzz", FORGED_STATUS),
    "a server's first line": hpub(b"ev.workload.zzzz", b" 404 No Messages"),
    "headers of no form": hpub(b"ev.workload.zzzz", b" \xff\xff\xff\xff"),
    "another place": hpub(b"ev.workload.zzzz", FORGED_PLACE, b"x"),
}
"""What stands in the log once somebody who may append to workloads has sent it."""


@pytest.mark.parametrize(
    "headers",
    [
        {"ce-id": "a.0.WorkloadSubmitted", "Nats-Expected-Last-Sequence": "7"},
        {"blanks": "  between blanks \t", "é": "no name", "none": ""},
        {"name": "wörter und 漢字", "a line": "of blanks in the name"},
        {"forged": "1\r\nNats-Expected-Last-Sequence: 7", "alone": "1\n2\r3"},
        {"forged\r\nStatus": "409"},
        {" ": "nobody's", "kept": "1"},
        {"colon:": "1"},
    ],
    ids=str,
)
async def test_headers_are_sent_as_the_library_sends_them(fresh_log: NatsServer, headers: dict[str, str]) -> None:
    """Which mends what could be read as another header, or refuses it."""
    nc = await connect(fresh_log.settings(EVERYTHING), EVERYTHING)
    plain = await nats.connect(fresh_log.url, user=EVERYTHING, password=fresh_log.passwords[EVERYTHING])
    try:
        taken = list[tuple[bytes, bytes]]()
        await nc.take("test.headers", lambda message: taken.append((message.raw_headers, message.data)))
        await nc.flush()
        refused = list[type[Exception]]()
        for client in (plain, nc):
            try:
                await client.publish("test.headers", b"data", headers=headers)
            except BadHeaderError as error:
                refused.append(type(error))
            await client.flush()
        async with asyncio.timeout(60):
            while len(taken) + len(refused) < 2:
                await asyncio.sleep(0.01)
    finally:
        await plain.close()
        await nc.close()
    theirs, ours = taken or refused
    assert theirs == ours


@pytest.mark.parametrize(
    ("raw", "read"),
    [
        (None, None),
        (b"", None),
        (b"NATS/1.0\r\n\r\n", None),
        (b"NATS/1.0 503\r\n\r\n", {"Status": "503"}),
        (b"NATS/1.0 404 No Messages\r\n\r\n", {"Status": "404", "Description": "No Messages"}),
        (b"NATS/1.0 100 Idle Heartbeat\r\nA: 1\r\n\r\n", {"Status": "100", "Description": "Idle Heartbeat", "A": "1"}),
        (b"NATS/1.0\r\nA:1\r\nB:\t2 \r\n\r\n", {"A": "1", "B": "2"}),
        (b"NATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n", {"A": "2"}),
        (b"NATS/1.0\r\nA: \x0b\r\n\r\n", {"A": "\x0b"}),
        (b"NATS/1.0 \xff\xff\r\n\r\n", None),
        (b"NATS/1.0\r\n\xff: \xfe\r\nno colon\r\n\r\n", {"\ufffd": "\ufffd"}),
        (b"\xff", None),
    ],
)
def test_headers_are_read_whatever_they_are(raw: bytes | None, read: dict[str, str] | None) -> None:
    assert headers_of(raw) == read


TAKEN = [
    Taken("ev.workload.a", "$JS.ACK.x", b"NATS/1.0\r\nA: 1\r\n\r\n", b"HMSG of a body\r\nMSG\r\n"),
    Taken("ev.workload.\ufffd", "", b"", b""),
    Taken("ev.workload.b", "", b"NATS/1.0 100 Idle Heartbeat\r\n\r\n", b""),
    Taken("ev.workload.c", "r", b"", b"x" * 70_000),
]
QUEUED = [(b"MSG other 8 5\r\nhello\r\n", "hello"), (b"HMSG other 8 r 12 14\r\nNATS/1.0\r\n\r\nhi\r\n", "hi")]


def _sent(message: Taken, sid: int) -> bytes:
    subject, reply = message.subject.replace("\ufffd", "\udcff"), message.reply
    words = " ".join(filter(None, (subject, str(sid), reply))).encode(errors="surrogateescape")
    content = message.raw_headers + message.data
    if message.raw_headers:
        return b"HMSG %s %d %d\r\n%s\r\n" % (words, len(message.raw_headers), len(content), content)
    return b"MSG %s %d\r\n%s\r\n" % (words, len(content), content)


@pytest.mark.parametrize("chunk_bytes", [1, 2, 3, 7, 64, 1_000, 32_768, 1_000_000])
async def test_takers_and_the_library_get_whole_messages_however_the_bytes_come(chunk_bytes: int) -> None:
    client = SteadyClient()
    parser = SteadyParser(client)
    taken: list[Taken] = []
    client.takers[b"7"] = taken.append
    library = client._subs[8] = Subscription(client, 8, "other")
    stream = QUEUED[0][0] + b"".join(_sent(message, 7) for message in TAKEN) + b"+OK\r\n" + QUEUED[1][0] + b"PONG\r\n"
    stream += _sent(TAKEN[0], 7)
    for start in range(0, len(stream), chunk_bytes):
        await parser.parse(stream[start : start + chunk_bytes])
    assert taken == [*TAKEN, TAKEN[0]]
    assert taken[2].headers == {"Status": "100", "Description": "Idle Heartbeat"}
    assert [(await library.next_msg()).data.decode() for _ in QUEUED] == [text for _, text in QUEUED]
    assert client.stats["in_msgs"] == len(QUEUED) + len(taken)


async def test_what_half_came_of_a_connection_that_was_lost_is_no_part_of_the_next() -> None:
    client = SteadyClient()
    parser = SteadyParser(client)
    taken: list[Taken] = []
    client.takers[b"7"] = taken.append
    await parser.parse(_sent(TAKEN[0], 7)[:-3])
    parser.reset()
    await parser.parse(_sent(TAKEN[2], 7))
    assert taken == [TAKEN[2]]


async def test_what_a_taker_cannot_take_is_told_and_the_connection_goes_on(fresh_log: NatsServer) -> None:
    reader = await connect(fresh_log.settings(EVERYTHING), EVERYTHING)
    taken: list[bytes] = []

    def take(message: Taken) -> None:
        taken.append(message.data)
        if message.data == b"bad":
            raise ValueError("it cannot be taken")

    subscription = await reader.take("usage.>", take)
    await reader.flush()
    assert await send(fresh_log, EVERYTHING, pub(b"usage.a", b"bad"), pub(b"usage.b", b"good")) == []
    async with asyncio.timeout(60):
        while len(taken) < 2:
            await asyncio.sleep(0.01)
    await subscription.unsubscribe()
    assert await send(fresh_log, EVERYTHING, pub(b"usage.c", b"late")) == []
    await reader.flush()
    assert (taken, reader.stats["reconnects"], reader.takers) == ([b"bad", b"good"], 0, {})
    await reader.close()


async def test_whatever_is_sent_a_connection_goes_on_with_what_comes_next(fresh_log: NatsServer) -> None:
    reader = await connect(fresh_log.settings(EVERYTHING), EVERYTHING)
    heard: list[Msg] = []

    async def hear(message: Msg) -> None:
        heard.append(message)

    await reader.subscribe("usage.>", cb=hear)
    await reader.flush()
    odd = [
        pub(b"usage.\xff"),
        pub(b"usage.a\x0b1"),
        pub(b"usage.a", reply=b"\xff"),
        *(hpub(b"usage.a", headers) for headers in (b"", b" ", b" \xff\xff\xff\xff", b"\r\n\xff: \xff", FORGED_STATUS)),
    ]
    assert await send(fresh_log, EVERYTHING, *odd, pub(b"usage.last")) == []
    async with asyncio.timeout(60):
        while not heard or heard[-1].subject != "usage.last":
            await asyncio.sleep(0.01)
    assert [message.subject for message in heard[:2]] == ["usage.\ufffd", "usage.a\x0b1"]
    assert len(heard) == len(odd) + 1
    assert reader.stats["reconnects"] == 0
    await reader.close()


@pytest.mark.parametrize("said", STORED.values(), ids=STORED.keys())
async def test_a_follower_names_what_no_reader_can_read_and_goes_on_once_it_is_void(
    fresh_log: NatsServer, client: Client, said: bytes
) -> None:
    store = JetStreamEventStore(client)
    await store.append(grant("before", 0, subject="ada"))
    await send(fresh_log, EVERYTHING, said)
    await store.append(grant("behind", 0, subject="ada"))
    with pytest.raises(UnreadableMessageError) as unreadable:
        await collect(store, 1, 1)
    assert unreadable.value.seq == 2
    await declare_void(store, 2)
    async with asyncio.timeout(HEALED_SECONDS):
        handed = flat(await collect(JetStreamEventStore(client), 0, 4))
    assert [(commit.seq, commit.key if commit.events else "") for commit in handed[:3]] == [
        (1, "before"),
        (2, ""),
        (3, "behind"),
    ]


@pytest.mark.parametrize("said", STORED.values(), ids=STORED.keys())
async def test_a_chain_is_read_whole_whatever_headers_say_of_an_end_or_of_a_place(
    fresh_log: NatsServer, client: Client, said: bytes
) -> None:
    await send(fresh_log, EVERYTHING, said, pub(b"ev.workload.behind"))
    while await JetStreamEventStore(client).last_seq() < 2:
        await asyncio.sleep(0.01)
    read, more = await next_messages(Requests(client), EVENTS_STREAM, "ev.workload.*", 1, 10, seconds=60)
    assert ([message.seq for message in read], more) == ([1, 2], 0)
    assert all(message.subject.startswith("ev.workload.") for message in read)


@pytest.mark.parametrize(
    "said", [pub(b"obs.one.pod.\xff"), pub(b"obs.one.pod.\x0b"), hpub(b"obs.one.pod.x", FORGED_STATUS)]
)
async def test_what_one_agent_says_keeps_nobody_from_reading_the_others(
    fresh_log: NatsServer, client: Client, said: bytes
) -> None:
    await send(fresh_log, EVERYTHING, pub(b"obs.one.pod.a"), said, pub(b"obs.two.pod.b"))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(60):
            found = dict[str, bytes]()
            while "obs.two.pod.b" not in found:
                found = await read_latest(client, Requests(client), OBSERVED_STREAM, "obs.>")
            assert (found["obs.one.pod.a"], found["obs.two.pod.b"], len(found)) == (b"x", b"x", 3)
            return
    raise AssertionError("it was not read to its end")
