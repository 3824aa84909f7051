"""The projector on real Postgres: exactly once, whatever dies, and loud where it must not go on."""

import asyncio
from collections.abc import AsyncGenerator, Callable

import pytest
from msgspec.structs import replace

from development.servers import EVERYTHING, NatsServer
from events.aggregate import Draft
from events.commit import Commit
from events.workload.commands import DeleteWorkload, ResumeWorkload, SuspendWorkload
from events.workload.spec import TrainingSpec
from projections.changes import Changes
from projections.filters import WorkloadQuery
from projections.postgres import Pool
from projections.queries import Queries
from projections.unanswered import ProjectionsUnavailableError
from services.projector.engine import Engine
from services.projector.service import Projector, check_same_log, current_schema
from services.projector.verify import verify
from services.projector.writer import Checkpoint, CheckpointMovedError, Writer
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.log.memory import MemoryEventStore
from services.runtime.log.store import Committed, EventStore, LogGapError
from services.runtime.nats.connection import connect
from services.runtime.process.host import Health
from tests.projections.happenings import Happenings
from tests.projector.conftest import Run
from tests.support.lives import FIRST, World, busy_world, feed, pieces

pytestmark = pytest.mark.anyio

SECONDS = 60.0


def quiet(_: int, __: int) -> None:
    """Progress that nobody looks at."""


async def reached(queries: Queries, seq: int) -> None:
    assert await queries.wait_for(seq, SECONDS), f"the tables did not reach {seq}"


async def until(condition: Callable[[], bool], what: str) -> None:
    deadline = asyncio.get_running_loop().time() + SECONDS
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"{what}: not within {SECONDS} s"
        await asyncio.sleep(0.02)


async def test_rows_in_postgres_are_what_the_log_says(database: str, queries: Queries, running: Run) -> None:
    happenings = Happenings(7)
    for _ in range(400):
        happenings.step()
    store = MemoryEventStore()
    feed(store, happenings.world.commits)
    async with running(store):
        await reached(queries, len(happenings.world.commits))
    assert await verify(store, database, quiet) == []


async def test_a_restarted_projector_goes_on_where_the_last_one_was(
    database: str, queries: Queries, running: Run
) -> None:
    world, store = busy_world(40, nodes=2, at_once=16), MemoryEventStore()
    for piece in pieces(world.commits, 30):
        feed(store, piece)
        async with running(store):
            await reached(queries, piece[-1].seq)
    assert await verify(store, database, quiet) == []


async def test_of_two_projectors_each_batch_is_written_once(database: str, queries: Queries, running: Run) -> None:
    """S: any number of projectors may run; the checkpoint's compare-and-set lets one batch through."""
    world, store = busy_world(60, nodes=4, at_once=16), MemoryEventStore()
    async with running(store), running(store):
        for piece in pieces(world.commits, 10):
            feed(store, piece)
            await asyncio.sleep(0.005)
        await reached(queries, len(world.commits))
    assert await verify(store, database, quiet) == []


