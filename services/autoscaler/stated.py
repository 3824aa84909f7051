"""The load of an inference on a simulated cluster, which its annotations state: nobody asks it anything. Pure."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from events.load import DEFAULT_MILLISECONDS, LOAD_ANNOTATION, MILLISECONDS_ANNOTATION, stated_rate, steps, whole
from events.workload.state import Workload
from services.autoscaler.decide import Load

_SECOND_MILLIS: Final = 1000


def stated_load(state: Workload, ready: int, now: datetime, *, speed: float = 1.0) -> Load | None:
    """The load at this moment of its life; None where nothing is stated, or nothing that can be read.

    Each replica works on one request at a time: where more come, they take longer.

    Args:
        ready: replicas that run.
        speed: how many seconds of its life pass in one.
    """
    said = {one.name: one.value for one in state.spec.annotations}
    if LOAD_ANNOTATION not in said or state.created_at is None:
        return None
    try:
        stated = steps(said[LOAD_ANNOTATION])
        own = whole(said.get(MILLISECONDS_ANNOTATION, str(DEFAULT_MILLISECONDS)))
    except ValueError:
        return None
    second = (now - state.created_at).total_seconds() * speed
    rate = stated_rate(stated, second)
    concurrency = rate * own / _SECOND_MILLIS
    return Load(
        requests_per_second=rate,
        milliseconds=own * max(1.0, concurrency / ready) if rate and ready else None,
        concurrency=concurrency if ready else 0.0,
        held=0 if ready else rate,
        idle_seconds=_idle_seconds(stated, second),
    )


def _idle_seconds(stated: Sequence[tuple[int, int]], second: float) -> float:
    """For how long the stated load is 0."""
    idle_since = 0.0
    for (begin, rate), (end, _) in zip(stated, (*stated[1:], (second, 0)), strict=True):
        if rate and begin <= second:
            idle_since = max(idle_since, min(end, second))
    return max(second - idle_since, 0.0)
