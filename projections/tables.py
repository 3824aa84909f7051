"""The tables of the read models, in SQLAlchemy Core.

Derived tables stand under the schema name `projection`, which no database has: every statement names a real one,
`muster_v<N>`, in its place (`schema_translate_map`, or `qualified` for plain SQL). Names are always qualified: a
changed search_path under prepared statements is a trap (log.md section 4.2). Lasting tables, not derivable from the
log, stand in `muster`.

Text is compared by bytes (collation C), so prefixes use indexes and every machine sorts alike. Only columns that stay
as they are, or change once or twice in a life, are indexed: then nearly every update is heap-only and cheap.
"""

from typing import Any, Final

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

DERIVED_SCHEMA: Final = "projection"
"""No database has it; see above."""
LASTING_SCHEMA: Final = "muster"

REBUILD_LOCK: Final = 0x6D757362
"""Key of the advisory lock that a running rebuild holds: "musb" in ASCII."""

SHAPE: Final = 3
"""Raise it with any change to derived tables or to what is written into them: a projector of another shape halts and
asks for a rebuild."""

UPDATED_FILL_PERCENT: Final = 80
"""Room left in each page of a table whose rows change often, so that the new version fits beside the old one."""

derived: Final = MetaData(schema=DERIVED_SCHEMA)
lasting: Final = MetaData(schema=LASTING_SCHEMA)


def _text(name: str, *, key: bool = False, null: bool = False) -> Column[str]:
    return Column(name, Text(collation="C"), primary_key=key, nullable=null)


def _int(name: str, *, key: bool = False, null: bool = False) -> Column[int]:
    return Column(name, BigInteger, primary_key=key, nullable=null, autoincrement=False)


def _bool(name: str, *, null: bool = False) -> Column[bool]:
    return Column(name, Boolean, nullable=null)


def _time(name: str, *, null: bool = True) -> Column[object]:
    return Column(name, DateTime(timezone=True), nullable=null)


def _list(name: str, element: TypeEngine[Any] | None = None) -> Column[object]:
    return Column(name, ARRAY(element or Text(collation="C")), nullable=False)


def _json(name: str) -> Column[object]:
    return Column(name, JSON, nullable=False)


checkpoint: Final = Table(
    "checkpoint",
    derived,
    _text("name", key=True),
    Column("version", Integer, nullable=False),
    _int("seq"),
    # Of the commit at `seq`: another log has another one there, also when it was restored and went on differently.
    _text("last_commit_id"),
)

workloads: Final = Table(
    "workloads",
    derived,
    _text("id", key=True),
    _text("key"),
    _int("version"),
    _text("name"),
    _text("requested_name"),
    _text("type"),
    _text("project_id"),
    _text("cluster_id"),
    _text("submitted_by"),
    _text("phase"),
    _text("phase_reason"),
    _text("phase_message"),
    _time("phase_updated_at", null=False),
    _text("desired_phase"),
    _bool("queued"),
    _bool("ended"),
    _time("created_at", null=False),
    _time("started_at"),
    _time("completed_at"),
    _time("deleted_at"),
    _text("priority_class"),
    _int("priority_rank"),
    _text("preemptibility"),
    _text("category"),
    _text("image"),
    _list("node_pools"),
    _int("completions"),
    _int("parallelism"),
    _int("backoff_limit"),
    _int("auto_deletion_seconds"),
    _int("requested_pods"),
    _int("pod_cpu_milli"),
    _int("pod_memory_bytes"),
    _int("gpu_request_milli"),
    _int("gpu_memory_request_bytes"),
    _int("cpu_request_milli"),
    _int("memory_request_bytes"),
    _int("attempt"),
    _int("failed_runs"),
    _int("succeeded_pods"),
    _int("running_pods"),
    _int("live_pods"),
    _list("current_nodes"),
    _list("current_node_pools"),
    _int("gpu_allocated_milli"),
    _int("cpu_allocated_milli"),
    _int("memory_allocated_bytes"),
    _int("pending_micros"),
    _int("running_micros"),
    _int("exit_code", null=True),
    _time("delete_at"),
    _int("generation"),
    postgresql_with={"fillfactor": UPDATED_FILL_PERCENT},
)
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
    postgresql_where=text("deleted_at IS NULL AND NOT ended"),
)
Index(
    "workloads_deleted_created",
    workloads.c.created_at,
    workloads.c.id,
    postgresql_where=text("deleted_at IS NOT NULL"),
)

