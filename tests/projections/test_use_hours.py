"""Hourly use: the sums are those of a plain loop over the log's commits, however the log and time are cut."""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from development.servers import PostgresServer
from events.codec import EARLIEST
from events.commit import Actor, Commit
from events.ids import ANY_CLUSTER, workload_key
from events.workload.commands import (
    ChangeWorkload,
    CreateWorkload,
    DeleteWorkload,
    PlacePods,
    ResumeWorkload,
    SuspendWorkload,
    TransferWorkload,
)
from events.workload.life import WorkloadDeleted, evolve
from events.workload.lost_cluster import ClusterLeft
from events.workload.pod import (
    DeviceShare,
    Placement,
    PodFailed,
    PodInterrupted,
    PodsBound,
    PodStopped,
    PodSucceeded,
)
from events.workload.spec import ComputeSpec, TrainingSpec
from events.workload.state import Workload
from projections.fold import fold
from projections.hours.changes import EPOCH, MICROSECOND
from projections.migrate import prepare
from projections.queries import Queries
from projections.use_hours import By, HoursQuery, amounts
from services.projector.engine import Engine, open_pool
from services.projector.writer import Writer
from services.runtime.log.memory import MemoryEventStore
from tests.projections.conftest import as_reader
from tests.support.draws import draws
from tests.support.lives import ALICE, FIRST, SCHEDULER, World, busy_world
from tests.support.random_lives import Lives
from tests.support.tables import Tables

BOB = Actor(id="bob")
pytestmark = pytest.mark.anyio

WAITING = {"Creating", "Pending", "Resuming"}
ENDS = (PodSucceeded, PodFailed, PodInterrupted, PodStopped)
HOUR = timedelta(hours=1)
GROUPS = {
    By.PROJECT: ("project_id",),
    By.DEPARTMENT: ("project_id",),  # summed up to those later, by where projects stand
    By.USER: ("owner",),
    By.PRIORITY: ("priority",),
    By.NODE_POOL: ("cluster_id", "pool"),
    By.CLUSTER: ("cluster_id",),
    By.GPU_MODEL: ("model",),
}


@dataclass(frozen=True)
class Stay:
    """Something that counted from one time to another: GPUs of a run, or a workload that waited."""

    begin: datetime
    end: datetime | None
    milli: int
    waits: bool
    whose: dict[str, str]


def stays_of(commits: Sequence[Commit]) -> list[Stay]:
    """By plain loops over the commits and the states of the workloads, event by event."""
    found: list[Stay] = []
    states: dict[str, Workload] = {}
    runs: dict[tuple[str, Any], tuple[datetime, int, dict[str, str]]] = {}
    waits: dict[str, datetime] = {}

    def whose(state: Workload, **where: str) -> dict[str, str]:
        return {
            "project_id": state.project_id,
            "owner": state.owner,
            "cluster_id": state.cluster_id or ANY_CLUSTER,
            "priority": state.spec.priority_class,
            "pool": "",
            "model": "",
        } | where

    def end_run(state: Workload, run: tuple[str, Any], at: datetime) -> None:
        begin, milli, where = runs.pop(run)
        found.append(Stay(begin, max(begin, at), milli, waits=False, whose=whose(state, **where)))

    for commit in (one for one in commits if one.aggregate == "workload"):
        at, key = commit.record.occurred_at, commit.key
        for event in commit.events:
            before = states.get(key, Workload())
            after = states[key] = evolve(before, event)
            if before is after:
                continue
            id_ = after.workload_id
            if isinstance(event, PodsBound):
                for placed in event.placements:
                    milli = sum(share.milli for share in placed.devices)
                    runs[id_, placed.pod] = (at, milli, {"pool": placed.pool, "model": placed.gpu_model})
            elif isinstance(event, ENDS):
                end_run(after, (id_, event.pod), at)
            elif isinstance(event, ClusterLeft):
                for run in [run for run in runs if run[0] == id_]:
                    end_run(before, run, at)
            moved = whose(before) != whose(after)
            if moved and before.exists and id_ == before.workload_id:
                for run in [run for run in runs if run[0] == id_]:
                    where = runs[run]
                    end_run(before, run, at)
                    runs[run] = (at, *where[1:])
                if id_ in waits:
                    found.append(Stay(waits[id_], at, 0, waits=True, whose=whose(before)))
                    waits[id_] = at
            was = before.workload_id == id_ and before.phase.value in WAITING
            now = after.phase.value in WAITING and not isinstance(event, WorkloadDeleted)
            if was and not now:
                found.append(Stay(waits[id_], at, 0, waits=True, whose=whose(after)))
                del waits[id_]
            elif now and not was:
                waits[id_] = at
    by_id = {state.workload_id: state for state in states.values()}
    found += [
        Stay(begin, None, milli, waits=False, whose=whose(by_id[id_], **where))
        for (id_, _), (begin, milli, where) in runs.items()
    ]
    found += [Stay(begin, None, 0, waits=True, whose=whose(by_id[id_])) for id_, begin in waits.items()]
    return found


