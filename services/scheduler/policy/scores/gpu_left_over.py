"""Least left over on the devices that the pod gets, so that shared devices fill up before whole ones are opened."""

from typing import Final

import numpy as np

from services.scheduler.policy.rules import Score
from services.scheduler.room import View
from services.scheduler.snapshot import Integers

BITS: Final = 15
_NO_DEVICE_MILLI: Final = (1 << BITS) - 1


def value(view: View) -> Integers:
    count = view.request.gpu_devices
    if not count:
        return np.zeros(len(view.rows), dtype=np.int64)
    free = np.where(view.device_fits, view.devices, _NO_DEVICE_MILLI)
    tightest = free.min(axis=1) if count == 1 else np.sort(free, axis=1)[:, :count].sum(axis=1)
    return tightest - count * view.share_milli


SCORE: Final = Score(name="gpu_left_over", bits=BITS, value=value)