async def test_the_one_that_stands_by_takes_over(database: str, queries: Queries, running: Run) -> None:
    world, store = busy_world(30, nodes=2, at_once=16), MemoryEventStore()
    half = next(n for n in range(len(world.commits) // 2, len(world.commits)) if world.commits[n - 1].ends_batch)
    async with running(store):
        async with running(store):
            for piece in pieces(world.commits[:half], 5):
                feed(store, piece)
                await asyncio.sleep(0.005)
            await reached(queries, half)
        feed(store, world.commits[half:])
        await reached(queries, len(world.commits))
    assert await verify(store, database, quiet) == []


async def test_rows_that_another_one_has_moved_on_meanwhile_are_no_lost_rows(
    pool: Pool, running: Run, queries: Queries
) -> None:
    """One that begins in the middle reads what a state lacks from rows, which the other one may have written since."""
    world, store = busy_world(8, nodes=1, at_once=8), MemoryEventStore()
    half = next(n for n in range(len(world.commits) // 2, len(world.commits)) if world.commits[n - 1].ends_batch)
    feed(store, world.commits[:half])
    async with running(store):
        await reached(queries, half)
    writer = Writer(pool, await current_schema(pool))
    late = Engine(store, writer, await writer.checkpoint())
    feed(store, world.commits[half:])
    async with running(store):
        await reached(queries, len(world.commits))
    with pytest.raises(CheckpointMovedError):
        await late.apply(world.commits[half:])


async def test_a_writer_whose_checkpoint_was_moved_writes_nothing(pool: Pool, running: Run, queries: Queries) -> None:
    world, store = busy_world(8, nodes=1, at_once=8), MemoryEventStore()
    writer = Writer(pool, await current_schema(pool))
    late = Engine(store, writer, await writer.checkpoint())
    feed(store, world.commits)
    async with running(store):
        await reached(queries, len(world.commits))
    await late.apply(world.commits)
    with pytest.raises(CheckpointMovedError):
        await late.flush()
    assert (await queries.count(everything())).count == 8


async def test_an_evicted_entry_is_read_back_as_it_was(database: str, pool: Pool) -> None:
    world, store = busy_world(24, nodes=3, at_once=12), MemoryEventStore()
    feed(store, world.commits)
    writer = Writer(pool, await current_schema(pool))
    engine = Engine(store, writer, await writer.checkpoint(), cached_entries=2, batch_commits=3)
    await engine.apply(world.commits)
    await engine.flush()
    assert await verify(store, database, quiet) == []


async def test_postgres_connections_that_die_only_delay(
    database: str, pool: Pool, queries: Queries, running: Run
) -> None:
    world, store = busy_world(40, nodes=2, at_once=16), MemoryEventStore()
    async with running(store):
        for piece in pieces(world.commits, 20):
            feed(store, piece)
            await asyncio.sleep(0.01)
            await pool.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
                "AND application_name = 'muster-projector' AND pid <> pg_backend_pid()"
            )
        await reached(queries, len(world.commits))
    assert await verify(store, database, quiet) == []


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda commits: commits[:5] + [replace(commit, seq=commit.seq + 1) for commit in commits[5:]], "LogGapError"),
        (lambda commits: [*commits[:-1], replace(commits[-1], aggregate="moon")], "KeyError"),
    ],
)
async def test_what_cannot_be_followed_halts_loudly_and_skips_nothing(
    queries: Queries, running: Run, spoil: Callable[[list[Commit]], list[Commit]], says: str
) -> None:
    world, store = busy_world(2, nodes=1, at_once=2), MemoryEventStore()
    feed(store, spoil(world.commits))
    async with running(store) as projector:
        await until(lambda: says in projector.health.reason, "halted")
        assert "rebuild" in projector.health.reason
        assert not projector.health.serving
        async with asyncio.timeout(60):
            # It is written down after it is said.
            while (status := await queries.status()).halted is None:
                await asyncio.sleep(0.02)
        assert says in status.halted
        assert status.seq < len(world.commits)


async def test_it_stands_before_a_commit_that_the_rows_cannot_follow_with_all_before_it_written(
    queries: Queries, running: Run
) -> None:
    world, store = busy_world(2, nodes=1, at_once=2), MemoryEventStore()
    last = world.commits[-1]
    broken = replace(last, record=replace(last.record, parent_seq=1, batch=None))
    feed(store, [*world.commits[:-1], broken])
    async with running(store) as projector:
        await until(lambda: f"message {broken.seq} " in projector.health.alarm, "standing")
        status = await queries.status()
        assert f"muster log void {broken.seq} " in (status.halted or "")
        assert status.seq == broken.seq - 1


async def test_another_log_halts_and_a_restored_one_too(queries: Queries, running: Run) -> None:
    first, store = busy_world(3, nodes=1, at_once=3), MemoryEventStore()
    feed(store, first.commits)
    async with running(store):
        await reached(queries, len(first.commits))
    other = MemoryEventStore()
    feed(other, [replace(c, record=replace(c.record, commit_id="other")) for c in first.commits])
    async with running(other) as projector:
        await until(lambda: "another log" in projector.health.reason, "halted")
    async with running(MemoryEventStore()) as projector:
        await until(lambda: "another log" in projector.health.reason, "halted at a log that is too short")
    async with running(store) as projector:
        await until(lambda: projector.health.serving, "serves again")
    assert (await queries.status()).halted is None


def test_a_log_whose_commit_at_the_checkpoint_is_another_one_is_another_log() -> None:
    first, second, *_ = busy_world(3, nodes=1, at_once=3).commits
    check_same_log(second, second.seq, second.record.commit_id)
    for commit in (replace(second, record=replace(second.record, commit_id="other")), first):
        with pytest.raises(LogGapError, match="another log, or it was restored"):
            check_same_log(commit, second.seq, second.record.commit_id)


async def test_a_database_that_is_not_prepared_is_unavailable(postgres_database: str) -> None:
    queries = Queries(postgres_database)
    try:
        with pytest.raises(ProjectionsUnavailableError):
            await queries.status()
    finally:
        await queries.close()


