"""Measures each hour (UTC) once, soon after its end: how busy the GPUs of each project were, from the samples of its
pods, which expire. It tells `commands`, and the log keeps it.

It keeps nothing but its place. The hour of a project is decided in an aggregate of its own, which takes each once and
in order, however many measure. Without it nothing is lost for as long as there are samples.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import Any, Final

import asyncpg
import msgspec
import structlog
from prometheus_client import Counter

from events.commit import service_actor
from events.envelope import Accepted, AdmittedCommand
from events.hours import MOST_BYTES, MOST_ROWS, Measured, NoteHours, hours_key
from events.ids import derived_command_id
from events.prices import HOUR, full_hour
from projections.postgres import CUT_OFF, Pool
from services.auto_deletion.budgets import PAUSE_TIMES, Send
from services.auto_deletion.due import SERVICE
from services.runtime.nats.bus import GateAwayError

AFTER: Final = timedelta(minutes=5)
"""Behind an hour's end it is measured: samples are written some seconds after they were taken."""
SAMPLES_KEPT: Final = timedelta(days=14)
HELD: Final = timedelta(minutes=2)
"""A sample holds until the next one of its run, and for so long at most (as with `muster top`). Runs have one every ten
seconds; of very large clusters, one in two minutes."""
STATEMENT_SECONDS: Final = 60.0
"""An hour of 1,800 runs has 650,000 samples, which took 5 to 7 s; a cluster cannot have many more."""
LOOK_SECONDS: Final = 30.0
LEAST_PAUSE_SECONDS: Final = 0.5
"""Between two hours that are due: after an outage there may be hundreds."""
LONGEST_PAUSE_SECONDS: Final = 60.0
ASK_SECONDS: Final = 3.0

_TOLD: Final = Counter("muster_measured_hours", "Hours of projects that were measured, told to the log", ["outcome"])

log = structlog.get_logger(__name__)


def to_tell(hour: datetime, rows: Iterable[Mapping[str, Any]]) -> list[AdmittedCommand]:
    """The commands of an hour's rows, by project. Pure. Two who measure give commands of the same ids.

    Of a project with more than MOST_ROWS or MOST_BYTES the smallest are left out, so they count as not measured.
    """
    by_project: dict[str, list[Measured]] = {}
    for row in rows:
        measured = int(row["measured"])
        # Of an id that is none of ours no command is taken: it would hold up everybody for as long as samples are kept.
        if measured > 0 and hours_key(row["project_id"], hour) is not None:
            by_project.setdefault(row["project_id"], []).append(
                Measured(
                    owner=row["owner"],
                    cluster_id=row["cluster_id"],
                    pool=row["pool"],
                    priority_class=row["priority_class"],
                    gpu_model=row["gpu_model"],
                    measured=measured,
                    used=min(int(row["used"]), measured),
                )
            )
    return [
        AdmittedCommand(
            command_id=derived_command_id(SERVICE, project_id, "hours", hour.isoformat()),
            actor=service_actor(SERVICE),
            command=NoteHours(
                project_id=project_id,
                hour=hour,
                rows=_largest(found),
            ),
        )
        for project_id, found in sorted(by_project.items())
    ]


def _largest(found: Iterable[Measured]) -> tuple[Measured, ...]:
    """At least one: none is larger than the bounds of its texts."""
    rows = sorted(found, key=lambda one: -one.measured)[:MOST_ROWS]
    sizes = accumulate(len(msgspec.json.encode(one)) for one in rows)
    return tuple(one for one, size in zip(rows, sizes, strict=True) if size <= MOST_BYTES)


