"""How often one principal may ask (a token bucket each), and how much of what is scarce it may hold at once.

Both hold for one process: with several replicas of the api behind a balancer each counts for itself.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Final

MAX_BUCKETS: Final = 10_000
"""Principals that are remembered; the one that was quiet longest gives way, with a full bucket if it comes back."""


class RateLimiter:
    """Token buckets by principal.

    Args:
        rate: requests per second in the long run.
        burst: requests at once.
        clock: seconds, monotonic.
    """

    def __init__(self, *, rate: float, burst: float, clock: Callable[[], float]) -> None:
        self.rate = rate
        self.burst = burst
        self._clock = clock
        self._buckets: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()

    def wait_seconds(self, principal: tuple[str, str]) -> float:
        """0 where the request may pass (and is counted), else how long to wait for the next."""
        now = self._clock()
        tokens, last = self._buckets.get(principal, (self.burst, now))
        tokens = min(self.burst, tokens + (now - last) * self.rate)
        passes = tokens >= 1
        self._buckets[principal] = (tokens - 1 if passes else tokens, now)
        self._buckets.move_to_end(principal)
        if len(self._buckets) > MAX_BUCKETS:
            self._buckets.popitem(last=False)
        return 0.0 if passes else (1 - tokens) / self.rate


class Slots:
    """Places for what is scarce, such as connections of a pool: so many altogether, and so many for one principal."""

    def __init__(self, *, most: int, each: int) -> None:
        self.most = most
        self.each = each
        self._taken: Counter[tuple[str, str]] = Counter()

    def objection(self, principal: tuple[str, str], what: str) -> str | None:
        """Why this principal can have no place now; None where it can."""
        if self._taken[principal] >= self.each:
            return f"{self._taken[principal]} {what} of yours are open, and you may have {self.each}; end one of them"
        if self._taken.total() >= self.most:
            return f"{self._taken.total()} {what} are open, and {self.most} are served; try again when one has ended"
        return None

    @property
    def full(self) -> bool:
        """Whether there is no place for anybody."""
        return self._taken.total() >= self.most

    def take(self, principal: tuple[str, str]) -> Callable[[], None]:
        """Take a place; what is returned gives it back, once."""
        self._taken[principal] += 1
        held = True

        def give_back() -> None:
            nonlocal held
            if held:
                held = False
                self._taken[principal] -= 1
                if not self._taken[principal]:
                    del self._taken[principal]

        return give_back
