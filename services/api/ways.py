"""Ways into pods, as WebSockets: `exec`, `attach` and `port-forward` (docs/concepts/sessions.md).

Who opens one is let in by the gate, and that stands in the log before the pod's cluster is asked. Nothing that goes
through is kept: frames are passed on between the client and the cluster's agent, at the pace of the slower one.
"""

import asyncio
import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from typing import Any, Final
from uuid import uuid4

import msgspec
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.errors import TimeoutError as NatsTimeoutError
from starlette.types import Receive, Send

from events.authorize import Permission, authorize
from events.channels import (
    CONNECTION_BYTES,
    DATA,
    EXEC_TO_POD,
    FORWARD,
    FRAME_BYTES,
    STATUS,
    STDERR,
    STDIN,
    STDOUT,
    SUBPROTOCOL,
    WINDOW,
)
from events.cluster_protocol import SessionEnd, SessionFrame, SessionOpen, SessionTaken, pod_key
from events.codec import UNDECODABLE
from events.commit import Actor
from events.decision import Context
from events.ids import key_of_id
from events.phases import PodPhase
from events.refusal import Refusal
from events.subjects import agent_exec_subject
from events.workload.commands import CloseSession, OpenSession
from events.workload.letting_in import shut_to
from events.workload.pod import Pod, PodId, pod_id
from events.workload.sessions import (
    MOST_COMMAND_CHARACTERS,
    MOST_PORTS,
    MOST_REASON_CHARACTERS,
    MOST_WORDS,
    Session,
    SessionKind,
)
from events.workload.state import Workload
from services.api.connections import GONE
from services.api.context import Call
from services.api.endpoint import Carry, SocketHandler
from services.api.errors import ApiError, bad_request, unavailable
from services.api.follows import CHECK_SECONDS, token_refusal
from services.api.issues import Issue, shown
from services.api.kinds import load_workload
from services.api.logs import wanted_pod
from services.api.operations import Operation, Query
from services.api.paths import WORKLOAD
from services.api.places import find_cluster, removal_of
from services.api.rules import SECRETS
from services.runtime.nats.inboxes import exec_inbox
from services.runtime.nats.pace import NO_RESPONDERS, Pace

OPEN_SECONDS: Final = 7.0
"""Within which an agent opens a way, or says why not: below the time of a request, with what comes before."""
SILENT_SECONDS: Final = 12.0
"""Between frames of an agent, which sends an empty one every few seconds."""
WAITING_BYTES: Final = 4 * 1024 * 1024
"""Of one session: more than an agent that keeps to its window sends."""
CLOSE_SECONDS: Final = 5.0
"""For the last words to a client."""
ROOM_SECONDS: Final = 30.0
LOOK_SECONDS: Final = 15.0
"""How often it is looked whose the workload is, which takes a look at the log."""
CONTAINER: Final = "main"
MOST_SIZE: Final = 10_000
MOST_PORT: Final = 65_535
MOST_EXIT_CODE: Final = 255
_STOPPING: Final = 1012
"""Code with which the server closes its WebSockets as it stops."""

_POD: Final = Query(name="pod", help="Such as main-0. Default: the first one that runs.")
_CONTAINER: Final = Query(
    name="container", type="choice", options=(CONTAINER,), default=CONTAINER, help="Container of the pod: it has one."
)
_TERMINAL: Final = (
    Query(name="stdin", type="boolean", default=False, help="Whether something can be typed."),
    Query(name="tty", type="boolean", default=False, help="Whether it has a terminal. Needs stdin."),
    Query(name="columns", type="integer", default=0, most=MOST_SIZE, help="Width of the terminal."),
    Query(name="rows", type="integer", default=0, most=MOST_SIZE, help="Height of the terminal."),
)
_STATUSES: Final = {
    "pod_not_running": 409,
    "no_processes": 409,
    "no_stdin": 409,
    "not_started": 409,
    "command_not_found": 409,
    "not_executable": 409,
    "working_dir": 409,
    "not_allowed": 409,
    "too_many_sessions": 429,
}
"""Of an agent's refusals; of any other, 503."""
_CODE: Final = re.compile(r"[a-z_]{1,40}\Z")
_WORD: Final = msgspec.msgpack.Decoder(SessionFrame | SessionTaken | SessionEnd)
_ENCODER: Final = msgspec.msgpack.Encoder()


