"""The scheduler's shell: follows the log, asks for a plan whenever something changed, and commits it.

Everything it does follows from the log, so a crash loses nothing, and a second scheduler is harmless: whoever comes
second meets a conflict, takes in what the first wrote, and plans again after a jittered pause.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final
from uuid import uuid4

import structlog

from events.aggregate import BrokenChainError, Draft
from events.node import NodeFacts
from events.refusal import Refusal
from services.runtime.log.fold_snapshots import FoldSnapshots
from services.runtime.log.folding import follow_into
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.log.store import (
    Committed,
    Conflict,
    EventStore,
    OnStanding,
    Outcome,
    Rejected,
    Unknown,
    check_batch,
)
from services.runtime.nats.connection import connect
from services.runtime.nats.streams import assert_streams
from services.runtime.process.host import Health
from services.runtime.process.settings import Settings
from services.scheduler.answering import Answering
from services.scheduler.batches import (
    NOTHING_AHEAD,
    UNWRITABLE,
    Batch,
    Decided,
    Heads,
    batch_drafts,
    batches,
    decided_ahead,
    departure_drafts,
    eviction_drafts,
    mark_drafts,
    release_drafts,
    seen_by,
    update_drafts,
)
from services.scheduler.estimate import with_estimates
from services.scheduler.fold import FOLDED, SchedulingState
from services.scheduler.plan import plan
from services.scheduler.snapshot import Departure, Eviction, Plan, Snapshot, StatusUpdate

SNAPSHOT_SHAPE: Final = 6
"""Raise it when what is stored of the fold changes."""
BATCH_MESSAGES: Final = 300
"""Some 8 ms per batch; more gains little, and loses more where it conflicts."""
SMALLEST_BATCH_MESSAGES: Final = 2
"""One workload and one node."""
APPENDS_IN_FLIGHT: Final = 64
"""Commits of one aggregate each: the server writes them to disk together."""
BATCHES_IN_FLIGHT: Final = 3
"""The server works at one while the next is on its way; of more it would only hold more that is not decided."""
AHEAD_AT_ONCE: Final = 32
"""Workloads that are decided in one go while a batch is being stored: a few milliseconds."""
GATHER_SECONDS: Final = 0.002
"""On a busy system, how long a cycle waits for what comes in the same moment. An idle one reacts at once."""
MANY_UPDATES: Final = 100
"""Workloads to be told why they wait that may come from a batch: then others of it may be on their way. They are told
once no others come…"""
CALM_SECONDS: Final = 0.3
"""…for so long…"""
TOLD_AFTER_SECONDS: Final = 3.0
"""…but from here on all are told, as long as there are many."""
FIRST_PAUSE_SECONDS: Final = 0.005
LONGEST_PAUSE_SECONDS: Final = 1.0
IDLE_SECONDS: Final = 1.0
"""How often a follower without news looks around."""
CLOCK_SECONDS: Final = 2.0
"""How often who waits for a time looks at the clock, which may have been set meanwhile."""
NOTHING_SEEN: Final[Mapping[str, NodeFacts]] = {}

log = structlog.get_logger(__name__)


def utc_now() -> datetime:
    return datetime.now(UTC)


class Scheduler:
    """One scheduler on one log."""

    def __init__(
        self,
        store: EventStore,
        fold: SchedulingState,
        *,
        snapshots: FoldSnapshots | None = None,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._store = store
        self.fold = fold
        self._snapshots = snapshots
        self._clock = clock
        self._changed = asyncio.Event()
        self._caught_up = asyncio.Event()
        self._target_seq = 0
        self._batch_messages = BATCH_MESSAGES
        self._failures = 0
        self._told_broken: AbstractSet[tuple[str, str]] = frozenset()
        """Rule, and of what: what the last plan left out."""
        self._came, self._came_at = fold.came, 0.0
        """How many workloads have come, and when the last plan found that more had."""
        self._untold_since: float | None = None
        """Since when many are to be told why they wait."""
        self._looks_again: asyncio.TimerHandle | None = None

    async def run(
        self,
        stop: asyncio.Event,
        *,
        on_ready: Callable[[], None] = lambda: None,
        on_reading: Callable[[int, int], None] = lambda _seq, _target_seq: None,
        on_standing: OnStanding = lambda _: None,
    ) -> None:
        """Schedule until `stop`. Raises LogGapError, and BrokenChainError where the fold began from a snapshot."""
        self._target_seq = await self._store.last_seq()
        tasks: list[asyncio.Task[object]] = [
            asyncio.create_task(self._follow(on_reading, on_standing)),
            asyncio.create_task(self._schedule(on_ready)),
            asyncio.create_task(stop.wait()),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if self._snapshots is not None and self._caught_up.is_set():
            await self._save(self._snapshots)

    async def _save(self, snapshots: FoldSnapshots) -> None:
        await snapshots.save(self.fold.seq, self.fold.chains, self._clock(), beside=self.fold.beside())

    async def _follow(self, on_reading: Callable[[int, int], None], on_standing: OnStanding) -> None:
        async with contextlib.aclosing(
            follow_into(self._store, self.fold, on_standing=on_standing, idle_seconds=IDLE_SECONDS)
        ) as follower:
            if self.fold.seq >= self._target_seq:
                self._caught_up.set()
            async for commits in follower:
                if commits:
                    self._changed.set()
                if self.fold.seq >= self._target_seq:
                    self._caught_up.set()
                else:
                    on_reading(self.fold.seq, self._target_seq)
                if self._snapshots is not None and self._snapshots.due(self.fold.seq, self._clock()):
                    self.fold.settle(self._clock())  # what has ended is forgotten, also while nothing is planned yet
                    await self._save(self._snapshots)
                await asyncio.sleep(0)  # a long log must not keep the process from everything else

    async def _schedule(self, on_ready: Callable[[], None]) -> None:
        await self._caught_up.wait()
        on_ready()
        self._changed.set()
        busy = False
        while True:
            await self._wait_for_work()
            if busy:
                await asyncio.sleep(GATHER_SECONDS)
            self._changed.clear()
            busy = await self.cycle()
            if self._failures:
                longest = min(FIRST_PAUSE_SECONDS * 2**self._failures, LONGEST_PAUSE_SECONDS)
                # Jittered, so that two schedulers do not meet again at the same moment.
                await asyncio.sleep(longest * random.uniform(0.3, 1.0))  # noqa: S311
                self._changed.set()

    async def _wait_for_work(self) -> None:
        due = self.fold.next_due()
        wait = None if due is None else min(max((due - self._clock()).total_seconds(), 0.0), CLOCK_SECONDS)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await self._changed.wait()

    async def cycle(self) -> bool:
        """Plan once and commit the plan. Whether there was anything to do."""
        now = self._clock()
        snapshot = self.fold.snapshot(now)
        planned = plan(snapshot)
        told_later = self._may_be_told_later(planned)
        # What is not told now is planned again.
        planned = (
            replace(planned, updates=(), more=True) if told_later else with_estimates(planned, snapshot, self.fold)
        )
        self.fold.note(snapshot, planned)
        self._tell_broken(snapshot, planned)
        if planned.put_off:
            self._changed.set()
        if planned.empty and not planned.broken:
            self._failures = 0
            return bool(planned.put_off)
        if await self._commit(planned, seen_by(planned, self.fold.nodes), now) and not planned.broken:
            self._failures = 0
        else:
            self._failures = min(self._failures + 1, 16)
            # What the plan took for full may be free after all.
            self.fold.freed += 1
        if planned.more and (planned.bindings or not told_later):
            self._changed.set()
        return True

    def _tell_broken(self, snapshot: Snapshot, planned: Plan) -> None:
        """Of what was left out of a plan, as it must not be; once, as long as it is the same in each plan."""
        told = {(each.rule, each.of): each for each in planned.broken}
        for key, each in told.items():
            if key not in self._told_broken:
                log.error(
                    "plan_partly_left_out",
                    rule=each.rule,
                    of=each.of,
                    message=each.message,
                    pods=each.left_out,
                    seq=self.fold.seq,
                    now=snapshot.now.isoformat(),
                    nodes=len(snapshot.nodes.keys),
                    queues=len(snapshot.queues),
                    waiting_pods=sum(queue.pods for queue in snapshot.queues),
                    running=sum(map(len, snapshot.running.values())),
                    leaving=len(snapshot.leaving),
                    bindings=len(planned.bindings),
                    evictions=len(planned.evictions),
                )
        self._told_broken = told.keys()

    def _may_be_told_later(self, planned: Plan) -> bool:
        """Whether many wait for being told why they wait while more come: whoever submits thousands sees them first.
        Looks again in time.
        """
        loop = asyncio.get_running_loop()
        now = loop.time()
        if self.fold.came != self._came:
            self._came, self._came_at = self.fold.came, now
        if len(planned.updates) < MANY_UPDATES:
            self._untold_since = None
            return False
        if self._untold_since is None:
            self._untold_since = now
        at = min(self._came_at + CALM_SECONDS, self._untold_since + TOLD_AFTER_SECONDS)
        if self._looks_again is not None:
            self._looks_again.cancel()
        if now >= at:
            return False
        self._looks_again = loop.call_at(at, self._changed.set)
        return True

    async def _commit(self, planned: Plan, seen: Mapping[str, NodeFacts], now: datetime) -> bool:
        """Whether all of it was stored. What was not is planned again, from fresh state."""
        whole, marks = True, [*planned.marks]
        while marks:
            some, marks = marks[: self._batch_messages], marks[self._batch_messages :]
            drafts = _told(mark_drafts(self._heads(), some, str(uuid4()), now))
            whole = not isinstance(drafts, Refusal) and await self._append_batch(drafts) and whole
        whole = all(await _in_flight([partial(self._leave, each, now) for each in planned.departures])) and whole
        bound, released = batches(planned, max_messages=self._batch_messages)
        whole = await self._bind(bound, seen, now) and whole
        updates = [*planned.updates]
        while updates:
            some, updates = updates[: self._batch_messages], updates[self._batch_messages :]
            if not await self._update(some, now):
                whole = False
                self.fold.report_again(each.key for each in some)
        appends = [partial(self._release, node_key, ids, now) for node_key, ids in released.items()]
        evictions: dict[str, list[Eviction]] = {}
        for each in planned.evictions:
            evictions.setdefault(each.key, []).append(each)
        appends += [partial(self._evict, of, now) for of in evictions.values()]
        return all(await _in_flight(appends)) and whole

    async def _bind(self, bound: Sequence[Batch], seen: Mapping[str, NodeFacts], now: datetime) -> bool:
        """Batches that share no workload and no node are stored at the same time; one that shares any with those before
        it is decided on what they leave. Workloads are decided while batches are being stored.
        """
        refused_any, stores = False, list[asyncio.Task[bool]]()
        under_way: dict[asyncio.Task[bool], AbstractSet[str]] = {}
        try:
            for batch in bound:
                command_id, touched = str(uuid4()), batch.placements.keys() | batch.reservations.keys()
                ahead = await self._ahead(batch, command_id, now, under_way) if under_way else NOTHING_AHEAD
                await _one_by_one(task for task, keys in under_way.items() if not keys.isdisjoint(touched))
                under_way = {task: keys for task, keys in under_way.items() if not task.done()}
                if len(under_way) >= BATCHES_IN_FLIGHT:
                    await _one_by_one([*under_way][:1])
                drafts, refused = batch_drafts(self._heads(seen), batch, command_id, now, ahead)
                for refusal in refused.values():
                    _told(refusal)
                if refused:
                    first = next(iter(refused.values()))
                    log.debug("plan_partly_refused", workloads=len(refused), code=first.code, message=first.message)
                refused_any = refused_any or bool(refused)
                stores.append(store := asyncio.create_task(self._append_batch(drafts)))
                under_way[store] = touched
            return all(await _one_by_one(stores)) and not refused_any
        finally:
            for store in stores:
                store.cancel()
            await asyncio.gather(*stores, return_exceptions=True)

    async def _ahead(
        self, batch: Batch, command_id: str, now: datetime, under_way: Mapping[asyncio.Task[bool], AbstractSet[str]]
    ) -> Mapping[str, Decided]:
        """What is decided of workloads of the next batch.

        Args:
            under_way: keys of what is being changed.
        """
        found: dict[str, Decided] = {}
        heads, changing = self._heads(), set[str]().union(*under_way.values())
        for number, key in enumerate(batch.placements):
            if number % AHEAD_AT_ONCE == 0:
                await _let_others_go_on()
            if key not in changing:
                found[key] = decided_ahead(heads, batch, key, command_id, now)
        return found

    async def _release(self, node_key: str, ids: tuple[str, ...], now: datetime) -> bool:
        return await self._append(release_drafts(self._heads(), node_key, ids, str(uuid4()), now))

    async def _leave(self, departure: Departure, now: datetime) -> bool:
        return await self._append(departure_drafts(self._heads(), departure, str(uuid4()), now))

    async def _evict(self, evictions: Sequence[Eviction], now: datetime) -> bool:
        """Of one workload, one after the other."""
        for each in evictions:
            if not await self._append(eviction_drafts(self._heads(), each, str(uuid4()), now)):
                return False
        return True

    async def _update(self, updates: Sequence[StatusUpdate], now: datetime) -> bool:
        """In one batch: of a thousand that are submitted at once all are told at once why they wait."""
        heads, command_id = self._heads(), str(uuid4())
        decided = [_told(update_drafts(heads, update, command_id, now)) for update in updates]
        drafts = [draft for drafts in decided if not isinstance(drafts, Refusal) for draft in drafts]
        return await self._append_batch(drafts) and not any(isinstance(drafts, Refusal) for drafts in decided)

    async def _append_batch(self, drafts: Sequence[Draft]) -> bool:
        stored = not drafts or (_fits_together(drafts) and await self._stored(drafts))
        # Halves, so that one aggregate that others write does not keep all the rest waiting.
        size = self._batch_messages * 2 if stored else self._batch_messages // 2
        self._batch_messages = max(SMALLEST_BATCH_MESSAGES, min(size, BATCH_MESSAGES))
        return stored

    async def _stored(self, drafts: Sequence[Draft]) -> bool:
        return self._applied(await self._store.append_batch(drafts), drafts)

    def _heads(self, seen: Mapping[str, NodeFacts] = NOTHING_SEEN) -> Heads:
        fold = self.fold
        return Heads(workloads=fold.workloads, nodes=fold.nodes, seen=seen, incarnation=fold.incarnation)

    async def _append(self, drafts: list[Draft] | Refusal) -> bool:
        _told(drafts)
        if isinstance(drafts, Refusal):
            return False
        return self._applied(await self._store.append(drafts[0]), drafts[:1]) if drafts else True

    def _applied(self, outcome: Outcome, drafts: Sequence[Draft]) -> bool:
        match outcome:
            case Committed():
                for commit, drafted in zip(outcome.commits, drafts, strict=True):
                    self.fold.apply(commit, drafted)
                return True
            case Conflict():
                return False
            case Rejected() | Unknown():
                # Whatever became of it, the follower will bring it; the pause grows until the log takes commits again.
                log.warning("commit_not_stored", outcome=type(outcome).__name__, message=outcome.message)
                return False


def _told[D](decided: D) -> D:
    """The same; that nobody could read it is told, and ends neither the service nor the rest of the plan."""
    if isinstance(decided, Refusal) and decided.code == UNWRITABLE:
        log.error("decided_what_nobody_could_read", message=decided.message)
    return decided


def _fits_together(drafts: Sequence[Draft]) -> bool:
    """Whether they can be one batch. Where they cannot, a fault of the planner ends that batch alone, and is told."""
    try:
        check_batch(drafts)
    except ValueError:
        log.exception("batch_cannot_be_built", commits=len(drafts), of=sorted({each.key for each in drafts})[:10])
        return False
    return True


async def _one_by_one(stores: Iterable[asyncio.Task[bool]]) -> list[bool]:
    """What became of them, in their order."""
    return [await store for store in stores]


async def _let_others_go_on() -> None:
    """Twice: who is to send is woken by the first, and what it sends goes out behind the second."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def _in_flight(appends: Sequence[Callable[[], Awaitable[bool]]]) -> list[bool]:
    """Run them, a bounded number at a time.

    They are begun only in their turn: a coroutine that a stop keeps from ever being awaited would be a warning.
    """
    room = asyncio.Semaphore(APPENDS_IN_FLIGHT)

    async def one(append: Callable[[], Awaitable[bool]]) -> bool:
        async with room:
            return await append()

    return list(await asyncio.gather(*(one(append) for append in appends)))


