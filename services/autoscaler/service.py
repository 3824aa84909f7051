"""Follows the log, hears of the load of inferences, and asks `commands` for more or fewer replicas.

It decides again every second, and keeps in memory alone what was so lately. One that is started again begins its
windows anew, and leaves everything as it is until then. The decider does nothing where the replicas have changed
meanwhile, so several instances are harmless.
"""

import asyncio
import contextlib
import time
from datetime import UTC, datetime
from typing import Final

import msgspec
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from prometheus_client import Counter

from events.aggregate import BrokenChainError, Chain
from events.codec import UNDECODABLE
from events.commit import service_actor
from events.envelope import Accepted, AdmittedCommand, OutcomeUnknown, Refused
from events.ids import derived_command_id
from events.load import LoadReport
from events.subjects import ALL_LOADS
from events.workload.commands import ScaleInference
from events.workload.state import Workload
from services.autoscaler.decide import UNSEEN_SECONDS, Decision, Load, Past, decide
from services.autoscaler.fold import FOLDED, SNAPSHOT_SHAPE, Inferences
from services.autoscaler.stated import stated_load
from services.autoscaler.windows import Windows
from services.runtime.log.fold_snapshots import FoldSnapshots
from services.runtime.log.folding import follow_into
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.nats.bus import CommandClient, GateAwayError
from services.runtime.nats.connection import connect
from services.runtime.nats.requests import Requests
from services.runtime.nats.streams import assert_streams
from services.runtime.process.host import Health
from services.runtime.process.settings import Settings

SERVICE: Final = "autoscaler"
TICK_SECONDS: Final = 1.0
"""As often as reporters speak."""
SOONEST_SECONDS: Final = 0.05
"""Between two looks where somebody waits for a first replica."""
COMMAND_SECONDS: Final = 5.0
IN_FLIGHT: Final = 16
"""Commands asked for at once: `commands` serves people at the same time."""
ASK_AGAIN_SECONDS: Final = 5.0
"""The fold lags a little: what was asked for just now is not asked for again at once."""
MOST_PER_TICK: Final = 500
"""A moment at which thousands are to scale must not hold up the next one for long."""

_SENT = Counter("muster_autoscaler_commands", "Changes of replicas asked for", ["outcome"])
_NOT_READ = Counter("muster_autoscaler_reports_not_read", "Reports of load that could not be read")
_DECODER: Final = msgspec.json.Decoder(LoadReport)

log = structlog.get_logger(__name__)


