"""How busy GPUs were is measured from real samples, once for each hour, whoever measures, and is kept by the log."""

import asyncio
import itertools
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from events.cluster_protocol import UsageReport, UsageSample
from events.commands import target
from events.commit import service_actor
from events.envelope import Accepted, AdmittedCommand, CommandReply, OutcomeUnknown
from events.hours import MOST_BYTES, MOST_ROWS, HoursMeasured, NoteHours
from events.ids import incarnation_id, project_key
from events.project import DeleteProject
from projections.postgres import Pool
from projections.queries import Queries
from projections.use_hours import Amount, By, HoursQuery
from services.auto_deletion.budgets import Send
from services.auto_deletion.hours import Hours, SampleRows, to_tell
from services.projector.engine import open_pool
from services.projector.rebuild import rebuild
from services.projector.service import Projector
from services.projector.usage import UsageWriter
from services.projector.verify import verify
from services.runtime.log.memory import MemoryEventStore
from services.runtime.process.host import Health
from tests.support.lives import BEGIN, FIRST, World, feed

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
P, Q, R = sorted(incarnation_id(project_key(name), "c") for name in ("p", "q", "r"))


def sampled(**more: Any) -> dict[str, Any]:
    """What the tables say of one group."""
    texts = {"project_id": P, "owner": "alice", "cluster_id": "c", "pool": "", "priority_class": "", "gpu_model": ""}
    return texts | {"measured": 1000, "used": 500} | more


def test_each_project_has_a_command_and_two_who_measure_give_the_same() -> None:
    rows = [sampled(), sampled(project_id=Q), sampled(owner="bob"), sampled(project_id=R, measured=0, used=0)]
    rows += [sampled(project_id="none of ours")]
    first, later = to_tell(BEGIN, rows), to_tell(BEGIN, [row | {"used": 7} for row in rows])
    assert [(one.command.project_id, len(one.command.rows)) for one in first if isinstance(one.command, NoteHours)] == [
        (P, 2), (Q, 1)
    ]  # fmt: skip
    assert [one.command_id for one in first] == [one.command_id for one in later]


def test_what_is_beyond_the_bound_of_a_project_counts_as_not_measured() -> None:
    (one,) = to_tell(BEGIN, [sampled(owner=f"o{n}", measured=1000 + n) for n in range(MOST_ROWS + 9)])
    assert isinstance(one.command, NoteHours)
    assert [len(one.command.rows), min(row.measured for row in one.command.rows)] == [MOST_ROWS, 1009]


def test_names_of_gpus_that_fill_a_message_leave_out_the_smallest() -> None:
    rows = [sampled(owner=f"o{n}", measured=1000 + n, gpu_model="\x01" * 253) for n in range(MOST_ROWS)]
    (one,) = to_tell(BEGIN, [*rows, sampled(measured=9999)])
    assert isinstance(one.command, NoteHours)
    told = [row.measured for row in one.command.rows]
    assert len(msgspec.json.encode(one)) < 1.1 * MOST_BYTES
    assert 100 < len(told) < MOST_ROWS
    assert told == [9999, *range(999 + MOST_ROWS, 1000 + MOST_ROWS - len(told), -1)]


class Plane:
    """A log whose commands are decided at once."""

    def __init__(self) -> None:
        self.world, self.store = World(), MemoryEventStore()
        self.fed = 0
        self.takes: int | None = None
        """So many commands more are decided; None: all."""

    def feed(self) -> None:
        feed(self.store, self.world.commits[self.fed :])
        self.fed = len(self.world.commits)

    async def send(self, admitted: AdmittedCommand) -> CommandReply:
        place = target(admitted.command)
        assert place is not None
        if self.takes is not None:
            self.takes -= 1
            if self.takes < 0:
                return OutcomeUnknown()
        before = self.fed
        assert self.world.do(*place, admitted.command, service_actor("auto_deletion")) is None
        self.feed()
        return Accepted(seq=self.fed, changed=self.fed > before)

    def measured(self) -> list[HoursMeasured]:
        events = itertools.chain.from_iterable(commit.events for commit in self.world.commits)
        return [event for event in events if isinstance(event, HoursMeasured)]


