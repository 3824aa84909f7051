"""What both clients share: requests as data, pauses between tries, lines and frames of a stream. No I/O, no clock."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast
from urllib.parse import quote

import msgspec

from muster_client.errors import LogsCut, RequestError, Unavailable, WaitTimeoutError, WorkloadEnded
from muster_client.model import Model, decoded, encoded
from muster_client.models import PublicEvent, Workload

type Value = str | int | float | bool | Sequence[str] | None

FIRST_PAUSE_SECONDS: Final = 0.5
LONGEST_PAUSE_SECONDS: Final = 30.0
POLL_SECONDS: Final = 0.3
"""Between two looks at a workload that is waited for; the server answers one in milliseconds."""
SLOW_POLL_SECONDS: Final = 1.0
"""After half a minute, when nobody notices a second."""
QUICK_FOR_SECONDS: Final = 30.0
MOST_DIGITS: Final = 18
"""Of a sequence."""
SEEN_EVENTS: Final = 1_000
"""Ids of events that are remembered, since one may come again after a reconnect: far more than are on their way."""
MOST_LINE_BYTES: Final = 64 * 1024 * 1024
"""Of output without a line feed, such as a progress bar's; a stream that never ends a line would take all memory."""
GO_ON: Final = frozenset({"stalled", "stopping", "roles_changed", "not_authenticated"})
"""Ends of a stream after which another may begin where it was. Without a new token, that is refused by then."""


@dataclass(frozen=True, slots=True)
class Request[T]:
    """A request that is not sent yet, and the type of its answer: `str` where that is text."""

    method: str
    path: str
    answer: type[T]
    query: Sequence[tuple[str, Value]] = ()
    headers: Sequence[tuple[str, str | None]] = ()
    body: Model | None = None
    keyed: bool = False
    """Whether it has an Idempotency-Key, with which a change can be sent again."""

    @property
    def may_be_repeated(self) -> bool:
        return self.keyed or self.method == "GET"

    def parameters(self) -> list[tuple[str, str | int | float | bool | None]]:
        """The query, without what is None."""
        flat: list[tuple[str, str | int | float | bool | None]] = []
        for name, value in self.query:
            if isinstance(value, bool):
                flat.append((name, "true" if value else "false"))
            elif isinstance(value, str | int | float):
                flat.append((name, value))
            elif value is not None:
                flat += [(name, one) for one in value]
        return flat

    def content(self) -> bytes | None:
        return None if self.body is None else encoded(self.body)

    def read(self, content: bytes) -> T:
        if self.answer is str:
            return content.decode(errors="replace")  # pyright: ignore[reportReturnType]
        try:
            return decoded(content, self.answer)
        except msgspec.MsgspecError as error:
            raise RequestError(f"the answer is none that this client knows; is it Muster's? {error}") from error


def authorization(token: str) -> str:
    """The header of a token. Raises ValueError, which does not tell it: others may read what is raised."""
    token = token.strip()
    if not (token.isascii() and token.isprintable()):
        raise ValueError("the token has characters that no header can have; give it as it was issued")
    return f"Bearer {token}"


def path(template: str, *values: str) -> str:
    """A path with values in its places, whatever signs they have."""
    for value in values:
        if value in {"", ".", ".."}:
            raise ValueError(f"{value!r} is no id or name; it would lead to another path than {template}")
    return template.format(*(quote(value, safe="") for value in values))


def pause_seconds(tries: int, asked_seconds: float = 0.0) -> float:
    """How long to wait after so many failed tries: longer each time, by chance up to a half more."""
    doubled = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** min(tries, 10))
    return max(asked_seconds, doubled) * random.uniform(1.0, 1.5)  # noqa: S311 - no secret


def poll_seconds(spent_seconds: float) -> float:
    return POLL_SECONDS if spent_seconds < QUICK_FOR_SECONDS else SLOW_POLL_SECONDS


def reached(workload: Workload, phases: Sequence[str]) -> bool:
    """Whether it is in one of the phases; where none is given, Completed, or of an inference, which never completes,
    Running. Raises WorkloadEnded where it will not get there by itself.
    """
    phases = phases or (("Running",) if workload.type == "Inference" else ("Completed",))
    phase = "Deleted" if workload.deleted_at else workload.phase
    # It may be deleted as soon as it has completed, and it has been running, though nobody looked meanwhile.
    completed = phase == "Completed" or (phase in {"Deleting", "Deleted"} and workload.exit_code == 0)
    if phase in phases or (completed and not {"Completed", "Running"}.isdisjoint(phases)):
        return True
    ended = phase in {"Deleted", "Completed", "Failed"} or (phase == "Stopped" and workload.desired_phase == "Stopped")
    if ended and not (phase != "Deleted" and "Deleted" in phases):
        raise WorkloadEnded(workload.name, phase, workload.phase_message, workload.exit_code, phases)
    return False


