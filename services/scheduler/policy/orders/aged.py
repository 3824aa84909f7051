"""The highest priority class first, unless another workload has waited for longer by more than the head start that the
ranks between them are worth.

It needs no clock: who waits longer than another one by so much, does so at all times.
"""

from typing import Final

from events.workload.state import Workload
from services.scheduler.policy.rules import Age, Order


def value(workload: Workload, age: Age) -> float:
    """When it would have begun to wait, were it of the lowest priority; in seconds since 1970."""
    return age.since - workload.priority_rank * age.head_start_seconds


ORDER: Final = Order(name="aged", value=value)
