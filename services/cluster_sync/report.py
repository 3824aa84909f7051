"""Appends what clusters saw: one commit at a time per aggregate, many aggregates at once, decided from the fold.

What cannot be appended now (a conflict, a lost answer, a full log) is kept and tried again; newer news of the same pod
takes its place. Nothing here waits for anything but its own appends.

News keep the id of the workload that they are about: its name may be another one's when they are decided on.
"""

import asyncio
import random
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import structlog

from events.aggregate import ASSET, CLUSTER, NODE, WORKLOAD, Aggregate, Chain, Draft, draft
from events.asset import MarkDataSource
from events.commit import service_actor
from events.decision import Context
from events.ids import derived_command_id
from events.phases import PodPhase
from events.refusal import Refusal
from events.workload.commands import CloseSession, PodFact, ReportPods
from events.workload.pod import Pod
from events.workload.state import Workload
from services.cluster_sync.budget import facts_in
from services.cluster_sync.fold import DesiredState
from services.cluster_sync.observe import ENDED_KINDS
from services.runtime.log.store import Committed, Conflict, EventStore
from services.runtime.process.buckets import Buckets
from services.runtime.process.failpoints import reached

IN_FLIGHT: Final = 128
"""Appends at once: JetStream commits those that wait together."""
GATHER_SECONDS: Final = 0.1
"""Facts about several pods of one workload within this time become one commit (architecture.md section 5)."""
FACTS_PER_COMMIT: Final = 500
"""Pods whose news go into one commit: deciding so many holds the loop for a tenth of a second at most."""
FACTS_BYTES: Final = 256 * 1024
"""Of the news of one commit: what is decided from them, at most twice as large, fits a message of 1 MB."""
CONFLICT_PAUSE_SECONDS: Final = 0.02
"""Until the fold has followed what was appended before us; jittered."""
WAIT_SECONDS: Final = 1.0
"""Between looks, while a budget is used up; newer news take the place of what waits."""
TROUBLE_PAUSE_SECONDS: Final = 1.0
"""After a lost answer or a refusal of the server."""
LONGEST_PAUSE_SECONDS: Final = 10.0
"""After news that cannot be decided on, again and again; newer ones, or another state, may end that."""

ACTOR: Final = service_actor("cluster_sync")

log = structlog.get_logger(__name__)

type Command = Any

_BY_NAME: Final[dict[str, Aggregate[Any]]] = {one.name: one for one in (NODE, CLUSTER, ASSET)}
"""Those of which the newest word alone counts."""

_ENCODER: Final = msgspec.json.Encoder()


class News(msgspec.Struct, frozen=True):
    """What is to be told of one run."""

    workload_id: str
    facts: tuple[PodFact, ...]
    cluster_id: str
    """Where the run is: whose agent said it, and whose budget it is told from."""


type _About = tuple[str, int, int]
"""(pod set, index, token): the token of a run that was left on a lost cluster, and 0 for the newest run of a pod. What
is said of the one takes the place of nothing that is said of the other.
"""


class Spend(msgspec.Struct, frozen=True):
    """What a commit takes from the budgets."""

    cluster_id: str
    """Empty where it is free."""
    changes: tuple[str, ...]
    """What changes by it, and may not change very often."""


class Limits(msgspec.Struct, frozen=True):
    """How much becomes commits."""

    facts: Buckets
    """By cluster id."""
    changes: Buckets
    """By what changes."""

    def spend(self, spend: Spend, made: Draft) -> None:
        now = time.monotonic()
        if spend.cluster_id:
            self.facts.take(spend.cluster_id, facts_in(made), now)
        for name in spend.changes:
            self.changes.take(name, 1, now)


