"""The scheduler on a log: in memory, and on a real NATS. Alone, twice at once, killed and started again."""

import asyncio
import contextlib
import gc
import random
import time
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import override

import pytest
from msgspec import structs

from development.checker.log import Report, check
from development.checker.records import RawMessage
from development.servers import EVERYTHING, NatsServer
from development.streams import recreate_streams
from events.aggregate import Draft
from events.codec import encode_commit
from events.ids import cluster_key
from events.maintenance import PlanMaintenance
from events.node import NodeFacts
from events.refusal import Refusal
from events.subjects import aggregate_subject
from events.workload.commands import ChangeWorkload, DeleteWorkload, SuspendWorkload
from services.runtime.log.fold_snapshots import FoldSnapshots
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.log.memory import MemoryEventStore
from services.runtime.log.store import EventStore, Outcome
from services.runtime.nats.connection import connect
from services.runtime.process.host import Health
from services.scheduler import service
from services.scheduler.batches import BATCH_PODS, Heads, mark_drafts
from services.scheduler.fold import SchedulingState
from services.scheduler.service import APPENDS_IN_FLIGHT, BATCH_MESSAGES, MANY_UPDATES, Scheduler
from services.scheduler.snapshot import NodeMark, Plan
from tests.support import openb
from tests.support.people import People, commits_of, in_flight

pytestmark = pytest.mark.anyio

WAIT_SECONDS = 60.0
NODE = NodeFacts(cpu_milli=32_000, memory_bytes=2**38, gpu_count=8, gpu_memory_bytes=2**36)


@dataclass
class Running:
    """Schedulers that run until they are killed."""

    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    schedulers: list[Scheduler] = field(default_factory=list)

    def start(
        self,
        store: EventStore,
        *,
        snapshots: FoldSnapshots | None = None,
        clock: Callable[[], datetime] = service.utc_now,
    ) -> Scheduler:
        scheduler = Scheduler(store, SchedulingState(), snapshots=snapshots, clock=clock)
        self.schedulers.append(scheduler)
        self.tasks.append(asyncio.create_task(scheduler.run(asyncio.Event())))
        return scheduler

    async def kill(self) -> None:
        """Without a chance to clean up anything but its task."""
        for task in self.tasks:
            if task.done():
                task.result()
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.tasks.clear()


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    running = Running()
    yield running
    await running.kill()


@dataclass
class Log:
    """A log with a way to open stores on it."""

    stores: list[EventStore]
    people: People

    async def check(self) -> Report:
        commits = await commits_of(self.people.store)
        messages = (RawMessage(c.seq, aggregate_subject(c.aggregate, c.key), encode_commit(c.record)) for c in commits)
        return check(messages, self.people.submitted, stand_ins=True)


@pytest.fixture(params=["memory", "nats"])
async def log(request: pytest.FixtureRequest) -> AsyncIterator[Log]:
    async with contextlib.AsyncExitStack() as stack:
        if request.param == "memory":
            memory = MemoryEventStore()
            log = Log([memory, memory], People(memory))
        else:
            server: NatsServer = request.getfixturevalue("nats_server")
            await recreate_streams(server.settings(EVERYTHING))
            clients = [await connect(server.settings("scheduler"), "scheduler", suffix=str(n)) for n in range(2)]
            clients.append(await connect(server.settings(EVERYTHING), EVERYTHING))
            for client in clients:
                stack.push_async_callback(client.close)
            log = Log([JetStreamEventStore(c) for c in clients[:2]], People(JetStreamEventStore(clients[2])))
        await log.people.cluster()
        await log.people.connect()
        await log.people.project()
        yield log


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            while not await condition():
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"not within {WAIT_SECONDS} s: {what}") from None


async def bindings(log: Log, count: int) -> Report:
    async def enough() -> bool:
        return (await log.check()).bindings >= count

    await until(enough, f"{count} bindings")
    return await log.check()


