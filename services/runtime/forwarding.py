"""TCP connections over one session: the frames of events/channels.py, of either end.

Each connection has a window of its own in each direction, so that one which stands still holds up no other. What comes
is taken at once, always: whoever sends beyond the window is cut off.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Final, Protocol

from events.channels import (
    CONNECT,
    CONNECTION_BYTES,
    DATA,
    EOF,
    FRAME_BYTES,
    MOST_CONNECTIONS,
    RESET,
    TAKEN,
    WINDOW,
)

READ_BYTES: Final = FRAME_BYTES - 1 - CONNECTION_BYTES
MOST_REASON_BYTES: Final = 500
CONNECT_SECONDS: Final = 10.0
_PORT_BYTES: Final = 2
_MOST_WAITING: Final = MOST_CONNECTIONS * (WINDOW + 4)
"""Frames that wait to be sent: as many as windows let there be, and words."""


class RefusedError(Exception):
    """There is no connection to this port; the message says why."""


class Reader(Protocol):
    """What comes out of a connection, as asyncio.StreamReader gives it."""

    async def read(self, n: int, /) -> bytes:
        """At most so many bytes; none at its end. Raises OSError, whose text is told to the other end."""
        ...


class Writer(Protocol):
    """What goes into it, as asyncio.StreamWriter takes it."""

    def write(self, data: bytes, /) -> None: ...

    async def drain(self) -> None: ...

    def can_write_eof(self) -> bool: ...

    def write_eof(self) -> None: ...

    def close(self) -> None: ...

    async def wait_closed(self) -> None: ...


def frame_of(kind: int, number: int, data: bytes = b"") -> bytes:
    return bytes((kind,)) + number.to_bytes(CONNECTION_BYTES) + data


class _Connection:
    def __init__(self, number: int) -> None:
        self.number = number
        self.waiting: asyncio.Queue[bytes | None] = asyncio.Queue()
        """What came for it; None: nothing more comes."""
        self.room = asyncio.Semaphore(WINDOW)
        """Frames that may be on their way to the other end."""
        self.tasks: list[asyncio.Task[None]] = []
        self.why = ""
        """Why it was cut off."""


class Forwarding:
    """One end of a session. `connect` is of the end in the cluster; the other one opens connections by `open`."""

    def __init__(self) -> None:
        self._connections: dict[int, _Connection] = {}
        self._going: asyncio.Queue[bytes | None] = asyncio.Queue(_MOST_WAITING)
        self._tasks: set[asyncio.Task[None]] = set()
        self._next = 0

    async def connect(self, port: int) -> tuple[Reader, Writer]:
        """To a port of the pod. Raises RefusedError."""
        raise RefusedError(f"this end opens no connection to port {port}")

    async def open(self, port: int, reader: Reader, writer: Writer) -> str:
        """Carry a connection to a port of the other end, to its end; why it was cut off, empty where it was not."""
        if len(self._connections) >= MOST_CONNECTIONS:
            writer.close()
            return f"{MOST_CONNECTIONS} connections are open already"
        self._next += 1
        connection = self._connections[self._next] = _Connection(self._next)
        await self._going.put(frame_of(CONNECT, connection.number, port.to_bytes(_PORT_BYTES)))
        return await self._carry(connection, reader, writer)

    async def frames(self) -> AsyncIterator[bytes]:
        """What goes to the other end, until `stop`."""
        while (frame := await self._going.get()) is not None:
            yield frame

    def stop(self) -> None:
        """Nothing more goes to the other end."""
        self._spawn(self._going.put(None))

    async def take(self, frame: bytes) -> None:
        """What comes from the other end; never waits for a connection."""
        if len(frame) < 1 + CONNECTION_BYTES:
            return
        kind, number, data = frame[0], int.from_bytes(frame[1 : 1 + CONNECTION_BYTES]), frame[1 + CONNECTION_BYTES :]
        connection = self._connections.get(number)
        if kind == CONNECT:
            if connection is None and len(data) == _PORT_BYTES:
                await self._accept(number, int.from_bytes(data))
            return
        if connection is None:
            return  # it was over here already
        match kind:
            case n if n == DATA:
                if connection.waiting.qsize() > WINDOW:
                    self._cut(connection, "more came than may be on its way")
                    self._spawn(self._reset(number, connection.why))
                else:
                    connection.waiting.put_nowait(data)
            case n if n == EOF:
                connection.waiting.put_nowait(None)
            case n if n == TAKEN:
                connection.room.release()
            case n if n == RESET:
                self._cut(connection, data.decode("utf-8", "replace") or "the other end closed it")
            case _:
                pass

    async def _accept(self, number: int, port: int) -> None:
        if len(self._connections) >= MOST_CONNECTIONS:
            await self._reset(number, f"{MOST_CONNECTIONS} connections are open already")
            return
        connection = self._connections[number] = _Connection(number)
        self._spawn(self._reach(connection, port))

    async def _reach(self, connection: _Connection, port: int) -> None:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, writer = await self.connect(port)
        except (RefusedError, TimeoutError) as error:
            del self._connections[connection.number]
            await self._reset(connection.number, str(error) or f"no answer within {CONNECT_SECONDS:.0f} s")
            return
        except asyncio.CancelledError:
            self._connections.pop(connection.number, None)
            raise
        await self._carry(connection, reader, writer)

    async def _carry(self, connection: _Connection, reader: Reader, writer: Writer) -> str:
        if connection.why:  # while it was made
            self._connections.pop(connection.number, None)
            writer.close()
            return connection.why
        connection.tasks = [
            asyncio.create_task(self._send(connection, reader)),
            asyncio.create_task(self._receive(connection, writer)),
        ]
        try:
            await asyncio.gather(*connection.tasks)
        except OSError as error:
            connection.why = error.strerror or "the connection was reset"
            await self._reset(connection.number, connection.why)
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
        finally:
            for task in connection.tasks:
                task.cancel()
            await asyncio.gather(*connection.tasks, return_exceptions=True)
            self._connections.pop(connection.number, None)
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()
        return connection.why

    async def _send(self, connection: _Connection, reader: Reader) -> None:
        while data := await reader.read(READ_BYTES):
            await connection.room.acquire()
            await self._going.put(frame_of(DATA, connection.number, data))
        await self._going.put(frame_of(EOF, connection.number))

    async def _receive(self, connection: _Connection, writer: Writer) -> None:
        while (data := await connection.waiting.get()) is not None:
            writer.write(data)
            await writer.drain()
            await self._going.put(frame_of(TAKEN, connection.number))
        if writer.can_write_eof():
            writer.write_eof()

    def _cut(self, connection: _Connection, why: str) -> None:
        connection.why = why
        for task in connection.tasks:
            task.cancel()

    async def _reset(self, number: int, why: str) -> None:
        await self._going.put(frame_of(RESET, number, why.encode()[:MOST_REASON_BYTES]))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cut everything off."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
