"""Looks at the log from where it is written: whether it can be, and whether it has room for anything new.

A canary, a small write beside the log on the same server, tells the one; the stream's limit and the free space that
servers' keepers tell of, the other. What was seen decides whether `commands`, and through it the API, is ready.
"""

import asyncio
import contextlib
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from events.codec import UNDECODABLE
from events.subjects import ALL_ROOMS, LOG_STATE, SERVER_HEALTH, canary_subject
from services.commands.handle import LIMIT_REACHED, Commands
from services.runtime.log.jetstream import FIRST_SERVER_ERROR, JetStreamEventStore
from services.runtime.log.log_state import LogState
from services.runtime.nats.inboxes import inbox_prefix, is_inbox
from services.runtime.nats.jetstream_api import JetStreamError, decode_ack
from services.runtime.nats.requests import Requests, UnansweredError
from services.runtime.nats.streams import ask_servers
from services.runtime.process.host import Health

FULL_SHARE: Final = 0.9
"""Of the stream's limit: above it creations are refused, so that facts, releases and deletions still fit."""
FREE_SHARE: Final = 0.1
"""Of the servers' volume: the same, where the volume is smaller than the limit supposes…"""
MOST_KEPT_FREE_BYTES: Final = 1024**3
"""…but no more than that, however large it is: the last tenth of the log's own limit is 819 MB by default."""
LOOK_SECONDS: Final = 2.0
"""At 5,000 commits of 1 KB per second the log grows by 10 MB between two looks."""
LOOK_AGAIN_SECONDS: Final = 0.5
"""While it cannot be written."""
HEALTH_SECONDS: Final = 1.0
"""A server that is well answers at once; the canary tells of the others."""
CANARY_SECONDS: Final = 3.0
CANARY_BYTES: Final = 4096
"""A block of the disk: a smaller one may still fit where nothing else does."""
MOST_SERVERS: Final = 100
"""Whose words are remembered at once."""
ROOM_SECONDS: Final = 30.0
"""How long the word of a keeper counts: it says it anew every few seconds."""

log = structlog.get_logger(__name__)


class Room(msgspec.Struct, frozen=True):
    """What a server's keeper says of the volume."""

    free_bytes: int
    total_bytes: int

    def __post_init__(self) -> None:
        if not 0 <= self.free_bytes <= self.total_bytes < 2**63:
            raise ValueError(f"no volume has {self.free_bytes} bytes free of {self.total_bytes}"[:100])

    @property
    def is_short(self) -> bool:
        return self.free_bytes < min(FREE_SHARE * self.total_bytes, MOST_KEPT_FREE_BYTES)


@dataclass(frozen=True, slots=True)
class _Told:
    room: Room
    at: float


class _HealthData(msgspec.Struct, frozen=True):
    error: str = ""


class _ServerName(msgspec.Struct, frozen=True):
    name: str = ""


class _ServerHealth(msgspec.Struct, frozen=True):
    server: _ServerName = _ServerName()
    data: _HealthData = _HealthData()


class LogWatch:
    """One watch over the log, for one `commands`."""

    def __init__(
        self,
        connection: Client,
        store: JetStreamEventStore,
        commands: Commands,
        health: Health,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._connection = connection
        self._store = store
        self._commands = commands
        self._health = health
        self._clock = clock
        self._requests = Requests(connection)
        self._rooms: dict[str, _Told] = {}
        self._broken_servers: AbstractSet[str] = frozenset()
        self._state = LogState(trouble="not looked at yet")

    async def run(self) -> None:
        """For ever: look, and say what is so to whoever asks."""
        subscribe: Any = self._connection.subscribe  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        for subject, hear in ((ALL_ROOMS, self._on_room), (LOG_STATE, self._on_question)):
            await subscribe(subject, cb=hear)
        while True:
            await self.look()
            await asyncio.sleep(LOOK_AGAIN_SECONDS if self._state.trouble else LOOK_SECONDS)

    async def look(self) -> None:
        """Look once."""
        trouble, full = await asyncio.gather(self._trouble(), self._full())
        if trouble != self._state.trouble:
            if trouble:
                log.error("log_cannot_be_written", reason=trouble)
            else:
                log.info("log_can_be_written")
        self._state = LogState(trouble=trouble)
        if trouble:
            self._health.not_ready(f"the log cannot be written: {trouble}")
        else:
            self._health.ready()
        if full is not None and full != self._commands.log_full:
            log.warning("log_nearly_full" if full else "log_has_room_again", reason=full)
            self._commands.log_full = full

    async def _trouble(self) -> str:
        """Why the log cannot be written; empty where it can."""
        # A server that says that it is broken answers no canary.
        return await self._broken() or await self._canary()

    async def _canary(self) -> str:
        try:
            answer = await self._requests.ask(canary_subject("commands"), b"." * CANARY_BYTES, seconds=CANARY_SECONDS)
        except UnansweredError as error:
            return f"a small write was not acknowledged: {error}"
        error = decode_ack(answer).error
        return "" if error is None or error.code < FIRST_SERVER_ERROR else error.description

    async def _broken(self) -> str:
        """What servers say of themselves: one that met a full disk writes nothing more until it is started again."""
        try:
            answers = await ask_servers(self._connection, SERVER_HEALTH, seconds=HEALTH_SECONDS)
        except NatsError:
            return ""  # the canary tells
        reports = [msgspec.json.decode(answer, type=_ServerHealth) for answer in answers]
        broken = {report.server.name: report.data.error for report in reports if "write error" in report.data.error}
        if broken.keys() != self._broken_servers:
            log.warning("servers_that_cannot_write", servers=broken)
        self._broken_servers = broken.keys()
        # As long as most of a cluster can write, all of it can.
        return next(iter(broken.values())) if 2 * len(broken) > len(reports) else ""

    async def _full(self) -> str | None:
        """Why nothing new may be taken; empty where it may be, None where that is not known."""
        try:
            share = await self._store.fullness()
        except (UnansweredError, JetStreamError) as error:
            log.warning("log_size_unknown", error=str(error))
            return None
        if share >= FULL_SHARE:
            return LIMIT_REACHED
        for server, told in self._rooms.items():
            if told.room.is_short and self._clock() - told.at < ROOM_SECONDS:
                free = told.room.free_bytes // 1024**2
                return f"the disk of server {server} is nearly full ({free} MiB are free); an operator must make room"
        return ""

    async def _on_room(self, message: Msg) -> None:
        if message.headers or message.reply:
            return  # no keeper's word: a stream gave it out, with its answer sent here
        with contextlib.suppress(*UNDECODABLE):
            room = msgspec.json.decode(message.data, type=Room)
            self._rooms.pop(server := message.subject.rpartition(".")[2], None)
            self._rooms[server] = _Told(room, self._clock())
            if len(self._rooms) > MOST_SERVERS:
                del self._rooms[next(iter(self._rooms))]  # said longest ago

    async def _on_question(self, message: Msg) -> None:
        if is_inbox(message.reply, inbox_prefix("api")):
            await self._connection.publish(message.reply, msgspec.json.encode(self._state))