pods: Final = Table(
    "pods",
    derived,
    _text("workload_id", key=True),
    _text("pod_set", key=True),
    _int("index", key=True),
    _int("attempt", key=True),
    _int("try_", key=True),
    _text("phase"),
    _text("node_key"),
    _text("node_name"),
    _text("node_pool"),
    _json("devices"),
    _int("gpu_milli"),
    _int("token"),
    _int("interruptions"),
    _time("not_before"),
    _time("bound_at"),
    _time("started_at"),
    _time("finished_at"),
    _int("exit_code", null=True),
    _text("reason"),
    _text("message"),
    postgresql_with={"fillfactor": UPDATED_FILL_PERCENT},
)

due: Final = Table("due", derived, _text("workload_id", key=True), _int("generation"), _time("due_at", null=False))
Index("due_by_time", due.c.due_at)

history: Final = Table(
    "history",
    derived,
    _text("workload_id", key=True),
    _int("seq", key=True),
    _int("index", key=True),
    _time("at", null=False),
    _text("type"),
    _text("phase"),
    _text("reason"),
    _text("message"),
    _text("actor_iss"),
    _text("actor_sub"),
    _text("actor_kind"),
    _json("details"),
)

nodes: Final = Table(
    "nodes",
    derived,
    _text("key", key=True),
    _int("version"),
    _text("cluster_id"),
    _text("name"),
    _bool("present"),
    _text("pool"),
    _bool("ready"),
    _bool("unschedulable"),
    _int("cpu_milli"),
    _int("memory_bytes"),
    _int("gpu_count"),
    _text("gpu_model"),
    _int("gpu_memory_bytes"),
    _int("max_pods"),
    _int("foreign_cpu_milli"),
    _int("foreign_memory_bytes"),
    _int("foreign_gpus"),
    _int("foreign_pods"),
    _bool("stand_in"),
    _json("labels"),
    _json("taints"),
    _int("used_cpu_milli"),
    _int("used_memory_bytes"),
    _list("used_device_milli", BigInteger()),
    _int("reserved_pods"),
    postgresql_with={"fillfactor": UPDATED_FILL_PERCENT},
)

reservations: Final = Table(
    "reservations",
    derived,
    # Of its node alone: two nodes may hold the same id, where somebody wrote what no scheduler decides.
    _text("node_key", key=True),
    _text("id", key=True),
    _text("workload_id"),
    _text("workload_key"),
    _int("cpu_milli"),
    _int("memory_bytes"),
    _json("devices"),
)

clusters: Final = Table(
    "clusters",
    derived,
    _text("id", key=True),
    _int("version"),
    _text("name"),
    _text("kind"),
    _time("created_at", null=False),
    _bool("removed"),
    _bool("connected"),
    _time("connection_changed_at"),
    _text("problem"),
    _text("agent_version"),
    _bool("protection_reported", null=True),
    _bool("protection_set"),
    _json("node_pools"),
)

projects: Final = Table(
    "projects",
    derived,
    _text("id", key=True),
    _int("version"),
    _text("name"),
    _time("created_at", null=False),
    _int("gpu_quota_milli", null=True),
    _list("node_pools"),
    _json("roles"),
)

project_use: Final = Table(
    "project_use",
    derived,
    _text("project_id", key=True),
    _text("phase", key=True),
    _int("workloads"),
    _int("pods"),
    _int("gpu_milli"),
    _int("non_preemptible_gpu_milli"),
    _int("cpu_milli"),
    _int("memory_bytes"),
    postgresql_with={"fillfactor": UPDATED_FILL_PERCENT},
)

# -- lasting ---------------------------------------------------------------------------------------------------------

current_projection: Final = Table(
    "current_projection",
    lasting,
    # One row: its key has one possible value.
    Column("one", Boolean, primary_key=True),
    _text("schema_name"),
    Column("shape", Integer, nullable=False),
    _text("halted", null=True),
    _text("rebuilding_schema", null=True),
    _int("rebuild_seq", null=True),
    _int("rebuild_target_seq", null=True),
)

usage_samples: Final = Table(
    "usage_samples",
    lasting,
    _text("cluster_id"),
    _text("workload_id"),
    _text("pod_set"),
    _int("index"),
    _int("attempt"),
    _int("try_"),
    _time("at", null=False),
    _int("cpu_milli"),
    _int("memory_bytes"),
    Column("gpu_utilization_percent", Double, nullable=True),
    _int("gpu_memory_bytes", null=True),
)


def qualified(table: Table, schema: str) -> str:
    """The table's name for plain SQL, in a real schema."""
    return f'"{schema}"."{table.name}"'


def quoted_columns(table: Table) -> str:
    return ", ".join(f'"{column.name}"' for column in table.columns)
