"""Usage samples of pods: received from the agents, written in sets, thrown away when they are old.

They are no part of the log and of no projection: a lost sample is a gap in a curve. So what cannot be kept is dropped
and counted, and nobody waits for it. What a cluster can have written is bounded by what runs there: only runs that the
read models know as living, each so often, and all together so many a second.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import asyncpg
import msgspec
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from prometheus_client import Counter

from events.agent_bounds import refused
from events.cluster_protocol import UsageReport, UsageSample
from events.codec import UNDECODABLE
from events.subjects import usage_subject
from projections.postgres import CUT_OFF, Pool
from projections.tables import usage_samples
from projections.values import clean, fit, indexed
from projections.workloads.project import ENDED_POD_PHASES, PENDING
from services.projector.schema import NotPreparedError, current_schema
from services.projector.writer import parameter_type
from services.runtime.process.buckets import Buckets

KEPT_DAYS: Final = 14
"""As long as deleted workloads are looked at elsewhere (public-api.md)."""
OFF_BY: Final = timedelta(days=1)
"""How far an agent's clock may be from ours for its samples to be kept."""
WRITE_INTERVAL_SECONDS: Final = 1.0
"""Curves are looked at in seconds."""
RUN_SECONDS: Final = 9.0
"""Between two samples of one run that are kept; agents send one every ten seconds. A pod costs 9,600 rows a day, some
1.9 MB, whatever its agent sends."""
KEPT_PER_SECOND: Final = 200.0
"""Of one cluster: 17 million rows a day, some 3.2 GB. Where more than 1,800 runs live, each is kept less often."""
MOST_RUNS: Final = 20_000
"""Of one cluster that are told apart: an agent that makes runs up must not fill the memory."""
MOST_CLUSTERS: Final = 1_000
"""That are told apart; beyond that all begin anew."""
SAMPLES_PER_SECOND: Final = 1_000
"""Of one cluster in the long run are looked at: 10,000 pods that run, every ten seconds. 25,000 a second were seen."""
BURST_SAMPLES: Final = 20_000
"""Of one cluster at once: its agent sends those of all pods together."""
WAITING_SAMPLES: Final = 50_000
"""Some 20 MB; beyond that the oldest are dropped, as while Postgres is away."""
EXPIRE_INTERVAL_SECONDS: Final = 60.0
EXPIRE_ROWS: Final = 5_000
"""Deleted in one statement, some 20 ms: other writers hardly notice."""
QUEUE: Final = "projector"
"""Of all projectors one receives a message."""

_DROPPED = Counter("muster_projector_usage_dropped", "Usage samples that could not be kept")
_TOO_OFTEN = Counter("muster_projector_usage_too_often", "Usage samples of a run that came before its next was due")
_NOT_LIVING = Counter("muster_projector_usage_not_living", "Usage samples of runs that do not live in their cluster")
_DECODER: Final = msgspec.json.Decoder(UsageReport)
_GIVEN: Final = [column for column in usage_samples.columns if column is not usage_samples.c.project_id]
"""What a sample says; whose project it is, the tables know."""

log = structlog.get_logger(__name__)


class Spaced:
    """Which runs of one cluster had a sample kept lately. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._kept_at: dict[tuple[Any, ...], float] = {}
        self._looked_at = 0.0

    def take(self, run: tuple[Any, ...], now: float) -> bool:
        """Whether the run's next sample is due; then it is taken."""
        seconds = max(RUN_SECONDS, len(self._kept_at) / KEPT_PER_SECOND)
        if now - self._looked_at > seconds:
            self._kept_at = {one: at for one, at in self._kept_at.items() if now - at < 2 * seconds}
            self._looked_at = now
        kept_at = self._kept_at.get(run)
        if len(self._kept_at) >= MOST_RUNS if kept_at is None else now - kept_at < seconds:
            return False
        self._kept_at[run] = now
        return True


