"""Writing to FEED, guarded by its last sequence, so that every event stands there once however many write.

Each message says its place in the log. Whoever meets a conflict, or gets no answer, reads how far FEED goes, and goes
on behind that. Nothing rests on the server's window of duplicates.
"""

import asyncio
import random
from collections.abc import Sequence
from typing import Final
from uuid import uuid4

import msgspec
import structlog
from nats.aio.client import Client
from nats.errors import Error as NatsError
from prometheus_client import Counter, Gauge

from events.codec import UNDECODABLE
from events.public.cloudevents import Place, attributes_of, place_of
from events.public.publish import FeedMessage
from events.subjects import EVENTS_STREAM, FEED_STREAM
from services.feed.publish import FeedEnd, next_batch
from services.runtime.log.jetstream import CONFLICT_CODES
from services.runtime.nats.jetstream_api import NOT_FOUND, JetStreamError, decode_ack, message_at, stream_info
from services.runtime.nats.requests import Requests, UnansweredError
from services.runtime.nats.wire import headers_of
from services.runtime.process.failpoints import reached
from services.runtime.process.host import Health

ANSWER_SECONDS: Final = 3.0
FIRST_PAUSE_SECONDS: Final = 0.02
LONGEST_PAUSE_SECONDS: Final = 2.0
LOOKS: Final = 5
"""At FEED's last message, which may go by its age between two questions."""

_GUARD: Final = "Nats-Expected-Last-Sequence"
_BATCH_ID: Final = "Nats-Batch-Id"
_BATCH_SEQUENCE: Final = "Nats-Batch-Sequence"
_BATCH_COMMIT: Final = "Nats-Batch-Commit"

_WRITTEN: Final = Counter("muster_feed_events", "Public events that this process wrote")
_CONFLICTS: Final = Counter("muster_feed_conflicts", "Writes that another feed service was faster with")
_PLACE: Final = Gauge("muster_feed_sequence", "Sequence of the log up to which public events are written")

log = structlog.get_logger(__name__)


class FeedRemadeError(Exception):
    """FEED is not the one that was written to: it was deleted, or its server lost some of it. Begin again."""


class ForeignMessageError(Exception):
    """FEED ends with a message that no feed service wrote, or wrote of another log."""


async def read_end(requests: Requests) -> FeedEnd | None:
    """How far FEED goes; None where there is no such stream. Raises UnansweredError, JetStreamError,
    ForeignMessageError.
    """
    for _ in range(LOOKS):
        try:
            info = await stream_info(requests, FEED_STREAM, seconds=ANSWER_SECONDS)
        except JetStreamError as error:
            if error.error.code == NOT_FOUND:
                return None
            raise
        if info.state.messages == 0:
            return FeedEnd(info.created, info.state.last_seq, None)
        message = await message_at(requests, FEED_STREAM, info.state.last_seq, seconds=ANSWER_SECONDS)
        if message is not None:
            attributes = attributes_of(headers_of(message.headers) or {})
            try:
                place = place_of(attributes.get("sequence", ""))
            except ValueError as error:
                raise ForeignMessageError(
                    f"message {message.seq} of {FEED_STREAM} ({message.subject}) was written by somebody else: "
                    "delete the stream, and it is written anew"
                ) from error
            return FeedEnd(info.created, info.state.last_seq, place, attributes.get("id", ""))
    raise UnansweredError(f"the end of {FEED_STREAM} moves on faster than it can be read")


async def check_log(requests: Requests, end: FeedEnd) -> None:
    """Raises ForeignMessageError where the log does not hold the commit that FEED ends with: going on behind its place
    would leave out what this log has up to there. Raises UnansweredError, JetStreamError.
    """
    if end.place is None:
        return
    message = await message_at(requests, EVENTS_STREAM, end.place.seq, seconds=ANSWER_SECONDS)
    if message is None or not end.id.startswith(f"{_commit_id(message.data)}."):
        raise ForeignMessageError(
            f"{FEED_STREAM} holds public events of another log (its last one is of sequence {end.place.seq}): "
            "`python -m services.setup rebuild-feed` deletes the stream, and it is written again"
        )


