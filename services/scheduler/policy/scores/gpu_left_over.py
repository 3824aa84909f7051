"""Least left over on the devices that the pod gets, so that shared devices fill up before whole ones are opened."""

from typing import Final

import numpy as np

from services.scheduler.policy.rules import Score
from services.scheduler.room import View
from services.scheduler.snapshot import Integers


def value(view: View) -> Integers:
    count = view.request.gpu_devices
    if not count:
        return np.zeros(len(view.rows), dtype=np.int64)
    return (view.devices * view.chosen).sum(axis=1) - count * view.share_milli


SCORE: Final = Score(name="gpu_left_over", bits=15, value=value, by_room=True)
