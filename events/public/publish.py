"""From a commit to the messages of FEED: what is written there is made here and nowhere else. Pure.

The same log gives the same messages, whoever writes them, whenever: ids come from the commit, never from a place in a
stream, so that they hold also where the log was restored or the feed written anew.
"""

from collections.abc import MutableMapping
from typing import Any, NamedTuple

from events.commit import Commit
from events.public.cloudevents import Place, binary
from events.public.registry import PUBLIC
from events.public.shape import Around, Happening, Told, token
from events.subjects import feed_subject


class FeedMessage(NamedTuple):
    """One message of FEED."""

    place: Place
    subject: str
    headers: dict[str, str]
    payload: bytes


def messages(
    commit: Commit,
    before: Any,
    after: Any,
    around: Around,
    previous: MutableMapping[str, str],
    *,
    written: Place | None = None,
) -> list[FeedMessage]:
    """The public events of one commit, in order.

    Args:
        before: the state of its aggregate, and `after` that which it left.
        around: the rest of the log, up to the commit.
        previous: by project id, the place of its last event; it is brought up to date.
        written: messages up to this place are not made, only counted: at a start they are most, and cost most.
    """
    public = PUBLIC.get(commit.aggregate)
    if public is None:
        return []
    found: list[FeedMessage] = []
    number = 0
    for told in public.tell(Happening(commit, before, after, around)):
        # Of a project without a possible id nobody can be a member.
        if token(told.project_id):
            place = Place(commit.seq, number)
            sequence = place.text()
            if written is None or place > written:
                found.append(_message(commit, told, place, sequence, previous.get(told.project_id, "")))
            previous[told.project_id] = sequence
            number += 1
    return found


def event_id(commit: Commit, told: Told) -> str:
    """Holds also where later versions tell more of the same commit."""
    parts = (commit.record.commit_id, str(told.event_index), type(told.event).__name__)
    part = (str(told.part),) if told.part else ()
    return ".".join((*parts, *part, *((told.project_id,) if told.shared else ())))


def _message(commit: Commit, told: Told, place: Place, sequence: str, previous: str) -> FeedMessage:
    workload_id = told.workload_id if token(told.workload_id) else ""
    headers, payload = binary(
        told.event,
        id_=event_id(commit, told),
        project_id=told.project_id,
        about=workload_id,
        time=commit.record.occurred_at,
        sequence=sequence,
        previous=previous,
    )
    subject = feed_subject(told.project_id, workload_id, type(told.event).__name__)
    return FeedMessage(place, subject, headers, payload)
