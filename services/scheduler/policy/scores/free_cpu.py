"""Least free CPU once the pod is there, so that of nodes alike one fills up before the next."""

from typing import Final

from services.scheduler.policy.rules import Score
from services.scheduler.room import View
from services.scheduler.snapshot import Integers


def value(view: View) -> Integers:
    return view.room.cpu[view.rows] - view.request.cpu_milli


SCORE: Final = Score(name="free_cpu", bits=31, value=value, by_room=True)
"""31 bits are two million cores."""