@asynccontextmanager
async def projected(plane: Plane, database: str) -> AsyncGenerator[tuple[Pool, Queries]]:
    pool, queries, stop = await open_pool(database), Queries(database), asyncio.Event()
    projecting = asyncio.create_task(Projector(plane.store, pool, Health("p"), stop).run())
    try:
        yield pool, queries
    finally:
        stop.set()
        await projecting
        await queries.close()
        await pool.close()


async def take(pool: Pool, cluster: str, workload_id: str, minutes: range) -> None:
    """A sample a minute after BEGIN."""
    clock = itertools.count(step=60.0)
    writer = UsageWriter(pool, clock=lambda: next(clock))
    for minute in minutes:
        at = BEGIN + minute * MINUTE
        sample = UsageSample(
            workload_id=workload_id,
            pod=FIRST,
            at=at,
            cpu_milli=1,
            memory_bytes=1,
            gpu_utilization_percent=busy(minute),
        )
        writer.take(cluster, msgspec.json.encode(UsageReport(samples=(sample,))), at)
    assert await writer.write() == len(minutes)


def busy(minute: int) -> float | None:
    """From 40 to 50 nobody knows."""
    if 40 <= minute < 50:
        return None
    return 150.0 if minute == 30 else 50.0


async def measure_all(pool: Pool, send: Send, now: datetime) -> int:
    """As a service that has just started: how many hours it went on by."""
    hours, count = Hours(SampleRows(pool), send), 0
    while await hours.measure(now):
        count += 1
    return count


async def sums(queries: Queries, by: By, *borders: datetime) -> list[Amount]:
    found = (await queries.within(None).use_hours(HoursQuery(by=by, borders=borders, projects=None))).amounts
    return [amount for _, amount in sorted(found.items())]


async def sums_of(queries: Queries, project: str, *borders: datetime) -> list[tuple[float, float, float]]:
    query = HoursQuery(by=By.PROJECT, borders=borders, projects=None, project_id=project)
    return told(list((await queries.within(None).use_hours(query)).amounts.values()))


def told(amounts: list[Amount]) -> list[tuple[float, float, float]]:
    """Minutes of a GPU that were reserved, measured and used."""
    return [(one.reserved / 60e9, one.measured / 60e3, one.used / 60e3) for one in amounts]


@pytest.mark.anyio
async def test_hours_are_measured_once_from_the_samples_and_follow_from_the_log(prepared_database: str) -> None:
    plane = Plane()
    world = plane.world
    async with projected(plane, prepared_database) as (pool, queries):
        cluster, project = world.cluster(), world.project()
        node, key = world.node(cluster, "n"), world.training("w", project, cluster)
        world.later(1800)
        world.place([(key, FIRST, node, 0)])
        world.report(key, FIRST, "running")
        plane.feed()
        assert await queries.wait_for(plane.fed, 60)
        # From before it had its node until after its end; for ten minutes nobody knows how busy, and five are missing.
        workload_id = world.state("workload", key).workload_id
        await take(pool, cluster, workload_id, range(25, 65))
        await take(pool, cluster, workload_id, range(70, 80))
        world.later(2700)
        world.report(key, FIRST, "succeeded", exit_code=0)
        plane.feed()
        assert await queries.wait_for(plane.fed, 60)

        world.now = BEGIN + HOUR + 4 * MINUTE
        await measure_all(pool, plane.send, world.now)
        assert plane.measured() == [], "it is not yet time"
        world.now = BEGIN + 2 * HOUR + 6 * MINUTE
        # Two at once, which both begin anew.
        await asyncio.gather(*(measure_all(pool, plane.send, world.now) for _ in range(2)))
        assert [event.hour for event in plane.measured()] == [BEGIN, BEGIN + HOUR]
        assert await queries.wait_for(plane.fed, 60)
        # The sample before the node counts from the node on, and the one at 30 as 100 %.
        first, second = (30, 20, 10.5), (15, 11, 5.5)
        for by in By:
            each = await sums(queries, by, BEGIN, BEGIN + HOUR, BEGIN + 2 * HOUR)
            assert [one for one in told(each) if one[0]] == [first, second], by

        # The samples expire, and the log keeps what they came to.
        await pool.execute("DELETE FROM muster.usage_samples")
        assert await measure_all(pool, plane.send, world.now) == 1, "only the newest is looked at again"
        await rebuild(plane.store, prepared_database, lambda *_: None)
        assert await verify(plane.store, prepared_database, lambda *_: None) == []
        assert (30 + 15, 20 + 11, 16) in told(await sums(queries, By.PROJECT, BEGIN, BEGIN + 2 * HOUR))


