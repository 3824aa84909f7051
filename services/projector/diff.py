"""What a rebuild would change: a schema filled beside the current one and compared with it, and then dropped.

Both are compared at the same commit, in one snapshot of the database, while the projector goes on. Everything is
compared by Postgres, which needs no more memory for a larger log.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from sqlalchemy import Table

from projections.migrate import CHECKPOINT_NAME
from projections.past import UNTIL
from projections.postgres import Connection, connect
from projections.tables import PAST, SUMS, checkpoint, derived, not_of_zeros
from services.projector.arrivals import at_seq
from services.projector.shadow import (
    CONNECT_TIMEOUT_SECONDS,
    LOCK_TIMEOUT_SECONDS,
    Progress,
    RebuildError,
    Shadow,
    only_one,
    shadow,
)
from services.projector.verify import Difference
from services.runtime.log.store import EventStore
from services.runtime.process.failpoints import reached

CATCH_UP_COMMITS: Final = 2_000
"""So close to the current tables they are held for as long as the rest takes."""

type _Types = Mapping[str, str]
"""Of a table's columns, by name."""

_PAST_NAMES: Final = frozenset(table.name for table in PAST.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    differences: Sequence[Difference]
    """The first of each table, in order of its keys."""
    seq: int
    """The commit that both were at."""
    more: bool
    """Whether there are further ones."""


async def compare(store: EventStore, postgres_url: str, progress: Progress, *, most: int) -> Compared:
    """At most `most` differences between the current tables and what the log makes. Changes nothing. Raises
    RebuildError, StalledError, LogGapError, and what asyncpg raises.
    """
    async with (
        only_one(postgres_url) as (connection, current),
        shadow(store, postgres_url, connection, "rebuild", progress) as made,
    ):
        await _come_close(store, connection, current, made)
        await made.analyze()
        async with _both_at_one_commit(postgres_url, connection, current, made) as reader:
            reached("shadow_filled")
            return await _differences(reader, current, made, most)


async def _come_close(store: EventStore, connection: Connection, current: str, made: Shadow) -> None:
    while (left := (seq := await _seq(connection, current)) - made.engine.seq) > 0:
        if seq > (end := await store.last_seq()):
            raise RebuildError(f"the tables are at {seq}, but the log ends at {end}: it is another log")
        await made.fill(at_seq(seq))
        if left <= CATCH_UP_COMMITS:
            return


async def _seq(connection: Connection, schema: str, *, hold: bool = False) -> int:
    row = f'SELECT seq FROM "{schema}".checkpoint WHERE name = $1'  # noqa: S608 (our own names)
    return int(await connection.fetchval(row + (" FOR UPDATE" if hold else ""), CHECKPOINT_NAME) or 0)


@asynccontextmanager
async def _both_at_one_commit(
    postgres_url: str, connection: Connection, current: str, made: Shadow
) -> AsyncGenerator[Connection]:
    """A connection that sees both schemas at the same commit, whatever the projector does meanwhile."""
    reader = await connect(postgres_url, timeout_seconds=CONNECT_TIMEOUT_SECONDS, command_timeout_seconds=None)
    try:
        async with reader.transaction(isolation="repeatable_read", readonly=True):
            async with connection.transaction():
                await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_SECONDS}s'")
                await made.fill(at_seq(await _seq(connection, current, hold=True)))
                await reader.fetchval("SELECT 1 FROM muster.current_projection")  # what it sees is settled from here on
            yield reader
    finally:
        await reader.close(timeout=CONNECT_TIMEOUT_SECONDS)


async def _differences(reader: Connection, current: str, made: Shadow, most: int) -> Compared:
    found: list[Difference] = []
    for table in derived.sorted_tables:
        if len(found) > most:
            break
        found.extend(await _of_table(reader, table, current, made.schema, most + 1 - len(found)))
    return Compared(differences=found[:most], seq=made.engine.seq, more=len(found) > most)


