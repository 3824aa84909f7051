"""Exit codes of `muster`, and the one exception that ends a command with a sentence for a person.

Holds no output: `main` prints a Problem.
"""

from enum import IntEnum
from typing import Final


class ExitCode(IntEnum):
    """What the shell sees (experience.md 1.4). Scripts branch on these, so a number never changes its meaning."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    NOT_FOUND = 3
    DENIED = 4
    CONFLICT = 5
    REJECTED = 6
    TIMED_OUT = 7
    WORKLOAD_FAILED = 8
    UNREACHABLE = 9
    INTERRUPTED = 130


EXIT_CODE_MEANING: Final[dict[ExitCode, str]] = {
    ExitCode.OK: "done",
    ExitCode.FAILURE: "failed in a way that no other code names (also: verify found differences)",
    ExitCode.USAGE: "the command line is wrong; nothing was sent",
    ExitCode.NOT_FOUND: "there is no such thing, or it is not yours to see",
    ExitCode.DENIED: "not authenticated, or not permitted",
    ExitCode.CONFLICT: "the name exists, the version moved, or it is already finished",
    ExitCode.REJECTED: "a value breaks a rule or a policy",
    ExitCode.TIMED_OUT: "the time of --timeout is over",
    ExitCode.WORKLOAD_FAILED: "the workload that was waited for did not complete",
    ExitCode.UNREACHABLE: "the server cannot be reached, or cannot answer now",
    ExitCode.INTERRUPTED: "interrupted by Ctrl-C",
}


class Problem(Exception):
    """Ends the command.

    Attributes:
        what: one sentence: what could not be done.
        why: lines that say why, such as one per field.
        todo: what to do next, a sentence or a command to type.
        request_id: of the API's answer, shown with --debug.
        refusal: the code by which the API refused, such as `version_moved`; empty where it was something else.
    """

    def __init__(
        self,
        what: str,
        *,
        code: ExitCode,
        why: tuple[str, ...] = (),
        todo: str | None = None,
        request_id: str | None = None,
        refusal: str = "",
    ) -> None:
        super().__init__(what)
        self.what = what
        self.code = code
        self.why = why
        self.todo = todo
        self.request_id = request_id
        self.refusal = refusal


def usage(what: str, *, todo: str | None = None) -> Problem:
    """The command line is wrong."""
    return Problem(what, code=ExitCode.USAGE, todo=todo)
