"""How much of something each of many may have: at once, and in the long run. Pure: times are arguments, in monotonic
seconds.
"""

from typing import Final

import msgspec

REMEMBERED: Final = 10_000
"""Buckets, before those that are full again are forgotten."""


class _Bucket(msgspec.Struct):
    level: float
    at: float


class Buckets:
    """One bucket per name, full at first; what is taken out comes back at a constant rate. A bucket may go below
    nothing: what is large passes where anything is left, and whoever comes next waits the longer.
    """

    def __init__(self, *, size: float, per_second: float) -> None:
        self._size = size
        self._per_second = per_second
        self._buckets: dict[str, _Bucket] = {}
        self._forget_beyond = REMEMBERED

    def __len__(self) -> int:
        return len(self._buckets)

    def wait_seconds(self, name: str, now: float) -> float:
        """How long until something may be taken; 0: now."""
        level = self._level(name, now)
        return 0.0 if level > 0 else (1.0 - level) / self._per_second

    def take(self, name: str, amount: float, now: float) -> None:
        self._buckets[name] = _Bucket(self._level(name, now) - amount, now)
        if len(self._buckets) > self._forget_beyond:
            self._buckets = {n: bucket for n, bucket in self._buckets.items() if self._level(n, now) < self._size}
            self._forget_beyond = max(REMEMBERED, 2 * len(self._buckets))

    def _level(self, name: str, now: float) -> float:
        bucket = self._buckets.get(name)
        if bucket is None:
            return self._size
        return min(bucket.level + (now - bucket.at) * self._per_second, self._size)
