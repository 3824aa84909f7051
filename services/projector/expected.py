"""What the tables must hold, from the log alone: one fold from its beginning, in plain Python.

Rows are made as the projector makes them, of one batch that is the whole log (ADR 0043, 0046).
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

import msgspec

from events.aggregate import AGGREGATES
from events.commit import Commit
from projections.fold import Fold
from projections.past import SELDOM, SINCE, UNTIL, kept_columns
from projections.tables import PAST, ROW_TYPES, project_use, use_hours, use_rates

Key = tuple[Any, ...]
Row = dict[str, Any]

CHECKSUM_MODULUS: Final = 1_000_003
COMPARED: Final = (
    "clusters",
    "departments",
    "projects",
    "prices",
    "assets",
    "nodes",
    "reservations",
    "workloads",
    "pods",
    "due",
)
"""Tables of which every row is compared in every column."""


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def summed_columns(table: str) -> tuple[list[str], list[str], list[str]]:
    """Of a table of the past: its keys, and which columns with numbers and with texts go into the sums."""
    columns = kept_columns(ROW_TYPES[table])
    return (
        [c.name for c in columns if c.key],
        [c.name for c in columns if c.type == "integer" and c.name != SINCE],
        [c.name for c in columns if c.type == "text" and not c.key],
    )


_SUMMED: Final = {table: summed_columns(table) for table in PAST}


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

        self._left: dict[str, dict[Key, Row]] = {table: {} for table in PAST}
        """Of rows of the past, by table and key: the same sums, over what they say."""
        self._moments: Row = {"count": 0, "checksum": 0}
        self._latest = datetime.min.replace(tzinfo=UTC)

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
        for table, left in self._fold.changes.left.items():
            for row in left:
                self._add_left(table, row)
            left.clear()
        for passed in self._fold.changes.passed:
            self._latest = max(self._latest, passed.at)
            self._moments["count"] += 1
            micros = abs((self._latest - _EPOCH) // _MICROSECOND)
            self._moments["checksum"] += passed.seq * 31 % CHECKSUM_MODULUS + micros % CHECKSUM_MODULUS
        self._fold.changes.passed.clear()

    def _add_left(self, table: str, row: Any) -> None:
        keys, integers, texts = _SUMMED[table]
        key = tuple(getattr(row, name) for name in keys)
        since, until = getattr(row, SINCE), getattr(row, UNTIL)
        sums = self._left[table].setdefault(key, {"count": 0, "first": since, "checksum": 0})
        sums["count"] += 1
        sums["last"] = until
        sums["checksum"] += (
            (since * 31 + until) % CHECKSUM_MODULUS
            + sum(getattr(row, name) or 0 for name in integers)
            + sum(len(getattr(row, name)) for name in texts)
            + (getattr(row, SELDOM) is not None)
        )

    def tables(self) -> dict[str, dict[Key, Row]]:
        """Rows by table and key; of each table the columns that the log determines. Must be the last call."""
        changes = self._fold.finish()
        return {
            **{table: _plain(changes.put.get(table, {})) for table in COMPARED},
            "history": self._history,
            **{PAST[table].name: sums for table, sums in self._left.items()},
            "moments": {(): self._moments},
            project_use.name: _plain(changes.use),
            use_hours.name: _plain(changes.hours),
            use_rates.name: _plain(changes.rates),
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
