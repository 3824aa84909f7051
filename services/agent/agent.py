"""One cluster's agent: makes its pods follow WANTED, and says what is there. The shell around `reconcile`.

Level-based: news only say which pods to look at, every decision uses all that is known of them. Without a current
picture of WANTED nothing is started or ended; what runs keeps running.
"""

import asyncio
import contextlib
import random
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final, assert_never

import msgspec
import structlog
from msgspec.structs import replace
from nats.aio.client import Client
from nats.errors import Error as NatsError

from events.cluster_protocol import (
    ObservedCluster,
    ObservedNode,
    ObservedPod,
    SettledPod,
    StartPod,
    UsageReport,
    UsageSample,
    WantedCluster,
    WantedPod,
)
from events.codec import UNDECODABLE
from events.subjects import usage_subject
from events.workload.commands import PodWarning
from services.agent.backends.interface import LIVE_KINDS, Backend, BackendError, Observation, WatchBrokenError
from services.agent.claims import Claims
from services.agent.logs import LogServer
from services.agent.looks import Looks
from services.agent.recipes import Recipes
from services.agent.reconcile import Absent, Action, Forget, Known, Start, Stop, orphans, reconcile
from services.agent.reports import Reports
from services.agent.sessions import SessionServer
from services.agent.values import Values
from services.agent.wanted import Changed, Lost, Wanted, Whole

HEARTBEAT_SECONDS: Final = 5.0
TICK_SECONDS: Final = 1.0
"""How late what falls due may be; an idle agent does nothing else."""
LOOK_AT_ALL_SECONDS: Final = 60.0
"""How often every pod is looked at, whatever was said: a net below the news."""
LIST_AGAIN_SECONDS: Final = 300.0
"""How often the cluster is asked for everything: a net below its watch (log.md 5.2)."""
USAGE_SECONDS: Final = 10.0
SAMPLES_PER_MESSAGE: Final = 500
"""Some 100 KiB: well below a message's limit of 1 MiB."""
ACTIONS_AT_ONCE: Final = 64
"""Calls to the cluster on their way at the same time; as many again for runs that are let go: their logs are fetched
first, and no start waits for a node that does not answer. Likewise as many runs at once have asked for their recipes.
"""
FIRST_RETRY_SECONDS: Final = 1.0
LAST_RETRY_SECONDS: Final = 30.0
TOLD_AFTER_SECONDS: Final = 4.0
"""A run that cannot be started is tried again; from this pause on, at the third failure, its history says why."""
NOT_STARTED: Final = "not_started"
LONGEST_WHY: Final = 500
"""Characters."""
LONGEST_ASKED_SECONDS: Final = 300.0
"""A cluster that asks to be left alone for longer is asked again after that all the same."""
LAST_LOOK_SECONDS: Final = 4.0
"""Longest wait before a cluster that is away is looked for again: once it is back, all is reconciled within 10 s."""
INTERRUPT_SECONDS: Final = 4.0
"""For ending the pods when the machine goes: with reporting that, at most 5 s."""
SETTLE_SECONDS: Final = 0.5
"""How long the last ends are waited for and sent."""
ORPHANS_SHOWN: Final = 100

log = structlog.get_logger(__name__)
_WANTED: Final = msgspec.json.Decoder(WantedPod)


