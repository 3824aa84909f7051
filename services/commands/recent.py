"""What is remembered between commands, in memory only: which request a command id stood for, and who works on what."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

MAX_RECENT: Final = 50_000
"""Command ids that are remembered, some 15 MB: a minute of full load, hours of everyday work."""


class RecentCommands:
    """Finds an Idempotency-Key that comes again for another thing, such as a creation under another name.

    A convenience: aggregates themselves remember their last commands; only across them, and only in this replica, does
    this add something.
    """

    def __init__(self, limit: int = MAX_RECENT) -> None:
        self._limit = limit
        self._known: OrderedDict[str, tuple[str, str]] = OrderedDict()

    def differs(self, command_id: str, subject: str, body_hash: str) -> bool:
        """Whether the id stood for another request. A new id stands for this one from now on."""
        known = self._known.setdefault(command_id, (subject, body_hash))
        if len(self._known) > self._limit:
            self._known.popitem(last=False)
        return known != (subject, body_hash)

    def forget(self, command_id: str) -> None:
        """Refusals are not remembered: the key is free again."""
        self._known.pop(command_id, None)


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
