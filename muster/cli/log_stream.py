"""Prints what pods wrote while it comes, and says where that is not all of it."""

from typing import TYPE_CHECKING, Final

from muster.cli.exits import ExitCode, Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from muster.cli.command import Session
    from muster.cli.http import Parameters

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


def print_logs(session: "Session", path: str, parameters: "Parameters") -> bool:
    """Whether anything came. Raises Problem, once all of it is printed, where the server did not tell it to its end."""
    cuts: list[str] = []
    came = False
    with session.api.stream(path, parameters, accept="text/plain") as response:
        mark = response.headers.get(CUT_MARK)
        for text in without_cuts(response.texts(), mark, cuts) if mark else response.texts():
            session.out.write(text)
            came = came or bool(text)
    if cuts:
        code, _, why = cuts[-1].removeprefix("(").partition("): ")
        raise Problem(
            "these logs are not whole: the server ended them early",
            why=(why,),
            todo=_TODO.get(code),
            code=_EXIT.get(code, ExitCode.FAILURE),
        )
    return came


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
