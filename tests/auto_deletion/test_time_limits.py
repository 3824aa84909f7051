"""Limits on the time of workloads end what reaches them, from real rows and samples, whoever looks (S094)."""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from development.checker.log import check
from development.checker.records import RawMessage
from events.cluster_protocol import UsageReport, UsageSample
from events.codec import encode_commit
from events.ids import project_key
from events.phases import Phase
from events.time_limits import LimitKind, SetTimeLimits, TimeLimit
from events.workload.commands import DeleteWorkload, PlacePods, ResumeWorkload, SuspendWorkload
from events.workload.spec import ComputeSpec, TrainingSpec
from projections.postgres import Pool
from projections.queries import Queries
from services.auto_deletion.time_limits import LimitRows, Reached, TimeLimits, command, first_of_each
from services.projector.usage import UsageWriter
from tests.auto_deletion.test_hours import Plane, projected
from tests.support.lives import FIRST, SCHEDULER, World

SECOND = timedelta(seconds=1)


def limit(world: World, project: str, **seconds: int) -> None:
    limits = (TimeLimit(kind="Training", **seconds),) if seconds else ()
    world.do("project", project_key("default"), SetTimeLimits(project_id=project, limits=limits))


def phase(world: World, key: str) -> tuple[Phase, str]:
    state = world.state("workload", key)
    return state.phase, state.reason


def wrong(world: World) -> list[str]:
    """By the independent checker."""
    messages = (RawMessage(c.seq, f"ev.{c.aggregate}.{c.key}", encode_commit(c.record)) for c in world.commits)
    return check(messages, stand_ins=True).violations


async def looked(plane: Plane, pool: Pool, queries: Queries) -> int:
    """As a service that has just started."""
    plane.feed()
    assert await queries.wait_for(plane.fed, 60)
    found = await TimeLimits(LimitRows(pool), plane.send).look(plane.world.now)
    assert await queries.wait_for(plane.fed, 60)
    return found


def test_one_workload_ends_once_and_two_who_look_give_the_same_command() -> None:
    reached = [Reached("w", 1, "runtime", 60), Reached("v", 1, "pending", 5), Reached("w", 1, "idle_gpu", 300)]
    assert first_of_each(reached) == reached[:2]
    assert command(reached[0]) == command(Reached("w", 1, "runtime", 60))
    assert command(reached[0]).command_id != command(Reached("w", 2, "runtime", 60)).command_id


@pytest.mark.parametrize("seconds", [0, -1, 2**40])
def test_what_is_no_limit_is_not_taken(seconds: int) -> None:
    with pytest.raises(ValueError, match="a limit is from 1"):
        TimeLimit(kind="Training", runtime_seconds=seconds)


@pytest.mark.anyio
async def test_running_time_counts_over_suspensions_and_what_reaches_the_limit_terminates(
    prepared_database: str,
) -> None:
    plane = Plane()
    world = plane.world
    async with projected(plane, prepared_database) as (pool, queries):
        cluster, project = world.cluster(), world.project()
        node, key = world.node(cluster, "n"), world.training("w", project, cluster)
        waiting, other = world.training("waits", project, cluster), world.training("deleted", project, cluster)
        world.place([(key, FIRST, node, 0)])
        world.place([(other, FIRST, node, 1)])
        world.report(key, FIRST, "running")
        world.report(other, FIRST, "running")
        world.later(50)
        _act(world, key, SuspendWorkload)
        world.report(key, FIRST, "stopped", exit_code=143)
        world.later(500)
        _act(world, key, ResumeWorkload)
        _act(world, other, DeleteWorkload)
        world.place([(key, msgspec.structs.replace(FIRST, attempt=2), node, 2)])
        world.report(key, msgspec.structs.replace(FIRST, attempt=2), "running")
        world.later(9)
        assert await looked(plane, pool, queries) == 0
        # A limit that comes, or changes, holds for what runs already.
        limit(world, project, runtime_seconds=62)
        assert await looked(plane, pool, queries) == 0
        limit(world, project, runtime_seconds=60)
        world.later(2)

        both = await asyncio.gather(*(looked(plane, pool, queries) for _ in range(2)))

        assert set(both) <= {0, 1}
        assert max(both) == 1
        assert phase(world, key) == (Phase.TERMINATING, "runtime_limit")
        assert await looked(plane, pool, queries) == 0
        world.report(key, msgspec.structs.replace(FIRST, attempt=2), "stopped", exit_code=143)
        state = world.state("workload", key)
        assert (state.phase, state.reason, state.pods.live.size) == (Phase.FAILED, "runtime_limit", 0)
        assert state.message == "it has run for as long as a workload of its kind may in this project: 60 s"
        assert phase(world, waiting)[0] is not Phase.FAILED
        assert wrong(world) == []


