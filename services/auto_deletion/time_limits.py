"""Ends workloads that have reached a limit of their project on their time: how long they run, wait, or keep GPUs that
do nothing.

It has no timers and keeps nothing: how long a workload ran and since when it waits stands in the tables, and the
decider does nothing where that is no longer so. So several instances are harmless, an outage only delays, and a limit
that is changed holds for what runs and waits, too. What its cluster does not measure is not idle.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import asyncpg
import msgspec
import structlog
from prometheus_client import Counter

from events.codec import UNDECODABLE
from events.commit import service_actor
from events.envelope import Accepted, AdmittedCommand, CommandReply
from events.ids import derived_command_id
from events.time_limits import LimitKind, TimeLimit
from events.workload.commands import EndAtLimit
from projections.postgres import CUT_OFF, Pool
from services.auto_deletion.due import SERVICE
from services.runtime.nats.bus import GateAwayError

LOOK_SECONDS: Final = 5.0
"""Between two looks: a limit acts so much later at most, beside the projector's lag."""
IDLE_LOOK_SECONDS: Final = 60.0
"""Between two looks at measurements, which are many rows."""
PAUSE_TIMES: Final = 20
"""Behind a look that took a second it pauses for twenty: Postgres has other things to do."""
LONGEST_PAUSE_SECONDS: Final = 60.0
ROWS_PER_LOOK: Final = 500
"""What else is due, the next look finds."""
STATEMENT_SECONDS: Final = 20.0
UNMEASURED_SECONDS: Final = 120
"""A pod of which nothing was measured for so long, at the beginning or the end of the time, is not known to be idle."""

Send = Callable[[AdmittedCommand], Awaitable[CommandReply]]

_TOLD: Final = Counter("muster_time_limit_commands", "Workloads whose limit was reached, told to the log", ["outcome"])

log = structlog.get_logger(__name__)


class Reached(NamedTuple):
    """A workload, and the limit that it has reached."""

    workload_id: str
    attempt: int
    limit: LimitKind
    seconds: int


class _Limit(NamedTuple):
    project_id: str
    kind: str
    runtime: int | None
    idle: int | None
    pending: int | None

    def of(self, limit: LimitKind) -> int | None:
        return {"runtime": self.runtime, "idle_gpu": self.idle, "pending": self.pending}[limit]


def command(one: Reached) -> AdmittedCommand:
    """The same end of the same attempt is the same command, whoever sends it."""
    return AdmittedCommand(
        command_id=derived_command_id(SERVICE, one.workload_id, one.limit, str(one.attempt), str(one.seconds)),
        actor=service_actor(SERVICE),
        command=EndAtLimit(workload_id=one.workload_id, limit=one.limit, seconds=one.seconds, attempt=one.attempt),
    )


_CURRENT: Final = "SELECT schema_name FROM muster.current_projection"
_LIMITS: Final = """
SELECT id, time_limits::text AS limits FROM "{schema}".projects
WHERE deleted_at IS NULL AND time_limits::text <> '[]'
"""
_SELECT: Final = """
SELECT w.id, w.attempt, l.seconds
FROM unnest($1::text[], $2::text[], $3::bigint[]) AS l (project_id, kind, seconds)
JOIN "{schema}".workloads w ON w.project_id = l.project_id AND w.type = l.kind AND w.deleted_at IS NULL
    AND w.desired_phase = 'Running'
"""
_WHERE: Final[dict[LimitKind, str]] = {
    "runtime": """
WHERE w.phase IN ('Running', 'Degraded')
    AND w.running_micros + extract(epoch FROM $4::timestamptz - w.phase_updated_at) * 1000000
        >= l.seconds * 1000000::bigint
LIMIT $5
""",
    "pending": """
WHERE w.phase = 'Pending' AND w.phase_updated_at <= $4::timestamptz - l.seconds * interval '1 second'
LIMIT $5
""",
    # All its running pods were measured from the beginning of the time to its end, and none of their GPUs did anything.
    "idle_gpu": """
JOIN LATERAL (
    SELECT count(*) AS pods, max(of_pod.used) AS used, bool_and(of_pod.whole) AS whole
    FROM (
        SELECT max(coalesce(u.gpu_utilization_percent, 100)) AS used,
            min(u.at) <= $4::timestamptz - (l.seconds - $6::bigint) * interval '1 second'
            AND max(u.at) >= $4::timestamptz - $6::bigint * interval '1 second' AS whole
        FROM muster.usage_samples u
        WHERE u.workload_id = w.id AND u.cluster_id = w.cluster_id
            AND u.at >= $4::timestamptz - l.seconds * interval '1 second'
        GROUP BY u.pod_set, u.index
    ) AS of_pod
) AS m ON true
WHERE w.phase IN ('Running', 'Degraded') AND w.phase_updated_at <= $4::timestamptz - l.seconds * interval '1 second'
    AND m.pods >= w.running_pods AND m.pods > 0 AND m.used = 0 AND m.whole
LIMIT $5
""",
}


