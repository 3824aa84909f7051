"""A look at a NATS server from beside it: whether it stores what is written, and how much room its disk has.

Speaks just enough of the protocol for that, because what looks after servers imports the standard library and its
neighbours only. Each look is a connection of its own; it changes nothing but the newest canary.
"""

import asyncio
import json
import os
import ssl
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from events.subjects import SERVER_HEALTH, canary_subject, room_subject

USER: Final = "keeper"
CANARY_BYTES: Final = 4096
"""A block of the disk: a smaller one may still fit into the last block while nothing else does."""
LOOK_SECONDS: Final = 3.0
"""Within which all must be answered. A write takes well under a second on a disk that is only slow."""
_CANARY: Final = "canary"
_HEALTH: Final = "health"


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Of the volume that a server's streams are on."""

    free_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Where it is, and as whom to ask it."""

    port: int
    password: str
    store: Path
    """The folder of its streams."""
    host: str = "127.0.0.1"
    tls: ssl.SSLContext | None = None
    tls_name: str = ""
    """Whom its certificate must name, where that is not `host`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What was seen."""

    answers: bool
    """Whether it speaks at all. One that is starting, or stands still, does not."""
    broken: str = ""
    """What the server itself says is wrong with its writing: it stays so until it is started again."""
    stored: bool = False
    """Whether the canary was stored, or there is nowhere to store it yet."""


def room_of(folder: Path) -> Room:
    """As the file system says it, for those who are not root."""
    volume = os.statvfs(folder)
    return Room(free_bytes=volume.f_bavail * volume.f_frsize, total_bytes=volume.f_blocks * volume.f_frsize)


async def look_at(server: Server, room: Room) -> Look:
    """Tell everybody how much room there is, write a canary, and ask the server how it is."""
    conversation = _Conversation(server, room)
    try:
        async with asyncio.timeout(LOOK_SECONDS):
            await conversation.run()
    except (OSError, TimeoutError, ValueError, KeyError, asyncio.IncompleteReadError):
        pass  # what was heard until then is what there is
    finally:
        conversation.close()
    return Look(answers=conversation.greeted, broken=conversation.broken, stored=conversation.stored)


class _Conversation:
    def __init__(self, server: Server, room: Room) -> None:
        self._server = server
        self._room = room
        self._writer: asyncio.StreamWriter | None = None
        self._name = ""
        self.greeted = False
        self.stored = False
        self.broken = ""

    async def run(self) -> None:
        server = self._server
        reader, writer = await asyncio.open_connection(server.host, server.port)
        self._writer = writer
        info = json.loads((await reader.readline()).removeprefix(b"INFO "))
        self._name = str(info["server_name"])
        if server.tls is not None:
            await writer.start_tls(server.tls, server_hostname=server.tls_name or server.host)
        self.greeted = True
        writer.write(self._questions())
        waiting = {_CANARY, _HEALTH}
        # A server that says that it is broken answers no canary.
        while waiting and not self.broken:
            line = (await reader.readline()).split()
            if not line or line[0] == b"-ERR":
                return
            if line[0] == b"PING":
                writer.write(b"PONG\r\n")
            if line[0] not in (b"MSG", b"HMSG"):
                continue
            body = (await reader.readexactly(int(line[-1]) + 2))[:-2]
            if line[0] == b"HMSG":
                body = body[int(line[-2]) :]  # headers alone: nobody listens there
            waiting.discard(self._hear(line[1].decode().rpartition(".")[2], body))

    def close(self) -> None:
        if self._writer is not None:
            with suppress(OSError, RuntimeError):
                self._writer.close()

    def _questions(self) -> bytes:
        connect = {"verbose": False, "pedantic": False, "user": USER, "pass": self._server.password, "name": USER}
        more = {"lang": "python", "version": "1", "protocol": 1, "headers": True, "no_responders": True}
        room = {"free_bytes": self._room.free_bytes, "total_bytes": self._room.total_bytes}
        return b"".join(
            (
                b"CONNECT " + json.dumps(connect | more).encode() + b"\r\n",
                f"SUB _INBOX_{USER}.* 1\r\n".encode(),
                _publish(room_subject(self._name), "", json.dumps(room).encode()),
                _publish(canary_subject(self._name), _CANARY, b"." * CANARY_BYTES),
                _publish(SERVER_HEALTH, _HEALTH, b"{}"),
            )
        )

    def _hear(self, topic: str, body: bytes) -> str:
        """Take an answer in; the question that it ends."""
        answer: Any = json.loads(body or b"{}")
        if topic == _CANARY:
            # An error below 500 is one of our own rules: who tells of it can write.
            self.stored = int(answer.get("error", {}).get("code", 0)) < 500  # noqa: PLR2004 (as in HTTP)
            return _CANARY
        if body and answer["server"]["name"] != self._name:
            return ""  # another one of the cluster
        self.broken = write_error(answer.get("data", {}))
        return _HEALTH


def write_error(data: dict[str, Any]) -> str:
    """What a server's report of its health says about writing; empty where nothing is wrong with that."""
    error = str(data.get("error", ""))
    return error if "write error" in error else ""


def _publish(subject: str, topic: str, payload: bytes) -> bytes:
    reply = f" _INBOX_{USER}.{topic}" if topic else ""
    return f"PUB {subject}{reply} {len(payload)}\r\n".encode() + payload + b"\r\n"
