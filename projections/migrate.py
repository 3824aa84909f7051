"""The database's structure: lasting tables by numbered migrations, projection schemas whole.

Derived tables are never migrated: a changed shape is a new schema, filled from the log beside the old one
(services/projector/rebuild.py). So only the few lasting tables need steps, and a list of statements is all it takes.
"""

from datetime import UTC, datetime
from typing import Final

from sqlalchemy import Index, Table
from sqlalchemy.dialects.postgresql import dialect
from sqlalchemy.schema import CreateIndex, CreateTable

from projections.access import guard_lasting, guard_schema, make_reader
from projections.past_views import past_schema, views
from projections.postgres import Connection, connect
from projections.schemas import Note, write_note
from projections.tables import DERIVED_SCHEMA, SHAPE, derived, history, qualified

CHECKPOINT_NAME: Final = "projections"
"""All tables of a schema move together, so there is one."""
SCHEMA_PREFIX: Final = "muster_v"
_HISTORY_KEY: Final = "history_pkey"
"""As Postgres names a primary key."""
CONNECT_TIMEOUT_SECONDS: Final = 10
COMMAND_TIMEOUT_SECONDS: Final = 60
"""Of one step of `prepare`; the tables it changes are small."""
_LOCK: Final = 0x6D757374
"""Of the advisory lock under which one process at a time changes the structure: "must" in ASCII."""