class UsageWriter:
    """Samples between their arrival and their table."""

    def __init__(self, pool: Pool, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._pool = pool
        self._clock = clock
        self._budget = Buckets(size=BURST_SAMPLES, per_second=SAMPLES_PER_SECOND)
        self._spaced: dict[str, Spaced] = {}
        """By cluster."""
        self._beyond: dict[str, int] = {}
        """Reports beyond the budget since it was last told, by cluster."""
        self._waiting: deque[tuple[Any, ...]] = deque()
        self._expire_at = 0.0

    async def receive(self, message: Msg) -> None:
        cluster_id = message.subject.rsplit(".", 1)[-1]
        self.take(cluster_id, message.data, datetime.now(UTC))

    def take(self, cluster_id: str, payload: bytes, now: datetime) -> None:
        """A UsageReport from the agent of a cluster; anything else is dropped with a warning."""
        if self._budget.wait_seconds(cluster_id, self._clock()) > 0:
            # Not even read: that alone would keep the projector busy.
            self._beyond[cluster_id] = self._beyond.get(cluster_id, 0) + 1
            return
        try:
            report = _DECODER.decode(payload)
        except UNDECODABLE as error:
            log.warning("usage_not_understood", cluster_id=cluster_id, error=str(error))
            return
        if wrong := refused(report):
            log.warning("usage_refused", cluster_id=cluster_id, field=wrong.field, rule=wrong.rule, value=wrong.value)
            return
        self._budget.take(cluster_id, len(report.samples), self._clock())
        # One of another time would be kept for ever, or deleted at once.
        timely = [_record(cluster_id, sample) for sample in report.samples if abs(sample.at - now) < OFF_BY]
        if len(self._spaced) > MOST_CLUSTERS:
            self._spaced.clear()
        spaced = self._spaced.setdefault(cluster_id, Spaced())
        due = [record for record in timely if spaced.take(record[1:6], self._clock())]
        _TOO_OFTEN.inc(len(timely) - len(due))
        self._waiting.extend(due)
        over = len(self._waiting) - WAITING_SAMPLES
        for _ in range(over):
            self._waiting.popleft()
        if over > 0:
            _DROPPED.inc(over)

    async def write(self) -> int:
        """Write what waits of runs that live; how many that were. What cannot be written goes on waiting."""
        count = len(self._waiting)
        if not count:
            return 0
        records = [self._waiting[n] for n in range(count)]
        schema = await current_schema(self._pool)
        answer = await self._pool.execute(_insert(schema), *zip(*records, strict=True))
        written = int(answer.rpartition(" ")[2])
        _NOT_LIVING.inc(count - written)
        # Meanwhile more may have come, and the oldest may have been dropped: those that were written are gone first.
        for record in records:
            if self._waiting and self._waiting[0] is record:
                self._waiting.popleft()
        return written

    async def expire(self, now: datetime) -> int:
        """Delete a bounded number of old samples; how many."""
        deleted = await self._pool.execute(
            "DELETE FROM muster.usage_samples WHERE ctid = ANY(ARRAY("
            "SELECT ctid FROM muster.usage_samples WHERE at < $1 LIMIT $2))",
            now - timedelta(days=KEPT_DAYS),
            EXPIRE_ROWS,
        )
        return int(deleted.removeprefix("DELETE "))

    async def run(self, nc: Client, stop: asyncio.Event) -> None:
        """Receive and write until `stop`. Postgres away only delays."""
        subscription = await nc.subscribe(usage_subject("all").replace("all", "*"), queue=QUEUE, cb=self.receive)  # pyright: ignore[reportUnknownMemberType]
        try:
            while not stop.is_set():
                await _sleep(stop, WRITE_INTERVAL_SECONDS)
                await self._tick()
        finally:
            await subscription.unsubscribe()

    async def _tick(self) -> None:
        if self._beyond:
            log.warning("usage_beyond_budget", reports=self._beyond)
            self._beyond = {}
        clock = asyncio.get_running_loop().time
        try:
            await self.write()
            if clock() >= self._expire_at:
                deleted = await self.expire(datetime.now(UTC))
                self._expire_at = clock() + (0 if deleted == EXPIRE_ROWS else EXPIRE_INTERVAL_SECONDS)
        except (NotPreparedError, asyncpg.PostgresError, *CUT_OFF, OSError, TimeoutError) as error:
            log.warning("usage_not_written", waiting=len(self._waiting), error=str(error) or type(error).__name__)


def _insert(schema: str) -> str:
    """A cluster's agent speaks only for runs that live there."""
    arrays = ", ".join(f"${n}::{parameter_type(column.type)}[]" for n, column in enumerate(_GIVEN, start=1))
    names = ", ".join(f'"{column.name}"' for column in _GIVEN)
    given = ", ".join(f'u."{column.name}"' for column in _GIVEN)
    ended = ", ".join(f"'{phase}'" for phase in (PENDING, *ENDED_POD_PHASES))
    return (
        f"INSERT INTO muster.usage_samples ({names}, project_id) SELECT {given}, w.project_id "  # noqa: S608 (our own names, values are parameters)
        f"FROM unnest({arrays}) AS u({names}) "
        f'JOIN "{schema}".pods p ON p.workload_id = u.workload_id AND p.pod_set = u.pod_set AND p.index = u.index '
        "AND p.attempt = u.attempt AND p.try_ = u.try_ "
        f'JOIN "{schema}".workloads w ON w.id = p.workload_id AND w.cluster_id = u.cluster_id '
        f"WHERE p.phase NOT IN ({ended})"
    )


def _record(cluster_id: str, sample: UsageSample) -> tuple[Any, ...]:
    return (
        cluster_id,
        clean(sample.workload_id),
        indexed(sample.pod.pod_set),
        fit(sample.pod.index),
        fit(sample.pod.attempt),
        fit(sample.pod.try_),
        sample.at,
        fit(sample.cpu_milli),
        fit(sample.memory_bytes),
        sample.gpu_utilization_percent,
        None if sample.gpu_memory_bytes is None else fit(sample.gpu_memory_bytes),
    )


async def _sleep(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return
