"""Answers `agent.<cluster>.exec`: ways into pods, each between the inbox of the api that asked for it and the backend.

What comes out of a pod goes to the inbox, at the pace of who reads it; what goes in comes on the same subject,
numbered, a few frames at a time. Nothing of it is kept or logged here.
"""

import asyncio
import contextlib
from typing import Final

import msgspec
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from events.agent_bounds import MOST_SESSIONS
from events.channels import FRAME_BYTES, WINDOW
from events.cluster_protocol import SessionEnd, SessionFrame, SessionOpen, SessionTaken
from events.codec import UNDECODABLE
from events.ids import KEY_PATTERN
from events.subjects import agent_exec_subject
from services.agent.backends.interface import Backend, NoWayError, Way, WayEnd
from services.agent.hearing import hear
from services.runtime.nats.inboxes import exec_inbox, is_inbox
from services.runtime.nats.pace import NO_RESPONDERS, GoneError, Pace

PROBE_SECONDS: Final = 4.0
"""How often an empty frame is sent while nothing else is: so an api that is gone is noticed, and one where we are."""
SILENT_SECONDS: Final = 120.0
"""How long an api may take nothing; then it is taken for gone. Longer than it waits for a reader of its own."""
LONGEST_SECONDS: Final = 24 * 3600.0
"""Of any session, whatever an api says: it ends its own far earlier."""
MOST_UNTAKEN: Final = WINDOW + 4
"""Frames of an api that wait here: it sends no more than WINDOW, and signs of life."""
OPEN_SECONDS: Final = 20.0
"""For a backend to open a way, or to say why it cannot."""

log = structlog.get_logger(__name__)
_WORD: Final = msgspec.msgpack.Decoder(SessionOpen | SessionFrame | SessionTaken | SessionEnd)
_ENCODER: Final = msgspec.msgpack.Encoder()


class SessionServer:
    def __init__(self, nc: Client, cluster_id: str, backend: Backend) -> None:
        self._nc = nc
        self._cluster_id = cluster_id
        self._backend = backend
        self._sessions: dict[str, _Session] = {}
        """By the inbox that they are answered to."""
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def open(self) -> tuple[str, ...]:
        """Ids of the sessions that are open."""
        return tuple(session.request.session_id for session in self._sessions.values())

    async def serve(self) -> None:
        await hear(self._nc, agent_exec_subject(self._cluster_id), self._on_word, self._tasks)

    async def _on_word(self, message: Msg) -> None:
        if self._backend.standby():
            return  # who acts answers
        try:
            word = _WORD.decode(message.data)
        except UNDECODABLE as error:
            log.warning("session_word_not_understood", error=str(error))
            return
        if isinstance(word, SessionOpen):
            await self._open(word, message.reply)
        elif (session := self._sessions.get(word.inbox)) is not None:
            session.hear(word)

    async def _open(self, request: SessionOpen, inbox: str) -> None:
        if not is_inbox(inbox, exec_inbox(self._cluster_id)):
            log.warning("session_not_opened", reply=inbox, reason="its reply subject is no inbox for sessions")
            return None
        if inbox in self._sessions:
            return None
        if not all(map(KEY_PATTERN.match, (request.session_id, request.pod_key))):
            return await self._say(inbox, SessionEnd(reason="invalid", message="no such session id, or pod key"))
        if len(self._sessions) >= MOST_SESSIONS:
            told = f"{len(self._sessions)} sessions are open on this cluster already; try again later"
            return await self._say(inbox, SessionEnd(reason="too_many_sessions", message=told))
        session = self._sessions[inbox] = _Session(self._nc, request, inbox)
        task = asyncio.create_task(self._serve_one(session))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return None

    async def _serve_one(self, session: "_Session") -> None:
        end = WayEnd(reason="agent_stopped", message="the agent of its cluster stopped")
        try:
            async with asyncio.timeout(LONGEST_SECONDS):
                end = await session.run(self._backend)
        except NoWayError as error:
            end = WayEnd(reason=error.code, message=str(error))
        except TimeoutError:
            end = WayEnd(reason="time", message="it lasted for a day")
        except (GoneError, NatsError):
            end = WayEnd(reason="lost", message="the api is gone")
        except Exception:
            log.exception("session_failed", kind=session.request.kind, pod=session.request.pod_key)
            end = WayEnd(reason="failed", message="the agent failed")
        finally:
            del self._sessions[session.inbox]
            with contextlib.suppress(NatsError):
                await session.finish(end)

    async def _say(self, inbox: str, word: SessionEnd) -> None:
        await self._nc.publish(inbox, _ENCODER.encode(word))