class End(msgspec.Struct, frozen=True):
    """How a session ended, as its last frame and the log tell it."""

    reason: str
    message: str = ""
    exit_code: int | None = None


class _AgentError(Exception):
    """The agent cannot be heard; the end says why."""

    def __init__(self, end: End) -> None:
        super().__init__(end.message)
        self.end = end


def terminal_rules(values: Mapping[str, Any], _: AbstractSet[str]) -> Iterator[Issue]:
    if values["tty"] and not values["stdin"]:
        yield Issue(field="tty", details="needs stdin: give stdin=true, or leave tty out")


def exec_rules(values: Mapping[str, Any], given: AbstractSet[str]) -> Iterator[Issue]:
    """Of the command, too: it is kept in the log."""
    yield from terminal_rules(values, given)
    words: tuple[str, ...] = values["command"] or ()
    if not words or not words[0]:
        yield Issue(field="command", details="is missing: give one for each word of the command, such as command=ls")
    if len(words) > MOST_WORDS or sum(map(len, words)) > MOST_COMMAND_CHARACTERS:
        details = f"has at most {MOST_WORDS} words and {MOST_COMMAND_CHARACTERS} characters; put more into a file"
        yield Issue(field="command", details=details, rule="max")
    for kind, pattern in SECRETS:
        if any(pattern.search(word) for word in words):
            details = f"holds what looks like {kind}, and is kept in the log for ever; type it, or read it from a file"
            yield Issue(field="command", details=details)


def port_rules(values: Mapping[str, Any], _: AbstractSet[str]) -> Iterator[Issue]:
    ports: tuple[str, ...] = values["port"] or ()
    if not 0 < len(ports) <= MOST_PORTS:
        yield Issue(field="port", details=f"must be given once for each port, for 1 to {MOST_PORTS} of them")
    for port in ports:
        if not (port.isascii() and port.isdecimal() and 0 < int(port[:6]) <= MOST_PORT):
            yield Issue(field="port", details=f"must be a port from 1 to {MOST_PORT}, got {shown(port)}")


async def open_exec(call: Call) -> Carry:
    return await _open(call, "exec", command=call.values["command"])


async def open_attach(call: Call) -> Carry:
    return await _open(call, "attach")


async def open_port_forward(call: Call) -> Carry:
    return await _open(call, "port-forward", ports=tuple(dict.fromkeys(map(int, call.values["port"]))))


def _way(name: str, handler: SocketHandler, summary: str, **more: Any) -> tuple[Operation, SocketHandler]:
    async def none(_: Call) -> Any:
        raise AssertionError("it is no request that is answered once")

    operation = Operation(
        method="GET",
        path=f"{WORKLOAD}/{name}",
        id=handler.__name__,
        handler=none,
        summary=summary,
        tag="Workloads",
        ok=101,
        **more,
    )
    return operation, handler


WAYS: Final = (
    _way(
        "exec",
        open_exec,
        "Run a command in a pod of a workload",
        query=(
            _POD,
            _CONTAINER,
            Query(name="command", type="texts", help="Once for each word of the command."),
            *_TERMINAL,
        ),
        rules=exec_rules,
    ),
    _way(
        "attach",
        open_attach,
        "Follow, and write to, what runs in a pod of a workload",
        query=(_POD, _CONTAINER, *_TERMINAL),
        rules=terminal_rules,
    ),
    _way(
        "port-forward",
        open_port_forward,
        "Reach ports of a pod of a workload",
        query=(_POD, Query(name="port", type="texts", help="Once for each port of the container.")),
        rules=port_rules,
    ),
)
"""What is a WebSocket. They stand beside the operations of OpenAPI, which cannot say what goes through one."""


