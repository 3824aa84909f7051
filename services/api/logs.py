"""What pods wrote: asked of the agent of their cluster, and passed on as text while it comes.

The agent answers in chunks to an inbox of this request alone, and goes on when it is told on its own subject that they
were taken: so the slowest reader sets the pace, and nothing piles up. Nothing is kept here.
"""

import asyncio
import hashlib
import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import TimeoutError as NatsTimeoutError
from starlette.responses import Response

from events.authorize import Permission
from events.cluster_protocol import LogLine, LogsChunk, LogsRequest, LogsTaken, pod_key
from events.codec import UNDECODABLE, check_moment
from events.ids import key_of_id
from events.phases import FINISHED, DesiredPhase, PodPhase
from events.refusal import Refusal
from events.subjects import agent_logs_subject
from events.workload.pod import PodRef
from events.workload.state import Workload
from services.api.context import Call, Query, rfc3339
from services.api.errors import ApiError, bad_request, unavailable
from services.api.follows import STALLED, followed_answer
from services.api.issues import Issue, shown
from services.api.places import Removal, removal_of
from services.api.streamed import Streamed
from services.api.trainings import load_workload
from services.api.workloads import parse_moment
from services.runtime.nats.inboxes import logs_inbox

FIRST_CHUNK_SECONDS: Final = 5.0
"""An agent that is there answers within milliseconds, also where there is nothing to tell."""
QUIET_SECONDS: Final = 60.0
"""Between chunks of an answer that has an end."""
POLL_SECONDS: Final = 0.5
"""How often a follower looks whether a pod was started or started again."""
MAX_FOLLOWED_PODS: Final = 100
"""Pods whose lines one request mixes; for more, name one."""
WAITING_PIECES: Final = 4
"""Pieces that wait for a slow reader before the agents are slowed down."""
WAITING_BYTES: Final = 4 * 1024 * 1024
"""Of one run: more than an agent that keeps to its window sends; what one sends beyond it is dropped."""
MAX_REASON_CHARACTERS: Final = 500
"""Of what an agent says of a log that it cannot tell, or of what is wrong with what it sent."""
TEXT: Final = "text/plain; charset=utf-8"
MAX_TAIL_LINES: Final = 1_000_000
CUT_MARK: Final = "X-Cut-Mark"
"""Header: how a line begins that says why not all is told."""
_AGO: Final = re.compile(r"^([0-9]{1,9})(s|m|h|d)$")
_UNIT_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


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
LOGS: Final = (
    Query(name="follow", type="boolean", default=False, help="Go on until the workload's pods have ended."),
    Query(name="tail", type="integer", most=MAX_TAIL_LINES, help="Only the last lines of each pod."),
    SINCE,
    Query(name="pod", help="Only of this pod, such as main-0. Default: all, each line with its pod's name."),
    Query(name="timestamps", type="boolean", default=False, help="Each line after its time."),
    Query(name="previous", type="boolean", default=False, help="Of each pod the run before its newest one."),
    Query(name="attempt", type="integer", least=1, help="Of each pod the newest run of this attempt."),
    Query(name="run", type="integer", least=1, help="With attempt: this run of it, from 1."),
)

READER_DIGITS: Final = 16
"""Of a digest of who reads: agents share their places out by it, and need not know who it is."""

_POD: Final = re.compile(r"^(?:.*-)?([a-z]{1,20})-([0-9]{1,9})$")
_NO_RESPONDERS: Final = "503"

type PodId = tuple[str, int]


class _AgentError(Exception):
    """The agent cannot tell; the message says why."""

    def __init__(self, message: str, *, no_such_run: bool = False) -> None:
        super().__init__(message)
        self.no_such_run = no_such_run


def run_rules(values: Mapping[str, Any], _: AbstractSet[str]) -> Iterator[Issue]:
    """Where the parameters that choose a run do not go together."""
    chosen = [name for name in ("previous", "attempt", "run") if values[name] not in {None, False}]
    if values["follow"] and chosen:
        yield Issue(field=chosen[0], details="does not go with follow, which tells of every run from now on")
    if values["run"] is not None and values["attempt"] is None:
        details = "needs attempt: each attempt counts its runs from 1"
        yield Issue(field="run", details=details, involves=frozenset({"attempt"}))
    if values["previous"] and values["attempt"] is not None:
        yield Issue(field="previous", details="does not go with attempt; leave one of them out")