MIGRATIONS: Final[tuple[str, ...]] = (
    """
    CREATE TABLE muster.current_projection (
        one boolean PRIMARY KEY DEFAULT true CHECK (one),
        schema_name text NOT NULL,
        shape integer NOT NULL,
        halted text,
        rebuilding_schema text,
        rebuild_seq bigint,
        rebuild_target_seq bigint
    )
    """,
    """
    CREATE TABLE muster.usage_samples (
        cluster_id text COLLATE "C" NOT NULL,
        workload_id text COLLATE "C" NOT NULL,
        pod_set text COLLATE "C" NOT NULL,
        index bigint NOT NULL,
        attempt bigint NOT NULL,
        try_ bigint NOT NULL,
        at timestamptz NOT NULL,
        cpu_milli bigint NOT NULL,
        memory_bytes bigint NOT NULL,
        gpu_utilization_percent double precision,
        gpu_memory_bytes bigint
    )
    """,
    "CREATE INDEX usage_samples_by_workload ON muster.usage_samples (workload_id, at)",
    # Samples arrive in order of time: a block range index finds the expired ones and costs next to nothing.
    "CREATE INDEX usage_samples_by_time ON muster.usage_samples USING brin (at)",
    # Ids of the workloads that carry labels, of the projects that the transaction names. It runs as the owner, whom no
    # policy keeps from the index, and so names the projects itself (docs/adr/0055).
    """
    CREATE FUNCTION muster.labelled(wanted text) RETURNS SETOF text
    LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp ROWS 200 AS $$
    DECLARE
        schema_name text := (SELECT p.schema_name FROM muster.current_projection p);
        condition text := 'project_id = ANY (string_to_array(current_setting(''app.projects'', true), '',''))';
        one jsonb;
        name text;
    BEGIN
        FOR one IN SELECT value FROM jsonb_array_elements(wanted::jsonb) LOOP
            name := CASE WHEN one ? 'keys' THEN 'keys' ELSE 'labels' END;
            condition := condition || format(
                ' AND %I && %L::text[]',
                CASE name WHEN 'keys' THEN 'label_keys' ELSE 'labels' END,
                ARRAY(SELECT jsonb_array_elements_text(one -> name))
            );
        END LOOP;
        RETURN QUERY EXECUTE format('SELECT id FROM %I.workloads WHERE %s', schema_name, condition);
    END $$
    """,
    "REVOKE EXECUTE ON FUNCTION muster.labelled(text) FROM PUBLIC",
    # Who reads a project sees what all its workloads use now: a sample says whose it is.
    "ALTER TABLE muster.usage_samples ADD COLUMN project_id text COLLATE \"C\" NOT NULL DEFAULT ''",
    # Else the newest ranges, which are asked for most, are read whole until the next vacuum.
    "ALTER INDEX muster.usage_samples_by_time SET (autosummarize = on)",
    # `guard_lasting` makes them anew, as they are now.
    "DROP POLICY IF EXISTS muster_project_reader ON muster.usage_samples",
    "DROP POLICY IF EXISTS muster_tenant_reader ON muster.usage_samples",
    # Of the service `webhooks` (docs/adr/0066): how far FEED was taken in, and what is to be posted to whom.
    """
    CREATE TABLE muster.webhook_position (
        one boolean PRIMARY KEY DEFAULT true CHECK (one),
        place text COLLATE "C" NOT NULL
    )
    """,
    """
    CREATE TABLE muster.webhook_deliveries (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        webhook_id text COLLATE "C" NOT NULL,
        event_id text COLLATE "C" NOT NULL,
        type text COLLATE "C" NOT NULL,
        place text COLLATE "C" NOT NULL,
        about text COLLATE "C" NOT NULL,
        body text NOT NULL,
        is_test boolean NOT NULL DEFAULT false,
        state text COLLATE "C" NOT NULL DEFAULT 'waiting',
        tries integer NOT NULL DEFAULT 0,
        tried text NOT NULL DEFAULT '[]',
        due_at timestamptz NOT NULL DEFAULT now(),
        claim bigint NOT NULL DEFAULT 0,
        claimed_until timestamptz,
        created_at timestamptz NOT NULL DEFAULT now(),
        first_tried_at timestamptz,
        ended_at timestamptz,
        UNIQUE (webhook_id, event_id)
    )
    """,
    """
    CREATE INDEX webhook_deliveries_due ON muster.webhook_deliveries (webhook_id, due_at, place)
    WHERE state = 'waiting'
    """,
    """
    CREATE INDEX webhook_deliveries_untried ON muster.webhook_deliveries (webhook_id, about, place)
    WHERE state = 'waiting' AND tries = 0
    """,
    "CREATE INDEX webhook_deliveries_by_state ON muster.webhook_deliveries (webhook_id, state, id)",
    "CREATE INDEX webhook_deliveries_by_time ON muster.webhook_deliveries (created_at)",
    # What was never tried goes by place, and what was by time: each is found without reading what waits besides.
    "DROP INDEX muster.webhook_deliveries_due",
    "DROP INDEX muster.webhook_deliveries_untried",
    """
    CREATE INDEX webhook_deliveries_due ON muster.webhook_deliveries (webhook_id, due_at)
    WHERE state = 'waiting' AND first_tried_at IS NOT NULL
    """,
    """
    CREATE INDEX webhook_deliveries_new ON muster.webhook_deliveries (webhook_id, place)
    WHERE state = 'waiting' AND first_tried_at IS NULL
    """,
    # A restored log gives places out again that the one before it had.
    "ALTER TABLE muster.webhook_position ADD COLUMN incarnation integer NOT NULL DEFAULT 0",
    # Those that wait longest, tried or not: what a backup holds of them is read every few seconds.
    "CREATE INDEX webhook_deliveries_open ON muster.webhook_deliveries (webhook_id, place) WHERE state = 'waiting'",
)
"""Each is applied once, in this order; never change one that was shipped, add another."""


async def prepare(postgres_url: str, reader_url: str = "") -> None:
    """Make the lasting tables, the first projection schema where there is none, and what the api reads them as. Does
    nothing the second time.

    Args:
        reader_url: of the api's own role, made here where it is given.
    """
    connection = await connect(
        postgres_url, timeout_seconds=CONNECT_TIMEOUT_SECONDS, command_timeout_seconds=COMMAND_TIMEOUT_SECONDS
    )
    try:
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
            await _migrate(connection)
            await guard_lasting(connection)
            if await connection.fetchval("SELECT count(*) FROM muster.current_projection") == 0:
                schema = await next_schema_name(connection)
                await create_schema(connection, schema)
                await create_indexes(connection, schema)
                now = datetime.now(UTC)
                await write_note(connection, schema, Note(by="setup", shape=SHAPE, began_at=now, ready_at=now))
                await connection.execute(
                    "INSERT INTO muster.current_projection (schema_name, shape) VALUES ($1, $2)", schema, SHAPE
                )
            await guard_schema(
                connection, await connection.fetchval("SELECT schema_name FROM muster.current_projection")
            )
            if reader_url:
                await make_reader(connection, reader_url)
    finally:
        await connection.close(timeout=CONNECT_TIMEOUT_SECONDS)


