"""Who works on which aggregate, within this process."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Turn:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0


class Turns:
    """One after the other per aggregate: commands of one process on one aggregate would only conflict with each other,
    and of sixty at once most would have used up their tries before their turn.
    """

    def __init__(self) -> None:
        self._turns: dict[str, _Turn] = {}

    @asynccontextmanager
    async def of(self, subject: str) -> AsyncGenerator[None]:
        turn = self._turns.setdefault(subject, _Turn())
        turn.waiting += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.waiting -= 1
            if turn.waiting == 0:
                del self._turns[subject]