async def workload_logs(call: Call) -> Response:
    state = (await load_workload(call, call.id)).state
    wanted = _wanted_pod(call, state)
    if removal := await removal_of(call, state.cluster_id):
        raise _gone(removal)
    asked = _Asked(call, state, name_pods=wanted is None and sum(s.count for s in state.pod_sets) > 1)
    if call.values["follow"]:
        return followed_answer(
            call,
            _followed(asked, wanted),
            media_type=TEXT,
            permission=Permission.READ,
            project_id=state.project_id,
            last_line=asked.cut,
            headers=asked.headers,
        )
    pods = [wanted] if wanted is not None else started_pods(state)
    pieces = _kept(asked, pods)
    try:
        # The first piece is awaited here, so that an agent that is away is an error and no empty text.
        head = await anext(pieces, b"")
    except _AgentError as error:
        if error.no_such_run:
            raise ApiError(404, str(error), details="no_such_run") from None
        raise unavailable(str(error), details="logs_unavailable") from None

    async def body() -> AsyncGenerator[bytes]:
        yield head
        async for piece in _told(asked, pieces):
            yield piece

    held = AsyncExitStack()
    held.push_async_callback(pieces.aclose)
    return Streamed(body(), media_type=TEXT, held=held, last_words=asked.cut(STALLED), headers=asked.headers)


def _gone(removal: Removal) -> ApiError:
    """No answer can come any more: no agent is asked."""
    return ApiError(
        410,
        f"cluster {removal.name!r} was removed on {removal.at:%Y-%m-%d at %H:%M:%S} UTC by {removal.by}: Muster no "
        "longer reaches the logs of its pods. What is left of them is where it was: in MUSTER_DATA_DIR of the agent of "
        "that cluster, and on Kubernetes, as long as a pod is there, behind `kubectl logs`",
        details="cluster_removed",
    )


class _Asked:
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

    async def lines(self, pod: PodId, run: PodRef | None, *, follow: bool) -> AsyncIterator[bytes]:
        """The text of one pod's run, in pieces. Raises _AgentError."""
        name, index = pod
        request = LogsRequest(
            workload_id=self.state.workload_id,
            pod_key=pod_key(key_of_id(self.state.workload_id) or "", name, index),
            pod=run,
            follow=follow,
            tail_lines=self.call.values["tail"],
            since=self.call.values["since"],
            previous=self.call.values["previous"],
            attempt=self.call.values["attempt"],
            try_=None if self.call.values["run"] is None else self.call.values["run"] - 1,
            reader=self._reader,
        )
        prefix = f"{name}-{index}: " if self._name_pods else ""
        async for chunk in self._chunks(request):
            text = "".join(self._line(line, prefix) for line in chunk.lines)
            if text:
                yield text.encode("utf-8", "replace")
            if chunk.error:
                raise _AgentError(chunk.error[:MAX_REASON_CHARACTERS], no_such_run=chunk.no_such_run)

    async def _chunks(self, request: LogsRequest) -> AsyncIterator[LogsChunk]:
        nats = self.call.api.nats
        inbox = f"{logs_inbox(self.state.cluster_id)}.{nats.new_inbox().rsplit('.', 1)[-1]}"
        subscription = await nats.subscribe(  # pyright: ignore[reportUnknownMemberType]
            inbox, pending_bytes_limit=WAITING_BYTES
        )
        try:
            subject = agent_logs_subject(self.state.cluster_id)
            await nats.publish(subject, msgspec.json.encode(request), reply=inbox)
            seconds: float | None = FIRST_CHUNK_SECONDS
            while True:
                chunk = _understood(await _next(subscription, seconds))
                yield chunk
                if chunk.end:
                    return
                # Only now: what was not passed on yet is not asked to be followed by more.
                await nats.publish(subject, msgspec.json.encode(LogsTaken(inbox=inbox)))
                # A followed pod may be silent for days.
                seconds = None if request.follow else QUIET_SECONDS
        finally:
            await subscription.unsubscribe()

    def _line(self, line: LogLine, prefix: str) -> str:
        time = f"{rfc3339(line.at)} " if self.call.values["timestamps"] else ""
        return f"{prefix}{time}{line.text}\n"


async def _next(subscription: Subscription, seconds: float | None) -> Msg:
    """The next message. Raises _AgentError where the agent is not there or fell silent."""
    try:
        message = await subscription.next_msg(timeout=seconds)
    except (NatsTimeoutError, TimeoutError):
        raise _AgentError("the cluster's agent does not answer; try again") from None
    if (message.headers or {}).get("Status") == _NO_RESPONDERS:
        raise _AgentError("the cluster's agent is away; its pods keep their logs, try again later")
    return message


def _understood(message: Msg) -> LogsChunk:
    """Raises _AgentError where the agent sent something else, or a time that cannot be told."""
    try:
        chunk = msgspec.json.decode(message.data, type=LogsChunk)
        for line in chunk.lines:
            check_moment("a line's time", line.at)
    except UNDECODABLE as error:
        reason = " ".join(str(error).split())[:MAX_REASON_CHARACTERS]
        raise _AgentError(f"the cluster's agent sent what is no part of a log: {reason}") from None
    return chunk