def not_in_time(workload: Workload, timeout_seconds: float) -> WaitTimeoutError:
    return WaitTimeoutError(workload.name, workload.phase, workload.phase_message, timeout_seconds)


def sequence_of(headers: Mapping[str, str]) -> int:
    """Of the log, of which an answer speaks; 0 if it says none."""
    told = headers.get("x-log-sequence", "")
    return int(told) if told.isascii() and told.isdecimal() and len(told) <= MOST_DIGITS else 0


def is_beyond_the_log(error: RequestError) -> bool:
    """Whether a request was refused since the log does not have what this client has seen."""
    return any(issue.field == "X-Log-Sequence" for issue in error.issues)


@dataclass(frozen=True, slots=True)
class Told:
    """What a stream of public events told."""

    place: str
    """Give it to `follow_events` as `last_event_id` to go on behind it, even much later."""
    event: PublicEvent | None
    """None: it begins here; or, every 15 s if nothing else comes, nothing else has happened up to now."""
    lost: str | None = None
    """A sentence, if events before this place may be missing, since they are no longer kept."""


class Lines:
    """Lines of what comes in pieces. Only a line feed ends one: other signs may stand in a log or in an event."""

    def __init__(self, cut_mark: str | None = None) -> None:
        """`cut_mark`: how the line begins that says why these are not all. No pod can know it."""
        self._begun: list[bytes] = []
        self._begun_bytes = 0
        self._cut_mark = cut_mark

    def feed(self, piece: bytes) -> Iterator[str]:
        """Raises LogsCut, and RequestError of a line of more than MOST_LINE_BYTES."""
        first, *others = piece.split(b"\n")
        self._begun.append(first)
        self._begun_bytes += len(first)
        if self._begun_bytes > MOST_LINE_BYTES:
            raise RequestError(f"a line of more than {MOST_LINE_BYTES:,} bytes came")
        if not others:
            return
        *lines, rest = b"".join(self._begun), *others
        self._begun, self._begun_bytes = [rest], len(rest)
        for line in lines:
            text = line.decode(errors="replace").removesuffix("\r")
            if self._cut_mark and text.startswith(self._cut_mark):
                raise LogsCut(text.removeprefix(self._cut_mark))
            yield text

    def rest(self) -> Iterator[str]:
        """A last line that nothing has ended."""
        if self._begun_bytes:
            yield b"".join(self._begun).decode(errors="replace")


class Frames:
    """A stream of server-sent events, line by line: where it is, and which events it has told already."""

    def __init__(self, last_event_id: str | None) -> None:
        self.place = last_event_id
        self._fields: dict[str, str] = {}
        self._seen: dict[str, None] = {}
        self._away = False

    def connected(self) -> None:
        """Another connection begins. What the last one had begun to tell is void."""
        self._fields, self._away = {}, False

    def take(self, line: str) -> Told | None:
        """What a line completes, if anything. Raises StreamEndedError."""
        if line:
            name, _, value = line.partition(":")
            self._fields[name] = value.removeprefix(" ")
            return None
        fields, self._fields = self._fields, {}
        match fields.get("event"):
            case None:
                return self._moved(fields)
            case "gap":
                return Told(self.place or "", None, lost=_note(fields).message)
            case "end":
                raise StreamEndedError(_note(fields))
            case name:
                self._away = name == "away" or (self._away and name != "back")
                return None

    def _moved(self, fields: dict[str, str]) -> Told | None:
        if not fields.get("id"):
            return None
        before, self.place = self.place, fields["id"]
        if "data" not in fields:
            # The first frame of a connection says where it goes on. That is no news, and something may be behind it.
            goes_on = "retry" in fields and before is not None
            return None if goes_on or self._away else Told(self.place, None)
        event = event_of(fields["data"])
        if event.id in self._seen:
            return None
        self._seen[event.id] = None
        if len(self._seen) > SEEN_EVENTS:
            del self._seen[next(iter(self._seen))]
        return Told(self.place, event)


class StreamEndedError(Exception):
    """The server has ended a stream of events."""

    def __init__(self, note: "_Note") -> None:
        super().__init__(note.message)
        self.may_go_on = note.code in GO_ON
        self.error = Unavailable(f"the stream of events has ended: {note.message}", details=note.code)


class _Note(msgspec.Struct):
    code: str = ""
    message: str = ""


def _note(fields: dict[str, str]) -> _Note:
    return decoded(fields.get("data") or "{}", _Note)


def event_of(data: str | bytes) -> PublicEvent:
    """A CloudEvent in JSON, wherever it came from: a stream, a webhook, an export."""
    return decoded(data, cast(Any, PublicEvent))
