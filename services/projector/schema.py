"""Which projection schema is the current one."""

import asyncpg

from projections.postgres import Queryable


class NotPreparedError(Exception):
    """The database has no tables of ours yet."""


async def current_schema(pool: Queryable) -> str:
    """Raises NotPreparedError where there is none."""
    try:
        schema = await pool.fetchval("SELECT schema_name FROM muster.current_projection")
    except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
        schema = None
    if schema is None:
        raise NotPreparedError("the database has no tables of Muster; run the setup service")
    return schema
