"""Windows of a project: at which times of the week its workloads may start, by the clock of a zone. Pure.

Times are local ones. Where clocks are set forward, a time that there is not that day is as much later; where they are
set back, a window opens at the first and closes at the last of the two moments of that time.
"""

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo, available_timezones

import msgspec

DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MINUTES_OF_A_DAY: Final = 24 * 60
MOST_WINDOWS: Final = 28
LONGEST_ZONE: Final = 64
_AHEAD_DAYS: Final = 9
"""Whatever opens or closes at all, does so within these: windows come again each week."""


class Window(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A time of some days of the week. It ends on the next day where its end is not after its beginning."""

    days: tuple[int, ...]
    """On which days it opens; 0 is Monday."""
    opens: int
    """Minute of the day."""
    closes: int
    """Minute of the day; 1440 is midnight."""

    def __post_init__(self) -> None:
        """Raises ValueError where there can be no such window."""
        if not self.days or not all(0 <= day < len(DAYS) for day in self.days):
            raise ValueError("a window has days from 0 to 6")
        if not (0 <= self.opens < MINUTES_OF_A_DAY and 0 <= self.closes <= MINUTES_OF_A_DAY):
            raise ValueError("a minute of a day is from 0 to 1439")


class StartWindows(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When workloads of a project may start."""

    zone: str
    """Of the IANA database, such as `Europe/Berlin`."""
    windows: tuple[Window, ...]
    """At least one."""
    ends_running: bool = False
    """Whether preemptible workloads that run are told to end when the last window closes. They go on in the next."""
    over_quota_only: bool = False
    """Whether the windows are about what the project uses beyond its quota, and about nothing else."""

    @property
    def told(self) -> str:
        """For a person, such as `Mon-Fri 20:00-06:00 Europe/Berlin`."""
        return f"{', '.join(map(window_text, self.windows))} {self.zone}"


class StartWindowsSet(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When workloads of the project may start, from now on."""

    at: datetime
    """When it was decided."""
    windows: StartWindows | None = None
    """The windows; null: at any time."""


class SetStartWindows(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """None: at any time."""

    project_id: str
    windows: StartWindows | None = None

    def __post_init__(self) -> None:
        """Raises ValueError where these cannot be: nobody but the api has looked at them before."""
        if self.windows is not None and not (0 < len(self.windows.windows) <= MOST_WINDOWS):
            raise ValueError("no windows, or too many")
        if self.windows is not None and self.windows.over_quota_only and self.windows.ends_running:
            raise ValueError("of what is over quota nothing is ended by a window")


class State(NamedTuple):
    """How the windows stand at a moment."""

    is_open: bool
    changes_at: datetime | None
    """When that is otherwise next; None where it always is so."""


def state_at(windows: StartWindows, now: datetime) -> State:
    for begin, end in _spans(windows, now):
        if now < begin:
            return State(is_open=False, changes_at=begin)
        if now < end:
            lasts = end - now > timedelta(days=_AHEAD_DAYS - 1)
            return State(is_open=True, changes_at=None if lasts else end)
    return State(is_open=False, changes_at=None)


def _spans(windows: StartWindows, now: datetime) -> list[tuple[datetime, datetime]]:
    """From the day before on, in order; those that touch are one."""
    zone = zone_of(windows.zone)
    today = now.astimezone(zone).date()
    found: list[tuple[datetime, datetime]] = []
    for begin, end in sorted(_each(windows, zone, today)):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def _each(windows: StartWindows, zone: ZoneInfo, today: date) -> Iterator[tuple[datetime, datetime]]:
    for ahead in range(-2, _AHEAD_DAYS + 1):
        day = today + timedelta(days=ahead)
        for each in windows.windows:
            if day.weekday() in each.days:
                on = day if each.closes > each.opens else day + timedelta(days=1)
                begin, end = _moment(day, each.opens, zone, fold=0), _moment(on, each.closes, zone, fold=1)
                if begin < end:
                    yield begin, end


def _moment(day: date, minute: int, zone: ZoneInfo, *, fold: int) -> datetime:
    """The first (0) or the last (1) moment at which it is that time there. One that there is not is as much later."""
    if minute == MINUTES_OF_A_DAY:
        day, minute = day + timedelta(days=1), 0
    local = datetime.combine(day, time(minute // 60, minute % 60, fold=fold), tzinfo=zone)
    moments = [local.replace(fold=each).astimezone(UTC) for each in (0, 1)]
    # By the offset of before, a time that is skipped comes after the one by the offset of behind it.
    return moments[0] if moments[0] >= moments[1] else moments[fold]


@lru_cache(maxsize=256)
def zone_of(name: str) -> ZoneInfo:
    """UTC where there is none of this name: another machine may know more of them."""
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):
        return ZoneInfo("UTC")


@lru_cache(maxsize=1)
def _zones() -> frozenset[str]:
    """Names of the IANA database: `localtime` is the machine's own, and `posix/` and `right/` count other seconds."""
    found = {"UTC", *available_timezones()} - {"localtime", "posixrules"}
    return frozenset(name for name in found if not name.startswith(("posix/", "right/")))


def is_zone(name: str) -> bool:
    """Whether it is one, written exactly so."""
    return len(name) <= LONGEST_ZONE and name in _zones()


# -- as text ---------------------------------------------------------------------------------------------------------


def window_text(window: Window) -> str:
    """`Mon-Fri 20:00-06:00`."""
    return f"{_days_text(window.days)} {_time_text(window.opens)}-{_time_text(window.closes)}"


def _time_text(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"


def _days_text(days: tuple[int, ...]) -> str:
    parts: list[str] = []
    given = sorted(set(days))
    while given:
        run = [day for at, day in enumerate(given) if day == given[0] + at]
        given = given[len(run) :]
        named = [DAYS[day] for day in run]
        parts += [f"{named[0]}-{named[-1]}"] if len(named) > 2 else named  # noqa: PLR2004 (two are as short)
    return ",".join(parts)


def read_window(text: str) -> Window:
    """Of `Mon-Fri 20:00-06:00`, `Sat,Sun 00:00-24:00`, or `20:00-06:00` for each day. Raises ValueError, with what is
    wrong.
    """
    words = text.split()
    if not 1 <= len(words) <= 2:  # noqa: PLR2004 (days and times)
        raise ValueError(f"{text!r} is no window: write days and times, such as Mon-Fri 20:00-06:00")
    days = tuple(range(len(DAYS))) if len(words) == 1 else _read_days(words[0])
    opens, dash, closes = words[-1].partition("-")
    if not dash:
        raise ValueError(f"{words[-1]!r} is no span of time: write it as 20:00-06:00")
    begin, end = _read_time(opens), _read_time(closes)
    if begin == MINUTES_OF_A_DAY:
        raise ValueError(f"{opens!r}: a window opens at 23:59 at the latest; write 00:00 of the next day")
    if begin == end:
        raise ValueError(
            f"{words[-1]!r} opens and closes at the same time; a whole day is 00:00-24:00, as in Mon 00:00-24:00, and "
            "what goes on over midnight is two windows, as Mon 20:00-24:00 and Tue 00:00-20:00"
        )
    return Window(days=days, opens=begin, closes=end)


def _read_days(text: str) -> tuple[int, ...]:
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        begin, end = _read_day(first), _read_day(last if dash else first)
        found |= {day % len(DAYS) for day in range(begin, end + 1 if end >= begin else end + 1 + len(DAYS))}
    return tuple(sorted(found))


def _read_day(text: str) -> int:
    found = next((n for n, day in enumerate(DAYS) if day.lower() == text.lower()), None)
    if found is None:
        raise ValueError(f"{text!r} is no day: write {', '.join(DAYS)}")
    return found


def _read_time(text: str) -> int:
    hours, colon, minutes = text.partition(":")
    digits = all(part.isascii() and part.isdigit() and len(part) == 2 for part in (hours, minutes))  # noqa: PLR2004
    minute = int(hours) * 60 + int(minutes) if colon and digits and int(minutes) < 60 else -1  # noqa: PLR2004
    if not 0 <= minute <= MINUTES_OF_A_DAY:
        raise ValueError(f"{text!r} is no time of a day: write it as 20:00, and the end of a day as 24:00")
    return minute
