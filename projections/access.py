"""What the api's connections may read: row-level security by project, the second barrier behind queries' own filters.

A transaction names the projects of whoever asks (`scope_values`); without it no row is there. Two roles hold the
rights: one reads within projects, the other everything, at no cost. A login role is a member of both, and may do
nothing itself. Whoever writes (projector, migrations) owns the tables, and no policy is for owners.
"""

from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote, urlsplit

from projections.postgres import Connection
from projections.tables import (
    checkpoint,
    clusters,
    commands,
    current_projection,
    history,
    nodes,
    pods,
    project_use,
    projects,
    usage_samples,
    workloads,
)

PROJECT_READER: Final = "muster_project_reader"
TENANT_READER: Final = "muster_tenant_reader"
READERS: Final = (PROJECT_READER, TENANT_READER)

_MINE: Final = "= ANY ((SELECT string_to_array(current_setting('app.projects', true), ','))::text[])"
"""In a subquery, so that it is worked out once for a statement and not once for a row."""
_OF_A_WORKLOAD: Final = 'EXISTS (SELECT 1 FROM "{schema}".workloads w WHERE w.id = workload_id)'
"""Those that the reader sees: the policy on workloads holds within policies, too."""
_ASKED_COMMAND: Final = "command_id = (SELECT current_setting('app.command', true))"
_ASKED_WORKLOAD: Final = "workload_id = (SELECT current_setting('app.workload', true))"

POLICIES: Final[Mapping[str, tuple[str, str]]] = {
    workloads.name: (f"project_id {_MINE}", "true"),
    project_use.name: (f"project_id {_MINE}", "true"),
    projects.name: (f"id {_MINE}", "true"),
    pods.name: (_OF_A_WORKLOAD, "true"),
    history.name: (_OF_A_WORKLOAD, "true"),
    # Who knows the id of a command has given it.
    commands.name: (_ASKED_COMMAND, _ASKED_COMMAND),
}
"""Which rows PROJECT_READER and TENANT_READER see, by derived table."""
OPEN: Final = (checkpoint.name, nodes.name, clusters.name)
"""Derived tables that belong to no project. Those that stand nowhere here the api cannot read at all."""

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


def scope_values(projects_read: frozenset[str] | None, *, command: str = "", workload: str = "") -> dict[str, str]:
    """Settings of one transaction, for `set_config`. `projects_read`: ids; None: the whole tenant."""
    return {
        "role": TENANT_READER if projects_read is None else PROJECT_READER,
        "app.projects": ",".join(sorted(projects_read or ())),
        "app.command": command,
        "app.workload": workload,
    }


async def guard_lasting(connection: Connection) -> None:
    """Roles, and rights on the lasting tables. Does nothing the second time."""
    await connection.execute(_ROLES.format(readers="','".join(READERS)))
    if await _is_guarded(connection, "muster"):
        return
    samples = f"muster.{usage_samples.name}"
    await connection.execute(f"GRANT USAGE ON SCHEMA muster TO {', '.join(READERS)}")
    await connection.execute(f"GRANT SELECT ON muster.{current_projection.name}, {samples} TO {', '.join(READERS)}")
    await _guard(connection, samples, (_ASKED_WORKLOAD, _ASKED_WORKLOAD))


async def guard_schema(connection: Connection, schema: str) -> None:
    """Rights on, and policies of, a projection schema. Does nothing the second time."""
    if await _is_guarded(connection, schema):
        return
    readers = ", ".join(READERS)
    await connection.execute(f'GRANT USAGE ON SCHEMA "{schema}" TO {readers}')
    for name in (*OPEN, *POLICIES):
        await connection.execute(f'GRANT SELECT ON "{schema}"."{name}" TO {readers}')
    for name, conditions in POLICIES.items():
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
    await connection.execute(
        await connection.fetchval(f"SELECT format('GRANT {', '.join(READERS)} TO %I', $1::text)", user)
    )


async def _guard(connection: Connection, table: str, conditions: tuple[str, str]) -> None:
    await connection.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
    for reader, condition in zip(READERS, conditions, strict=True):
        await connection.execute(f"CREATE POLICY {reader} ON {table} FOR SELECT TO {reader} USING ({condition})")


async def _is_guarded(connection: Connection, schema: str) -> bool:
    return bool(await connection.fetchval("SELECT count(*) FROM pg_policies WHERE schemaname = $1", schema))
