"""One look at a place for all who want to look there.

A look that was sent before somebody asked may show what was there before. So whoever asks while one is under way waits
for it, and shares the next one with all who ask until that is sent: nobody gets an answer from before they asked.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from services.runtime.log.store import LogUnavailableError

BEHIND_SECONDS: Final = 0.05
"""How long a look waits at most for the one before it: many times of what a healthy one takes. One whose answer is lost
holds up nobody for longer."""


@dataclass(slots=True, eq=False)
class _Look[T]:
    seconds: float
    over: asyncio.Future[None]
    sharers: "list[asyncio.Future[_Shared[T]]]" = field(default_factory=list["asyncio.Future[_Shared[T]]"])

    def end(self, shared: "_Shared[T]") -> None:
        for sharer in self.sharers:
            if not sharer.done():
                sharer.set_result(shared)
        if not self.over.done():
            self.over.set_result(None)


@dataclass(slots=True)
class _Shared[T]:
    """What came of a look: an answer, or an error; neither where who looked was cancelled."""

    answer: T | None = None
    error: LogUnavailableError | None = None
    given_up: bool = False


class Looks[T]:
    """Looks at places, by their names; for one event loop.

    Args:
        look: takes the name of a place, and how many seconds it may take. Raises LogUnavailableError.
    """

    def __init__(self, look: Callable[[str, float], Awaitable[T]]) -> None:
        self._look = look
        self._under_way: dict[str, _Look[T]] = {}
        """By place; the newest of several."""
        self._next: dict[str, _Look[T]] = {}
        """By place, what is sent once the one that is under way is over."""

    async def at(self, place: str, seconds: float) -> T | None:
        """What is found there by a look that begins now or later. It takes BEHIND_SECONDS more at most."""
        loop = asyncio.get_running_loop()
        while (coming := self._next.get(place)) is not None and coming.seconds <= seconds:
            sharer: asyncio.Future[_Shared[T]] = loop.create_future()
            coming.sharers.append(sharer)
            shared = await sharer
            if shared.error is not None:
                raise shared.error
            if not shared.given_up:
                return shared.answer
        mine = _Look[T](seconds, loop.create_future())
        before = self._under_way.get(place)
        shared = _Shared[T](given_up=True)
        try:
            if before is not None and coming is None:
                await self._wait_behind(place, mine, before)
            self._under_way[place] = mine
            answer = await self._look(place, seconds)
            shared = _Shared(answer)
            return answer  # noqa: TRY300 (what is shared is set first)
        except LogUnavailableError as error:
            shared = _Shared[T](error=error)
            raise
        finally:
            if self._under_way.get(place) is mine:
                del self._under_way[place]
            mine.end(shared)

    async def _wait_behind(self, place: str, mine: _Look[T], before: _Look[T]) -> None:
        """Meanwhile, others may come to share."""
        self._next[place] = mine
        try:
            await asyncio.wait({before.over}, timeout=BEHIND_SECONDS)
        finally:
            del self._next[place]
