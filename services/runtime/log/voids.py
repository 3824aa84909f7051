"""Reading messages of the log where some of them may be unreadable, and which of those were declared void.

A void is a record on `ev.void.<sequence>`. Readers know all voids from before they read; one that meets a message it
cannot read stops before it, and looks from time to time whether it was declared void meanwhile. Nothing else is passed
by: each reader looks itself whether what was declared void can be read, and doubts the record where it can.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog
from prometheus_client import Gauge

from events.aggregate import VOID
from events.commit import Commit
from events.subjects import EVENTS_STREAM, aggregate_filter
from events.void import nothing_at
from services.runtime.log.examination import READ_MESSAGES, READ_SECONDS, decoded, why_unreadable
from services.runtime.log.store import LogUnavailableError, OnStanding, UnreadableMessageError
from services.runtime.nats.jetstream_api import StoredMessage, message_at, next_message, next_messages
from services.runtime.nats.requests import Requests

FIRST_PAUSE_SECONDS: Final = 0.25
LONGEST_PAUSE_SECONDS: Final = 5.0
"""Between two looks for the void of a message that nothing can go on without. A person takes minutes."""
DOUBTED_TODO: Final = "somebody wrote the record past `commands`; give that service new credentials"

type SubjectOf = Callable[[str], str]
"""What people call the actor of an id."""

_STANDS: Final = Gauge("muster_log_unreadable_sequence", "Message of the log that this process stands before; 0: none")
_DOUBTED: Final = Gauge("muster_log_doubted_voids", "Records that declare void what can be read; they are not honoured")

log = structlog.get_logger(__name__)


class UndecidedVoidError(Exception):
    """A message was declared void, and nobody here has looked at it yet: `Voids.honours` does."""

    def __init__(self, seq: int) -> None:
        super().__init__(f"message {seq} was declared void, which is not looked at yet")
        self.seq = seq


class Voids:
    """The messages that were declared void, by sequence."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._declared: dict[int, Commit] = {}
        """The record of each."""
        self._judged: dict[int, Commit | None] = {}
        """Nothing, to stand in the place of what cannot be read; None where it can be, and the record is doubted."""
        self._seen_seq = 0
        """Of the newest void that was read."""
        self._read_once = False

    async def read(self) -> None:
        """Take in what was declared since, from the log's leader. Raises LogUnavailableError."""
        while message := await next_message(
            self._requests, EVENTS_STREAM, aggregate_filter(VOID.name), self._seen_seq + 1, seconds=READ_SECONDS
        ):
            self._take(message)
            # What the leader has none behind is the end; until then, many at once from any.
            many, _ = await next_messages(
                self._requests,
                EVENTS_STREAM,
                aggregate_filter(VOID.name),
                self._seen_seq + 1,
                READ_MESSAGES,
                seconds=READ_SECONDS,
            )
            for more in many:
                self._take(more)
        self._read_once = True

    def _take(self, message: StoredMessage) -> None:
        self._seen_seq = message.seq
        try:
            self.learn(decoded(message.subject, message.seq, message.data))
        except UnreadableMessageError as error:  # this one declares nothing
            log.warning("void_not_read", seq=message.seq, error=str(error))

    def learn(self, void: Commit) -> int | None:
        """Take in a record that a follower of the log met; the message that it is about."""
        for event in void.events:
            if void.key == str(event.seq):
                self._declared.setdefault(event.seq, void)
                return event.seq
        return None

    async def read_once(self) -> None:
        """As `read`, where it was never done."""
        if not self._read_once:
            await self.read()

    async def honours(self, seq: int) -> bool:
        """Whether a message is void: it was declared so, and cannot be read. Raises UnreadableMessageError where one
        before it on the same subject cannot be read either, LogUnavailableError.
        """
        if seq not in self._declared:
            return False
        if seq not in self._judged:
            await self._judge(seq)
        return self._judged[seq] is not None

    async def _judge(self, seq: int) -> None:
        """What stands in its place follows from the log, not from what the record says of it."""
        message = await message_at(self._requests, EVENTS_STREAM, seq, seconds=READ_SECONDS)
        if message is None:
            raise LogUnavailableError(f"message {seq}, which was declared void, is not in the log")
        found = await why_unreadable(self._requests, message, self.read_commit)
        void = self._declared[seq]
        if found is not None:
            self._judged[seq] = nothing_at(seq, found, void)
        elif seq not in self._judged:
            self._judged[seq] = None
            log.error("void_doubted", seq=seq, subject=message.subject, void_seq=void.seq, todo=DOUBTED_TODO)
            _DOUBTED.inc()

    def declared_by(self) -> set[str]:
        """Actor ids of those who declared something void."""
        return {void.record.actor.id for void in self._declared.values()}

    def told(self, subject_of: SubjectOf) -> list[str]:
        """A sentence about each that is honoured."""
        return [self._told(seq, subject_of) for seq in sorted(self._judged) if self._judged[seq] is not None]

    def doubted(self, subject_of: SubjectOf) -> list[str]:
        """A sentence about each that is not."""
        but = f"But it can be read, and counts: {DOUBTED_TODO}"
        return [
            f"{self._told(seq, subject_of)} (record {self._declared[seq].seq}). {but}"
            for seq in sorted(self._judged)
            if self._judged[seq] is None
        ]

    def _told(self, seq: int, subject_of: SubjectOf) -> str:
        void = self._declared[seq]
        event = next(event for event in void.events if event.seq == seq)
        return (
            f"message {seq} ({event.subject}) was declared void by {subject_of(void.record.actor.id)} at "
            f"{void.record.occurred_at:%Y-%m-%d %H:%M:%S} UTC: {event.reason}"
        )

    def commit(self, subject: str, seq: int, payload: bytes) -> Commit:
        """A message of the log, or nothing in its place where it is void. Raises UnreadableMessageError,
        UndecidedVoidError.
        """
        if seq in self._declared:
            if seq not in self._judged:
                raise UndecidedVoidError(seq)
            if nothing := self._judged[seq]:
                return nothing
        return decoded(subject, seq, payload)

    async def read_commit(self, message: StoredMessage) -> Commit:
        """As `commit`, having looked at what was declared void. Raises UnreadableMessageError, LogUnavailableError."""
        await self.honours(message.seq)
        return self.commit(message.subject, message.seq, message.data)

    async def stand_before(self, unreadable: UnreadableMessageError, on_standing: OnStanding) -> None:
        """Alarm, and wait until the message is declared void."""
        log.error(
            "log_unreadable",
            seq=unreadable.seq,
            subject=unreadable.subject,
            cause=unreadable.cause,
            todo=unreadable.todo,
        )
        _STANDS.set(unreadable.seq)
        on_standing(unreadable)
        pause = FIRST_PAUSE_SECONDS
        while not await self._is_void_now(unreadable.seq):
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        _STANDS.set(0)
        on_standing(None)
        log.warning("log_goes_on", seq=unreadable.seq)

    async def _is_void_now(self, seq: int) -> bool:
        try:
            await self.read()
            return await self.honours(seq)
        except LogUnavailableError as error:
            log.info("voids_not_read", error=str(error))
            return False
