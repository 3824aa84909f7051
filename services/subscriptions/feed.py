"""The stream FEED as far as subscriptions need it: places in it, and consumers."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from events.public.cloudevents import Place
from events.subjects import FEED_STREAM, feed_filter
from services.runtime.nats.calls import UNACKNOWLEDGED, call
from services.runtime.nats.declared import NANOSECONDS
from services.runtime.nats.feed import first_from, place_in
from services.runtime.nats.jetstream_api import (
    TAKEN_CODES,
    UNAVAILABLE,
    ApiError,
    JetStreamError,
    StreamInfo,
    StreamState,
    message_at,
    stream_info,
)
from services.runtime.nats.requests import Requests, UnansweredError

ACK_SECONDS: Final = 30
"""After which a message that was not acknowledged comes again."""
MAX_WAITING: Final = 16
"""Pulls that may wait at once."""
REQUEST_SECONDS: Final = 3.0
REWIND_SECONDS: Final = 1.0
"""The server waits 2 s for the answer to a sign-in."""
CONSUMER_NOT_FOUND: Final = 10014


class _Floor(msgspec.Struct, frozen=True):
    stream_seq: int = 0


class _Consumer(msgspec.Struct, frozen=True):
    name: str = ""
    ack_floor: _Floor = _Floor()


class _Consumers(msgspec.Struct, frozen=True):
    total: int = 0
    consumers: list[_Consumer] = []
    error: ApiError | None = None


class _Done(msgspec.Struct, frozen=True):
    error: ApiError | None = None


class Feed:
    """Asks the stream's leader. Everything raises UnansweredError and JetStreamError."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    async def info(self) -> StreamInfo:
        return await stream_info(self._requests, FEED_STREAM, seconds=REQUEST_SECONDS)

    async def place_at(self, seq: int) -> Place | None:
        """Of the message with this sequence; None where there is none any more."""
        message = await message_at(self._requests, FEED_STREAM, seq, seconds=REQUEST_SECONDS)
        return None if message is None else place_in(message)

    async def first_from(self, place: Place, state: StreamState) -> int:
        """Sequence of the first message at or behind this place, or the next that will be stored."""
        return await first_from(self._requests, place, state)

    async def consumers(self) -> dict[str, int]:
        """All there are, with the sequence up to which everything was acknowledged."""
        found: dict[str, int] = {}
        while True:
            offset = len(found)
            question = msgspec.json.encode({"offset": offset})
            payload = await self._requests.ask(call("CONSUMER.LIST", FEED_STREAM), question, seconds=REQUEST_SECONDS)
            page = msgspec.json.decode(payload, type=_Consumers)
            _raise(page.error)
            found.update((consumer.name, consumer.ack_floor.stream_seq) for consumer in page.consumers)
            if len(found) >= page.total or len(found) == offset:
                return found

    async def make(self, subscription_id: str, project_id: str, from_seq: int) -> bool:
        """Make the consumer of a subscription; False where it is there already."""
        filter_subject = feed_filter(project_id)
        config = {
            "durable_name": subscription_id,
            "name": subscription_id,
            "filter_subject": filter_subject,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": from_seq,
            "ack_policy": "explicit",
            "ack_wait": ACK_SECONDS * NANOSECONDS,
            "max_ack_pending": UNACKNOWLEDGED,
            "max_waiting": MAX_WAITING,
        }
        subject = call("CONSUMER.CREATE", FEED_STREAM, subscription_id, filter_subject)
        error = await self._do(subject, {"stream_name": FEED_STREAM, "config": config, "action": "create"})
        if error is not None and error.err_code in TAKEN_CODES:
            return False
        _raise(error)
        return True

    async def reset(self, subscription_id: str, seq: int) -> None:
        """Have its consumer go on with this sequence."""
        _raise(await self._do(call("CONSUMER.RESET", FEED_STREAM, subscription_id), {"seq": seq}))

    async def rewind(self, subscription_id: str) -> None:
        """Have its consumer go on behind what was acknowledged, with all before it. Where there is no consumer, nobody
        answers.
        """
        subject = call("CONSUMER.RESET", FEED_STREAM, subscription_id)
        _raise(await self._do(subject, None, seconds=REWIND_SECONDS))

    async def delete(self, subscription_id: str) -> None:
        """Delete its consumer, if there is one."""
        error = await self._do(call("CONSUMER.DELETE", FEED_STREAM, subscription_id), None)
        if error is None or error.err_code != CONSUMER_NOT_FOUND:
            _raise(error)

    async def _do(
        self, subject: str, request: Mapping[str, Any] | None, *, seconds: float = REQUEST_SECONDS
    ) -> ApiError | None:
        payload = b"" if request is None else msgspec.json.encode(request)
        return msgspec.json.decode(await self._requests.ask(subject, payload, seconds=seconds), type=_Done).error


def _raise(error: ApiError | None) -> None:
    if error is None:
        return
    if error.code == UNAVAILABLE:
        raise UnansweredError(error.description)
    raise JetStreamError(error)