async def test_the_history_reads_like_sentences(queries: Queries, running: Run) -> None:
    world, store = World(), MemoryEventStore()
    cluster_id, project_id = world.cluster(), world.project()
    node = world.node(cluster_id, "n1")
    key = world.training("train", project_id, cluster_id, TrainingSpec(image="x", backoff_limit=1))
    world.later(1)
    world.place([(key, FIRST, node, 0)])
    world.later(1)
    world.report(key, FIRST, "running")
    world.later(65)
    world.report(key, FIRST, "failed", exit_code=1)
    id_ = world.state("workload", key).workload_id
    world.do("workload", key, SuspendWorkload(workload_id=id_))
    world.do("workload", key, ResumeWorkload(workload_id=id_))
    world.do("workload", key, DeleteWorkload(workload_id=id_))
    feed(store, world.commits)
    async with running(store):
        await reached(queries, len(world.commits))
    page = await queries.history(id_, limit=100)
    assert [(row["phase"], row["message"]) for row in page.rows] == [
        (
            "Creating",
            "submitted by alice: training 'train', 1 pod with no resource requests; priority low, preemptible",
        ),
        ("Pending", "queued: the scheduler looks for a node"),
        ("Initializing", "bound pod main-0 to node n1 with GPU 0"),
        ("Running", "run 1 of pod main-0 is running on node n1"),
        (
            "Pending",
            "run 1 of pod main-0 ended with exit code 1 after 1 min 5 s; next run in 1 s (retry 1 of at most 1)",
        ),
        ("Pending", "suspended by alice; no pod holds a node"),
        ("Stopped", "stopped: its pods are gone and it holds no node; resume it to go on"),
        ("Resuming", "resumed by alice: attempt 2 begins, with a fresh budget of retries"),
        ("Resuming", "deletion asked for by alice; no pod holds a node"),
        ("Resuming", "deleted: its name is free again, its record stays readable"),
    ]
    assert page.rows[4]["details"]["exit_code"] == 1
    assert page.next is None
    second = await queries.history(id_, offset=1, limit=2)
    assert [row["type"] for row in second.rows] == ["WorkloadQueued", "PodsBound"]
    assert second.next == 3


async def test_on_jetstream_a_commit_becomes_a_row(
    database: str, fresh_log: NatsServer, queries: Queries, running: Run
) -> None:
    nc = await connect(fresh_log.settings(EVERYTHING), EVERYTHING)
    try:
        store: EventStore = JetStreamEventStore(nc)
        world = busy_world(20, nodes=2, at_once=16)
        async with running(store):
            await append_all(store, world)
            await reached(queries, len(world.commits))
        assert await verify(store, database, quiet) == []
        async with running(store) as projector:
            await until(lambda: projector.health.serving, "it serves again, on the log that it knows")
    finally:
        await nc.close()


async def append_all(store: EventStore, world: World) -> None:
    """The world's commits through the store's own guards, batches as batches."""
    held: list[Draft] = []
    for commit in world.commits:
        record = replace(commit.record, batch=None)
        held.append(Draft(aggregate=commit.aggregate, key=commit.key, record=record, events=commit.events))
        if commit.ends_batch:
            assert isinstance(await store.append_batch(held), Committed)
            held = []


def everything() -> WorkloadQuery:
    return WorkloadQuery(projects=None)


async def test_what_comes_while_a_batch_is_written_is_taken_in_together(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction is a dozen questions to Postgres: where much comes, rows would fall behind by many small ones."""
    world, store = busy_world(40, nodes=2, at_once=16), MemoryEventStore()
    feed(store, world.commits)
    first, *others = pieces(world.commits, 12)
    go_on, all_came, write = asyncio.Event(), asyncio.Event(), Writer.write

    async def held_up(writer: Writer, changes: Changes, old_seq: int, new: Checkpoint) -> None:
        await go_on.wait()
        await write(writer, changes, old_seq, new)

    async def arrivals() -> AsyncGenerator[list[Commit]]:
        for piece in (first, *others):
            yield list(piece)
        all_came.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Writer, "write", held_up)
    writer = Writer(pool, await current_schema(pool))
    engine = Engine(store, writer, await writer.checkpoint())
    projector = Projector(store, pool, Health("projector"), asyncio.Event())
    taken = projector._until_stopped(arrivals(), engine)
    await engine.apply(await anext(taken))
    gathering = asyncio.ensure_future(anext(taken))
    await asyncio.wait_for(all_came.wait(), SECONDS)
    go_on.set()
    together = await asyncio.wait_for(gathering, SECONDS)
    await engine.apply(together)
    await engine.flush()
    await taken.aclose()
    assert len(others) > 2
    assert together == [commit for piece in others for commit in piece]
    assert (await writer.checkpoint()).seq == world.commits[-1].seq
