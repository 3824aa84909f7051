"""The registry of projections, and the fold of commits into changes of rows. Pure.

A projection is one of three things, and one line here: a *kind* makes the rows of one sort of aggregate, of its states
before and after a batch; the *history* is rows that are only ever added, by event; the *use* of projects is a sum over
what changed in other rows. The projector knows none of them by name.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Protocol

from events.aggregate import CLUSTER, NODE, PROJECT, WORKLOAD, Aggregate, BrokenChainError, Chain, advance
from events.cluster import ClusterAdded
from events.commit import Commit
from events.ids import key_of_id
from events.project import ProjectCreated
from events.workload.state import WorkloadCreated
from projections.changes import Change, Changes, Put
from projections.clusters import project as clusters
from projections.columns import Folded
from projections.nodes import project as nodes
from projections.projects import project as projects
from projections.projects.project import use_changes
from projections.workloads import project as workloads
from projections.workloads.history import history_row
from projections.workloads.project import WorkloadEntry, due_row
from projections.workloads.rows import HistoryRow, WorkloadRow

EntryKey = tuple[str, str]
"""(aggregate, key): what is read, kept and changed together."""
Entry = Any
"""What a kind keeps of one thing; the kind alone looks inside."""


class Kind(Protocol):
    """How one kind of aggregate becomes rows."""

    @property
    def empty(self) -> Entry:
        """The entry of what has no commit yet."""
        ...

    def key(self, commit: Commit) -> str:
        """Of the commit's entry; empty where it does not say which."""
        ...

    def add(self, entry: Entry, commit: Commit, history: list[HistoryRow]) -> Entry:
        """The entry after one more commit. Raises BrokenChainError where it does not follow the one before."""
        ...

    def changes(self, into: Changes, key: str, before: Entry, after: Entry) -> None:
        """Adds what differs between two entries."""
        ...

    def settled(self, entry: Entry) -> Entry:
        """The entry as it is kept once its changes are written."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StateKind[S]:
    """Rows that are made of the aggregate's state; an entry is the fold of a chain."""

    aggregate: Aggregate[S]
    project: Callable[[Folded[S], Folded[S]], Iterator[Change]]

    @property
    def empty(self) -> Chain[S]:
        return Chain(state=self.aggregate.initial)

    def key(self, commit: Commit) -> str:
        return commit.key

    def add(self, entry: Chain[S], commit: Commit, history: list[HistoryRow]) -> Chain[S]:
        del history  # only workloads have one
        return advance(self.aggregate, entry, commit)

    def changes(self, into: Changes, key: str, before: Chain[S], after: Chain[S]) -> None:
        into.add(self.project(Folded(key, before.version, before.state), Folded(key, after.version, after.state)))

    def settled(self, entry: Chain[S]) -> Chain[S]:
        return entry


_NO_ROWS: Final = WorkloadEntry()


class _WorkloadKind:
    """Rows that are folded from the events of a workload; an entry is one incarnation."""

    @property
    def empty(self) -> WorkloadEntry:
        return _NO_ROWS

    def key(self, commit: Commit) -> str:
        return workloads.key_of(commit)

    def add(self, entry: WorkloadEntry, commit: Commit, history: list[HistoryRow]) -> WorkloadEntry:
        entry = workloads.begin_commit(entry, commit)
        for index, event in enumerate(commit.events):
            before = entry
            entry = workloads.evolve(entry, event, commit)
            # What did not fit changed nothing, and is no part of the story.
            if entry is not before:
                history.append(history_row(before, event, entry, commit, index))
        return entry

    def changes(self, into: Changes, key: str, before: WorkloadEntry, after: WorkloadEntry) -> None:
        del key  # the rows have it
        workload_changes(into, before, after)

    def settled(self, entry: WorkloadEntry) -> WorkloadEntry:
        return WorkloadEntry(entry.row, entry.pods) if entry.ended else entry


def workload_changes(into: Changes, before: WorkloadEntry, after: WorkloadEntry) -> None:
    if after.row is not None and after.row is not before.row:
        into.add([Put("workloads", after.row)])
    over = {(pod.pod_set, pod.index, pod.attempt, pod.try_): pod for pod in after.ended}
    if before.pods is not after.pods or over:
        into.differences("pods", before.pods, over | after.pods)
    was, due = due_row(before.row), due_row(after.row)
    if was != due:
        into.differences("due", {0: was} if was else {}, {0: due} if due else {})