class Autoscaler:
    """Decides, and asks; owned by the service's event loop.

    Args:
        speed: how many times faster than in earnest its windows and idle times pass.
    """

    def __init__(self, fold: Inferences, client: CommandClient, *, speed: float = 1.0) -> None:
        self._fold = fold
        self._client = client
        self._speed = speed
        self._windows = Windows(fold.known, speed=speed)
        self._past: dict[str, Past] = {}
        """By workload id."""
        self._asked: dict[str, tuple[int, float]] = {}
        """(version of the workload, when) of what was asked for last, by workload id."""
        self._wake = asyncio.Event()

    async def hear(self, message: Msg) -> None:
        """A LoadReport; anything else is dropped, and counted."""
        try:
            report = _DECODER.decode(message.data)
        except UNDECODABLE as error:
            _NOT_READ.inc()
            log.warning("load_not_understood", subject=message.subject, error=str(error))
            return
        if self._windows.take(message.subject.rpartition(".")[2], report, time.monotonic()):
            self._wake.set()

    async def tick(self, now: datetime) -> int:
        """Decide on every inference once; how many changes were asked for. Raises GateAwayError."""
        changes: list[tuple[Chain[Workload], Decision]] = []
        past: dict[str, Past] = {}
        clock = time.monotonic()
        for _, chain in self._fold.scaled():
            decision = self._decide(chain.state, now, clock)
            id_ = chain.state.workload_id
            past[id_] = decision.past
            if decision.replicas != _replicas(chain.state) and self._is_due(id_, chain.version, clock):
                changes.append((chain, decision))
        self._past = past
        self._asked = {id_: asked for id_, asked in self._asked.items() if id_ in past}
        self._windows.forget_others()
        slots = asyncio.Semaphore(IN_FLIGHT)

        async def send(chain: Chain[Workload], decision: Decision) -> None:
            async with slots:
                await self._send(chain, decision)

        results = await asyncio.gather(*(send(*change) for change in changes[:MOST_PER_TICK]), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return len(results)

    async def run(self) -> None:
        """For ever. Commands away only delays."""
        while True:
            self._wake.clear()
            try:
                await self.tick(datetime.now(UTC))
            except GateAwayError as error:
                _SENT.labels("away").inc()
                log.warning("commands_away", error=str(error))
            await asyncio.sleep(SOONEST_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS - SOONEST_SECONDS):
                    await self._wake.wait()

    def _decide(self, state: Workload, now: datetime, clock: float) -> Decision:
        assert state.inference is not None, "only inferences are looked at"
        ready = state.pods.running
        load = self._load(state, ready, now, clock)
        settings, current = state.inference.serving.autoscaling, state.inference.replicas
        past = self._past.get(state.workload_id)
        unseen = UNSEEN_SECONDS * self._speed
        return decide(load, clock * self._speed, settings, current, ready=ready, past=past, unseen_seconds=unseen)

    def _load(self, state: Workload, ready: int, now: datetime, clock: float) -> Load | None:
        if self._fold.simulated(state.cluster_id):
            return stated_load(state, ready, now, speed=self._speed)
        load = self._windows.load(state.workload_id, clock)
        if load is None:
            return None
        return Load(
            requests_per_second=load.requests_per_second,
            milliseconds=load.milliseconds,
            concurrency=load.concurrency,
            held=load.held,
            idle_seconds=load.idle_seconds * self._speed,
        )

    def _is_due(self, id_: str, version: int, clock: float) -> bool:
        asked = self._asked.get(id_)
        return asked is None or asked[0] != version or not 0 <= clock - asked[1] < ASK_AGAIN_SECONDS

    async def _send(self, chain: Chain[Workload], decision: Decision) -> None:
        state = chain.state
        self._asked[state.workload_id] = (chain.version, time.monotonic())
        match await self._client.send_system(SERVICE, command(chain, decision), timeout_seconds=COMMAND_SECONDS):
            case Accepted() as reply:
                _SENT.labels("accepted").inc()
                log.info(
                    "scaled",
                    workload_id=state.workload_id,
                    replicas=decision.replicas,
                    was=_replicas(state),
                    reason=decision.reason,
                    changed=reply.changed,
                )
            case Refused() as reply:
                _SENT.labels("refused").inc()
                log.info("scaling_refused", workload_id=state.workload_id, code=reply.refusal.code)
            case OutcomeUnknown():
                _SENT.labels("unknown").inc()
                log.warning("scaling_unknown", workload_id=state.workload_id)


def command(chain: Chain[Workload], decision: Decision) -> AdmittedCommand:
    """The same decision on the same state is the same command, by however many instances it is sent."""
    id_, was = chain.state.workload_id, _replicas(chain.state)
    return AdmittedCommand(
        command_id=derived_command_id(SERVICE, id_, str(chain.version), str(decision.replicas)),
        actor=service_actor(SERVICE),
        command=ScaleInference(
            workload_id=id_, replicas=decision.replicas, was=was, reason=decision.reason, message=decision.message
        ),
    )


def _replicas(state: Workload) -> int:
    return 0 if state.inference is None else state.inference.replicas


class Service:
    """One run, from the newest snapshot; a second instance beside it is harmless."""

    def __init__(self, nc: Client, requests: Requests, settings: Settings) -> None:
        self._nc = nc
        self._store = JetStreamEventStore(nc, requests=requests)
        self._snapshots = FoldSnapshots(self._store.snapshots, SERVICE, shape_version=SNAPSHOT_SHAPE, aggregates=FOLDED)
        self._fold = Inferences()
        self._work = Autoscaler(self._fold, CommandClient(requests), speed=settings.autoscaler_speed)
        self._caught_up = asyncio.Event()

    async def run(self, health: Health, stop: asyncio.Event, *, from_snapshot: bool) -> None:
        """Until `stop`. Raises BrokenChainError where the fold began from a snapshot that was doubted, and forgotten:
        begin again.
        """
        if from_snapshot and (found := await self._snapshots.load()) is not None:
            self._fold.restore(*found)
        target_seq = await self._store.last_seq()
        subscription = await self._nc.subscribe(ALL_LOADS, cb=self._work.hear)  # pyright: ignore[reportUnknownMemberType]
        tasks: list[asyncio.Task[object]] = [
            asyncio.create_task(self._follow(health, target_seq)),
            asyncio.create_task(self._scale(health)),
            asyncio.create_task(stop.wait()),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except BrokenChainError:
            # The snapshot's fault, perhaps: without it, only the log's own is left.
            await self._snapshots.forget()
            raise
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await subscription.unsubscribe()
        if self._caught_up.is_set():
            await self._snapshots.save(self._fold.seq, self._fold.chains, datetime.now(UTC))

    async def _follow(self, health: Health, target_seq: int) -> None:
        # The whole log, as other services of a process do: then it is read and decoded once for all of them.
        follower = follow_into(self._store, self._fold, on_standing=health.reader())
        async with contextlib.aclosing(follower) as arrivals:
            if self._fold.seq >= target_seq:
                self._caught_up.set()
            async for _ in arrivals:
                if self._fold.seq >= target_seq:
                    self._caught_up.set()
                if self._snapshots.due(self._fold.seq, datetime.now(UTC)):
                    await self._snapshots.save(self._fold.seq, self._fold.chains, datetime.now(UTC))
                await asyncio.sleep(0)  # a long log must not keep the process from everything else

    async def _scale(self, health: Health) -> None:
        # What it decided on an old state would do nothing, and cost.
        await self._caught_up.wait()
        health.ready()
        await self._work.run()


async def run(settings: Settings, health: Health, stop: asyncio.Event) -> None:
    """The service."""
    nc = await connect(settings, SERVICE)
    requests = Requests(nc)
    from_snapshot = True
    try:
        await assert_streams(nc)
        while not stop.is_set():
            try:
                await Service(nc, requests, settings).run(health, stop, from_snapshot=from_snapshot)
            except BrokenChainError as error:
                if not from_snapshot:
                    raise
                log.warning("fold_begins_again", error=str(error))
                from_snapshot = False
    finally:
        health.not_ready("stopping")
        await nc.close()
