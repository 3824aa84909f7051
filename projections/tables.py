"""The tables of the read models, in SQLAlchemy Core.

Derived tables follow from the declarations of their rows (projections/*/rows.py). They stand under the schema name
`projection`, which no database has: every statement names a real one, `muster_v<N>`, in its place
(`schema_translate_map`, or `qualified` for plain SQL). Names are always qualified: a changed search_path under prepared
statements is a trap (log.md section 4.2). Lasting tables, not derivable from the log, stand in `muster`.

Text is compared by bytes (collation C), so prefixes use indexes and every machine sorts alike. Only columns that stay
as they are, or change once or twice in a life, are indexed: then nearly every update is heap-only and cheap.
"""

from typing import Any, Final

import msgspec
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Double,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.types import TypeEngine

from projections.assets.rows import AssetRow
from projections.clusters.rows import ClusterRow
from projections.columns import Type, columns_of
from projections.departments.rows import DepartmentRow
from projections.hours.rows import HourRow, RateRow
from projections.nodes.rows import NodeRow, ReservationRow
from projections.past import SELDOM, SINCE, UNTIL, has_past, kept_columns
from projections.prices.rows import PricesRow
from projections.projects.rows import ProjectRow, UseRow
from projections.workloads.rows import DueRow, HistoryRow, PodRow, WorkloadRow

DERIVED_SCHEMA: Final = "projection"
"""No database has it; see above."""
LASTING_SCHEMA: Final = "muster"

REBUILD_LOCK: Final = 0x6D757362
"""Key of the advisory lock that a running rebuild holds: "musb" in ASCII."""

SHAPE: Final = 20
"""Raise it with any change to derived tables or to what is written into them: a projector of another shape halts and
asks for a rebuild."""

UPDATED_FILL_PERCENT: Final = 45
"""Room left in each page of a table whose rows change often, so that the new version of every row fits beside the old
one: of a batch of new workloads, all are told why they wait. With 80, four in five updates went to another page, and
wrote all indexes anew; after them the table was as large. Schemas that were made before keep theirs.
"""

_BRIN: Final = {"pages_per_range": 16, "autosummarize": "on"}
"""Of indexes of blocks: 128 KB each, and new ones are told of without waiting for a vacuum."""

derived: Final = MetaData(schema=DERIVED_SCHEMA)
lasting: Final = MetaData(schema=LASTING_SCHEMA)


_TYPES: Final[dict[Type, TypeEngine[Any]]] = {
    "text": Text(collation="C"),
    "integer": BigInteger(),
    "number": Double(),
    "flag": Boolean(),
    "time": DateTime(timezone=True),
    "texts": ARRAY(Text(collation="C")),
    "integers": ARRAY(BigInteger()),
    "json": JSON(),
}


PAST: Final[dict[str, Table]] = {}
"""By derived table whose rows have a `version`: the table of what its rows were (projections/past.py)."""

ROW_TYPES: Final[dict[str, type[msgspec.Struct]]] = {}
"""What the rows of each derived table are, field by field its columns; the checkpoint is none of ours to fold."""


def _column(name: str, type_: Type, *, key: bool = False, null: bool = False) -> Column[Any]:
    return Column(name, _TYPES[type_], primary_key=key, nullable=null, autoincrement=False)


def _table(name: str, row: type[msgspec.Struct], *, rows_change: bool = False) -> Table:
    """The table of these rows, and the one of what they were."""
    ROW_TYPES[name] = row
    if has_past(row):
        PAST[name] = _past_table(name, row)
    columns = [_column(c.name, c.type, key=c.key, null=c.null) for c in columns_of(row) if c.stored]
    if rows_change:
        return Table(name, derived, *columns, postgresql_with={"fillfactor": UPDATED_FILL_PERCENT})
    return Table(name, derived, *columns)


def _past_table(name: str, row: type[msgspec.Struct]) -> Table:
    """Rows are only added, in the order in which they ended: an index of blocks is enough, and costs nearly nothing."""
    columns = [_column(c.name, c.type, null=c.null) for c in kept_columns(row)]
    keys = [c.name for c in columns_of(row) if c.key]
    table = Table(
        f"{name}_past",
        derived,
        *columns,
        _column(UNTIL, "integer"),
        _column(SELDOM, "json", null=True),
    )
    Index(
        f"{name}_past_held",
        table.c[SINCE],
        table.c[UNTIL],
        postgresql_using="brin",
        postgresql_with=_BRIN,
    )
    Index(
        f"{name}_past_{SELDOM}",
        *(table.c[key] for key in keys),
        table.c[UNTIL],
        postgresql_where=text(f"{SELDOM} IS NOT NULL"),
    )
    return table


moments: Final = Table(
    "moments",
    derived,
    # Ends of atomic batches and single commits: between them nobody looks at the log.
    _column("seq", "integer", key=True),
    # The greatest `occurred_at` up to there: clocks may go back, this never does.
    _column("at", "time"),
    Index("moments_by_time", "at", "seq"),
)

checkpoint: Final = Table(
    "checkpoint",
    derived,
    _column("name", "text", key=True),
    Column("version", Integer, nullable=False),
    _column("seq", "integer"),
    # Of the commit at `seq`: another log has another one there, also when it was restored and went on differently.
    _column("last_commit_id", "text"),
)

