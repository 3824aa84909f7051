"""A node has the memory."""

from typing import Final

from events.phases import WaitingReason
from events.quantities import format_bytes
from services.scheduler.policy.rules import Check, Filter
from services.scheduler.room import View
from services.scheduler.snapshot import Booleans


def too_small(view: View) -> Booleans:
    return view.room.nodes.capacity_memory_bytes[view.rows] < view.request.memory_bytes


def largest(view: View) -> str:
    most = int(view.room.nodes.capacity_memory_bytes[view.rows].max())
    return f"needs {format_bytes(view.request.memory_bytes)} of memory (largest has {format_bytes(most)})"


def full(view: View) -> Booleans:
    return view.room.memory[view.rows] < view.request.memory_bytes


def need(view: View) -> str:
    most = max(int(view.room.memory[view.rows].max()), 0)
    return f"short of memory (need {format_bytes(view.request.memory_bytes)}, most free {format_bytes(most)})"


FILTER: Final = Filter(
    name="memory",
    asks=lambda request: request.memory_bytes > 0,
    never=Check(refuses=too_small, words=largest),
    full=Check(refuses=full, words=need),
    by_room=True,
    reason=WaitingReason.INSUFFICIENT_MEMORY,
)
