"""`muster log verify`: the whole log folded in plain Python, compared with every table, row by row.

Rows are made of that fold as the projector makes them, which proves that the tables are as whole as the log (ADR 0043,
0046). The tables are read in one repeatable-read transaction, the log up to the checkpoint that stands in it.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from projections.migrate import CHECKPOINT_NAME
from projections.past import SELDOM, SINCE, UNTIL
from projections.postgres import Connection, connect
from projections.tables import PAST, SUMS, derived, moments, not_of_zeros
from services.projector.expected import CHECKSUM_MODULUS, Expected, Key, Row, summed_columns
from services.projector.shadow import Progress
from services.runtime.log.folding import follow_into
from services.runtime.log.store import EventStore, LogGapError

MAX_DIFFERENCES: Final = 1_000
"""After so many the tables are plainly wrong; more would only fill the screen."""
IDLE_SECONDS: Final = 1.0
STALLED_IDLES: Final = 10
"""The log must give what the checkpoint counted within so many empty answers."""
CONNECT_TIMEOUT_SECONDS: Final = 10
PREFETCH_ROWS: Final = 2_000
PROGRESS_COMMITS: Final = 5_000


_OF_PAST: Final = {past.name: table for table, past in PAST.items()}
_MOMENTS: Final = """
    SELECT count(*) AS count, coalesce(sum(
        seq * 31 % {modulus} + abs((extract(epoch FROM at) * 1000000)::bigint) % {modulus}
    ), 0) AS checksum FROM "{schema}".moments
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One place where a table does not say what the log says."""

    table: str
    key: str
    column: str
    """Empty where the whole row is missing or too many."""
    expected: str
    actual: str


async def verify(store: EventStore, postgres_url: str, progress: Progress) -> list[Difference]:
    """Every difference, at most MAX_DIFFERENCES. Raises LogGapError, UnreadableMessageError and what asyncpg raises."""
    connection = await connect(postgres_url, timeout_seconds=CONNECT_TIMEOUT_SECONDS, command_timeout_seconds=None)
    try:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            schema = await connection.fetchval("SELECT schema_name FROM muster.current_projection")
            checkpoint = await connection.fetchrow(
                f'SELECT seq, last_commit_id FROM "{schema}".checkpoint WHERE name = $1',  # noqa: S608 (our own names)
                CHECKPOINT_NAME,
            )
            assert checkpoint is not None, "a projection schema has a checkpoint from the start"
            expected = await _fold(store, checkpoint["seq"], progress)
            differences: list[Difference] = []
            if expected.last_commit_id != checkpoint["last_commit_id"]:
                differences.append(
                    Difference(
                        table="checkpoint",
                        key=str(checkpoint["seq"]),
                        column="last_commit_id",
                        expected=expected.last_commit_id,
                        actual=checkpoint["last_commit_id"],
                    )
                )
            for table, rows in expected.tables().items():
                differences.extend(await _compare(connection, schema, table, rows))
                if len(differences) >= MAX_DIFFERENCES:
                    return differences[:MAX_DIFFERENCES]
            return differences
    finally:
        await connection.close(timeout=CONNECT_TIMEOUT_SECONDS)


async def _fold(store: EventStore, seq: int, progress: Progress) -> Expected:
    """What the tables must hold at `seq`."""
    expected = Expected()
    if seq == 0:
        return expected
    if (end := await store.last_seq()) < seq:
        raise LogGapError(f"the tables are at {seq}, but the log ends at {end}: it is another log")
    idles, told = 0, 0
    following = follow_into(store, expected, until=seq, on_standing=None, idle_seconds=IDLE_SECONDS)
    async with aclosing(following) as arrivals:
        async for commits in arrivals:
            idles = 0 if commits else idles + 1
            if idles > STALLED_IDLES:
                raise LogGapError(f"the tables are at {seq}, but the log gave nothing after {expected.seq}")
            if expected.seq >= told + PROGRESS_COMMITS or expected.seq == seq:
                told = expected.seq
                progress(expected.seq, seq)
            await asyncio.sleep(0)
    return expected


async def _compare(connection: Connection, schema: str, table: str, expected: Mapping[Key, Row]) -> list[Difference]:
    left = dict(expected)
    differences: list[Difference] = []
    columns: Row = next(iter(expected.values()), Row())
    async for key, actual in _rows(connection, schema, table, columns):
        row = left.pop(key, None)
        if row is None:
            differences.append(_whole(table, key, "no row", "a row"))
        else:
            differences.extend(_columns(table, key, row, actual))
        if len(differences) >= MAX_DIFFERENCES:
            return differences
    differences.extend(_whole(table, key, "a row", "no row") for key in left)
    return differences


async def _rows(
    connection: Connection, schema: str, table: str, compared: Iterable[str]
) -> AsyncIterator[tuple[Key, dict[str, Any]]]:
    """(key, row) of a table; the history and the use are summed up to what can be compared."""
    columns = derived.tables[f"projection.{table}"]
    keys = [column.name for column in columns.primary_key.columns]
    if table in _OF_PAST:
        keys, query = _sums_of_past(_OF_PAST[table], schema)
    elif table == moments.name:
        keys, query = [], _MOMENTS.format(schema=schema, modulus=CHECKSUM_MODULUS)
    elif table == "history":
        # Its rows are compared by number, first, last and a sum that any missing or doubled row changes.
        keys = ["workload_id"]
        query = (
            "SELECT workload_id, count(*) AS count, min(seq) AS first, max(seq) AS last, "  # noqa: S608
            f"sum((seq * 31 + index + length(type)) % 1000003)::bigint AS checksum "
            f'FROM "{schema}".history GROUP BY workload_id'
        )
    else:
        listed = ", ".join(f'"{name}"' for name in dict.fromkeys((*keys, *compared)))
        where = ""
        if table in SUMS:
            where = f" WHERE {not_of_zeros(columns)}"
        query = f'SELECT {listed} FROM "{schema}"."{table}"{where}'  # noqa: S608
    async for record in connection.cursor(query, prefetch=PREFETCH_ROWS):
        values = dict(zip(record.keys(), record, strict=True))
        yield tuple(values[name] for name in keys), values


def _sums_of_past(table: str, schema: str) -> tuple[list[str], str]:
    """As `Expected` sums up the rows of the past of each key."""
    keys, integers, texts = summed_columns(table)
    said = [f"({SINCE} * 31 + {UNTIL}) % {CHECKSUM_MODULUS}", f"({SELDOM} IS NOT NULL)::integer"]
    said += [f'coalesce("{name}", 0)::numeric' for name in integers] + [f'length("{name}")' for name in texts]
    listed = ", ".join(f'"{name}"' for name in keys)
    return keys, (
        f"SELECT {listed}, count(*) AS count, min({SINCE}) AS first, max({UNTIL}) AS last, "  # noqa: S608
        f'sum({" + ".join(said)}) AS checksum FROM "{schema}"."{PAST[table].name}" GROUP BY {listed}'
    )


def _columns(table: str, key: Key, expected: Row, actual: Mapping[str, Any]) -> list[Difference]:
    return [
        Difference(table=table, key=_key(key), column=column, expected=repr(value), actual=repr(actual[column]))
        for column, value in expected.items()
        if actual[column] != value
    ]


def _whole(table: str, key: Key, expected: str, actual: str) -> Difference:
    return Difference(table=table, key=_key(key), column="", expected=expected, actual=actual)


def _key(key: Key) -> str:
    return "/".join(str(part) for part in key)