async def _open(call: Call, kind: SessionKind, *, command: tuple[str, ...] = (), ports: tuple[int, ...] = ()) -> Carry:
    if SUBPROTOCOL not in call.request.scope["subprotocols"]:
        details = f"must offer {SUBPROTOCOL}"
        raise bad_request([Issue(field="Sec-WebSocket-Protocol", details=details)])
    state = (await load_workload(call, call.id)).state
    call.require(Permission.EXEC, state.project_id)
    if removal := await removal_of(call, state.cluster_id):
        raise ApiError(410, f"cluster {removal.name!r} was removed by {removal.by}", details="cluster_removed")
    name, index = _chosen(call, state)
    kept = call.api.sessions
    give_back = call.take_slot(kept.slots, "sessions")
    relay: _Relay | None = None
    try:
        opening = OpenSession(
            workload_id=call.id,
            session_id=str(uuid4()),
            kind=kind,
            pod_set=name,
            index=index,
            seconds=int(kept.limits.longest_seconds),
            command=command,
            stdin=call.values.get("stdin", False),
            tty=call.values.get("tty", False),
            ports=ports,
        )
        # Never that of an Idempotency-Key: what is answered from memory would open a way that the log does not tell of.
        relay = _Relay(call, opening, give_back)
        accepted = await call.send(opening, command_id=str(uuid4()))
        relay.logged = True
        await relay.begin(_run_of(opening, (await load_workload(call, call.id, min_seq=accepted.seq)).state))
    except BaseException as error:
        if relay is None:
            give_back()
        else:
            await relay.finish(_why(error))
        raise
    return relay.carry


def _why(error: BaseException) -> End:
    """Why a session that was opened in the log was not in the cluster."""
    if isinstance(error, ApiError):
        return End(error.details or "failed", str(error)[:MOST_REASON_CHARACTERS])
    return End("agent_away" if isinstance(error, TimeoutError) else "failed", "it could not be opened")


def _chosen(call: Call, state: Workload) -> PodId:
    """The pod that is meant: that which is named, or the first that runs. Raises 400, 409."""
    if (wanted := wanted_pod(call, state)) is not None:
        return wanted
    for pod_set in state.pod_sets:
        running = [
            id_ for id_, pod in state.pods.live.items() if id_[0] == pod_set.name and pod.phase is PodPhase.RUNNING
        ]
        if running:
            return min(running)
    message = f"no pod of {state.name!r} runs now; it is {state.phase}"
    raise ApiError(409, message, details="pod_not_running")


def _run_of(opening: OpenSession, state: Workload) -> tuple[Session, Pod]:
    """What the log says that it leads to. Raises 409 where that ended in the same moment."""
    session = next((one for one in state.sessions if one.session_id == opening.session_id), None)
    pod = None if session is None else state.pods.live.get(pod_id(session.pod))
    if session is None or pod is None or not pod.is_run(session.pod):
        raise ApiError(409, "the pod ended a moment ago", details="pod_not_running")
    return session, pod


