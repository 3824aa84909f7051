"""From a time to a place in the log: where it stood then."""

from datetime import datetime

from events.commit import BatchPart
from events.subjects import EVENTS_STREAM
from services.runtime.log.examination import READ_SECONDS, decoded
from services.runtime.log.store import MAX_BATCH, UnreadableMessageError
from services.runtime.nats.jetstream_api import StoredMessage, message_at, next_message, stream_info
from services.runtime.nats.requests import Requests

_ANY = ">"
"""Every subject of the stream."""


async def sequence_at(requests: Requests, time: datetime, *, end: int) -> int:
    """The last sequence up to `end` whose message the server had stored by `time`, never within an atomic batch; 0
    where there is none. Sequences without a message are passed over.

    Stored times rise with the sequence, but for as much as the clocks of a cluster's servers differ where another one
    becomes the leader: then it is right to within that. Raises LogUnavailableError.
    """
    first = (await stream_info(requests, EVENTS_STREAM, seconds=READ_SECONDS)).state.first_seq
    low, high = max(first, 1), end
    newest: StoredMessage | None = None
    while low <= high:
        middle = (low + high) // 2
        message = await next_message(requests, EVENTS_STREAM, _ANY, middle, seconds=READ_SECONDS)
        if message is None or message.seq > high or message.time > time:
            high = middle - 1
        else:
            newest, low = message, message.seq + 1
    return 0 if newest is None else await _behind_whole_batch(requests, newest)


async def _behind_whole_batch(requests: Requests, message: StoredMessage) -> int:
    """The message's sequence, or that before its atomic batch where the batch goes on behind it. What cannot be read
    may stand within one: what stands before it tells.
    """
    for seq in range(message.seq, max(message.seq - MAX_BATCH, 0), -1):
        earlier = (
            message if seq == message.seq else await message_at(requests, EVENTS_STREAM, seq, seconds=READ_SECONDS)
        )
        if earlier is None:
            break
        try:
            part: BatchPart | None = decoded(earlier.subject, seq, earlier.data).record.batch
        except UnreadableMessageError:
            continue
        if part is not None and seq - part.index + part.count > message.seq:
            return seq - part.index
        break
    return message.seq
