"""Writes changes to one projection schema, and reads workloads back. The only place that speaks SQL to derived tables.

Rows are written in sets: COPY for what is only ever added (history, rows of the past, moments), and one `INSERT …
SELECT … ON CONFLICT` per table for the rest, whose names, columns and casts come from projections/tables.py. Such a set
travels as one JSON text. Both are written by one call of an encoder: as an array per column, or as records, the client
looks at each value several times. Nothing is decided here.
"""

import contextlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, cast

import asyncpg
import msgspec
from sqlalchemy import JSON, BigInteger, Boolean, DateTime, Double, Integer, Table, Text
from sqlalchemy.dialects.postgresql import ARRAY

from events.commit import Commit
from events.subjects import aggregate_subject
from projections import tables
from projections.changes import Changes, Passed
from projections.migrate import CHECKPOINT_NAME
from projections.postgres import Connection, Pool
from projections.tables import SHAPE, qualified, quoted_columns
from projections.values import MAX_BIGINT
from projections.workloads.project import ENDED_POD_PHASES
from projections.workloads.rows import PodRow, WorkloadRow
from services.projector.copy_text import OPTIONS, copy_text
from services.runtime.log.store import UnreadableMessageError

_TABLES: Final[dict[str, Table]] = {
    name: tables.derived.tables[f"{tables.DERIVED_SCHEMA}.{name}"] for name in tables.ROW_TYPES
}

_ARRAYS: Final[dict[str, tuple[int, ...]]] = {
    table.name: tuple(place for place, column in enumerate(table.columns) if isinstance(column.type, ARRAY))
    for table in tables.derived.tables.values()
}
"""Places of the columns that are arrays, by table."""

