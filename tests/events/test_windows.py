"""Windows of a project, by the clock of a zone; also where clocks are set forward and back (issue 14 section 2)."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from events.windows import DAYS, MINUTES_OF_A_DAY, StartWindows, Window, is_zone, read_window, state_at, window_text

NIGHTS = StartWindows(zone="Europe/Berlin", windows=(read_window("Mon-Fri 20:00-06:00"),))


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("now", "is_open", "changes_at"),
    [
        # A Monday in winter: 20:00 in Berlin is 19:00 UTC.
        ("2026-03-02T18:59:59", False, "2026-03-02T19:00"),
        ("2026-03-02T19:00", True, "2026-03-03T05:00"),
        ("2026-03-03T04:59:59", True, "2026-03-03T05:00"),
        ("2026-03-03T05:00", False, "2026-03-03T19:00"),
        # Friday's ends on Saturday, and the next opens on Monday.
        ("2026-03-07T04:00", True, "2026-03-07T05:00"),
        ("2026-03-07T05:00", False, "2026-03-09T19:00"),
        # In summer 20:00 is 18:00 UTC.
        ("2026-07-01T18:00", True, "2026-07-02T04:00"),
        # Clocks are set forward on Sunday, 2026-03-29: the window of Monday is the first by the new time.
        ("2026-03-28T05:00", False, "2026-03-30T18:00"),
    ],
)
def test_a_window_opens_and_closes_by_the_clock_of_its_zone(now: str, changes_at: str, *, is_open: bool) -> None:
    assert state_at(NIGHTS, utc(now)) == (is_open, utc(changes_at))


CHANGES: list[tuple[str, str, str, str]] = [
    # The night in which 02:00 becomes 03:00: it has an hour less.
    ("Sat 22:00-06:00", "2026-03-28T21:00", "2026-03-28T21:00", "2026-03-29T04:00"),
    # 02:30 is not there: the window closes at 03:30, which is as much later.
    ("Sat 22:00-02:30", "2026-03-28T21:00", "2026-03-28T21:00", "2026-03-29T01:30"),
    ("Sun 02:30-04:00", "2026-03-29T01:45", "2026-03-29T01:30", "2026-03-29T02:00"),
    # The night in which 03:00 becomes 02:00: it has an hour more.
    ("Sat 22:00-06:00", "2026-10-24T20:00", "2026-10-24T20:00", "2026-10-25T05:00"),
    # 02:30 is there twice: it closes at the last of the two, and opens at the first.
    ("Sat 22:00-02:30", "2026-10-24T20:00", "2026-10-24T20:00", "2026-10-25T01:30"),
    ("Sun 02:30-04:00", "2026-10-25T00:30", "2026-10-25T00:30", "2026-10-25T03:00"),
]


@pytest.mark.parametrize(("window", "inside", "opens", "closes"), CHANGES)
def test_where_clocks_are_set_forward_or_back_it_has_an_hour_less_or_more(
    window: str, inside: str, opens: str, closes: str
) -> None:
    windows = StartWindows(zone="Europe/Berlin", windows=(read_window(window),))
    assert state_at(windows, utc(inside)) == (True, utc(closes))
    assert state_at(windows, utc(opens)).is_open
    before = utc(opens) - timedelta(seconds=1)
    assert state_at(windows, before) == (False, utc(opens))
    assert not state_at(windows, utc(closes)).is_open


def test_windows_that_touch_are_one_and_those_that_fill_the_week_never_close() -> None:
    two = StartWindows(zone="UTC", windows=(read_window("Mon 08:00-12:00"), read_window("Mon 12:00-14:00")))
    assert state_at(two, utc("2026-03-02T09:00")) == (True, utc("2026-03-02T14:00"))
    always = StartWindows(zone="America/New_York", windows=(read_window("00:00-24:00"),))
    assert state_at(always, utc("2026-03-08T06:59")) == (True, None)


@pytest.mark.parametrize(
    ("text", "days", "opens", "closes"),
    [
        ("Mon-Fri 20:00-06:00", (0, 1, 2, 3, 4), 1200, 360),
        ("sat,SUN 00:00-24:00", (5, 6), 0, 1440),
        ("Fri-Mon 08:00-09:30", (0, 4, 5, 6), 480, 570),
        ("20:00-06:00", tuple(range(7)), 1200, 360),
    ],
)
def test_a_window_is_read_from_text(text: str, days: Any, opens: int, closes: int) -> None:
    assert read_window(text) == Window(days=days, opens=opens, closes=closes)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "Mon-Fri"),
        ("Mon", "20:00-06:00"),
        ("Foo 20:00-06:00", "'Foo'"),
        ("Mon 25:00-06:00", "'25:00'"),
        ("Mon 20:60-06:00", "'20:60'"),
        ("Mon 2:00-06:00", "'2:00'"),
        ("Mon 24:00-06:00", "00:00 of the next day"),
        ("Mon 20:00 - 06:00", "Mon-Fri"),
        ("Mon 20:00-20:00", "Mon 20:00-24:00 and Tue 00:00-20:00"),
        ("00:00-00:00", "00:00-24:00"),
    ],
)
def test_what_is_no_window_says_what_is_wrong(text: str, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        read_window(text)


def test_a_zone_is_one_of_the_database() -> None:
    assert is_zone("Europe/Berlin")
    assert is_zone("UTC")
    for name in ("", "Berlin", "Europe/Atlantis", "../../etc/passwd", "/etc/passwd", "x" * 65, "Europe\0Berlin"):
        assert not is_zone(name), name


@pytest.mark.parametrize("name", ["localtime", "posixrules", "posix/Europe/Berlin", "right/Europe/Berlin", "utc"])
def test_what_a_machine_has_beside_the_database_is_no_zone(name: str) -> None:
    """Given a name that some machines know, and that is not of the database, then it is none."""
    assert not is_zone(name)


WINDOWS = st.builds(
    Window,
    days=st.sets(st.integers(0, 6), min_size=1).map(lambda days: tuple(sorted(days))),
    opens=st.integers(0, MINUTES_OF_A_DAY - 1),
    closes=st.integers(0, MINUTES_OF_A_DAY),
)
ZONES = st.sampled_from(("UTC", "Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "Asia/Kathmandu"))


@given(
    st.lists(WINDOWS, min_size=1, max_size=4).map(tuple),
    ZONES,
    st.integers(0, 20 * 366 * 24 * 60).map(lambda minutes: utc("2020-01-01") + timedelta(minutes=minutes)),
)
def test_between_two_changes_nothing_changes_and_at_one_it_does(
    windows: tuple[Window, ...], zone: str, now: datetime
) -> None:
    """So who wakes at the next change misses none."""
    of = StartWindows(zone=zone, windows=windows)
    state = state_at(of, now)
    if state.changes_at is None:
        assert state.is_open
        return
    assert state.changes_at > now
    just_before = state.changes_at - timedelta(microseconds=1)
    assert state_at(of, just_before) == state
    assert state_at(of, now + (state.changes_at - now) / 2) == state
    assert state_at(of, state.changes_at).is_open is not state.is_open


@given(WINDOWS)
def test_what_is_written_is_read_again(window: Window) -> None:
    assume(window.opens != window.closes)  # of those in older logs
    assert read_window(window_text(window)) == window
    assert all(day in window_text(Window(days=(n,), opens=0, closes=1)) for n, day in enumerate(DAYS))