@pytest.mark.anyio
async def test_one_that_ends_within_an_hour_is_followed_by_one_that_tells_the_rest(prepared_database: str) -> None:
    plane = Plane()
    world = plane.world
    async with projected(plane, prepared_database) as (pool, queries):
        cluster = world.cluster()
        node = world.node(cluster, "n")
        keys = [world.training("w", world.project(name), cluster) for name in ("a", "b", "c")]
        world.place([(key, FIRST, node, number) for number, key in enumerate(keys)])
        for key in keys:
            world.report(key, FIRST, "running")
        plane.feed()
        assert await queries.wait_for(plane.fed, 60)
        for key in keys:
            await take(pool, cluster, world.state("workload", key).workload_id, range(1, 90))
        world.later(3 * 3600)
        plane.takes = 2
        await measure_all(pool, plane.send, world.now)
        assert len(plane.measured()) == 2
        plane.takes = None
        assert await queries.wait_for(plane.fed, 60)
        assert await measure_all(pool, plane.send, world.now) == 2
        told_of = [(event.hour, event.project_id) for event in plane.measured()]
        assert len(told_of) == len(set(told_of)) == 6


@pytest.mark.anyio
async def test_a_project_that_was_deleted_and_one_of_its_name_have_hours_of_their_own(prepared_database: str) -> None:
    plane = Plane()
    world = plane.world
    async with projected(plane, prepared_database) as (pool, queries):
        cluster = world.cluster()
        node = world.node(cluster, "n")

        async def run(device: int, minutes: range) -> str:
            project = world.project()
            key = world.training("w", project, cluster)
            world.place([(key, FIRST, node, device)])
            world.report(key, FIRST, "running")
            plane.feed()
            assert await queries.wait_for(plane.fed, 60)
            await take(pool, cluster, world.state("workload", key).workload_id, minutes)
            world.now = BEGIN + minutes.stop * MINUTE
            world.report(key, FIRST, "succeeded", exit_code=0)
            return project

        first = await run(0, range(20))
        assert world.do("project", project_key("default"), DeleteProject(project_id=first)) is None
        second = await run(1, range(20, 90))
        plane.feed()
        assert await queries.wait_for(plane.fed, 60)
        world.later(3600)
        await measure_all(pool, plane.send, world.now)
        assert await queries.wait_for(plane.fed, 60)
        found = [await sums_of(queries, one, BEGIN, BEGIN + 2 * HOUR) for one in (first, second)]
        assert found == [[(20, 20, 10)], [(70, 60, 30.5)]]


@pytest.mark.anyio
async def test_a_clock_that_was_ahead_for_a_moment_leaves_no_hour_out(prepared_database: str) -> None:
    plane = Plane()
    world = plane.world
    async with projected(plane, prepared_database) as (pool, queries):
        cluster, project = world.cluster(), world.project()
        node, key = world.node(cluster, "n"), world.training("w", project, cluster)
        world.place([(key, FIRST, node, 0)])
        world.report(key, FIRST, "running")
        plane.feed()
        assert await queries.wait_for(plane.fed, 60)
        workload_id = world.state("workload", key).workload_id
        await take(pool, cluster, workload_id, range(30))
        hours = Hours(SampleRows(pool), plane.send)

        async def go_on(now: datetime) -> None:
            world.now = now
            while await hours.measure(now):
                pass
            plane.feed()
            assert await queries.wait_for(plane.fed, 60)

        await go_on(BEGIN + HOUR + 10 * MINUTE)
        await go_on(BEGIN + 24 * HOUR)
        world.now = BEGIN + 2 * HOUR
        await take(pool, cluster, workload_id, range(120, 150))
        await go_on(BEGIN + 3 * HOUR + 10 * MINUTE)
        assert [event.hour for event in plane.measured()] == [BEGIN, BEGIN + 2 * HOUR]
