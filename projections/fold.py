"""The registry of projections, and the fold of commits into changes of rows. Pure.

A projection is one of three things, and one line here: a *kind* folds the commits of one sort of aggregate into its
rows, key by key; the *history* and the *commands* are rows that are only ever added, by event and by commit; the *use*
of projects is a sum over what changed in other rows. The projector knows none of them by name.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from events.aggregate import BrokenChainError
from events.cluster import ClusterAdded
from events.commit import Commit
from events.ids import key_of_id
from events.project import ProjectCreated
from events.workload.events import WorkloadCreated
from projections.clusters import project as clusters
from projections.nodes import project as nodes
from projections.projects import project as projects
from projections.projects.project import use_changes
from projections.rows import HistoryRow, UseRow, WorkloadRow
from projections.workloads import project as workloads
from projections.workloads.history import history_row
from projections.workloads.project import WorkloadEntry, due_row

EntryKey = tuple[str, str]
"""(aggregate, key): what is read, kept and changed together."""
Entry = Any
"""A kind's own struct of rows; the kind alone looks inside."""


@dataclass(slots=True)
class Changes:
    """What to write, all at once. Rows by table; a row put or removed has its primary key in it."""

    put: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    removed: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    history: list[HistoryRow] = field(default_factory=list[HistoryRow])
    use: dict[tuple[str, str], UseRow] = field(default_factory=dict[tuple[str, str], UseRow])
    """To be added to what stands there."""

    def differences(self, table: str, before: Mapping[Any, Any], after: Mapping[Any, Any]) -> None:
        """Put what is new or another row than before, remove what is no longer there."""
        put = [row for key, row in after.items() if before.get(key) is not row]
        if put:
            self.put.setdefault(table, []).extend(put)
        removed = [row for key, row in before.items() if key not in after]
        if removed:
            self.removed.setdefault(table, []).extend(removed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """How one kind of aggregate becomes rows."""

    empty: Entry
    key: Callable[[Commit], str]
    begin_commit: Callable[[Entry, Commit], Entry]
    evolve: Callable[[Entry, Any, Commit], Entry]
    changes: Callable[[Changes, Entry, Entry], None]
    """Adds what differs between two entries."""
    settled: Callable[[Entry], Entry] = lambda entry: entry
    """The entry as it is kept once its changes are written."""


def _one_row(table: str) -> Callable[[Changes, Entry, Entry], None]:
    def changes(into: Changes, before: Entry, after: Entry) -> None:
        if after.row is not None and after.row is not before.row:
            into.put.setdefault(table, []).append(after.row)

    return changes


def _workload_changes(into: Changes, before: WorkloadEntry, after: WorkloadEntry) -> None:
    _one_row("workloads")(into, before, after)
    over = {(pod.pod_set, pod.index, pod.attempt, pod.try_): pod for pod in after.ended}
    if before.pods is not after.pods or over:
        into.differences("pods", before.pods, over | after.pods)
    was, due = due_row(before.row), due_row(after.row)
    if was != due:
        into.differences("due", {0: was} if was else {}, {0: due} if due else {})


def _node_changes(into: Changes, before: nodes.NodeEntry, after: nodes.NodeEntry) -> None:
    _one_row("nodes")(into, before, after)
    if before.reservations is not after.reservations:
        into.differences("reservations", before.reservations, after.reservations)


KINDS: Final[dict[str, Kind]] = {
    "workload": Kind(
        empty=WorkloadEntry(),
        key=workloads.key_of,
        begin_commit=workloads.begin_commit,
        evolve=workloads.evolve,
        changes=_workload_changes,
        settled=lambda entry: WorkloadEntry(entry.row, entry.pods) if entry.ended else entry,
    ),
    "node": Kind(
        empty=nodes.NodeEntry(),
        key=lambda commit: commit.key,
        begin_commit=nodes.begin_commit,
        evolve=nodes.evolve,
        changes=_node_changes,
    ),
    "cluster": Kind(
        empty=clusters.ClusterEntry(),
        key=clusters.key_of,
        begin_commit=clusters.begin_commit,
        evolve=clusters.evolve,
        changes=_one_row("clusters"),
    ),
    "project": Kind(
        empty=projects.ProjectEntry(),
        key=projects.key_of,
        begin_commit=projects.begin_commit,
        evolve=projects.evolve,
        changes=_one_row("projects"),
    ),
}
"""One line per kind of aggregate that has rows."""

_CREATIONS: Final = (WorkloadCreated, ClusterAdded, ProjectCreated)
"""What makes another entry of the same chain."""
_subject_key: Final = lru_cache(maxsize=20_000)(key_of_id)

WITHOUT_ROWS: Final = frozenset({"tenant", "void"})
"""Kinds that nobody lists: roles of the tenant, and what was declared void, are read from the log."""


def entry_key(commit: Commit) -> EntryKey | None:
    """Where the commit's rows are; None for a kind without rows, and where a chain begins with nothing. Raises
    BrokenChainError where it does not say what it is about, or says what another subject is for.
    """
    if commit.aggregate in WITHOUT_ROWS or not (commit.events or commit.aggregate in KINDS):
        return None
    if any(isinstance(event, _CREATIONS) for event in commit.events[1:]):
        raise BrokenChainError(f"its {commit.aggregate} begins in the middle of it", seq=commit.seq)
    key = KINDS[commit.aggregate].key(commit)
    if not key:
        if commit.events and commit.record.parent_seq:
            raise BrokenChainError(f"it does not say which {commit.aggregate} it is about", seq=commit.seq)
        return None
    if commit.events and key != commit.key and _subject_key(key) != commit.key:
        raise BrokenChainError(f"it is about {commit.aggregate} {key}, which has another subject", seq=commit.seq)
    return (commit.aggregate, key)


def needed(commits: Iterable[Commit]) -> set[EntryKey]:
    """The entries that must be read before these commits can be folded."""
    found: set[EntryKey] = set()
    begun: set[EntryKey] = set()
    for commit in commits:
        key = entry_key(commit)
        if key is None or key in begun:
            continue
        if key not in found and commit.record.parent_seq == 0:
            # The first of its chain. One behind it that creates something may name what the chain has already.
            begun.add(key)
        else:
            found.add(key)
    return found


class Fold:
    """A batch in the making: the entries before it, those after it, and the rows that are only added.

    Args:
        before: the entries as they are in the tables; what is not there has no rows.
    """

    def __init__(self, before: Mapping[EntryKey, Entry]) -> None:
        self._known = before
        self._before: dict[EntryKey, Entry] = {}
        self._changes = Changes()
        self.after: dict[EntryKey, Entry] = {}
        """Every entry that a commit touched."""

    def add(self, commits: Sequence[Commit]) -> None:
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
            entry = self._known.get(key, kind.empty)
            self._before[key] = entry
        entry = kind.begin_commit(entry, commit)
        for index, event in enumerate(commit.events):
            before = entry
            entry = kind.evolve(entry, event, commit)
            # What did not fit changed nothing, and is no part of the story.
            if commit.aggregate == "workload" and entry is not before:
                self._changes.history.append(history_row(before, event, entry, commit, index))
        self.after[key] = entry

    def finish(self) -> Changes:
        """What to write; `after` then holds the entries as they are kept."""
        pairs: list[tuple[WorkloadRow | None, WorkloadRow | None]] = []
        for key, after in self.after.items():
            kind = KINDS[key[0]]
            before = self._before[key]
            kind.changes(self._changes, before, after)
            if key[0] == "workload":
                pairs.append((before.row, after.row))
            self.after[key] = kind.settled(after)
        self._changes.use = use_changes(pairs)
        return self._changes


def fold(before: Mapping[EntryKey, Entry], commits: Sequence[Commit]) -> tuple[dict[EntryKey, Entry], Changes]:
    """(rows before, commits) to (rows after, what to write)."""
    batch = Fold(before)
    batch.add(commits)
    changes = batch.finish()
    return batch.after, changes
