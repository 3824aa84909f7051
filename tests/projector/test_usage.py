"""Usage samples: kept as long as they are of use, and no trouble to anybody."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from events.cluster_protocol import UsageReport, UsageSample
from projections.postgres import Pool
from projections.queries import Queries
from services.projector.usage import BURST_SAMPLES, KEPT_DAYS, SAMPLES_PER_SECOND, WAITING_SAMPLES, UsageWriter
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
    usage.take(cluster_id, report(sample(id_, 0, 100), sample(id_, 1, 300), sample(id_, 10, 500)), NOW)
    usage.take("another-cluster", report(sample(id_, 0, 9999)), NOW)
    usage.take(cluster_id, b"what is this", NOW)
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
    old = -86400 * KEPT_DAYS - 1
    usage.take("c", report(sample("w", old, 1)), NOW + timedelta(seconds=old))
    usage.take("c", report(sample("w", 0, 1)), NOW)
    await usage.write()
    assert await usage.expire(NOW) == 1
    assert await usage.expire(NOW) == 0
    assert await pool.fetchval("SELECT count(*) FROM muster.usage_samples") == 1


@pytest.mark.parametrize(
    "refused",
    [
        sample("w", 0, 2**63),
        sample("w", 0, -1),
        sample("w", 2 * 86400, 1),
        sample("w", -2 * 86400, 1),
        sample("", 0, 1),
    ],
    ids=["more than any node has", "negative", "of the day after tomorrow", "of last week", "of no workload"],
)
async def test_an_absurd_sample_is_not_kept(pool: Pool, refused: UsageSample) -> None:
    usage = UsageWriter(pool)
    usage.take("c", report(refused), NOW)
    assert await usage.write() == 0


async def test_while_postgres_is_away_the_oldest_are_dropped(pool: Pool) -> None:
    usage = UsageWriter(pool)
    payload = report(*(sample("w", n, n) for n in range(1000)))
    for number in range(WAITING_SAMPLES // 1000 + 2):
        usage.take(f"c{number}", payload, NOW)
    assert await usage.write() == WAITING_SAMPLES


async def test_an_agent_that_never_stops_sending_is_held_to_its_budget_and_pushes_nobody_elses_samples_out(
    pool: Pool,
) -> None:
    now, written = 0.0, 0
    usage = UsageWriter(pool, clock=lambda: now)
    payload = report(*(sample("w", n, n) for n in range(1000)))
    usage.take("quiet", report(sample("w", 0, 1)), NOW)
    for second in range(5):
        now = float(second)
        for _ in range(60):
            usage.take("loud", payload, NOW)
        written += await usage.write()
    assert written <= 1 + BURST_SAMPLES + 5 * SAMPLES_PER_SECOND
    assert await pool.fetchval("SELECT count(*) FROM muster.usage_samples WHERE cluster_id = 'quiet'") == 1