async def test_a_submitted_workload_is_bound_and_its_node_is_released_after_it(log: Log, running: Running):
    running.start(log.stores[0])
    await log.people.node("a", NODE)
    key = await log.people.submit("w", gpu_devices_request=2)
    await bindings(log, 1)
    state = await log.people.workload(key)
    assert state.phase == "Initializing"
    assert [share.device for share in state.pods["main", 0].devices] == [0, 1]
    await log.people.fact(key, "succeeded")

    async def released() -> bool:
        return (await log.check()).releases == 1

    await until(released, "the release")
    report = await log.check()
    assert not report.violations
    assert report.left_reserved == 0


async def test_two_schedulers_at_once_bind_everything_exactly_once(log: Log, running: Running):
    for store in log.stores:
        running.start(store)
    await log.people.nodes({f"n{n}": NODE for n in range(10)})
    await in_flight([log.people.submit(f"w{n}", gpu_devices_request=1) for n in range(80)])
    report = await bindings(log, 80)
    assert not report.violations
    assert report.bindings == 80
    assert report.left_reserved == 80


async def test_people_and_facts_in_between_only_delay_what_they_touch(log: Log, running: Running):
    for store in log.stores:
        running.start(store)
    # Room for all at once: what is bound before its suspension or deletion comes keeps its GPUs until the end.
    await log.people.nodes({f"n{n}": NODE for n in range(30)})
    chance = random.Random(7)

    async def life(n: int) -> None:
        key = await log.people.submit(f"w{n}", gpu_devices_request=chance.randint(1, 4))
        if n % 5 == 0:
            await log.people.command(key, DeleteWorkload)
            return
        if n % 7 == 0:
            await log.people.command(key, SuspendWorkload)

        async def placed() -> bool:
            return bool((await log.people.workload(key)).pods)

        if n % 7:
            await until(placed, f"w{n} to be placed")
            await log.people.fact(key, "succeeded")

    await in_flight([life(n) for n in range(60)], at_once=12)
    # What was bound before its suspension or deletion came is told to go: its cluster would report that it is gone.
    for name in log.people.submitted:
        key = log.people.key_of(name)
        if (await log.people.workload(key)).pods.get(("main", 0)) is not None:
            await log.people.fact(key, "stopped")

    async def at_rest() -> bool:
        report = await log.check()
        return report.left_reserved == 0 and report.left_live == 0

    await until(at_rest, "all reservations to be released")
    report = await log.check()
    assert not report.violations
    assert len(report.completed) == sum(1 for n in range(60) if n % 5 and n % 7)


async def test_killed_in_the_middle_the_next_one_carries_on(log: Log, running: Running):
    await log.people.nodes({f"n{n}": NODE for n in range(8)})
    chance = random.Random(3)
    submitting = asyncio.create_task(
        in_flight([log.people.submit(f"w{n}", gpu_devices_request=1) for n in range(60)], at_once=4)
    )
    for _ in range(6):
        running.start(log.stores[0])
        await asyncio.sleep(chance.uniform(0.005, 0.05))
        await running.kill()
    await submitting
    running.start(log.stores[1])
    report = await bindings(log, 60)
    assert not report.violations
    assert report.bindings == report.left_reserved == 60


async def test_a_clock_that_is_set_forward_while_a_retry_waits_is_noticed_though_nothing_happens(running: Running):
    log = Log([], People(MemoryEventStore()))
    await log.people.cluster()
    await log.people.connect()
    await log.people.project()
    await log.people.node("a", NODE)
    ahead = timedelta(minutes=10)  # so that the first waits are over at once
    running.start(log.people.store, clock=lambda: datetime.now(UTC) + ahead)
    key = await log.people.submit("w")
    for count in range(1, 11):
        await bindings(log, count)
        if count == 10:
            ahead = timedelta()
        await log.people.fact(key, "interrupted")

    async def waits() -> bool:
        return (await log.people.workload(key)).reason == "backoff"

    await until(waits, "the wait of five minutes")
    ahead = timedelta(minutes=10)
    await bindings(log, 11)


