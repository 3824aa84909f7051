"""One end of a connection that speaks HTTP/1: h11's grammar over asyncio's streams. Nothing is held back, and no more
is read than the other side has taken.
"""

import asyncio
import contextlib
from typing import Any, Final, cast

import h11

HEAD_BYTES: Final = 64 * 1024
"""Of a request or of an answer up to its body: room for a token of 8 KiB and a browser's cookies."""
PIECE_BYTES: Final = 64 * 1024


class Peer:
    """A client (`h11.SERVER`) or a pod (`h11.CLIENT`): the role is ours."""

    def __init__(self, role: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.http = h11.Connection(role, max_incomplete_event_size=HEAD_BYTES)
        self.reader = reader
        self.writer = writer

    async def next(self) -> Any:
        """The next event of h11. Raises RemoteProtocolError, OSError."""
        while True:
            event = self.http.next_event()
            if event is not h11.NEED_DATA:
                return event
            self.http.receive_data(await self.reader.read(PIECE_BYTES))

    async def send(self, *events: Any) -> None:
        """Raises LocalProtocolError where it would be no HTTP, OSError."""
        for event in events:
            data = cast("bytes | None", self.http.send(event))
            if data:
                self.writer.write(data)
        await self.writer.drain()

    async def wait_for_more(self) -> bool:
        """Whether the other side says more than what is known; False once it has closed."""
        data = await self.reader.read(PIECE_BYTES)
        self.http.receive_data(data)
        return bool(data)

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await self.writer.wait_closed()
