"""A node may hold one more pod."""

from typing import Final

from events.phases import WaitingReason
from services.scheduler.policy.rules import Check, Filter
from services.scheduler.room import View
from services.scheduler.snapshot import Booleans


def too_small(view: View) -> Booleans:
    return view.room.nodes.capacity_pods[view.rows] < 1


def full(view: View) -> Booleans:
    return view.room.pods[view.rows] < 1


FILTER: Final = Filter(
    name="pods",
    asks=lambda _: True,
    never=Check(refuses=too_small, words=lambda _: ""),
    full=Check(refuses=full, words=lambda _: "full of pods"),
    by_room=True,
    reason=WaitingReason.INSUFFICIENT_PODS,
)
