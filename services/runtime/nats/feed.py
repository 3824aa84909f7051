"""Places in FEED: where in the log its messages stand, and where in it a place of the log is."""

from typing import Final

from events.public.cloudevents import PREFIX, Place, place_of
from events.subjects import FEED_STREAM
from services.runtime.nats.jetstream_api import StoredMessage, StreamState, next_message
from services.runtime.nats.requests import Requests
from services.runtime.nats.wire import headers_of

BEGIN: Final = Place(0, 0)
"""Before every event."""
REQUEST_SECONDS: Final = 3.0
ANY: Final = ">"


def place_in(message: StoredMessage) -> Place:
    """Where a message of FEED stands in the log; BEGIN where it does not say."""
    try:
        return place_of((headers_of(message.headers) or {}).get(f"{PREFIX}sequence", ""))
    except ValueError:
        return BEGIN


async def first_from(requests: Requests, place: Place, state: StreamState) -> int:
    """Sequence in FEED of the first message at or behind this place, or the next that will be stored. As the leader has
    it. Raises UnansweredError, JetStreamError.
    """
    low, high = max(state.first_seq, 1), state.last_seq + 1
    while low < high:
        middle = (low + high) // 2
        message = await next_message(requests, FEED_STREAM, ANY, middle, seconds=REQUEST_SECONDS)
        if message is None or place_in(message) >= place:
            high = middle
        else:
            low = message.seq + 1
    return low
