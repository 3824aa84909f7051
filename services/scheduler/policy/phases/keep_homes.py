"""Pods that were told to end to make room for others have another place: it is kept for them until they have ended,
before anybody else is placed. Once they have, they go first (fold).
"""

from typing import Final

import numpy as np

from services.scheduler.planning import Phase, Planning
from services.scheduler.policy.pools import pools_of


def run(planning: Planning) -> None:
    left = np.array([each.row for each in planning.snapshot.moving], dtype=np.int64)
    for pod_class, _ in planning.snapshot.moving:
        for _, candidates in pools_of(planning, pod_class):
            index = candidates.best(within=~np.isin(candidates.rows, left))
            if index is not None:
                planning.take(int(candidates.rows[index]), pod_class.request, candidates.devices(index))
                break


PHASE: Final = Phase(name="keep_homes", run=run)