class _Named(msgspec.Struct):
    commit_id: str = ""


def _commit_id(payload: bytes) -> str:
    try:
        return msgspec.json.decode(payload, type=_Named).commit_id
    except UNDECODABLE:
        return ""


class Writer:
    """One service's hand on FEED."""

    def __init__(self, nc: Client, requests: Requests, health: Health, end: FeedEnd, written: Place | None) -> None:
        self._nc = nc
        self._requests = requests
        self._health = health
        self.created = end.created
        self.last_seq = end.last_seq
        self.written = written
        """Everything up to here is in FEED."""

    async def write(self, messages: Sequence[FeedMessage], ends: Sequence[int]) -> None:
        """Write those that are not there yet; comes back when all are. Raises FeedRemadeError."""
        start, pause = 0, FIRST_PAUSE_SECONDS
        while True:
            while start < len(messages) and self.written is not None and messages[start].place <= self.written:
                start += 1
            if start == len(messages):
                return
            batch = next_batch(messages, start, ends)
            trouble = await self._try(batch)
            if trouble is None:
                self._health.ready()
                pause = FIRST_PAUSE_SECONDS
                continue
            before = self.last_seq
            await self.look(trouble)
            if self.last_seq == before:
                if pause == LONGEST_PAUSE_SECONDS:
                    self._health.not_ready(f"public events cannot be written: {trouble}")
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 (jitter)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def look(self, trouble: str = "") -> None:
        """Take in how far FEED goes, as soon as that can be read. Raises FeedRemadeError."""
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                end = await read_end(self._requests)
                break
            except (UnansweredError, JetStreamError, NatsError, ForeignMessageError) as error:
                told = str(error) or trouble
                self._health.not_ready(f"public events cannot be written: {told}")
                log.warning("feed_away", error=told)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 (jitter)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        if end is None or end.created != self.created or end.last_seq < self.last_seq:
            raise FeedRemadeError("the stream is gone" if end is None else f"it ends at {end.last_seq}")
        if end.last_seq > self.last_seq:
            if end.place is None or (self.written is not None and end.place < self.written):
                raise FeedRemadeError("others wrote to it what cannot be read any more")
            self.last_seq, self.written = end.last_seq, end.place

    async def _try(self, batch: Sequence[FeedMessage]) -> str | None:
        """One try; what went wrong, where something did."""
        try:
            answer = decode_ack(await self._publish(batch))
        except (UnansweredError, NatsError) as error:
            return str(error)
        if answer.error is not None:
            if answer.error.err_code in CONFLICT_CODES:
                _CONFLICTS.inc()
            else:
                log.warning("feed_not_taken", error=answer.error.description, code=answer.error.err_code)
            return answer.error.description
        reached("feed_written")
        self.last_seq, self.written = answer.seq, batch[-1].place
        _WRITTEN.inc(len(batch))
        _PLACE.set(self.written.seq)
        return None

    async def _publish(self, batch: Sequence[FeedMessage]) -> bytes:
        """All or none, behind the last message that is known. The answer to the last one is the answer to all."""
        batch_id = uuid4().hex
        guard = {_GUARD: str(self.last_seq)}
        for number, message in enumerate(batch[:-1], start=1):
            headers = {**message.headers, **guard, _BATCH_ID: batch_id, _BATCH_SEQUENCE: str(number)}
            guard = {}
            await self._nc.publish(message.subject, message.payload, headers=headers)
        last = batch[-1]
        headers = {**last.headers, **guard}
        if len(batch) > 1:
            reached("feed_batch_open")
            headers |= {_BATCH_ID: batch_id, _BATCH_SEQUENCE: str(len(batch)), _BATCH_COMMIT: "1"}
        return await self._requests.ask(last.subject, last.payload, seconds=ANSWER_SECONDS, headers=headers)
