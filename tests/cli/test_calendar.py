"""The calendar on the command line: times with their zone, entries found by name, and faults that name flags (issue 14
section 2; ADR 0133).
"""

import io
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from events.calendar_entry import MOST_LEAD
from muster.cli.calendar import MAINTENANCE_COLUMNS
from muster.cli.calendar_options import MOST_LEAD_SECONDS, given_nodes, time_of
from muster.cli.calendar_reservations import RESERVATION_COLUMNS, what_of
from muster.cli.calendar_windows import WINDOW_COLUMNS
from muster.cli.client import told_issue
from muster.cli.exits import Problem
from muster.cli.output import Column, Format, Output, Style
from muster.cli.values import Row

ROW: Row = {
    "name": "x",
    "startsAt": "2027-01-09T06:00:00Z",
    "endsAt": "2027-01-09T08:00:00Z",
    "changesAt": "2027-01-09T06:00:00Z",
    "nodePools": ["h100"],
    "labels": {"rack": "4"},
}


@pytest.mark.parametrize("given", ["2027-01-01T10:00", "2027-01-01T10:00:00", "2027-01-01 10:00"])
def test_a_time_without_a_zone_is_refused_and_told_what_would_do(given: str) -> None:
    with pytest.raises(Problem, match="--from") as caught:
        time_of("--from", given)
    assert "no zone" in str(caught.value)
    assert f"{given}Z" in str(caught.value.todo)


@pytest.mark.parametrize(
    ("given", "utc"),
    [
        ("2027-01-01", "2027-01-01T00:00:00Z"),
        ("2027-01-01T10:00:00+01:00", "2027-01-01T09:00:00Z"),
        ("2027-01-01T10Z", "2027-01-01T10:00:00Z"),
    ],
)
def test_a_time_with_its_zone_and_a_date_alone_are_taken(given: str, utc: str) -> None:
    assert time_of("--from", given) == utc


@pytest.mark.parametrize("columns", [MAINTENANCE_COLUMNS, RESERVATION_COLUMNS, WINDOW_COLUMNS])
def test_times_of_lists_are_by_the_clock_that_is_asked_for(columns: tuple[Column, ...]) -> None:
    """Given --tz, then lists show times by that clock, and without it those of UTC."""
    berlin = ZoneInfo("Europe/Berlin")
    shown: list[str] = []
    for clock in (None, lambda moment: moment.astimezone(berlin)):
        out = Output(Style(format=Format.TABLE, clock=clock), stdout=io.StringIO(), stderr=io.StringIO())
        column = next(each for each in columns if each.key in {"startsAt", "changesAt"})
        shown.append(out.cell(ROW, column))
    assert shown == ["2027-01-09T06:00:00Z", "2027-01-09T07:00:00+01:00"]


def test_a_window_that_never_changes_has_no_time() -> None:
    out = Output(Style(format=Format.TABLE), stdout=io.StringIO(), stderr=io.StringIO())
    assert out.cell({"changesAt": None}, next(each for each in WINDOW_COLUMNS if each.key == "changesAt")) == "-"


@pytest.mark.parametrize("columns", [MAINTENANCE_COLUMNS, RESERVATION_COLUMNS])
def test_csv_has_pools_and_labels(columns: tuple[Column, ...]) -> None:
    stdout = io.StringIO()
    Output(Style(format=Format.CSV), stdout=stdout, stderr=io.StringIO()).rows([ROW], columns)
    heading, line = stdout.getvalue().splitlines()
    assert "labels" in heading
    assert "nodePools" in heading
    assert "rack" in line
    assert "h100" in line


@pytest.mark.parametrize(
    ("field", "flag", "asked"),
    [
        ("startsAt", "--from", "/api/v1/calendar/maintenance"),
        ("endsAt", "--to", "/api/v1/calendar/reservations/1/x"),
        ("nodes[0]", "--node", "/api/v1/calendar/maintenance"),
        ("nodePools", "--pool", "/api/v1/calendar/maintenance"),
        ("leadSeconds", "--lead", "/api/v1/calendar/maintenance"),
        ("gpus", "--gpus", "/api/v1/calendar/reservations"),
        ("projectId", "--for", "/api/v1/calendar/reservations"),
        ("departmentId", "--for-department", "/api/v1/calendar/reservations"),
        ("workloadLabels[0].name", "--for-label", "/api/v1/calendar/reservations"),
        ("nodeCount", "--node-count", "/api/v1/calendar/reservations"),
        ("zone", "--zone", "/api/v1/org-unit/projects/1/start-windows"),
    ],
)
def test_a_fault_names_the_flag_of_this_command(field: str, flag: str, asked: str) -> None:
    assert told_issue({"field": field, "details": "is wrong"}, asked) == f"{field} ({flag}): is wrong"


def test_a_fault_of_two_times_names_the_flags_of_both() -> None:
    issue = {"field": "endsAt", "details": "must be at least a minute after startsAt, got X"}
    told = told_issue(issue, "/api/v1/calendar/maintenance")
    assert told == "endsAt (--to): must be at least a minute after startsAt (--from), got X"


def test_a_lead_that_is_too_long_is_told_in_the_unit_that_it_was_given_in() -> None:
    assert timedelta(seconds=MOST_LEAD_SECONDS) == MOST_LEAD
    assert given_nodes(None, None, None, "60d") == {"leadSeconds": MOST_LEAD_SECONDS}
    with pytest.raises(Problem, match="--lead: '61d' is longer than 60 days"):
        given_nodes(None, None, None, "61d")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"gpus": 4, "exact": True, "nodePools": ["h100"]}, "exactly 4 GPUs of pool h100"),
        ({"gpus": 1, "exact": False, "nodePools": ["a", "b"]}, "1 GPU of pools a,b"),
        ({"gpus": None, "nodeCount": 4, "nodePools": ["a100"]}, "4 nodes of pool a100"),
        ({"gpus": None, "nodeCount": 1, "nodes": [], "labels": {"rack": "4"}}, "1 node of label rack=4"),
        ({"gpus": None, "nodeCount": 2, "nodes": ["n0", "n1", "n2"]}, "2 of nodes n0,n1,n2"),
        ({"gpus": None, "nodes": ["n0"], "labels": {"rack": "4"}}, "node n0; label rack=4"),
    ],
)
def test_how_much_of_which_nodes_is_told_in_words(given: dict[str, Any], told: str) -> None:
    assert what_of(given) == told


def test_now_and_a_time_from_now_on_are_times() -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    now, later = (datetime.fromisoformat(time_of("--from", each)) for each in ("now", "now+1d12h"))
    assert before <= now <= datetime.now(UTC)
    assert now + timedelta(hours=36) <= later <= datetime.now(UTC) + timedelta(hours=36)
    with pytest.raises(Problem, match="--to"):
        time_of("--to", "now+soon")
