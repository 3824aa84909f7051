"""The event store on JetStream: guarded appends whose outcome is never guessed, folds read from the leader, followers.

The rules it keeps stand in the design's architecture.md, section 3, and log.md, section 2. It decides nothing about
what is stored.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import uuid4

import structlog
from nats.aio.client import Client
from nats.errors import Error as NatsError

from events.aggregate import Aggregate, Chain, Draft
from events.codec import encode_commit
from events.commit import BatchPart, Commit
from events.subjects import EVENTS_STREAM, aggregate_filter, aggregate_subject
from events.void import Unreadable
from services.runtime.log.chains import CACHED_CHAINS, Chains
from services.runtime.log.examination import decoded
from services.runtime.log.floors import Floors
from services.runtime.log.follower import Follower
from services.runtime.log.readings import READINGS, Reading
from services.runtime.log.snapshots import Snapshots
from services.runtime.log.store import (
    Committed,
    Conflict,
    OnStanding,
    Outcome,
    Rejected,
    Unknown,
    UnreadableMessageError,
    check_batch,
)
from services.runtime.log.times import sequence_at
from services.runtime.log.voids import Voids
from services.runtime.nats.connection import user_of
from services.runtime.nats.jetstream_api import (
    JetStreamError,
    PubAck,
    StoredMessage,
    decode_ack,
    message_at,
    next_message,
    stream_info,
)
from services.runtime.nats.requests import Requests, UnansweredError
from services.runtime.nats.wire import SteadyClient, header_block
from services.runtime.services import saved_chains

ATTEMPT_SECONDS: Final = 2.0
"""How long one publish waits for its answer: a restarted server is back after 1.6 s (log.md section 2.2)."""
READ_SECONDS: Final = 5.0
LOOK_SECONDS: Final = 1.0
"""One look at what became of a publish; there may be several before the deadline."""
FIRST_PAUSE_SECONDS: Final = 0.02
LONGEST_PAUSE_SECONDS: Final = 0.5

CONFLICT_CODES: Final = frozenset((10071, 10164))
"""Wrong last sequence: known, and (in a cluster) while another append is under way."""
STREAM_FULL_CODE: Final = 10077
DOUBTFUL_CODES: Final = frozenset((10163, 10176, 10201, 10210))
"""Temporarily unavailable, incomplete batch, repeated id in a batch, too many batches: look, then try again."""
TOO_LARGE_CODE: Final = 10054
HEADER_ROOM_BYTES: Final = 1024
"""Headers count, too, and a message that is too large costs the whole connection."""
FIRST_SERVER_ERROR: Final = 500
"""From this status on, an error says nothing about what was stored."""

GUARD: Final = "Nats-Expected-Last-Subject-Sequence"
_MESSAGE_ID: Final = "Nats-Msg-Id"
_BATCH_ID: Final = "Nats-Batch-Id"
_BATCH_SEQUENCE: Final = "Nats-Batch-Sequence"
_BATCH_COMMIT: Final = "Nats-Batch-Commit"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Doubt:
    """A publish without a definite answer."""

    reason: str
    duplicate_of: int = 0
    """Where the server says it already has the message: its sequence."""


type _Verdict = int | Conflict | Rejected | _Doubt
"""What one publish was answered: the sequence, or why there is none."""


def _verdict(ack: PubAck) -> _Verdict:
    error = ack.error
    if error is None:
        return _Doubt("duplicate", duplicate_of=ack.seq) if ack.duplicate else ack.seq
    if error.err_code in CONFLICT_CODES:
        return Conflict()
    if error.err_code in DOUBTFUL_CODES:
        return _Doubt(error.description)
    full = error.err_code == STREAM_FULL_CODE and "maximum" in error.description
    if error.code < FIRST_SERVER_ERROR or full:
        return Rejected(error.err_code, error.description)
    return _Doubt(error.description)


class JetStreamEventStore:
    """`store.EventStore` on one connection."""

    def __init__(self, nc: Client, *, requests: Requests | None = None, cached_chains: int = CACHED_CHAINS) -> None:
        self._nc = nc
        self._requests = requests or Requests(nc)
        self._readings = READINGS.get()
        self.voids = Voids(self._requests)
        self.floors = Floors(self._requests)
        self.snapshots = Snapshots(nc, self._requests)
        # Those who may, save snapshots of long chains as they load them, for everybody.
        saves = saved_chains(user_of(nc))
        self._chains = Chains(
            self._requests, self.voids, self.snapshots, self.floors, cached_chains=cached_chains, saves=saves
        )

    async def append(self, draft: Draft, *, deadline_seconds: float = 5.0) -> Outcome:
        return self._remembering(await self._append(draft, deadline_seconds))

    def _remembering(self, outcome: Outcome) -> Outcome:
        if isinstance(outcome, Committed):
            self.floors.saw_all([(aggregate_subject(each.aggregate, each.key), each.seq) for each in outcome.commits])
        return outcome

    async def _append(self, draft: Draft, deadline_seconds: float) -> Outcome:
        deadline = asyncio.get_running_loop().time() + deadline_seconds
        verdict = await self._publish(draft, min(ATTEMPT_SECONDS, deadline_seconds))
        if isinstance(verdict, int):
            return Committed((draft.committed(verdict),))
        if isinstance(verdict, _Doubt):
            return await self._resolve((draft,), verdict, deadline)
        return verdict

    async def append_batch(self, drafts: Sequence[Draft], *, deadline_seconds: float = 5.0) -> Outcome:
        check_batch(drafts)
        if len(drafts) == 1:
            return await self.append(drafts[0], deadline_seconds=deadline_seconds)
        return self._remembering(await self._append_batch(drafts, deadline_seconds))

    async def _append_batch(self, drafts: Sequence[Draft], deadline_seconds: float) -> Outcome:
        deadline = asyncio.get_running_loop().time() + deadline_seconds
        batch_id = uuid4().hex
        count = len(drafts)
        parts = [d.in_batch(BatchPart(id=batch_id, index=n, count=count)) for n, d in enumerate(drafts, start=1)]
        verdict = await self._publish_batch(parts, min(ATTEMPT_SECONDS, deadline_seconds))
        if isinstance(verdict, int):
            return _committed(parts, verdict)
        if isinstance(verdict, _Doubt):
            return await self._resolve(parts, verdict, deadline)
        return verdict

    async def _publish(self, draft: Draft, seconds: float) -> _Verdict:
        """One try at one message."""
        subject, record = draft.subject, draft.record
        headers = {GUARD: str(record.parent_seq), _MESSAGE_ID: f"{record.command_id}/{subject}"}
        payload = encode_commit(record)
        if len(payload) > self._nc.max_payload - HEADER_ROOM_BYTES:
            return self._too_large()
        try:
            answer = await self._requests.ask(subject, payload, seconds=seconds, headers=headers)
        except UnansweredError as error:
            return _Doubt(str(error))
        return _verdict(decode_ack(answer))

    async def _publish_batch(self, drafts: Sequence[Draft], seconds: float) -> _Verdict:
        """One try at an atomic batch; the answer to its last message is the answer to all.

        Without message ids: the server refuses a batch that holds a known one, even of an older commit (10201), so they
        would tell nothing that the guards do not, and cost a tenth of the rate.
        """
        payloads = [encode_commit(draft.record) for draft in drafts]
        if max(map(len, payloads)) > self._nc.max_payload - HEADER_ROOM_BYTES:
            return self._too_large()
        # A fresh id for every try: the server may still hold the open batch of the one before.
        batch_id, nc = uuid4().hex, self._nc
        assert isinstance(nc, SteadyClient), "the log is written by connections of ours"
        try:
            await nc.publish_all(
                (draft.subject, _batch_headers(batch_id, number, draft.record.parent_seq), payload)
                for number, (draft, payload) in enumerate(zip(drafts[:-1], payloads[:-1], strict=True), start=1)
            )
            last = drafts[-1]
            headers = {_BATCH_ID: batch_id, _BATCH_SEQUENCE: str(len(drafts)), GUARD: str(last.record.parent_seq)}
            headers[_BATCH_COMMIT] = "1"
            answer = await self._requests.ask(last.subject, payloads[-1], seconds=seconds, headers=headers)
            return _verdict(decode_ack(answer))
        except (UnansweredError, NatsError) as error:
            return _Doubt(str(error))

    def _too_large(self) -> Rejected:
        largest = self._nc.max_payload - HEADER_ROOM_BYTES
        return Rejected(TOO_LARGE_CODE, f"the commit's record is larger than a message may be ({largest} bytes)")

    async def _resolve(self, drafts: Sequence[Draft], doubt: _Doubt, deadline: float) -> Outcome:
        """What became of a publish without a definite answer: look, and while nothing is there, publish again with the
        same guard, because the first may still be under way and only a definite answer fences it.
        """
        clock = asyncio.get_running_loop().time
        pause = FIRST_PAUSE_SECONDS
        reason = doubt.reason
        looked_at = drafts[:1]  # an atomic batch shows in its first message
        while (left := deadline - clock()) > 0:
            try:
                found = await self._look(looked_at, drafts, doubt, min(left, LOOK_SECONDS))
            except (UnansweredError, JetStreamError) as error:
                reason = str(error)
                await _pause(pause, deadline)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
                continue
            if found is not None:
                return found
            left = min(ATTEMPT_SECONDS, deadline - clock())
            verdict = await (self._publish(drafts[0], left) if len(drafts) == 1 else self._publish_batch(drafts, left))
            if isinstance(verdict, int):
                return _committed(drafts, verdict)
            looked_at, doubt, reason = _after_retry(verdict, drafts, reason)
            await _pause(pause, deadline)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        return Unknown(f"no definite answer before the deadline: {reason}")

    async def _look(
        self, looked_at: Sequence[Draft], drafts: Sequence[Draft], doubt: _Doubt, seconds: float
    ) -> Committed | Conflict | None:
        """Whether the log moved on from our guards, by us or by another; None where it did not."""
        requests = self._requests
        if doubt.duplicate_of and len(drafts) == 1:
            stored = await message_at(requests, EVENTS_STREAM, doubt.duplicate_of, seconds=seconds)
            return None if stored is None else self._fate(stored, drafts, drafts[0])
        for draft in looked_at:
            # Our guard allows us no place but the first after it.
            stored = await next_message(
                requests, EVENTS_STREAM, draft.subject, draft.record.parent_seq + 1, seconds=seconds
            )
            if stored is not None:
                return self._fate(stored, drafts, draft)
        return None

    def _fate(self, stored: StoredMessage, drafts: Sequence[Draft], draft: Draft) -> Committed | Conflict:
        """What the message that stands where `draft` would stand means for all `drafts`."""
        try:
            commit = decoded(stored.subject, stored.seq, stored.data)
        except UnreadableMessageError:
            return Conflict()  # none of ours: we can read what we write
        if commit.record.command_id != draft.record.command_id or commit.aggregate != draft.aggregate:
            return Conflict()
        if len(drafts) == 1:
            return Committed((commit,))
        if commit.record.batch != draft.record.batch or commit.record.batch is None:
            return Conflict()  # the same command, in another batch
        return _committed(drafts, commit.seq + len(drafts) - commit.record.batch.index)

    async def load[S](
        self,
        aggregate: Aggregate[S],
        key: str,
        until: int | None = None,
        *,
        min_seq: int = 0,
        seconds: float = READ_SECONDS,
    ) -> Chain[S]:
        if until is not None:
            return await self._chains.load_until(aggregate, key, until, seconds=seconds)
        return await self._chains.load(aggregate, key, min_seq=min_seq, seconds=seconds)

    async def sequence_at(self, time: datetime) -> int:
        return await sequence_at(self._requests, time, end=await self.last_seq())

    def saw(self, aggregate: str, key: str, seq: int) -> None:
        self.floors.saw(aggregate_subject(aggregate, key), seq)

    def seen(self, aggregate: str, key: str) -> int:
        return self.floors.of(aggregate_subject(aggregate, key))

    async def load_at[S](self, aggregate: Aggregate[S], key: str, workload_id: str) -> Chain[S] | None:
        return await self._chains.load_at(aggregate, key, workload_id)

    def commits(
        self, aggregate: Aggregate[Any], key: str, *, after_seq: int, until_seq: int
    ) -> AsyncGenerator[list[Commit], None]:
        return self._chains.commits(aggregate, key, after_seq=after_seq, until_seq=until_seq)

    async def stand_before(self, unreadable: UnreadableMessageError, on_standing: OnStanding) -> None:
        await self.voids.stand_before(unreadable, on_standing)

    async def examine(self, seq: int) -> Unreadable | None:
        return await self._chains.examine(seq)

    @property
    def known_seq(self) -> int:
        return self.floors.known_seq

    async def last_seq(self, *, aggregates: Sequence[str] = ()) -> int:
        if not aggregates:
            return await self.floors.last_seq(seconds=READ_SECONDS)
        filters = [aggregate_filter(name) for name in aggregates]
        newest = [await self.floors.newest(f, seconds=READ_SECONDS) for f in filters]
        return max(0 if message is None else message.seq for message in newest)

    async def log_id(self) -> str:
        """What tells this log from any other: when its stream was created."""
        return (await stream_info(self._requests, EVENTS_STREAM, seconds=READ_SECONDS)).created

    async def fullness(self) -> float:
        """How much of its limit the log uses, 0 to 1."""
        info = await stream_info(self._requests, EVENTS_STREAM, seconds=READ_SECONDS)
        return info.state.bytes / info.config.max_bytes if info.config.max_bytes > 0 else 0.0

    async def follow(
        self, after_seq: int, *, aggregates: Sequence[str] = (), idle_seconds: float = 1.0
    ) -> AsyncGenerator[list[Commit], None]:
        filters = [aggregate_filter(name) for name in aggregates]

        def place(seq: int) -> Follower:
            return Follower(self._nc, self._requests, self.voids, after_seq=seq, filters=filters)

        readings = self._readings
        follower: Follower | Reading
        if readings is None:
            follower = place(after_seq)
        else:
            follower = Reading(readings, place, self._nc, self.voids, after_seq=after_seq, filters=filters)
        try:
            while True:
                yield await follower.next(idle_seconds)
        finally:
            await follower.close()


def _batch_headers(batch_id: str, number: int, guard: int) -> bytes:
    """Of one of the messages of a batch that do not end it."""
    return header_block({_BATCH_ID: batch_id, _BATCH_SEQUENCE: str(number), GUARD: str(guard)})


def _committed(drafts: Sequence[Draft], last_seq: int) -> Committed:
    """The messages of a batch stand one behind the other, and its answer names the last."""
    first = last_seq - len(drafts) + 1
    return Committed(tuple(draft.committed(first + number) for number, draft in enumerate(drafts)))


def _after_retry(
    verdict: Conflict | Rejected | _Doubt, drafts: Sequence[Draft], reason: str
) -> tuple[Sequence[Draft], _Doubt, str]:
    """Where to look next. After a doubt, neither a conflict nor a rejection of the repeated publish tells whether the
    first one was stored: the chain does.
    """
    match verdict:
        case Conflict():
            return drafts, _Doubt(reason), reason
        case Rejected():
            return (
                drafts[:1],
                _Doubt(verdict.message),
                f"after a lost answer, the repetition was refused: {verdict.message}",
            )
        case _Doubt():
            return drafts[:1], verdict, verdict.reason


async def _pause(seconds: float, deadline: float) -> None:
    left = deadline - asyncio.get_running_loop().time()
    await asyncio.sleep(max(0.0, min(left, seconds * (0.5 + random.random()))))  # noqa: S311 (jitter)