class _Session:
    """One, between an inbox and a way into a pod."""

    def __init__(self, nc: Client, request: SessionOpen, inbox: str) -> None:
        self.request = request
        self.inbox = inbox
        self._nc = nc
        self._own_inbox = nc.new_inbox()
        self._pace = Pace(window=WINDOW, probe=self._probe, probe_seconds=PROBE_SECONDS, silent_seconds=SILENT_SECONDS)
        self._incoming: asyncio.Queue[SessionFrame] = asyncio.Queue()
        self._expected = 0
        """Number of the next frame from the api."""
        self._over: asyncio.Future[WayEnd] = asyncio.get_running_loop().create_future()
        """Set where the api ends it, or breaks its rules."""

    def hear(self, word: SessionFrame | SessionTaken | SessionEnd) -> None:
        match word:
            case SessionTaken():
                self._pace.taken()
            case SessionEnd():
                self._end(WayEnd(reason="closed"))
            case SessionFrame():
                if word.number != self._expected or self._incoming.qsize() >= MOST_UNTAKEN:
                    self._end(WayEnd(reason="lost", message="a part of what was sent was lost on the way"))
                    return
                self._expected += 1
                self._incoming.put_nowait(word)

    def _end(self, end: WayEnd) -> None:
        if not self._over.done():
            self._over.set_result(end)

    async def run(self, backend: Backend) -> WayEnd:
        """To its end. Raises NoWayError, GoneError, NatsError."""
        subscription = await self._nc.subscribe(  # pyright: ignore[reportUnknownMemberType]
            self._own_inbox, cb=self._on_nobody
        )
        way: Way | None = None
        try:
            try:
                async with asyncio.timeout(OPEN_SECONDS):
                    way = await backend.open_way(self.request)
            except TimeoutError:
                told = f"the cluster did not open a way within {OPEN_SECONDS:.0f} s"
                raise NoWayError("cluster_away", told) from None
            return await self._carry(way)
        finally:
            if way is not None:
                await way.close()
            if self._nc.is_connected:
                await subscription.unsubscribe()

    async def _carry(self, way: Way) -> WayEnd:
        coming, going = asyncio.create_task(self._out(way)), asyncio.create_task(self._in(way))
        try:
            await asyncio.wait({coming, going, self._over}, return_when=asyncio.FIRST_COMPLETED)
            for task in (coming, going):
                if task.done():
                    task.result()
            return self._over.result() if self._over.done() else way.end()
        finally:
            for task in (coming, going):
                task.cancel()
            await asyncio.gather(coming, going, return_exceptions=True)

    async def _out(self, way: Way) -> None:
        """What comes out of the pod; the first frame is empty: the way is open."""
        await self._probe()
        frames = aiter(way.frames())
        upcoming: asyncio.Future[bytes] | None = None
        try:
            while True:
                upcoming = upcoming or asyncio.ensure_future(anext(frames))
                done, _ = await asyncio.wait([upcoming], timeout=PROBE_SECONDS)
                await self._pace.room()
                if not done:
                    await self._probe()
                    continue
                frame, upcoming = upcoming.result(), None
                await self._send(frame)
        except StopAsyncIteration:
            return
        finally:
            if upcoming is not None:
                upcoming.cancel()
                await asyncio.gather(upcoming, return_exceptions=True)

    async def _in(self, way: Way) -> None:
        while True:
            word = await self._incoming.get()
            if word.data:
                await way.take(word.data)
            await self._nc.publish(self.inbox, _ENCODER.encode(SessionTaken()))

    async def _probe(self) -> None:
        """Where nobody listens, the server says so: only signs of life ask for that, since it costs the server some."""
        frame = SessionFrame(number=self._pace.number())
        await self._nc.publish(self.inbox, _ENCODER.encode(frame), reply=self._own_inbox)

    async def _send(self, data: bytes) -> None:
        assert len(data) <= FRAME_BYTES, "backends make frames that fit"
        await self._nc.publish(self.inbox, _ENCODER.encode(SessionFrame(number=self._pace.number(), data=data)))

    async def _on_nobody(self, message: Msg) -> None:
        if (message.headers or {}).get("Status") == NO_RESPONDERS:
            self._pace.gone()
            self._end(WayEnd(reason="lost", message="the api is gone"))

    async def finish(self, end: WayEnd) -> None:
        word = SessionEnd(number=self._pace.sent, reason=end.reason, message=end.message, exit_code=end.exit_code)
        if self._nc.is_connected:
            await self._nc.publish(self.inbox, _ENCODER.encode(word))
