"""Ends readers' transactions that last too long: they hold locks that a rebuild waits for, and keep dead rows from
being cleaned away. A session may switch off every timeout that its role was given, so the owner looks.
"""

import asyncio
from typing import Final

import asyncpg
import structlog

from projections.access import TENANT_READER
from projections.postgres import CUT_OFF, Pool

LONGEST_SECONDS: Final = 900.0
"""The largest export takes some minutes."""
LOOK_SECONDS: Final = 60.0

log = structlog.get_logger(__name__)


async def end_overlong(pool: Pool, longest_seconds: float = LONGEST_SECONDS) -> int:
    """How many were ended. Only a superuser, or who is a member of the reader's role, may see and end them."""
    ended = await pool.fetchval(
        "SELECT count(*) FILTER (WHERE pg_terminate_backend(a.pid)) FROM pg_stat_activity a "
        "JOIN pg_roles r ON r.rolname = a.usename WHERE a.datname = current_database() AND NOT r.rolsuper "
        "AND a.usename <> current_user AND pg_has_role(r.oid, $1, 'MEMBER') "
        "AND a.xact_start < now() - make_interval(secs => $2)",
        TENANT_READER,
        longest_seconds,
    )
    if ended:
        log.warning("readers_ended", count=ended, longest_seconds=longest_seconds)
    return ended


async def run(pool: Pool, stop: asyncio.Event) -> None:
    while not stop.is_set():
        try:
            await end_overlong(pool)
        except (asyncpg.PostgresError, *CUT_OFF, OSError, TimeoutError) as error:
            log.info("readers_not_looked_at", error=str(error) or type(error).__name__)
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                await stop.wait()
        except TimeoutError:
            continue
