"""Reading a stream that keeps the newest message of each subject: first all of those, then what comes.

For WANTED and OBSERVED, which are derived and may be lost: a reader that starts again is simply told everything again,
so nothing here keeps a place or halts. Who reads compares whole states, and does not mind repetition.
"""

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Set as AbstractSet
from typing import Final

import msgspec
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from services.runtime.nats.calls import CONSUMER_SECONDS, call
from services.runtime.nats.connection import user_of
from services.runtime.nats.jetstream_api import JetStreamError, create_consumer
from services.runtime.nats.requests import Requests, UnansweredError
from services.runtime.nats.wire import is_stored

PULL_MESSAGES: Final = 1_000
PULL_BYTES: Final = 8 * 1024 * 1024
"""Of one pull, whoever wrote the messages: they wait in this process's memory."""
PULL_SECONDS: Final = 30
"""How long an unanswered pull stands: an idle reader costs one request in this time."""
HEARTBEAT_SECONDS: Final = 5
SILENCE_SECONDS: Final = 12.0
"""Two heartbeats and some: the consumer is gone, for instance with the server that held it."""
WATCH_SECONDS: Final = 1.0
REQUEST_SECONDS: Final = 3.0
LONGEST_PAUSE_SECONDS: Final = 2.0
HANDED_OUT_MESSAGES: Final = 2_000
_NEWEST: Final = {"deliver_policy": "last_per_subject"}
_PULL_ENDED: Final = ("Message Size Exceeds MaxBytes", "Batch Completed")
"""Ends of a pull after which the consumer is still good."""
_SHORT_REPLY_TOKENS: Final = 9
"""`$JS.ACK.<stream>.<consumer>.<deliveries>.<stream seq>.<consumer seq>.<time>.<pending>`; the longer form has the
domain and the account before the stream."""
_SEQUENCE_TOKEN: Final = 5
_TIME_TOKEN: Final = 7
_LONG_REPLY_OFFSET: Final = 2

log = structlog.get_logger(__name__)


class LatestMessage(msgspec.Struct, frozen=True):
    subject: str
    data: bytes
    stored_at: float
    """Seconds since the epoch, by the server's clock."""
    told_again: bool
    """Whether it was there when the round began: it may be old, and may have been handed out before."""


