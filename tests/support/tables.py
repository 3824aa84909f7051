"""The projection tables as dictionaries: changes are applied as the writer's statements would."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from events.commit import Commit
from projections.fold import Entry, EntryKey, fold
from projections.tables import SUMS, derived, numbers_of
from projections.values import fit

Key = tuple[Any, ...]


class Tables:
    """Rows by table and primary key, and the entries that further commits need."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[Key, Any]] = {table.name: {} for table in derived.sorted_tables}
        self._entries: dict[EntryKey, Entry] = {}

    def project(self, commits: Sequence[Commit]) -> None:
        after, changes = fold(self._entries, commits)
        self._entries |= after
        for table, rows in changes.removed.items():
            for row in rows.values():
                self.rows[table].pop(key_of(table, row), None)
        for table, rows in changes.put.items():
            for row in rows.values():
                self.rows[table][key_of(table, row)] = row
        for row in changes.history:
            assert key_of("history", row) not in self.rows["history"]
            self.rows["history"][key_of("history", row)] = row
        for key, added in changes.use.items():
            self.rows["project_use"][key] = _sum("project_use", self.rows["project_use"].get(key), added)
        for table, sums in (("use_hours", changes.hours), ("use_rates", changes.rates)):
            for row in sums.values():
                key = key_of(table, row)
                self.rows[table][key] = _sum(table, self.rows[table].get(key), row)

    def plain(self) -> dict[str, dict[Key, dict[str, Any]]]:
        """Rows as dictionaries, comparable with what Postgres and the plain fold give."""
        return {table: {key: _plain(row) for key, row in rows.items()} for table, rows in self.rows.items()}


def key_of(table: str, row: Any) -> Key:
    columns = derived.tables[f"projection.{table}"].primary_key.columns
    return tuple(getattr(row, column.name) for column in columns)


def _plain(row: msgspec.Struct) -> dict[str, Any]:
    fields = msgspec.structs.asdict(row)
    return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}


def _sum(table: str, before: Any, added: Any) -> Any:
    if before is None:
        return added
    numbers = {
        name: fit(getattr(before, name) + getattr(added, name))
        for name in numbers_of(derived.tables[f"projection.{table}"])
    }
    return msgspec.structs.replace(added, **numbers)


def differences(expected: Mapping[str, Mapping[Key, Mapping[str, Any]]], actual: Mapping[str, Any]) -> list[str]:
    """What the plain fold says and the tables do not; `expected` names the columns."""
    found: list[str] = []
    for table, rows in expected.items():
        # Of the past there are sums: tests/projector/test_past.py compares these.
        if table in ("history", "moments") or table.endswith("_past"):
            continue
        have = dict(actual[table])
        if table in SUMS:
            numbers = numbers_of(derived.tables[f"projection.{table}"])
            have = {k: v for k, v in have.items() if any(v[name] for name in numbers)}
        found += [f"{table} {key}: missing" for key in rows.keys() - have.keys()]
        found += [f"{table} {key}: too many" for key in have.keys() - rows.keys()]
        for key in rows.keys() & have.keys():
            found += [
                f"{table} {key} {column}: expected {value!r}, is {have[key][column]!r}"
                for column, value in rows[key].items()
                if have[key][column] != value
            ]
    return found