async def test_nodes_are_taken_out_and_come_back_when_their_time_comes_though_nothing_happens(
    log: Log, running: Running
):
    """Of two schedulers at once: each thing is done once (issue 14 section 2)."""
    keys = [await log.people.node(name, NODE) for name in ("a", "b", "c")]
    ahead = timedelta()
    starts = datetime.now(UTC) + timedelta(hours=1)
    command = PlanMaintenance(
        cluster_id=log.people.cluster_id,
        name="firmware",
        starts_at=starts,
        ends_at=starts + timedelta(hours=1),
        node_pools=("default",),
        new=True,
    )
    await log.people.do("cluster", cluster_key("local"), command)
    for store in log.stores:
        running.start(store, clock=lambda: datetime.now(UTC) + ahead)
    await log.people.submit("soft")
    await bindings(log, 1)

    async def told() -> list[str]:
        commits = await commits_of(log.people.store)
        return sorted(
            type(event).__name__
            for commit in commits
            if commit.key in keys
            for event in commit.events
            if type(event).__name__.startswith(("NodeCordoned", "NodeDrainStarted", "NodeUncordoned"))
        )

    async def out() -> bool:
        return await told() == ["NodeCordoned"] * 3 + ["NodeDrainStarted"] * 3

    async def back() -> bool:
        return (await told())[6:] == ["NodeUncordoned"] * 3

    assert not await told()
    ahead = timedelta(hours=1, seconds=1)
    await until(out, "three nodes that are out")
    ahead = timedelta(hours=2, seconds=1)
    await until(back, "three nodes that are back")
    assert not (await log.check()).violations


async def test_many_that_wait_for_the_same_are_told_so_in_one_batch(log: Log, running: Running):
    keys = [await log.people.submit(f"w{n}", gpu_devices_request=1) for n in range(20)]
    running.start(log.stores[0])

    async def all_wait() -> bool:
        return all([(await log.people.workload(key)).reason for key in keys])

    await until(all_wait, "a reason for each")
    told = [commit.record.batch for commit in await commits_of(log.people.store) if commit.key in keys][len(keys) :]
    assert [part.count for part in told if part is not None] == [len(keys)] * len(keys)
    assert not (await log.check()).violations


