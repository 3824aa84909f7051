"""A node has the CPU."""

from typing import Final

from events.phases import WaitingReason
from services.scheduler.policy.rules import Check, Filter
from services.scheduler.policy.words import cores
from services.scheduler.room import View
from services.scheduler.snapshot import Booleans


def too_small(view: View) -> Booleans:
    return view.room.nodes.capacity_cpu_milli[view.rows] < view.request.cpu_milli


def largest(view: View) -> str:
    most = int(view.room.nodes.capacity_cpu_milli[view.rows].max())
    return f"needs {cores(view.request.cpu_milli)} CPU cores (largest has {cores(most)})"


def full(view: View) -> Booleans:
    return view.room.cpu[view.rows] < view.request.cpu_milli


def need(view: View) -> str:
    most = int(view.room.cpu[view.rows].max())
    return f"short of CPU (need {cores(view.request.cpu_milli)}, most free {cores(most)})"


FILTER: Final = Filter(
    name="cpu",
    asks=lambda request: request.cpu_milli > 0,
    never=Check(refuses=too_small, words=largest),
    full=Check(refuses=full, words=need),
    by_room=True,
    reason=WaitingReason.INSUFFICIENT_CPU,
)
