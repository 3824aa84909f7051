"""A score: the node with the longest name."""

from typing import Final

import numpy as np

from services.scheduler.policy.rules import Score
from services.scheduler.room import View
from services.scheduler.snapshot import Integers

LONGEST: Final = 255


def value(view: View) -> Integers:
    names = view.room.nodes.names
    return np.array([LONGEST - len(names[row]) for row in view.rows], dtype=np.int64)


SCORE: Final = Score(name="longest_name", bits=8, value=value)
