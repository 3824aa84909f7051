"""How a stretch of time went, in figures that can be compared. Pure."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal

import msgspec

SIZES: Final = ("no GPU", "part of a GPU", "1 GPU", "2-4 GPUs", "5-8 GPUs", "more than 8 GPUs")
"""Classes of workloads, by the GPUs of all their pods that run at once."""
MILLI_PER_HOUR: Final = 1000 * 3600
"""Thousandths of a GPU times seconds, in one GPU hour."""

How = Literal["started", "waits", "gave up"]


class Wait(msgspec.Struct, frozen=True, array_like=True):
    """How long one workload waited for its first pod to get a node."""

    workload_id: str
    project: str
    """Its name."""
    size: str
    """One of SIZES."""
    seconds: float
    """Of one that never started: until it ended, or the stretch did."""
    how: How
    at: float | None
    """When it started, in seconds from the beginning."""


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """One moment."""

    seconds: float
    """From the beginning."""
    gpu_use: float
    """Part of the GPUs that are held."""
    waiting: int
    """Workloads that have not started yet."""
    share_error: float | None
    """Part of the GPUs that somebody else should hold; None where there are no GPUs."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Of one outcome."""

    seconds: float
    """From the beginning to the end."""
    loaded_seconds: float
    """Of these, the ones in which use and shares were measured."""
    waits: tuple[Wait, ...]
    """By workload, in the order in which they came."""
    gpu_use: float | None
    """Part of the GPUs that was held, over the loaded time; None where there were none."""
    cpu_use: float | None
    share_error: float | None
    """In the mean of the samples in the loaded time."""
    gpu_hours: float
    """Held."""
    hours_by_project: dict[str, float]
    """Likewise, by name."""
    evictions: int
    """Of workloads, or of some of their pods."""
    evicted_pods: int
    lost_gpu_hours: float
    """What evicted pods had run and have to do again."""
    samples: tuple[Sample, ...]

    def waits_of(self, chosen: Callable[[Wait], bool] = lambda _: True) -> list[float]:
        """Seconds, sorted."""
        return sorted(each.seconds for each in self.waits if chosen(each))

    def count(self, how: How) -> int:
        return sum(each.how == how for each in self.waits)

    @property
    def starts(self) -> dict[str, float]:
        """By workload id: when it started, in seconds from the beginning."""
        return {each.workload_id: each.at for each in self.waits if each.at is not None}


class Off(msgspec.Struct, frozen=True, kw_only=True):
    """How far the starts of one outcome are from those of another."""

    both: int
    """Workloads that started in both."""
    only_one: int
    """In one alone."""
    median: float
    """Seconds, however it differs."""
    p95: float
    most: float
    within: float
    """Part of those that differ by at most TOLERANCE_SECONDS."""


TOLERANCE_SECONDS: Final = 2.0
"""A start that differs by no more counts as the same: a second for the scheduler's turn, one for its cluster's."""


def off(first: Figures, second: Figures) -> Off | None:
    """None where nothing started in both."""
    one, other = first.starts, second.starts
    differences = sorted(abs(at - other[id_]) for id_, at in one.items() if id_ in other)
    if not differences:
        return None
    return Off(
        both=len(differences),
        only_one=len(one.keys() ^ other.keys()),
        median=percentile(differences, 50),
        p95=percentile(differences, 95),
        most=differences[-1],
        within=sum(each <= TOLERANCE_SECONDS for each in differences) / len(differences),
    )


def percentile(of: Sequence[float], percent: float) -> float:
    """Of sorted numbers, at least one: the least that so many percent of them do not exceed."""
    return of[max(-(-len(of) * percent // 100) - 1, 0).__trunc__()]


def size_of(gpu_milli: int, devices: int) -> str:
    """The class of a workload.

    Args:
        gpu_milli: of all its pods; 0 where it asks for memory of GPUs.
        devices: of all its pods.
    """
    if not devices:
        return SIZES[0]
    if gpu_milli < 1000:  # noqa: PLR2004 (thousandths)
        return SIZES[1]
    for size, most in zip(SIZES[2:5], (1000, 4000, 8000), strict=True):
        if gpu_milli <= most:
            return size
    return SIZES[5]


def mean(of: Iterable[float]) -> float | None:
    found = list(of)
    return sum(found) / len(found) if found else None
