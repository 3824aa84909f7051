"""Appends what clusters saw: one commit at a time per aggregate, many aggregates at once, decided from the fold.

What cannot be appended now (a conflict, a lost answer, a full log) is kept and tried again; newer news of the same pod
takes its place. Nothing here waits for anything but its own appends.
"""

import asyncio
import random
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from events.aggregate import CLUSTER, NODE, WORKLOAD, Aggregate, Chain, draft
from events.commit import service_actor
from events.decision import Context
from events.ids import derived_command_id
from events.refusal import Refusal
from events.workload.commands import PodFact, ReportPods
from events.workload.state import PodId, live_pods
from services.cluster_sync.fold import Fold
from services.runtime.failpoints import reached
from services.runtime.store import Committed, Conflict, EventStore

IN_FLIGHT: Final = 128
"""Appends at once: JetStream commits those that wait together."""
GATHER_SECONDS: Final = 0.1
"""Facts about several pods of one workload within this time become one commit (architecture.md section 5)."""
CONFLICT_PAUSE_SECONDS: Final = 0.02
"""Until the fold has followed what was appended before us; jittered."""
TROUBLE_PAUSE_SECONDS: Final = 1.0
"""After a lost answer or a refusal of the server."""

ACTOR: Final = service_actor("cluster_sync")

log = structlog.get_logger(__name__)

type Command = Any


class Reporter:
    """Decides and appends; owned by the service's event loop."""

    def __init__(self, store: EventStore, fold: Fold, on_commit: Callable[[], None]) -> None:
        self._store = store
        self._fold = fold
        self._on_commit = on_commit
        """Called after the fold took over a commit of ours."""
        self._slots = asyncio.Semaphore(IN_FLIGHT)
        self._facts: dict[str, dict[PodId, tuple[PodFact, ...]]] = {}
        """By workload key: the newest news of each pod that is not in the log yet."""
        self._commands: dict[tuple[str, str], Command] = {}
        """By (aggregate, key): the newest word about a node or a cluster that is not in the log yet."""
        self._running: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._gathered_at: dict[str, float] = {}

    def pods(self, key: str, facts: tuple[PodFact, ...]) -> None:
        """News of one pod of a workload."""
        pod = facts[0].pod
        self._facts.setdefault(key, {})[pod.pod_set, pod.index] = facts
        self._go(("workload", key))

    def node(self, key: str, command: Command) -> None:
        self._commands["node", key] = command
        self._go(("node", key))

    def cluster(self, key: str, command: Command) -> None:
        self._commands["cluster", key] = command
        self._go(("cluster", key))

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
        try:
            # Between the last look and the end of this task nothing else runs, so no news is left lying.
            while self._waits(target):
                await self._gather_facts(target)
                async with self._slots:
                    pause = await self._once(target)
                if pause:
                    await asyncio.sleep(pause * (0.5 + random.random()))  # noqa: S311 (jitter)
        except asyncio.CancelledError:
            raise
        except Exception:
            # One aggregate's news must not stop the others'; the agent will say it again.
            log.exception("report_failed", target=target)
            self._drop(target)
        finally:
            del self._running[target]

    def _waits(self, target: tuple[str, str]) -> bool:
        return target in self._commands or (target[0] == "workload" and target[1] in self._facts)

    def _drop(self, target: tuple[str, str]) -> None:
        self._commands.pop(target, None)
        if target[0] == "workload":
            self._facts.pop(target[1], None)

    async def _gather_facts(self, target: tuple[str, str]) -> None:
        """Hold a workload's news back a moment where it just had a commit and has more pods to hear of."""
        kind, key = target
        chain = self._fold.workloads.get(key) if kind == "workload" else None
        if chain is None or len(live_pods(chain.state)) <= 1:
            return
        loop = asyncio.get_running_loop()
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
            news = dict(self._facts.get(key, {}))
            chain = self._fold.workloads.get(key)
            if chain is None:
                self._drop(target)
                return 0
            facts = tuple(fact for pod_facts in news.values() for fact in pod_facts)
            command = ReportPods(workload_id=chain.state.workload_id, facts=facts)
            seconds = await self._append(WORKLOAD, key, chain, command, _identity(chain.version, facts))
            if not seconds:
                self._forget_told(key, news)
            return seconds
        command = self._commands[target]
        aggregate: Aggregate[Any] = NODE if kind == "node" else CLUSTER
        known = self._fold.nodes if kind == "node" else self._fold.clusters
        chain = known.get(key, Chain(state=aggregate.initial))
        seconds = await self._append(aggregate, key, chain, command, (str(chain.version), repr(command)))
        if not seconds and self._commands.get(target) is command:
            del self._commands[target]
        return seconds

    def _forget_told(self, key: str, told: dict[PodId, tuple[PodFact, ...]]) -> None:
        """What was decided is in the log; what came meanwhile is not."""
        left = {pod: facts for pod, facts in self._facts.get(key, {}).items() if told.get(pod) is not facts}
        if left:
            self._facts[key] = left
        else:
            self._facts.pop(key, None)

    async def _append(
        self, aggregate: Aggregate[Any], key: str, chain: Chain[Any], command: Command, identity: Iterable[str]
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
            for commit in outcome.commits:
                self._fold.apply(commit)
            self._on_commit()
            return 0
        if isinstance(outcome, Conflict):
            return CONFLICT_PAUSE_SECONDS
        log.warning("report_not_stored", aggregate=aggregate.name, key=key, outcome=str(outcome))
        return TROUBLE_PAUSE_SECONDS


def _identity(version: int, facts: tuple[PodFact, ...]) -> list[str]:
    """What makes these facts another command than any before. The same may be said again with an effect: a run that was
    out of sight runs since the same moment as before; so the version counts, too.
    """
    return [str(version), *map(_words, facts)]


def _words(fact: PodFact) -> str:
    run = f"{fact.pod.pod_set}/{fact.pod.index}/{fact.pod.attempt}.{fact.pod.try_}"
    warnings = ",".join(warning.reason for warning in fact.warnings)
    return f"{run}/{fact.kind}/{fact.at.isoformat()}/{warnings}"