def expected(stays: Sequence[Stay], by: By, borders: Sequence[datetime]) -> dict[Any, tuple[int, int]]:
    """(thousandths of a GPU times microseconds, waiting microseconds) by (group, span, model)."""
    sums: dict[Any, list[int]] = defaultdict(lambda: [0, 0])
    for stay in stays:
        group = tuple(stay.whose[name] for name in GROUPS[by])
        for n, (begin, end) in enumerate(pairwise(borders)):
            micros = max(min(stay.end or end, end) - max(stay.begin, begin), timedelta()) // MICROSECOND
            sums[group, n, stay.whose["model"]][0] += micros * stay.milli
            sums[group, n, stay.whose["model"]][1] += micros * stay.waits
    return {key: (reserved, waiting) for key, (reserved, waiting) in sums.items() if reserved or waiting}


def actual(tables: Tables, by: By, borders: tuple[datetime, ...]) -> dict[Any, tuple[int, int]]:
    """The same of the rows, summed up here as the statements do it in Postgres."""
    query = HoursQuery(by=by, borders=borders, projects=None)
    changed: dict[Any, dict[str, Any]] = {}
    for row in tables.rows["use_hours"].values():
        if row.hour < borders[0]:
            continue
        span, key = sum(row.hour >= border for border in borders) - 1, group_of(by, row)
        one = changed.setdefault(
            (span, key, row.gpu_model),
            named(key) | {"span": span, "model": row.gpu_model} | dict.fromkeys(NUMBERS, 0),
        )
        micros = (row.hour - EPOCH) // MICROSECOND
        one["milli"] += row.gpu_milli
        one["milli_moment"] += row.gpu_milli * micros + row.gpu_weight
        one["waiting"] += row.waiting
        one["waiting_moment"] += row.waiting * micros + row.waiting_weight
        for name in ("runs", "measured", "used"):
            one[name] += getattr(row, name)
    rates: dict[Any, dict[str, Any]] = {}
    for row in tables.rows["use_rates"].values():
        key = group_of(by, row)
        one = rates.setdefault((key, row.gpu_model), named(key) | {"model": row.gpu_model, "milli": 0, "waiting": 0})
        one["milli"] += row.gpu_milli
        one["waiting"] += row.waiting
    found = amounts(query, changed.values(), rates.values())
    return {key: (one.reserved, one.waiting) for key, one in found.items() if one.reserved or one.waiting}


NUMBERS = ("milli", "milli_moment", "waiting", "waiting_moment", "runs", "measured", "used")


def group_of(by: By, row: Any) -> tuple[str, ...]:
    columns = {"priority": "priority_class", "model": "gpu_model"}
    return tuple(getattr(row, columns.get(name, name)) for name in GROUPS[by])


def named(key: tuple[str, ...]) -> dict[str, str]:
    return {f"k{n}": value for n, value in enumerate(key)}


