"""Questions that wait for an answer, and which of them has its turn. No I/O: time comes in, in seconds."""

from itertools import count
from typing import Final, NamedTuple

WAITS_SECONDS: Final = 2.0
"""As whoever asks does."""
MOST_ASKED: Final = 16
"""That wait; of more, the first that came are dropped."""
MOST_REMEMBERED: Final = 256
"""Of those who asked."""


class _Question[T](NamedTuple):
    of: T
    asker: str
    came: float


class Line[T]:
    """Those who ask have their turns, and of one's questions the last comes first: who asked it waits for longest
    still. Mutable.
    """

    def __init__(self) -> None:
        self._waiting: list[_Question[T]] = []
        """In the order in which they came."""
        self._turns = count(1)
        self._last_turn: dict[str, int] = {}
        """By who asked, the earliest first."""

    def come(self, question: T, asker: str, now: float) -> None:
        self._waiting = [*self._waiting[-(MOST_ASKED - 1) :], _Question(question, asker, now)]

    def next(self, now: float, took: float) -> T | None:
        """None where nobody waits. Forgets those whose asker would have gone before there is an answer.

        Args:
            took: seconds, the last answer.
        """
        # However long that one took, some are tried: the next one may be quick.
        left = WAITS_SECONDS - min(took, WAITS_SECONDS / 2)
        self._waiting = [each for each in self._waiting if now - each.came < left]
        if not self._waiting:
            return None
        chosen = min(self._waiting, key=lambda each: (self._last_turn.get(each.asker, 0), -each.came))
        self._waiting.remove(chosen)
        self._last_turn.pop(chosen.asker, None)
        self._last_turn[chosen.asker] = next(self._turns)
        if len(self._last_turn) > MOST_REMEMBERED:
            del self._last_turn[next(iter(self._last_turn))]
        return chosen.of
