"""Prints what pods wrote while it comes, and says where that is not all of it."""

from functools import partial
from typing import TYPE_CHECKING, Final

from muster.cli.exits import ExitCode, Problem
from muster.cli.log_position import LogPosition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from muster.cli.command import Session
    from muster.cli.http import Parameters, Stream
    from muster.cli.outage import Patience
    from muster.cli.output import Output

CUT_MARK: Final = "X-Cut-Mark"
"""Header of the API's answer: how a line begins that says why not all is told."""
_EXIT: Final = {
    "not_in_project": ExitCode.DENIED,
    "not_permitted": ExitCode.DENIED,
    "not_authenticated": ExitCode.DENIED,
    "logs_unavailable": ExitCode.UNREACHABLE,
}
"""By the reason's code; FAILURE of any other."""
_TODO: Final = {
    "stalled": "ask again with --since; what is read slowly is better written to a file",
    "not_authenticated": "get a new token (`muster token create --user U`) and ask again with --since",
    "logs_unavailable": "`muster cluster list` shows whether its agent is there; then ask again",
}
_STALLED: Final = "stalled"
"""Why an answer was cut whose output stood still: a follower asks again, from where it was."""


class EnoughError(Exception):
    """As much was printed as was asked for."""


class Limited:
    """Writes the first bytes of what comes, whole characters only."""

    def __init__(self, out: "Output", limit_bytes: int) -> None:
        self._out = out
        self._limit_bytes = limit_bytes
        self._left = limit_bytes

    def write(self, text: str) -> None:
        """Raises EnoughError where there is more than may be printed."""
        data = text.encode()
        if len(data) <= self._left:
            self._left -= len(data)
            self._out.write(text)
            return
        self._out.write(data[: self._left].decode(errors="ignore"))
        self._out.talk(f"there is more: only {self._limit_bytes} bytes were asked for (--limit-bytes)")
        raise EnoughError


type Write = Callable[[str], None]


def print_logs(session: "Session", path: str, parameters: "Parameters", write: Write) -> bool:
    """Whether anything came, and was given to `write`. Raises Problem, once all of it is printed, where the server did
    not tell it to its end.
    """
    cuts: list[str] = []
    came = False
    try:
        with session.api.stream(path, parameters, accept="text/plain") as response:
            for text in _pieces(response, cuts):
                write(text)
                came = came or bool(text)
    except EnoughError:
        return True
    if cuts:
        raise _cut_off(cuts[-1])
    return came


def follow_logs(session: "Session", patience: "Patience", path: str, parameters: "Parameters", write: Write) -> bool:
    """As `print_logs`, of what is still to come; where the line is cut it goes on where it was, once it can."""
    position = LogPosition(parameters)
    came = False
    while True:
        cuts: list[str] = []
        try:
            with session.api.stream(path, position.parameters(), accept="text/plain") as response:
                response.end_after(patience.remaining())
                for text in position.news(_pieces(response, cuts)):
                    write(text)
                    came = came or bool(text)
                    patience.check("followed")
                    response.end_after(patience.remaining())
        except EnoughError:
            return True
        except Problem as problem:
            patience.check("followed")
            patience.lost(problem)
        else:
            if not cuts or _code(cuts[-1]) != _STALLED:
                break
        patience.ask(partial(_is_there, session, path, parameters))
    if cuts:
        raise _cut_off(cuts[-1])
    return came


def _is_there(session: "Session", path: str, parameters: "Parameters") -> None:
    """Raises Problem where no logs can be told now."""
    pods = [(name, value) for name, value in parameters if name == "pod"]
    try:
        session.api.check(path, [*pods, ("tail", 0)])
    except Problem as problem:
        if problem.refusal != "no_such_run":
            raise


def _code(cut: str) -> str:
    return cut.removeprefix("(").partition("): ")[0]


def _cut_off(cut: str) -> Problem:
    code, _, why = cut.removeprefix("(").partition("): ")
    return Problem(
        "these logs are not whole: the server ended them early",
        why=(why,),
        todo=_TODO.get(code),
        code=_EXIT.get(code, ExitCode.FAILURE),
    )


def _pieces(response: "Stream", cuts: list[str]) -> "Iterator[str]":
    mark = response.headers.get(CUT_MARK)
    return without_cuts(response.texts(), mark, cuts) if mark else response.texts()


def without_cuts(pieces: "Iterable[str]", mark: str, cuts: list[str]) -> "Iterator[str]":
    """The same text, none of it later, but for the lines that begin with the mark: `(code): reason` goes to `cuts`."""
    held, begins = "", True
    for piece in pieces:
        told: list[str] = []
        for line in (held + piece).splitlines(keepends=True):
            held, whole = "", line.endswith("\n")
            if begins and line.startswith(mark) and whole:
                cuts.append(line.removeprefix(mark).strip())
            elif begins and not whole and (line.startswith(mark) or mark.startswith(line)):
                held = line  # what comes next decides
            else:
                told.append(line)
                begins = whole
        yield "".join(told)
    yield held
