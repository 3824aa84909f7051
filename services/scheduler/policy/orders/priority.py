"""The highest priority class first."""

from typing import Final

from events.workload.state import Workload
from services.scheduler.policy.rules import Order


def value(workload: Workload) -> float:
    return -workload.priority_rank


ORDER: Final = Order(name="priority", value=value)
