"""Where a feed service begins, and what it writes at once: tables."""

from datetime import UTC, datetime, timedelta

import pytest

from events.public.cloudevents import Place
from events.public.publish import FeedMessage
from services.feed.publish import MOST_AT_ONCE, Beginning, FeedEnd, Kept, beginning, next_batch

NOW = datetime(2026, 1, 31, tzinfo=UTC)
FIRST, SECOND = Place(5, 0), Place(9, 3)


def kept(last: Place | None, *, feed: str = "a", feed_seq: int = 4) -> Kept:
    return Kept(previous={}, last=last.text() if last else "", feed=feed, feed_seq=feed_seq)


@pytest.mark.parametrize(
    ("what", "snapshot", "end", "begins"),
    [
        ("all is new", None, FeedEnd("a", 0, None), Beginning(False, None)),
        ("nothing was public so far", kept(None), FeedEnd("a", 0, None), Beginning(True, None)),
        ("no snapshot", None, FeedEnd("a", 4, FIRST), Beginning(False, FIRST)),
        ("the feed is where the snapshot is", kept(FIRST), FeedEnd("a", 4, FIRST), Beginning(True, FIRST)),
        ("another wrote more", kept(FIRST), FeedEnd("a", 9, SECOND), Beginning(True, SECOND)),
        ("a server lost the end", kept(SECOND), FeedEnd("a", 3, FIRST), Beginning(False, FIRST)),
        ("the feed was deleted", kept(SECOND), FeedEnd("b", 0, None), Beginning(False, None)),
        ("written anew in part", kept(SECOND), FeedEnd("b", 3, FIRST), Beginning(False, FIRST)),
        ("all went by age", kept(SECOND), FeedEnd("a", 4, None), Beginning(True, SECOND)),
        (
            "all went by age, more than the snapshot knows",
            kept(SECOND),
            FeedEnd("a", 5, None),
            Beginning(False, None, NOW - timedelta(days=30)),
        ),
        (
            "all went by age, and there is no snapshot",
            None,
            FeedEnd("a", 5, None),
            Beginning(False, None, NOW - timedelta(days=30)),
        ),
    ],
)
def test_where_it_begins(what: str, snapshot: Kept | None, end: FeedEnd, begins: Beginning) -> None:
    assert beginning(snapshot, end, now=NOW, retention_days=30) == begins, what


@pytest.mark.parametrize(
    ("lengths", "cuts"),
    [
        ([3], [3]),
        ([MOST_AT_ONCE], [MOST_AT_ONCE]),
        ([600, 600], [600, 600]),
        ([2 * MOST_AT_ONCE + 1, 5], [MOST_AT_ONCE, MOST_AT_ONCE, 6]),
        ([400, 300, 300, 1], [MOST_AT_ONCE, 1]),
    ],
)
def test_whole_batches_of_the_log_are_written_at_once(lengths: list[int], cuts: list[int]) -> None:
    """Given batches of the log with so many public events each."""
    ends = [seq for seq, length in enumerate(lengths, start=1) for _ in range(length)]
    messages = [FeedMessage(Place(seq, number), "", {}, b"") for number, seq in enumerate(ends)]
    start, found = 0, list[int]()
    while start < len(messages):
        batch = next_batch(messages, start, ends)
        found.append(len(batch))
        start += len(batch)
    assert found == cuts