class Slow(MemoryEventStore):
    """A log that takes its time for a batch, in which people do something."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], Awaitable[object]] | None = None
        self.batches = 0

    @override
    async def append_batch(self, drafts: Sequence[Draft], *, deadline_seconds: float = 5.0) -> Outcome:
        self.batches += 1
        await asyncio.sleep(0.05)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        return await super().append_batch(drafts, deadline_seconds=deadline_seconds)


async def test_what_is_suspended_while_the_batch_before_its_own_is_stored_is_not_bound(running: Running):
    """Given more workloads than one batch takes, when one of the second batch is suspended while the first is being
    stored, and the second one is decided, then that one is not bound, and all others are.
    """
    store = Slow()
    people = People(store)
    await people.cluster()
    await people.connect()
    await people.project()
    many = range(BATCH_MESSAGES)
    await people.nodes({f"n{n:03}": NODE for n in range(BATCH_MESSAGES // NODE.gpu_count + 1)})
    keys = [await people.submit(f"w{n:03}", gpu_devices_request=1) for n in many]
    store.meanwhile = lambda: people.command(keys[-1], SuspendWorkload)
    running.start(store)

    async def all_but_one() -> bool:
        return sum([bool((await people.workload(key)).pods) for key in keys]) == len(keys) - 1

    await until(all_but_one, "all others to be bound")
    assert store.batches > 1
    assert not (await people.workload(keys[-1])).pods
    assert not (await Log([store], people).check()).violations


class Waits(MemoryEventStore):
    """A log that stores a batch once another one is on its way, or once nobody else can go on."""

    def __init__(self) -> None:
        super().__init__()
        self.together = list[tuple[set[str], set[str]]]()
        """Keys of batches that were on their way at the same time."""
        self.under_way = list[set[str]]()

    @override
    async def append_batch(self, drafts: Sequence[Draft], *, deadline_seconds: float = 5.0) -> Outcome:
        mine = {draft.key for draft in drafts}
        self.together += [(other, mine) for other in self.under_way]
        self.under_way.append(mine)
        for _ in range(1_000):
            await asyncio.sleep(0)
        self.under_way.remove(mine)
        return await super().append_batch(drafts, deadline_seconds=deadline_seconds)


@pytest.mark.parametrize("gpus", [1, 3], ids=["nodes apart", "nodes shared"])
async def test_batches_are_stored_at_the_same_time_where_they_share_no_workload_and_no_node(gpus: int):
    """Given more workloads than three batches take, when a plan is stored, then batches are on their way together, but
    never two with the same node or workload, and everything is bound by that one plan.
    """
    store, fold = Waits(), SchedulingState()
    people = People(store)
    await people.cluster()
    await people.connect()
    await people.project()
    many = 3 * BATCH_MESSAGES
    await people.nodes({f"n{n:03}": NODE for n in range(many * gpus // NODE.gpu_count + many // 4)})
    keys = [await people.submit(f"w{n:03}", gpu_devices_request=gpus) for n in range(many)]
    for commit in await commits_of(store):
        fold.apply(commit)
    await Scheduler(store, fold).cycle()
    assert all([(await people.workload(key)).pods for key in keys])
    assert store.together
    assert all(one.isdisjoint(other) for one, other in store.together)
    assert not (await Log([store], people).check()).violations


async def test_a_batch_that_shares_a_node_with_one_that_is_refused_is_decided_on_what_is_left(running: Running):
    """Given a workload whose pods take several batches, when another writes one of its nodes while the first is being
    stored, then the plan is stored only partly, and the next one binds the rest.
    """
    store = Slow()
    people = People(store)
    await people.cluster()
    await people.connect()
    await people.project()
    many = BATCH_PODS + 100
    await people.nodes({f"n{n:03}": NODE for n in range(many // NODE.gpu_count + 1)})
    key = await people.submit("w", gpu_devices_request=1, parallelism=many, completions=many)
    store.meanwhile = lambda: people.node("n000", structs.replace(NODE, labels={"zone": "b"}))
    running.start(store)

    async def all_of_it() -> bool:
        return len((await people.workload(key)).pods) == many

    await until(all_of_it, "a node for each pod")
    assert store.batches > 2
    assert not (await Log([store], people).check()).violations


class FullDisk(MemoryEventStore):
    """A log whose disk takes no commit of a scheduler for now, and does not say so."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = 0
        self.full = False

    async def append(self, draft: Draft, *, deadline_seconds: float = 5.0) -> Outcome:
        if self.full:
            self.waiting += 1
            await asyncio.Event().wait()
        return await super().append(draft, deadline_seconds=deadline_seconds)


async def test_what_meets_a_conflict_while_it_is_told_anew_is_told_again():
    """Given two that wait for another reason by now, when somebody changes one of them while both are told, then both
    are told with one of the next plans, though nothing else happens.
    """
    store, now = Slow(), datetime.now(UTC)
    people, fold = People(store), SchedulingState()
    await people.cluster()
    await people.connect()
    await people.project()
    keys = [await people.submit(f"w{n}", gpu_devices_request=8) for n in range(2)]
    scheduler = Scheduler(store, fold, clock=lambda: now)
    read = 0

    async def cycle() -> None:
        nonlocal read
        for commit in await commits_of(store):
            if commit.seq > read:
                fold.apply(commit)
                read = commit.seq
        await scheduler.cycle()

    async def reasons() -> set[str]:
        return {(await people.workload(key)).reason for key in keys}

    await cycle()
    assert await reasons() == {"no_nodes"}
    await people.node("small", NodeFacts(cpu_milli=32_000, memory_bytes=2**38, gpu_count=1))
    now += timedelta(seconds=11)
    store.meanwhile = partial(people.command, keys[0], ChangeWorkload, auto_deletion_time_after_completion_seconds=5)
    await cycle()
    assert await reasons() == {"no_nodes"}, "nothing of a batch with a conflict is in the log"
    for _ in range(3):
        await cycle()
    assert await reasons() == {"no_matching_node"}


