"""Least value that the node loses, by what it is worth to the pods that come.

`services.scheduler.worth` says what that is, docs/concepts/best-place.md why.
"""

from typing import Final

import numpy as np

from events.workload.spec import PodRequest
from services.scheduler.patterns import Floats
from services.scheduler.policy.rules import Score
from services.scheduler.room import View
from services.scheduler.snapshot import Integers
from services.scheduler.worth import Rooms

FEW: Final = 8
"""So many nodes are looked up one by one: to find out which of them are alike costs more."""
_UNITS: Final = 1_000
"""In one thousandth of a GPU."""


def value(view: View) -> Integers:
    worth = view.room.worth
    if worth is None or worth.nothing:
        return np.zeros(len(view.rows), dtype=np.int64)
    before, share, chosen = view.room.rooms(view.rows), view.share_milli, view.chosen
    if len(view.rows) <= FEW:
        return _told(worth.lost(before, _after(before, view.request, chosen * share[:, None])))
    one, which = worth.alike(before, share)
    before = before.at(one)
    after = _after(before, view.request, chosen[one] * share[one][:, None])
    return _told(view.room.values(worth, before) - worth.values(after))[which]


def _after(before: Rooms, request: PodRequest, taken: Integers) -> Rooms:
    return before._replace(
        cpu=before.cpu - request.cpu_milli,
        memory=before.memory - request.memory_bytes,
        devices=before.devices - taken,
    )


def _told(lost: Floats) -> Integers:
    return np.rint(_UNITS * lost).astype(np.int64)


SCORE: Final = Score(name="node_value", bits=42, value=value, by_room=True)
"""42 bits are four million GPUs."""
