"""Reading messages of the log where some of them may be unreadable, and which of those were declared void.

A void is a record on `ev.void.<sequence>`. Readers know all voids from before they read; one that meets a message it
cannot read stops before it, and looks from time to time whether it was declared void meanwhile. Nothing else is passed
by.
"""

import asyncio
from typing import Final

import structlog
from prometheus_client import Gauge

from events.aggregate import VOID
from events.codec import decode_commit
from events.commit import Commit
from events.subjects import EVENTS_STREAM, aggregate_filter
from events.void import nothing_at
from services.runtime.jetstream_api import next_message
from services.runtime.requests import Requests
from services.runtime.store import MAX_BATCH, LogUnavailableError, OnStanding, UnreadableMessageError

READ_SECONDS: Final = 5.0
FIRST_PAUSE_SECONDS: Final = 0.25
LONGEST_PAUSE_SECONDS: Final = 5.0
"""Between two looks for the void of a message that nothing can go on without. A person takes minutes."""
CAUSE_CHARACTERS: Final = 500
"""Of an error's text, which may repeat what stands in the message."""

_STANDS: Final = Gauge("muster_log_unreadable_sequence", "Message of the log that this process stands before; 0: none")

log = structlog.get_logger(__name__)


class Voids:
    """The messages that were declared void, by sequence."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._nothing: dict[int, Commit] = {}
        self._declared: dict[int, Commit] = {}
        self._seen_seq = 0
        """Of the newest void that was read."""
        self._read_once = False

    async def read(self) -> None:
        """Take in what was declared since, from the log's leader. Raises LogUnavailableError."""
        while message := await next_message(
            self._requests, EVENTS_STREAM, aggregate_filter(VOID.name), self._seen_seq + 1, seconds=READ_SECONDS
        ):
            self._seen_seq = message.seq
            try:
                void = decode_commit(message.subject, message.seq, message.data)
            except Exception as error:  # noqa: BLE001 - whatever it is: this one declares nothing
                log.warning("void_not_read", seq=message.seq, error=str(error))
                continue
            self.learn(void)
        self._read_once = True

    def learn(self, void: Commit) -> None:
        """Take in a record that a follower of the log met."""
        if void.events and void.key == str(void.events[0].seq):
            nothing = nothing_at(void)
            self._nothing.setdefault(nothing.seq, nothing)
            self._declared.setdefault(nothing.seq, void)

    async def read_once(self) -> None:
        """As `read`, where it was never done."""
        if not self._read_once:
            await self.read()

    def __contains__(self, seq: int) -> bool:
        return seq in self._nothing

    def told(self) -> list[str]:
        """A sentence about each."""
        return [
            f"message {seq} ({void.events[0].subject}) was declared void by {void.record.actor.sub} at "
            f"{void.record.occurred_at:%Y-%m-%d %H:%M:%S} UTC: {void.events[0].reason}"
            for seq, void in sorted(self._declared.items())
        ]

    def commit(self, subject: str, seq: int, payload: bytes) -> Commit:
        """A message of the log, or nothing in its place where it is void. Raises UnreadableMessageError."""
        void = self._nothing.get(seq)
        if void is not None:
            return void
        try:
            commit = decode_commit(subject, seq, payload)
        except Exception as error:
            # Codecs, upcasters and the interpreter's own limits fail in many ways, and all mean the same here.
            raise UnreadableMessageError(seq, subject, f"{type(error).__name__}: {error}"[:CAUSE_CHARACTERS]) from error
        part = commit.record.batch
        if part is not None and not 1 <= part.index <= part.count <= MAX_BATCH:
            raise UnreadableMessageError(seq, subject, f"part {part.index} of {part.count} of an atomic batch")
        return commit

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
        while unreadable.seq not in self._nothing:
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            try:
                await self.read()
            except LogUnavailableError as error:
                log.info("voids_not_read", error=str(error))
        _STANDS.set(0)
        on_standing(None)
        log.warning("log_goes_on", seq=unreadable.seq)