async def _migrate(connection: Connection) -> None:
    await connection.execute("CREATE SCHEMA IF NOT EXISTS muster")
    await connection.execute("CREATE TABLE IF NOT EXISTS muster.migrations (step integer PRIMARY KEY)")
    done = await connection.fetchval("SELECT coalesce(max(step), 0) FROM muster.migrations")
    if done > len(MIGRATIONS):
        raise RuntimeError(
            f"the database is at migration {done}, this Muster knows {len(MIGRATIONS)}: run the newer one"
        )
    for step, statement in enumerate(MIGRATIONS[done:], start=done + 1):
        await connection.execute(statement)
        await connection.execute("INSERT INTO muster.migrations (step) VALUES ($1)", step)


async def projection_schemas(connection: Connection) -> list[str]:
    """Every projection schema that there is: the current one, the one before it, or one half built."""
    rows = await connection.fetch("SELECT nspname FROM pg_namespace WHERE nspname LIKE $1", SCHEMA_PREFIX + "%")
    names = [row["nspname"] for row in rows]
    return [name for name in names if name.removeprefix(SCHEMA_PREFIX).isdigit()]


async def newest_row_seq(postgres_url: str) -> int:
    """The sequence of the log that the tables show; 0 where there are none yet, or nothing in them. After `prepare`."""
    connection = await connect(
        postgres_url, timeout_seconds=CONNECT_TIMEOUT_SECONDS, command_timeout_seconds=COMMAND_TIMEOUT_SECONDS
    )
    try:
        schema = await connection.fetchval("SELECT schema_name FROM muster.current_projection")
        seq = await connection.fetchval(f'SELECT max(seq) FROM "{schema}".checkpoint')  # noqa: S608 (our own names)
        return int(seq or 0)
    finally:
        await connection.close()


async def next_schema_name(connection: Connection) -> str:
    numbers = [int(name.removeprefix(SCHEMA_PREFIX)) for name in await projection_schemas(connection)]
    return f"{SCHEMA_PREFIX}{max(numbers, default=0) + 1}"


async def create_schema(connection: Connection, schema: str) -> None:
    """Empty tables with their primary keys but that of the history, the views of their past, and the checkpoint at the
    log's beginning.
    """
    await connection.execute(f'CREATE SCHEMA "{schema}"')
    for table in derived.sorted_tables:
        await connection.execute(_create_table(table, schema))
    await connection.execute(f"ALTER TABLE {qualified(history, schema)} DROP CONSTRAINT {_HISTORY_KEY}")
    for statement in views(schema):
        await connection.execute(statement)
    await connection.execute(
        f"INSERT INTO \"{schema}\".checkpoint (name, version, seq, last_commit_id) VALUES ($1, $2, 0, '')",  # noqa: S608
        CHECKPOINT_NAME,
        SHAPE,
    )
    await guard_schema(connection, schema)


async def create_indexes(connection: Connection, schema: str, timeout_seconds: float | None = None) -> None:
    """The secondary indexes, and the primary key of the history, which is only ever added to. A rebuild makes them
    last, which is several times cheaper than keeping them all along.
    """
    keys = ", ".join(f'"{column.name}"' for column in history.primary_key.columns)
    await connection.execute(
        f"ALTER TABLE {qualified(history, schema)} ADD CONSTRAINT {_HISTORY_KEY} PRIMARY KEY ({keys})",
        timeout=timeout_seconds,
    )
    for table in derived.sorted_tables:
        for index in sorted(table.indexes, key=lambda index: index.name or ""):
            await connection.execute(_create_index(index, schema), timeout=timeout_seconds)


async def drop_schema(connection: Connection, schema: str) -> None:
    await connection.execute(f'DROP SCHEMA IF EXISTS "{past_schema(schema)}" CASCADE')
    await connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')


def _create_table(table: Table, schema: str) -> str:
    return _in_schema(str(CreateTable(table).compile(dialect=dialect())), schema)


def _create_index(index: Index, schema: str) -> str:
    return _in_schema(str(CreateIndex(index).compile(dialect=dialect())), schema)


def _in_schema(statement: str, schema: str) -> str:
    return statement.replace(f"{DERIVED_SCHEMA}.", f'"{schema}".')
