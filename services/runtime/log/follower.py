"""Following the log: our own pull loop over a short-lived consumer, because the client's loses time and messages.

What was measured about the client's loops stands in the design's log.md, sections 2.5 and 3.2. This loop hands out what
has arrived at once, keeps an eye on the server's heartbeats, makes a new consumer when anything is odd, and halts with
LogGapError where the log itself is not what it was. Atomic batches are handed out whole.
"""

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Sequence
from typing import Final

import msgspec
import structlog
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from events.aggregate import VOID
from events.commit import BatchPart, Commit
from events.subjects import EVENTS_STREAM
from services.runtime.log.store import LogGapError, LogUnavailableError, UnreadableMessageError
from services.runtime.log.voids import UndecidedVoidError, Voids
from services.runtime.nats.calls import call
from services.runtime.nats.connection import user_of
from services.runtime.nats.jetstream_api import JetStreamError, consumer_info, create_consumer, stream_info
from services.runtime.nats.requests import Requests, UnansweredError
from services.runtime.nats.wire import SteadyClient, Taken, is_stored

PULL_MESSAGES: Final = 1_000
"""Asked for at once."""
UNREAD_MESSAGES: Final = 2_000
"""Asked for and not yet handed out, at most: bounds memory where the reader is slow."""
PULL_BYTES: Final = 16 * 1024 * 1024
PULL_SECONDS: Final = 30
"""How long an unanswered pull stands: an idle follower costs one request in this time."""
HEARTBEAT_SECONDS: Final = 2
SILENCE_SECONDS: Final = 5.0
"""Two heartbeats and a half: the consumer is gone, for instance with the server that held it."""
LEFT_SECONDS: Final = 10
"""How long what a killed process leaves behind keeps one of the few consumers that its user may have: a service that is
killed again and again must find one within the time that its start may take. A reader that asks for nothing meanwhile,
because it is slow, gets a new one."""
WATCH_SECONDS: Final = 1.0
"""How often reconnections and silence are looked at."""
REQUEST_SECONDS: Final = 3.0
FIRST_PAUSE_SECONDS: Final = 0.1
LONGEST_PAUSE_SECONDS: Final = 2.0
SHORT_LOG_SECONDS: Final = 10.0
"""How long a log may be shorter than our position: a restarted cluster replays its journal for some seconds."""
HANDED_OUT_COMMITS: Final = 1_000
"""Decoded in one go, some 15 ms; an atomic batch is never cut."""
BATCH_REST_SECONDS: Final = 0.05
"""How long a filtered follower waits for more of a batch before it asks whether there is more."""

_STATUS: Final = "Status"
_HEARTBEAT: Final = "100"
_PULL_ENDED: Final = ("Request Timeout", "Message Size Exceeds MaxBytes", "Batch Completed")
"""Ends of a pull after which the consumer is still good."""
_SHORT_REPLY_TOKENS: Final = 9
"""`$JS.ACK.<stream>.<consumer>.<deliveries>.<stream seq>.<consumer seq>.<time>.<pending>`; the longer form has the
domain and the account before the stream."""
_LONG_REPLY_OFFSET: Final = 2

log = structlog.get_logger(__name__)


class _BrokenError(Exception):
    """This consumer is of no more use; the next one may be."""


