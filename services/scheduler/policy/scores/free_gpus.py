"""Fewest free GPUs on the node, so that large free nodes stay whole."""

from typing import Final

import numpy as np

from events.workload.spec import WHOLE_GPU_MILLI
from services.scheduler.policy.rules import Score
from services.scheduler.room import View
from services.scheduler.snapshot import Integers


def value(view: View) -> Integers:
    return np.maximum(view.devices, 0).sum(axis=1) - WHOLE_GPU_MILLI * view.withheld


SCORE: Final = Score(name="free_gpus", bits=16, value=value, by_room=True)
"""16 bits are 65 free GPUs: nodes with more are all alike."""
