"""Follows the newest message of every subject under a filter of WANTED: first the whole picture, then what changes.

WANTED may be wiped, its server restarted, the connection lost. Each time the follower says so, and begins again with a
whole picture. Our own pull over a short-lived consumer, because the client's loses time and messages (log.md 2.5).
"""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final

import msgspec
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import ConnectionClosedError
from nats.errors import Error as NatsError
from nats.errors import TimeoutError as NatsTimeoutError

from events.subjects import WANTED_STREAM
from services.runtime.calls import CONSUMER_SECONDS, call
from services.runtime.connection import user_of
from services.runtime.jetstream_api import JetStreamError, create_consumer
from services.runtime.requests import Requests, UnansweredError

PULL_MESSAGES: Final = 500
"""Asked for at once: bounds what waits here, and keeps a start with thousands of pods to a few round trips."""
PULL_SECONDS: Final = 30.0
"""How long a pull stands: an idle follower costs two messages in this time, and the heartbeats."""
HEARTBEAT_SECONDS: Final = 5.0
SILENT_SECONDS: Final = 12.0
"""Two heartbeats missed: the consumer, its stream or its server is gone."""
LOOK_SECONDS: Final = 1.0
"""How often a lost connection is looked for; its consumer did not survive it."""
REQUEST_SECONDS: Final = 5.0
ACK_PARTS: Final = 9
"""Of the subject that a message of a consumer is to be acknowledged on, at least."""
FIRST_RETRY_SECONDS: Final = 0.25
LAST_RETRY_SECONDS: Final = 5.0

_CONSUMER: Final[dict[str, object]] = {
    "deliver_policy": "last_per_subject",
    "ack_policy": "none",
    "mem_storage": True,
    "inactive_threshold": CONSUMER_SECONDS * 1_000_000_000,
    "num_replicas": 1,
}

log = structlog.get_logger(__name__)


class Whole(msgspec.Struct, frozen=True):
    """Every subject's newest message; what is not in it is not wanted to be anything."""

    values: dict[str, bytes]


class Changed(msgspec.Struct, frozen=True):
    values: dict[str, bytes]


class Lost(msgspec.Struct, frozen=True):
    """Nothing more is known until the next whole picture."""


class _GoneError(Exception):
    """The consumer must be made anew."""


async def follow_last(nc: Client, subject_filter: str) -> AsyncGenerator[Whole | Changed | Lost]:
    """For ever. Raises ConnectionClosedError where the connection was closed for good."""
    wait = FIRST_RETRY_SECONDS
    requests = Requests(nc)
    while True:
        try:
            async for news in _follow_once(nc, requests, subject_filter):
                wait = FIRST_RETRY_SECONDS
                yield news
        except ConnectionClosedError:
            raise
        except (_GoneError, NatsError, UnansweredError, JetStreamError, TimeoutError) as error:
            log.info("wanted_lost", filter=subject_filter, reason=str(error) or type(error).__name__)
        yield Lost()
        await asyncio.sleep(wait * random.uniform(0.5, 1.5))  # noqa: S311 (spreads retries, protects nothing)
        wait = min(wait * 2, LAST_RETRY_SECONDS)


async def _follow_once(nc: Client, requests: Requests, subject_filter: str) -> AsyncIterator[Whole | Changed]:
    connection = nc.stats["reconnects"]
    name = ""
    inbox = nc.new_inbox()
    subscription = await nc.subscribe(inbox)  # pyright: ignore[reportUnknownMemberType]
    try:
        name, info = await create_consumer(
            requests, WANTED_STREAM, user_of(nc), _CONSUMER, filter_subject=subject_filter, seconds=REQUEST_SECONDS
        )
        pull = _Pull(nc, name, inbox)
        await pull.ask()
        picture: dict[str, bytes] | None = {}
        if not info.num_pending:
            yield Whole({})
            picture = None
        while True:
            batch = await _batch(subscription, nc, connection)
            values, caught_up = await pull.take(batch)
            if picture is None:
                if values:
                    yield Changed(values)
                continue
            picture.update(values)
            if caught_up:
                yield Whole(picture)
                picture = None
    finally:
        await _leave(nc, subscription, name)