async def test_killed_while_more_commits_wait_than_may_be_in_flight_it_leaves_none_half_begun(running: Running):
    """A commit that never had its turn was a coroutine that nobody awaited: a warning, which is an error in tests."""
    store = FullDisk()
    people = People(store)
    await people.cluster()
    await people.connect()
    await people.project()
    many = range(APPENDS_IN_FLIGHT + 6)
    await people.nodes({f"n{n}": NODE for n in many})
    keys = [await people.submit(f"w{n}", gpu_devices_request=NODE.gpu_count) for n in many]
    running.start(store)

    async def all_bound() -> bool:
        return all([(await people.workload(key)).phase == "Initializing" for key in keys])

    await until(all_bound, "one workload on each node")
    await running.kill()
    await in_flight([people.fact(key, "succeeded") for key in keys])
    store.full = True
    running.start(store)  # and each node is to be released

    async def all_wait() -> bool:
        return store.waiting == APPENDS_IN_FLIGHT

    await until(all_wait, "as many commits as may be in flight")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        await running.kill()
        gc.collect()
    assert [str(one.message) for one in warned if "never awaited" in str(one.message)] == []


async def test_a_stop_leaves_a_snapshot_and_the_next_start_folds_only_what_came_after(fresh_log: NatsServer):
    people_client = await connect(fresh_log.settings(EVERYTHING), EVERYTHING)
    people = People(JetStreamEventStore(people_client))
    await people.cluster()
    await people.connect()
    await people.project()
    await people.node("a", NODE)

    async def serve_until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
        health, stop = Health("scheduler"), asyncio.Event()
        serving = asyncio.create_task(service.run(fresh_log.settings("scheduler"), health, stop))
        await until(condition, what)
        assert health.serving
        stop.set()
        await serving

    first = await people.submit("first", gpu_devices_request=1)
    await serve_until(lambda: _placed(people, first), "the first to be placed")
    client = await connect(fresh_log.settings("scheduler"), "scheduler")
    store = JetStreamEventStore(client)
    snapshots = FoldSnapshots(
        store.snapshots, "scheduler", shape_version=service.SNAPSHOT_SHAPE, aggregates=service.FOLDED
    )
    found = await snapshots.load()
    assert found is not None
    seq, chains = found
    assert seq >= 6
    assert chains["workload"][first].state.pods["main", 0].node_name == "a"

    await people.fact(first, "succeeded")
    second = await people.submit("second", gpu_devices_request=8)
    await serve_until(lambda: _placed(people, second), "the second to be placed, in the first one's room")
    log = Log([store], people)
    assert not (await log.check()).violations
    await client.close()
    await people_client.close()


async def _placed(people: People, key: str) -> bool:
    return bool((await people.workload(key)).pods)


async def test_six_hundred_pods_of_openb_are_bound_without_a_node_over_its_capacity(
    fresh_log: NatsServer, running: Running
):
    """Issue section 6, item 6: the scheduler's share of it, with two of them at once (item 8). Two thousand, and
    through the API: tests/faults/test_openb.py.
    """
    facts, pods = openb.nodes(), openb.pods(600)
    clients = [await connect(fresh_log.settings("scheduler"), "scheduler", suffix=str(n)) for n in range(2)]
    clients.append(await connect(fresh_log.settings(EVERYTHING), EVERYTHING))
    stores = [JetStreamEventStore(client) for client in clients]
    log = Log(list(stores[:2]), People(stores[2]))
    await log.people.cluster()
    await log.people.connect()
    await log.people.project()
    await log.people.nodes(facts)
    await in_flight([log.people.submit(name, **compute) for name, compute in pods.items()])
    began = time.perf_counter()
    running.start(stores[0])
    running.start(stores[1])
    seconds = 0.0

    async def all_bound() -> bool:
        live = [scheduler.fold for scheduler in running.schedulers if scheduler.fold.workloads]
        return bool(live) and all(state.state.pods for state in live[0].workloads.values())

    await until(all_bound, "600 bindings")
    seconds = time.perf_counter() - began
    report = await bindings(log, 600)
    print(
        f"\n600 pods on {len(facts)} nodes: {seconds:.2f} s from start (fold of the log) to all bound, two schedulers"
    )
    assert not report.violations
    assert report.bindings == report.left_reserved == 600
    for client in clients:
        await running.kill()
        await client.close()


