"""Pods that have to leave their node are told to end: of a gang of which too few would be left, all of it."""

from collections.abc import Sequence
from typing import Final

from events.workload.evictions import leaving_with
from events.workload.state import Workload
from services.scheduler.planning import Phase, Planning
from services.scheduler.snapshot import Eviction, MustLeave

MOST_EVICTED: Final = 2_000
"""Pods that one plan tells to end for this; others of them the next one does."""


def run(planning: Planning) -> None:
    told = 0
    for workload, leavers in planning.snapshot.must_leave:
        if told >= MOST_EVICTED:
            return  # the next plan is due at once
        eviction = _eviction(workload, leavers)
        if eviction is not None:
            planning.evictions.append(eviction)
            told += len(eviction.pods)


def _eviction(workload: Workload, leavers: Sequence[MustLeave]) -> Eviction | None:
    first = min(leavers)
    # All at once may be too many, where some pods are not seen; one after the other is not.
    pods = leaving_with(workload, (each.pod for each in leavers)) or leaving_with(workload, (first.pod,))
    if not pods:
        return None
    others = len(set(pods) - {each.pod for each in leavers})
    together = f"; {others} more of its pods go with it, since they live together" if others else ""
    return Eviction(
        key=first.key,
        workload_id=workload.workload_id,
        name=workload.name,
        pods=pods,
        reason=first.reason,
        message=f"{first.message}{together}",
        beneficiary="",
    )


PHASE: Final = Phase(name="clear_nodes", run=run)
