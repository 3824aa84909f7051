"""Values as people write and read them: durations, pairs, ages, sizes; and reading decoded JSON. No I/O, no clock."""

import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from math import isfinite
from typing import Final

type Json = bool | int | float | str | list["Json"] | dict[str, "Json"] | None
type Row = dict[str, Json]
"""One object of the API, as decoded."""

_DURATION = re.compile(r"^(?:(?P<d>\d+)d)?(?:(?P<h>\d+)h)?(?:(?P<m>\d+)m)?(?:(?P<s>\d+)s?)?$")
_SECONDS: Final = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_ROUND_FROM: Final = 10
"""From so many of the first unit on, the second says nothing."""
_MOST_SECONDS: Final = 100 * 365 * 86400
"""A hundred years: longer would leave the calendar."""


class ValueProblem(ValueError):
    """A text is not what the option wants; the message says what would be."""


def parse_duration(text: str) -> int:
    """Seconds of `30s`, `5m`, `2h`, `7d`, `1h30m` or plain seconds."""
    match = _DURATION.match(text.strip())
    if match is None or not match.group():
        raise ValueProblem(f"{text!r} is not a duration; write 30s, 5m, 2h, 7d or 1h30m")
    seconds = sum(int(match[unit] or 0) * factor for unit, factor in _SECONDS.items())
    if seconds > _MOST_SECONDS:
        raise ValueProblem(f"{text!r} is longer than a hundred years")
    return seconds


def parse_ago(text: str) -> int:
    """Seconds of a time ago, as a duration. A bare number is none: elsewhere it is a sequence of the log."""
    if text.strip().isdigit():
        raise ValueProblem(f"{text!r} has no unit; write 30s, 5m, 2h, 7d or 1h30m")
    return parse_duration(text)


def parse_pair(text: str, what: str, *, form: str = "NAME=VALUE") -> tuple[str, str]:
    """Name and value of `NAME=VALUE`; the value may hold further '='."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise ValueProblem(f"{text!r} is no {what}; write {form}")
    return name, value


_RANGE: Final = re.compile(r"(-?\d{1,18})\.\.(-?\d{1,18})(?:\.\.(\d{1,18}))?\Z")
MOST_VALUES: Final = 10_000
"""Of one range; what a sweep may have."""


def _looks_like_range(text: str) -> bool:
    """Whether there is a number at either end of two dots. A path is none."""
    ends = text.split("..")
    return len(ends) > 1 and "/" not in text and any(_is_number(end) for end in ends)


def _is_number(text: str) -> bool:
    try:
        parse_number(text)
    except ValueProblem:
        return False
    return True


def parse_values(text: str) -> list[Json]:
    """Values of `0.1,0.01`, `1..5` or `10..50..20`: whole numbers from one to another, perhaps in steps. A value with a
    comma stands in double quotes. Raises ValueProblem.
    """
    import csv

    try:
        (parts,) = csv.reader([text], strict=True)
    except (ValueError, csv.Error) as error:
        raise ValueProblem(f"{text!r} is no list of values: {error}; write A,B or 1..5") from error
    if not parts:
        raise ValueProblem("there are no values; write A,B or 1..5")
    found: list[Json] = []
    for part in parts:
        if (range_ := _RANGE.match(part)) is None:
            if _looks_like_range(part):
                told = f"{part!r} is no range; that is of whole numbers, as 1..5 or 10..50..20"
                raise ValueProblem(f"{told}. Text with two dots goes in a file: --sweep-csv or --file")
            found.append(part)
            continue
        first, last, step = int(range_[1]), int(range_[2]), int(range_[3] or 1)
        if not step or abs(last - first) // step >= MOST_VALUES:
            raise ValueProblem(f"{part!r} has no end, or more than {MOST_VALUES} values; write fewer")
        towards = step if last >= first else -step
        found += [str(number) for number in range(first, last + (1 if towards > 0 else -1), towards)]
    return found


def parse_number(text: str) -> float:
    """A number that JSON has: infinity is none."""
    try:
        number = float(text)
    except ValueError as error:
        raise ValueProblem(f"{text!r} is not a number") from error
    if not isfinite(number):
        raise ValueProblem(f"{text!r} is not a number")
    return number


def parse_boolean(text: str) -> bool:
    """Raises ValueProblem."""
    if text.lower() not in {"true", "false"}:
        raise ValueProblem(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def parse_integer(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise ValueProblem(f"{text!r} is not a whole number") from error


def parse_switch(text: str) -> bool:
    """On or off."""
    known = {"on": True, "true": True, "off": False, "false": False}
    if text.lower() not in known:
        raise ValueProblem(f"{text!r} is neither on nor off")
    return known[text.lower()]


def parse_time(text: str) -> datetime | None:
    """An RFC 3339 time, or None where the text is none."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def format_span(seconds: float, *, nearest: bool = False) -> str:
    """A span for people, of two units at most: 8s, 5m10s, 3h2m, 12d. The second unit only where it matters; without it
    the first is of what has passed, or the `nearest`.
    """
    left = max(0, round(seconds))
    units = list(_SECONDS.items())
    for (unit, size), (smaller, smaller_size) in pairwise(units):
        if left < size:
            continue
        rest = left % size // smaller_size
        if nearest and left >= _ROUND_FROM * size:
            return f"{round(left / size)}{unit}"
        return f"{left // size}{unit}" + (f"{rest}{smaller}" if rest and left < _ROUND_FROM * size else "")
    return f"{left}s"


