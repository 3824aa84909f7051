"""Who was created first."""

from typing import Final

from events.workload.state import Workload
from services.scheduler.policy.rules import Age, Order


def value(workload: Workload, _: Age) -> float:
    """Seconds since 1970."""
    return workload.created_at.timestamp() if workload.created_at else 0.0


ORDER: Final = Order(name="first_come", value=value)
