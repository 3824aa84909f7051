"""How often one principal may ask: a token bucket each. Pure but for the clock it is given."""

from collections import OrderedDict
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
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._buckets: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()

    def wait_seconds(self, principal: tuple[str, str]) -> float:
        """0 where the request may pass (and is counted), else how long to wait for the next."""
        now = self._clock()
        tokens, last = self._buckets.get(principal, (self._burst, now))
        tokens = min(self._burst, tokens + (now - last) * self._rate)
        passes = tokens >= 1
        self._buckets[principal] = (tokens - 1 if passes else tokens, now)
        self._buckets.move_to_end(principal)
        if len(self._buckets) > MAX_BUCKETS:
            self._buckets.popitem(last=False)
        return 0.0 if passes else (1 - tokens) / self._rate
