"""What each project has and has created, and each user has: a small fold of the log, and the rule over it. Pure.

It keeps no workload's state: the kinds of events and the `about` of their commits say enough.
"""

import math
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

import msgspec

from events.actors import share_of
from events.commit import Commit
from events.refusal import Refusal
from events.workload.exposure import asked_labels
from events.workload.life import WorkloadCreated

MINUTE_SECONDS: Final = 60
WINDOW_MINUTES: Final = 60
"""Creations are counted by the minute: what a refusal says of the next free place is at most a minute too late."""
AHEAD_MINUTES: Final = 2
"""By which the clock of another process may be ahead. What was counted by one that was wrong by more is forgotten: it
would count until that time has come.
"""
FOLD_VERSION: Final = 7
"""Of `CreationCounts`; another number makes kept ones void."""
_CREATED: Final = "WorkloadCreated"
_CLUSTER: Final = frozenset({"ClusterChosen", "ClusterLeft"})
"""What gives a workload another cluster, or none."""
_HAS_URLS: Final = b'"exposedUrls":[{'
_ENDS: Final = frozenset({"WorkloadCompleted", "WorkloadFailed", "WorkloadDeleted"})
_WRITTEN: Final = frozenset({"WorkloadChanged", "AssetCreated", "AssetChanged", "PolicySet"})
"""What else holds as many bytes as somebody gives: whoever may do nothing but change one workload again and again could
fill the log for everybody."""
_ACTS: Final = frozenset({"WorkloadSuspended", "WorkloadResumed", "WorkloadTransferred"})
"""What holds next to nothing, and can be done back and forth, to a hundred workloads with one request."""
_SESSION: Final = "SessionOpened"
"""Holds a command of somebody's, and its end follows; it can be opened again and again."""
ACT_BYTES: Final = 2048
"""Of one of those, and of what follows from it: the scheduler's words, the ends of pods."""


class CreationLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Of every project, and every user, alike."""

    living: int
    """Workloads of a project."""
    creations_per_hour: int
    """Of a project."""
    project_bytes_per_hour: int
    """Of the log, which creations and changes in a project take: of workloads, assets and policies."""
    user_bytes_per_hour: int
    """Of the log, which those of a user take, in whichever projects; and their acts, with ACT_BYTES for each."""


class Creation(msgspec.Struct, frozen=True):
    """One that is asked for, or was let through and is not in the counts yet."""

    project_id: str
    """Empty: it is of no project."""
    actor: str
    bytes: int
    count: int = 1
    """Workloads that are created; 0: something is changed, or is no workload. Several of one project and user may be
    told as one, with the bytes of all."""
    labels: tuple[str, ...] = ()
    """Names before the proxy's domain that it asks for by itself; generated ones are nobody else's."""


class CreationCounts(msgspec.Struct, kw_only=True):
    """The fold. `seq` is the newest commit in it."""

    seq: int = 0
    projects: dict[str, str] = {}
    """Project id by workload key, of the living."""
    clusters: dict[str, str] = {}
    """Likewise the id of its cluster."""
    living: dict[str, int] = {}
    """By project id; those that have none are not there."""
    created: dict[str, dict[int, int]] = {}
    """Creations by minute since the epoch, by project id; older minutes than the window may be missing."""
    project_bytes: dict[str, dict[int, int]] = {}
    """What they take of the log, likewise."""
    labels: dict[str, str] = {}
    """Workload key by the name before the proxy's domain, of the living that asked for one."""
    labels_of: dict[str, tuple[str, ...]] = {}
    """Those names, by workload key."""
    user_bytes: dict[str, dict[int, int]] = {}
    """The same by the actor's id; all service accounts of a project count as one."""

    def apply(self, commit: Commit) -> None:
        """Take in one commit of a workload, an asset or a policy. One that is in already changes nothing."""
        if commit.seq <= self.seq:
            return
        self.seq = commit.seq
        for event in commit.record.events:
            if event.type == _CREATED:
                self._created(commit)
                if _HAS_URLS in bytes(event.data):
                    self._enter(commit)
            if event.type in _CLUSTER and commit.key in self.clusters:
                self.clusters[commit.key] = commit.record.about.cluster_id or ""
            if event.type == _CREATED or event.type in _WRITTEN:
                self._written(commit, memoryview(event.data).nbytes)
            elif event.type == _SESSION:
                self._written(commit, memoryview(event.data).nbytes + ACT_BYTES)
            elif event.type in _ACTS:
                _add(self.user_bytes, share_of(commit.record.actor.id), _minute(commit.record.occurred_at), ACT_BYTES)
            elif event.type in _ENDS:
                self._ended(commit.key)

    def _created(self, commit: Commit) -> None:
        project_id = commit.record.about.project_id or ""
        self._ended(commit.key)
        self.projects[commit.key] = project_id
        self.clusters[commit.key] = commit.record.about.cluster_id or ""
        self.living[project_id] = self.living.get(project_id, 0) + 1
        _add(self.created, project_id, _minute(commit.record.occurred_at), 1)

    def _written(self, commit: Commit, size: int) -> None:
        minute = _minute(commit.record.occurred_at)
        if project_id := commit.record.about.project_id:
            _add(self.project_bytes, project_id, minute, size)
        _add(self.user_bytes, share_of(commit.record.actor.id), minute, size)

    def _enter(self, commit: Commit) -> None:
        for event in commit.events:
            if isinstance(event, WorkloadCreated):
                asked = asked_labels(event.spec.exposed_urls)
                self.labels |= {label: commit.key for label in asked if label not in self.labels}
                self.labels_of[commit.key] = tuple(label for label in asked if self.labels[label] == commit.key)

    def _ended(self, key: str) -> None:
        project_id = self.projects.pop(key, None)
        self.clusters.pop(key, None)
        if project_id is None:
            return
        for label in self.labels_of.pop(key, ()):
            self.labels.pop(label, None)
        left = self.living[project_id] - 1
        if left:
            self.living[project_id] = left
        else:
            del self.living[project_id]


