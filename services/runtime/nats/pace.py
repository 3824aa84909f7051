"""How far a sender of numbered messages goes ahead of who takes them: at its pace, and only while it is there."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

NO_RESPONDERS: Final = "503"
"""Status of the server's word that nobody listens."""


class GoneError(Exception):
    """Who takes the messages is gone, or takes none for too long."""


class Pace:
    """Of one direction.

    Args:
        window: messages on their way that were not taken.
        probe: sends a message that only shows whether somebody is there; it counts like any other.
        probe_seconds: how often that is done, while the window is full.
        silent_seconds: how long nothing may be taken.
    """

    def __init__(
        self, *, window: int, probe: Callable[[], Awaitable[None]], probe_seconds: float, silent_seconds: float
    ) -> None:
        self._window = window
        self._probe = probe
        self._probe_seconds = probe_seconds
        self._silent_seconds = silent_seconds
        self._on_the_way = 0
        self.sent = 0
        """Messages, on their way or taken."""
        self._gone = False
        self._heard = asyncio.Event()

    def number(self) -> int:
        """Of the next message, which is sent now."""
        self._on_the_way += 1
        self.sent += 1
        return self.sent - 1

    def taken(self) -> None:
        self._on_the_way = max(self._on_the_way - 1, 0)
        self._heard.set()

    def gone(self) -> None:
        self._gone = True
        self._heard.set()

    async def room(self) -> None:
        """Until one more may be sent. Raises GoneError."""
        silent_seconds = 0.0
        while not self._gone and self._on_the_way >= self._window:
            self._heard.clear()
            try:
                async with asyncio.timeout(self._probe_seconds):
                    await self._heard.wait()
                silent_seconds = 0.0
            except TimeoutError:
                silent_seconds += self._probe_seconds
                if silent_seconds >= self._silent_seconds:
                    raise GoneError from None
                await self._probe()
        if self._gone:
            raise GoneError