class Follower:
    """One reader's place in the log."""

    def __init__(
        self,
        nc: Client,
        requests: Requests,
        voids: Voids,
        *,
        after_seq: int,
        filters: Sequence[str] = (),
    ) -> None:
        self._nc = nc
        self._requests = requests
        self._voids = voids
        self._filters = list(filters)
        self._position = after_seq
        """Sequence of the last message taken in, handed out or not."""
        self._first_position = after_seq
        self._parents: dict[str, int] = {}
        """Per subject, the last sequence seen: how a filtered follower notices a gap."""
        self._log_id = ""
        self._consumer = ""
        self._subscription: Subscription | None = None
        self._consumer_seq = 0
        self._arrivals = 0
        """Messages of this consumer that have come."""
        self._pending_at_server = 0
        self._buffer: deque[Taken] = deque()
        self._requested = 0
        self._heard = 0.0
        self._reconnects = 0
        self._trouble = ""
        self._arrived = asyncio.Event()
        self._wake_pump = asyncio.Event()
        self._held: list[Commit] = []
        """The front part of an atomic batch."""
        self._ready: list[Commit] = []
        self._declared: list[int] = []
        """Messages that were declared void, by records met since the last look: looked at also where they were passed
        long ago, so that a record that is to be doubted is told of."""
        self._unreadable: UnreadableMessageError | None = None
        """What nothing is taken in behind."""
        self._pump: asyncio.Task[None] | None = None
        self._looks: asyncio.Task[None] | None = None

    @property
    def pending(self) -> int:
        """So many messages are known to be still to come: as the last one taken in said, or as have come since."""
        return max(self._pending_at_server, len(self._buffer))

    async def next(self, idle_seconds: float) -> list[Commit]:
        """What has arrived since, or nothing after `idle_seconds`. Raises UnreadableMessageError, LogGapError."""
        if self._pump is None:
            self._pump = asyncio.create_task(self._pump_messages())
        clock = asyncio.get_running_loop().time
        deadline = clock() + idle_seconds
        while True:
            await self._take_in()
            if self._ready:
                ready, self._ready = self._ready, []
                return ready
            if self._unreadable is not None:
                raise self._unreadable
            if self._pump.done():
                self._pump.result()
            left = deadline - clock()
            if left <= 0:
                return []
            holds_part = bool(self._held) and bool(self._filters)
            try:
                async with asyncio.timeout(min(left, BATCH_REST_SECONDS) if holds_part else left):
                    await self._arrived.wait()
            except TimeoutError:
                if holds_part and await self._holds_all_of_batch():
                    self._ready, self._held = self._held, []

    async def close(self) -> None:
        tasks = [task for task in (self._pump, self._looks) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._drop_consumer()

    # What arrives, in order.

    async def _take_in(self) -> None:
        """Decode what has arrived, up to a bound; move whole batches to what is ready."""
        self._arrived.clear()
        buffer = self._buffer
        try:
            while buffer and self._unreadable is None and len(self._ready) < HANDED_OUT_COMMITS:
                try:
                    self._take(buffer[0])
                except UndecidedVoidError as undecided:
                    if self._ready:
                        break  # handed out first: on a long chain, the look takes long
                    await self._judge(undecided.seq)  # and then see what the buffer holds by now
                else:
                    buffer.popleft()
        except _BrokenError as error:
            self._break(str(error))
        except UnreadableMessageError as error:
            self._unreadable = error
        self._have_declared_looked_at()
        if buffer:
            self._arrived.set()
        if len(buffer) + self._requested <= UNREAD_MESSAGES - PULL_MESSAGES:
            self._wake_pump.set()

    def _have_declared_looked_at(self) -> None:
        if self._looks is not None and self._looks.done():
            self._looks.result()
            self._looks = None
        if self._declared and self._looks is None:
            self._looks = asyncio.create_task(self._look_at_declared())

    async def _look_at_declared(self) -> None:
        """Beside the reading: whoever forges records holds up nothing that follows them."""
        while self._declared and self._unreadable is None:
            try:
                await self._voids.honours(self._declared.pop())
            except UnreadableMessageError as error:
                self._unreadable = error
                self._arrived.set()
            except LogUnavailableError as error:  # it is judged where it is met, or by another reader
                log.info("void_not_judged", error=str(error))

    async def _judge(self, seq: int) -> None:
        """Raises UnreadableMessageError."""
        try:
            await self._voids.honours(seq)
        except UnreadableMessageError:
            raise
        except LogUnavailableError as error:
            log.info("void_not_judged", seq=seq, error=str(error))
            await asyncio.sleep(FIRST_PAUSE_SECONDS)

    def _take(self, message: Taken) -> None:
        tokens = message.reply.split(".")
        offset = 0 if len(tokens) == _SHORT_REPLY_TOKENS else _LONG_REPLY_OFFSET
        seq, consumer_seq = int(tokens[offset + 5]), int(tokens[offset + 6])
        if consumer_seq != self._consumer_seq + 1:
            raise _BrokenError(f"message {consumer_seq} of the consumer came after {self._consumer_seq}")
        if not self._filters and seq != self._position + 1:
            raise LogGapError(f"the log goes from {self._position} to {seq}: the messages between are gone")
        commit = self._in_held_batch(self._voids.commit(message.subject, seq, message.data))
        if self._filters:
            self._check_parent(message.subject, commit)
        if commit.aggregate == VOID.name:
            about = self._voids.learn(commit)
            if about is not None:
                self._declared.append(about)
        self._consumer_seq = consumer_seq
        self._pending_at_server = int(tokens[offset + 8])
        self._position = seq
        held, batch = self._held, commit.record.batch
        if held and (batch is None or held[0].record.batch is None or held[0].record.batch.id != batch.id):
            if not self._filters:
                first = held[0]
                subject = f"ev.{first.aggregate}.{first.key}"
                raise UnreadableMessageError(first.seq, subject, f"its atomic batch has no end, and {seq} follows")
            self._ready.extend(held)
            held.clear()
        held.append(commit)
        if commit.ends_batch:
            self._ready.extend(held)
            held.clear()

    def _in_held_batch(self, commit: Commit) -> Commit:
        """A void message within an atomic batch keeps its place there, so that the rest is handed out whole."""
        if not self._held or commit.events or self._held[0].record.batch is None:
            return commit
        first, part = self._held[0], self._held[0].record.batch
        index = part.index + commit.seq - first.seq
        if index > part.count:
            return commit
        place = BatchPart(id=part.id, index=index, count=part.count)
        return msgspec.structs.replace(commit, record=msgspec.structs.replace(commit.record, batch=place))

    def _check_parent(self, subject: str, commit: Commit) -> None:
        parent = commit.record.parent_seq
        known = self._parents.get(subject)
        if commit.events and parent != known and (known is not None or parent > self._first_position):
            # Lost, or never there: what stands here does not tell, and nothing can be made of it either way.
            raise UnreadableMessageError(commit.seq, subject, f"it follows {parent}, which was never seen")
        self._parents[subject] = commit.seq

    async def _holds_all_of_batch(self) -> bool:
        """Whether nothing of the held batch is still to come, where its last message may be of another kind."""
        last = self._held[-1]
        if last.record.batch is None or self._pending_at_server > 0 or not self._consumer:
            return False
        end_seq = last.seq + last.record.batch.count - last.record.batch.index
        consumer = self._consumer
        try:
            if (await stream_info(self._requests, EVENTS_STREAM, seconds=REQUEST_SECONDS)).state.last_seq < end_seq:
                return False
            info = await consumer_info(self._requests, EVENTS_STREAM, consumer, seconds=REQUEST_SECONDS)
        except (UnansweredError, JetStreamError):
            return False
        return (
            consumer == self._consumer
            and info.num_pending == 0
            and info.delivered.consumer_seq == self._consumer_seq
            and not self._buffer
            and bool(self._held)
            and self._held[-1] is last
        )

    # The consumer, and what is asked of it.

    async def _pump_messages(self) -> None:
        """Keep a consumer and its pulls going; ends only with LogGapError, or where the connection was closed."""
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                await self._make_consumer()
                pause = FIRST_PAUSE_SECONDS
                await self._keep_pulling()
            except (UnansweredError, JetStreamError, NatsError, _BrokenError) as error:
                if self._nc.is_closed:
                    self._arrived.set()
                    raise
                log.info("follower_starts_again", position=self._position, reason=str(error))
            except BaseException:
                self._arrived.set()
                raise
            await self._drop_consumer()
            await asyncio.sleep(pause * (0.5 + random.random()))  # noqa: S311 (jitter)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def _make_consumer(self) -> None:
        await self._check_log()
        await self._voids.read()
        self._reconnects = self._nc.stats["reconnects"]
        self._buffer.clear()
        self._requested = self._consumer_seq = self._arrivals = self._pending_at_server = 0
        self._trouble = ""
        self._heard = asyncio.get_running_loop().time()
        inbox = self._nc.new_inbox()
        assert isinstance(self._nc, SteadyClient), "the log is followed by connections of ours"
        self._subscription = await self._nc.take(inbox, self._on_message)
        config: dict[str, object] = {
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": self._position + 1,
            "ack_policy": "none",
            "replay_policy": "instant",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": LEFT_SECONDS * 1_000_000_000,
        }
        if self._filters:
            config["filter_subjects"] = self._filters
        self._consumer, _ = await create_consumer(
            self._requests, EVENTS_STREAM, user_of(self._nc), config, seconds=REQUEST_SECONDS
        )

    async def _check_log(self) -> None:
        """Raises LogGapError where the log does not hold what follows our position, or is another one."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + SHORT_LOG_SECONDS
        while True:
            info = await stream_info(self._requests, EVENTS_STREAM, seconds=REQUEST_SECONDS)
            if self._log_id and info.created != self._log_id:
                raise LogGapError(f"this log was created at {info.created}; the log read before, at {self._log_id}")
            self._log_id = info.created
            if info.state.last_seq >= self._position:
                break
            if clock() > deadline:
                raise LogGapError(f"the log ends at {info.state.last_seq}, before position {self._position}")
            await asyncio.sleep(FIRST_PAUSE_SECONDS)
        if info.state.last_seq > self._position and info.state.first_seq > self._position + 1:
            raise LogGapError(f"the log begins at {info.state.first_seq}, after position {self._position}")

    async def _keep_pulling(self) -> None:
        """Ask for more whenever there is room; raises _BrokenError when the consumer seems gone."""
        clock = asyncio.get_running_loop().time
        while True:
            self._wake_pump.clear()
            if self._trouble:
                raise _BrokenError(self._trouble)
            if self._nc.stats["reconnects"] != self._reconnects:
                raise _BrokenError("the connection was lost meanwhile")
            while len(self._buffer) + self._requested <= UNREAD_MESSAGES - PULL_MESSAGES:
                await self._pull()
            if self._requested and clock() - self._heard > SILENCE_SECONDS:
                raise _BrokenError("no heartbeat")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WATCH_SECONDS):
                    await self._wake_pump.wait()

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
        await self._nc.publish(
            call("CONSUMER.MSG.NEXT", EVENTS_STREAM, self._consumer),
            msgspec.json.encode(request),
            reply=self._subscription.subject,
        )

    def _on_message(self, message: Taken) -> None:
        self._heard = asyncio.get_running_loop().time()
        if is_stored(message):
            self._requested -= 1
            self._arrivals += 1
            self._buffer.append(message)
            self._arrived.set()
            return
        headers = message.headers
        if headers is None or _STATUS not in headers:
            log.warning("follower_told_by_nobody", subject=message.subject, reply=message.reply)
            return
        if headers[_STATUS] == _HEARTBEAT:
            # It comes behind all that was sent before it. A message without a body is taken by servers for the end of
            # an answer that comes from another account, and what they send behind it reaches nobody.
            sent = headers.get("Nats-Last-Consumer", "0")
            if self._arrivals < int(sent):
                self._break(f"{self._arrivals} of {sent} messages have come")
            return
        description = headers.get("Description", "")
        if description.startswith(_PULL_ENDED):
            self._requested = max(0, self._requested - int(headers.get("Nats-Pending-Messages", "0")))
            self._wake_pump.set()
        else:
            self._break(f"{headers[_STATUS]} {description}")

    def _break(self, reason: str) -> None:
        self._buffer.clear()
        self._trouble = reason
        self._wake_pump.set()

    async def _drop_consumer(self) -> None:
        consumer, self._consumer = self._consumer, ""
        subscription, self._subscription = self._subscription, None
        self._buffer.clear()
        with contextlib.suppress(NatsError):
            if subscription is not None:
                await subscription.unsubscribe()
            if consumer:
                await self._nc.publish(call("CONSUMER.DELETE", EVENTS_STREAM, consumer))