async def _of_table(reader: Connection, table: Table, current: str, new: str, most: int) -> list[Difference]:
    was, becomes = await _types(reader, table.name, current), await _types(reader, table.name, new)
    if not was:
        return [Difference(table=table.name, key="", column="", expected="a table", actual="no table")]
    found = [
        Difference(
            table=table.name,
            key="",
            column=name,
            expected=becomes.get(name, "no column"),
            actual=was.get(name, "no column"),
        )
        for name in sorted(was.keys() | becomes.keys())
        if was.get(name) != becomes.get(name)
    ]
    both = [column.name for column in table.columns if column.name in was and was[column.name] == becomes[column.name]]
    keys = _keys(table)
    if not set(keys) <= set(both):
        return found[:most]
    query = _query(table, current, new, keys, both)
    for row in await reader.fetch(query, most):
        found.extend(_of_row(table.name, keys, _decoded(row["was"]), _decoded(row["becomes"])))
    if not found:
        found.extend(await _counted(reader, table, current, new))
    return found[:most]


async def _types(reader: Connection, table: str, schema: str) -> _Types:
    rows = await reader.fetch(
        "SELECT a.attname AS name, format_type(a.atttypid, a.atttypmod) AS type FROM pg_attribute a "
        "WHERE a.attrelid = to_regclass(format('%I.%I', $1::text, $2::text)) AND a.attnum > 0 AND NOT a.attisdropped",
        schema,
        table,
    )
    return {row["name"]: row["type"] for row in rows}


def _keys(table: Table) -> list[str]:
    """What a row is found again by. Rows of the past have no primary key: that is those of the row, and until when."""
    if table.name in _PAST_NAMES:
        row = next(name for name, past in PAST.items() if past is table)
        of_row = derived.tables[f"{table.schema}.{row}"]
        return [*(column.name for column in of_row.primary_key.columns), UNTIL]
    return [column.name for column in table.primary_key.columns]


def _query(table: Table, current: str, new: str, keys: Sequence[str], both: Sequence[str]) -> str:
    """Rows that are not the same, as JSON; NULL where there is none."""
    types = {column.name: str(column.type) for column in table.columns}
    listed = ", ".join(f'"{name}"' for name in both)
    where = f" WHERE {not_of_zeros(table)}" if table.name in SUMS else ""
    by_key = ", ".join(f'"{name}"' for name in keys)

    def values(alias: str) -> str:
        return ", ".join(f'{alias}."{name}"::text' if types[name] == "JSON" else f'{alias}."{name}"' for name in both)

    # Text, as JSON has no equality; and the rows' own JSON is never parsed by Postgres, which refuses some of it.
    return (
        f'SELECT row_to_json(w) AS was, row_to_json(b) AS becomes FROM (SELECT {listed} FROM "{current}"."{table.name}"'  # noqa: S608
        f'{where}) w FULL JOIN (SELECT {listed} FROM "{new}"."{table.name}"{where}) b USING ({by_key}) '
        f"WHERE ROW({values('w')}) IS DISTINCT FROM ROW({values('b')}) ORDER BY {by_key} LIMIT $1"
    )


def _decoded(row: str | None) -> dict[str, Any] | None:
    return None if row is None else msgspec.json.decode(row)


def _of_row(
    table: str, keys: Sequence[str], was: dict[str, Any] | None, becomes: dict[str, Any] | None
) -> list[Difference]:
    key = "/".join(str((was or becomes or {})[name]) for name in keys)
    if was is None or becomes is None:
        present = ("no row", "a row") if becomes is None else ("a row", "no row")
        return [Difference(table=table, key=key, column="", expected=present[0], actual=present[1])]
    # JSON that says the same in another order is no difference.
    columns = [name for name in was if was[name] != becomes[name]]
    return [
        Difference(table=table, key=key, column=name, expected=repr(becomes[name]), actual=repr(was[name]))
        for name in columns
    ]


async def _counted(reader: Connection, table: Table, current: str, new: str) -> list[Difference]:
    """A row that is there twice is the same row, twice; which only a table without a primary key can have."""
    if table.name not in _PAST_NAMES and table.name != checkpoint.name:
        return []
    was, becomes = [
        await reader.fetchval(f'SELECT count(*) FROM "{schema}"."{table.name}"')  # noqa: S608
        for schema in (current, new)
    ]
    if was == becomes:
        return []
    return [Difference(table=table.name, key="", column="", expected=f"{becomes} rows", actual=f"{was} rows")]