def exact_span(seconds: int) -> str:
    """A span as it was set, with every unit that it has: 90m is 1h30m, and 0 is 0s."""
    told = ""
    for unit, size in _SECONDS.items():
        count, seconds = divmod(seconds, size)
        told += f"{count}{unit}" if count else ""
    return told or "0s"


def format_age(moment: datetime, now: datetime) -> str:
    """`5m ago`, or `in 5m` for what is still to come."""
    span = now - moment
    if span < timedelta(0):
        # A clock that runs a little behind the server's must not show the future.
        return "now" if span > timedelta(seconds=-1) else f"in {format_span(-span.total_seconds(), nearest=True)}"
    return f"{format_span(span.total_seconds())} ago"


def format_time(moment: datetime) -> str:
    """RFC 3339 in its own zone, to the second."""
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def format_utc(moment: datetime) -> str:
    return format_time(moment.astimezone(UTC))


def format_number(value: float) -> str:
    """Without a fraction that says nothing: 2, 0.5, 1.25."""
    return f"{value:.3f}".rstrip("0").rstrip(".")


def counted(count: int, word: str) -> str:
    """Such as `1 node` or `1,200 nodes`."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def format_bytes(count: float) -> str:
    """In the largest unit that it has at least one of: 12 B, 3.4 MiB."""
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":  # noqa: PLR2004 (binary units)
            break
        value /= 1024
    return f"{count:.0f} B" if unit == "B" else f"{value:.1f} {unit}"


def printable(text: str) -> str:
    """The text without anything that could move a terminal's cursor or change its colours."""
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


def text_of(row: Row, key: str) -> str:
    """A text field, empty where it is absent or null."""
    value = row.get(key)
    return value if isinstance(value, str) else ""


def number_of(row: Row, key: str) -> float:
    """A number field, 0 where it is absent or null."""
    value = row.get(key)
    return value if isinstance(value, int | float) else 0


def rows_of(row: Row, key: str) -> list[Row]:
    """The objects of a list field."""
    value = row.get(key)
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def texts_of(row: Row, key: str) -> list[str]:
    """The texts of a list field."""
    value = row.get(key)
    return [entry for entry in value if isinstance(entry, str)] if isinstance(value, list) else []


def row_of(row: Row, key: str) -> Row:
    value = row.get(key)
    return value if isinstance(value, dict) else {}


def set_field(request: Row, path: str, value: Json) -> None:
    """Sets a field at a dotted path, making the objects on the way."""
    *parents, last = path.split(".")
    place = request
    for parent in parents:
        below = place.get(parent)
        if not isinstance(below, dict):
            below = dict[str, Json]()
            place[parent] = below
        place = below
    place[last] = value