STATE_KINDS: Final[dict[str, StateKind[Any]]] = {
    NODE.name: StateKind(aggregate=NODE, project=nodes.project),
    CLUSTER.name: StateKind(aggregate=CLUSTER, project=clusters.project),
    PROJECT.name: StateKind(aggregate=PROJECT, project=projects.project),
}
"""One line per kind of aggregate whose rows are made of its state."""
KINDS: Final[dict[str, Kind]] = {WORKLOAD.name: _WorkloadKind(), **STATE_KINDS}

_CREATED_IDS: Final[dict[type, str]] = {
    WorkloadCreated: "workload_id",
    ClusterAdded: "cluster_id",
    ProjectCreated: "project_id",
}
"""What begins another life in the same chain, and where it says its id."""
_subject_key: Final = lru_cache(maxsize=20_000)(key_of_id)

WITHOUT_ROWS: Final = frozenset({"tenant", "void"})
"""Kinds that nobody lists: roles of the tenant, and what was declared void, are read from the log."""


def entry_key(commit: Commit) -> EntryKey | None:
    """Where the commit's rows are; None for a kind without rows, and where a chain begins with nothing. Raises
    BrokenChainError where it does not say what it is about, or says what another subject is for.
    """
    kind = KINDS.get(commit.aggregate)
    if kind is None and (commit.aggregate in WITHOUT_ROWS or not commit.events):
        return None
    if len(commit.events) > 1 and any(type(event) in _CREATED_IDS for event in commit.events[1:]):
        raise BrokenChainError(f"its {commit.aggregate} begins in the middle of it", seq=commit.seq)
    key = KINDS[commit.aggregate].key(commit)
    if not key:
        if commit.events and commit.record.parent_seq:
            raise BrokenChainError(f"it does not say which {commit.aggregate} it is about", seq=commit.seq)
        return None
    about = _created_id(commit) or key
    if commit.events and about != commit.key and _subject_key(about) != commit.key:
        raise BrokenChainError(f"it is about {commit.aggregate} {about}, which has another subject", seq=commit.seq)
    return (commit.aggregate, key)


def _created_id(commit: Commit) -> str:
    first: object = commit.events[0] if commit.events else None
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
        self._before: dict[EntryKey, Entry] = {}
        self._changes = Changes()
        self.after: dict[EntryKey, Entry] = {}
        """Every entry that a commit touched."""

    def add(self, commits: Iterable[Commit]) -> None:
        """Fold further commits, in the order of the log. Raises BrokenChainError, which names the one at fault."""
        for commit in commits:
            try:
                self._add(commit)
            except Exception as error:
                what = str(error) if isinstance(error, BrokenChainError) else f"{type(error).__name__}: {error}"
                raise BrokenChainError(f"commit {commit.seq}: {what}", seq=commit.seq) from error

    def _add(self, commit: Commit) -> None:
        key = entry_key(commit)
        if key is None:
            return
        kind = KINDS[commit.aggregate]
        entry = self.after.get(key)
        if entry is None:
            entry = self._before[key] = self._known.get(key, kind.empty)
        if commit.aggregate in STATE_KINDS and _created_id(commit):
            # Another life of the name begins: the rows of the one that is over stay as it left them.
            kind.changes(self._changes, key[1], self._before[key], entry)
            self._before[key] = kind.empty
        self.after[key] = kind.add(entry, commit, self._changes.history)

    def finish(self) -> Changes:
        """What to write; `after` then holds the entries as they are kept."""
        pairs: list[tuple[WorkloadRow | None, WorkloadRow | None]] = []
        for key, after in self.after.items():
            kind = KINDS[key[0]]
            before = self._before[key]
            kind.changes(self._changes, key[1], before, after)
            if isinstance(after, WorkloadEntry):
                pairs.append((before.row, after.row))
            self.after[key] = kind.settled(after)
        self._changes.use = use_changes(pairs)
        return self._changes


def fold(before: Mapping[EntryKey, Entry], commits: Iterable[Commit]) -> tuple[dict[EntryKey, Entry], Changes]:
    """(entries before, commits) to (entries after, what to write)."""
    batch = Fold(before)
    batch.add(commits)
    changes = batch.finish()
    return batch.after, changes
