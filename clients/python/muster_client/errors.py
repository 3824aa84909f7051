"""What can go wrong. Every error of this client is a MusterError."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec


class Issue(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong with a request."""

    field: str
    """Path, such as `spec.labels[0].name`."""
    details: str
    """What is wrong, what was given, what would do."""
    rule: str | None = None
    """The kind of rule that is broken."""


class MusterError(Exception):
    """Something went wrong; the text says what, for people."""


class RequestError(MusterError):
    """The API has refused a request."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        details: str | None = None,
        issues: Sequence[Issue] = (),
        request_id: str | None = None,
        retry_after_seconds: float = 0.0,
    ) -> None:
        told = [message.rstrip(), *(f"  {issue.field}: {issue.details}" for issue in issues)]
        super().__init__("\n".join(told))
        self.message = message
        self.status = status
        """The HTTP status; 0 if there was no answer."""
        self.details = details
        """The code of the refusal, such as `workload_has_ended`, if there is one."""
        self.issues = tuple(issues)
        """Everything that is wrong with the request, field by field."""
        self.request_id = request_id
        """Leads an operator to the log lines of the request."""
        self.retry_after_seconds = retry_after_seconds


class InvalidRequest(RequestError):
    """400: `issues` says what is wrong, field by field."""


class NotAuthenticated(RequestError):
    """401: the token is missing, expired or not trusted."""


class NotPermitted(RequestError):
    """403: your roles, or ownership protection, do not allow it."""


class NotFound(RequestError):
    """404: it does not exist, or you may not see it."""


class Conflict(RequestError):
    """409: it conflicts with how things are; `details` is the code of the reason."""


class Gone(RequestError):
    """410: it existed, and was deleted for good."""


class VersionMoved(RequestError):
    """412: the version in If-Match is no longer the newest."""


class TooManyRequests(RequestError):
    """429, again and again, for as long as the client tries."""


class Unavailable(RequestError):
    """The server, or a part of it, was away for as long as the client tries. What became of a change is unknown."""


class WaitTimeoutError(MusterError, TimeoutError):
    """A workload was not there in time. It goes on."""

    def __init__(self, name: str, phase: str, reason: str | None, timeout_seconds: float) -> None:
        super().__init__(f"{name} is still {phase} after {timeout_seconds:g} s" + (f": {reason}" if reason else ""))
        self.phase = phase
        self.reason = reason


class WorkloadEnded(MusterError):
    """A workload has ended, or stopped, in another phase than the one that was waited for."""

    def __init__(
        self, name: str, phase: str, reason: str | None, exit_code: int | None, awaited: Sequence[str]
    ) -> None:
        code = f" (exit code {exit_code})" if exit_code else ""
        why = f": {reason}" if reason else ""
        super().__init__(f"{name} is {phase}{code}{why}; waited for {' or '.join(awaited)}")
        self.phase = phase
        self.reason = reason
        self.exit_code = exit_code


class LogsCut(MusterError):
    """The server has ended the output of a workload early: the lines so far are not all."""

    def __init__(self, told: str) -> None:
        code, _, reason = told.strip().removeprefix("(").partition("): ")
        super().__init__(f"the output ends early: {reason or told}")
        self.details = code
        """The code of the reason, such as `not_permitted`."""


class EventsLost(MusterError):
    """Events may be missing: they are no longer kept. Look at things as they are now, then listen again."""


_BY_STATUS: Final[dict[int, type[RequestError]]] = {
    400: InvalidRequest,
    401: NotAuthenticated,
    403: NotPermitted,
    404: NotFound,
    408: Unavailable,
    409: Conflict,
    410: Gone,
    412: VersionMoved,
    429: TooManyRequests,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
}


class _Body(msgspec.Struct):
    message: str = ""
    details: str | None = None
    issues: list[Issue] = msgspec.field(name="complianceIssues", default_factory=list[Issue])


def error_of(status: int, content: bytes, headers: Mapping[str, str]) -> RequestError:
    """The error that an answer means, also one of a proxy before the server."""
    try:
        body = msgspec.json.decode(content, type=_Body)
    except msgspec.MsgspecError:
        body = _Body()
    retry_after = headers.get("retry-after", "")
    return _BY_STATUS.get(status, RequestError)(
        body.message or f"the answer was {status}",
        status=status,
        details=body.details,
        issues=body.issues,
        request_id=headers.get("x-request-id"),
        retry_after_seconds=float(retry_after) if retry_after.isdecimal() else 0.0,
    )
