"""Budgets are measured from real tables and decided by real deciders: once, whoever measures."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

import pytest

from events.budgets import Budget, NoteBudgetUse, RemoveBudget, SetBudget, period_of
from events.commit import service_actor
from events.envelope import Accepted, AdmittedCommand, CommandReply
from events.ids import key_of_id, project_key
from events.prices import ANY_MODEL, PRICES_KEY, RemovePrice, SetPrice
from projections.queries import Queries
from services.auto_deletion import budgets
from services.auto_deletion.budgets import BudgetRows, Budgets, Held, to_tell
from services.projector.engine import open_pool
from services.projector.service import Projector
from services.runtime.log.memory import MemoryEventStore
from services.runtime.process.host import Health
from tests.support.lives import BEGIN, FIRST, World, feed

HOUR = 3600


def held(budget: Budget, **used: int) -> Held:
    return Held(project_id="p", version=7, budget=budget, **used)


@pytest.mark.parametrize(
    ("one", "told"),
    [
        (held(Budget(gpu_milli_hours=1000), milli_hours=799, cost_micros=10**9), None),
        (held(Budget(gpu_milli_hours=1000), milli_hours=800), 800),
        (held(Budget(micros=1000, currency="EUR"), milli_hours=10**9, cost_micros=799), None),
        (held(Budget(micros=1000, currency="EUR"), cost_micros=800), 800),
        (held(Budget(gpu_milli_hours=1000, period=period_of(BEGIN), warned=True), milli_hours=900), None),
        (held(Budget(gpu_milli_hours=0), milli_hours=-5), 0),
    ],
)
def test_only_what_changes_anything_is_told(one: Held, told: int | None) -> None:
    commands = to_tell([one], BEGIN)
    assert [command.command.used for command in commands.values()] == ([] if told is None else [told])  # pyright: ignore[reportAttributeAccessIssue]


def test_two_who_measure_the_same_give_the_same_command() -> None:
    one, later = (held(Budget(gpu_milli_hours=1), milli_hours=used) for used in (5, 6))
    assert to_tell([one], BEGIN)["p"].command_id == to_tell([later], BEGIN)["p"].command_id


class Plane:
    """A log, its projector, and commands that are decided at once."""

    def __init__(self) -> None:
        self.world, self.store = World(), MemoryEventStore()
        self.fed = 0

    def feed(self) -> None:
        feed(self.store, self.world.commits[self.fed :])
        self.fed = len(self.world.commits)

    def do(self, aggregate: str, key: str, command: object) -> None:
        assert self.world.do(aggregate, key, command) is None
        self.feed()

    async def last_seq(self) -> int:
        return self.fed

    async def send(self, admitted: AdmittedCommand) -> CommandReply:
        assert isinstance(admitted.command, NoteBudgetUse)
        key = key_of_id(admitted.command.project_id)
        assert key is not None
        before = self.fed
        assert self.world.do("project", key, admitted.command, service_actor("auto_deletion")) is None
        self.feed()
        return Accepted(seq=self.fed, changed=self.fed > before)

    def budget(self, project: str = "default") -> Budget:
        return self.world.state("project", project_key(project)).budget

    def clock(self) -> datetime:
        return self.world.now


@asynccontextmanager
async def measuring(plane: Plane, database: str) -> AsyncGenerator[tuple[Budgets, BudgetRows, Queries]]:
    pool, queries, stop = await open_pool(database), Queries(database), asyncio.Event()
    projecting = asyncio.create_task(Projector(plane.store, pool, Health("p"), stop).run())
    try:
        rows = BudgetRows(pool)
        yield Budgets(rows, plane.last_seq, plane.send), rows, queries
    finally:
        stop.set()
        await projecting
        await queries.close()
        await pool.close()


@pytest.mark.anyio
async def test_hours_and_money_of_a_month_exhaust_budgets_once(prepared_database: str) -> None:
    plane = Plane()
    world = plane.world
    async with measuring(plane, prepared_database) as (budgets, rows, queries):
        cluster, project, other = world.cluster(), world.project(), world.project("other")
        node = world.node(cluster, "n")
        world.later(1800)
        for number, of in enumerate((project, other)):
            key = world.training(f"w{number}", of, cluster)
            world.place([(key, FIRST, node, number)])
        plane.feed()
        assert await budgets.measure(plane.clock) == 0, "nobody has a budget"
        plane.do("prices", PRICES_KEY, SetPrice(gpu_model=ANY_MODEL, micros=2_000_000, currency="EUR"))
        plane.do(
            "prices",
            PRICES_KEY,
            SetPrice(gpu_model=ANY_MODEL, micros=4_000_000, currency="EUR", holds_from=BEGIN + timedelta(hours=1)),
        )
        plane.do("project", project_key("default"), SetBudget(project_id=project, gpu_milli_hours=2000))
        plane.do("project", project_key("other"), SetBudget(project_id=other, micros=5_000_000, currency="EUR"))

        world.later(HOUR)
        # Half an hour at 2, and half an hour at 4.
        assert [(one.milli_hours, one.cost_micros) for one in await _measured(plane, rows, queries)] == [
            (1000, 3_000_000)
        ] * 2
        assert await budgets.measure(plane.clock) == 0
        world.later(HOUR)
        # Two at once, which both saw the tables as they were.
        both = await asyncio.gather(*(budgets.measure(plane.clock) for _ in range(2)))
        assert sum(both) >= 2
        assert plane.budget().exhausted
        assert plane.budget("other").exhausted, "half an hour at 2, and one and a half at 4, are 7"
        said = [type(event).__name__ for commit in world.commits for event in commit.events]
        assert (said.count("BudgetWarned"), said.count("BudgetExhausted")) == (2, 2)
        assert await queries.wait_for(plane.fed, 60)
        assert await budgets.measure(plane.clock) == 0

        plane.do("project", project_key("other"), RemoveBudget(project_id=other))
        world.now = BEGIN.replace(month=4, day=1, hour=0) + timedelta(hours=1)
        assert await budgets.measure(plane.clock) == 1, "a new month"
        assert not plane.budget().exhausted


async def _measured(plane: Plane, rows: BudgetRows, queries: Queries) -> list[Held]:
    """By one statement, and project by project, as where prices change often."""
    assert await queries.wait_for(plane.fed, 60)
    held = await rows.measure(plane.clock())
    with pytest.MonkeyPatch.context() as few:
        few.setattr(budgets, "SUMS_AT_ONCE", 1)
        assert await rows.measure(plane.clock()) == held
    return held


@pytest.mark.anyio
async def test_tables_that_are_behind_are_not_measured_by(
    prepared_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run may have ended long ago, in a commit that they lack."""
    monkeypatch.setattr(budgets, "BEHIND_SECONDS", 0.2)
    plane = Plane()
    async with measuring(plane, prepared_database) as (_, rows, queries):
        project = plane.world.project()
        plane.do("project", project_key("default"), SetBudget(project_id=project, gpu_milli_hours=0))
        assert await queries.wait_for(plane.fed, 60)

        async def further() -> int:
            return plane.fed + 1

        with pytest.raises(TimeoutError):
            await Budgets(rows, further, plane.send).measure(plane.clock)
        assert not plane.budget().exhausted


