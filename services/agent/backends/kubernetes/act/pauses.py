"""When what the API server refused is tried again: ever more slowly, and never given up. Pure but for its clock."""

import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Final

FIRST_SECONDS: Final = 1.0
LONGEST_SECONDS: Final = 30.0


class Pauses[Name]:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._of: dict[Name, tuple[float, float]] = {}
        """When the pause ends, monotonic, and how many seconds it is."""

    def is_resting(self, name: Name) -> bool:
        return name in self._of and self._clock() < self._of[name][0]

    def rest(self, name: Name) -> float:
        """Begins the next pause, twice as long as the one before; its seconds."""
        seconds = min(self._of[name][1] * 2, LONGEST_SECONDS) if name in self._of else FIRST_SECONDS
        self._of[name] = (self._clock() + seconds, seconds)
        return seconds

    def end(self, name: Name) -> None:
        """It was done, or is not wanted any more: the next refusal is a first one."""
        self._of.pop(name, None)

    def keep(self, names: AbstractSet[Name]) -> None:
        """All others end."""
        for name in self._of.keys() - names:
            del self._of[name]
