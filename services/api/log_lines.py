"""The lines of one run, asked of the agent of its cluster: chunk by chunk, each counted, and from a place on.

The agent answers in chunks to an inbox of this request alone, and goes on when it is told on its own subject that they
were taken: so the slowest reader sets the pace, and nothing piles up. Nothing is kept here.
"""

import hashlib
import re
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.errors import TimeoutError as NatsTimeoutError

from events.cluster_protocol import LogLine, LogsChunk, LogsRequest, LogsTaken, pod_key
from events.codec import UNDECODABLE, check_moment
from events.ids import key_of_id
from events.refusal import Refusal
from events.subjects import agent_logs_subject
from events.workload.pod import PodId, PodRef
from events.workload.state import Workload
from services.api.context import Call, rfc3339
from services.api.moments import parse_moment
from services.api.operations import Query
from services.runtime.nats.inboxes import logs_inbox

FIRST_CHUNK_SECONDS: Final = 5.0
"""An agent that is there answers within milliseconds, also where there is nothing to tell."""
QUIET_SECONDS: Final = 60.0
"""Between chunks of an answer that has an end."""
SILENT_SECONDS: Final = 12.0
"""Between chunks of an answer that goes on: an agent that has nothing to tell sends an empty one every few seconds."""
WAITING_BYTES: Final = 4 * 1024 * 1024
"""Of one run: more than an agent that keeps to its window sends; what one sends beyond it is dropped, and noticed."""
MAX_REASON_CHARACTERS: Final = 500
"""Of what an agent says of a log that it cannot tell, or of what is wrong with what it sent."""
READER_DIGITS: Final = 16
"""Of a digest of who reads: agents share their places out by it, and need not know who it is."""
CUT_MARK: Final = "X-Cut-Mark"
"""Header: how a line begins that says why not all is told."""
_AGO: Final = re.compile(r"^([0-9]{1,9})(s|m|h|d)$")
_UNIT_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_NO_RESPONDERS: Final = "503"


class AgentError(Exception):
    """The agent cannot tell; the message says why."""

    def __init__(self, message: str, *, no_such_run: bool = False) -> None:
        super().__init__(message)
        self.no_such_run = no_such_run


@dataclass(slots=True)
class Place:
    """How far the log of one run was told: the time of its last line, and how many lines of that very time."""

    at: datetime | None = None
    lines: int = 0

    def pass_by(self, at: datetime) -> None:
        self.at, self.lines = at, self.lines + 1 if at == self.at else 1


def parse_since(given: str) -> datetime:
    """A time, or how long ago one was. Raises BadValueError."""
    ago = _AGO.match(given)
    if ago is None:
        return parse_moment(given, or_else=", or as a time ago such as 10m")
    try:
        return datetime.now(UTC) - timedelta(seconds=int(ago[1]) * _UNIT_SECONDS[ago[2]])
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)


SINCE: Final = Query(name="since", read=parse_since, help="RFC 3339, or a time ago such as 90s, 10m, 2h or 1d.")