@pytest.mark.anyio
async def test_tables_that_lag_for_seconds_are_waited_for(prepared_database: str) -> None:
    plane = Plane()
    async with measuring(plane, prepared_database) as (_, rows, queries):
        project = plane.world.project()
        plane.do("project", project_key("default"), SetBudget(project_id=project, gpu_milli_hours=0))
        assert await queries.wait_for(plane.fed, 60)
        next_seq = plane.fed + 1

        async def further() -> int:
            return next_seq

        measurement = asyncio.create_task(Budgets(rows, further, plane.send).measure(plane.clock))
        await asyncio.sleep(2.2)
        assert not measurement.done()
        plane.do("prices", PRICES_KEY, SetPrice(gpu_model="H100", micros=7, currency="EUR"))
        assert await asyncio.wait_for(measurement, 60) == 1
        assert plane.budget().exhausted


@pytest.mark.anyio
async def test_the_row_of_prices_is_what_the_state_says(prepared_database: str) -> None:
    plane = Plane()
    async with measuring(plane, prepared_database) as (_, rows, queries):
        project = plane.world.project()
        plane.do("prices", PRICES_KEY, SetPrice(gpu_model="H100", micros=7, currency="EUR"))
        plane.do("prices", PRICES_KEY, RemovePrice(gpu_model="H100"))
        plane.do("project", project_key("default"), SetBudget(project_id=project, micros=1, currency="EUR"))
        (one,) = await _measured(plane, rows, queries)
        assert one.budget == plane.budget()
        async with rows._pool.acquire(timeout=5) as connection:
            schema = await connection.fetchval("SELECT schema_name FROM muster.current_projection")
            assert await budgets._prices(connection, schema) == plane.world.state("prices", PRICES_KEY)
