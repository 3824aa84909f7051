"""The projector: follows the log from the checkpoint and keeps the current projection schema at its end.

Any number may run. The checkpoint's compare-and-set lets one batch through; who loses stands by, and takes over when
the checkpoint stays behind the log. A gap, or a log that is not the one it knew, halts it, loudly. It stands before a
message that cannot be read, or that the rows cannot follow, until it was declared void: it never skips. Postgres or
NATS away only delays it.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Final

import asyncpg
import msgspec
import structlog
from nats.errors import Error as NatsError
from prometheus_client import Gauge

from events.aggregate import BrokenChainError
from events.commit import Commit
from events.subjects import aggregate_subject
from projections.postgres import CUT_OFF, Pool
from projections.workloads.project import RowsLostError
from services.projector import overlong
from services.projector.engine import Engine, open_pool
from services.projector.schema import NotPreparedError, current_schema
from services.projector.usage import UsageWriter
from services.projector.writer import CheckpointMovedError, OtherShapeError, Writer
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.log.store import EventStore, LogGapError, LogUnavailableError, UnreadableMessageError
from services.runtime.nats.connection import connect
from services.runtime.nats.streams import assert_streams
from services.runtime.process.host import Health
from services.runtime.process.settings import Settings

FIRST_PAUSE_SECONDS: Final = 0.25
LONGEST_PAUSE_SECONDS: Final = 5.0
"""While Postgres is away."""
STANDBY_SECONDS: Final = 0.5
"""How often one that stands by looks whether the other one still works."""
STANDBY_LOOKS: Final = 3
"""So often must the checkpoint be seen behind the log, and not moving."""
HALTED_SECONDS: Final = 5.0
"""How often a halted one looks whether there is a new schema, which a rebuild makes."""
IDLE_SECONDS: Final = 5.0
"""Nothing to do while nothing comes, but to see that a batch was written."""
GATHERED_COMMITS: Final = 1_000
"""Of those that come while a batch is being written, so many are taken in at once: a transaction is a dozen questions
to Postgres, however little it writes, and where much comes each takes long. As many as a follower hands out in one go:
what lies there already is folded meanwhile."""
LAST_WRITE_SECONDS: Final = 0.02
"""Nothing more came for so long: see to what is being written, so that its errors are met at once."""

_HALTED = Gauge("muster_projector_halted", "1 while the projector has halted and a person is needed")

AWAY: Final = (
    asyncpg.PostgresConnectionError,
    *CUT_OFF,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.InsufficientResourcesError,
    asyncpg.OperatorInterventionError,
    asyncpg.TransactionRollbackError,
    asyncpg.InvalidCatalogNameError,
    # A disk that is full, read-only for a while, or just mended.
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.PostgresSystemError,
    OSError,
    TimeoutError,
    NatsError,
    LogUnavailableError,
)
"""What passes by itself: try again, later."""
HALTING: Final = (
    LogGapError,
    OtherShapeError,
    RowsLostError,
    msgspec.MsgspecError,
    asyncpg.PostgresError,
    AssertionError,
    KeyError,
    ValueError,
    TypeError,
)
"""What no repetition mends."""

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Projector:
    """One projector over one log and one database."""

    store: EventStore
    pool: Pool
    health: Health
    stop: asyncio.Event

    async def run(self) -> None:
        """Work until `stop`."""
        pause = FIRST_PAUSE_SECONDS
        lost_to = ""
        while not self.stop.is_set():
            schema = ""
            try:
                schema = await current_schema(self.pool)
                if schema == lost_to:
                    await self._stand_by(schema)
                lost_to = ""
                await self._project(schema)
            except CheckpointMovedError as error:
                log.info("projector_stands_by", schema=schema, reason=str(error))
                lost_to = schema
                pause = FIRST_PAUSE_SECONDS
            except UnreadableMessageError as error:
                await self._stand(schema, error)
                pause = FIRST_PAUSE_SECONDS
            except NotPreparedError as error:
                self.health.not_ready(str(error))
                await self._sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            except AWAY as error:
                text = str(error) or type(error).__name__
                self.health.not_ready(f"Postgres or NATS is away: {text}")
                log.warning("projector_waits", error=text, pause_seconds=pause)
                await self._sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            except HALTING as error:
                await self._halt(schema, error)
                pause = FIRST_PAUSE_SECONDS

    async def _project(self, schema: str) -> None:
        """Follow the log into one schema, until `stop` or an error."""
        writer = Writer(self.pool, schema)
        checkpoint = await writer.checkpoint()
        engine = Engine(self.store, writer, checkpoint)
        # From one before the checkpoint on: the commit at the checkpoint tells whether this is the log it knew.
        commits_of = self.store.follow(max(checkpoint.seq - 1, 0), idle_seconds=IDLE_SECONDS)
        known = checkpoint.seq == 0
        try:
            if known:
                await self._serving(schema)
            # Closed before the follower that it waits for, also where the engine fails in mid-loop.
            async with contextlib.aclosing(self._until_stopped(commits_of, engine)) as arrivals:
                async for commits in arrivals:
                    if not known and commits:
                        check_same_log(commits[0], checkpoint.seq, checkpoint.last_commit_id)
                        commits = commits[1:]  # noqa: PLW2901 (the rest of them)
                        known = True
                        await self._serving(schema)
                    if commits:
                        await _apply(engine, commits)
            await engine.flush()
        except UnreadableMessageError:
            await engine.flush()  # the tables say all that stands before it
            raise
        finally:
            await engine.discard()
            await commits_of.aclose()

    async def _until_stopped(
        self, commits_of: AsyncGenerator[list[Commit], None], engine: Engine
    ) -> AsyncGenerator[list[Commit], None]:
        """What the follower yields, together what comes during a write; in its pauses what was written is seen to."""
        stopped = asyncio.ensure_future(self.stop.wait())
        arriving = asyncio.ensure_future(anext(commits_of))
        try:
            while True:
                await asyncio.wait((stopped, arriving), timeout=LAST_WRITE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                if not arriving.done() and not stopped.done():
                    await engine.flush()
                    await asyncio.wait((stopped, arriving), return_when=asyncio.FIRST_COMPLETED)
                if stopped.done():
                    return
                commits = arriving.result()
                arriving = asyncio.ensure_future(anext(commits_of))
                while len(commits) < GATHERED_COMMITS and (writing := engine.writing) is not None:
                    await asyncio.wait((stopped, arriving, writing), return_when=asyncio.FIRST_COMPLETED)
                    # What ends the following is raised with the next look, behind what was gathered.
                    if stopped.done() or not arriving.done() or arriving.exception() is not None:
                        break
                    commits = [*commits, *arriving.result()]
                    arriving = asyncio.ensure_future(anext(commits_of))
                yield commits
        finally:
            stopped.cancel()
            arriving.cancel()
            await asyncio.gather(stopped, arriving, return_exceptions=True)

    async def _stand_by(self, schema: str) -> None:
        """Wait until the other projector has gone, or there is another schema."""
        last_seq, looks = -1, 0
        self.health.ready()
        while not self.stop.is_set() and looks < STANDBY_LOOKS:
            # Two that stand by must not wake at once for ever.
            await self._sleep(STANDBY_SECONDS * (0.5 + random.random()))  # noqa: S311 (jitter)
            if await current_schema(self.pool) != schema:
                return
            seq = (await Writer(self.pool, schema).checkpoint()).seq
            behind = seq == last_seq and await self.store.last_seq() > seq
            looks = looks + 1 if behind else 0
            last_seq = seq

    async def _serving(self, schema: str) -> None:
        _HALTED.set(0)
        await self.pool.execute("UPDATE muster.current_projection SET halted = NULL WHERE halted IS NOT NULL")
        self.health.ready()
        log.info("projector_serves", schema=schema)

    async def _stand(self, schema: str, unreadable: UnreadableMessageError) -> None:
        """Say before what, and wait until it was declared void, or there is another schema."""
        if await self._is_replaced(schema):
            return
        message = f"{unreadable}. Nothing was skipped: {unreadable.todo}"
        _HALTED.set(1)
        await self._note_halt(message)
        tell = self.health.reader()
        standing = asyncio.create_task(self.store.stand_before(unreadable, tell))
        try:
            while not self.stop.is_set() and not await self._is_replaced(schema):
                looking = asyncio.create_task(self._sleep(HALTED_SECONDS))
                await asyncio.wait({standing, looking}, return_when=asyncio.FIRST_COMPLETED)
                looking.cancel()
                if standing.done():
                    standing.result()
                    return
        finally:
            standing.cancel()
            await asyncio.gather(standing, return_exceptions=True)
            tell(None)

    async def _halt(self, schema: str, error: Exception) -> None:
        """Say why, and wait for a person; a new schema (a rebuild) or a restart begins anew."""
        if await self._is_replaced(schema):
            return
        message = (
            f"halted at schema {schema}: {type(error).__name__}: {error}. Nothing was skipped. Mend the log or run the "
            "version of Muster that knows it, then restart the projector; if only the tables are at fault, run "
            "`muster projections rebuild`"
        )
        _HALTED.set(1)
        self.health.not_ready(message)
        log.error("projector_halted", schema=schema, error=str(error), exc_info=error)
        await self._note_halt(message)
        while not self.stop.is_set():
            await self._sleep(HALTED_SECONDS)
            if await self._is_replaced(schema):
                return

    async def _is_replaced(self, schema: str) -> bool:
        try:
            return await current_schema(self.pool) != schema
        except (NotPreparedError, *AWAY):
            return False

    async def _note_halt(self, message: str) -> None:
        with contextlib.suppress(asyncpg.PostgresError, *AWAY):
            await self.pool.execute("UPDATE muster.current_projection SET halted = $1", message.replace("\x00", ""))

    async def _sleep(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.stop.wait()


async def _apply(engine: Engine, commits: list[Commit]) -> None:
    """Take them in; where the rows cannot follow one, all whole batches in front of it, and then raise
    UnreadableMessageError.
    """
    try:
        await engine.apply(commits)
    except BrokenChainError as error:
        broken = next((commit for commit in commits if commit.seq == error.seq), None)
        if broken is None:
            raise LogGapError(str(error)) from error
        front = [commit for commit in commits if engine.seq < commit.seq < broken.seq]
        while front and not front[-1].ends_batch:
            front.pop()
        if front:
            await engine.apply(front)
        subject = aggregate_subject(broken.aggregate, broken.key)
        raise UnreadableMessageError(broken.seq, subject, str(error)) from error


def check_same_log(first: Commit, seq: int, last_commit_id: str) -> None:
    """Raises LogGapError where the commit at the checkpoint is not the one that was folded."""
    if first.seq != seq or first.record.commit_id != last_commit_id:
        raise LogGapError(
            f"the log has commit {first.record.commit_id} at {first.seq}, the tables were made of {last_commit_id} at "
            f"{seq}: it is another log, or it was restored and went on differently"
        )


async def run(settings: Settings, health: Health, stop: asyncio.Event) -> None:
    """The service."""
    nc = await connect(settings, "projector")
    try:
        pool = await _open_pool(settings, health, stop)
        if pool is None:
            return
        try:
            await assert_streams(nc)
            projector = Projector(JetStreamEventStore(nc), pool, health, stop)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(projector.run())
                tasks.create_task(UsageWriter(pool).run(nc, stop))
                tasks.create_task(overlong.run(pool, stop))
        finally:
            await _close(pool)
    finally:
        await nc.close()


async def _open_pool(settings: Settings, health: Health, stop: asyncio.Event) -> Pool | None:
    """The pool, as soon as Postgres answers; None where `stop` came first."""
    pause = FIRST_PAUSE_SECONDS
    while not stop.is_set():
        try:
            return await open_pool(settings.database_url)
        except AWAY as error:
            health.not_ready(f"Postgres is away: {error}")
            log.warning("postgres_away", error=str(error) or type(error).__name__, pause_seconds=pause)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await stop.wait()
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
    return None


async def _close(pool: Pool) -> None:
    try:
        async with asyncio.timeout(2):
            await pool.close()
    except TimeoutError:
        pool.terminate()
