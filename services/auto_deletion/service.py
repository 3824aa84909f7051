"""Looks at the due rows a few times a second and asks `commands` to delete what is due, what stands in a project that
was deleted, and what has not ended on a cluster that was removed; a project that came into a department while that was
deleted is moved. Beside it, budgets are measured (budgets.py), how busy GPUs were (hours.py), and limits on time
(time_limits.py), in the same way: from the tables, by commands.

It has no timers and keeps nothing: the due times stand in the log, the table of them is a projection, and the decider
does nothing where the generation has moved on. So several instances are harmless, and an outage only delays.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Final

import asyncpg
import structlog
from prometheus_client import Counter

from events.envelope import Accepted, AdmittedCommand, CommandReply, OutcomeUnknown, Refused
from projections.postgres import CUT_OFF, Pool, create_pool
from services.auto_deletion.budgets import BudgetRows, Budgets, last_seq_of
from services.auto_deletion.due import SERVICE, Due, Lost, Work, command, plan
from services.auto_deletion.hours import Hours, SampleRows
from services.auto_deletion.time_limits import LimitRows, TimeLimits
from services.runtime.nats.bus import CommandClient, GateAwayError
from services.runtime.nats.connection import connect
from services.runtime.nats.requests import Requests
from services.runtime.nats.streams import assert_streams
from services.runtime.process.host import Health
from services.runtime.process.settings import Settings

TICK_SECONDS: Final = 0.25
"""A deletion is at most this late, beside the projector's lag."""
ROWS_PER_TICK: Final = 500
"""5,000 that are due at once are gone in some seconds, and no tick holds up the next for long."""
IN_FLIGHT: Final = 16
"""Deletions asked for at once: `commands` serves people at the same time."""
COMMAND_SECONDS: Final = 5.0
QUERY_SECONDS: Final = 5.0
REMOVED_EACH: Final = timedelta(seconds=2)
"""Between two looks for what lives on clusters that were removed. That reads all that lives, where there is such a
cluster: some ten milliseconds of Postgres for 50,000.
"""
LONGEST_PAUSE_SECONDS: Final = 1.0
"""Between looks while Postgres or commands are away: what is due must be gone soon after they are back."""

Send = Callable[[AdmittedCommand], Awaitable[CommandReply]]

_SENT = Counter("muster_auto_deletion_commands", "Deletions asked for", ["outcome"])

log = structlog.get_logger(__name__)


