"""Which due deletions are sent, as tables; and the service against real Postgres and real deciders."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import asyncpg
import pytest

from events.cluster import RemoveCluster
from events.department import CreateDepartment, DeleteDepartment, department_key
from events.envelope import Accepted, AdmittedCommand, CommandReply
from events.ids import key_of_id, project_key
from events.project import CreateProject, DeleteProject
from events.workload.commands import ChangeWorkload, DeleteWorkload, ResumeWorkload, SuspendWorkload
from events.workload.spec import TrainingSpec
from projections.queries import Queries
from services.auto_deletion.due import RESEND_AFTER, Due, Lost, command, plan
from services.auto_deletion.service import AutoDeletion, DueRows
from services.projector.engine import open_pool
from services.projector.rebuild import rebuild
from services.projector.service import Projector
from services.runtime.log.memory import MemoryEventStore
from services.runtime.nats.bus import GateAwayError
from services.runtime.process.host import Health
from tests.support.lives import FIRST, World, feed

NOW = datetime(2026, 11, 21, 9, 0, tzinfo=UTC)
A, B = Due("a", 1), Due("b", 1)


@pytest.mark.parametrize(
    ("due", "sent", "to_send", "kept"),
    [
        ([], {}, [], {}),
        ([A, B], {}, [A, B], {A: NOW, B: NOW}),
        ([A, B], {A: NOW - timedelta(seconds=1)}, [B], {A: NOW - timedelta(seconds=1), B: NOW}),
        ([A], {A: NOW - RESEND_AFTER}, [A], {A: NOW}),
        ([], {A: NOW - RESEND_AFTER}, [], {}),
        ([Due("a", 2)], {A: NOW}, [Due("a", 2)], {A: NOW, Due("a", 2): NOW}),
        ([A, A], {}, [A], {A: NOW}),
        # The clock was put back since: by it, that was sent in the future.
        ([A, B], {A: NOW + timedelta(hours=1)}, [A, B], {A: NOW, B: NOW}),
    ],
)
def test_what_was_sent_just_now_is_not_sent_again(
    due: list[Due], sent: dict[Due, datetime], to_send: list[Due], kept: dict[Due, datetime]
) -> None:
    assert plan(due, sent, NOW, most=500) == (to_send, kept)


def test_however_many_are_due_a_tick_sends_no_more_than_it_may() -> None:
    due = [Due(f"w{number}", 1) for number in range(5000)]
    sent: dict[Due, datetime] = {}
    for tick in range(10):
        to_send, sent = plan(due, sent, NOW, most=500)
        assert to_send == due[500 * tick : 500 * (tick + 1)]
    assert plan(due, sent, NOW, most=500)[0] == []


def test_the_same_row_is_the_same_command() -> None:
    assert command(A) == command(A)
    assert command(A).command_id != command(Due("a", 2)).command_id
    assert command(A).command == DeleteWorkload(workload_id="a", generation=1)
    assert command(A).actor.kind == "service"
    left_over = command(Due("a", None))
    assert left_over.command == DeleteWorkload(workload_id="a", project_deleted=True)
    assert left_over.command_id != command(A).command_id
    stray = command(Due("a", None, "cluster"))
    assert stray.command == DeleteWorkload(workload_id="a", cluster_removed=True)
    assert len({stray.command_id, left_over.command_id, command(A).command_id}) == 3


class Plane:
    """A log, its projector, and commands that are decided at once."""

    def __init__(self, database: str) -> None:
        self.database = database
        self.world, self.store = World(), MemoryEventStore()
        self.fed = 0
        self.received: list[AdmittedCommand] = []
        self.away = False

    def feed(self) -> None:
        feed(self.store, self.world.commits[self.fed :])
        self.fed = len(self.world.commits)

    async def send(self, admitted: AdmittedCommand) -> CommandReply:
        if self.away:
            raise GateAwayError("nobody listens")
        self.received.append(admitted)
        assert isinstance(admitted.command, DeleteWorkload)
        key = key_of_id(admitted.command.workload_id)
        assert key is not None
        answer = self.world.do("workload", key, admitted.command, admitted.actor)
        assert answer is None
        self.feed()
        return Accepted(seq=self.fed)

    def finished(self, name: str, seconds: int) -> str:
        """A training that ended just now, and is to be deleted after `seconds`; its key."""
        world = self.world
        cluster_id, project_id = world.cluster(), world.project()
        node = world.node(cluster_id, "n")
        spec = TrainingSpec(image="i", auto_deletion_time_after_completion_seconds=seconds)
        key = world.training(name, project_id, cluster_id, spec)
        world.place([(key, FIRST, node, 0)])
        world.report(key, FIRST, "running")
        world.report(key, FIRST, "succeeded")
        world.release(node, tuple(world.state("node", node).reservations))
        self.feed()
        return key


@pytest.mark.anyio
async def test_due_workloads_are_deleted_once_and_never_early(prepared_database: str) -> None:
    """C3: after the time that was set, whoever was away meanwhile."""
    plane = Plane(prepared_database)
    pool, queries, health, stop = (
        await open_pool(prepared_database),
        Queries(prepared_database),
        Health("p"),
        asyncio.Event(),
    )
    projecting = asyncio.create_task(Projector(plane.store, pool, health, stop).run())
    try:
        keys = [plane.finished(f"w{n}", seconds) for n, seconds in enumerate((0, 2, 100))]
        assert await queries.wait_for(plane.fed, 60)
        deletion = AutoDeletion(DueRows(pool), plane.send)
        plane.away = True
        with pytest.raises(GateAwayError):
            await deletion.tick(plane.world.now)
        plane.away = False
        assert await deletion.tick(plane.world.now) == 1, "what nobody took is asked for again at once"
        assert await deletion.tick(plane.world.now) == 0, "sent a moment ago"
        assert await queries.wait_for(plane.fed, 60)
        plane.world.later(5)
        assert await deletion.tick(plane.world.now) == 1
        assert await deletion.tick(plane.world.now) == 0
        assert await queries.wait_for(plane.fed, 60)
        state = [plane.world.state("workload", key) for key in keys]
        assert [s.deleted_at is not None for s in state] == [True, True, False]
        assert len(plane.received) == 2
        # A changed time counts from the end; the old due row is gone, and a rebuild changes nothing.
        id_ = state[2].workload_id
        plane.world.do(
            "workload", keys[2], ChangeWorkload(workload_id=id_, auto_deletion_time_after_completion_seconds=0)
        )
        plane.feed()
        assert await queries.wait_for(plane.fed, 60)
        await rebuild(plane.store, prepared_database, lambda _, __: None)
        plane.world.later(1)
        assert await deletion.tick(plane.world.now) + await deletion.tick(plane.world.now) == 1
        assert plane.world.state("workload", keys[2]).deleted_at is not None
        assert plane.world.do("workload", keys[2], ResumeWorkload(workload_id=id_)) is not None
    finally:
        stop.set()
        await asyncio.wait_for(projecting, 60)
        pool.terminate()
        await queries.close()


@pytest.mark.anyio
async def test_what_is_left_in_a_deleted_project_or_lives_on_a_removed_cluster_is_deleted_and_nothing_of_others(
    prepared_database: str,
) -> None:
    """Of the project also what had ended before."""
    plane = Plane(prepared_database)
    pool, queries, health, stop = (
        await open_pool(prepared_database),
        Queries(prepared_database),
        Health("p"),
        asyncio.Event(),
    )
    projecting = asyncio.create_task(Projector(plane.store, pool, health, stop).run())
    try:
        world = plane.world
        cluster_id, project_id, other = world.cluster(), world.project(), world.project("other")
        ended = plane.finished("ended", 1000)
        came_in = world.training("came-in", project_id, cluster_id, TrainingSpec(image="i"))
        stays = world.training("stays", other, cluster_id, TrainingSpec(image="i"))
        elsewhere = world.cluster("elsewhere")
        suspended = world.training("suspended", other, elsewhere, TrainingSpec(image="i"))
        world.do("workload", suspended, SuspendWorkload(workload_id=world.state("workload", suspended).workload_id))
        world.do("project", key_of_id(project_id) or "", DeleteProject(project_id=project_id))
        plane.feed()
        assert await queries.wait_for(plane.fed, 60)
        deletion = AutoDeletion(DueRows(pool), plane.send)
        assert await deletion.tick(world.now) == 2
        assert [world.state("workload", key).deleted_at is not None for key in (ended, came_in, stays)] == [
            *(True, True, False),
        ]
        assert await queries.wait_for(plane.fed, 60)
        world.later(10)
        assert await deletion.tick(world.now) == 0

        world.do("cluster", key_of_id(elsewhere) or "", RemoveCluster(cluster_id=elsewhere, force=True))
        plane.feed()
        assert await queries.wait_for(plane.fed, 60)
        world.later(10)
        assert await deletion.tick(world.now) == 1
        assert world.state("workload", suspended).deleted_at is not None
        assert await queries.wait_for(plane.fed, 60)
        world.later(10)
        assert await deletion.tick(world.now) == 0
    finally:
        stop.set()
        await asyncio.wait_for(projecting, 60)
        pool.terminate()
        await queries.close()


@pytest.mark.anyio
async def test_a_project_whose_department_was_deleted_is_found_until_it_was_moved(prepared_database: str) -> None:
    plane = Plane(prepared_database)
    pool, queries, stop = await open_pool(prepared_database), Queries(prepared_database), asyncio.Event()
    projecting = asyncio.create_task(Projector(plane.store, pool, Health("p"), stop).run())
    try:
        world, key = plane.world, department_key("research")
        world.do("department", key, CreateDepartment(name="research"))
        where: dict[str, Any] = {
            "department_id": world.state("department", key).department_id,
            "department_name": "research",
        }
        world.do("project", project_key("lost"), CreateProject(name="lost", **where))
        world.do("project", project_key("safe"), CreateProject(name="safe"))
        plane.feed()
        assert await queries.wait_for(plane.fed, 60)
        rows = DueRows(pool)
        await rows.read(world.now, 10)
        assert await rows.read(world.now, 10) == []
        world.do("department", key, DeleteDepartment(department_id=where["department_id"]))
        plane.feed()
        assert await queries.wait_for(plane.fed, 60)
        lost = Lost(world.state("project", project_key("lost")).project_id, where["department_id"])
        assert await rows.read(world.now, 10) == [lost]
        world.do("project", project_key("lost"), command(lost).command)
        plane.feed()
        assert await queries.wait_for(plane.fed, 60)
        assert await rows.read(world.now, 10) == []
    finally:
        stop.set()
        await projecting
        await queries.close()
        await pool.close()


@pytest.mark.anyio
async def test_looks_for_what_is_due_read_no_workload_where_no_project_and_no_cluster_is_gone(
    prepared_database: str,
) -> None:
    """Also where the first looks were planned while there was none: they come four times a second."""
    plane = Plane(prepared_database)
    pool, queries, stop = await open_pool(prepared_database), Queries(prepared_database), asyncio.Event()
    looking = await asyncpg.connect(prepared_database)
    projecting = asyncio.create_task(Projector(plane.store, pool, Health("p"), stop).run())
    try:
        world = plane.world
        cluster_id, project_id = world.cluster(), world.project()
        plane.feed()
        assert await queries.wait_for(plane.fed, 60)
        rows = DueRows(cast("Any", looking))
        for _ in range(10):
            world.later(10)
            assert await rows.read(world.now, 10) == []
        for number in range(300):
            world.training(f"w{number}", project_id, cluster_id, TrainingSpec(image="i"))
        plane.feed()
        assert await queries.wait_for(plane.fed, 60)
        async with looking.transaction():
            for _ in range(10):
                world.later(10)
                assert await rows.read(world.now, 10) == []
            read = await looking.fetchval(
                "SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)) FROM pg_stat_xact_user_tables "
                "WHERE relname = 'workloads' AND schemaname = (SELECT schema_name FROM muster.current_projection)"
            )
        assert read == 0
    finally:
        stop.set()
        await projecting
        await queries.close()
        await looking.close()
        await pool.close()
