"""How long workloads of a project may run, wait, or keep GPUs that do nothing; by their kind."""

from typing import Final, Literal

import msgspec

LimitKind = Literal["runtime", "idle_gpu", "pending"]
"""`runtime`: the time that it ran, in all attempts; `idle_gpu`: for how long all its GPUs did nothing; `pending`: for
how long it has waited.
"""
LONGEST_SECONDS: Final = 366 * 24 * 3600
"""Of a limit: more is no limit."""


class TimeLimit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits of one kind of workloads. None: no limit."""

    kind: str
    """Kind of the workloads, such as `Training`."""
    runtime_seconds: int | None = None
    """How long one may run, in all its attempts together."""
    idle_gpu_seconds: int | None = None
    """For how long all its GPUs may do nothing, by what its cluster measures."""
    pending_seconds: int | None = None
    """How long one may wait at a time."""

    def __post_init__(self) -> None:
        """Raises ValueError where one could be no limit."""
        given = (self.runtime_seconds, self.idle_gpu_seconds, self.pending_seconds)
        if any(seconds is not None and not 0 < seconds <= LONGEST_SECONDS for seconds in given):
            raise ValueError(f"a limit is from 1 to {LONGEST_SECONDS} s")


class TimeLimitsSet(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The limits of the project, as they are from now on; also for what runs and waits."""

    limits: tuple[TimeLimit, ...] = ()
    """At most one for each kind. A kind without one has no limits."""


class SetTimeLimits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """Set the limits of a project to exactly these."""

    project_id: str
    limits: tuple[TimeLimit, ...] = ()
