"""cluster_sync's shell: follows the log, keeps WANTED, hears OBSERVED. Every decision is made from the whole fold."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, assert_never

import structlog
from nats.aio.client import Client
from nats.errors import Error as NatsError
from prometheus_client import Gauge

from events.agent_bounds import MAX_NODES, shown
from events.aggregate import BrokenChainError
from events.cluster import RefusedReport
from events.cluster_protocol import ObservedCluster, ObservedNode, ObservedPod
from events.ids import key_of_id
from events.node import Node, ReportNodeGone
from events.subjects import OBSERVED_STREAM, wanted_subject
from events.workload.commands import CloseSession
from services.cluster_sync.budget import RECIPE_BYTES_PER_SECOND, answers_budget, changes_budget, facts_budget
from services.cluster_sync.credentials import Credentials
from services.cluster_sync.fates import fates_of
from services.cluster_sync.fold import FOLDED, SNAPSHOT_SHAPE, DesiredState
from services.cluster_sync.hear import Heard, NotTakenError, understand
from services.cluster_sync.lanes import Lane, Lanes
from services.cluster_sync.observe import (
    cluster_command,
    facts_of,
    facts_of_left,
    is_left_run,
    is_newest_run,
    left_unsaid,
    lost_session,
    node_command,
    place_lost,
)
from services.cluster_sync.recipes import Recipes
from services.cluster_sync.refusals import Refusals
from services.cluster_sync.report import Limits, Reporter
from services.cluster_sync.wanted import Wanted, WantedLostError
from services.runtime.credentials.kept import KeptCredentials
from services.runtime.log.fold_snapshots import FoldSnapshots
from services.runtime.log.folding import follow_into
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.log.latest import Latest, LatestMessage
from services.runtime.nats.connection import connect
from services.runtime.nats.fullness import Alarms, fullness
from services.runtime.nats.jetstream_api import NOT_FOUND, JetStreamError
from services.runtime.nats.requests import Requests, UnansweredError
from services.runtime.nats.streams import StreamError, assert_streams, create_disposable_streams
from services.runtime.process.host import Health
from services.runtime.process.settings import Settings

NAME: Final = "cluster_sync"
SILENCE_SECONDS: Final = 30.0
"""A cluster whose agent was not heard for so long takes no new pods; heartbeats come every 5 s."""
TICK_SECONDS: Final = 2.0
SESSION_SECONDS: Final = 15.0
"""How long a session must be missed before it counts as lost."""
FULLNESS_SECONDS: Final = 10.0
"""Between looks at how full the streams are: the fastest agent needs some seconds for the last fifth."""
RETRY_SECONDS: Final = 0.5
"""After WANTED could not be written."""
STALLED_SECONDS: Final = 60.0
"""The log has more, but nothing came for so long: something is wrong."""

_LOUD: Final = Gauge("muster_cluster_sync_loud_clusters", "Clusters whose agents say so much that they are read apart")

log = structlog.get_logger(__name__)


class ClusterSync:
    """One instance; a second one beside it is harmless, since guards and tokens decide."""

    def __init__(
        self,
        nc: Client,
        store: JetStreamEventStore,
        replicas: int,
        *,
        facts_per_cluster_minute: int,
        credential_key_file: Path | None = None,
    ) -> None:
        self._nc = nc
        self._credential_key_file = credential_key_file
        self._replicas = replicas
        self._store = store
        requests = self._requests = Requests(nc)
        self._fold = DesiredState()
        self._wanted = Wanted(nc, requests)
        self._lanes = Lanes()
        self._observed: dict[Lane, Latest] = {
            "quiet": Latest(nc, requests, OBSERVED_STREAM),
            "loud": Latest(nc, requests, OBSERVED_STREAM),
        }
        self._reporter: Reporter
        self._caught_up = False
        """Whether the fold has seen all that was in the log when we started."""
        self._tell = asyncio.Event()
        self._tell_everything = True
        self._words: dict[str, ObservedPod] = {}
        """By subject in WANTED: runs that an agent still speaks of and that are over."""
        self._heard: dict[str, tuple[float, ObservedCluster]] = {}
        """By cluster id: when, and what, its agent said last."""
        self._nodes_seen: dict[str, dict[str, ObservedNode]] = {}
        """By cluster id and node key: the newest word, to be judged again when the cluster's pools change."""
        self._nodes_heard: dict[str, dict[str, float]] = {}
        """By cluster id and node key: when it was spoken of last (monotonic)."""
        self._sessions_missed: dict[str, float] = {}
        """By id: since when it is open in the log alone."""
        self._refusals = Refusals()
        self._facts_per_minute = facts_per_cluster_minute
        self._limits = Limits(facts_budget(facts_per_cluster_minute), changes_budget())
        self._answers = answers_budget()
        self._sees_since = time.monotonic()
        """Since when we could have heard an agent: before that, silence means nothing."""
        self._ticked_at = self._sees_since
        self._snapshots = FoldSnapshots(store.snapshots, NAME, shape_version=SNAPSHOT_SHAPE, aggregates=FOLDED)

    async def run(self, health: Health, stop: asyncio.Event, *, from_snapshot: bool = True) -> None:
        """Raises whatever makes going on senseless, such as a gap in the log; BrokenChainError where the fold began
        from a snapshot that was doubted, and forgotten: begin again.
        """
        if from_snapshot and (found := await self._snapshots.load()):
            self._fold.restore(*found)
        self._fold.note_nothing()
        self._reporter = Reporter(
            self._store, self._fold, self._after_commits, limits=self._limits, on_wait=self._facts_wait
        )
        following = asyncio.create_task(self._follow(health))
        tasks: set[asyncio.Task[Any]] = {following}
        try:
            if not await self._catch_up(following, health, stop):
                return
            self._fold.note_all()
            self._caught_up = True
            for reader in self._observed.values():
                reader.start()
            self._fill_lanes()
            self._lost_places()
            await self._recipes().start()
            tasks |= {asyncio.create_task(job()) for job in (self._keep_wanted, self._tick)}
            tasks |= {asyncio.create_task(self._observe(lane)) for lane in self._observed}
            tasks.add(asyncio.create_task(self._watch_fullness(Alarms(health))))
            health.ready()
            stopping = asyncio.create_task(stop.wait())
            tasks.add(stopping)
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks - {stopping}:
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._reporter.close()
            for reader in self._observed.values():
                await reader.close()
        await self._snapshots.save(self._fold.seq, self._fold.chains, datetime.now(UTC))

    # -- the log -----------------------------------------------------------------------------------------------------

    async def _follow(self, health: Health) -> None:
        try:
            async with contextlib.aclosing(
                follow_into(self._store, self._fold, on_standing=health.reader())
            ) as follower:
                async for commits in follower:
                    if commits and self._caught_up:
                        self._after_commits()
                    await asyncio.sleep(0)  # a long log must not keep the process from everything else
        except BrokenChainError:
            # The snapshot's fault, perhaps: without it, only the log's own is left.
            await self._snapshots.forget()
            raise

    async def _catch_up(self, following: asyncio.Task[None], health: Health, stop: asyncio.Event) -> bool:
        """Wait until the fold has seen all that was in the log when we started: until then we know too little. False
        where we were asked to stop meanwhile.
        """
        newest = await self._store.last_seq()
        reached, deadline = -1, 0.0
        while self._fold.seq < newest and not stop.is_set():
            if following.done():
                following.result()
            if self._fold.seq > reached or health.alarm:
                reached, deadline = self._fold.seq, time.monotonic() + STALLED_SECONDS
                health.reading(reached, newest)
            if time.monotonic() > deadline:
                raise TimeoutError(f"read up to {reached} of {newest}, and nothing more for {STALLED_SECONDS:.0f} s")
            await asyncio.sleep(0.01)
        return not stop.is_set()

    def _after_commits(self) -> None:
        changed = self._fold.changed
        if changed.pods or changed.clusters:
            self._tell.set()
        if changed.clusters:
            self._fill_lanes()
        if changed.removed_nodes:
            changed.removed_nodes.clear()
            self._lost_places()

    def _lost_places(self) -> None:
        """Report the runs whose node or cluster is gone, the nodes that went with their cluster, and those that an
        administrator took out of a simulated one: its agent may be away.
        """
        now = datetime.now(UTC)
        for key, node in self._fold.nodes.items():
            if node.state.present and self._fold.node_gone(node.state):
                for heard in (self._nodes_seen, self._nodes_heard):
                    heard.get(node.state.cluster_id, {}).pop(key, None)
                self._reporter.node(key, ReportNodeGone())
        for key, cluster_id, pod_id, pod, reason in self._fold.runs_without_place():
            state = self._fold.workloads[key].state
            fact = place_lost(state, pod_id, pod, reason, now)
            left = state.pods.live.get(pod_id) is not pod
            self._reporter.pods(key, state.workload_id, (fact,), cluster_id=cluster_id, left=left)

    # -- WANTED ------------------------------------------------------------------------------------------------------

    async def _keep_wanted(self) -> None:
        while True:
            if not self._tell_everything:
                await self._tell.wait()
            self._tell.clear()
            changed = self._fold.take_changed()
            words, self._words = self._words, {}
            try:
                await self._wanted.answer(self._fold, words)
                if self._tell_everything:
                    await self._wanted.read()
                    await self._wanted.tell_all(self._fold)
                    self._tell_everything = False
                    log.info("wanted_told", pods=len(self._fold.desired), clusters=len(self._fold.clusters))
                await self._wanted.tell_clusters(self._fold, sorted(changed.clusters))
                # What is desired is always the last word.
                await self._wanted.tell_pods(self._fold, changed.pods | (words.keys() & self._fold.desired.keys()))
            except (UnansweredError, JetStreamError, NatsError, TimeoutError) as error:
                log.warning("wanted_not_told", error=str(error))
                # What part of it arrived is not known: compare everything once it can be read again.
                self._tell_everything = True
                await asyncio.sleep(RETRY_SECONDS)
            for key in changed.clusters:
                self._cluster_changed(key)

    def _cluster_changed(self, key: str) -> None:
        """Nodes may be in another pool now; runs of a removed cluster have lost their place."""
        cluster = self._fold.clusters[key].state
        if cluster.removed:
            self._nodes_seen.pop(cluster.cluster_id, None)
            self._lost_places()
            return
        if cluster.kind == "simulated":
            self._lost_places()
        for node_key, observed in self._nodes_seen.get(cluster.cluster_id, {}).items():
            self._report_node(node_key, observed, cluster.cluster_id)

    # -- OBSERVED ----------------------------------------------------------------------------------------------------

    def _fill_lanes(self) -> None:
        clusters = [chain.state for chain in self._fold.clusters.values()]
        self._lanes.know(cluster.cluster_id for cluster in clusters if cluster.cluster_id)
        for lane, reader in self._observed.items():
            reader.refilter(self._lanes.filters(lane))
        _LOUD.set(len(self._lanes.heard_in("loud")))

    async def _observe(self, lane: Lane) -> None:
        while True:
            said = await self._observed[lane].next(idle_seconds=30)
            heard = self._lanes.heard_in(lane)
            messages = [message for message in said if message.subject.split(".")[1] in heard]
            newest = {message.subject: message for message in messages}
            for message in newest.values():
                try:
                    self._hear(message, understand(message.subject, message.data))
                except NotTakenError as error:
                    self._refuse(error)
                except Exception:
                    # Whatever an agent said: it is no reason to stop for all others.
                    log.exception("observation_not_understood", subject=message.subject)
            self._count_words(message for message in messages if not message.told_again)
            await asyncio.sleep(0)  # the other lane's turn

    def _count_words(self, messages: Iterable[LatestMessage]) -> None:
        """Who says more than others should wait for is read apart from now on."""
        words = Counter(message.subject.split(".")[1] for message in messages)
        now = time.monotonic()
        loud = [cluster_id for cluster_id, count in words.items() if self._lanes.said(cluster_id, count, now)]
        if loud:
            log.warning("cluster_is_loud", clusters=loud)
            self._fill_lanes()

    def _hear(self, message: LatestMessage, heard: Heard) -> None:
        cluster_id, key, said = heard.cluster_id, heard.key, heard.said
        match said:
            case ObservedPod():
                self._hear_pod(cluster_id, key, said)
            case ObservedNode():
                self._hear_node(cluster_id, key, said, time.monotonic() - (time.time() - message.stored_at))
            case ObservedCluster():
                self._hear_cluster(cluster_id, message, said)
            case _:
                assert_never(said)

    def _refuse(self, error: NotTakenError) -> None:
        cluster = self._fold.cluster(error.cluster_id)
        if cluster is None or cluster.removed:
            return
        if self._refusals.note(cluster.cluster_id, cluster.refused, error.report, time.monotonic()):
            log.warning("observation_refused", cluster=cluster.name, reason=str(error))
            self._report_cluster(cluster.cluster_id)

    def _nodes_left_unsaid(self) -> None:
        """Take nodes for gone that went while their agent was away."""
        now = time.monotonic()
        of_clusters: dict[str, dict[str, Node]] = {}
        for key, chain in self._fold.nodes.items():
            of_clusters.setdefault(chain.state.cluster_id, {})[key] = chain.state
        for cluster_id, (heard_at, newest) in self._heard.items():
            if now - heard_at > SILENCE_SECONDS:
                continue
            heard = self._nodes_heard.get(cluster_id, {})
            for key in left_unsaid(of_clusters.get(cluster_id, {}), heard, newest, now):
                log.warning("node_left_unsaid", cluster_id=cluster_id, node=self._fold.nodes[key].state.name)
                self._nodes_seen.get(cluster_id, {}).pop(key, None)
                heard.pop(key, None)
                self._reporter.node(key, ReportNodeGone())

    async def _close_lost_sessions(self) -> None:
        """Say of sessions that they are over where nobody has them any more, and whoever had them said nothing."""
        now, moment = time.monotonic(), datetime.now(UTC)
        missed: dict[str, float] = {}
        for key in sorted(self._fold.with_sessions):
            state = self._fold.workloads[key].state
            heard_at, newest = self._heard.get(state.cluster_id, (0.0, None))
            heard = newest if now - heard_at <= SILENCE_SECONDS else None
            for one in state.sessions:
                if not (why := lost_session(one, heard, moment)):
                    continue
                missed[one.session_id] = self._sessions_missed.get(one.session_id, now)
                # The api had it perhaps until a moment ago, and knows more of its end.
                if now - missed[one.session_id] >= SESSION_SECONDS:
                    command = CloseSession(
                        workload_id=state.workload_id, session_id=one.session_id, reason="lost", message=why
                    )
                    await self._reporter.session(key, command)
        self._sessions_missed = missed

    def _facts_wait(self, cluster_id: str) -> None:
        """Its agent says more than becomes commits."""
        rule = f"at most {self._facts_per_minute:,} facts a minute in the long run"
        report = RefusedReport(about="cluster", name="", field="", rule=rule, value="more, which wait")
        self._refuse(NotTakenError(cluster_id, report))

    def _recipes(self) -> Recipes:
        return Recipes(
            self._nc,
            self._fold,
            on_wait=self._recipes_wait,
            on_unwanted=self._compare,
            on_mark=self._reporter.source,
            credentials=Credentials(self._store, KeptCredentials(self._requests), self._credential_key_file),
            fates=lambda ids, cluster_id: fates_of(ids, cluster_id, self._fold, self._store),
        )

    def _recipes_wait(self, cluster_id: str) -> None:
        """Its agent asks for more than it is told."""
        rule = f"at most {RECIPE_BYTES_PER_SECOND:,} bytes a second in the long run, of what runs are made of"
        report = RefusedReport(about="cluster", name="", field="", rule=rule, value="more, which wait")
        self._refuse(NotTakenError(cluster_id, report))

    def _compare(self, subject: str) -> None:
        """Have WANTED say again what is desired there."""
        self._fold.changed.pods.add(subject)
        self._tell.set()

    def _hear_node(self, cluster_id: str, key: str, observed: ObservedNode, said_at: float) -> None:
        cluster = self._fold.cluster(cluster_id)
        if cluster is None or cluster.removed or not self._fold.declares(cluster, observed.name):
            return  # an agent that has not heard yet that a node was removed says it again
        seen, heard = self._nodes_seen.setdefault(cluster_id, {}), self._nodes_heard.setdefault(cluster_id, {})
        if observed.gone:
            seen.pop(key, None)
            heard.pop(key, None)
        elif key in seen or len(seen) < MAX_NODES:
            seen[key], heard[key] = observed, said_at
        else:
            rule = f"one of at most {MAX_NODES:,} nodes of a cluster"
            report = RefusedReport(about="node", name=shown(observed.name), field="", rule=rule, value="one more")
            raise NotTakenError(cluster_id, report)
        self._report_node(key, observed, cluster_id)

    def _hear_cluster(self, cluster_id: str, message: LatestMessage, said: ObservedCluster) -> None:
        """A heartbeat. One that we are told again may be old, and then says nothing about now."""
        if self._fold.cluster(cluster_id) is None:
            return
        old = message.told_again and time.time() - message.stored_at > SILENCE_SECONDS
        heard_at = self._sees_since if old else time.monotonic()
        self._heard[cluster_id] = (heard_at, said)
        if not old:
            self._report_cluster(cluster_id)

    def _hear_pod(self, cluster_id: str, key: str, observed: ObservedPod) -> None:
        if self._fold.cluster(cluster_id) is None:
            return
        workload_key = key.rsplit("-", 2)[0]
        chain = self._fold.workloads.get(workload_key)
        state = None if chain is None or chain.state.cluster_id != cluster_id else chain.state
        if state is not None and is_newest_run(observed, state):
            pod = state.pods[observed.pod.pod_set, observed.pod.index]
            self._reporter.pods(workload_key, observed.workload_id, facts_of(observed, pod), cluster_id=cluster_id)
            return
        if chain is not None and is_left_run(observed, chain.state, cluster_id):
            if ended := facts_of_left(observed):
                self._reporter.pods(workload_key, observed.workload_id, ended, cluster_id=cluster_id, left=True)
            return
        if self._fold.ahead(observed.token, workload_key):
            return  # bound after what we have followed: another instance is ahead, and the agent will say it again
        subject = wanted_subject(cluster_id, key)
        wanted = self._fold.desired.get(subject)
        if wanted is not None and wanted.token == observed.token:
            rule, value = "the run that its token was given to", f"{observed.pod.attempt}.{observed.pod.try_}"
            report = RefusedReport(about="pod", name=shown(key), field="pod", rule=rule, value=value)
            raise NotTakenError(cluster_id, report)
        if wanted is None or wanted.token < observed.token:
            # With a newer run desired, the agent knows by its token that this one is over.
            if self._answers.wait_seconds(cluster_id, time.monotonic()):
                return  # the agent will say it again
            self._answers.take(cluster_id, 1, time.monotonic())
            self._words[subject] = observed
            self._tell.set()

    def _report_node(self, node_key: str, observed: ObservedNode, cluster_id: str) -> None:
        cluster = self._fold.cluster(cluster_id)
        if cluster is None or cluster.removed or not self._fold.declares(cluster, observed.name):
            return
        self._reporter.node(node_key, node_command(observed, cluster))

    def _report_cluster(self, cluster_id: str) -> None:
        cluster, key = self._fold.cluster(cluster_id), key_of_id(cluster_id)
        if cluster is None or key is None or cluster.removed:
            return
        self._note_standstill()
        heard_at, newest = self._heard.get(cluster_id, (self._sees_since, None))
        silent_seconds = time.monotonic() - max(heard_at, self._sees_since)
        if newest is None and silent_seconds <= SILENCE_SECONDS:
            return
        refused = self._refusals.current(cluster_id, cluster.refused, time.monotonic())
        command = cluster_command(cluster, newest, silent_seconds, SILENCE_SECONDS, refused)
        self._reporter.cluster(key, command)

    # -- from time to time -------------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        reconnects = self._nc.stats["reconnects"]
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._note_standstill()
            self._ticked_at = time.monotonic()
            if not self._nc.is_connected:
                self._sees_since = time.monotonic()
            if self._nc.stats["reconnects"] != reconnects:
                reconnects = self._nc.stats["reconnects"]
                self._sees_since = time.monotonic()
                self._tell_everything = True  # the server may have come back without what it held in memory
                self._tell.set()
            for chain in list(self._fold.clusters.values()):
                if chain.state.connected or chain.state.refused:
                    self._report_cluster(chain.state.cluster_id)
            self._nodes_left_unsaid()
            await self._close_lost_sessions()
            if calm := self._lanes.calm(time.monotonic()):
                log.info("cluster_is_calm", clusters=calm)
                self._fill_lanes()
            await self._check_wanted()
            now = datetime.now(UTC)
            if self._snapshots.due(self._fold.seq, now):
                await self._snapshots.save(self._fold.seq, self._fold.chains, now)

    def _note_standstill(self) -> None:
        """Where this process was stopped, or had no time, what agents said meanwhile has not been read yet."""
        now = time.monotonic()
        if now - self._ticked_at > SILENCE_SECONDS / 2:
            self._sees_since = now

    async def _check_wanted(self) -> None:
        try:
            await self._wanted.check()
        except WantedLostError as error:
            log.warning("wanted_lost", error=str(error))
            self._tell_everything = True
            self._tell.set()
        except JetStreamError as error:
            if error.error.code == NOT_FOUND:
                await self._make_streams()
        except (UnansweredError, NatsError):
            pass  # away: the reconnection, or the next publish, will show

    async def _watch_fullness(self, alarms: Alarms) -> None:
        while True:
            with contextlib.suppress(UnansweredError, JetStreamError, NatsError):
                alarms.look(await fullness(self._requests))
            await asyncio.sleep(FULLNESS_SECONDS)

    async def _make_streams(self) -> None:
        """The server came back without what it held in memory: have both streams again, and fill WANTED."""
        try:
            await create_disposable_streams(self._nc, self._replicas)
        except (StreamError, NatsError) as error:
            log.warning("streams_not_made", error=str(error))
            return
        log.warning("streams_made_again")
        self._tell_everything = True
        self._tell.set()


async def run(settings: Settings, health: Health, stop: asyncio.Event) -> None:
    """Run until `stop`."""
    nc = await connect(settings, NAME)
    try:
        await create_disposable_streams(nc, settings.replicas)
        await assert_streams(nc, replicas=settings.replicas)
        store = JetStreamEventStore(nc)

        def sync() -> ClusterSync:
            return ClusterSync(
                nc,
                store,
                settings.replicas,
                facts_per_cluster_minute=settings.facts_per_cluster_minute,
                credential_key_file=settings.credential_key_file,
            )

        try:
            await sync().run(health, stop)
        except BrokenChainError as error:
            log.warning("fold_begins_again", error=str(error))
            await sync().run(health, stop, from_snapshot=False)
    finally:
        await nc.close()
