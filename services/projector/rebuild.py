"""Fills a new projection schema beside the current one, from the log's beginning, and swaps them in one transaction.

Queries and projectors go on meanwhile. The swap waits until the new schema is as far as the old one, so no reader sees
time run backwards, and retires the old checkpoint, so a projector that still writes there is fenced off and moves over.
The old schema stays until the next rebuild, for readers that are in it.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

from projections.migrate import CHECKPOINT_NAME
from projections.postgres import Connection
from projections.schemas import write_note
from projections.tables import SHAPE
from services.projector.arrivals import at_seq
from services.projector.shadow import LOCK_TIMEOUT_SECONDS, Progress, Shadow, only_one, shadow, untell
from services.projector.writer import RETIRED
from services.runtime.log.store import EventStore
from services.runtime.process.failpoints import reached

SWAP_LAG_COMMITS: Final = 2_000
"""So close to the log's end the swap is tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    schema: str
    """The current one now."""
    seq: int
    events: int
    seconds: float


async def rebuild(store: EventStore, postgres_url: str, progress: Progress) -> Rebuilt:
    """Rebuild all projections from the log. Raises RebuildError, StalledError, LogGapError, and what asyncpg raises."""
    clock = asyncio.get_running_loop().time
    began = clock()
    async with (
        only_one(postgres_url) as (connection, _),
        shadow(store, postgres_url, connection, "rebuild", progress) as new,
    ):
        await _fill(store, new)
        await new.index()
        await _fill(store, new)  # what came while the indexes were made
        reached("rebuild_filled")
        await _swap(connection, new)
        reached("rebuild_swapped")
        return Rebuilt(schema=new.schema, seq=new.engine.seq, events=new.events, seconds=clock() - began)


async def _fill(store: EventStore, new: Shadow) -> None:
    """Up to the end of the log, or so close to it that the rest takes no time."""
    while True:
        end = await store.last_seq()
        await new.fill(at_seq(end))
        if await store.last_seq() - end <= SWAP_LAG_COMMITS:
            return


async def _swap(connection: Connection, new: Shadow) -> None:
    """Make the schema the current one, as soon as it is as far as the one it replaces."""
    async with connection.transaction():
        await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_SECONDS}s'")
        old = await connection.fetchval("SELECT schema_name FROM muster.current_projection FOR UPDATE")
        # The projector cannot move the old checkpoint until this transaction ends, so the last commits are caught up.
        old_seq = await connection.fetchval(
            f'SELECT seq FROM "{old}".checkpoint WHERE name = $1 FOR UPDATE',  # noqa: S608 (our own names)
            CHECKPOINT_NAME,
        )
        await new.fill(at_seq(old_seq or 0))
        await connection.execute(
            f'UPDATE "{old}".checkpoint SET version = $1 WHERE name = $2',  # noqa: S608
            RETIRED,
            CHECKPOINT_NAME,
        )
        await connection.execute(
            "UPDATE muster.current_projection SET schema_name = $1, shape = $2, halted = NULL", new.schema, SHAPE
        )
        await write_note(connection, new.schema, new.done())
        await untell(connection)
        reached("rebuild_swapping")
