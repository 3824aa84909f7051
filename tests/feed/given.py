"""A real FEED: services that write it, a log to write it from, and what must stand there."""

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec
from nats.aio.client import Client
from nats.errors import TimeoutError as NatsTimeoutError

from development.servers import EVERYTHING, NatsServer
from development.streams import delete_streams
from events.codec import encode_commit
from events.commit import Commit
from events.public.publish import FeedMessage
from events.subjects import EVENTS_STREAM, FEED_STREAM, aggregate_subject
from services.feed.service import run
from services.runtime.nats.calls import call
from services.runtime.nats.connection import connect
from services.runtime.nats.streams import create_streams
from services.runtime.nats.wire import headers_of
from services.runtime.process.host import Health
from tests.projections.happenings import Happenings
from tests.support.lives import pieces
from tests.support.public_events import Everything

SECONDS = 60.0
ASKED_SECONDS = 5.0
"""A question that comes while the server is killed is never answered, and asked again."""


class Written(msgspec.Struct, frozen=True):
    """A message of FEED, without what its writer and the server add."""

    subject: str
    headers: dict[str, str]
    payload: bytes


def as_written(messages: Sequence[FeedMessage]) -> list[Written]:
    return [Written(message.subject, message.headers, message.payload) for message in messages]


def expected(commits: Sequence[Commit]) -> list[Written]:
    return as_written(Everything().take(commits).told)


class Log:
    """A user who may do everything, and the log that he writes."""

    def __init__(self, nc: Client) -> None:
        self.nc = nc

    async def append(self, commits: Sequence[Commit]) -> None:
        """As they are: the sequences of the log must be theirs."""
        for commit in commits:
            subject = aggregate_subject(commit.aggregate, commit.key)
            ack = msgspec.json.decode((await self.nc.request(subject, encode_commit(commit.record), timeout=60)).data)
            assert ack["seq"] == commit.seq, ack

    async def feed(self) -> list[Written]:
        """All that FEED holds."""
        info = await self.nc.request(call("STREAM.INFO", FEED_STREAM), b"", timeout=60)
        state = msgspec.json.decode(info.data).get("state")
        if state is None:
            return []
        return [await self._message(seq) for seq in range(max(state["first_seq"], 1), state["last_seq"] + 1)]

    async def _message(self, seq: int) -> Written:
        asked = msgspec.json.encode({"seq": seq})
        answer = await self.nc.request(call("STREAM.MSG.GET", FEED_STREAM), asked, timeout=60)
        stored: Any = msgspec.json.decode(answer.data, type=_Answer).message
        headers = headers_of(stored.hdrs) or {}
        ours = {name: value for name, value in headers.items() if name.startswith("ce-")}
        return Written(stored.subject, ours, stored.data)

    async def count(self) -> int:
        info = msgspec.json.decode(
            (await self.nc.request(call("STREAM.INFO", FEED_STREAM), b"", timeout=ASKED_SECONDS)).data
        )
        return info.get("state", {}).get("last_seq", 0)

    async def holds(self, commits: Sequence[Commit]) -> None:
        """Wait until FEED holds as many events as it must, and look that they are those."""
        must = expected(commits)

        async with asyncio.timeout(SECONDS):
            while not await self._reaches(len(must)):
                await asyncio.sleep(0.05)
        assert await self.feed() == must

    async def _reaches(self, count: int) -> bool:
        try:
            return await self.count() >= count
        except NatsTimeoutError:
            return False  # a server that was killed has just started

    async def remake_log(self) -> None:
        """Another log, in the place of this one."""
        await delete_streams(self.nc, EVENTS_STREAM)
        await create_streams(self.nc, 1)

    async def delete_feed(self) -> None:
        await delete_streams(self.nc, FEED_STREAM)


class _Stored(msgspec.Struct):
    subject: str
    data: bytes = b""
    hdrs: bytes = b""


class _Answer(msgspec.Struct):
    message: _Stored


@contextlib.asynccontextmanager
async def a_log(server: NatsServer) -> AsyncGenerator[Log]:
    nc = await connect(server.settings(EVERYTHING), EVERYTHING)
    try:
        yield Log(nc)
    finally:
        await nc.close()


@contextlib.asynccontextmanager
async def feeding(server: NatsServer) -> AsyncGenerator[Health]:
    """The service with its own credentials, until the block ends."""
    stop, health = asyncio.Event(), Health("feed")
    task = asyncio.create_task(run(server.settings("feed"), health, stop))
    try:
        yield health
    finally:
        stop.set()
        await asyncio.wait_for(task, 60)


def some_log(seed: int, steps: int = 150) -> list[Commit]:
    happenings = Happenings(seed)
    for _ in range(steps):
        happenings.step()
    return happenings.world.commits


def cut_anywhere(commits: list[Commit], chance: random.Random) -> list[list[Commit]]:
    """In pieces of several lengths, batches whole."""
    found: list[list[Commit]] = []
    rest = commits
    while rest:
        piece = next(pieces(rest, chance.randint(1, 40)))
        found.append(list(piece))
        rest = rest[len(piece) :]
    return found
