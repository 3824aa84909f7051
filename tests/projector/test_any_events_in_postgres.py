"""What can be decoded, Postgres holds: absurd commits on real tables, and what they say afterwards."""

import asyncio
import random
from datetime import timedelta, timezone
from typing import Any

import asyncpg
import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from msgspec.structs import replace

from events.codec import EARLIEST, LATEST
from events.commit import Commit
from events.ids import incarnation_id
from events.node import NodeFacts, NodeRegistered, PodsReserved, Reservation
from events.project import ProjectCreated
from events.workload.life import WorkloadCompleted, WorkloadCreated
from events.workload.pod import Placement, PodRef, PodRunning, PodsBound
from events.workload.spec import TrainingSpec
from projections.migrate import create_indexes, create_schema, drop_schema, next_schema_name
from projections.postgres import Pool
from projections.queries import Queries
from projections.tables import SHAPE, SUMS
from services.projector.engine import Engine, open_pool
from services.projector.expected import Expected
from services.projector.verify import Difference, verify
from services.projector.writer import Writer
from services.runtime.log.memory import MemoryEventStore
from tests.projector.conftest import Run
from tests.projector.test_projector import busy_world, until
from tests.support.any_events import CLUSTER, KEYS, NOW, PROJECT, TWO_OF, Readers, commits
from tests.support.draws import draws
from tests.support.lives import feed

pytestmark = pytest.mark.anyio

LONG = random.Random(2).randbytes(200_000).hex()
"""As much as a few fields of one message can hold, and nothing that compresses."""


async def write(url: str, log: list[Commit], *, at_once: int = 1) -> list[Difference]:
    """Fill a schema of its own with the log, so many commits in one transaction, and compare."""
    pool, connection = await open_pool(url), await asyncpg.connect(url)
    try:
        old = await connection.fetchval("SELECT schema_name FROM muster.current_projection")
        schema = await next_schema_name(connection)
        await create_schema(connection, schema)
        await create_indexes(connection, schema)
        await connection.execute("UPDATE muster.current_projection SET schema_name = $1, shape = $2", schema, SHAPE)
        await drop_schema(connection, old)
        writer, store = Writer(pool, schema), MemoryEventStore()
        feed(store, log)
        for start in range(0, len(log), at_once):
            engine = Engine(store, writer, await writer.checkpoint())  # remembers nothing: each entry is read back
            await engine.apply(log[start : start + at_once])
            await engine.flush()
        return await verify(store, url, lambda _seq, _target: None)
    finally:
        await connection.close()
        pool.terminate()


def taken(log: list[Any]) -> list[Commit]:
    """What the log holds of what was drawn, or nothing in the place of what rows cannot follow."""
    readers = Readers()
    return [readers.take(commit) for drawn in log if (commit := readers.commit(*drawn)) is not None]


