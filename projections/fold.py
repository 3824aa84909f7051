"""The registry of projections, and the fold of commits into changes of rows. Pure.

A projection is one of three things, and one line here: a *kind* makes the rows of one sort of aggregate, of its states
before and after a batch; the *history* is rows that are only ever added, by event; the *use* of projects is a sum over
what changed in other rows. The projector knows none of them by name.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, Protocol

from events.aggregate import (
    ASSET,
    CLUSTER,
    DEPARTMENT,
    HOURS,
    NODE,
    PRICES,
    PROJECT,
    WORKLOAD,
    Aggregate,
    BrokenChainError,
    Chain,
    advance,
)
from events.asset import Asset, AssetCreated
from events.cluster import Cluster, ClusterAdded
from events.commit import Commit
from events.department import Department, DepartmentCreated
from events.ids import key_of_id
from events.node import Node
from events.prices import Prices
from events.project import Project, ProjectCreated
from events.workload.life import WorkloadCreated
from projections.assets import project as assets
from projections.assets.rows import AssetRow
from projections.changes import Change, Changes, Passed
from projections.clusters import project as clusters
from projections.clusters.rows import ClusterRow
from projections.columns import Folded
from projections.departments import project as departments
from projections.departments.rows import DepartmentRow
from projections.hours import project as hours
from projections.nodes import project as nodes
from projections.nodes.rows import NodeRow
from projections.past import Leaving
from projections.prices import project as prices
from projections.prices.rows import PricesRow
from projections.projects import project as projects
from projections.projects.project import use_changes
from projections.projects.rows import ProjectRow
from projections.workloads import project as workloads

EntryKey = tuple[str, str]
"""(aggregate, key of its subject): what is read, kept and changed together."""
Entry = Any
"""What a kind keeps of one aggregate; the kind alone looks inside."""


class Work(Protocol):
    """One aggregate while the commits of a batch are folded into it."""

    def add(self, commit: Commit, into: Changes) -> None:
        """One more commit. Raises BrokenChainError where it does not follow the one before."""
        ...

    def finish(self, into: Changes) -> Entry:
        """Put what differs from the rows before; the entry that the next batch begins with. Must be the last call."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """How one kind of aggregate becomes rows."""

    empty: Entry
    """The entry of what has no commit yet."""
    work: Callable[[str, Entry], Work]
    """Of a key and the entry before."""


class _StateWork[S]:
    """Rows that are made of the aggregate's state and nothing else; an entry is the fold of a chain."""

    def __init__(
        self,
        aggregate: Aggregate[S],
        project: Callable[[Folded[S], Folded[S]], Iterator[Change]],
        past: "_Past[S]",
        key: str,
        before: Chain[S],
    ) -> None:
        self._aggregate, self._project, self._past, self._key = aggregate, project, past, key
        self._before = self._after = before

    def add(self, commit: Commit, into: Changes) -> None:
        before, self._after = self._after, advance(self._aggregate, self._after, commit)
        if _created_id(commit):
            # Another life of the name begins: the rows of the one that is over stay as it left them.
            self._put(before, into)
            self._before = Chain(state=self._aggregate.initial)
        elif self._past.is_listed(before.state):
            self._leave(before, commit.seq, into)

    def _leave(self, before: Chain[S], until_seq: int, into: Changes) -> None:
        past, folded = self._past, Folded(self._key, before.version, before.state)
        left = past.leaving.of_state(folded, until_seq)
        if past.seldom(before.state) != past.seldom(self._after.state):
            past.leaving.say_seldom(left, folded)
        into.leave(past.table, left)

    def finish(self, into: Changes) -> Chain[S]:
        self._put(self._after, into)
        return self._after

    def _put(self, after: Chain[S], into: Changes) -> None:
        before = self._before
        into.add(
            self._project(
                Folded(self._key, before.version, before.state), Folded(self._key, after.version, after.state)
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Past[S]:
    """How rows of a kind become rows of the past."""

    table: str
    leaving: Leaving[Folded[S]]
    is_listed: Callable[[S], bool]
    """Whether a state has a row."""
    seldom: Callable[[S], object]
    """What all columns that seldom change are made of: those of two states are alike where this is."""


def _of_state[S](
    aggregate: Aggregate[S], project: Callable[[Folded[S], Folded[S]], Iterator[Change]], past: _Past[S]
) -> Kind:
    return Kind(
        empty=Chain(state=aggregate.initial), work=lambda key, before: _StateWork(aggregate, project, past, key, before)
    )


_NODES: Final = _Past[Node](
    table="nodes",
    leaving=Leaving(NodeRow, Folded[Node]),
    is_listed=lambda node: bool(node.cluster_id),
    # All but the reservations and the sums over them, which change with every pod.
    seldom=lambda node: (node.cluster_id, node.name, node.present, node.facts, node.cordoned_by, node.cordoned_at),
)
_CLUSTERS: Final = _Past[Cluster](
    table="clusters",
    leaving=Leaving(ClusterRow, Folded[Cluster]),
    is_listed=lambda cluster: bool(cluster.cluster_id),
    seldom=lambda cluster: cluster,
)
_PROJECTS: Final = _Past[Project](
    table="projects",
    leaving=Leaving(ProjectRow, Folded[Project]),
    is_listed=lambda project: bool(project.project_id),
    seldom=lambda project: project,
)

_DEPARTMENTS: Final = _Past[Department](
    table="departments",
    leaving=Leaving(DepartmentRow, Folded[Department]),
    is_listed=lambda department: bool(department.department_id),
    seldom=lambda department: department,
)

_PRICES: Final = _Past[Prices](
    table="prices",
    leaving=Leaving(PricesRow, Folded[Prices]),
    is_listed=lambda prices: bool(prices.currency),
    seldom=lambda prices: prices,
)

_ASSETS: Final = _Past[Asset](
    table="assets",
    leaving=Leaving(AssetRow, Folded[Asset]),
    is_listed=lambda asset: bool(asset.asset_id),
    seldom=lambda asset: asset,
)

KINDS: Final[dict[str, Kind]] = {
    WORKLOAD.name: Kind(empty=workloads.EMPTY, work=workloads.WorkloadWork),
    NODE.name: _of_state(NODE, nodes.project, _NODES),
    CLUSTER.name: _of_state(CLUSTER, clusters.project, _CLUSTERS),
    PROJECT.name: _of_state(PROJECT, projects.project, _PROJECTS),
    DEPARTMENT.name: _of_state(DEPARTMENT, departments.project, _DEPARTMENTS),
    HOURS.name: Kind(empty=hours.EMPTY, work=hours.HoursWork),
    PRICES.name: _of_state(PRICES, prices.project, _PRICES),
    ASSET.name: _of_state(ASSET, assets.project, _ASSETS),
}
"""One line per kind of aggregate that has rows."""

_CREATED_IDS: Final[dict[type, str]] = {
    WorkloadCreated: "workload_id",
    ClusterAdded: "cluster_id",
    ProjectCreated: "project_id",
    DepartmentCreated: "department_id",
    AssetCreated: "asset_id",
}
"""What begins another life in the same chain, and where it says its id."""
_subject_key: Final = lru_cache(maxsize=20_000)(key_of_id)

WITHOUT_ROWS: Final = frozenset({"tenant", "void", "log", "policy"})
"""Kinds that nobody lists: roles of the tenant, what was declared void, restores and policies are read from the log."""


def entry_key(commit: Commit) -> EntryKey | None:
    """Where the commit's rows are; None for a kind without rows. Raises BrokenChainError where it begins something in
    the middle, or something whose id belongs to another subject.
    """
    if commit.aggregate not in KINDS and (commit.aggregate in WITHOUT_ROWS or not commit.events):
        return None
    if len(commit.events) > 1 and not _CREATED_IDS.keys().isdisjoint(map(type, commit.events[1:])):
        raise BrokenChainError(f"its {commit.aggregate} begins in the middle of it", seq=commit.seq)
    about = _created_id(commit)
    if about and about != commit.key and _subject_key(about) != commit.key:
        raise BrokenChainError(f"it is about {commit.aggregate} {about}, which has another subject", seq=commit.seq)
    if commit.aggregate not in KINDS:
        raise KeyError(commit.aggregate)
    return (commit.aggregate, commit.key)


def _created_id(commit: Commit) -> str:
    if not commit.events:
        return ""
    first: object = commit.events[0]
    field = _CREATED_IDS.get(type(first))
    return getattr(first, field) if field else ""


def needed(commits: Iterable[Commit]) -> dict[EntryKey, int]:
    """The entries that must be known before these commits can be folded, and at which sequence of their chains."""
    found: dict[EntryKey, int] = {}
    begun: set[EntryKey] = set()
    for commit in commits:
        key = entry_key(commit)
        if key is None or key in begun:
            continue
        if key not in found and commit.record.parent_seq == 0:
            # The first of its chain. One behind it that creates something may name what the chain has already.
            begun.add(key)
        else:
            # What names itself, or a later one, as its parent breaks its chain, and is found out when it is folded.
            found.setdefault(key, min(commit.record.parent_seq, commit.seq - 1))
    return found


class Fold:
    """A batch in the making: the entries before it, those after it, and the rows that are only added.

    Args:
        before: the entries as the tables stand; what is not there has no rows.
    """

    def __init__(self, before: Mapping[EntryKey, Entry]) -> None:
        self._known = before
        self._work: dict[EntryKey, Work] = {}
        self.changes = Changes()
        """What is to be written so far."""
        self._latest: datetime | None = None
        """Of the commits since the last moment."""
        self.after: dict[EntryKey, Entry] = {}
        """Once it is finished, every entry that a commit touched."""

    def add(self, commits: Iterable[Commit]) -> None:
        """Fold further commits, in the order of the log. Raises BrokenChainError, which names the one at fault."""
        for commit in commits:
            try:
                self._add(commit)
            except Exception as error:
                what = str(error) if isinstance(error, BrokenChainError) else f"{type(error).__name__}: {error}"
                raise BrokenChainError(f"commit {commit.seq}: {what}", seq=commit.seq) from error

    def _add(self, commit: Commit) -> None:
        at = commit.record.occurred_at
        latest = at if self._latest is None else max(self._latest, at)
        if commit.ends_batch:
            self.changes.passed.append(Passed(commit.seq, latest))
        self._latest = None if commit.ends_batch else latest
        key = entry_key(commit)
        if key is None:
            return
        work = self._work.get(key)
        if work is None:
            kind = KINDS[commit.aggregate]
            work = self._work[key] = kind.work(key[1], self._known.get(key, kind.empty))
        work.add(commit, self.changes)

    def finish(self) -> Changes:
        """All that is to be written."""
        for key, work in self._work.items():
            self.after[key] = work.finish(self.changes)
        self.changes.use = use_changes(self.changes.moved)
        self.changes.hours, self.changes.rates = self.changes.shifts.rows()
        return self.changes


def fold(before: Mapping[EntryKey, Entry], commits: Iterable[Commit]) -> tuple[dict[EntryKey, Entry], Changes]:
    """(entries before, commits) to (entries after, what to write)."""
    batch = Fold(before)
    batch.add(commits)
    changes = batch.finish()
    return batch.after, changes