def over_limit(
    counts: CreationCounts,
    limits: CreationLimits,
    asked: Creation,
    now: datetime,
    *,
    under_way: Sequence[Creation] = (),
) -> Refusal | None:
    """Why this may not be created now; None where it may.

    Args:
        under_way: creations that were let through and are not in the counts yet.
    """
    of_project = [one for one in under_way if one.project_id == asked.project_id]
    taken = {*counts.labels, *(label for one in under_way for label in one.labels)} if asked.labels else ()
    if clash := next((label for label in asked.labels if label in taken), None):
        return Refusal(
            code="url_taken",
            message=f"another workload has the address {clash!r} before the domain of the proxy; give another url, or "
            "none, and one is generated",
        )
    if asked.count and (refusal := _over_number(counts, limits, asked.project_id, now, _number(of_project))):
        return refusal
    user = share_of(asked.actor)
    of_user = [one for one in under_way if share_of(one.actor) == user]
    of_project_bytes = _recent(counts.project_bytes, asked.project_id, now, _bytes(of_project))
    of_user_bytes = _recent(counts.user_bytes, user, now, _bytes(of_user))
    for whose, recent, limit in (
        ("project", of_project_bytes, limits.project_bytes_per_hour),
        ("user", of_user_bytes, limits.user_bytes_per_hour),
    ):
        used = sum(recent.values())
        if (asked.project_id or whose == "user") and used + asked.bytes > limit:
            wait = _seconds_until(recent, used + asked.bytes - limit - 1, now)
            return _too_many_bytes(whose, used, limit, asked, wait)
    return None


def _over_number(
    counts: CreationCounts, limits: CreationLimits, project_id: str, now: datetime, under_way: int
) -> Refusal | None:
    """Why the project may not have or make one more."""
    living = counts.living.get(project_id, 0) + under_way
    if living >= limits.living:
        excess = living - limits.living + 1
        return Refusal(
            code="too_many_workloads",
            message=f"the project has {living} living workloads and may have {limits.living}; try again when {excess} "
            f"of them {'has ended or is' if excess == 1 else 'have ended or are'} deleted, or ask an operator to raise "
            "MUSTER_PROJECT_MAX_LIVING_WORKLOADS",
        )
    created = _recent(counts.created, project_id, now, under_way)
    if (count := sum(created.values())) >= limits.creations_per_hour:
        wait = _seconds_until(created, count - limits.creations_per_hour, now)
        return Refusal(
            code="too_many_creations",
            message=f"the project has created {count} workloads within {WINDOW_MINUTES} minutes and may create "
            f"{limits.creations_per_hour}; try again in {wait} s, or ask an operator to raise "
            "MUSTER_PROJECT_MAX_CREATIONS_PER_HOUR",
            retry_seconds=wait,
        )
    return None


