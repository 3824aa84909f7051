"""Answers `agent.<cluster>.logs`: the lines of one run as chunks to the asker's inbox, at the asker's pace.

The asker says on the same subject what it has taken: so it needs no right to write into an inbox of the agent's.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from events.cluster_protocol import LogLine, LogsChunk, LogsRequest, LogsTaken
from events.codec import UNDECODABLE
from events.ids import KEY_PATTERN
from events.subjects import agent_logs_subject
from services.agent.backends.interface import Backend, LogsUnavailableError
from services.agent.hearing import hear
from services.runtime.nats.inboxes import is_inbox, logs_inbox
from services.runtime.nats.pace import NO_RESPONDERS, GoneError, Pace

ANSWERS_AT_ONCE: Final = 512
"""Runs whose logs are being told, at the same time; one more is told to come again."""
ANSWERS_EACH: Final = 100
"""Of one reader, so that nobody takes them all: as many pods as one request of the api mixes."""
CHUNK_CHARACTERS: Final = 64 * 1024
"""Text in one message: below a message's limit of 1 MB also where JSON needs six bytes for every character."""
CHUNK_LINES: Final = 1000
WINDOW: Final = 4
"""Chunks on their way that the asker has not taken: with CHUNK_CHARACTERS, what a reader that stands still costs it."""
SILENT_SECONDS: Final = 60.0
"""How long an asker may take nothing; then it is taken for gone. Longer than the api waits for a reader of its own."""
PROBE_SECONDS: Final = 5.0
"""How often an asker that takes nothing is asked for a sign: the server says at once where nobody listens."""
LONGEST_SECONDS: Final = 24 * 3600.0
"""How long one request is answered; whoever still follows asks again."""
IDLE_PROBE_SECONDS: Final = 4.0
"""How often an empty chunk is sent while nothing is written: so an asker that is gone is noticed, and an asker notices
where we are gone.
"""
FIRST_WORD_SECONDS: Final = 1.0
"""After which an asker hears that somebody is here, also where nothing was written yet: the api waits for five."""

log = structlog.get_logger(__name__)


class LogServer:
    def __init__(self, nc: Client, cluster_id: str, backend: Backend) -> None:
        self._nc = nc
        self._cluster_id = cluster_id
        self._backend = backend
        self._answers: set[asyncio.Task[None]] = set()
        self._askers: dict[str, _Asker] = {}
        """By the inbox that they are answered to."""

    async def serve(self) -> None:
        await hear(self._nc, agent_logs_subject(self._cluster_id), self._on_request, self._answers)

    async def _on_request(self, message: Msg) -> None:
        if self._backend.standby():
            return  # who acts answers
        if message.reply and not is_inbox(message.reply, logs_inbox(self._cluster_id)):
            log.warning("logs_not_sent", reply=message.reply, reason="its reply subject is no inbox for logs")
            return
        try:
            request = msgspec.json.decode(message.data, type=LogsRequest | LogsTaken)
        except UNDECODABLE as error:
            if message.reply:
                await _send(self._nc, message.reply, LogsChunk(end=True, error=f"request not understood: {error}"))
            return
        if isinstance(request, LogsTaken):
            if asker := self._askers.get(request.inbox):
                asker.taken()
            return
        if not message.reply or message.reply in self._askers:
            return
        if not KEY_PATTERN.match(request.pod_key):  # it becomes part of a path
            await _send(self._nc, message.reply, LogsChunk(end=True, error="request not understood: no such pod_key"))
            return
        if error := self._too_many(request.reader):
            await _send(self._nc, message.reply, LogsChunk(end=True, error=error))
            return
        asker = self._askers[message.reply] = _Asker(self._nc, message.reply, request.reader)
        task = asyncio.create_task(self._answer(request, asker))
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    def _too_many(self, reader: str) -> str:
        of_reader = sum(asker.reader == reader for asker in self._askers.values())
        if of_reader >= ANSWERS_EACH:
            return f"you read the logs of {of_reader} pods already, and may of {ANSWERS_EACH}; end some of it first"
        if len(self._askers) >= ANSWERS_AT_ONCE:
            return f"the logs of {len(self._askers)} pods are being read already; try again later"
        return ""

    async def _answer(self, request: LogsRequest, asker: "_Asker") -> None:
        error, no_such_run = "", False
        try:
            await asker.open()
            async with asyncio.timeout(LONGEST_SECONDS):
                await self._stream(request, asker)
        except LogsUnavailableError as unavailable:
            error, no_such_run = str(unavailable), unavailable.no_such_run
        except TimeoutError:
            error = "followed for a day; ask again to go on"
        except (GoneError, NatsError):
            return
        except Exception:
            log.exception("logs_failed", pod=request.pod_key)
            error = "the agent could not read the logs"
        finally:
            del self._askers[asker.inbox]
            await asker.close()
        last = LogsChunk(number=asker.sent, end=True, error=error, no_such_run=no_such_run)
        await _send(self._nc, asker.inbox, last)

    async def _stream(self, request: LogsRequest, asker: "_Asker") -> None:
        lines = aiter(self._backend.logs(request))
        upcoming: asyncio.Future[Sequence[LogLine]] | None = None
        patience = FIRST_WORD_SECONDS
        try:
            while True:
                upcoming = upcoming or asyncio.ensure_future(anext(lines))
                done, _ = await asyncio.wait([upcoming], timeout=patience)
                patience = IDLE_PROBE_SECONDS
                if not done:
                    await asker.send(())
                    continue
                batch, upcoming = upcoming.result(), None
                for chunk in chunks(batch):
                    await asker.send(chunk)
        except StopAsyncIteration:
            return
        finally:
            if upcoming is not None:
                # Also where it is done: whatever it ended with is heard here.
                upcoming.cancel()
                await asyncio.gather(upcoming, return_exceptions=True)