workloads: Final = _table("workloads", WorkloadRow, rows_change=True)
_LIVING = text("deleted_at IS NULL")
Index("workloads_living_created", workloads.c.created_at, workloads.c.id, postgresql_where=_LIVING)
Index(
    "workloads_living_project",
    workloads.c.project_id,
    workloads.c.created_at,
    workloads.c.id,
    postgresql_where=_LIVING,
)
Index("workloads_living_name", workloads.c.name, workloads.c.id, postgresql_where=_LIVING)
Index(
    "workloads_living_owner",
    workloads.c.submitted_by,
    workloads.c.created_at,
    workloads.c.id,
    postgresql_where=_LIVING,
)
Index(
    "workloads_going_on",
    workloads.c.created_at,
    workloads.c.id,
    postgresql_where=text("deleted_at IS NULL AND completed_at IS NULL"),
)
Index(
    "workloads_deleted_created",
    workloads.c.created_at,
    workloads.c.id,
    postgresql_where=text("deleted_at IS NOT NULL"),
)
# Of living and deleted ones alike: whoever asks by a label asks for few.
Index("workloads_labels", workloads.c.labels, workloads.c.label_keys, postgresql_using="gin")

pods: Final = _table("pods", PodRow, rows_change=True)
due: Final = _table("due", DueRow)
Index("due_by_time", due.c.due_at)
history: Final = _table("history", HistoryRow)
# What happened between two moments: rows come in the order of the log, so an index of blocks finds them.
Index("history_by_seq", history.c.seq, postgresql_using="brin", postgresql_with=_BRIN)
nodes: Final = _table("nodes", NodeRow, rows_change=True)
reservations: Final = _table("reservations", ReservationRow)
clusters: Final = _table("clusters", ClusterRow)
projects: Final = _table("projects", ProjectRow)
Index("projects_department", projects.c.department_id, postgresql_where=_LIVING)
departments: Final = _table("departments", DepartmentRow)
project_use: Final = _table("project_use", UseRow, rows_change=True)
use_hours: Final = _table("use_hours", HourRow, rows_change=True)
use_rates: Final = _table("use_rates", RateRow, rows_change=True)
prices: Final = _table("prices", PricesRow)
assets: Final = _table("assets", AssetRow)
Index("assets_living_name", assets.c.kind, assets.c.name, assets.c.id, postgresql_where=_LIVING)

SUMS: Final = frozenset({project_use.name, use_hours.name, use_rates.name})
"""Tables to whose numbers a batch adds. Rows of zeros may stay."""


def numbers_of(table: Table) -> list[str]:
    """The columns of a table of sums that are added to."""
    return [c.name for c in table.columns if isinstance(c.type, BigInteger)]


def not_of_zeros(table: Table) -> str:
    """The condition, in SQL, of a row of sums that says something: a rebuild makes no row of zeros."""
    return " OR ".join(f'"{name}" <> 0' for name in numbers_of(table))


# -- lasting ---------------------------------------------------------------------------------------------------------

current_projection: Final = Table(
    "current_projection",
    lasting,
    # One row: its key has one possible value.
    Column("one", Boolean, primary_key=True),
    _column("schema_name", "text"),
    Column("shape", Integer, nullable=False),
    _column("halted", "text", null=True),
    _column("rebuilding_schema", "text", null=True),
    _column("rebuild_seq", "integer", null=True),
    _column("rebuild_target_seq", "integer", null=True),
)

usage_samples: Final = Table(
    "usage_samples",
    lasting,
    _column("cluster_id", "text"),
    _column("project_id", "text"),
    _column("workload_id", "text"),
    _column("pod_set", "text"),
    _column("index", "integer"),
    _column("attempt", "integer"),
    _column("try_", "integer"),
    _column("at", "time"),
    _column("cpu_milli", "integer"),
    _column("memory_bytes", "integer"),
    _column("gpu_utilization_percent", "number", null=True),
    _column("gpu_memory_bytes", "integer", null=True),
)


webhook_position: Final = Table(
    "webhook_position",
    lasting,
    _column("one", "flag", key=True),
    _column("place", "text"),
    _column("incarnation", "integer"),
)

webhook_deliveries: Final = Table(
    "webhook_deliveries",
    lasting,
    _column("id", "integer", key=True),
    _column("webhook_id", "text"),
    _column("event_id", "text"),
    _column("type", "text"),
    _column("place", "text"),
    _column("about", "text"),
    _column("body", "text"),
    _column("is_test", "flag"),
    _column("state", "text"),
    _column("tries", "integer"),
    _column("tried", "text"),
    _column("due_at", "time"),
    _column("claim", "integer"),
    _column("claimed_until", "time", null=True),
    _column("created_at", "time"),
    _column("first_tried_at", "time", null=True),
    _column("ended_at", "time", null=True),
)
"""The service `webhooks` says what they are (services/webhooks/table.py)."""


def qualified(table: Table, schema: str) -> str:
    """The table's name for plain SQL, in a real schema."""
    return f'"{schema}"."{table.name}"'


def quoted_columns(table: Table) -> str:
    return ", ".join(f'"{column.name}"' for column in table.columns)
