"""The tables as they were at a moment: a schema of views beside each projection schema, each with its table's name.

A query that names this schema in the place of the other one is answered as of the sequence in `app.as_of`, which its
transaction sets, and is otherwise the same query. Views run with the rights of who asks, so row-level security is that
of the tables below.
"""

from collections.abc import Iterator
from typing import Final

from sqlalchemy import Table

from projections import tables
from projections.past import SELDOM, SINCE, UNTIL, kept_columns, seldom_columns
from projections.tables import PAST, ROW_TYPES, qualified, quoted_columns
from projections.values import MAX_BIGINT

AS_OF: Final = "app.as_of"
"""The setting of a transaction that says of which sequence it asks."""
_SEQ: Final = f"(SELECT current_setting('{AS_OF}')::bigint)"
"""In a subquery, so that it is worked out once for a statement."""

NOT_KEPT: Final = frozenset(
    {tables.pods.name, tables.due.name, tables.reservations.name, tables.use_hours.name, tables.use_rates.name}
)
"""Tables without a past. Runs of pods are made from the log when somebody asks for those of one workload. Nobody asks
what was due, or reserved, in the past. Hourly use is about the past anyway."""


def past_schema(schema: str) -> str:
    return f"{schema}_past"


def views(schema: str) -> Iterator[str]:
    """Statements that make the schema of the past of a projection schema."""
    past = past_schema(schema)
    yield f'CREATE SCHEMA "{past}"'
    for name, query in _queries(schema, past):
        yield f'CREATE VIEW "{past}"."{name}" WITH (security_invoker = true) AS {query}'


def _queries(schema: str, past: str) -> Iterator[tuple[str, str]]:
    for name in PAST:
        yield name, _as_it_was(name, schema)
    yield (
        tables.history.name,
        f"SELECT {quoted_columns(tables.history)} FROM {qualified(tables.history, schema)} WHERE seq <= {_SEQ}",  # noqa: S608
    )
    # A question that looks at runs beside workloads finds none: what it wants of them is unknown of the past.
    yield tables.pods.name, f"SELECT {quoted_columns(tables.pods)} FROM {qualified(tables.pods, schema)} WHERE false"  # noqa: S608
    yield tables.project_use.name, _USE.format(past=past, most=MAX_BIGINT)
    yield (
        tables.checkpoint.name,
        f"SELECT name, version, {_SEQ} AS seq, last_commit_id FROM {qualified(tables.checkpoint, schema)}",  # noqa: S608
    )


_USE: Final = """
    SELECT project_id, phase, count(*) AS workloads,
        least(sum(live_pods), {most})::bigint AS pods,
        least(sum(gpu_allocated_milli), {most})::bigint AS gpu_milli,
        least(coalesce(sum(gpu_allocated_milli) FILTER (WHERE preemptibility = 'non-preemptible'), 0), {most})::bigint
            AS non_preemptible_gpu_milli,
        least(sum(cpu_allocated_milli), {most})::bigint AS cpu_milli,
        least(sum(memory_allocated_bytes), {most})::bigint AS memory_bytes
    FROM "{past}".workloads WHERE deleted_at IS NULL GROUP BY project_id, phase
"""


def _as_it_was(name: str, schema: str) -> str:
    """Each row that there was then: its part of the past where one held, else as it is, and what changes seldom as the
    next row of the past says that it was, where there is one.
    """
    table, row = _table(name), ROW_TYPES[name]
    now, left = qualified(table, schema), qualified(PAST[name], schema)
    keys = [c.name for c in kept_columns(row) if c.key]
    of = {c.name: _column(c.name, "p", keys[0]) for c in kept_columns(row)}
    of |= {c.name: _column(c.name, "s", keys[0]) for c in seldom_columns(row)}
    of |= {key: f'n."{key}"' for key in keys}
    listed = ", ".join(f'{of[c.name]} AS "{c.name}"' for c in table.columns)
    of_left = ", ".join(f'l."{key}"' for key in keys)
    was = ", ".join(f'was."{c.name}"' for c in seldom_columns(row))

    def same(alias: str) -> str:
        return " AND ".join(f'{alias}."{key}" = n."{key}"' for key in keys)

    return (
        f"SELECT {listed} FROM {now} n "  # noqa: S608 (our own names)
        f"LEFT JOIN {left} p ON {same('p')} AND p.{SINCE} <= {_SEQ} AND p.{UNTIL} > {_SEQ} "
        f"LEFT JOIN (SELECT DISTINCT ON ({of_left}) {of_left}, {was} FROM {left} l, "
        f"LATERAL json_populate_record(NULL::{now}, l.{SELDOM}) was "
        f"WHERE l.{SELDOM} IS NOT NULL AND l.{UNTIL} > {_SEQ} ORDER BY {of_left}, l.{UNTIL}) s ON {same('s')} "
        f'WHERE p."{keys[0]}" IS NOT NULL OR n.{SINCE} <= {_SEQ}'
    )


def _table(name: str) -> Table:
    return tables.derived.tables[f"{tables.DERIVED_SCHEMA}.{name}"]


def _column(column: str, alias: str, key: str) -> str:
    return f'CASE WHEN {alias}."{key}" IS NULL THEN n."{column}" ELSE {alias}."{column}" END'
