"""What was used up: things that are good for one use, for as long as they would be good otherwise."""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

MOST_REMEMBERED: Final = 10_000
"""The oldest give way."""


class Used:
    """By a mark that no other thing has. Of this process."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._until: OrderedDict[bytes, float] = OrderedDict()

    def use(self, mark: bytes, until: float) -> bool:
        """Whether this was the first use. `until`: when it is good no more, in seconds of the clock."""
        now = self._clock()
        while self._until and (len(self._until) >= MOST_REMEMBERED or next(iter(self._until.values())) < now):
            self._until.popitem(last=False)
        if mark in self._until:
            return False
        self._until[mark] = until
        return True