class Reporter:
    """Decides and appends; owned by the service's event loop."""

    def __init__(
        self,
        store: EventStore,
        fold: DesiredState,
        on_commit: Callable[[], None],
        *,
        limits: Limits,
        on_wait: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._fold = fold
        self._limits = limits
        self._on_commit = on_commit
        """Called after the fold took over a commit of ours."""
        self._on_wait = on_wait
        """Called with the id of a cluster that says more than its budget allows."""
        self._slots = asyncio.Semaphore(IN_FLIGHT)
        self._facts: dict[str, dict[_About, News]] = {}
        """By workload key: the newest news of each pod that is not in the log yet."""
        self._commands: dict[tuple[str, str], Command] = {}
        """By (aggregate, key): the newest word about a node, cluster or data source that is not in the log yet. Behind
        the key of a data source stands which cluster's word it is.
        """
        self._running: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._gathered_at: dict[str, float] = {}
        self._one_by_one: set[tuple[str, str]] = set()
        """Workloads of whose news some could not be decided on."""

    def pods(
        self, key: str, workload_id: str, facts: tuple[PodFact, ...], *, cluster_id: str, left: bool = False
    ) -> None:
        """News of one run of a workload. They take the place of older ones; but an end stays one.

        Args:
            cluster_id: where the run is; its workload may be elsewhere by now.
            left: whether the run was left on a lost cluster.
        """
        pod, waiting, news = facts[0].pod, self._facts.setdefault(key, {}), News(workload_id, facts, cluster_id)
        about = pod.pod_set, pod.index, facts[0].token if left else 0
        older = waiting.get(about)
        if older is None or not _takes_back(news, older):
            waiting[about] = news
        self._go(("workload", key))

    def node(self, key: str, command: Command) -> None:
        self._commands["node", key] = command
        self._go(("node", key))

    def cluster(self, key: str, command: Command) -> None:
        self._commands["cluster", key] = command
        self._go(("cluster", key))

    def source(self, key: str, command: MarkDataSource) -> None:
        """What one cluster says of it waits beside what others do, and has a budget of its own."""
        target = "asset", f"{key}/{command.cluster_id}"
        self._commands[target] = command
        self._go(target)

    async def session(self, key: str, command: CloseSession) -> None:
        """That a session is lost: tried once. Whoever finds it still open says it again."""
        chain = self._fold.workloads.get(key)
        if chain is not None:
            await self._append(WORKLOAD, key, chain, command, (command.session_id,), Spend("", ()))

    @property
    def idle(self) -> bool:
        """Whether nothing waits to be told."""
        return not self._running

    async def close(self) -> None:
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _go(self, target: tuple[str, str]) -> None:
        if target not in self._running:
            self._running[target] = asyncio.create_task(self._work(target))

    async def _work(self, target: tuple[str, str]) -> None:
        """Append what there is about one aggregate, until there is nothing more."""
        failures = 0
        try:
            # Between the last look and the end of this task nothing else runs, so no news is left lying.
            while self._waits(target):
                try:
                    await self._gather_facts(target)
                    async with self._slots:
                        pause = await self._once(target)
                    failures = 0
                except Exception:
                    # One aggregate's news must not stop the others'. They are kept: what we found out ourselves, such
                    # as that a node is gone, no agent says again.
                    log.exception("report_failed", target=target)
                    failures += 1
                    pause = min(TROUBLE_PAUSE_SECONDS * failures, LONGEST_PAUSE_SECONDS)
                    self._part(target)
                if pause:
                    await asyncio.sleep(pause * (0.5 + random.random()))  # noqa: S311 (jitter)
        finally:
            del self._running[target]
            self._one_by_one.discard(target)

    def _waits(self, target: tuple[str, str]) -> bool:
        return target in self._commands or (target[0] == "workload" and target[1] in self._facts)

    def _part(self, target: tuple[str, str]) -> None:
        """After a failure: news of a workload's pods go one by one, and those at fault behind the others."""
        kind, key = target
        if kind != "workload":
            return
        if target in self._one_by_one and (waiting := self._facts.get(key)):
            first = next(iter(waiting))
            waiting[first] = waiting.pop(first)
        self._one_by_one.add(target)

    async def _gather_facts(self, target: tuple[str, str]) -> None:
        """Hold a workload's news back a moment where it just had a commit and has more pods to hear of."""
        kind, key = target
        chain = self._fold.workloads.get(key) if kind == "workload" else None
        if chain is None or len(chain.state.pods.live) <= 1:
            return
        loop = asyncio.get_running_loop()
        if len(self._facts.get(key, ())) >= FACTS_PER_COMMIT:
            return
        wait = self._gathered_at.get(key, 0.0) + GATHER_SECONDS - loop.time()
        if wait > 0:
            await asyncio.sleep(wait)
        self._gathered_at[key] = loop.time()
        if len(self._gathered_at) > 2 * IN_FLIGHT + len(self._fold.workloads):
            self._gathered_at = {k: t for k, t in self._gathered_at.items() if k in self._fold.workloads}

    async def _once(self, target: tuple[str, str]) -> float:
        """One append. Gives back how long to wait before the next look, 0 for not at all."""
        kind, key = target
        if kind == "workload":
            return await self._once_workload(key)
        aggregate: Aggregate[Any] = _BY_NAME[kind]
        name = f"{kind}/{key}"
        key, _, _ = key.partition("/")
        chain: Chain[Any] = self._fold.chain(aggregate, key)
        # What is wrong with a cluster can be told always.
        cluster_id = {"node": chain.state.cluster_id, "asset": getattr(self._commands[target], "cluster_id", "")}.get(
            kind, ""
        )
        if self._over_budget(cluster_id) or self._limits.changes.wait_seconds(name, time.monotonic()):
            return WAIT_SECONDS
        command = self._commands[target]
        identity = (str(chain.version), repr(command))
        seconds = await self._append(aggregate, key, chain, command, identity, Spend(cluster_id, (name,)))
        if not seconds and self._commands.get(target) is command:
            del self._commands[target]
        return seconds

    async def _once_workload(self, key: str) -> float:
        waiting = self._facts[key]
        chain = self._fold.workloads.get(key)
        # What is about a workload that is over, or an earlier one of this name, came too late.
        workload_id = None if chain is None else chain.state.workload_id
        self._forget_told(key, {pod: news for pod, news in waiting.items() if news.workload_id != workload_id})
        if chain is None or key not in self._facts:
            return 0
        most = 1 if ("workload", key) in self._one_by_one else FACTS_PER_COMMIT
        cluster_id, ready = self._ready(self._unhurried(self._facts[key], chain.state))
        news = next_commit(ready, most=most)
        if not news:
            return WAIT_SECONDS
        facts = tuple(fact for of_run in news.values() for fact in of_run.facts)
        command = ReportPods(workload_id=chain.state.workload_id, facts=facts)
        flaps = tuple(_run_name(one) for about, one in news.items() if _flaps(one, chain.state.pods.get(about[:2])))
        spend = Spend(cluster_id, flaps)
        seconds = await self._append(WORKLOAD, key, chain, command, _identity(chain.version, facts), spend)
        if not seconds:
            self._forget_told(key, news)
        return seconds

    def _ready(self, waiting: dict[_About, News]) -> tuple[str, dict[_About, News]]:
        """What one cluster said: of those that are not over their budget the one whose news wait longest. A commit is
        of one cluster, so no other is held up by it, and none pays for it.
        """
        for cluster_id in dict.fromkeys(news.cluster_id for news in waiting.values()):
            if not self._over_budget(cluster_id):
                return cluster_id, {about: news for about, news in waiting.items() if news.cluster_id == cluster_id}
        return "", {}

    def _over_budget(self, cluster_id: str) -> bool:
        over = bool(cluster_id) and self._limits.facts.wait_seconds(cluster_id, time.monotonic()) > 0
        if over:
            self._on_wait(cluster_id)
        return over

    def _unhurried(self, waiting: dict[_About, News], state: Workload) -> dict[_About, News]:
        """Without runs that come and go too often: of those the newest word is told in a while."""
        now, changes = time.monotonic(), self._limits.changes
        return {
            about: news
            for about, news in waiting.items()
            if not (_flaps(news, state.pods.get(about[:2])) and changes.wait_seconds(_run_name(news), now))
        }

    def _forget_told(self, key: str, told: dict[_About, News]) -> None:
        """What was decided is in the log; what came meanwhile is not."""
        left = {pod: news for pod, news in self._facts.get(key, {}).items() if told.get(pod) is not news}
        if left:
            self._facts[key] = left
        else:
            self._facts.pop(key, None)

    async def _append(  # noqa: PLR0917
        self,
        aggregate: Aggregate[Any],
        key: str,
        chain: Chain[Any],
        command: Command,
        identity: Iterable[str],
        spend: Spend,
    ) -> float:
        now = datetime.now(UTC)
        command_id = derived_command_id("cluster_sync", aggregate.name, key, *identity)
        context = Context(now=now, actor=ACTOR, command_id=command_id, version=chain.version)
        decision = aggregate.decide(command, chain.state, context)
        if isinstance(decision, Refusal):
            log.info("report_refused", aggregate=aggregate.name, key=key, code=decision.code, message=decision.message)
            return 0
        if not decision:
            return 0
        made = draft(aggregate, key, chain, decision, command_id=command_id, actor=ACTOR, now=now)
        outcome = await self._store.append(made)
        if isinstance(outcome, Committed):
            reached("facts_committed")
            self._limits.spend(spend, made)
            for commit in outcome.commits:
                self._fold.apply(commit, made)
            self._on_commit()
            return 0
        if isinstance(outcome, Conflict):
            return CONFLICT_PAUSE_SECONDS
        log.warning("report_not_stored", aggregate=aggregate.name, key=key, outcome=str(outcome))
        return TROUBLE_PAUSE_SECONDS


def next_commit[K](waiting: dict[K, News], *, most: int = FACTS_PER_COMMIT) -> dict[K, News]:
    """The news that go into the next commit: those that wait longest, at least one, as many as fit."""
    taken: dict[K, News] = {}
    size = 0
    for pod, news in waiting.items():
        size += len(_ENCODER.encode(news))
        if taken and (size > FACTS_BYTES or len(taken) == most):
            break
        taken[pod] = news
    return taken


def _takes_back(news: News, older: News) -> bool:
    """Whether it says that a run lives of which an end waits to be told: one that we found out ourselves, such as that
    its node is gone, is said by nobody again.
    """
    said, before = news.facts[-1], older.facts[-1]
    same = (news.workload_id, said.token) == (older.workload_id, before.token)
    return same and before.kind in ENDED_KINDS and said.kind not in ENDED_KINDS


def _flaps(news: News, pod: Pod | None) -> bool:
    """Whether it says of a live run that it is out of sight, or back: it may do so again and again. All else happens to
    a run once.
    """
    seen = news.facts[-1].kind
    return seen == "unreachable" or (
        seen in {"starting", "running"} and pod is not None and pod.phase is PodPhase.UNKNOWN
    )


def _run_name(news: News) -> str:
    run = news.facts[0].pod
    return f"run/{news.workload_id}/{run.pod_set}/{run.index}"


def _identity(version: int, facts: tuple[PodFact, ...]) -> list[str]:
    """What makes these facts another command than any before. The same may be said again with an effect: a run that was
    out of sight runs since the same moment as before; so the version counts, too.
    """
    return [str(version), *map(_words, facts)]


def _words(fact: PodFact) -> str:
    run = f"{fact.pod.pod_set}/{fact.pod.index}/{fact.pod.attempt}.{fact.pod.try_}"
    warnings = ",".join(warning.reason for warning in fact.warnings)
    saved = "" if fact.checkpoint_at is None else f"/{fact.checkpoint_at.isoformat()}"
    return f"{run}/{fact.kind}/{fact.at.isoformat()}/{warnings}{saved}"
