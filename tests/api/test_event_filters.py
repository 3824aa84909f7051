"""Where in FEED that stands which a reader may be told."""

import pytest

from services.api.event_filters import Asked
from services.api.feed_ring import Wanted

NOTHING = Wanted()
SOME = Wanted("w", frozenset({"WorkloadSubmitted"}))


@pytest.mark.parametrize(
    ("projects", "wanted", "subject"),
    [
        (None, NOTHING, "feed.*.*.*"),
        (frozenset({"p", "q"}), NOTHING, "feed.*.*.*"),
        (frozenset({"p"}), NOTHING, "feed.p.*.*"),
        (frozenset({"p"}), SOME, "feed.p.w.WorkloadSubmitted"),
        (frozenset(), SOME, None),
    ],
)
def test_a_reader_of_one_project_has_that_read_alone_and_one_of_none_nothing(
    projects: frozenset[str] | None, wanted: Wanted, subject: str | None
) -> None:
    assert Asked("", wanted).subject(projects) == subject


def test_of_others_nothing_is_taken() -> None:
    takes = Asked("", SOME).takes(frozenset({"p"}))
    assert takes("p", "w", "WorkloadSubmitted")
    assert not takes("q", "w", "WorkloadSubmitted")
    assert not takes("p", "v", "WorkloadSubmitted")
    assert not takes("p", "w", "WorkloadDeleted")
    assert Asked("", NOTHING).takes(None)("q", "", "ProjectChanged")
