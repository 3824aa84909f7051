"""Usage samples: kept as long as they are of use, and no trouble to anybody."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import msgspec
import pytest

from events.cluster_protocol import UsageReport, UsageSample
from events.workload.pod import PodRef
from projections.postgres import Pool
from projections.queries import Queries
from services.projector.engine import Engine
from services.projector.usage import (
    KEPT_DAYS,
    KEPT_PER_SECOND,
    MOST_RUNS,
    RUN_SECONDS,
    WAITING_SAMPLES,
    Spaced,
    UsageWriter,
)
from services.projector.writer import Writer
from services.runtime.log.memory import MemoryEventStore
from tests.support.lives import FIRST, World

pytestmark = pytest.mark.anyio

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


@dataclass
class Living:
    """Two clusters with a run each, which is `FIRST` of its workload, and a run of the first that is over."""

    cluster_id: str
    workload_id: str
    other_cluster_id: str
    other_workload_id: str
    over_id: str


@pytest.fixture
async def living(pool: Pool) -> Living:
    world, found = World(), list[str]()
    project_id = world.project()
    for name in ("here", "there"):
        cluster_id = world.cluster(name)
        node, key = world.node(cluster_id, "n"), world.training(name, project_id, cluster_id)
        world.place([(key, FIRST, node, 0)])
        world.report(key, FIRST, "running")
        found += [cluster_id, world.state("workload", key).workload_id]
    over = world.training("over", project_id, found[0])
    world.place([(over, FIRST, world.node(found[0], "m"), 0)])
    world.report(over, FIRST, "running")
    world.report(over, FIRST, "succeeded", exit_code=0)
    writer = Writer(pool, "muster_v1")
    engine = Engine(MemoryEventStore(), writer, await writer.checkpoint())
    await engine.apply(world.commits)
    await engine.flush()
    here, first, there, second = found
    return Living(here, first, there, second, world.state("workload", over).workload_id)


def sample(workload_id: str, seconds: float, cpu_milli: int, pod: PodRef = FIRST) -> UsageSample:
    return UsageSample(
        workload_id=workload_id,
        pod=pod,
        at=NOW + timedelta(seconds=seconds),
        cpu_milli=cpu_milli,
        memory_bytes=1000,
    )


def report(*samples: UsageSample) -> bytes:
    """As an agent sends it."""
    return msgspec.json.encode(UsageReport(samples=samples))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_samples_become_curves_of_their_own_clusters_workloads(
    pool: Pool, queries: Queries, living: Living
) -> None:
    clock, written = Clock(), 0
    usage = UsageWriter(pool, clock=clock)
    for seconds, cpu_milli in ((0, 100), (10, 300), (100, 500)):
        clock.now = float(seconds)
        usage.take(living.cluster_id, report(sample(living.workload_id, seconds, cpu_milli)), NOW)
        usage.take(living.other_cluster_id, report(sample(living.workload_id, seconds, 9999)), NOW)
        written += await usage.write()
    usage.take(living.cluster_id, b"what is this", NOW)
    assert written == 3
    assert await usage.write() == 0
    series = await queries.usage(living.workload_id, NOW, NOW + timedelta(seconds=200), samples=4)
    assert [s.pod for s in series] == ["main-0"]
    assert [(point.at, point.cpu_milli) for point in series[0].points] == [
        (NOW, 200.0),
        (NOW + timedelta(seconds=100), 500.0),
    ]
    assert await queries.usage(living.workload_id, NOW, NOW) == []


async def test_old_samples_are_deleted_and_new_ones_stay(pool: Pool, living: Living) -> None:
    clock = Clock()
    usage = UsageWriter(pool, clock=clock)
    old = -86400 * KEPT_DAYS - 1
    usage.take(living.cluster_id, report(sample(living.workload_id, old, 1)), NOW + timedelta(seconds=old))
    clock.now = 60.0
    usage.take(living.cluster_id, report(sample(living.workload_id, 0, 1)), NOW)
    await usage.write()
    assert await usage.expire(NOW) == 1
    assert await usage.expire(NOW) == 0
    assert await pool.fetchval("SELECT count(*) FROM muster.usage_samples") == 1


@pytest.mark.parametrize(
    "absurd",
    [
        {"cpu_milli": 2**63},
        {"cpu_milli": -1},
        {"at": NOW + timedelta(days=2)},
        {"at": NOW - timedelta(days=2)},
        {"workload_id": ""},
    ],
    ids=["more than any node has", "negative", "of the day after tomorrow", "of last week", "of no workload"],
)
async def test_an_absurd_sample_is_not_kept(pool: Pool, living: Living, absurd: dict[str, Any]) -> None:
    usage = UsageWriter(pool)
    good = sample(living.workload_id, 0, 1)
    usage.take(living.cluster_id, report(msgspec.structs.replace(good, **absurd)), NOW)
    assert await usage.write() == 0
    usage.take(living.cluster_id, report(good), NOW)
    assert await usage.write() == 1


@pytest.mark.parametrize("run", ["made up", "of another cluster", "of a later try", "over"])
async def test_only_runs_that_live_in_their_cluster_have_samples(pool: Pool, living: Living, run: str) -> None:
    refused = {
        "made up": sample("00000000-0000-8000-8000-000000000000", 0, 1),
        "of another cluster": sample(living.other_workload_id, 0, 1),
        "of a later try": sample(living.workload_id, 0, 1, PodRef(pod_set="main", index=0, attempt=1, try_=1)),
        "over": sample(living.over_id, 0, 1),
    }[run]
    usage = UsageWriter(pool)
    usage.take(living.cluster_id, report(refused), NOW)
    assert await usage.write() == 0
    assert await pool.fetchval("SELECT count(*) FROM muster.usage_samples") == 0


async def test_while_postgres_is_away_the_oldest_are_dropped(pool: Pool, living: Living) -> None:
    usage = UsageWriter(pool)
    usage.take(living.cluster_id, report(sample(living.workload_id, 0, 1)), NOW)
    for number in range(WAITING_SAMPLES // 1000):
        usage.take(f"c{number}", report(*(sample(f"w{n}", 0, n) for n in range(1000))), NOW)
    usage.take(living.other_cluster_id, report(sample(living.other_workload_id, 0, 1)), NOW)
    assert await usage.write() == 1
    assert await pool.fetchval("SELECT workload_id FROM muster.usage_samples") == living.other_workload_id


async def test_a_connection_that_broke_as_it_was_given_back_only_delays(
    pool: Pool, living: Living, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As asyncpg has it where Postgres is killed at a bad moment; all services of the process ended with this one."""

    async def broken(_: asyncpg.Connection, **__: object) -> None:
        raise asyncpg.InternalClientError("cannot switch to state 15; another operation (2) is in progress")

    usage = UsageWriter(pool)
    usage.take(living.cluster_id, report(sample(living.workload_id, 0, 1)), NOW)
    with monkeypatch.context() as while_away:
        while_away.setattr(asyncpg.Connection, "reset", broken)
        await usage._tick()
    await usage._tick()
    assert await pool.fetchval("SELECT count(*) FROM muster.usage_samples") == 1