class Agent:
    def __init__(
        self,
        cluster: WantedCluster,
        backend: Backend,
        nc: Client,
        wanted: Wanted,
        *,
        version: str,
        list_again_seconds: float = LIST_AGAIN_SECONDS,
    ) -> None:
        self._cluster = cluster
        self._backend = backend
        self._nc = nc
        self._version = version
        self._list_again_seconds = list_again_seconds
        self._reports = Reports(nc, cluster.cluster_id, silent=lambda: bool(backend.standby()))
        self._claims = Claims(nc, cluster.cluster_id, backend, in_use=self._in_use)
        self._looks = Looks(nc, cluster.cluster_id, backend)
        self._recipes = Recipes(
            nc,
            cluster.cluster_id,
            # Elsewhere pods are of one machine, or of none.
            ssh_keys=cluster.kind == "kubernetes",
            on_fates=self._claims.hear,
            on_sources=self._looks.hear,
        )
        self._sessions = SessionServer(nc, cluster.cluster_id, backend)
        self._values = Values(cluster.cluster_id, backend, self._recipes, is_wanted=self._is_wanted)
        self._news = wanted
        self._wanted: dict[str, WantedPod] = {}
        self._current = False
        """Whether `_wanted` is what is wanted now."""
        self._listed = False
        """Whether `_known` was whole once: before that, what is not in it may be there all the same."""
        self._known: dict[str, Known] = {}
        self._nodes: dict[str, ObservedNode] = {}
        self._to_look_at: set[str] = set()
        self._busy: set[str] = set()
        """Pods with an action under way; they are looked at again when it is done."""
        self._retries: dict[str, float] = {}
        """Last wait of pods whose action failed."""
        self._wake = asyncio.Event()
        self._slots = asyncio.Semaphore(ACTIONS_AT_ONCE)
        self._slots_to_forget = asyncio.Semaphore(ACTIONS_AT_ONCE)
        self._slots_to_start = asyncio.Semaphore(ACTIONS_AT_ONCE)
        """Runs whose recipe was asked for, or is in hand: it may be large. Nothing else waits for an answer."""
        self._actions: set[asyncio.Task[None]] = set()
        self._running = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set. Raises what the connection or the code broke with; pods stay as they are then."""
        logs = LogServer(self._nc, self._cluster.cluster_id, self._backend)
        await self._recipes.start()
        parts = [
            asyncio.create_task(part)
            for part in (
                self._follow_wanted(),
                self._watch(),
                self._act(),
                self._reports.run(),
                self._heartbeats(),
                self._sample_usage(),
                self._claims.run(),
                self._looks.run(),
                self._values.run(),
                logs.serve(),
                self._sessions.serve(),
            )
        ]
        stopping = asyncio.create_task(_until(stop))
        try:
            done, _ = await asyncio.wait([*parts, stopping], return_when=asyncio.FIRST_COMPLETED)
            for part in done:
                part.result()
            await self._end()
        finally:
            for task in [*parts, stopping, *self._actions]:
                task.cancel()
            await asyncio.gather(*parts, stopping, *self._actions, return_exceptions=True)
            await self._recipes.close()

    async def _end(self) -> None:
        """The machine goes, and with it the pods that live on it."""
        self._current = False
        count = await self._backend.interrupt(INTERRUPT_SECONDS)
        if count:
            log.warning("pods_interrupted", cluster=self._cluster.name, pods=count, reason="Muster is stopping")
            give_up = asyncio.get_running_loop().time() + SETTLE_SECONDS
            while self._running and asyncio.get_running_loop().time() < give_up:
                await asyncio.sleep(0.02)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_SECONDS):
                await self._reports.flush()

    # -- what is wanted --------------------------------------------------------------------------------------------

    async def _follow_wanted(self) -> None:
        async for news in self._news.news():
            match news:
                case Whole(values=values):
                    before, self._wanted = self._wanted, {}
                    self._take(values)
                    self._current = True
                    self._look_at({*before, *self._wanted})
                    self._reports.say_all_again()
                case Changed(values=values):
                    self._look_at(self._take(values))
                case Lost():
                    self._current = False
                case _:
                    assert_never(news)

    def _take(self, values: dict[str, bytes]) -> list[str]:
        keys: list[str] = []
        for pod_key, data in values.items():
            if not data:
                continue
            try:
                want = _WANTED.decode(data)
            except UNDECODABLE as error:
                log.warning("wanted_unreadable", cluster=self._cluster.name, pod=pod_key, error=str(error))
                continue
            if want.pod_key != pod_key:
                log.warning("wanted_unreadable", cluster=self._cluster.name, pod=pod_key, error="it is about another")
                continue
            self._wanted[want.pod_key] = want
            keys.append(want.pod_key)
        return keys

    def _look_at(self, keys: Iterable[str]) -> None:
        self._to_look_at.update(keys)
        self._wake.set()

    # -- what is there ---------------------------------------------------------------------------------------------

    async def _list(self) -> None:
        """Take the whole picture: what was there and is no more has ended without anybody seeing how."""
        picture = await self._backend.list_all()
        listed = {(pod.pod_key, pod.token) for pod in picture.pods}
        for key, known in list(self._known.items()):
            if (key, known.started_token) not in listed and all(r.token < known.started_token for r in known.runs):
                # Had started, never shown, and not there now: it may have to be started again.
                self._change(key, started_token=-1)
            for run in known.runs:
                if run.kind in LIVE_KINDS and (run.pod_key, run.token) not in listed:
                    self._see_pod(_vanished(run))
        there = {node.name for node in picture.nodes}
        for node in list(self._nodes.values()):
            if node.name not in there and not node.gone:
                self._see_node(replace(node, gone=True))
        self._see([*picture.pods, *picture.nodes])
        self._listed = True

    async def _watch(self) -> None:
        """List, then watch; list again whenever the watch breaks, and now and then anyway."""
        wait = FIRST_RETRY_SECONDS
        while True:
            try:
                await self._list()
            except BackendError as error:
                log.warning("list_failed", cluster=self._cluster.name, reason=str(error))
                await asyncio.sleep(wait * random.uniform(0.5, 1.0))  # noqa: S311 (spreads retries, protects nothing)
                wait = min(wait * 2, LAST_LOOK_SECONDS)
                continue
            # What failed while the cluster was away need not wait any longer.
            self._look_at(self._retries)
            try:
                async with asyncio.timeout(self._list_again_seconds):
                    async for observations in self._backend.watch():
                        self._see(observations)
                        wait = FIRST_RETRY_SECONDS
            except TimeoutError:
                pass
            except WatchBrokenError as error:
                log.warning("watch_broken", cluster=self._cluster.name, reason=str(error))
                await asyncio.sleep(wait * random.uniform(0.5, 1.0))  # noqa: S311
                wait = min(wait * 2, LAST_LOOK_SECONDS)

    def _see(self, observations: Iterable[Observation]) -> None:
        for seen in observations:
            if isinstance(seen, ObservedNode):
                self._see_node(seen)
            else:
                self._see_pod(seen)
        self._wake.set()

    def _see_node(self, node: ObservedNode) -> None:
        self._nodes[node.name] = node
        self._reports.node(node)

    def _see_pod(self, pod: ObservedPod) -> None:
        known = self._known.get(pod.pod_key, Known())
        before = next((run for run in known.runs if run.token == pod.token), None)
        if before is not None and before.kind not in LIVE_KINDS:
            # An end is for ever: a watch that lags says older things.
            return
        others = tuple(run for run in known.runs if run.token != pod.token)
        self._known[pod.pod_key] = replace(known, runs=(*others, pod))
        self._running += (pod.kind in LIVE_KINDS) - (before is not None)
        if all(run.token < pod.token for run in others):
            self._reports.pod(pod)
        self._look_at((pod.pod_key,))

    # -- what is done ----------------------------------------------------------------------------------------------

    async def _act(self) -> None:
        loop = asyncio.get_running_loop()
        all_at = loop.time() + LOOK_AT_ALL_SECONDS
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS):
                    await self._wake.wait()
            self._wake.clear()
            if loop.time() >= all_at:
                all_at = loop.time() + LOOK_AT_ALL_SECONDS
                self._to_look_at.update(self._wanted)
            if self._current and self._listed and self._nc.is_connected and self._may_act():
                self._begin_actions()

    def _may_act(self) -> bool:
        return not self._backend.standby() and not self._backend.problem()

    def _begin_actions(self) -> None:
        keys = self._to_look_at - self._busy
        self._to_look_at -= keys
        may_start = self._backend.may_start()
        for key, actions in reconcile(self._wanted, self._known, self._backend.fences(), keys).items():
            if not may_start and any(isinstance(action, Start) for action in actions):
                self._to_look_at.add(key)  # at the next tick
                continue
            self._busy.add(key)
            task = asyncio.create_task(self._carry_out(key, actions))
            self._actions.add(task)
            task.add_done_callback(self._actions.discard)

    async def _carry_out(self, key: str, actions: tuple[Action, ...]) -> None:
        try:
            async with self._slots_for(actions[0]):
                for action in actions:
                    await self._one(key, action)
            self._retries.pop(key, None)
        except BackendError as error:
            self._retries[key] = min(self._retries.get(key, FIRST_RETRY_SECONDS / 2) * 2, LAST_RETRY_SECONDS)
            # Later by up to a half: what failed together does not come back together.
            asked = min(error.again_seconds, LONGEST_ASKED_SECONDS)
            wait = max(self._retries[key], asked) * random.uniform(1.0, 1.5)  # noqa: S311
            log.warning(
                "action_failed",
                cluster=self._cluster.name,
                pod=key,
                reason=str(error),
                again_seconds=round(wait, 1),
            )
            if isinstance(actions[0], Start) and self._retries[key] == TOLD_AFTER_SECONDS:
                self._reports.pod(_not_started(actions[0].pod, str(error)))
            asyncio.get_running_loop().call_later(wait, self._look_at, (key,))
        finally:
            self._busy.discard(key)
        if key not in self._retries:
            self._look_at((key,))

    def _slots_for(self, action: Action) -> asyncio.Semaphore:
        match action:
            case Start():
                return self._slots_to_start
            case Forget():
                return self._slots_to_forget
            case Stop() | Absent():
                return self._slots
            case _:
                assert_never(action)

    def _in_use(self) -> set[str] | None:
        """Workloads of which a pod is there, or is to be; None where it is not known now what is wanted or there."""
        if not (self._current and self._listed):
            return None
        live = (run for known in self._known.values() for run in known.runs if run.kind in LIVE_KINDS)
        wanted = {want.workload_id for want in self._wanted.values() if isinstance(want, StartPod)}
        return wanted | {run.workload_id for run in live}

    def _is_wanted(self, key: str, token: int) -> bool:
        want = self._wanted.get(key)
        return self._current and isinstance(want, StartPod) and want.token == token

    async def _start(self, key: str, wanted: StartPod) -> None:
        recipe, values = await self._recipes.of(wanted.pod_key, wanted.token)
        async with self._slots:
            if self._wanted.get(key) == wanted:  # it may have been told to go while its recipe was waited for
                await self._backend.apply(recipe, values)
                self._change(key, started_token=wanted.token)

    async def _one(self, key: str, action: Action) -> None:
        known = self._known.get(key, Known())
        match action:
            case Start(pod=pod):
                await self._start(key, pod)
            case Stop(token=token, grace_seconds=grace):
                await self._backend.delete(key, token, grace)
                live = [run.token for run in known.runs if run.token <= token and run.kind in LIVE_KINDS]
                self._change(key, asked={**known.asked, **dict.fromkeys(live, grace)})
            case Forget(token=token):
                await self._backend.forget(key, token)
                self._forget(key, token)
            case Absent(token=token):
                if await self._backend.is_there(key, token):
                    raise BackendError("the cluster has this run but has not listed it yet")
                self._see_pod(_absent(action))
            case _:
                assert_never(action)

    def _change(self, key: str, **changes: Any) -> None:
        self._known[key] = replace(self._known.get(key, Known()), **changes)

    def _forget(self, key: str, token: int) -> None:
        """Only the backend's fence and logs stay: a million ended pods must cost an agent nothing."""
        known = self._known.get(key, Known())
        runs = tuple(run for run in known.runs if run.token > token or run.kind in LIVE_KINDS)
        if runs:
            self._change(key, runs=runs)
            return
        self._known.pop(key, None)
        self._reports.no_pod(key)
        want = self._wanted.get(key)
        if isinstance(want, SettledPod) and want.token <= token:
            del self._wanted[key]

    # -- what is said ----------------------------------------------------------------------------------------------

    async def _heartbeats(self) -> None:
        while True:
            if self._backend.standby():
                await asyncio.sleep(TICK_SECONDS)
                continue
            settings = await self._backend.settings()
            live = (run for known in self._known.values() for run in known.runs)
            lost = orphans(self._wanted, live) if self._current else ()
            await self._reports.heartbeat(
                ObservedCluster(
                    at=datetime.now(UTC),
                    agent_version=self._version,
                    ownership_protection=settings.ownership_protection,
                    storage_classes=settings.storage_classes,
                    nodes=sum(not node.gone for node in self._nodes.values()),
                    orphans=lost[:ORPHANS_SHOWN],
                    problem=self._backend.problem() or self._recipes.problem(),
                    sessions=self._sessions.open,
                )
            )
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def _sample_usage(self) -> None:
        while True:
            await asyncio.sleep(USAGE_SECONDS)
            if not self._running or not self._nc.is_connected or self._backend.standby():
                continue
            try:
                samples = await self._backend.usage()
                await self._send_usage(samples)
            except (BackendError, NatsError) as error:
                log.info("usage_not_sent", cluster=self._cluster.name, reason=str(error))

    async def _send_usage(self, samples: Iterable[UsageSample]) -> None:
        together = list(samples)
        for start in range(0, len(together), SAMPLES_PER_MESSAGE):
            report = UsageReport(samples=tuple(together[start : start + SAMPLES_PER_MESSAGE]))
            await self._nc.publish(usage_subject(self._cluster.cluster_id), msgspec.json.encode(report))
            await asyncio.sleep(0)


async def _until(stop: asyncio.Event) -> None:
    await stop.wait()


def _vanished(run: ObservedPod) -> ObservedPod:
    return replace(
        run,
        kind="interrupted",
        at=datetime.now(UTC),
        reason="vanished",
        message="the pod is gone from its cluster, and nobody saw its end",
    )


def _not_started(wanted: StartPod, why: str) -> ObservedPod:
    now = datetime.now(UTC)
    message = f"it could not be started yet, and is tried again: {why[:LONGEST_WHY]}"
    return ObservedPod(
        pod_key=wanted.pod_key,
        token=wanted.token,
        workload_id=wanted.workload_id,
        pod=wanted.pod,
        kind="starting",
        at=now,
        node_name=wanted.node_name,
        warnings=(PodWarning(reason=NOT_STARTED, message=message, at=now),),
    )


def _absent(action: Absent) -> ObservedPod:
    return ObservedPod(
        pod_key=action.pod_key,
        token=action.token,
        workload_id=action.workload_id,
        pod=action.pod,
        kind="stopped",
        at=datetime.now(UTC),
        reason=action.reason,
        message="the run was never started here",
    )