class _Pull:
    """The standing request for messages, and their order."""

    def __init__(self, nc: Client, consumer: str, inbox: str) -> None:
        self._nc = nc
        self._subject = call("CONSUMER.MSG.NEXT", WANTED_STREAM, consumer)
        self._inbox = inbox
        self._left = 0
        self._delivered = 0

    async def ask(self) -> None:
        request = {
            "batch": PULL_MESSAGES,
            "expires": int(PULL_SECONDS * 1e9),
            "idle_heartbeat": int(HEARTBEAT_SECONDS * 1e9),
        }
        await self._nc.publish(self._subject, msgspec.json.encode(request), reply=self._inbox)
        self._left = PULL_MESSAGES

    async def take(self, batch: list[Msg]) -> tuple[dict[str, bytes], bool]:
        """Newest value per subject, and whether nothing more waits. Raises _GoneError."""
        values: dict[str, bytes] = {}
        caught_up = False
        for message in batch:
            status = (message.headers or {}).get("Status", "") if not message.reply.startswith("$JS.ACK.") else ""
            if status == "100":
                # It comes behind all that was sent before it; behind a message without a body, servers send no more.
                sent = (message.headers or {}).get("Nats-Last-Consumer", "0")
                if self._delivered < int(sent):
                    raise _GoneError(f"{self._delivered} of {sent} messages have come")
                continue
            if status == "408":
                await self.ask()
                continue
            if status == "503":
                # Also where this server has not heard yet of the consumer that another one keeps.
                raise _GoneError("nobody answers a pull from its consumer")
            if status:
                raise _GoneError((message.headers or {}).get("Description", status))
            place = _place(message.reply)
            if place is None:
                # Were it a message of the consumer all the same, the next one's number would tell.
                log.warning("wanted_not_understood", subject=message.subject, reply=message.reply)
                continue
            number, waiting = place
            if number != self._delivered + 1:
                raise _GoneError(f"message {number} came after {self._delivered}")
            self._delivered += 1
            self._left -= 1
            caught_up = waiting == 0
            values[message.subject] = message.data
        if self._left == 0:
            await self.ask()
        return values, caught_up


def _place(reply: str) -> tuple[int, int] | None:
    """Which message of its consumer it is, and how many wait behind it; None where it is none of a consumer."""
    # $JS.ACK.<stream>.<consumer>.<deliveries>.<stream sequence>.<consumer sequence>.<time>.<pending>, from the end,
    # since servers may put a domain in front.
    parts = reply.split(".")
    if parts[:2] != ["$JS", "ACK"] or len(parts) < ACK_PARTS:
        return None
    try:
        return int(parts[-3]), int(parts[-1])
    except ValueError:
        return None


async def _batch(subscription: Subscription, nc: Client, connection: int) -> list[Msg]:
    """What has come, at least one message. Raises _GoneError where nothing came for too long."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + SILENT_SECONDS
    while True:
        try:
            batch = [await subscription.next_msg(timeout=LOOK_SECONDS)]
        except (NatsTimeoutError, TimeoutError):
            if nc.stats["reconnects"] != connection:
                raise _GoneError("the connection was lost") from None
            if loop.time() > give_up:
                raise _GoneError(f"silent for {SILENT_SECONDS} s") from None
            continue
        while subscription.pending_msgs and len(batch) < PULL_MESSAGES:
            batch.append(await subscription.next_msg(timeout=LOOK_SECONDS))
        return batch


async def _leave(nc: Client, subscription: Subscription, consumer: str) -> None:
    """Free what the server holds, without waiting: a consumer that is forgotten goes by itself."""
    if nc.is_connected:
        await subscription.unsubscribe()
        if consumer:
            await nc.publish(call("CONSUMER.DELETE", WANTED_STREAM, consumer), b"")
