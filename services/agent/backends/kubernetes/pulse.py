"""Whether this process has stood still lately: paused, starved, or on a machine that was frozen.

Who stood still for less than a second may have missed the whole life of a short run that another agent made, ended and
let go, and has not heard of it when it goes on: what came meanwhile is still to be read.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

BEAT_SECONDS: Final = 0.1
STILL_SECONDS: Final = 0.5
"""Longer than this between two beats, and it stood still; no run is made, ended, reported and let go in less."""
CATCH_UP_SECONDS: Final = 3.0
"""By then what came while it stood still was read."""


class Pulse:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._beat_at = 0.0
        self._still_at = clock()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Does nothing the second time."""
        if self._task is None:
            self._feel()
            self._task = asyncio.create_task(self._beat())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def is_steady(self) -> bool:
        """Whether it has not stood still for a while, up to this moment."""
        return not self.stood_still_since(self._clock() - CATCH_UP_SECONDS)

    def stood_still_since(self, moment: float) -> bool:
        """`moment`: monotonic."""
        return self._still_at >= moment or self._clock() - self._beat_at >= STILL_SECONDS

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            self._feel()

    def _feel(self) -> None:
        now = self._clock()
        if now - self._beat_at >= STILL_SECONDS:
            self._still_at = now
        self._beat_at = now
