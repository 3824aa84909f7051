"""Answers `agent.<cluster>.logs`: the lines of one run as chunks to the asker's inbox, at the asker's pace."""

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from events.cluster_protocol import LogLine, LogsChunk, LogsRequest
from events.subjects import agent_logs_subject
from services.agent.backends.interface import Backend, LogsUnavailableError

ANSWERS_AT_ONCE: Final = 64
"""Readers of logs served at the same time; one more is told to come again."""
CHUNK_CHARACTERS: Final = 128 * 1024
"""Text in one message: below a message's limit of 1 MB also where JSON needs six bytes for every character."""
CHUNK_LINES: Final = 1000
WINDOW: Final = 8
"""Chunks on their way that the asker has not acknowledged."""
SILENT_SECONDS: Final = 30.0
"""How long an acknowledgement may take; then the asker is taken for gone."""
FIRST_WORD_SECONDS: Final = 2.0
"""Whoever has acknowledged nothing by then cannot, and is served at the bounded rate."""
PAUSE_SECONDS: Final = 0.02
"""After each chunk, where the asker does not acknowledge: at most some 6 MiB a second."""
LONGEST_SECONDS: Final = 24 * 3600.0
"""How long one request is answered; whoever still follows asks again."""
IDLE_PROBE_SECONDS: Final = 15.0
"""How often an empty chunk is sent while nothing is written: so an asker that is gone is noticed."""
_NO_RESPONDERS: Final = "503"

log = structlog.get_logger(__name__)


class _AskerGoneError(Exception):
    pass


class LogServer:
    def __init__(self, nc: Client, cluster_id: str, backend: Backend) -> None:
        self._nc = nc
        self._cluster_id = cluster_id
        self._backend = backend
        self._answers: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        subscription = await self._nc.subscribe(  # pyright: ignore[reportUnknownMemberType]
            agent_logs_subject(self._cluster_id), cb=self._on_request
        )
        try:
            await asyncio.Event().wait()
        finally:
            for answer in self._answers:
                answer.cancel()
            await asyncio.gather(*self._answers, return_exceptions=True)
            if self._nc.is_connected:
                await subscription.unsubscribe()

    async def _on_request(self, message: Msg) -> None:
        if not message.reply:
            return
        try:
            request = msgspec.json.decode(message.data, type=LogsRequest)
        except msgspec.DecodeError as error:
            await _send(self._nc, message.reply, LogsChunk(end=True, error=f"request not understood: {error}"))
            return
        if len(self._answers) >= ANSWERS_AT_ONCE:
            error = f"{ANSWERS_AT_ONCE} readers of logs are being served already; try again later"
            await _send(self._nc, message.reply, LogsChunk(end=True, error=error))
            return
        task = asyncio.create_task(self._answer(request, message.reply))
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    async def _answer(self, request: LogsRequest, reply: str) -> None:
        asker = _Asker(self._nc, reply, acknowledges=request.acknowledged)
        await asker.open()
        error = ""
        try:
            async with asyncio.timeout(LONGEST_SECONDS):
                await self._stream(request, asker)
        except LogsUnavailableError as unavailable:
            error = str(unavailable)
        except TimeoutError:
            error = "followed for a day; ask again to go on"
        except (_AskerGoneError, NatsError):
            await asker.close()
            return
        except Exception:
            log.exception("logs_failed", pod=request.pod_key)
            error = "the agent could not read the logs"
        await asker.close()
        await _send(self._nc, reply, LogsChunk(end=True, error=error))

    async def _stream(self, request: LogsRequest, asker: "_Asker") -> None:
        lines = aiter(self._backend.logs(request))
        upcoming: asyncio.Future[Sequence[LogLine]] | None = None
        try:
            while True:
                upcoming = upcoming or asyncio.ensure_future(anext(lines))
                done, _ = await asyncio.wait([upcoming], timeout=IDLE_PROBE_SECONDS)
                if not done:
                    await asker.send(())
                    continue
                batch, upcoming = upcoming.result(), None
                for chunk in chunks(batch):
                    await asker.send(chunk)
        except StopAsyncIteration:
            return
        finally:
            if upcoming is not None and not upcoming.done():
                upcoming.cancel()
                await asyncio.gather(upcoming, return_exceptions=True)


class _Asker:
    """The other end: takes chunks, tells how far it is, and is noticed when it is gone."""

    def __init__(self, nc: Client, reply: str, *, acknowledges: bool) -> None:
        self._nc = nc
        self._reply = reply
        self._acknowledges = acknowledges
        self._inbox = nc.new_inbox()
        self._on_the_way = 0
        self._heard_from = False
        self._gone = False
        self._heard = asyncio.Event()

    async def open(self) -> None:
        self._subscription = await self._nc.subscribe(  # pyright: ignore[reportUnknownMemberType]
            self._inbox, cb=self._on_word
        )

    async def _on_word(self, message: Msg) -> None:
        if (message.headers or {}).get("Status") == _NO_RESPONDERS:
            self._gone = True
        else:
            self._heard_from = True
            self._on_the_way = max(self._on_the_way - 1, 0)
        self._heard.set()

    async def send(self, lines: Sequence[LogLine]) -> None:
        """Raises _AskerGoneError."""
        await self._wait_for_room()
        self._on_the_way += 1
        await self._nc.publish(self._reply, msgspec.json.encode(LogsChunk(lines=tuple(lines))), reply=self._inbox)
        if not self._acknowledges:
            self._on_the_way = 0
            await asyncio.sleep(PAUSE_SECONDS)

    async def _wait_for_room(self) -> None:
        while not self._gone and self._on_the_way >= WINDOW:
            self._heard.clear()
            try:
                async with asyncio.timeout(SILENT_SECONDS if self._heard_from else FIRST_WORD_SECONDS):
                    await self._heard.wait()
            except TimeoutError:
                if self._heard_from:
                    raise _AskerGoneError from None
                self._acknowledges = False
                self._on_the_way = 0
        if self._gone:
            raise _AskerGoneError

    async def close(self) -> None:
        if self._nc.is_connected:
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
