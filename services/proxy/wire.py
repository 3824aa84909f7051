"""One end of a connection that speaks HTTP/1: h11's grammar over asyncio's streams. Nothing is held back, and no more
is read than the other side has taken.
"""

import asyncio
from typing import Any, Final, cast

import h11

HEAD_BYTES: Final = 64 * 1024
"""Of a request or of an answer up to its body: room for a token of 8 KiB and a browser's cookies."""
PIECE_BYTES: Final = 64 * 1024
LINGER_SECONDS: Final = 10.0
"""For which what is written still goes out at the end: the other side may be slow. One that takes nothing would keep
the connection, and what is written, for ever.
"""


class Peer:
    """A client (`h11.SERVER`) or a pod (`h11.CLIENT`): the role is ours."""

    def __init__(self, role: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.http = h11.Connection(role, max_incomplete_event_size=HEAD_BYTES)
        self.reader = reader
        self.writer = writer
        self.ended = False
        """Whether the other side has closed its end."""

    async def next(self) -> Any:
        """The next event of h11. Raises RemoteProtocolError, OSError."""
        while True:
            event = self.http.next_event()
            if event is not h11.NEED_DATA:
                return event
            await self.wait_for_more()

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
        self.ended = not data
        self.http.receive_data(data)
        return bool(data)

    async def gone(self) -> None:
        """Once the other side has closed its end. For ever where it says much before: that waits on its way."""
        while await self.wait_for_more():
            if len(self.http.trailing_data[0]) > PIECE_BYTES:
                await asyncio.Event().wait()

    async def close(self) -> None:
        """Once what is written is out, in LINGER_SECONDS at most; at once where the task is cancelled."""
        self.writer.close()
        try:
            async with asyncio.timeout(LINGER_SECONDS):
                await self.writer.wait_closed()
        except OSError:
            self.abort()  # of which TimeoutError is one
        except asyncio.CancelledError:
            self.abort()
            raise

    def abort(self) -> None:
        """Close it at once, whatever is not out yet."""
        self.writer.transport.abort()
