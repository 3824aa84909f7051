"""What the api's connections may read: row-level security by project, the second barrier behind queries' own filters.

A transaction names the projects of whoever asks (`scope_values`); without it no row is there. Two roles hold the
rights: one reads within projects, the other everything, at no cost. A login role is a member of both, and may do
nothing itself. Whoever writes (projector, migrations) owns the tables, and no policy is for owners.
"""

from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote, urlsplit

from projections import tables
from projections.past_views import AS_OF, past_schema
from projections.postgres import Connection

PROJECT_READER: Final = "muster_project_reader"
TENANT_READER: Final = "muster_tenant_reader"
READERS: Final = (PROJECT_READER, TENANT_READER)

_MINE: Final = "= ANY ((SELECT string_to_array(current_setting('app.projects', true), ','))::text[])"
"""In a subquery, so that it is worked out once for a statement and not once for a row."""
_OF_A_WORKLOAD: Final = 'EXISTS (SELECT 1 FROM "{schema}".workloads w WHERE w.id = workload_id)'
"""Those that the reader sees: the policy on workloads holds within policies, too."""
_LOOKED_UP: Final = '(SELECT true FROM "{schema}".workloads w WHERE w.id = workload_id)'
"""For a table that is read whole. Of EXISTS Postgres may make one set of all workloads that there ever were."""
_SAMPLES: Final = (f"workload_id = (SELECT current_setting('app.workload', true)) OR project_id {_MINE}", "true")
"""Those of the one workload that is asked for also where they were kept before they named their project."""

POLICIES: Final[Mapping[str, tuple[str, str]]] = {
    tables.workloads.name: (f"project_id {_MINE}", "true"),
    tables.project_use.name: (f"project_id {_MINE}", "true"),
    tables.use_hours.name: (f"project_id {_MINE}", "true"),
    tables.use_rates.name: (f"project_id {_MINE}", "true"),
    tables.projects.name: (f"id {_MINE}", "true"),
    # Those of the tenant and of clusters are everybody's who may read anything: the api sees to that.
    tables.assets.name: (f"project_id = '' OR project_id {_MINE} OR manager_id {_MINE}", "true"),
    tables.pods.name: (_OF_A_WORKLOAD, "true"),
    tables.history.name: (_OF_A_WORKLOAD, "true"),
    tables.reservations.name: (_LOOKED_UP, "true"),
}
"""Which rows PROJECT_READER and TENANT_READER see, by derived table."""
OPEN: Final = (
    *(tables.checkpoint.name, tables.moments.name, tables.nodes.name, tables.clusters.name, tables.prices.name),
    tables.departments.name,
)
"""Derived tables that belong to no project; of departments they have the name alone. Those that stand nowhere here the
api cannot read at all.
"""

FEWEST_CONNECTIONS: Final = 8
MOST_CONNECTIONS: Final = 40
"""Two apis with full pools, and a few for restarts."""
OTHERS_CONNECTIONS: Final = 16
"""Of all that the server takes, kept for projectors, auto_deletion, setup and a person."""
READER_SETTINGS: Final[Mapping[str, str]] = {
    "statement_timeout": "10s",
    "lock_timeout": "2s",
    "idle_in_transaction_session_timeout": "15s",
    "default_transaction_read_only": "on",
}
TEMP_FILES: Final = "1GB"
"""Of one session's sorts on disk: beyond the largest export."""
_HARMFUL: Final = """
    SELECT oid::regprocedure::text AS function FROM pg_proc
    WHERE pronamespace = 'pg_catalog'::regnamespace AND has_function_privilege($1, oid, 'EXECUTE')
      AND (
        proname ~ '^pg_(try_)?advisory_(xact_)?lock'
        OR proname IN ('lo_create', 'lo_creat', 'lo_from_bytea', 'pg_logical_emit_message', 'pg_notify')
      )
"""
"""What everybody may call: locks that a migration or a rebuild waits for, and what fills the disk. NOTIFY as a
statement cannot be taken away: the server's settings bound what waits there (max_notify_queue_pages).
"""

_ROLES: Final = """
    DO $$
    DECLARE name text;
    BEGIN
        FOREACH name IN ARRAY ARRAY['{readers}'] LOOP
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', name);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
            END;
        END LOOP;
    END $$
"""


def scope_values(
    projects_read: frozenset[str] | None, *, workload: str = "", as_of: int | None = None
) -> dict[str, str]:
    """Settings of one transaction, for `set_config`. `projects_read`: ids; None: the whole tenant. `as_of`: the
    sequence that views of the past go by.
    """
    return {
        "role": TENANT_READER if projects_read is None else PROJECT_READER,
        "app.projects": ",".join(sorted(projects_read or ())),
        "app.workload": workload,
        AS_OF: "" if as_of is None else str(as_of),
    }