@pytest.mark.filterwarnings("ignore:Generating overly large repr")
@settings(
    max_examples=draws(10),
    deadline=None,
    phases=(Phase.generate,),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
@given(drawn=st.lists(commits(), min_size=6, max_size=16))
def test_postgres_holds_whatever_can_be_decoded(prepared_database: str, drawn: list[Any]) -> None:
    log = taken(drawn)
    found = asyncio.run(write(prepared_database, log))
    if saturates(log):
        # Sums over workloads stop at the largest number, and do not come down from there by what is taken away.
        found = [one for one in found if one.table not in SUMS]
    assert found == []


def saturates(log: list[Commit]) -> bool:
    expected = Expected()
    for commit in log:
        expected.apply(commit)
    tables = expected.tables()
    numbers = [value for table in SUMS for row in tables[table].values() for value in row.values()]
    return any(abs(number) >= 2**62 for number in numbers if isinstance(number, int))


def reservation(id_: str) -> Reservation:
    return Reservation(id=id_, workload_id="w", workload_key="w", cpu_milli=1, memory_bytes=1)


def absurd() -> dict[str, list[Any]]:
    """Events on (aggregate, key), in order: each of them can be decoded, and follows."""
    facts = NodeFacts(cpu_milli=8000, memory_bytes=2**40)
    nodes = [("node", key, NodeRegistered(cluster_id=CLUSTER, name=key, facts=facts)) for key in TWO_OF["node"]]
    both = [("node", key, PodsReserved(reservations=(reservation("same"),))) for key in TWO_OF["node"]]
    named = WorkloadCreated(
        workload_id=incarnation_id(KEYS["workload"], "1"),
        name=LONG + "name",
        requested_name=LONG,
        kind="Training",
        project_id=LONG + "\x00",
        cluster_id=LONG,
        owner=LONG,
        at=EARLIEST,
        spec=TrainingSpec(image="i"),
    )
    run = PodRef(pod_set="", index=0, attempt=1, try_=0)
    placed = [
        Placement(pod=run, node_key=LONG, node_name="\x00", pool=""),
        Placement(pod=replace(run, pod_set=LONG), node_key="", node_name=LONG, pool=LONG),
        Placement(pod=replace(run, pod_set=LONG + "x"), node_key="", node_name="", pool=""),
    ]
    begun = ("workload", KEYS["workload"], named)
    return {
        "one reservation on two nodes": [*nodes, *both],
        "a reservation with a long id": [
            nodes[0],
            (*nodes[0][:2], PodsReserved(reservations=(reservation(LONG), reservation(LONG + "x")))),
        ],
        "long texts": [begun],
        "a project of a department with a long id": [
            (
                "project",
                KEYS["project"],
                ProjectCreated(project_id=PROJECT, name="p", at=NOW, department_id=LONG, department_name=LONG),
            )
        ],
        "times of the zones farthest from UTC": [
            (*begun[:2], replace(named, at=NOW.astimezone(timezone(timedelta(hours=23, minutes=59))))),
            (*begun[:2], PodsBound(placements=(placed[1],), token=1)),
            (*begun[:2], PodRunning(pod=placed[1].pod, at=NOW.astimezone(timezone(-timedelta(hours=23, minutes=59))))),
        ],
        "a workload that is created again under its own id": [begun, (*begun[:2], replace(named, owner="another"))],
        "runs of long and empty pod sets": [
            begun,
            *((*begun[:2], PodsBound(placements=(one,), token=2**63 - 1)) for one in placed),
            (*begun[:2], PodRunning(pod=placed[1].pod, at=LATEST)),
        ],
    }


@pytest.mark.parametrize("case", absurd())
async def test_an_absurd_commit_is_held_like_any_other(prepared_database: str, case: str) -> None:
    log = taken([(name, key, (event,), None, NOW) for name, key, event in absurd()[case]])
    assert len(log) == len(absurd()[case])
    assert all(commit.events for commit in log)
    for at_once in {1, len(log)}:
        assert await write(prepared_database, log, at_once=at_once) == []


@pytest.mark.parametrize(
    ("rule", "refused"),
    [
        ("workloads ADD CHECK (phase <> 'Completed')", WorkloadCompleted),
        ("reservations ADD CHECK (cpu_milli < 0)", PodsReserved),
        ("nodes ALTER COLUMN name TYPE varchar(1)", NodeRegistered),
    ],
    ids=["a rule", "a rule for a part of an atomic batch", "a length"],
)
async def test_a_commit_that_postgres_refuses_is_named_and_all_before_it_is_written(
    queries: Queries, pool: Pool, running: Run, rule: str, refused: type[Any]
) -> None:
    """No fold makes such rows today: rules that a person gave the tables stand for what nobody thought of."""
    await pool.execute("DROP SCHEMA muster_v1_past CASCADE")  # its views would hold on to the columns
    await pool.execute(f"ALTER TABLE muster_v1.{rule}")
    world, store = busy_world(3, nodes=1, at_once=3), MemoryEventStore()
    at_fault = next(commit for commit in world.commits if any(isinstance(event, refused) for event in commit.events))
    part = at_fault.record.batch
    # What a batch of the projector puts and takes away again is never seen: it ends here.
    feed(store, world.commits[: at_fault.seq])
    async with running(store) as projector:
        await until(lambda: f"message {at_fault.seq} " in projector.health.alarm, "standing")
        assert projector.health.serving
        status = await queries.status()
        assert status.seq == at_fault.seq - (1 if part is None else part.index)
        # It can be read, so no void would be taken for it.
        assert "muster log void" not in (status.halted or "")
        assert "muster projections rebuild" in (status.halted or "")
        assert "muster log void" not in projector.health.alarm
