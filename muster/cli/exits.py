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
    ExitCode.OK: "success",
    ExitCode.FAILURE: "any other failure; also: `muster log verify` or `muster doctor` found a problem",
    ExitCode.USAGE: "the command line is wrong, and nothing was sent",
    ExitCode.NOT_FOUND: "it does not exist, or you may not see it",
    ExitCode.DENIED: "you are not logged in, or not allowed to do this",
    ExitCode.CONFLICT: "the name is taken, the version has changed, or the workload has already ended",
    ExitCode.REJECTED: "a value breaks a rule or a policy",
    ExitCode.TIMED_OUT: "--timeout has passed",
    ExitCode.WORKLOAD_FAILED: "the workload that the command waited for did not complete",
    ExitCode.UNREACHABLE: "the server cannot be reached, or cannot answer at the moment",
    ExitCode.INTERRUPTED: "interrupted by Ctrl-C",
}


_STATUS_EXIT: Final[dict[int, ExitCode]] = {
    400: ExitCode.REJECTED,
    401: ExitCode.DENIED,
    403: ExitCode.DENIED,
    404: ExitCode.NOT_FOUND,
    409: ExitCode.CONFLICT,
    410: ExitCode.NOT_FOUND,
    412: ExitCode.CONFLICT,
    413: ExitCode.REJECTED,
    422: ExitCode.REJECTED,
    429: ExitCode.UNREACHABLE,
    502: ExitCode.UNREACHABLE,
    503: ExitCode.UNREACHABLE,
    504: ExitCode.UNREACHABLE,
}


def exit_code_of(status: int) -> ExitCode:
    """Of an answer of the API that is an error."""
    return _STATUS_EXIT.get(status, ExitCode.FAILURE)


class Problem(Exception):
    """Ends the command with a message.

    Attributes:
        what: one sentence that says what could not be done.
        why: lines that say why, for example one per field.
        todo: what to do next: a sentence, or a command to type.
        request_id: the request id of the API's answer, shown with --debug.
        refusal: the code of the API's refusal, such as `version_moved`. Empty if the API did not refuse.
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
