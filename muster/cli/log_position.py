"""How far followed logs were printed, so that a broken connection is gone on from: nothing twice, nothing left out.

Lines have no numbers, but times, and those of one pod come in order. So the time of a pod's last line, and how many
lines of that time there were, say how far it was printed. The server is asked for lines since that time; what was
printed is dropped.
"""

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from muster.cli.values import format_utc, parse_time

if TYPE_CHECKING:
    from muster.cli.http import Parameters

_LINE: Final = re.compile(r"(?:(?P<pod>[a-z]{1,20}-[0-9]{1,9}): )?(?P<at>[0-9-]{10}T[0-9:.]{8,15}Z) ")
_EARLIEST: Final = "1970-01-01T00:00:00Z"
_SINCE_AGO: Final = re.compile(r"([0-9]+)s")


class LogPosition:
    def __init__(self, parameters: "Parameters") -> None:
        self._asked = [(name, value) for name, value in parameters if name != "timestamps"]
        self._with_times = ("timestamps", "true") in parameters
        self._since = next((_fixed(str(value)) for name, value in parameters if name == "since"), _EARLIEST)
        self._last: dict[str, tuple[str, int]] = {}
        """By pod ("" where lines name none): the time of its last line, and how many lines of that time there were."""

    def parameters(self) -> "Parameters":
        """What to ask for: at first what was asked for, later what may be new."""
        if not self._last:
            return [*self._asked, ("timestamps", "true")]
        # A pod that was silent so far may have written before the others' last lines.
        since = self._last[""][0] if set(self._last) == {""} else self._since
        kept = [(name, value) for name, value in self._asked if name not in {"tail", "since"}]
        return [*kept, ("timestamps", "true"), ("since", since)]

    def news(self, pieces: Iterable[str]) -> Iterator[str]:
        """The lines of an answer that were not printed before, as they are to be printed. Part of a line at a broken
        end is left out: it comes again.
        """
        behind = dict(self._last)
        held = ""
        for piece in pieces:
            *lines, held = (held + piece).split("\n")
            yield "".join(self._new(f"{line}\n", behind) for line in lines)
        yield self._new(held, behind)

    def _new(self, line: str, behind: dict[str, tuple[str, int]]) -> str:
        """The line as it is printed; empty where it was."""
        found = _LINE.match(line)
        if found is None:
            return line
        pod, at = found["pod"] or "", found["at"]
        if pod in behind and _is_old(pod, at, behind):
            return ""
        last, count = self._last.get(pod, ("", 0))
        self._last[pod] = (at, count + 1 if at == last else 1)
        return line if self._with_times else line[: found.start("at")] + line[found.end() :]


def _is_old(pod: str, at: str, behind: dict[str, tuple[str, int]]) -> bool:
    """Whether this line of a pod was printed before the connection broke; once one is new, all that follow are."""
    last, count = behind[pod]
    if at == last and count:
        behind[pod] = (last, count - 1)
        return True
    moment, end = parse_time(at), parse_time(last)
    if moment is not None and end is not None and moment < end:
        return True
    del behind[pod]
    return False


def _fixed(since: str) -> str:
    """A time of `since` that does not move: `90s` is as long ago when the connection has been made again."""
    ago = _SINCE_AGO.fullmatch(since)
    return format_utc(datetime.now(UTC) - timedelta(seconds=int(ago[1]))) if ago else since