async def test_while_many_come_they_are_told_why_they_wait_later_and_bound_at_once(monkeypatch: pytest.MonkeyPatch):
    """Given more workloads than come one by one, and room for one of them, when others may still be on their way, then
    a plan binds that one, and says nothing of those that wait; once none comes any more, all are told.
    """
    store = MemoryEventStore()
    people, fold = People(store), SchedulingState()
    await people.cluster()
    await people.connect()
    await people.project()
    await people.node("a", NODE)
    keys = [await people.submit(f"w{n:03}", gpu_devices_request=8) for n in range(MANY_UPDATES + 1)]
    scheduler = Scheduler(store, fold)
    for commit in await commits_of(store):
        fold.apply(commit)

    async def phases() -> Counter[str]:
        return Counter([(await people.workload(key)).phase.value for key in keys])

    with monkeypatch.context() as patch:
        patch.setattr(service, "CALM_SECONDS", 3_600.0)
        patch.setattr(service, "TOLD_AFTER_SECONDS", 3_600.0)
        for _ in range(3):
            await scheduler.cycle()
            assert await phases() == {"Initializing": 1, "Creating": MANY_UPDATES}
        patch.setattr(service, "TOLD_AFTER_SECONDS", 0.0)
        await scheduler.cycle()
        assert await phases() == {"Initializing": 1, "Pending": MANY_UPDATES}
    reasons = [(await people.workload(key)).reason for key in keys]
    assert Counter(reasons) == {"": 1, "insufficient_gpu": MANY_UPDATES}


async def test_a_few_are_told_at_once_why_they_wait(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(service, "CALM_SECONDS", 3_600.0)
    store = MemoryEventStore()
    people, fold = People(store), SchedulingState()
    await people.cluster()
    await people.connect()
    await people.project()
    key = await people.submit("w", gpu_devices_request=8)
    for commit in await commits_of(store):
        fold.apply(commit)
    await Scheduler(store, fold).cycle()
    assert (await people.workload(key)).reason


async def test_a_batch_that_cannot_be_built_is_told_and_ends_neither_the_service_nor_the_rest_of_the_plan(
    running: Running, monkeypatch: pytest.MonkeyPatch
):
    """GIVEN a fault by which a plan has two marks of one node, THEN all else is placed, and the pause grows."""

    def doubled(heads: Heads, marks: Sequence[NodeMark], command_id: str, now: datetime) -> list[Draft]:
        drafts = mark_drafts(heads, marks, command_id, now)
        assert not isinstance(drafts, Refusal)
        return [*drafts, *drafts]

    monkeypatch.setattr(service, "mark_drafts", doubled)
    store = MemoryEventStore()
    people = People(store)
    await people.cluster()
    await people.connect()
    await people.project()
    await people.nodes({"n0": NODE, "n1": NODE})
    starts = datetime.now(UTC)
    command = PlanMaintenance(
        cluster_id=people.cluster_id,
        name="firmware",
        starts_at=starts,
        ends_at=starts + timedelta(hours=1),
        nodes=("n0",),
        new=True,
    )
    await people.do("cluster", cluster_key("local"), command)
    running.start(store)
    key = await people.submit("w", gpu_devices_request=1)

    async def placed() -> bool:
        return (await people.workload(key)).phase == "Initializing"

    await until(placed, "a place")
    assert not running.tasks[0].done()


async def test_a_decision_that_nobody_could_read_is_told_and_ends_neither_the_service_nor_the_rest_of_the_plan(
    running: Running, monkeypatch: pytest.MonkeyPatch
):
    """GIVEN a fault by which a start is expected behind the last time that can be read, THEN all else is placed."""

    def late(planned: Plan, *_: object) -> Plan:
        end = datetime.max.replace(tzinfo=UTC)
        return replace(planned, updates=tuple(replace(each, expected_start=end) for each in planned.updates))

    monkeypatch.setattr(service, "with_estimates", late)
    store = MemoryEventStore()
    people = People(store)
    await people.cluster()
    await people.connect()
    await people.project()
    await people.nodes({"n0": NODE})
    running.start(store)
    await people.submit("large", gpu_devices_request=100)
    key = await people.submit("small", gpu_devices_request=1)

    async def placed() -> bool:
        return (await people.workload(key)).phase == "Initializing"

    await until(placed, "a place")
    assert not running.tasks[0].done()