class SampleRows:
    """The tables that say how busy GPUs were, and which hours are noted."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def newest(self, since: datetime, until: datetime) -> datetime:
        """The last hour in this span of which anything is noted; where there is none, `since`."""
        statement = _NEWEST.format(schema=await self._schema())
        return await self._pool.fetchval(statement, since, until, timeout=STATEMENT_SECONDS) or since

    async def of_hour(self, hour: datetime) -> list[Mapping[str, Any]]:
        """By project, owner, cluster, pool, priority and model, thousandths of a GPU times seconds."""
        statement = _OF_HOUR.format(schema=await self._schema())
        span = (hour, hour + HOUR, HELD)
        clusters = await self._pool.fetch(_CLUSTERS, *span, timeout=STATEMENT_SECONDS)
        found: list[Mapping[str, Any]] = []
        for (cluster_id,) in clusters:
            rows = await self._pool.fetch(statement, *span, cluster_id, timeout=STATEMENT_SECONDS)
            found += [dict(zip(row.keys(), row, strict=True)) for row in rows]
        return found

    async def _schema(self) -> str:
        return await self._pool.fetchval("SELECT schema_name FROM muster.current_projection")


_NEWEST: Final = """
SELECT hour FROM "{schema}".use_hours WHERE hour BETWEEN $1 AND $2 AND measured > 0 ORDER BY hour DESC LIMIT 1
"""
_CLUSTERS: Final = """
SELECT DISTINCT cluster_id FROM muster.usage_samples
WHERE at >= $1::timestamptz - $3::interval AND at < $2::timestamptz ORDER BY 1
"""
# Of one cluster: samples of one are bounded (services/projector/usage.py), and clusters are not.
# What follows a sample ends it, also where that does not know how busy the GPU was. Before a run had its node and after
# its end nothing was reserved.
_OF_HOUR: Final = """
WITH samples AS (
    SELECT cluster_id, workload_id, pod_set, index, attempt, try_, at, gpu_utilization_percent AS busy,
        lead(at) OVER (PARTITION BY workload_id, pod_set, index, attempt, try_ ORDER BY at) AS following
    FROM muster.usage_samples WHERE at >= $1::timestamptz - $3::interval AND at < $2::timestamptz
        AND cluster_id = $4
), parts AS (
    SELECT w.project_id, w.submitted_by AS owner, w.cluster_id, p.node_pool AS pool,
        coalesce(w.priority_class, '') AS priority_class, p.gpu_model, p.gpu_milli,
        least(greatest(s.busy, 0), 100)::numeric / 100 AS busy,
        greatest(extract(epoch FROM
            least(s.following, s.at + $3::interval, $2::timestamptz, p.finished_at)
            - greatest(s.at, $1::timestamptz, p.bound_at)), 0) AS seconds
    FROM samples s
    JOIN "{schema}".pods p USING (workload_id, pod_set, index, attempt, try_)
    JOIN "{schema}".workloads w ON w.id = s.workload_id AND w.cluster_id = s.cluster_id
    WHERE s.busy IS NOT NULL AND p.gpu_milli > 0 AND p.bound_at IS NOT NULL
)
SELECT project_id, owner, cluster_id, pool, priority_class, gpu_model,
    floor(sum(gpu_milli * seconds)) AS measured, floor(sum(gpu_milli * seconds * busy)) AS used
FROM parts GROUP BY 1, 2, 3, 4, 5, 6
"""


class Hours:
    """Measures one hour after the other."""

    def __init__(self, rows: SampleRows, send: Send) -> None:
        self._rows = rows
        self._send = send
        self._next: datetime | None = None
        """The hour to be measured next; None until it was looked up."""

    async def measure(self, now: datetime) -> bool:
        """Measure the next hour if it is over; whether it was, and everything about it is in the log. Raises what
        asyncpg raises, TimeoutError and GateAwayError: then it comes again.
        """
        oldest = full_hour(now - SAMPLES_KEPT)
        if self._next is None or self._next > now:
            # Who was killed there may have told only some of its projects. And what a clock that was ahead for a
            # moment went on by, or even had noted, holds up no hour before it.
            self._next = await self._rows.newest(oldest, now)
        hour = self._next = max(self._next, oldest)
        if hour + HOUR + AFTER > now:
            return False
        for command in to_tell(hour, await self._rows.of_hour(hour)):
            reply = await self._send(command)
            if not isinstance(reply, Accepted):
                _TOLD.labels(type(reply).__name__).inc()
                log.warning("hour_not_told", hour=hour.isoformat(), reply=type(reply).__name__)
                return False
            _TOLD.labels("changed" if reply.changed else "known").inc()
        self._next = hour + HOUR
        return True

    async def run(self, stop: asyncio.Event, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """Measure until `stop`."""
        while not stop.is_set():
            began = time.monotonic()
            pause = LOOK_SECONDS
            try:
                if await self.measure(clock()):
                    took = PAUSE_TIMES * (time.monotonic() - began)
                    pause = min(max(LEAST_PAUSE_SECONDS, took), LONGEST_PAUSE_SECONDS)
            except (asyncpg.PostgresError, *CUT_OFF, OSError, TimeoutError, GateAwayError) as error:
                _TOLD.labels("away").inc()
                log.warning("hours_not_measured", error=str(error) or type(error).__name__)
                pause = LONGEST_PAUSE_SECONDS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await stop.wait()