class _Relay:
    """One session, between its client and the agent of its cluster."""

    def __init__(self, call: Call, opening: OpenSession, give_back: Callable[[], None]) -> None:
        self._call = call
        self._opening = opening
        self._give_back = give_back
        self._nats = call.api.nats
        self._limits = call.api.sessions.limits
        self.logged = False
        """Whether the log tells of it."""
        self._cluster_id = ""
        self._project_id = ""
        self._inbox = ""
        self._subscription: Subscription | None = None
        self._pace = Pace(window=WINDOW, probe=_nothing, probe_seconds=ROOM_SECONDS, silent_seconds=float("inf"))
        self._expected = 0
        """Number of the agent's next frame."""
        self._agent_ended = False
        self._moved_at = 0.0
        self._bytes_in = 0
        self._bytes_out = 0

    async def begin(self, run: tuple[Session, Pod]) -> None:
        """Have the agent open it. Raises ApiError."""
        session, pod = run
        state = (await load_workload(self._call, self._call.id)).state
        self._cluster_id, self._project_id = state.cluster_id, state.project_id
        self._inbox = f"{exec_inbox(self._cluster_id)}.{self._nats.new_inbox().rsplit('.', 1)[-1]}"
        name, index = pod_id(session.pod)
        opening, values = self._opening, self._call.values
        request = SessionOpen(
            session_id=session.session_id,
            kind=session.kind,
            workload_id=opening.workload_id,
            pod_key=pod_key(key_of_id(opening.workload_id) or "", name, index),
            token=pod.token,
            command=opening.command,
            stdin=opening.stdin,
            tty=opening.tty,
            columns=values.get("columns", 0),
            rows=values.get("rows", 0),
            ports=opening.ports,
        )
        try:
            self._subscription = await self._nats.subscribe(  # pyright: ignore[reportUnknownMemberType]
                self._inbox, pending_bytes_limit=WAITING_BYTES
            )
            await self._nats.publish(agent_exec_subject(self._cluster_id), _ENCODER.encode(request), reply=self._inbox)
            word = await self._next(OPEN_SECONDS)
        except _AgentError as error:
            raise unavailable(error.end.message, details=error.end.reason) from None
        except NatsError as error:
            raise unavailable(f"the connection to the cluster's agent failed ({error})", details="agent_away") from None
        if isinstance(word, SessionEnd):
            self._agent_ended = True
            end = said_end(word)
            message = end.message or "the cluster's agent refused"
            raise ApiError(_STATUSES.get(end.reason, 503), message, details=end.reason)
        await self._say(SessionTaken(inbox=self._inbox))

    async def carry(self, receive: Receive, send: Send) -> None:
        end = End("failed", "the api failed")
        try:
            end = await self._run(receive, send)
        finally:
            await asyncio.shield(self._over(end, send))

    async def _over(self, end: End, send: Send) -> None:
        await self.finish(end)
        status = {"reason": end.reason, "message": end.message, "exitCode": end.exit_code}
        with contextlib.suppress(OSError, RuntimeError, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await send({"type": "websocket.send", "bytes": bytes((STATUS,)) + msgspec.json.encode(status)})
                await send({"type": "websocket.close", "code": 1000, "reason": end.reason})

    async def _run(self, receive: Receive, send: Send) -> End:
        request_id = self._call.request_id.encode("ascii")
        opening = self._opening
        headers = [
            (b"x-request-id", request_id),
            (b"x-session-id", opening.session_id.encode()),
            (b"x-pod", f"{opening.pod_set}-{opening.index}".encode()),
        ]
        await send({"type": "websocket.accept", "subprotocol": SUBPROTOCOL, "headers": headers})
        self._moved()
        tasks = [
            asyncio.create_task(work) for work in (self._into(receive), self._out_of(send), self._watch(), self._gone())
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            # What the agent said counts more than that the client left upon it.
            return next(task for task in (tasks[1], *tasks) if task in done).result()
        except (NatsError, _AgentError) as error:
            return error.end if isinstance(error, _AgentError) else End("agent_away", "the connection to it failed")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def finish(self, end: End) -> None:
        """Let the agent and the log know that it is over, and give back what it held."""
        if self._subscription is not None:
            with contextlib.suppress(NatsError):
                if not self._agent_ended:
                    await self._say(SessionEnd(inbox=self._inbox))
                if self._nats.is_connected:
                    await self._subscription.unsubscribe()
            self._subscription = None
        if self.logged:
            self.logged = False
            self._call.api.sessions.tell_end(
                CloseSession(
                    workload_id=self._opening.workload_id,
                    session_id=self._opening.session_id,
                    reason=end.reason,
                    message=end.message,
                    exit_code=end.exit_code,
                    bytes_in=self._bytes_in,
                    bytes_out=self._bytes_out,
                )
            )
        self._give_back()

    # -- the two directions ------------------------------------------------------------------------------------------

    async def _into(self, receive: Receive) -> End:
        """What the client sends goes to the agent, until the client leaves."""
        possible = FORWARD if self._opening.kind == "port-forward" else EXEC_TO_POD
        while True:
            message = await receive()
            if message["type"] != "websocket.receive":
                stops = message.get("code") == _STOPPING
                return End("api_stopped", "the api stopped") if stops else End("left", "the client left")
            data = message.get("bytes")
            if not data or len(data) > FRAME_BYTES or data[0] not in possible:
                return End("invalid", f"a frame is 1 to {FRAME_BYTES} bytes, of which the first says what it is")
            await self._pace.room()
            self._bytes_in += _size(data)
            self._moved()
            await self._say(SessionFrame(number=self._pace.number(), data=data, inbox=self._inbox))

    async def _out_of(self, send: Send) -> End:
        """What the agent sends goes to the client, until it is over. Raises _AgentError."""
        while True:
            word = await self._next(SILENT_SECONDS)
            match word:
                case SessionTaken():
                    self._pace.taken()
                case SessionEnd():
                    self._agent_ended = True
                    return said_end(word)
                case SessionFrame():
                    if word.data:
                        self._bytes_out += _size(word.data)
                        self._moved()
                        try:
                            async with asyncio.timeout(self._limits.stalled_seconds):
                                await send({"type": "websocket.send", "bytes": word.data})
                        except TimeoutError:
                            return End("stalled", "what was sent was not read for too long")
                        except OSError:
                            return End("left", "the client left")
                    await self._say(SessionTaken(inbox=self._inbox))

    async def _next(self, seconds: float) -> SessionFrame | SessionTaken | SessionEnd:
        """The agent's next word. Raises _AgentError."""
        assert self._subscription is not None, "it was begun"
        try:
            message = await self._subscription.next_msg(timeout=seconds)
        except (NatsTimeoutError, TimeoutError):
            raise _AgentError(End("agent_away", "the cluster's agent does not answer")) from None
        word = _understood(message)
        if isinstance(word, SessionTaken):
            return word
        if word.number != self._expected:
            raise _AgentError(End("lost", "a part of what came was lost on the way"))
        self._expected += 1
        return word

    async def _say(self, word: SessionFrame | SessionTaken | SessionEnd) -> None:
        await self._nats.publish(agent_exec_subject(self._cluster_id), _ENCODER.encode(word))

    # -- its bounds --------------------------------------------------------------------------------------------------

    def _moved(self) -> None:
        self._moved_at = time.monotonic()

    async def _watch(self) -> End:
        """Until its time is over, nothing goes through any more, or its client may not have it any more."""
        call, over_at = self._call, time.monotonic() + self._limits.longest_seconds
        look_at = time.monotonic() + LOOK_SECONDS
        while True:
            await asyncio.sleep(min(CHECK_SECONDS, self._limits.idle_seconds, self._limits.longest_seconds))
            now = time.monotonic()
            if now >= over_at:
                return End("time", f"a session lasts for {self._limits.longest_seconds / 3600:g} h at most")
            if now - self._moved_at >= self._limits.idle_seconds:
                return End("idle", f"nothing went through it for {self._limits.idle_seconds / 60:g} min")
            refusal = await token_refusal(call)
            refusal = refusal or authorize(call.api.roles.grants(call.actor), Permission.EXEC, self._project_id)
            if refusal is None and now >= look_at:
                look_at = now + LOOK_SECONDS
                refusal = await self._shut()
            if refusal is not None:
                return End(refusal.code, refusal.message[:MOST_REASON_CHARACTERS])

    async def _shut(self) -> Refusal | None:
        """Why its client would not be let in any more, as where the workload was given to another owner."""
        call = self._call
        try:
            state = (await load_workload(call, self._opening.workload_id)).state
            cluster = await find_cluster(call, self._cluster_id)
        except ApiError:
            return None  # nobody knows now; it is asked again
        context = Context(
            now=datetime.now(UTC),
            actor=Actor(id=call.actor),
            command_id="",
            version=0,
            protected=cluster is None or cluster.ownership_protection,
            override=call.api.roles.grants(call.actor).allows(Permission.OVERRIDE_OWNERSHIP, self._project_id),
        )
        return shut_to(state, context)

    async def _gone(self) -> End:
        """Until the client's connection is no more, also where nobody reads from it now."""
        gone: asyncio.Event = self._call.request.scope["state"].get(GONE) or asyncio.Event()
        await gone.wait()
        return End("left", "the client's connection is gone")


def said_end(word: SessionEnd) -> End:
    """What an agent says of an end, as far as it is one: it is kept for ever, and closes the WebSocket."""
    reason = word.reason or "ended"
    reason = reason if _CODE.match(reason) else "failed"
    exit_code = word.exit_code if word.exit_code is not None and 0 <= word.exit_code <= MOST_EXIT_CODE else None
    return End(reason, word.message[:MOST_REASON_CHARACTERS], exit_code)


async def _nothing() -> None:
    pass


def _size(frame: bytes) -> int:
    """Bytes of what a frame carries; of words about connections, none."""
    if frame[0] in (STDIN, STDOUT, STDERR):
        return len(frame) - 1
    return max(len(frame) - 1 - CONNECTION_BYTES, 0) if frame[0] == DATA else 0


def _understood(message: Msg) -> SessionFrame | SessionTaken | SessionEnd:
    """Raises _AgentError."""
    if (message.headers or {}).get("Status") == NO_RESPONDERS:
        raise _AgentError(End("agent_away", "the cluster's agent is away, or serves no sessions"))
    try:
        word = _WORD.decode(message.data)
    except UNDECODABLE:
        raise _AgentError(End("failed", "the cluster's agent sent what is not understood")) from None
    if isinstance(word, SessionFrame) and len(word.data) > FRAME_BYTES:
        raise _AgentError(End("failed", "the cluster's agent sent a frame that is too large"))
    return word
