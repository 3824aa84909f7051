"""Durations, pairs, ages: what people write, and what they read."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.cli.doctor import clock_finding
from muster.cli.values import (
    ValueProblem,
    format_age,
    format_number,
    format_span,
    format_utc,
    parse_duration,
    parse_number,
    parse_pair,
    parse_switch,
    parse_time,
    parse_values,
    printable,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("5m", 300),
        ("2h", 7200),
        ("7d", 604_800),
        ("1h30m", 5400),
        ("1d2h3m4s", 93_784),
        ("90", 90),
        ("0", 0),
        ("0s", 0),
    ],
)
def test_a_duration_is_read_as_seconds(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "5 m", "-5s", "1.5h", "5x", "30s1m", "99999999999d", "٣s x"])
def test_what_is_no_duration_is_refused_with_what_would_do(text: str) -> None:
    with pytest.raises(ValueProblem, match=r"30s, 5m, 2h, 7d|hundred years"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (59.6, "1m"),
        (70, "1m10s"),
        (655, "10m"),
        (3700, "1h1m"),
        (36_061, "10h"),
        (90_000, "1d1h"),
        (-3, "0s"),
    ],
)
def test_a_span_is_told_in_two_units_at_most(seconds: float, text: str) -> None:
    assert format_span(seconds) == text


@given(st.integers(min_value=0, max_value=10**9))
def test_a_told_span_is_a_duration_and_never_longer_than_the_truth(seconds: int) -> None:
    told = parse_duration(format_span(seconds))
    assert seconds * 0.9 <= told <= seconds


def test_an_age_says_ago_and_what_is_to_come_says_in() -> None:
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert format_age(now - timedelta(minutes=3), now) == "3m ago"
    assert format_age(now + timedelta(hours=2), now) == "in 2h"
    assert format_age(now + timedelta(days=30, seconds=-9), now) == "in 30d"
    assert format_age(now - timedelta(days=30, seconds=-9), now) == "29d ago"
    assert format_age(now + timedelta(seconds=0.5), now) == "now"
    assert format_utc(now) == "2026-01-02T03:04:05Z"


def test_a_pair_may_hold_further_equal_signs() -> None:
    assert parse_pair("A=b=c", "label") == ("A", "b=c")
    assert parse_pair("A=", "label") == ("A", "")
    for text in ("A", "=b", ""):
        with pytest.raises(ValueProblem, match="NAME=VALUE"):
            parse_pair(text, "label")


def test_switches_numbers_and_times() -> None:
    assert parse_switch("on") is True
    assert parse_switch("OFF") is False
    with pytest.raises(ValueProblem, match="neither on nor off"):
        parse_switch("maybe")
    assert parse_number("0.5") == 0.5
    for text in ("inf", "nan", "x"):
        with pytest.raises(ValueProblem, match="not a number"):
            parse_number(text)
    assert parse_time("2026-01-02T03:04:05Z") == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert parse_time("yesterday") is None
    assert [format_number(value) for value in (2.0, 0.5, 1.25, 0)] == ["2", "0.5", "1.25", "0"]


def test_text_from_elsewhere_cannot_steer_the_terminal() -> None:
    assert printable("a\x1b[31mb\nc") == "a\\x1b[31mb\\nc"
    assert printable("grün ✓") == "grün ✓"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("0.1,0.01", ["0.1", "0.01"]),
        ("1..5", ["1", "2", "3", "4", "5"]),
        ("3..1,x", ["3", "2", "1", "x"]),
        ("-1..1", ["-1", "0", "1"]),
        ("10..50..20", ["10", "30", "50"]),
        ("10..45..20", ["10", "30"]),
        ("5..1..2", ["5", "3", "1"]),
        ('"a,b",c', ["a,b", "c"]),
        ("../data,a..b", ["../data", "a..b"]),
        ("7..7", ["7"]),
    ],
)
def test_the_values_of_a_sweep_are_lists_and_ranges(text: str, values: list[str]) -> None:
    """Issue 13 section 3: sweeps; section 5: one mini-language."""
    assert parse_values(text) == values


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1..x",
        "x..1",
        "1..",
        "1e-4..high",
        "0.1..0.5",
        "1..5..0",
        "1..100000",
        "0..99999999999999999",
        "1..2..3..4",
        '"a',
        "1\n2",
    ],
)
def test_what_is_no_list_of_values_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(ValueProblem, match=r"write|whole numbers"):
        parse_values(text)


@pytest.mark.parametrize(
    ("told", "verdict"),
    [(-7, "problem"), (-5, "ok"), (0, "ok"), (8, "ok"), (14, "ok"), (17, "problem")],
)
def test_clocks_agree_where_the_server_s_time_is_one_from_the_question_to_the_answer(told: int, verdict: str) -> None:
    """It says when it heard the question, and may be busy for long after that: here for ten seconds."""
    asked = datetime(2026, 7, 1, 12, tzinfo=UTC)
    date = format_datetime(asked + timedelta(seconds=told), usegmt=True)
    assert clock_finding(date, asked, asked + timedelta(seconds=10)).verdict == verdict
