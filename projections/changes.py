"""What a batch of commits changes in the tables. Pure."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from projections.columns import columns_of
from projections.hours.changes import HourChanges
from projections.hours.rows import HourRow, RateRow
from projections.projects.rows import UseRow
from projections.workloads.rows import HistoryRow, WorkloadRow

Key = Any
"""Primary key of a row: a value, or a tuple of them."""


class Put(NamedTuple):
    """The row is new, or another one than before under its key."""

    table: str
    row: msgspec.Struct


class Removed(NamedTuple):
    """The row that had the key of this one is no longer there."""

    table: str
    row: msgspec.Struct


class Passed(msgspec.Struct, gc=False):
    """A moment at which the log may be looked at: the end of an atomic batch, or a commit of its own."""

    seq: int
    at: datetime
    """The greatest time of a commit since the moment before."""


type Change = Put | Removed


@cache
def _key_of(row: type) -> Callable[[Any], Key]:
    return attrgetter(*(column.name for column in columns_of(row) if column.key))


@dataclass(slots=True)
class Changes:
    """What to write, all at once. Of each row the last that became of it."""

    put: dict[str, dict[Key, Any]] = field(default_factory=dict[str, dict[Key, Any]])
    """Rows by table and key."""
    removed: dict[str, dict[Key, Any]] = field(default_factory=dict[str, dict[Key, Any]])
    history: list[HistoryRow] = field(default_factory=list[HistoryRow])
    left: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    """What is left of rows that were replaced (projections/past.py), by table."""
    passed: list[Passed] = field(default_factory=list[Passed])
    moved: list[tuple[WorkloadRow | None, WorkloadRow]] = field(
        default_factory=list[tuple[WorkloadRow | None, WorkloadRow]]
    )
    """Workloads that went from one row to another; None: it is new."""
    use: dict[tuple[str, str], UseRow] = field(default_factory=dict[tuple[str, str], UseRow])
    """To be added to what stands there; likewise the two below."""
    hours: dict[tuple[datetime, str], HourRow] = field(default_factory=dict[tuple[datetime, str], HourRow])
    rates: dict[str, RateRow] = field(default_factory=dict[str, RateRow])
    shifts: HourChanges = field(default_factory=HourChanges)
    """What these two are made of in the end."""

    def add(self, changes: Iterable[Change]) -> None:
        for change in changes:
            key = _key_of(type(change.row))(change.row)
            to, from_ = (self.put, self.removed) if isinstance(change, Put) else (self.removed, self.put)
            to.setdefault(change.table, {})[key] = change.row
            if change.table in from_:
                from_[change.table].pop(key, None)

    def leave(self, table: str, left: Any) -> None:
        """Keep what is left of a row that a commit replaced."""
        self.left.setdefault(table, []).append(left)

    def differences(self, table: str, before: Mapping[Any, Any], after: Mapping[Any, Any]) -> None:
        """Put what is new or another row than before, remove what is no longer there."""
        self.add(Put(table, row) for key, row in after.items() if before.get(key) is not row)
        self.add(Removed(table, row) for key, row in before.items() if key not in after)