class _Asker:
    """The other end: takes chunks, says so, and is noticed when it is gone."""

    def __init__(self, nc: Client, inbox: str, reader: str) -> None:
        self.inbox = inbox
        self.reader = reader
        self._nc = nc
        self._own_inbox = nc.new_inbox()
        self._subscription: Subscription | None = None
        self._pace = Pace(
            window=WINDOW,
            probe=lambda: self._publish(()),
            probe_seconds=PROBE_SECONDS,
            silent_seconds=SILENT_SECONDS,
        )

    @property
    def sent(self) -> int:
        return self._pace.sent

    async def open(self) -> None:
        self._subscription = await self._nc.subscribe(  # pyright: ignore[reportUnknownMemberType]
            self._own_inbox, cb=self._on_word
        )

    async def _on_word(self, message: Msg) -> None:
        """The server's word that nobody listens."""
        if (message.headers or {}).get("Status") == NO_RESPONDERS:
            self._pace.gone()

    def taken(self) -> None:
        self._pace.taken()

    async def send(self, lines: Sequence[LogLine]) -> None:
        """Raises GoneError."""
        await self._pace.room()
        await self._publish(lines)

    async def _publish(self, lines: Sequence[LogLine]) -> None:
        chunk = LogsChunk(number=self._pace.number(), lines=tuple(lines))
        await self._nc.publish(self.inbox, msgspec.json.encode(chunk), reply=self._own_inbox)

    async def close(self) -> None:
        if self._subscription is not None and self._nc.is_connected:
            await self._subscription.unsubscribe()


def chunks(lines: Sequence[LogLine]) -> list[tuple[LogLine, ...]]:
    """Lines in groups that fit a message."""
    groups: list[tuple[LogLine, ...]] = []
    group: list[LogLine] = []
    size = 0
    for line in lines:
        if group and (size + len(line.text) > CHUNK_CHARACTERS or len(group) >= CHUNK_LINES):
            groups.append(tuple(group))
            group, size = [], 0
        group.append(line)
        size += len(line.text)
    if group:
        groups.append(tuple(group))
    return groups


async def _send(nc: Client, subject: str, chunk: LogsChunk) -> None:
    if nc.is_connected:
        await nc.publish(subject, msgspec.json.encode(chunk))
