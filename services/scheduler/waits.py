"""For how long each workload has waited for a place, in all. Part of the fold, and stored with it; no clock of its own.

Age is what a workload has waited, not how old it is: one that ran for a week and gave up its place goes before those
that have waited for less than it, and not before all that were created within the week.
"""

from collections.abc import Mapping
from typing import NamedTuple

from events.commit import Commit
from events.workload.state import Workload, schedulable


class Stint(NamedTuple):
    """Since when a workload has waited, or has had a place; in seconds since 1970."""

    since: float
    """When it began to wait, as if what it had waited for before had been just before that."""
    at: float
    """Of one that has a place: when it got it. Of one that waits: when it began to."""


NEVER = Stint(0.0, 0.0)


class Waits:
    """By id of a workload, of those that had a place, or were suspended; mutable. All others wait since they came."""

    def __init__(self, stints: Mapping[str, tuple[float, float]] = {}) -> None:
        self._stints = {id_: Stint(*each) for id_, each in stints.items()}
        self._frozen: dict[str, Stint] | None = None

    def took(self, commit: Commit, before: Workload, after: Workload) -> None:
        """After a commit of a workload."""
        if before.workload_id != after.workload_id:
            self.forget(before.workload_id)
            return
        had, has = bool(before.pods.live.size), bool(after.pods.live.size)
        waited, waits = schedulable(before), schedulable(after)
        if had == has and waited == waits:
            return
        at, stint = commit.record.occurred_at.timestamp(), self.of(after)
        if has and not had:
            self._set(after, Stint(stint.since, at))
        elif had and not has:
            waited = max(stint.at - stint.since, 0.0)
            if after.created_at is not None:  # by a clock that was ahead it got its place at a time to come
                waited = min(waited, max(at - after.created_at.timestamp(), 0.0))
            self._set(after, Stint(at - waited, at))
        elif waits and not has:
            self._set(after, Stint(at, at))  # whoever suspends it has it wait anew

    def of(self, workload: Workload) -> Stint:
        return stint_of(self._stints, workload)

    def forget(self, workload_id: str) -> None:
        if self._stints.pop(workload_id, None) is not None:
            self._frozen = None

    def frozen(self) -> Mapping[str, Stint]:
        """Those of now; never changed later."""
        if self._frozen is None:
            self._frozen = dict(self._stints)
        return self._frozen

    def stored(self) -> dict[str, tuple[float, float]]:
        return {id_: (each.since, each.at) for id_, each in self._stints.items()}

    def _set(self, workload: Workload, stint: Stint) -> None:
        self._stints[workload.workload_id] = stint
        self._frozen = None


def gives_way(workload: Workload) -> bool:
    """Whether a place that it gets may be taken again for one that has waited for longer, but for a minimum runtime."""
    return workload.preemptible and not workload.spec.terminate_after_preemption


def stint_of(stints: Mapping[str, Stint], workload: Workload) -> Stint:
    """That of a workload; where it has had no place, it has waited since it came."""
    stint = stints.get(workload.workload_id)
    if stint is not None or workload.created_at is None:
        return stint or NEVER
    created = workload.created_at.timestamp()
    return Stint(created, created)