WRITE_ORDER: Final = (
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
"""Always the same, so that two writers wait for each other rather than deadlock."""

RETIRED: Final = 0
"""Version of a checkpoint whose schema was swapped for another one: whoever still writes there is fenced off."""

CAUSE_CHARACTERS: Final = 500
"""Of an error's text, which may repeat what stands in the message."""

_ENCODER: Final = msgspec.json.Encoder()

REFUSALS: Final = (
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,
    asyncpg.CardinalityViolationError,
    # What the library cannot send: a character, a number or a time that the protocol has no form for.
    ValueError,
    OverflowError,
    TypeError,
)
"""Rows that Postgres does not take, however often they come."""


class RefusedByTablesError(UnreadableMessageError):
    """Postgres does not take the rows of a commit: a fold is missing that makes them fit (projections/values.py)."""

    def __init__(self, commit: Commit, error: Exception) -> None:
        subject = aggregate_subject(commit.aggregate, commit.key)
        super().__init__(
            commit.seq, subject, f"Postgres refuses its rows: {type(error).__name__}: {error}"[:CAUSE_CHARACTERS]
        )

    @property
    def todo(self) -> str:
        return (
            "its record can be read, so none declares it void: run a version of Muster whose folds make these rows "
            "fit, and then: muster projections rebuild"
        )


class CheckpointMovedError(Exception):
    """Somebody else moved the checkpoint, or the schema was retired: nothing was written."""


class _RehearsedError(Exception):
    """Ends a transaction that was to change nothing."""


class OtherShapeError(Exception):
    """The tables are of another version of Muster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    seq: int
    last_commit_id: str


@dataclass(frozen=True, slots=True)
class _Statements:
    put: str
    remove: str
    key_places: tuple[int, ...]


class Writer:
    """The tables of one schema."""

    def __init__(self, pool: Pool, schema: str) -> None:
        self._pool = pool
        self.schema = schema
        self._checkpoint = qualified(tables.checkpoint, schema)
        self._statements = {name: _statements(table, schema) for name, table in _TABLES.items()}
        self._latest = f"SELECT at FROM {qualified(tables.moments, schema)} ORDER BY seq DESC LIMIT 1"  # noqa: S608

    async def checkpoint(self) -> Checkpoint:
        """Raises CheckpointMovedError where the schema is retired, OtherShapeError where it is not one of ours."""
        row = await self._pool.fetchrow(
            f"SELECT seq, last_commit_id, version FROM {self._checkpoint} WHERE name = $1",  # noqa: S608
            CHECKPOINT_NAME,
        )
        if row is None or row["version"] == RETIRED:
            raise CheckpointMovedError(f"schema {self.schema} is retired")
        if row["version"] != SHAPE:
            raise OtherShapeError(
                f"schema {self.schema} has the shape {row['version']}, this version of Muster writes {SHAPE}"
            )
        return Checkpoint(seq=row["seq"], last_commit_id=row["last_commit_id"])

    async def write(self, changes: Changes, old_seq: int, new: Checkpoint) -> None:
        """All changes and the checkpoint in one transaction. Raises CheckpointMovedError."""
        async with self._pool.acquire() as connection, connection.transaction():
            moved = await connection.execute(
                f"UPDATE {self._checkpoint} SET seq = $1, last_commit_id = $2 "  # noqa: S608
                "WHERE name = $3 AND seq = $4 AND version = $5",
                new.seq,
                new.last_commit_id,
                CHECKPOINT_NAME,
                old_seq,
                SHAPE,
            )
            if moved != "UPDATE 1":
                raise CheckpointMovedError(f"the checkpoint of {self.schema} is no longer at {old_seq}")
            await self._change(connection, changes)

    async def rehearse(self, changes: Changes) -> None:
        """Whether Postgres takes the changes: it raises what `write` would, and writes nothing."""
        with contextlib.suppress(_RehearsedError):
            async with self._pool.acquire() as connection, connection.transaction():
                await self._change(connection, changes)
                raise _RehearsedError

    async def _change(self, connection: Connection, changes: Changes) -> None:
        for table in WRITE_ORDER:
            await self._remove(connection, table, changes.removed.get(table, {}).values())
            await self._put(connection, table, changes.put.get(table, {}).values())
        await self._put(connection, tables.project_use.name, changes.use.values())
        await self._put(connection, tables.use_hours.name, changes.hours.values())
        await self._put(connection, tables.use_rates.name, changes.rates.values())
        for table, left in changes.left.items():
            await self._add(connection, tables.PAST[table], left)
        if changes.passed:
            _in_order(changes.passed, await connection.fetchval(self._latest))
            await self._add(connection, tables.moments, changes.passed)
        await self._add(connection, tables.history, changes.history)

    async def _add(self, connection: Connection, table: Table, rows: Collection[msgspec.Struct]) -> None:
        """Rows that nothing replaces."""
        if rows:
            # The library takes bytes for the path of a file.
            source = memoryview(copy_text(rows, _ARRAYS[table.name]))
            await connection.copy_to_table(table.name, source=source, schema_name=self.schema, **OPTIONS)

    async def _put(self, connection: Connection, table: str, put: Collection[msgspec.Struct]) -> None:
        if not put:
            return
        await connection.execute(self._statements[table].put, _ENCODER.encode(list(put)))

    async def _remove(self, connection: Connection, table: str, removed: Collection[msgspec.Struct]) -> None:
        if not removed:
            return
        statements = self._statements[table]
        values = list(map(msgspec.structs.astuple, removed))
        await connection.execute(
            statements.remove, *([value[place] for value in values] for place in statements.key_places)
        )

    # -- reading workloads -------------------------------------------------------------------------------------------

    async def _rows[R: msgspec.Struct](
        self, connection: Connection, type_: type[R], table: str, column: str, wanted: list[str], *, where: str = ""
    ) -> list[R]:
        source = _TABLES[table]
        records = await connection.fetch(
            f"SELECT {quoted_columns(source)} FROM {qualified(source, self.schema)} "  # noqa: S608 (our own names)
            f'WHERE "{column}" = ANY($1){where}',
            wanted,
        )
        names = [c.name for c in source.columns]
        return [
            type_(**{name: _as_in_row(value) for name, value in zip(names, record, strict=True)}) for record in records
        ]

    async def workloads(self, wanted: list[str]) -> tuple[dict[str, WorkloadRow], dict[str, list[PodRow]]]:
        """Rows of workloads by id, and those of their runs that are not over."""
        ended = ", ".join(f"'{phase}'" for phase in ENDED_POD_PHASES)
        where = f" AND phase NOT IN ({ended})"
        async with self._pool.acquire() as connection:
            rows = await self._rows(connection, WorkloadRow, "workloads", "id", wanted)
            runs: dict[str, list[PodRow]] = {}
            for run in await self._rows(connection, PodRow, "pods", "workload_id", wanted, where=where):
                runs.setdefault(run.workload_id, []).append(run)
        return {row.id: row for row in rows}, runs


def _in_order(passed: Iterable[Passed], latest: datetime | None) -> None:
    """Give each moment the greatest time up to it, those before it (None: there are none) included."""
    for moment in passed:
        if latest is None or moment.at > latest:
            latest = moment.at
        else:
            moment.at = latest


# -- statements ------------------------------------------------------------------------------------------------------


def _insert(table: Table, schema: str) -> str:
    given = ", ".join(f'"{c.name}" {_given_type(c.type)}' for c in table.columns)
    values = ", ".join(f'u."{c.name}"{_cast(c.type)}' for c in table.columns)
    return (
        f"INSERT INTO {qualified(table, schema)} AS t ({quoted_columns(table)}) SELECT {values} "  # noqa: S608
        f"FROM json_to_recordset(convert_from($1::bytea, 'UTF8')::json) AS u({given})"
    )


def _statements(table: Table, schema: str) -> _Statements:
    names = [column.name for column in table.columns]
    keys = [column.name for column in table.primary_key.columns]
    target = qualified(table, schema)
    by_key = ", ".join(f'"{name}"' for name in keys)
    key_arrays = ", ".join(f"${n}::{parameter_type(table.columns[k].type)}[]" for n, k in enumerate(keys, start=1))
    matches = " AND ".join(f't."{name}" = u."{name}"' for name in keys)
    put = f"{_insert(table, schema)} ON CONFLICT ({by_key}) {_on_conflict(table, keys)}"
    remove = f"DELETE FROM {target} AS t USING unnest({key_arrays}) AS u({by_key}) WHERE {matches}"  # noqa: S608
    return _Statements(
        put=put,
        remove=remove,
        key_places=tuple(names.index(name) for name in keys),
    )


def _on_conflict(table: Table, keys: list[str]) -> str:
    if table.name in tables.SUMS:
        return "DO UPDATE SET " + ", ".join(
            f'"{name}" = greatest(least(t."{name}"::numeric + excluded."{name}", {MAX_BIGINT}), -{MAX_BIGINT})::bigint'
            for name in tables.numbers_of(table)
        )
    others = [column.name for column in table.columns if column.name not in keys]
    return "DO UPDATE SET " + ", ".join(f'"{name}" = excluded."{name}"' for name in others)


def parameter_type(type_: Any) -> str:
    """Of a column that travels as an array of its values."""
    match type_:
        case Text():
            return "text"
        case BigInteger():
            return "bigint"
        case Integer():
            return "integer"
        case Boolean():
            return "boolean"
        case Double():
            return "double precision"
        case DateTime():
            return "timestamptz"
        case _:
            raise AssertionError(f"no parameter type for {type_!r}")


def _given_type(type_: Any) -> str:
    """Of a column in the JSON of a set. What is JSON in the table is a text that holds it."""
    match type_:
        case ARRAY():
            return f"{parameter_type(cast('object', type_.item_type))}[]"
        case JSON():
            return "text"
        case _:
            return parameter_type(type_)


def _cast(type_: Any) -> str:
    return "::json" if isinstance(type_, JSON) else ""


def _as_in_row(value: Any) -> Any:
    """Lists are tuples in rows."""
    return tuple(cast("list[object]", value)) if isinstance(value, list) else value
