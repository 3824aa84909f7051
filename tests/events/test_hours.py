"""Measured hours: each is noted once, in order, and nothing absurd is."""

from datetime import datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest

from events.aggregate import HOURS
from events.hours import MOST_ROWS, OLDEST, HoursMeasured, Measured, NoteHours, hours_key
from events.ids import KEY_PATTERN, incarnation_id, project_key
from events.refusal import Refusal
from tests.events.given import NOW, context

HOUR = timedelta(hours=1)
PROJECT = incarnation_id(project_key("default"), "c")


def row(used: int = 5) -> Measured:
    return Measured(owner="alice", cluster_id="c", measured=10, used=used)


def note(hours: int, used: int = 5) -> NoteHours:
    """Of the hour that begins so long after NOW."""
    return NoteHours(project_id=PROJECT, hour=NOW + hours * HOUR, rows=(row(used),))


def decided(*commands: NoteHours) -> list[Any]:
    """What each gives, an hour and a half after NOW."""
    state, found = HOURS.initial, list[Any]()
    for command in commands:
        events = HOURS.decide(command, state, context(now=NOW + 1.5 * HOUR))
        state = state if isinstance(events, Refusal) else HOURS.after(state, events)
        found.append(events)
    return found


def test_an_hour_that_is_over_is_noted_once_whatever_is_measured_later() -> None:
    first, again, earlier, later = decided(note(-1), note(-1, used=9), note(-2), note(0))
    assert first == (HoursMeasured(project_id=PROJECT, hour=NOW - HOUR, rows=note(-1).rows),)
    assert (again, earlier) == ((), ())
    assert [event.hour for event in later] == [NOW]


@pytest.mark.parametrize("hours", [1, 24, -OLDEST.days * 24])
def test_an_hour_that_goes_on_or_was_long_ago_is_refused(hours: int) -> None:
    (refused,) = decided(note(hours))
    assert isinstance(refused, Refusal)
    assert (refused.code, refused.field) == ("invalid", "hour")


def test_events_of_another_project_or_an_earlier_hour_change_nothing() -> None:
    (event,) = decided(note(0))[0]
    state = HOURS.after(HOURS.initial, [event])
    earlier = msgspec.structs.replace(event, hour=NOW - HOUR)
    other = HoursMeasured(project_id="other", hour=NOW + HOUR, rows=())
    assert all(HOURS.evolve(state, one) is state for one in (event, earlier, other))


@pytest.mark.parametrize(
    "changed",
    [
        {"hour": NOW + timedelta(minutes=1)},
        {"hour": NOW.replace(tzinfo=None)},
        {"hour": datetime(9999, 12, 31, 23, tzinfo=timezone(-HOUR))},
        {"hour": datetime(1, 1, 1, tzinfo=timezone(HOUR))},
        {"rows": ()},
        {"rows": (row(),) * (MOST_ROWS + 1)},
        {"rows": (row(used=11),)},
        {"rows": (row(used=-1),)},
    ],
)
def test_what_cannot_have_been_measured_is_no_command(changed: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"project_id": PROJECT, "hour": NOW, "rows": note(0).rows} | changed
    with pytest.raises(ValueError, match="no "):
        NoteHours(**fields)


def test_a_project_has_a_chain_for_each_month_and_none_with_another_of_its_name() -> None:
    again = incarnation_id(project_key("default"), "d")
    months = NOW, NOW + timedelta(days=31)
    keys = [hours_key(project, month) or "" for project in (PROJECT, again) for month in months]
    assert len(set(keys)) == 4
    assert all(KEY_PATTERN.match(key) for key in keys)
    assert hours_key(PROJECT, NOW) == hours_key(PROJECT, NOW + HOUR)
    assert hours_key("none of ours", NOW) is None