class LimitRows:
    """The tables that say which limits there are, and who has reached one."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def reached(self, now: datetime, kinds: Sequence[LimitKind]) -> list[Reached]:
        """Args: kinds, which limits are looked at."""
        async with (
            self._pool.acquire(timeout=STATEMENT_SECONDS) as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            schema = await connection.fetchval(_CURRENT)
            if not schema:
                return []
            limits: list[_Limit] = []
            for row in await connection.fetch(_LIMITS.format(schema=schema), timeout=STATEMENT_SECONDS):
                try:
                    of_project = msgspec.json.decode(row["limits"], type=tuple[TimeLimit, ...])
                except UNDECODABLE as error:
                    log.warning("time_limits_not_understood", project_id=row["id"], error=str(error))
                    continue
                limits += [
                    _Limit(row["id"], each.kind, each.runtime_seconds, each.idle_gpu_seconds, each.pending_seconds)
                    for each in of_project
                ]
            found: list[Reached] = []
            for limit in kinds:
                given = [(each, seconds) for each in limits if (seconds := each.of(limit)) is not None]
                if not given:
                    continue
                of_projects = [each.project_id for each, _ in given]
                of_kinds, seconds = [each.kind for each, _ in given], [one for _, one in given]
                arguments = (of_projects, of_kinds, seconds, now, ROWS_PER_LOOK)
                rows = await connection.fetch(
                    (_SELECT + _WHERE[limit]).format(schema=schema),
                    *arguments,
                    *((UNMEASURED_SECONDS,) if limit == "idle_gpu" else ()),
                    timeout=STATEMENT_SECONDS,
                )
                found += [Reached(row["id"], row["attempt"], limit, row["seconds"]) for row in rows]
            return found


class TimeLimits:
    """Looks again and again."""

    def __init__(self, rows: LimitRows, send: Send) -> None:
        self._rows = rows
        self._send = send
        self._idle_looked_at: datetime | None = None

    async def look(self, now: datetime) -> int:
        """Look once, and have end what is to; how many that were. Raises what asyncpg raises, and GateAwayError."""
        looked = self._idle_looked_at
        told = await self._tell(await self._rows.reached(now, ("runtime", "pending")))
        # A clock that was put back must not hold it back until it has caught up.
        if looked is None or not timedelta() <= now - looked < timedelta(seconds=IDLE_LOOK_SECONDS):
            # By itself, and as seldom where it fails: measurements of one wide workload may be too many for the time,
            # and no other limit waits for that.
            self._idle_looked_at = now
            told += await self._tell(await self._rows.reached(now, ("idle_gpu",)))
        return told

    async def _tell(self, reached: Sequence[Reached]) -> int:
        for one in first_of_each(reached):
            match await self._send(command(one)):
                case Accepted() as reply:
                    _TOLD.labels("changed" if reply.changed else "known").inc()
                    log.info("limit_reached", changed=reply.changed, **one._asdict())
                case reply:
                    # Looked at again in a moment.
                    _TOLD.labels(type(reply).__name__).inc()
                    log.warning("limit_not_told", reply=type(reply).__name__, **one._asdict())
        return len(reached)

    async def run(self, stop: asyncio.Event) -> None:
        """Look until `stop`."""
        pause = LOOK_SECONDS
        while not stop.is_set():
            began = time.monotonic()
            try:
                await self.look(datetime.now(UTC))
                took = PAUSE_TIMES * (time.monotonic() - began)
                pause = min(max(LOOK_SECONDS, took), LONGEST_PAUSE_SECONDS)
            except (asyncpg.PostgresError, *CUT_OFF, OSError, TimeoutError, GateAwayError) as error:
                _TOLD.labels("away").inc()
                log.warning("limits_not_looked_at", error=str(error) or type(error).__name__)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await stop.wait()


def first_of_each(reached: Sequence[Reached]) -> list[Reached]:
    """One limit for each workload: it ends once. Pure."""
    found: dict[str, Reached] = {}
    for one in reached:
        found.setdefault(one.workload_id, one)
    return list(found.values())
