"""Reading streams as they are stored, for a backup: sequence, subject, time, headers and payload of every message.

Nothing is decoded, so a message that nobody can read is backed up like any other. Writers are not held up.
"""

import asyncio
import base64
import contextlib
from collections.abc import AsyncGenerator
from datetime import datetime
from typing import Final

import msgspec

from events.subjects import ALL_EVENTS, EVENTS_STREAM
from services.runtime.backup.archive import BackupError, Message
from services.runtime.nats.calls import call
from services.runtime.nats.jetstream_api import (
    NO_MESSAGE_CODE,
    NO_STREAM_CODE,
    ApiError,
    JetStreamError,
    StreamInfo,
    stream_info,
)
from services.runtime.nats.requests import Requests, UnansweredError
from services.runtime.nats.wire import Taken, headers_of

AT_ONCE: Final = 1_000
"""Messages of one answer."""
SINGLE_AT_ONCE: Final = 64
"""Requests for single messages on their way."""
ANSWER_SECONDS: Final = 10.0
TRIES: Final = 8
"""With pauses that double, half a minute: a cluster that has lost its leader is back after a third of that."""
FIRST_PAUSE_SECONDS: Final = 0.1
_OF_ANSWERS: Final = frozenset(
    {
        "Nats-Stream",
        "Nats-Subject",
        "Nats-Sequence",
        "Nats-Time-Stamp",
        "Nats-Num-Pending",
        "Nats-Last-Sequence",
        "Nats-UpTo-Sequence",
    }
)
"""Headers that the server adds where it answers with a stored message."""


class _Stored(msgspec.Struct, frozen=True):
    subject: str
    seq: int
    time: str
    hdrs: str = ""
    data: str = ""


class _Answer(msgspec.Struct, frozen=True):
    message: _Stored | None = None
    error: ApiError | None = None


_ANSWER: Final = msgspec.json.Decoder(_Answer)


class Source:
    """Streams of a server."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    async def info(self, stream: str) -> StreamInfo:
        """As the stream's leader has it. Raises UnansweredError, JetStreamError; BackupError where there is none."""
        pause = FIRST_PAUSE_SECONDS
        for _ in range(TRIES - 1):
            with contextlib.suppress(UnansweredError):
                return await self._info(stream)
            await asyncio.sleep(pause)
            pause *= 2
        return await self._info(stream)

    async def _info(self, stream: str) -> StreamInfo:
        try:
            return await stream_info(self._requests, stream, seconds=ANSWER_SECONDS)
        except JetStreamError as error:
            if error.error.err_code != NO_STREAM_CODE:
                raise
            # Streams that are new with a version are made when it starts.
            why = f"there is no stream {stream}: an earlier version made this installation, or the stream was removed"
            raise BackupError(f"{why}; start the services of this version once, then repeat this command") from None

    async def log(self, first: int, last: int) -> AsyncGenerator[list[Message], None]:
        """Messages of the log from one sequence to another, all of them. Raises BackupError where one is missing."""
        wanted, failures, pause = first, 0, FIRST_PAUSE_SECONDS
        while wanted <= last:
            try:
                messages = await self._several(wanted, min(AT_ONCE, last - wanted + 1))
            except UnansweredError as error:
                # A message without a payload ends an answer of several before its end.
                messages = await self._one_by_one(wanted, min(AT_ONCE, last - wanted + 1), error)
            if not messages:
                failures += 1
                if failures == TRIES:
                    raise BackupError(f"the log has no message {wanted}: it has a gap")
                await asyncio.sleep(pause)  # a replica that was asked may be behind
                pause *= 2
                continue
            failures, pause = 0, FIRST_PAUSE_SECONDS
            for number, message in enumerate(messages, start=wanted):
                if message.seq != number:
                    raise BackupError(f"the log goes from {number - 1} to {message.seq}: it has a gap")
            wanted += len(messages)
            yield messages

    async def _several(self, first: int, count: int) -> list[Message]:
        question = msgspec.json.encode({"seq": first, "next_by_subj": ALL_EVENTS, "batch": count})
        answer = await self._requests.ask_many(call("DIRECT.GET", EVENTS_STREAM), question, seconds=ANSWER_SECONDS)
        answer.pop()
        return [_of_answer(message) for message in answer]

    async def _one_by_one(self, first: int, count: int, error: UnansweredError) -> list[Message]:
        """From the leader, up to the first without a payload. Raises `error` where that does not answer either."""
        messages: list[Message] = []
        for seq in range(first, first + count):
            try:
                message = await self._at(EVENTS_STREAM, seq)
            except UnansweredError:
                if messages:
                    return messages
                raise error from None
            if message is None:
                return messages
            messages.append(message)
            if not message.data:
                return messages
        return messages

    async def stream(self, stream: str, info: StreamInfo) -> AsyncGenerator[Message, None]:
        """What a stream holds, of that which it held when it was asked; what is gone meanwhile is left out."""
        state = info.state
        for start in range(max(state.first_seq, 1), state.last_seq + 1, SINGLE_AT_ONCE):
            seqs = range(start, min(start + SINGLE_AT_ONCE, state.last_seq + 1))
            for message in await asyncio.gather(*(self._at(stream, seq) for seq in seqs)):
                if message is not None:
                    yield message

    async def _at(self, stream: str, seq: int) -> Message | None:
        pause, tries = FIRST_PAUSE_SECONDS, TRIES
        while True:
            try:
                return await self._asked(stream, seq)
            except UnansweredError:
                tries -= 1
                if not tries:
                    raise
                await asyncio.sleep(pause)
                pause *= 2

    async def _asked(self, stream: str, seq: int) -> Message | None:
        question = msgspec.json.encode({"seq": seq})
        answer = _ANSWER.decode(
            await self._requests.ask(call("STREAM.MSG.GET", stream), question, seconds=ANSWER_SECONDS)
        )
        if answer.error is not None:
            if answer.error.err_code == NO_MESSAGE_CODE:
                return None
            raise JetStreamError(answer.error)
        if answer.message is None:
            raise UnansweredError(f"message {seq} of {stream}: an answer without a message")
        found = answer.message
        headers = headers_of(base64.b64decode(found.hdrs)) if found.hdrs else None
        return Message(found.seq, found.subject, whole_time(found.time), headers or {}, base64.b64decode(found.data))


def _of_answer(message: Taken) -> Message:
    headers = message.headers or {}
    return Message(
        int(headers["Nats-Sequence"]),
        headers["Nats-Subject"],
        whole_time(headers["Nats-Time-Stamp"]),
        {name: value for name, value in headers.items() if name not in _OF_ANSWERS},
        message.data,
    )


def whole_time(text: str) -> str:
    """As the server wrote it. Raises BackupError where it is no time."""
    try:
        datetime.fromisoformat(text)
    except ValueError as error:
        raise BackupError(f"the server says that a message was stored at {text!r}") from error
    return text
