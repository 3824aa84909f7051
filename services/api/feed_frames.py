"""What stands in a stream of server-sent events, and the ids by which a reader goes on. Pure.

An id is the place of an event in the log, and a mark of the commit there: the same after FEED was written anew, and no
other log has the same one at the same place.
"""

import hashlib
import re
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from events.codec import UNDECODABLE
from events.public.cloudevents import PREFIX, Place, as_json, attributes_of, place_of
from events.subjects import split_feed_subject
from services.api.feed_ring import Entry
from services.api.issues import BadValueError, shown
from services.runtime.nats.jetstream_api import StoredMessage
from services.runtime.nats.wire import headers_of

MEDIA: Final = "text/event-stream"
RETRY_MILLISECONDS: Final = 2_000
"""After which a browser connects again."""
LAST_NUMBER: Final = 999_999
"""Behind every event of one commit."""
_MARK_DIGITS: Final = 8
NO_MARK: Final = "0" * _MARK_DIGITS
"""Of the beginning of the log, where there is no commit."""
_ID: Final = re.compile(r"([0-9]{1,16}\.[0-9]{1,6})-([0-9a-f]{8})")


type Takes = Callable[[str, str, str], bool]
"""Whether an event of a project, about a workload (or none: empty), of a type is wanted."""


def everything(_project_id: str, _workload_id: str, _type: str) -> bool:
    return True


class UnreadableEventError(Exception):
    """A message of FEED that is no public event: somebody else wrote it."""


class _Named(msgspec.Struct):
    commit_id: str = ""


class Position(msgspec.Struct, frozen=True):
    """Where a reader is: behind a place."""

    place: Place
    mark: str

    def text(self) -> str:
        return f"{self.place.text()}-{self.mark}"


def read_position(given: str) -> Position:
    """Of an id. Raises BadValueError."""
    found = _ID.fullmatch(given)
    if found is None:
        raise BadValueError(
            f"{shown(given)} is no id of an event of this stream; give the last one that it sent, such as "
            f"{Position(Place(4711, 0), 'a1b2c3d4').text()}, or leave it out"
        )
    return Position(place_of(found[1]), found[2])


def mark_of(commit_id: str) -> str:
    return hashlib.sha256(commit_id.encode()).hexdigest()[:_MARK_DIGITS]


def mark_in(message: StoredMessage) -> str:
    """Of a message of the log, also of one that cannot be read otherwise."""
    try:
        return mark_of(msgspec.json.decode(message.data, type=_Named).commit_id)
    except UNDECODABLE:
        return mark_of("")


def entry_of(message: StoredMessage) -> Entry:
    """A message of FEED. Raises UnreadableEventError."""
    headers = headers_of(message.headers) or {}
    try:
        project_id, workload_id, kind = split_feed_subject(message.subject)
        ours = {name: value for name, value in headers.items() if name.startswith(PREFIX)}
        attributes = attributes_of(ours)
        place = place_of(attributes["sequence"])
        id_ = Position(place, mark_of(attributes["id"].partition(".")[0])).text()
        event = as_json(ours, message.data)
    except (ValueError, KeyError) as error:
        raise UnreadableEventError(f"message {message.seq} of FEED is no public event: {error}") from error
    frame = b"id: %s\ndata: %s\n\n" % (id_.encode(), event)
    return Entry(place, id_, project_id, workload_id, kind, frame)


def entries_of(messages: Iterable[StoredMessage], takes: Takes) -> list[Entry]:
    """Those messages of FEED that are wanted; the others are not read. Raises UnreadableEventError."""
    return [entry_of(message) for message in messages if takes(*_about(message))]


def _about(message: StoredMessage) -> tuple[str, str, str]:
    try:
        return split_feed_subject(message.subject)
    except ValueError as error:
        raise UnreadableEventError(f"message {message.seq} of FEED is no public event: {error}") from error


def opening(position: Position) -> bytes:
    """With where the reader is, so that it misses nothing if it is cut off before the first event."""
    return b"retry: %d\nid: %s\n\n" % (RETRY_MILLISECONDS, position.text().encode())


def heartbeat(id_: str) -> bytes:
    """With how far the reader is, also where no event was for it."""
    return b": heartbeat\nid: %s\n\n" % id_.encode()


def about_stream(name: str, message: str, **more: str) -> bytes:
    """A named event about the stream itself."""
    data = msgspec.json.encode({"code": name, "message": message, **more})
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data)


def the_end(code: str, message: str) -> bytes:
    """The last event."""
    return b"event: end\ndata: %s\n\n" % msgspec.json.encode({"code": code, "message": message})
