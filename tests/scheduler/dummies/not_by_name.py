"""A filter: nodes whose name begins with `kept-` take no pods."""

from typing import Final

import numpy as np

from services.scheduler.policy.rules import Check, Filter
from services.scheduler.room import View
from services.scheduler.snapshot import Booleans


def full(view: View) -> Booleans:
    names = view.room.nodes.names
    return np.array([names[row].startswith("kept-") for row in view.rows], dtype=np.bool_)


FILTER: Final = Filter(
    name="not_by_name", asks=lambda _: True, full=Check(refuses=full, words=lambda _: "kept by its name")
)