class DueRows:
    """The due rows of the current projection schema, by one query that also tells which schema that is."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._schema = ""
        self._looked = datetime.min.replace(tzinfo=UTC)
        """When what lives on clusters that were removed was asked for last."""

    async def read(self, now: datetime, limit: int) -> list[Work]:
        if not self._schema:
            self._schema = await self._pool.fetchval("SELECT schema_name FROM muster.current_projection") or ""
            if not self._schema:
                return []
        removed = abs(now - self._looked) >= REMOVED_EACH
        try:
            # One row at least, so that a swap of schemas is seen also while nothing is due.
            rows = await self._pool.fetch(
                "SELECT c.schema_name, d.id, d.generation, d.lost, d.gone "  # noqa: S608
                "FROM muster.current_projection c LEFT JOIN LATERAL "
                "((SELECT workload_id AS id, generation, NULL AS lost, 'project' AS gone "
                f'FROM "{self._schema}".due WHERE due_at <= $1 '
                "ORDER BY due_at LIMIT $2) UNION ALL "
                f'(SELECT p.id, NULL, p.department_id, NULL FROM "{self._schema}".departments g '
                f'JOIN "{self._schema}".projects p ON p.department_id = g.id AND p.deleted_at IS NULL '
                "WHERE g.deleted_at IS NOT NULL LIMIT $2) UNION ALL "
                # Workloads are looked at for each project and cluster that is gone, and mostly there is none: a join
                # may read all of them first. The limits within keep the planner from making it one.
                "(SELECT w.id, NULL, NULL, 'project' "
                f'FROM "{self._schema}".projects p CROSS JOIN LATERAL ('
                f'SELECT id FROM "{self._schema}".workloads '
                "WHERE project_id = p.id AND deleted_at IS NULL AND desired_phase <> 'Deleted' LIMIT $2) w "
                "WHERE p.deleted_at IS NOT NULL LIMIT $2) UNION ALL "
                "(SELECT w.id, NULL, NULL, 'cluster' "
                f'FROM "{self._schema}".clusters k CROSS JOIN LATERAL ('
                f'SELECT id FROM "{self._schema}".workloads '
                "WHERE cluster_id = k.id AND deleted_at IS NULL AND completed_at IS NULL "
                "AND desired_phase <> 'Deleted' LIMIT $2) w "
                "WHERE k.removed AND $3 LIMIT $2)) d ON true",
                now,
                limit,
                removed,
            )
        except asyncpg.UndefinedTableError:
            self._schema = ""
            raise
        if not rows or rows[0]["schema_name"] != self._schema:
            self._schema = ""
            return []
        self._looked = now if removed else self._looked
        return [
            Due(row["id"], row["generation"], row["gone"]) if row["lost"] is None else Lost(row["id"], row["lost"])
            for row in rows
            if row["id"] is not None
        ]


class AutoDeletion:
    """Ticks over the due rows."""

    def __init__(self, rows: DueRows, send: Send) -> None:
        self._rows = rows
        self._send = send
        self._sent: dict[Work, datetime] = {}

    async def tick(self, now: datetime) -> int:
        """Ask for what is due; how many that were. Raises what asyncpg raises, and GateAwayError where nobody decides
        commands: then what was not taken is asked for with the next tick.
        """
        # Those that were sent just now may still stand there, in front of others: ask for more by as many.
        due = await self._rows.read(now, ROWS_PER_TICK + len(self._sent))
        to_send, self._sent = plan(due, self._sent, now, most=ROWS_PER_TICK)
        slots = asyncio.Semaphore(IN_FLIGHT)
        away: GateAwayError | None = None

        async def send(row: Work) -> None:
            nonlocal away
            async with slots:
                if away is None:
                    try:
                        await self._send_one(row)
                    except GateAwayError as error:
                        away = error
                    else:
                        return
            del self._sent[row]

        await asyncio.gather(*(send(row) for row in to_send))
        if away is not None:
            raise away
        return len(to_send)

    async def _send_one(self, row: Work) -> None:
        match await self._send(command(row)):
            case Accepted() as reply:
                _SENT.labels("accepted").inc()
                log.info("auto_deleted", changed=reply.changed, **row._asdict())
            case Refused() as reply:
                # Deleted or replaced meanwhile: the projection will drop the row.
                _SENT.labels("refused").inc()
                log.info("auto_deletion_refused", code=reply.refusal.code, **row._asdict())
            case OutcomeUnknown():
                _SENT.labels("unknown").inc()
                log.warning("auto_deletion_unknown", **row._asdict())

    async def run(self, health: Health, stop: asyncio.Event) -> None:
        """Tick until `stop`."""
        pause = TICK_SECONDS
        while not stop.is_set():
            try:
                await self.tick(datetime.now(UTC))
                health.ready()
                pause = TICK_SECONDS
            except GateAwayError as error:
                _SENT.labels("away").inc()
                log.warning("commands_away", error=str(error))
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            except (asyncpg.PostgresError, *CUT_OFF, OSError, TimeoutError) as error:
                health.not_ready(f"the due rows cannot be read: {error}")
                log.warning("due_rows_away", error=str(error) or type(error).__name__)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await stop.wait()


async def run(settings: Settings, health: Health, stop: asyncio.Event) -> None:
    """The service."""
    nc = await connect(settings, SERVICE)
    requests = Requests(nc)
    client = CommandClient(requests)

    async def send(admitted: AdmittedCommand) -> CommandReply:
        return await client.send_system(SERVICE, admitted, timeout_seconds=COMMAND_SECONDS)

    try:
        await assert_streams(nc)
        # No connection is opened yet: Postgres may be away.
        pool = await create_pool(
            settings.database_url,
            min_size=0,
            max_size=4,
            timeout_seconds=QUERY_SECONDS,
            command_timeout_seconds=QUERY_SECONDS,
            server_settings={
                "application_name": "muster-auto-deletion",
                "default_transaction_read_only": "on",
                # Tables grow from nothing: a plan that was made while they were empty reads all of them, later, too.
                "plan_cache_mode": "force_custom_plan",
            },
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                budgets = Budgets(BudgetRows(pool), last_seq_of(requests), send)
                measuring = [
                    tasks.create_task(budgets.run(stop), name="budgets"),
                    tasks.create_task(Hours(SampleRows(pool), send).run(stop), name="hours"),
                    tasks.create_task(TimeLimits(LimitRows(pool), send).run(stop), name="time_limits"),
                ]
                await AutoDeletion(DueRows(pool), send).run(health, stop)
                # It may wait for tables that are behind, or for a long statement; the next one measures again.
                for task in measuring:
                    task.cancel()
        finally:
            pool.terminate()
    finally:
        await nc.close()