def borders_of(commits: Sequence[Commit], width: timedelta) -> tuple[datetime, ...]:
    """From two widths into the log to its end, which is no full hour."""
    first, last = commits[0].record.occurred_at, max(commit.record.occurred_at for commit in commits)
    begin = first.replace(minute=0, second=0, microsecond=0)
    count = min((last - begin) // width + 1, 400)
    return (*(begin + n * width for n in range(count)), max(last, begin + count * width - HOUR) + HOUR)


class Priorities(Lives):
    """Of two people, with priorities and owners that change."""

    def step(self) -> None:
        if self.keys and self.chance.random() < 0.1:
            state = self.world.state("workload", self.chance.choice(self.keys))
            change = ChangeWorkload(workload_id=state.workload_id, priority_class=self.chance.choice(("low", "high")))
            owner = self.chance.choice(("alice", "bob"))
            give = TransferWorkload(workload_id=state.workload_id, subject=owner, actor=owner)
            self._do("workload", workload_key(state.project_id, state.name), self.chance.choice((change, give)))
        if self.chance.random() < 0.1:
            self.world.later(self.chance.choice((600, 3600, 7200, 86_400)))
        super().step()

    def _do(self, aggregate: str, key: str, command: Any, actor: Actor = ALICE) -> None:
        super()._do(aggregate, key, command, self.chance.choice((ALICE, BOB)) if actor is ALICE else actor)


@settings(max_examples=draws(15), deadline=None)
@given(
    seed=st.integers(0, 2**32),
    steps=st.integers(1, 250),
    cuts=st.integers(1, 60),
    hours=st.sampled_from((1, 2, 24)),
    by=st.sampled_from(list(By)),
)
def test_sums_are_those_of_a_plain_loop_over_the_log(seed: int, steps: int, cuts: int, hours: int, by: By) -> None:
    lives = Priorities(random.Random(seed))
    for _ in range(steps):
        lives.step()
    commits, tables = lives.world.commits, Tables()
    for start in range(0, len(commits), cuts):
        tables.project(commits[start : start + cuts])
    borders = borders_of(commits, hours * HOUR)
    stays = stays_of(commits)
    assert actual(tables, by, borders) == expected(stays, by, borders)
    if len(borders) > 3:
        # Of a span in the past, too, behind which more has changed.
        assert actual(tables, by, borders[1:3]) == expected(stays, by, borders[1:3])


def in_departments(tables: Tables, sums: dict[Any, tuple[int, int]]) -> dict[Any, tuple[int, int]]:
    """Of projects, by where they stand now."""
    departments = {row.id: row.department_id for row in tables.rows["projects"].values()}
    found: dict[Any, tuple[int, int]] = {}
    for ((project_id,), span, model), (reserved, waiting) in sums.items():
        key = (departments[project_id],), span, model
        before = found.get(key, (0, 0))
        found[key] = before[0] + reserved, before[1] + waiting
    return found


async def test_statements_sum_up_the_rows_in_postgres_and_a_reader_sees_only_its_projects(
    postgres_server: PostgresServer, postgres_database: str
) -> None:
    reader_url = as_reader(postgres_database)
    await prepare(postgres_database, reader_url)
    lives, tables = Priorities(random.Random(4)), Tables()
    projects = [lives.project_id, lives.world.project("other")]
    for _ in range(300):
        lives.project_id = lives.chance.choice(projects)
        lives.step()
    commits = lives.world.commits
    tables.project(commits)
    pool, queries = await open_pool(postgres_database), Queries(reader_url)
    writer = Writer(pool, "muster_v1")
    engine = Engine(MemoryEventStore(), writer, await writer.checkpoint(), batch_commits=37)
    try:
        await engine.apply(commits)
        await engine.flush()
        borders = borders_of(commits, 6 * HOUR)
        for by in By:
            for span in (borders, borders[2:5]):
                found = await queries.within(None).use_hours(HoursQuery(by=by, borders=span, projects=None))
                assert found.seq == len(commits)
                got = {key: (one.reserved, one.waiting) for key, one in found.amounts.items()}
                wanted = actual(tables, by, span)
                if by is By.DEPARTMENT:
                    wanted = in_departments(tables, wanted)
                assert {key: sums for key, sums in got.items() if any(sums)} == wanted
        mine = queries.within(frozenset(projects[:1]))
        # The policy of the tables, without the query's own filter.
        found = await mine.use_hours(HoursQuery(by=By.PROJECT, borders=borders, projects=None))
        assert {group for group, _, _ in found.amounts} == {(projects[0],)}
        assert set(found.names) == {projects[0]}
        # One person, one project.
        both = await queries.within(None).use_hours(
            HoursQuery(by=By.USER, borders=borders, projects=None, project_id=projects[1], owners=frozenset({"bob"}))
        )
        stays = [s for s in stays_of(commits) if (s.whose["project_id"], s.whose["owner"]) == (projects[1], "bob")]
        assert {k: (o.reserved, o.waiting) for k, o in both.amounts.items() if o.reserved or o.waiting} == expected(
            stays, By.USER, borders
        )
        assert stays
    finally:
        await queries.close()
        await pool.close()


# -- one run ---------------------------------------------------------------------------------------------------------


def one_run(begin: datetime, *, gpus: int = 2) -> tuple[World, str, str]:
    """A training that got its node at `begin`, after it had waited for ten minutes."""
    world = World()
    cluster_id, project_id = world.cluster(), world.project()
    node = world.node(cluster_id, "n")
    world.now = begin - timedelta(minutes=10)
    key = world.training("one", project_id, cluster_id)
    world.now = begin
    state = world.state("workload", key)
    shares = tuple(DeviceShare(device=n, milli=1000) for n in range(gpus))
    place = Placement(pod=FIRST, node_key=node, node_name="n", pool="default", devices=shares, gpu_model="H100")
    world.do("workload", key, PlacePods(workload_id=state.workload_id, placements=(place,)), SCHEDULER)
    return world, key, node


def hours(world: World, *borders: datetime) -> list[tuple[float, float]]:
    """(GPU hours, waiting hours) of each span."""
    tables = Tables()
    tables.project(world.commits)
    found = actual(tables, By.CLUSTER, borders)
    sums = [[0.0, 0.0] for _ in borders[1:]]
    for (_, span, _), (reserved, waiting) in found.items():
        sums[span][0] += reserved / 3_600_000_000_000
        sums[span][1] += waiting / 3_600_000_000
    return [(round(reserved, 6), round(waiting, 6)) for reserved, waiting in sums]


def test_what_waited_before_its_cluster_was_chosen_was_on_none_and_what_it_holds_is_on_that_one() -> None:
    world = World()
    cluster_id, project_id = world.cluster(), world.project()
    node, key = world.node(cluster_id, "n"), workload_key(project_id, "one")
    world.now = NOON
    spec = TrainingSpec(image="i", compute=ComputeSpec(gpu_devices_request=1))
    create = CreateWorkload(
        kind="Training",
        name="one",
        requested_name="one",
        project_id=project_id,
        cluster_id="",
        among=(cluster_id,),
        spec=spec,
    )
    world.do("workload", key, create)
    world.now = NOON + HOUR / 2
    shares = (DeviceShare(device=0, milli=1000),)
    place = Placement(pod=FIRST, node_key=node, node_name="n", pool="default", devices=shares)
    id_ = world.state("workload", key).workload_id
    world.do("workload", key, PlacePods(workload_id=id_, placements=(place,), cluster_id=cluster_id), SCHEDULER)
    world.now = NOON + HOUR
    world.report(key, FIRST, "succeeded")
    tables = Tables()
    tables.project(world.commits)
    found = actual(tables, By.CLUSTER, (NOON, NOON + 2 * HOUR))
    by_cluster = {
        where: (reserved / 3_600_000_000_000, waited / 3_600_000_000)
        for (where, _, _), (reserved, waited) in found.items()
    }
    assert by_cluster == {(ANY_CLUSTER,): (0.0, 0.5), (cluster_id,): (0.5, 0.0)}


FAR = datetime(9999, 1, 1, tzinfo=UTC)
NOON = datetime(2026, 10, 24, 12, tzinfo=UTC)


def test_a_run_is_cut_exactly_at_the_borders_of_hours() -> None:
    world, key, _ = one_run(NOON + timedelta(minutes=45))
    world.now = NOON + timedelta(hours=2, minutes=15)
    world.report(key, FIRST, "succeeded")
    borders = [NOON + n * HOUR for n in range(5)]
    assert hours(world, *borders) == [(0.5, 0.166667), (2.0, 0.0), (0.5, 0.0), (0.0, 0.0)]


def test_a_run_of_ninety_days_over_a_change_of_the_clocks_costs_two_rows() -> None:
    """Hours are UTC: the night in which clocks are put back has no hour twice."""
    world, key, _ = one_run(NOON, gpus=1)
    world.now = NOON + timedelta(days=90)
    world.report(key, FIRST, "succeeded")
    borders = tuple(NOON + timedelta(days=n) for n in range(91))
    assert hours(world, *borders) == [(24.0, 0.0)] * 90
    _, changes = fold({}, world.commits)
    assert len([row for row in changes.hours.values() if row.gpu_milli]) == 2


def test_what_goes_on_counts_up_to_the_end_of_the_span() -> None:
    world, _, _ = one_run(NOON)
    assert hours(world, NOON, NOON + timedelta(minutes=30)) == [(1.0, 0.0)]
    assert hours(world, NOON, NOON + 3 * HOUR) == [(6.0, 0.0)]


def test_an_end_that_was_said_before_the_beginning_counts_nothing_and_never_less() -> None:
    """The clock of the service that heard of the end was behind."""
    world, key, _ = one_run(NOON)
    world.now = NOON - timedelta(minutes=30)
    world.report(key, FIRST, "succeeded")
    # From then on its clock is right again. The workload waited for ten minutes, by both clocks.
    assert hours(world, NOON - 2 * HOUR, NOON + 3 * HOUR) == [(0.0, 0.166667)]


@pytest.mark.parametrize("absurd", [EARLIEST, FAR])
def test_a_time_that_no_clock_has_costs_no_more_rows_and_nothing_of_others(absurd: datetime) -> None:
    world, key, node = one_run(NOON)
    other = world.training("other", world.state("workload", key).project_id, world.state("workload", key).cluster_id)
    world.now = absurd
    world.report(key, FIRST, "succeeded")
    _, changes = fold({}, world.commits)
    assert len(changes.hours) <= 6
    world.now = NOON + HOUR
    world.place([(other, FIRST, node, 5)])
    world.now = NOON + 2 * HOUR
    world.report(other, FIRST, "succeeded")
    assert hours(world, NOON + HOUR, NOON + 2 * HOUR) == [(1.0 + (2.0 if absurd is FAR else 0.0), 0.0)]


def test_a_suspended_workload_reserves_nothing_and_waits_again_once_it_is_resumed() -> None:
    world, key, _ = one_run(NOON)
    id_ = world.state("workload", key).workload_id
    world.now = NOON + HOUR
    world.do("workload", key, SuspendWorkload(workload_id=id_))
    # It holds its GPUs until its pod is gone.
    world.now = NOON + 2 * HOUR
    world.report(key, FIRST, "stopped")
    world.now = NOON + 4 * HOUR
    world.do("workload", key, ResumeWorkload(workload_id=id_))
    world.now = NOON + 5 * HOUR
    world.do("workload", key, DeleteWorkload(workload_id=id_))
    borders = [NOON + n * HOUR for n in range(7)]
    assert hours(world, *borders) == [(2.0, 0.0), (2.0, 0.0), (0.0, 0.0), (0.0, 0.0), (0.0, 1.0), (0.0, 0.0)]


def test_a_run_that_is_interrupted_ends_and_the_workload_waits_until_the_next() -> None:
    world, key, node = one_run(NOON, gpus=1)
    world.now = NOON + HOUR
    world.report(key, FIRST, "interrupted")
    world.now = NOON + 2 * HOUR
    world.place([(key, msgspec.structs.replace(FIRST, try_=1), node, 1)])
    borders = [NOON + n * HOUR for n in range(5)]
    assert hours(world, *borders) == [(1.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 0.0)]


def test_many_workloads_of_one_hour_are_one_row_for_each_whom_they_count_for() -> None:
    world = busy_world(150)
    _, changes = fold({}, world.commits)
    span = [commit.record.occurred_at for commit in world.commits]
    full = (max(span) - min(span)) // HOUR + 2
    assert len(changes.hours) <= 2 * full
    assert sum(row.runs for row in changes.hours.values()) == 150
    assert not changes.rates
