"""Long work on the event loop, in turns: a chain of ten thousand pods must hold up nobody else."""

import asyncio
from typing import Final

TURN_SECONDS: Final = 0.01


class Turn:
    """Of one piece of work."""

    def __init__(self) -> None:
        self._clock = asyncio.get_running_loop().time
        self._over = self._clock() + TURN_SECONDS

    async def pass_on(self) -> None:
        """Let others work, where it has taken long enough."""
        if self._clock() >= self._over:
            await asyncio.sleep(0)
            self._over = self._clock() + TURN_SECONDS
