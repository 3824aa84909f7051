"""Rows as the JSON of the public API: camelCase, units last, times RFC 3339 in UTC."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from projections.columns import Column, Public, public_columns
from projections.workloads.rows import WorkloadRow

Json = dict[str, Any]
Row = Mapping[Any, Any]


def timestamp(value: datetime | None) -> str | None:
    """RFC 3339 in UTC with Z."""
    return None if value is None else value.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _made(column: Column[Any], public: Public) -> Callable[[Any], Any] | None:
    """How a value becomes the API's; None where it is the same."""
    if column.type == "time":
        return timestamp
    if column.in_thousandths:
        return lambda value: None if value is None else value / 1000
    if column.type == "number":
        return lambda value: None if value is None else round(value, 3)
    return (lambda value: value or None) if public.empty_is_null else None


_WORKLOAD: Final = tuple((p.name, column.name, _made(column, p)) for column, p in public_columns(WorkloadRow))
WORKLOAD_COLUMNS: Final = tuple(name for name, _, _ in _WORKLOAD)
"""What an export can be asked for, in the order of its default."""


def row_to_json(row: Row) -> Json:
    """A row of `Queries.workloads`."""
    return {name: row[column] if made is None else made(row[column]) for name, column, made in _WORKLOAD}
