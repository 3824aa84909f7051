"""How many workloads each project has and has created: a small fold of the log, and the rule over it. Pure.

It keeps no workload's state: the kinds of events and the `about` of their commits say enough.
"""

import math
from collections import Counter
from datetime import datetime
from typing import Final

import msgspec

from events.commit import Commit
from events.refusal import Refusal

MINUTE_SECONDS: Final = 60
WINDOW_MINUTES: Final = 60
"""Creations are counted by the minute: what a refusal says of the next free place is at most a minute too late."""
FOLD_VERSION: Final = 1
"""Of `ProjectCounts`; another number makes kept ones void."""
_CREATED: Final = "WorkloadCreated"
_ENDS: Final = frozenset({"WorkloadCompleted", "WorkloadFailed", "WorkloadDeleted"})


class ProjectLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Of every project alike."""

    living: int
    creations_per_hour: int


class ProjectCounts(msgspec.Struct, kw_only=True):
    """The fold. `seq` is the newest commit in it."""

    seq: int = 0
    projects: dict[str, str] = {}
    """Project id by workload key, of the living."""
    living: dict[str, int] = {}
    """By project id; those that have none are not there."""
    created: dict[str, dict[int, int]] = {}
    """Creations by minute since the epoch, by project id; older minutes than the window may be missing."""

    def apply(self, commit: Commit) -> None:
        """Take in one commit of a workload. One that is in already changes nothing."""
        if commit.seq <= self.seq:
            return
        self.seq = commit.seq
        for event in commit.record.events:
            if event.type == _CREATED:
                self._created(commit)
            elif event.type in _ENDS:
                self._ended(commit.key)

    def _created(self, commit: Commit) -> None:
        project_id = commit.record.about.project_id or ""
        self._ended(commit.key)
        self.projects[commit.key] = project_id
        self.living[project_id] = self.living.get(project_id, 0) + 1
        minute = _minute(commit.record.occurred_at)
        minutes = self.created.setdefault(project_id, {})
        minutes[minute] = minutes.get(minute, 0) + 1
        if len(minutes) > 2 * WINDOW_MINUTES:
            for old in [old for old in minutes if old <= minute - WINDOW_MINUTES]:
                del minutes[old]

    def _ended(self, key: str) -> None:
        project_id = self.projects.pop(key, None)
        if project_id is None:
            return
        left = self.living[project_id] - 1
        if left:
            self.living[project_id] = left
        else:
            del self.living[project_id]


def over_limit(
    counts: ProjectCounts, limits: ProjectLimits, project_id: str, now: datetime, *, under_way: int = 0
) -> Refusal | None:
    """Why the project may not create one more now; None where it may.

    Args:
        under_way: creations of the project that were let through and are not in the counts yet.
    """
    living = counts.living.get(project_id, 0) + under_way
    if living >= limits.living:
        excess = living - limits.living + 1
        return Refusal(
            code="too_many_workloads",
            message=f"the project has {living} living workloads and may have {limits.living}; it may create one when "
            f"{excess} of them {'has ended or is' if excess == 1 else 'have ended or are'} deleted, or when an "
            "operator sets MUSTER_PROJECT_MAX_LIVING_WORKLOADS higher",
        )
    this = _minute(now)
    recent = Counter(
        {at: count for at, count in counts.created.get(project_id, {}).items() if at > this - WINDOW_MINUTES}
    )
    recent[this] += under_way
    created = recent.total()
    if created < limits.creations_per_hour:
        return None
    wait = _seconds_until(recent, created - limits.creations_per_hour, now)
    return Refusal(
        code="too_many_creations",
        message=f"the project has created {created} workloads within {WINDOW_MINUTES} minutes and may create "
        f"{limits.creations_per_hour}; it may create the next in {wait} s, or when an operator sets "
        "MUSTER_PROJECT_MAX_CREATIONS_PER_HOUR higher",
        retry_seconds=wait,
    )


def _seconds_until(recent: Counter[int], too_many: int, now: datetime) -> int:
    """Until so many minutes have left the window that more than `too_many` creations went with them."""
    gone = 0
    at = _minute(now)
    for at in sorted(recent):
        gone += recent[at]
        if gone > too_many:
            break
    return max(math.ceil((at + WINDOW_MINUTES) * MINUTE_SECONDS - now.timestamp()), 1)


def _minute(moment: datetime) -> int:
    return int(moment.timestamp()) // MINUTE_SECONDS