async def _kept(asked: _Asked, pods: list[PodId]) -> AsyncGenerator[bytes]:
    """Pods without such a run are passed over, unless none has one. Raises _AgentError."""
    missing: list[_AgentError] = []
    for pod in pods:
        try:
            async for piece in asked.lines(pod, None, follow=False):
                yield piece
        except _AgentError as error:
            if not error.no_such_run:
                raise
            missing.append(error)
    if missing and len(missing) == len(pods):
        raise missing[0]


async def _followed(asked: _Asked, wanted: PodId | None) -> AsyncGenerator[bytes]:
    """Lines of every run from now on, in the order in which they come, until no run can come any more."""
    pieces: asyncio.Queue[bytes] = asyncio.Queue(maxsize=WAITING_PIECES)
    runs: dict[PodRef, asyncio.Task[None]] = {}

    async def read(run: PodRef) -> None:
        async for piece in _told(asked, asked.lines((run.pod_set, run.index), run, follow=True)):
            await pieces.put(piece)

    loop = asyncio.get_running_loop()
    over_since: float | None = None
    try:
        async for piece in _told(asked, _ended_before(asked, wanted)):
            yield piece
        while True:
            state = (await load_workload(asked.call, asked.call.id, creation=True)).state
            for run in _running(state, wanted):
                if run not in runs and sum(not task.done() for task in runs.values()) < MAX_FOLLOWED_PODS:
                    runs[run] = asyncio.create_task(read(run))
            over_since = (over_since or loop.time()) if _is_over(state, wanted) else None
            read_out = all(task.done() for task in runs.values())
            # An agent that went away does not say that its pods have ended.
            if (
                over_since is not None
                and pieces.empty()
                and (read_out or loop.time() - over_since > FIRST_CHUNK_SECONDS)
            ):
                return
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    piece = await pieces.get()
            except TimeoutError:
                continue
            yield piece
            while not pieces.empty():
                yield pieces.get_nowait()
    finally:
        for task in runs.values():
            task.cancel()
        await asyncio.gather(*runs.values(), return_exceptions=True)


async def _told(asked: _Asked, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same; what the agent cannot tell becomes the last line."""
    try:
        async for piece in pieces:
            yield piece
    except _AgentError as error:
        yield asked.cut(Refusal(code="logs_unavailable", message=str(error)))


def _ended_before(asked: _Asked, wanted: PodId | None) -> AsyncIterator[bytes]:
    """What pods that are over by now have written."""
    going_on = {(run.pod_set, run.index) for run in _running(asked.state, wanted)}
    started = started_pods(asked.state) if wanted is None else [wanted]
    over = [pod for pod in started if pod not in going_on and _has_run(asked.state, pod)]
    return _kept(asked, over)


def started_pods(state: Workload) -> list[PodId]:
    """Pods that ever had a node, in order."""
    return [(name, index) for name, progress in sorted(state.progress.items()) for index in range(progress.next_index)]


def _has_run(state: Workload, pod: PodId) -> bool:
    progress = state.progress.get(pod[0])
    return progress is not None and pod[1] < progress.next_index


def _running(state: Workload, wanted: PodId | None) -> list[PodRef]:
    """Runs that may still write."""
    return [
        PodRef(pod_set=name, index=index, attempt=pod.attempt, try_=pod.try_)
        for (name, index), pod in sorted(state.pods.items())
        if pod.phase is not PodPhase.PENDING and (wanted is None or wanted == (name, index))
    ]


def _is_over(state: Workload, wanted: PodId | None) -> bool:
    """Whether no run can come any more: an end, a stop, or a pod that succeeded."""
    if _running(state, wanted):
        return False
    if state.phase in FINISHED or state.desired is not DesiredPhase.RUNNING:
        return True
    return wanted is not None and _has_run(state, wanted) and wanted not in state.pods


def _wanted_pod(call: Call, state: Workload) -> PodId | None:
    given: str | None = call.values["pod"]
    if given is None:
        return None
    match = _POD.match(given)
    counts = {pod_set.name: pod_set.count for pod_set in state.pod_sets}
    if match is None or int(match[2]) >= counts.get(match[1], 0):
        sets = ", ".join(
            f"{name}-0" + (f" to {name}-{count - 1}" if count > 1 else "") for name, count in counts.items()
        )
        raise bad_request([Issue(field="pod", details=f"{shown(given)} is no pod of this workload; it has {sets}")])
    return match[1], int(match[2])
