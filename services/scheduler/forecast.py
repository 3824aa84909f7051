"""When waiting workloads are expected to start, learnt from the log alone: how long runs lasted that were like those
which hold the capacity, and how far the estimates were off that the log has of workloads that have started since.

It is part of the fold, and stored with it. No clock of its own.
"""

from collections import deque
from collections.abc import Iterable
from datetime import datetime, timedelta
from statistics import median, quantiles
from typing import Final, NamedTuple

import msgspec

from events.node import Reservation
from events.workload.state import Workload

LEAST_RUNS: Final = 5
"""That have ended, before it is said how long others like them last."""
LEAST_ESTIMATES: Final = 10
"""Whose outcome is known, before one is shown."""
MOST_RUNS: Final = 50
"""The newest of a group are kept."""
MOST_GROUPS: Final = 2_000
"""Then the one that nothing was learnt of for longest is forgotten."""
MOST_ERRORS: Final = 200
MOST_OPEN: Final = 20_000
"""Estimates of workloads that still wait; beyond that none is remembered, so that a long queue costs no more."""
LEAST_SECONDS: Final = 1.0
"""A shorter wait counts as this: nobody minds by how many times a second was off."""
LATEST: Final = timedelta(days=365)
"""What is expected later than this is no estimate."""

type Group = tuple[str, ...]


class Error(NamedTuple):
    """How the waits came out, as parts of what was expected: between these were four in five of them."""

    low: float
    high: float
    measured: int
    """Of estimates whose outcome is known."""
    typical: float
    """The median of how far they were off, as a part of what was expected."""


class End(NamedTuple):
    """A run of which something is known of its end."""

    seconds: float | None
    """When it is expected to end, from now; None: nobody knows how long others like it last."""
    by: float | None
    """When it has surely ended, from now; None: nobody knows."""
    row: int
    project_id: str
    firm: bool
    pool: str
    held: Reservation

    @property
    def gpu_milli(self) -> int:
        return sum(share.milli for share in self.held.devices)


class Kept(NamedTuple):
    """When runs are expected to end, as it was found out at a time."""

    at: datetime
    ends: list[End]


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    lasted: list[tuple[Group, list[float]]] = []
    expected: dict[str, tuple[datetime, datetime]] = {}
    errors: list[float] = []


class Forecast:
    """Mutable."""

    def __init__(self) -> None:
        self._lasted: dict[Group, deque[float]] = {}
        self._expected: dict[str, tuple[datetime, datetime]] = {}
        """By workload key, of those that wait: when it was first estimated, and for when."""
        self._errors: deque[float] = deque(maxlen=MOST_ERRORS)
        """The wait from the estimate on, as a part of what was expected."""

    # -- learning ------------------------------------------------------------------------------------------------------

    def ran(self, workload: Workload, pod_set: str, seconds: float) -> None:
        """One of its runs ended by itself, or because its people wanted it so."""
        for group in _groups(workload, pod_set):
            lasted = self._lasted.pop(group, None)
            if lasted is None:
                lasted = deque[float](maxlen=MOST_RUNS)
                if len(self._lasted) >= MOST_GROUPS:
                    del self._lasted[next(iter(self._lasted))]
            lasted.append(max(seconds, 0.0))
            self._lasted[group] = lasted

    def expects(self, key: str, at: datetime, start: datetime) -> None:
        """The log says so; the first estimate of a wait counts."""
        if len(self._expected) < MOST_OPEN:
            self._expected.setdefault(key, (at, start))

    def started(self, key: str, at: datetime) -> None:
        if (expected := self._expected.pop(key, None)) is not None:
            since, start = expected
            wanted = max((start - since).total_seconds(), LEAST_SECONDS)
            self._errors.append(max((at - since).total_seconds(), 0.0) / wanted)

    def waits_no_longer(self, key: str) -> None:
        """It has not started, and does not wait any more: nothing is learnt by that."""
        self._expected.pop(key, None)

    # -- what is expected ----------------------------------------------------------------------------------------------

    def left_seconds(self, workload: Workload, pod_set: str, age: float = 0.0) -> float | None:
        """How long a run will go on that has run for `age` seconds: the median of what those like it lasted that lasted
        longer. As long again as until now, where none did. None where too few like it have ended.
        """
        for group in _groups(workload, pod_set):
            lasted = self._lasted.get(group, ())
            if len(lasted) >= LEAST_RUNS:
                longer = [each for each in lasted if each > age]
                return median(longer) - age if longer else max(age, LEAST_SECONDS)
        return None

    @property
    def error(self) -> Error | None:
        """None where too few estimates have come out."""
        if len(self._errors) < LEAST_ESTIMATES:
            return None
        tenths = quantiles(self._errors, n=10, method="inclusive")
        return Error(tenths[0], tenths[-1], len(self._errors), median(abs(each - 1) for each in self._errors))

    @property
    def known(self) -> int:
        """Estimates whose outcome is known."""
        return len(self._errors)

    # -- keeping -------------------------------------------------------------------------------------------------------

    def stored(self) -> bytes:
        lasted = [(group, list(each)) for group, each in self._lasted.items()]
        return msgspec.msgpack.encode(_Stored(lasted, self._expected, list(self._errors)))

    @classmethod
    def restored(cls, stored: bytes) -> "Forecast":
        """Nothing was learnt where it is empty, or none of ours."""
        found = cls()
        try:
            kept = msgspec.msgpack.decode(stored, type=_Stored) if stored else _Stored()
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return found
        found._lasted = {tuple(group): deque(each, maxlen=MOST_RUNS) for group, each in kept.lasted}
        found._expected = dict(kept.expected)
        found._errors.extend(kept.errors)
        return found


def _groups(workload: Workload, pod_set: str) -> Iterable[Group]:
    """Which runs are like it: the narrowest group first."""
    gpus = next((each.template.request.gpu_devices for each in workload.pod_sets if each.name == pod_set), 0)
    yield workload.project_id, workload.kind, pod_set, str(gpus)
    yield workload.project_id, workload.kind
    yield (workload.kind,)