class Asked:
    """One request for logs."""

    def __init__(self, call: Call, state: Workload, *, name_pods: bool) -> None:
        self.call = call
        self.state = state
        self._name_pods = name_pods
        self._mark = f"muster {secrets.token_hex(4)}: this ends here"
        who = call.identity
        self._reader = hashlib.sha256(f"{who.iss}\n{who.sub}".encode()).hexdigest()[:READER_DIGITS]

    @property
    def headers(self) -> dict[str, str]:
        """What tells a cut from what a pod wrote: no pod can know it."""
        return {CUT_MARK: self._mark}

    def cut(self, reason: Refusal) -> bytes:
        """The line that says why not all is told."""
        return f"{self._mark} ({reason.code}): {reason.message}\n".encode()

    async def lines(self, request: LogsRequest, pod: PodId, place: Place) -> AsyncIterator[bytes]:
        """The text of one run from a place on, in pieces; the place goes along. Raises AgentError."""
        begin, told = place.at, place.lines
        if begin is not None:
            request = msgspec.structs.replace(request, since=begin, tail_lines=None)
        prefix = f"{pod[0]}-{pod[1]}: " if self._name_pods else ""
        async for chunk in self._chunks(request):
            texts: list[str] = []
            for line in chunk.lines:
                if told and line.at == begin:
                    told -= 1
                    continue
                place.pass_by(line.at)
                texts.append(self._line(line, prefix))
            if texts:
                yield "".join(texts).encode("utf-8", "replace")
            if chunk.error:
                raise AgentError(chunk.error[:MAX_REASON_CHARACTERS], no_such_run=chunk.no_such_run)

    def request(self, pod: PodId, run: PodRef | None, *, follow: bool) -> LogsRequest:
        """What is asked of the agent; `run`: None for the one that the query means."""
        name, index = pod
        values = self.call.values
        return LogsRequest(
            workload_id=self.state.workload_id,
            pod_key=pod_key(key_of_id(self.state.workload_id) or "", name, index),
            pod=run,
            follow=follow,
            tail_lines=values["tail"],
            since=values["since"],
            previous=values["previous"],
            attempt=values["attempt"],
            try_=None if values["run"] is None else values["run"] - 1,
            reader=self._reader,
        )

    async def _chunks(self, request: LogsRequest) -> AsyncIterator[LogsChunk]:
        try:
            async for chunk in self._answer(request):
                yield chunk
        except NatsError as error:
            raise AgentError(f"the connection to the cluster's agent failed ({error}); try again") from None

    async def _answer(self, request: LogsRequest) -> AsyncIterator[LogsChunk]:
        nats = self.call.api.nats
        inbox = f"{logs_inbox(self.state.cluster_id)}.{nats.new_inbox().rsplit('.', 1)[-1]}"
        subscription = await nats.subscribe(  # pyright: ignore[reportUnknownMemberType]
            inbox, pending_bytes_limit=WAITING_BYTES
        )
        number, seconds = 0, FIRST_CHUNK_SECONDS
        try:
            subject = agent_logs_subject(self.state.cluster_id)
            await nats.publish(subject, msgspec.json.encode(request), reply=inbox)
            while True:
                chunk = understood(await _next(subscription, seconds))
                if chunk.number != number:
                    raise AgentError("a part of this log was lost on the way; try again")
                yield chunk
                if chunk.end:
                    return
                number += 1
                # Only now: what was not passed on yet is not asked to be followed by more.
                await nats.publish(subject, msgspec.json.encode(LogsTaken(inbox=inbox)))
                seconds = SILENT_SECONDS if request.follow else QUIET_SECONDS
        finally:
            if nats.is_connected:
                await subscription.unsubscribe()

    def _line(self, line: LogLine, prefix: str) -> str:
        time = f"{rfc3339(line.at)} " if self.call.values["timestamps"] else ""
        return f"{prefix}{time}{line.text}\n"


async def _next(subscription: Subscription, seconds: float) -> Msg:
    """The next message. Raises AgentError where the agent is not there or fell silent."""
    try:
        message = await subscription.next_msg(timeout=seconds)
    except (NatsTimeoutError, TimeoutError):
        raise AgentError("the cluster's agent does not answer; try again") from None
    if (message.headers or {}).get("Status") == _NO_RESPONDERS:
        raise AgentError("the cluster's agent is away; the logs of its pods are kept, so try again later")
    return message


def understood(message: Msg) -> LogsChunk:
    """Raises AgentError where the agent sent something else, or a time that cannot be told."""
    try:
        chunk = msgspec.json.decode(message.data, type=LogsChunk)
        for line in chunk.lines:
            check_moment("a line's time", line.at)
    except UNDECODABLE as error:
        reason = " ".join(str(error).split())[:MAX_REASON_CHARACTERS]
        raise AgentError(f"the cluster's agent sent an invalid part of a log: {reason}") from None
    return chunk


async def told(asked: Asked, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same; what the agent cannot tell becomes the last line."""
    try:
        async for piece in pieces:
            yield piece
    except AgentError as error:
        yield asked.cut(Refusal(code="logs_unavailable", message=str(error)))
