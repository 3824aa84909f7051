"""What is written to FEED next, and where to begin. Pure."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import msgspec

from events.public.cloudevents import Place, place_of
from events.public.publish import FeedMessage

MOST_AT_ONCE: Final = 1_000
"""Messages of one atomic batch; the server's own limit."""


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What a snapshot keeps beside the states: how far the feed had come."""

    previous: dict[str, str]
    """By project, the place of its last event."""
    last: str
    """The place of the last event that was in FEED; empty where there was none."""
    feed: str
    """When that FEED was created."""
    feed_seq: int
    """The last sequence of FEED."""


class FeedEnd(NamedTuple):
    """How far FEED goes, as its leader has it."""

    created: str
    last_seq: int
    place: Place | None
    """Of its last message; None where it holds none."""
    id: str = ""
    """Of its last message."""


class Beginning(NamedTuple):
    """Where a feed service begins."""

    from_snapshot: bool
    written: Place | None
    """All events up to this place are in FEED, or were; None: none is known to be."""
    not_before: datetime | None = None
    """Events of commits before this time are passed by."""


def beginning(kept: Kept | None, end: FeedEnd, *, now: datetime, retention_days: int) -> Beginning:
    """Where to begin, by what FEED holds. A snapshot counts only where all that it takes for written is there."""
    if end.place is not None:
        usable = kept is not None and (not kept.last or place_of(kept.last) <= end.place)
        return Beginning(usable, end.place)
    if end.last_seq == 0:
        # New: all is to be written, from the log's first commit on.
        return Beginning(kept is not None and not kept.last, None)
    if kept is not None and kept.last and (kept.feed, kept.feed_seq) == (end.created, end.last_seq):
        # All messages have gone by their age, and nothing was written since.
        return Beginning(from_snapshot=True, written=place_of(kept.last))
    # What was written is gone by its age, nobody knows how far it went: what FEED would still hold was not written.
    return Beginning(from_snapshot=False, written=None, not_before=now - timedelta(days=retention_days))


def next_batch(messages: Sequence[FeedMessage], start: int, ends: Sequence[int]) -> Sequence[FeedMessage]:
    """The messages from `start` that are written at once: as many whole batches of the log as fit, or the front part of
    one that is too long.

    Args:
        ends: for each message, the sequence at which its batch of the log ends.
    """
    stop = start + MOST_AT_ONCE
    if stop >= len(messages):
        return messages[start:]
    whole = stop
    while whole > start and ends[whole] == ends[whole - 1]:
        whole -= 1
    return messages[start : whole if whole > start else stop]
