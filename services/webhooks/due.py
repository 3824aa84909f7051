"""What follows from a try: whether a delivery is done, when it is tried again, when a webhook is disabled. Pure."""

from datetime import datetime, timedelta
from typing import Final, NamedTuple

from services.runtime.webhooks.protocol import State

PAUSES: Final = tuple(
    timedelta(seconds=seconds) for seconds in (5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
)
"""Before the second try, the third, and so on: three days in all, as Standard Webhooks proposes."""
MAX_TRIES: Final = len(PAUSES) + 1
JITTER: Final = 0.2
"""A pause grows by up to this part, so that what failed together does not come back together."""
LONGEST_WISH: Final = timedelta(hours=24)
"""Of a receiver, in `Retry-After`."""
GONE: Final = 410
SUCCESS: Final = range(200, 300)


class Outcome(NamedTuple):
    """What came of one request."""

    status: int | None
    """None: there was no answer."""
    error: str = ""
    excerpt: str = ""
    retry_after: timedelta | None = None
    """As the receiver wishes."""

    @property
    def taken(self) -> bool:
        return self.status in SUCCESS


class Next(NamedTuple):
    """What follows."""

    state: State
    pause: timedelta | None = None
    """Until the next try; None where there is none."""
    gone: bool = False
    """Whether the receiver wants nothing any more."""


def after(outcome: Outcome, tries: int, *, chance: float, test: bool = False) -> Next:
    """What follows from a try.

    Args:
        tries: how many there were, with this one.
        chance: from 0 to 1, anew each time.
        test: whether the delivery is one, which is tried once.
    """
    if outcome.taken:
        return Next("delivered")
    gone = outcome.status == GONE
    if test:
        return Next("failed", gone=gone)
    if gone or tries >= MAX_TRIES:
        return Next("parked", gone=gone)
    pause = PAUSES[tries - 1] * (1 + JITTER * chance)
    return Next("waiting", max(pause, min(outcome.retry_after or timedelta(), LONGEST_WISH)))


class Breaker:
    """How eagerly one webhook is posted to. While it fails, one request at a time, and a pause before each, so that a
    receiver that hangs or is down takes no room from others.
    """

    FAILURES: Final = 5
    """In a row, after which pauses begin."""
    LONGEST: Final = timedelta(seconds=60)

    def __init__(self) -> None:
        self._failures = 0
        self._not_before: datetime | None = None

    def note(self, *, taken: bool, now: datetime) -> None:
        self._failures = 0 if taken else self._failures + 1
        over = self._failures - self.FAILURES
        self._not_before = None if over < 0 else now + min(timedelta(seconds=2 ** min(over, 6)), self.LONGEST)

    def slots(self, most: int, under_way: int, now: datetime) -> int:
        """How many more may begin now."""
        if self._not_before is None:
            return max(most - under_way, 0)
        return 1 if under_way == 0 and now >= self._not_before else 0