@pytest.mark.anyio
async def test_what_waits_for_too_long_at_a_time_has_failed(prepared_database: str) -> None:
    plane = Plane()
    world = plane.world
    async with projected(plane, prepared_database) as (pool, queries):
        cluster, project = world.cluster(), world.project()
        world.node(cluster, "n")
        key = world.training("w", project, cluster)
        world.do("workload", key, PlacePods(workload_id=world.state("workload", key).workload_id), SCHEDULER)
        limit(world, project, pending_seconds=60)
        world.later(59)
        assert await looked(plane, pool, queries) == 0
        world.later(1)
        assert await looked(plane, pool, queries) == 1
        assert phase(world, key) == (Phase.FAILED, "pending_limit")
        assert wrong(world) == []


class TooManyMeasurements(LimitRows):
    """Those of one wide workload over two weeks are more than a statement has time for."""

    async def reached(self, now: datetime, kinds: Sequence[LimitKind]) -> list[Reached]:
        if "idle_gpu" in kinds:
            raise TimeoutError
        return await super().reached(now, kinds)


@pytest.mark.anyio
async def test_other_limits_act_where_there_are_too_many_measurements_to_look_at(prepared_database: str) -> None:
    plane = Plane()
    world = plane.world
    async with projected(plane, prepared_database) as (pool, queries):
        cluster, project = world.cluster(), world.project()
        world.node(cluster, "n")
        key = world.training("w", project, cluster)
        world.do("workload", key, PlacePods(workload_id=world.state("workload", key).workload_id), SCHEDULER)
        limit(world, project, pending_seconds=60, idle_gpu_seconds=600)
        world.later(60)
        plane.feed()
        assert await queries.wait_for(plane.fed, 60)
        limits = TimeLimits(TooManyMeasurements(pool), plane.send)
        with pytest.raises(TimeoutError):
            await limits.look(world.now)
        assert phase(world, key) == (Phase.FAILED, "pending_limit")
        assert await limits.look(world.now + SECOND) >= 0, "measurements are not asked for again at once"


IDLE: list[tuple[str, Sequence[float | None], bool]] = [
    ("idle all the time", [0.0] * 11, True),
    ("busy once", [0.0] * 5 + [1.0] + [0.0] * 5, False),
    ("not measured for a moment", [0.0] * 5 + [None] + [0.0] * 5, False),
    ("never measured", [], False),
    ("measured too late", [0.0] * 5, False),
]


@pytest.mark.anyio
async def test_gpus_count_as_idle_only_where_their_cluster_measured_that_they_are(prepared_database: str) -> None:
    """Absent is not idle."""
    plane = Plane()
    world = plane.world
    async with projected(plane, prepared_database) as (pool, queries):
        cluster, project = world.cluster(), world.project()
        node = world.node(cluster, "n")
        limit(world, project, idle_gpu_seconds=600)
        keys = [world.training(f"w{n}", project, cluster, _gpu()) for n in range(len(IDLE))]
        for n, key in enumerate(keys):
            world.place([(key, FIRST, node, n)])
            world.report(key, FIRST, "running")
        world.later(600)
        plane.feed()
        assert await queries.wait_for(plane.fed, 60)
        for key, (_, busy, _) in zip(keys, IDLE, strict=True):
            for age, percent in enumerate(reversed(busy)):
                at, id_ = world.now - age * 60 * SECOND, world.state("workload", key).workload_id
                await sample(pool, cluster, id_, at, percent)
        assert await looked(plane, pool, queries) == 1
        assert [phase(world, key) == (Phase.TERMINATING, "idle_gpu_limit") for key in keys] == [
            ended for _, _, ended in IDLE
        ]


async def sample(pool: Pool, cluster: str, workload_id: str, at: datetime, percent: float | None) -> None:
    writer = UsageWriter(pool, clock=lambda: 0.0)
    one = UsageSample(
        workload_id=workload_id, pod=FIRST, at=at, cpu_milli=1, memory_bytes=1, gpu_utilization_percent=percent
    )
    writer.take(cluster, msgspec.json.encode(UsageReport(samples=(one,))), at)
    assert await writer.write() == 1


def _act(world: World, key: str, kind: Any) -> None:
    world.do("workload", key, kind(workload_id=world.state("workload", key).workload_id))


def _gpu() -> TrainingSpec:
    return TrainingSpec(image="i", compute=ComputeSpec(gpu_devices_request=1))
