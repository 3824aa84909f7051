"""JetStream's answers as structs, and the few questions that the store asks of it.

Written against the server's wire protocol, because nats-py has no batched reads, no atomic batches, and reads its
answers at several times the cost. Only questions; what an answer means for the log is decided by its callers.
"""

import random
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final
from uuid import uuid4

import msgspec

from services.runtime.log.store import LogUnavailableError
from services.runtime.nats.calls import call, consumer_names
from services.runtime.nats.requests import Requests, UnansweredError

NOT_FOUND: Final = 404
UNAVAILABLE: Final = 503
NO_MESSAGE_CODE: Final = 10037
NO_STREAM_CODE: Final = 10059
TAKEN_CODES: Final = frozenset((10013, 10105, 10148))
"""Of a consumer's name: it is another one's."""


class ApiError(msgspec.Struct, frozen=True):
    code: int = 0
    err_code: int = 0
    description: str = ""


class PubAck(msgspec.Struct, frozen=True):
    """What a publish is answered with; of a batch, what its last message is."""

    seq: int = 0
    duplicate: bool = False
    error: ApiError | None = None


class StoredMessage(msgspec.Struct, frozen=True):
    subject: str
    seq: int
    data: bytes = b""
    time: datetime = datetime.fromtimestamp(0, UTC)
    """When the server stored it."""
    headers: bytes = msgspec.field(name="hdrs", default=b"")
    """As they were sent, or with what the server adds (`wire.headers_of`)."""


class _MessageAnswer(msgspec.Struct, frozen=True):
    message: StoredMessage | None = None
    error: ApiError | None = None


class StreamState(msgspec.Struct, frozen=True):
    messages: int = 0
    bytes: int = 0
    first_seq: int = 0
    last_seq: int = 0


class StreamLimits(msgspec.Struct, frozen=True):
    max_bytes: int = -1


class StreamInfo(msgspec.Struct, frozen=True):
    state: StreamState = StreamState()
    created: str = ""
    config: StreamLimits = StreamLimits()
    error: ApiError | None = None


class _Delivered(msgspec.Struct, frozen=True):
    consumer_seq: int = 0
    last_active: datetime | None = None


class ConsumerInfo(msgspec.Struct, frozen=True):
    num_pending: int = 0
    num_ack_pending: int = 0
    delivered: _Delivered = _Delivered()
    error: ApiError | None = None


class JetStreamError(LogUnavailableError):
    """The server answered with an error that the asker has no use for."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(f"{error.description} ({error.err_code})")
        self.error = error


_ACK: Final = msgspec.json.Decoder(PubAck)
_MESSAGE: Final = msgspec.json.Decoder(_MessageAnswer)
_STREAM: Final = msgspec.json.Decoder(StreamInfo)
_CONSUMER: Final = msgspec.json.Decoder(ConsumerInfo)


def decode_ack(payload: bytes) -> PubAck:
    return _ACK.decode(payload)


async def stream_info(requests: Requests, stream: str, *, seconds: float) -> StreamInfo:
    """As the stream's leader has it. Raises UnansweredError, JetStreamError."""
    info = _STREAM.decode(await requests.ask(call("STREAM.INFO", stream), b"", seconds=seconds))
    _raise(info.error)
    return info


async def last_message(requests: Requests, stream: str, subject: str, *, seconds: float) -> StoredMessage | None:
    """The newest message of a subject, as the stream's leader has it. Raises UnansweredError, JetStreamError."""
    return await _message(requests, stream, {"last_by_subj": subject}, seconds)


async def last_as_of(
    requests: Requests, stream: str, subject: str, witness: str, *, seconds: float
) -> tuple[StoredMessage | None, int]:
    """The newest message of a subject as some replica has it, and how far in the stream that replica was just then: 0
    where it has neither the subject nor `witness`. Raises UnansweredError.
    """
    question = msgspec.json.encode({"multi_last": sorted({subject, witness})})
    answer = await requests.ask_many(call("DIRECT.GET", stream), question, seconds=seconds)
    end = answer.pop().headers or {}
    aggregate = subject.removesuffix("*")
    found = [
        StoredMessage(headers["Nats-Subject"], int(headers["Nats-Sequence"]), message.data)
        for message in answer
        if (headers := message.headers or {}) and headers["Nats-Subject"].startswith(aggregate)
    ]
    return max(found, key=lambda message: message.seq, default=None), int(end.get("Nats-UpTo-Sequence", "0"))