async def run(settings: Settings, health: Health, stop: asyncio.Event) -> None:
    """The service."""
    nc = await connect(settings, "scheduler")
    answering = Answering(nc)
    try:
        await assert_streams(nc)
        store = JetStreamEventStore(nc)
        snapshots = FoldSnapshots(store.snapshots, "scheduler", shape_version=SNAPSHOT_SHAPE, aggregates=FOLDED)
        head_start = timedelta(hours=settings.priority_head_start_hours)
        fold = SchedulingState(head_start=head_start)
        if found := await snapshots.load():
            fold.restore(*found, beside=snapshots.beside)

        standing = health.reader()
        await answering.start()

        async def schedule(fold: SchedulingState) -> None:
            def on_ready() -> None:
                answering.fold = fold
                health.ready()

            answering.fold = None
            fold.consolidates = settings.consolidate
            await Scheduler(store, fold, snapshots=snapshots).run(
                stop, on_ready=on_ready, on_reading=health.reading, on_standing=standing
            )

        try:
            await schedule(fold)
        except BrokenChainError as error:
            # The snapshot's fault, perhaps: without it, only the log's own is left.
            log.warning("fold_begins_again", error=str(error))
            await snapshots.forget()
            await schedule(SchedulingState(head_start=head_start))
    finally:
        await answering.stop()
        await nc.close()
