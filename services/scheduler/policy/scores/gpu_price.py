"""Least worth that shared devices lose: so shares come together that fill a GPU, where there is CPU for all of them.

`services.scheduler.patterns` says what the rest of a GPU is worth, docs/concepts/best-place.md why this comes first.
"""

from typing import Final

import numpy as np

from events.workload.spec import WHOLE_GPU_MILLI
from services.scheduler.policy.rules import Score
from services.scheduler.room import View, is_whole
from services.scheduler.snapshot import Integers


def value(view: View) -> Integers:
    if not view.request.gpu_devices or is_whole(view.request):
        return np.zeros(len(view.rows), dtype=np.int64)  # a whole GPU is worth the same everywhere
    worth, devices, cpu = view.room.worth, view.devices, view.room.cpu[view.rows]
    if worth is None:
        return np.zeros(len(view.rows), dtype=np.int64)
    new = (view.chosen & (devices == WHOLE_GPU_MILLI)).sum(axis=1) * worth.untouched
    left = worth.opened(devices - view.chosen * view.share_milli[:, None], cpu - view.request.cpu_milli)
    return np.rint(new + worth.opened(devices, cpu) - left).astype(np.int64)


SCORE: Final = Score(name="gpu_price", bits=18, value=value, by_room=True)
"""18 bits are 26 GPUs."""