async def next_message(
    requests: Requests, stream: str, subject: str, from_seq: int, *, seconds: float
) -> StoredMessage | None:
    """The first message of a subject at or after a sequence, as the leader has it."""
    return await _message(requests, stream, {"seq": from_seq, "next_by_subj": subject}, seconds)


async def message_at(requests: Requests, stream: str, seq: int, *, seconds: float) -> StoredMessage | None:
    return await _message(requests, stream, {"seq": seq}, seconds)


async def _message(
    requests: Requests, stream: str, question: dict[str, str | int], seconds: float
) -> StoredMessage | None:
    payload = msgspec.json.encode(question)
    answer = _MESSAGE.decode(await requests.ask(call("STREAM.MSG.GET", stream), payload, seconds=seconds))
    if answer.error is not None and answer.error.err_code == NO_MESSAGE_CODE:
        return None
    _raise(answer.error)
    return answer.message


async def next_messages(
    requests: Requests,
    stream: str,
    subject: str,
    from_seq: int,
    count: int,
    *,
    seconds: float,
    most_bytes: int | None = None,
) -> tuple[list[StoredMessage], int]:
    """Up to `count` messages of a subject at or after a sequence, and how many more there are, as some replica has it:
    perhaps not yet the newest. Beyond `most_bytes` the answer ends early. Raises UnansweredError.
    """
    bound = {} if most_bytes is None else {"max_bytes": most_bytes}
    question = msgspec.json.encode({"seq": from_seq, "next_by_subj": subject, "batch": count, **bound})
    answer = await requests.ask_many(call("DIRECT.GET", stream), question, seconds=seconds)
    end = answer.pop().headers or {}
    messages: list[StoredMessage] = []
    for message in answer:
        headers = message.headers or {}
        where, seq = headers["Nats-Subject"], int(headers["Nats-Sequence"])
        messages.append(StoredMessage(where, seq, message.data, headers=message.raw_headers))
    return messages, int(end.get("Nats-Num-Pending", "0"))


async def create_consumer(
    requests: Requests,
    stream: str,
    user: str,
    config: Mapping[str, object],
    *,
    filter_subject: str = "",
    seconds: float,
) -> tuple[str, ConsumerInfo]:
    """Make a consumer under one of the names that the user has, and the name. Other instances have the same names, so
    any may be taken. A filter that is given stands in the subject, too, as rights may ask for. Raises UnansweredError
    where none is free, JetStreamError.
    """
    names = consumer_names(user)
    rest = (filter_subject,) if filter_subject else ()
    # Two with the same settings would be one to the server, and each would read half.
    ours: dict[str, object] = {**config, "description": uuid4().hex}
    if filter_subject:
        ours["filter_subject"] = filter_subject
    for name in random.sample(names, len(names)):
        request = msgspec.json.encode({"stream_name": stream, "config": {"name": name, **ours}, "action": "create"})
        subject = call("CONSUMER.CREATE", stream, name, *rest)
        info = _CONSUMER.decode(await requests.ask(subject, request, seconds=seconds))
        if info.error is None or info.error.err_code not in TAKEN_CODES:
            _raise(info.error)
            return name, info
    raise UnansweredError(f"all {len(names)} consumers that {user} may have on {stream} are in use")


async def consumer_info(requests: Requests, stream: str, name: str, *, seconds: float) -> ConsumerInfo:
    info = _CONSUMER.decode(await requests.ask(call("CONSUMER.INFO", stream, name), b"", seconds=seconds))
    _raise(info.error)
    return info


def _raise(error: ApiError | None) -> None:
    if error is None:
        return
    if error.code == UNAVAILABLE:
        raise UnansweredError(error.description)
    raise JetStreamError(error)
