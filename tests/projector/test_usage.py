"""Usage samples: kept as long as they are of use, and no trouble to anybody."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from events.cluster_protocol import UsageReport, UsageSample
from projections.postgres import Pool
from projections.queries import Queries
from services.projector.usage import KEPT_DAYS, WAITING_SAMPLES, UsageWriter
from services.runtime.memory import MemoryEventStore
from tests.projector.conftest import Run
from tests.projector.test_projector import reached
from tests.support.lives import FIRST, World, feed

pytestmark = pytest.mark.anyio

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def sample(workload_id: str, seconds: float, cpu_milli: int) -> UsageSample:
    return UsageSample(
        workload_id=workload_id,
        pod=FIRST,
        at=NOW + timedelta(seconds=seconds),
        cpu_milli=cpu_milli,
        memory_bytes=1000,
    )


def report(*samples: UsageSample) -> bytes:
    """As an agent sends it."""
    return msgspec.json.encode(UsageReport(samples=samples))


async def test_samples_become_curves_of_their_own_clusters_workloads(
    pool: Pool, queries: Queries, running: Run
) -> None:
    world, store = World(), MemoryEventStore()
    cluster_id, project_id = world.cluster(), world.project()
    key = world.training("train", project_id, cluster_id)
    feed(store, world.commits)
    async with running(store):
        await reached(queries, len(world.commits))
    id_ = world.state("workload", key).workload_id
    usage = UsageWriter(pool)
    usage.take(cluster_id, report(sample(id_, 0, 100), sample(id_, 1, 300), sample(id_, 10, 500)))
    usage.take("another-cluster", report(sample(id_, 0, 9999)))
    usage.take(cluster_id, b"what is this")
    assert await usage.write() == 4
    assert await usage.write() == 0
    series = await queries.usage(id_, NOW, NOW + timedelta(seconds=20), samples=4)
    assert [s.pod for s in series] == ["main-0"]
    assert [(point.at, point.cpu_milli) for point in series[0].points] == [
        (NOW, 200.0),
        (NOW + timedelta(seconds=10), 500.0),
    ]
    assert await queries.usage(id_, NOW, NOW) == []


async def test_old_samples_are_deleted_and_new_ones_stay(pool: Pool) -> None:
    usage = UsageWriter(pool)
    usage.take("c", report(sample("w", -86400 * KEPT_DAYS - 1, 1), sample("w", 0, 1)))
    await usage.write()
    assert await usage.expire(NOW) == 1
    assert await usage.expire(NOW) == 0
    assert await pool.fetchval("SELECT count(*) FROM muster.usage_samples") == 1


async def test_while_postgres_is_away_the_oldest_are_dropped(pool: Pool) -> None:
    usage = UsageWriter(pool)
    payload = report(*(sample("w", n, n) for n in range(1000)))
    for _ in range(WAITING_SAMPLES // 1000 + 2):
        usage.take("c", payload)
    assert await usage.write() == WAITING_SAMPLES