async def test_what_a_flooding_agent_has_written_is_bounded_by_what_runs_there_and_others_samples_pass(
    pool: Pool, living: Living
) -> None:
    """Each second a thousand samples of the one run, and a thousand of runs that are made up."""
    clock, seconds = Clock(), 60
    usage = UsageWriter(pool, clock=clock)
    for second in range(seconds):
        clock.now = float(second)
        usage.take(living.cluster_id, report(*(sample(living.workload_id, n, n) for n in range(1000))), NOW)
        usage.take(living.cluster_id, report(*(sample(f"{second}-{n}", n, n) for n in range(1000))), NOW)
        if second % 10 == 0:
            usage.take(living.other_cluster_id, report(sample(living.other_workload_id, second, 1)), NOW)
        await usage.write()
    rows = await pool.fetch("SELECT cluster_id, count(*) AS n FROM muster.usage_samples GROUP BY 1")
    kept = {row["cluster_id"]: row["n"] for row in rows}
    assert set(kept) == {living.cluster_id, living.other_cluster_id}
    assert kept[living.cluster_id] <= seconds / RUN_SECONDS + 1
    assert kept[living.other_cluster_id] == seconds / 10


def test_a_wide_cluster_has_each_run_kept_less_often_and_made_up_runs_fill_no_memory() -> None:
    runs = [("w", "main", index, 1, 0) for index in range(4_000)]
    spaced = Spaced()
    kept = [sum(spaced.take(run, now) for run in runs) for now in (0.0, 10.0, 20.0, 30.0, 40.0)]
    assert kept[0] == len(runs)
    assert len(runs) <= sum(kept[1:]) <= 40 * KEPT_PER_SECOND
    assert sum(spaced.take((str(n),), 41.0) for n in range(2 * MOST_RUNS)) <= MOST_RUNS
