"""What the tables must hold, from the log alone: one fold from its beginning, in plain Python.

Rows are made as the projector makes them, of one batch that is the whole log (ADR 0043, 0046).
"""

from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from events.aggregate import AGGREGATES
from events.commit import Commit
from projections.fold import Fold

Key = tuple[Any, ...]
Row = dict[str, Any]

CHECKSUM_MODULUS: Final = 1_000_003
COMPARED: Final = ("clusters", "projects", "nodes", "reservations", "workloads", "pods", "due")
"""Tables of which every row is compared in every column."""


class Expected:
    """The rows that the log up to `seq` stands for."""

    def __init__(self) -> None:
        self.seq = 0
        self.from_snapshot = False
        self.last_commit_id = ""
        self._fold = Fold({})
        self._history: dict[Key, Row] = {}
        """By workload: how many rows, the first and the last sequence, and a sum that any missing or doubled row
        changes. Whole rows would be larger than the log."""

    def apply(self, commit: Commit) -> None:
        """One more commit of the log, in order. Raises BrokenChainError."""
        self.last_commit_id = commit.record.commit_id
        if commit.aggregate not in AGGREGATES:
            return  # a void message on a subject of no aggregate
        self._fold.add([commit])
        told = self._fold.changes.history
        for row in told:
            sums = self._history.setdefault((row.workload_id,), {"count": 0, "first": row.seq, "checksum": 0})
            sums["count"] += 1
            sums["last"] = row.seq
            sums["checksum"] += (row.seq * 31 + row.index + len(row.type)) % CHECKSUM_MODULUS
        told.clear()

    def tables(self) -> dict[str, dict[Key, Row]]:
        """Rows by table and key; of each table the columns that the log determines. Must be the last call."""
        changes = self._fold.finish()
        return {
            **{table: _plain(changes.put.get(table, {})) for table in COMPARED},
            "history": self._history,
            "project_use": {
                key: {name: number for name, number in row.items() if name not in ("project_id", "phase")}
                for key, row in _plain(changes.use).items()
            },
        }


def _plain(rows: Mapping[Any, msgspec.Struct]) -> dict[Key, Row]:
    """As Postgres gives them."""
    return {
        key if isinstance(key, tuple) else (key,): {
            name: list(cast("tuple[object, ...]", value)) if isinstance(value, tuple) else value
            for name, value in msgspec.structs.asdict(row).items()
        }
        for key, row in rows.items()
    }