class Tally:
    """Creations under way, told as one for each project and user: a batch of a thousand is counted against itself."""

    def __init__(self, creations: Iterable[Creation]) -> None:
        self._sums: dict[tuple[str, str], Creation] = {}
        for creation in creations:
            self.add(creation)

    def add(self, creation: Creation) -> None:
        whose = (creation.project_id, share_of(creation.actor))
        before = self._sums.get(whose)
        if before is not None:
            creation = msgspec.structs.replace(
                before,
                bytes=before.bytes + creation.bytes,
                count=before.count + creation.count,
                labels=before.labels + creation.labels,
            )
        self._sums[whose] = creation

    @property
    def under_way(self) -> Sequence[Creation]:
        return [*self._sums.values()]

    def without(self, one: Creation) -> Sequence[Creation]:
        """All but one that was added."""
        whose = (one.project_id, share_of(one.actor))
        sums, held = self._sums, self._sums[whose]
        rest = msgspec.structs.replace(held, bytes=held.bytes - one.bytes, count=held.count - one.count)
        return [*({**sums, whose: rest}.values())]


def all_within(
    counts: CreationCounts,
    limits: CreationLimits,
    asked: Sequence[Creation],
    now: datetime,
    *,
    under_way: Sequence[Creation],
) -> bool:
    """Whether all of these may be created now, one behind the other, found at once: where one of each project and user
    may be with all others under way, each may be. Addresses are looked at one by one: there, no is the answer.
    """
    if any(creation.labels for creation in asked):
        return False
    tally = Tally([*under_way, *asked])
    last = {(creation.project_id, share_of(creation.actor)): creation for creation in asked}
    return all(
        over_limit(counts, limits, creation, now, under_way=tally.without(creation)) is None
        for creation in last.values()
    )


def _number(creations: Sequence[Creation]) -> int:
    return sum(creation.count for creation in creations)


def _bytes(creations: Sequence[Creation]) -> int:
    return sum(creation.bytes for creation in creations)


def _too_many_bytes(whose: str, used: int, limit: int, asked: Creation, wait: int) -> Refusal:
    return Refusal(
        code="too_many_bytes",
        message=f"the {whose} has created, changed, suspended and resumed workloads, assets and policies, and opened "
        f"sessions, of {used:,} bytes within {WINDOW_MINUTES} minutes and may have {limit:,}; this one has "
        f"{asked.bytes:,}; try again in "
        f"{wait} s, ask an operator to raise MUSTER_{whose.upper()}_MAX_BYTES_PER_HOUR, or put large values into a "
        "file or a ConfigMap",
        retry_seconds=wait,
    )


def _recent(counted: dict[str, dict[int, int]], name: str, now: datetime, under_way: int) -> dict[int, int]:
    """What counts now, by minute."""
    this = _minute(now)
    recent = {at: count for at, count in counted.get(name, {}).items() if -AHEAD_MINUTES <= this - at < WINDOW_MINUTES}
    recent[this] = recent.get(this, 0) + under_way
    return recent


def _add(counted: dict[str, dict[int, int]], name: str, minute: int, amount: int) -> None:
    minutes = counted.setdefault(name, {})
    minutes[minute] = minutes.get(minute, 0) + amount
    if len(minutes) > 2 * WINDOW_MINUTES:
        for old in [old for old in minutes if old <= minute - WINDOW_MINUTES]:
            del minutes[old]


def _seconds_until(recent: dict[int, int], too_many: int, now: datetime) -> int:
    """Until so many minutes have left the window that more than `too_many` went with them."""
    gone = 0
    at = _minute(now)
    for at in sorted(recent):
        gone += recent[at]
        if gone > too_many:
            break
    return max(math.ceil((at + WINDOW_MINUTES) * MINUTE_SECONDS - now.timestamp()), 1)


def _minute(moment: datetime) -> int:
    return int(moment.timestamp()) // MINUTE_SECONDS
