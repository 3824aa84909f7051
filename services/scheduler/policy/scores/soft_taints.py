"""Fewest taints `PreferNoSchedule` that the pod does not tolerate: it goes there where no other node of its pool has
room.

What a pod tolerates for a time only counts as not tolerated, as it does where taints refuse.
"""

from typing import Final

import numpy as np

from services.scheduler.columns import SOFT_EFFECT
from services.scheduler.policy.filters.taints import tolerates
from services.scheduler.policy.rules import Score
from services.scheduler.room import View
from services.scheduler.snapshot import Integers


def value(view: View) -> Integers:
    nodes = view.room.nodes
    numbers = nodes.taints[view.rows]
    counts = np.zeros(len(nodes.taint_sets), dtype=np.int64)
    seen = np.zeros(len(nodes.taint_sets), dtype=np.bool_)
    seen[numbers] = True
    for number in np.flatnonzero(seen).tolist():
        soft = (each for each in nodes.taint_sets[number] if each.effect == SOFT_EFFECT)
        counts[number] = sum(not tolerates(view.request, each) for each in soft)
    return counts[numbers]


SCORE: Final = Score(name="soft_taints", bits=2, value=value, lasting=True)
"""2 bits are three taints: nodes with more are all alike."""