async def guard_lasting(connection: Connection) -> None:
    """Roles, and rights on the lasting tables. Does nothing the second time. A migration that changes a policy
    drops it, so that it is made anew here.
    """
    await connection.execute(_ROLES.format(readers="','".join(READERS)))
    # Made by a later migration than the rest: said each time, it costs nothing.
    await connection.execute(f"GRANT EXECUTE ON FUNCTION muster.labelled(text) TO {PROJECT_READER}")
    if await _is_guarded(connection, "muster"):
        return
    samples = f"muster.{tables.usage_samples.name}"
    await connection.execute(f"GRANT USAGE ON SCHEMA muster TO {', '.join(READERS)}")
    await connection.execute(
        f"GRANT SELECT ON muster.{tables.current_projection.name}, {samples} TO {', '.join(READERS)}"
    )
    await _guard(connection, samples, _SAMPLES)


async def guard_schema(connection: Connection, schema: str) -> None:
    """Rights on, and policies of, a projection schema. Does nothing the second time."""
    if await _is_guarded(connection, schema):
        return
    readers = ", ".join(READERS)
    await connection.execute(f'GRANT USAGE ON SCHEMA "{schema}" TO {readers}')
    # Rows of the past keep the columns that the policy goes by (Column.often).
    policies = {**POLICIES, **{past.name: POLICIES[name] for name, past in tables.PAST.items() if name in POLICIES}}
    open_ = (*OPEN, *(tables.PAST[name].name for name in OPEN if name in tables.PAST))
    for name in (*open_, *policies):
        await connection.execute(f'GRANT SELECT ON "{schema}"."{name}" TO {readers}')
    past = past_schema(schema)
    await connection.execute(f'GRANT USAGE ON SCHEMA "{past}" TO {readers}')
    await connection.execute(f'GRANT SELECT ON ALL TABLES IN SCHEMA "{past}" TO {readers}')
    for name, conditions in policies.items():
        of_project, of_tenant = (condition.format(schema=schema) for condition in conditions)
        await _guard(connection, f'"{schema}"."{name}"', (of_project, of_tenant))


async def make_reader(connection: Connection, reader_url: str) -> None:
    """The login role that `reader_url` names, with its password. Raises ValueError where it names none."""
    given = urlsplit(reader_url)
    if not given.username:
        raise ValueError("MUSTER_POSTGRES_READER_URL must name a user: postgresql://user:password@host:port/database")
    user, password = unquote(given.username), unquote(given.password or "")
    there = await connection.fetchval("SELECT count(*) FROM pg_roles WHERE rolname = $1", user)
    # Quoted by the server: a statement that makes a role takes no parameters.
    verb = "ALTER" if there else "CREATE"
    statement = await connection.fetchval(
        f"SELECT format('{verb} ROLE %I LOGIN NOINHERIT PASSWORD %L', $1::text, $2::text)", user, password
    )
    await connection.execute(statement)
    await _execute(connection, f"GRANT {', '.join(READERS)} TO %I", user)
    await _bound(connection, user)


async def _bound(connection: Connection, user: str) -> None:
    """Narrow what its connections can take from others. What Postgres lets a session set anew for itself (the timeouts)
    keeps our own mistakes short; what it does not (all the rest) holds for a stolen password, too.
    """
    every = int(await connection.fetchval("SELECT current_setting('max_connections')"))
    limit = max(FEWEST_CONNECTIONS, min(MOST_CONNECTIONS, every - OTHERS_CONNECTIONS))
    await _execute(connection, f"ALTER ROLE %I CONNECTION LIMIT {limit}", user)
    for name, value in READER_SETTINGS.items():
        await _execute(connection, f"ALTER ROLE %I SET {name} = '{value}'", user)
    database = await connection.fetchval("SELECT current_database()")
    await _execute(connection, "REVOKE TEMPORARY ON DATABASE %I FROM PUBLIC", database)
    if not await connection.fetchval("SELECT rolsuper FROM pg_roles WHERE rolname = current_user"):
        return  # the next may only be done by a superuser
    await _execute(connection, f"ALTER ROLE %I SET temp_file_limit = '{TEMP_FILES}'", user)
    for record in await connection.fetch(_HARMFUL, user):
        await connection.execute(f"REVOKE EXECUTE ON FUNCTION {record['function']} FROM PUBLIC")


async def _execute(connection: Connection, statement: str, name: str) -> None:
    """A statement about something whose name stands for its %I."""
    await connection.execute(await connection.fetchval("SELECT format($1::text, $2::text)", statement, name))


async def _guard(connection: Connection, table: str, conditions: tuple[str, str]) -> None:
    await connection.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
    for reader, condition in zip(READERS, conditions, strict=True):
        await connection.execute(f"CREATE POLICY {reader} ON {table} FOR SELECT TO {reader} USING ({condition})")


async def _is_guarded(connection: Connection, schema: str) -> bool:
    return bool(await connection.fetchval("SELECT count(*) FROM pg_policies WHERE schemaname = $1", schema))