class Latest:
    """One reader. `start` and `close` it; `next` hands out what arrived."""

    def __init__(
        self, nc: Client, requests: Requests, stream: str, *filters: str, held_to_filter: bool = False
    ) -> None:
        """Without filters it waits for some (`refilter`).

        Args:
            held_to_filter: whether this user may only follow what it names when it asks; then it has one filter.
        """
        self.round = 0
        """Rises whenever everything is told anew, as after a restart of the server."""
        self._nc = nc
        self._requests = requests
        self._stream = stream
        self._filters = frozenset(filters)
        self._filtered = asyncio.Event()
        self._held_to_filter = held_to_filter
        self._buffer: deque[tuple[Msg, float]] = deque()
        """With when each was stored."""
        self._expected = 0
        """Messages that the newest round still owes of what was there when it began."""
        self._requested = 0
        self._arrivals = 0
        """Messages of this consumer that have come."""
        self._resume_seq = 0
        """Where to go on, in the same round, behind a message without a body: servers take one for the end of an answer
        that comes from another account, and send nothing more."""
        self._heard = 0.0
        self._reconnects = 0
        self._broken = ""
        self._consumer = ""
        self._subscription: Subscription | None = None
        self._arrived = asyncio.Event()
        self._wake = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None

    @property
    def complete(self) -> bool:
        """Whether all that was there when the round began has been handed out."""
        return self.round > 0 and self._expected <= 0

    @property
    def current(self) -> bool:
        """Whether what was handed out is what is there, as far as is known."""
        return self.complete and not self._broken

    def again(self) -> None:
        """Tell everything anew."""
        self._broken = "all of it is wanted"
        self._wake.set()

    def refilter(self, filters: AbstractSet[str]) -> None:
        """Read these subjects from now on, beginning with all that is there."""
        if filters == self._filters:
            return
        self._filters = frozenset(filters)
        self._broken = "it shall read other subjects"
        self._wake.set()
        self._filtered.set()

    def start(self) -> None:
        self._pump = asyncio.create_task(self._run(), name=f"latest-{self._stream}")

    async def close(self) -> None:
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)
        await self._drop()

    async def next(self, idle_seconds: float) -> list[LatestMessage]:
        """What has arrived, or nothing after `idle_seconds`. Raises what ended the reader."""
        if not self._buffer:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(idle_seconds):
                    await self._arrived.wait()
        if self._pump is not None and self._pump.done():
            self._pump.result()
        taken: list[LatestMessage] = []
        while self._buffer and len(taken) < HANDED_OUT_MESSAGES:
            message, stored_at = self._buffer.popleft()
            told_again = len(taken) < self._expected
            taken.append(LatestMessage(message.subject, message.data, stored_at, told_again))
        self._expected -= len(taken)
        if not self._buffer:
            self._arrived.clear()
        self._wake.set()
        return taken

    async def _run(self) -> None:
        """Keep a consumer going; ends only where the connection was closed."""
        pause = LONGEST_PAUSE_SECONDS / 16
        while True:
            try:
                await self._begin()
                pause = LONGEST_PAUSE_SECONDS / 16
                await self._keep_pulling()
                if self._resume_seq and not self._broken:
                    await self._drop()
                    continue
            except (UnansweredError, JetStreamError, NatsError) as error:
                if self._nc.is_closed:
                    self._arrived.set()
                    raise
                self._broken = str(error)
            log.info("latest_starts_again", stream=self._stream, reason=self._broken)
            self._resume_seq = 0
            await self._drop()
            await asyncio.sleep(pause * (0.5 + random.random()))  # noqa: S311 (jitter)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def _begin(self) -> None:
        while not self._filters:
            self._filtered.clear()
            self._buffer.clear()
            await self._filtered.wait()
        self._reconnects = self._nc.stats["reconnects"]
        self._broken = ""
        resume_seq, self._resume_seq = self._resume_seq, 0
        self._requested = self._arrivals = 0
        self._subscription = await self._nc.subscribe(self._nc.new_inbox(), cb=self._on_message)  # pyright: ignore[reportUnknownMemberType]
        config: dict[str, object] = {
            # A subject holds one message: from a sequence on, these are the newest, too.
            **({"deliver_policy": "by_start_sequence", "opt_start_seq": resume_seq} if resume_seq else _NEWEST),
            **({} if self._held_to_filter else {"filter_subjects": sorted(self._filters)}),
            "ack_policy": "none",
            "replay_policy": "instant",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": CONSUMER_SECONDS * 1_000_000_000,
        }
        self._consumer, info = await create_consumer(
            self._requests,
            self._stream,
            user_of(self._nc),
            config,
            filter_subject=next(iter(self._filters)) if self._held_to_filter else "",
            seconds=REQUEST_SECONDS,
        )
        if resume_seq:
            self._expected = len(self._buffer) + info.num_pending
        else:
            self._buffer.clear()
            self._expected = info.num_pending
            self.round += 1
        self._heard = asyncio.get_running_loop().time()

    async def _keep_pulling(self) -> None:
        """Ask for more whenever there is room; returns when the consumer is of no more use."""
        clock = asyncio.get_running_loop().time
        while True:
            self._wake.clear()
            if self._nc.stats["reconnects"] != self._reconnects:
                self._broken = "the connection was lost meanwhile"
            if self._requested and clock() - self._heard > SILENCE_SECONDS:
                self._broken = "no heartbeat"
            if self._broken or self._resume_seq:
                return
            if len(self._buffer) + self._requested <= PULL_MESSAGES:
                await self._pull()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WATCH_SECONDS):
                    await self._wake.wait()

    async def _pull(self) -> None:
        assert self._subscription is not None
        request = {
            "batch": PULL_MESSAGES,
            "max_bytes": PULL_BYTES,
            "expires": PULL_SECONDS * 1_000_000_000,
            "idle_heartbeat": HEARTBEAT_SECONDS * 1_000_000_000,
        }
        if not self._requested:
            self._heard = asyncio.get_running_loop().time()
        self._requested += PULL_MESSAGES
        subject = call("CONSUMER.MSG.NEXT", self._stream, self._consumer)
        await self._nc.publish(subject, msgspec.json.encode(request), reply=self._subscription.subject)

    async def _on_message(self, message: Msg) -> None:
        self._heard = asyncio.get_running_loop().time()
        headers = message.headers
        if is_stored(message) or headers is None or "Status" not in headers:
            place = _place(message.reply)
            if place is None:
                # Were it a message of the consumer all the same, a heartbeat would tell that one is missing.
                log.warning("latest_not_understood", subject=message.subject, reply=message.reply)
                return
            seq, stored_at = place
            self._requested -= 1
            self._arrivals += 1
            self._buffer.append((message, stored_at))
            self._arrived.set()
            if headers is None and not message.data and not self._resume_seq:
                self._resume_seq = seq + 1
                self._wake.set()
            return
        status = headers["Status"]
        if status == "100":
            # It comes behind all that was sent before it.
            sent = headers.get("Nats-Last-Consumer", "0")
            if self._arrivals < int(sent) and not self._resume_seq:
                self._broken = f"{self._arrivals} of {sent} messages have come"
                self._wake.set()
            return
        if status in {"404", "408"} or headers.get("Description", "").startswith(_PULL_ENDED):
            self._requested = max(0, self._requested - int(headers.get("Nats-Pending-Messages", "0")))
        else:
            self._broken = f"{status} {headers.get('Description', '')}"
        self._wake.set()

    async def _drop(self) -> None:
        consumer, self._consumer = self._consumer, ""
        subscription, self._subscription = self._subscription, None
        with contextlib.suppress(NatsError):
            if subscription is not None:
                await subscription.unsubscribe()
            if consumer:
                await self._nc.publish(call("CONSUMER.DELETE", self._stream, consumer))


def _place(reply: str) -> tuple[int, float] | None:
    """A message's sequence in its stream, and when it was stored; None where it comes from no consumer."""
    tokens = reply.split(".")
    offset = 0 if len(tokens) == _SHORT_REPLY_TOKENS else _LONG_REPLY_OFFSET
    if tokens[:2] != ["$JS", "ACK"]:
        return None
    try:
        return int(tokens[offset + _SEQUENCE_TOKEN]), int(tokens[offset + _TIME_TOKEN]) / 1e9
    except (ValueError, IndexError, OverflowError):
        return None


async def read_latest(nc: Client, requests: Requests, stream: str, filter_subject: str) -> dict[str, bytes]:
    """The newest message of every subject, once. Raises TimeoutError after half a minute."""
    reader = Latest(nc, requests, stream, filter_subject)
    reader.start()
    found: dict[str, bytes] = {}
    seen_round = 0
    try:
        async with asyncio.timeout(30):
            while not reader.complete:
                messages = await reader.next(0.05)
                if reader.round != seen_round:
                    found, seen_round = {}, reader.round
                found.update((message.subject, message.data) for message in messages)
        return found
    finally:
        await reader.close()
