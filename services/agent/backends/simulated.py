"""Nodes and pods in memory, with a clock that may be virtual: for demos, tests and what-if runs at scale.

A pod does nothing but take its node's capacity for as long as an annotation says. One heap of deadlines and one task
serve all of them: ten thousand sleeping pods cost nothing.
"""

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from events.cluster_protocol import (
    LogLine,
    LogsRequest,
    ObservedNode,
    ObservedPod,
    RunPod,
    SealedValues,
    SessionOpen,
    SourceToLookAt,
    UsageSample,
    WantedCluster,
)
from events.node import NodeFacts
from events.phases import NO_CLAIM
from events.simulated import SimulatedNodes, all_labels, unpacked
from events.workload.commands import PodFactKind
from events.workload.spec import WHOLE_GPU_MILLI
from events.workload.volumes import checkpoint_of
from services.agent.backends.interface import (
    LIVE_KINDS,
    NO_CREDENTIALS,
    NO_VALUES,
    BackendError,
    ClusterSettings,
    HeldClaims,
    NoWayError,
    Observation,
    Picture,
    Way,
)
from services.agent.backends.sources import NO_SUCH_SOURCE, missing_sources
from services.agent.backends.which_run import which_run
from services.agent.clock import Clock

RUNTIME_ANNOTATION: Final = "simulation.muster.dev/runtime-seconds"
EXIT_CODE_ANNOTATION: Final = "simulation.muster.dev/exit-code"
IGNORE_TERM_ANNOTATION: Final = "simulation.muster.dev/ignore-term"
"""`true`: the pod does not heed a request to end, and is killed after its grace period."""
CHECKPOINT_ANNOTATION: Final = "simulation.muster.dev/checkpoint-seconds"
"""How often a pod with a checkpoint folder saves its work: a file of its start, and one after each such time."""
CHECKPOINT_LOOK_SECONDS: Final = 60.0
"""How often it is looked at what was saved last, at most."""
LEAST_CHECKPOINT_SECONDS: Final = 1.0
MOST_CHECKPOINT_SECONDS: Final = 1e9
"""Some thirty years."""
DEFAULT_RUNTIME_SECONDS: Final = 5.0
START_SECONDS: Final = 0.05
"""From starting to running: a container's creation where the image is there."""
KILLED_EXIT_CODE: Final = 137
TERMINATED_EXIT_CODE: Final = 143
KEPT_ENDED_RUNS: Final = 20_000
"""Forgotten runs whose log lines can still be read; memory is bounded by it."""
KEPT_FENCES: Final = 100_000
"""Those that moved longest ago are dropped first: far more than can be on their way at a time."""
MAX_EXIT_CODE: Final = 255

Step = Literal["run", "finish", "kill", "look"]


class _Run(msgspec.Struct, kw_only=True):
    pod: RunPod
    seen: ObservedPod
    exit_code: int = 0
    runtime_seconds: float | None = 0.0
    """None: until it is told to end."""
    ignores_term: bool = False
    saves_seconds: float = 0.0
    """0: never by itself."""
    stopping: bool = False
    kill_at: float | None = None
    log: list[LogLine] = []
    holds: bool = False
    """Whether it takes capacity of its node."""

    @property
    def live(self) -> bool:
        return self.seen.kind in LIVE_KINDS


class _Node(msgspec.Struct, kw_only=True):
    facts: NodeFacts
    cpu_milli: int = 0
    memory_bytes: int = 0
    pods: int = 0
    device_milli: list[int] = []
    """Of as many devices as it ever had."""
    extended: dict[str, int] = {}


class SimulatedBackend:
    def __init__(self, nodes: Sequence[SimulatedNodes], clock: Clock) -> None:
        self._clock = clock
        self._nodes = {name: _node(facts) for name, facts in _declared(nodes).items()}
        self._runs: dict[tuple[str, int], _Run] = {}
        self._by_key: dict[str, set[int]] = {}
        self._ended: dict[tuple[str, int], _Run] = {}
        self._fences: dict[str, int] = {}
        self._due: list[tuple[float, int, str, int, Step]] = []
        self._count = itertools.count()
        self._news: list[Observation] = []
        self._wake = asyncio.Event()
        self._readers: set[asyncio.Event] = set()
        self._closed = False

    # -- what is there ---------------------------------------------------------------------------------------------

    def follow(self, cluster: WantedCluster) -> bool:
        """Its nodes may be others from now on. Runs on one that is gone end, as those on a lost node."""
        if cluster.kind != "simulated":
            return False
        try:
            declared = _declared(unpacked(cluster.packed_nodes))
        except (ValueError, msgspec.DecodeError):
            return False
        self._advance()
        for name in self._nodes.keys() - declared.keys():
            for run in [run for run in self._runs.values() if run.live and run.pod.node_name == name]:
                self._set(run, "interrupted", reason="node_lost", message=f"node {name} is gone from its cluster")
            self._news.append(ObservedNode(name=name, facts=self._nodes.pop(name).facts, gone=True))
        for name, facts in declared.items():
            node = self._nodes.get(name)
            if node is None:
                self._nodes[name] = _node(facts)
            elif node.facts == facts:
                continue
            else:
                node.facts = facts
                node.device_milli += [0] * (facts.gpu_count - len(node.device_milli))
            self._news.append(ObservedNode(name=name, facts=facts))
        self._wake.set()
        return True

    async def list_all(self) -> Picture:
        self._advance()
        self._news.clear()
        nodes = tuple(ObservedNode(name=name, facts=node.facts) for name, node in self._nodes.items())
        return Picture(pods=tuple(run.seen for run in self._runs.values()), nodes=nodes)

    async def watch(self) -> AsyncIterator[Sequence[Observation]]:
        while not self._closed:
            self._wake.clear()
            self._advance()
            if self._news:
                news, self._news = self._news, []
                yield news
                continue
            wait = max(self._due[0][0] - self._clock.monotonic(), 0) if self._due else None
            await self._clock.wait(self._wake, wait)

    def fences(self) -> Mapping[str, int]:
        return self._fences

    async def claims(self) -> Sequence[HeldClaims]:
        return ()

    async def remove_claims(self, workload_id: str, *, ephemeral_only: bool) -> None:
        """It has none."""

    async def look(self, source: SourceToLookAt) -> str:  # noqa: ARG002 (nothing is run, so nothing is lacking)
        return ""

    async def settings(self) -> ClusterSettings:
        return ClusterSettings()

    async def open_way(self, request: SessionOpen) -> Way:  # noqa: ARG002 (none is opened)
        raise NoWayError("no_processes", "pods of a simulated cluster have no processes: nothing leads into them")

    async def usage(self) -> Sequence[UsageSample]:
        """A simulated pod uses what it asked for."""
        now = self._clock.now()
        return [
            UsageSample(
                workload_id=run.pod.workload_id,
                pod=run.pod.pod,
                at=now,
                cpu_milli=run.pod.cpu_milli,
                memory_bytes=run.pod.memory_bytes,
                gpu_utilization_percent=100.0 if run.pod.devices else None,
                gpu_memory_bytes=self._gpu_memory(run.pod) if run.pod.devices else None,
            )
            for run in self._runs.values()
            if run.seen.kind == "running"
        ]

    # -- what is to change -----------------------------------------------------------------------------------------

    async def apply(self, pod: RunPod, values: SealedValues = NO_VALUES) -> None:  # noqa: ARG002 (it runs nothing)
        if (pod.pod_key, pod.token) in self._runs:
            return
        if pod.token < self._fences.get(pod.pod_key, 0):
            raise BackendError(f"run {pod.token} of {pod.pod_key} may not be started any more")
        self._raise_fence(pod.pod_key, pod.token)
        self._advance()
        run = _Run(pod=_held(pod), seen=_seen(pod, "starting", self._clock.now()))
        self._runs[pod.pod_key, pod.token] = run
        self._by_key.setdefault(pod.pod_key, set()).add(pod.token)
        if refusal := self._admit(pod):
            self._set(run, "refused", reason="node_refused", message=refusal)
            return
        try:
            run.runtime_seconds = _runtime_seconds(pod)
            run.exit_code = _exit_code(pod)
            run.saves_seconds = _saves_seconds(pod)
        except ValueError as error:
            self._set(run, "failed", reason="bad_annotation", message=str(error))
            return
        if pod.no_credentials:
            self._set(run, "failed", reason=NO_CREDENTIALS, message=pod.no_credentials)
            return
        if pod.no_volume:
            self._set(run, "failed", reason=NO_CLAIM, message=pod.no_volume)
            return
        if message := missing_sources(pod, "simulated"):
            self._set(run, "failed", reason=NO_SUCH_SOURCE, message=message)
            return
        run.ignores_term = pod.annotations.get(IGNORE_TERM_ANNOTATION) == "true"
        self._hold(run, +1)
        code = f", and so is code {pod.code[:12]}" if pod.code else ""
        self._set(run, "starting", message=f"simulated; image {pod.image!r} is recorded, not pulled{code}")
        self._at(START_SECONDS, run, "run")

    async def is_there(self, pod_key: str, token: int) -> bool:
        return any(run.pod.token == token for run in self._of(pod_key, token))

    def lacking(self) -> Sequence[tuple[str, int]]:
        return ()

    async def delete(self, pod_key: str, token: int, grace_seconds: int) -> None:
        self._raise_fence(pod_key, token + 1)
        self._advance()
        for run in self._of(pod_key, token):
            if not run.live:
                continue
            run.stopping = True
            self._say(run, "stderr", f"simulated: asked to end within {grace_seconds} s")
            if grace_seconds > 0:
                self._before_end(run)
            if grace_seconds > 0 and not run.ignores_term:
                self._end(run, TERMINATED_EXIT_CODE)
            elif grace_seconds <= 0:
                self._end(run, KILLED_EXIT_CODE)
            else:
                self._at(grace_seconds, run, "kill")

    def _before_end(self, run: _Run) -> None:
        """What its preStop does: it is taken to save the pod's work, where there is a place for that."""
        by = run.pod.stop_by
        if by is None or run.seen.kind != "running":
            return
        saves = ", and its work is saved" if checkpoint_of(run.pod.volumes) is not None else ""
        done = f"{by.signal} is sent" if by.signal else "its preStop command runs"
        self._say(run, "stderr", f"simulated: {done}{saves}")
        if saves:
            run.seen = replace(run.seen, checkpoint_at=self._clock.now())

    def _look(self, run: _Run) -> None:
        """Find the newest file that it has saved."""
        began, every = run.seen.started_at, run.saves_seconds
        if began is None or not every:
            return
        ran = max((self._clock.now() - began).total_seconds(), 0.0)
        saved = began + timedelta(seconds=ran - ran % every)
        run.seen = replace(run.seen, checkpoint_at=max(saved, run.seen.checkpoint_at or saved))

    async def forget(self, pod_key: str, token: int) -> None:
        self._raise_fence(pod_key, token + 1)
        for run in self._of(pod_key, token):
            if run.live:
                continue
            del self._runs[pod_key, run.pod.token]
            self._by_key[pod_key].discard(run.pod.token)
            if not self._by_key[pod_key]:
                del self._by_key[pod_key]
            self._ended[pod_key, run.pod.token] = run
        while len(self._ended) > KEPT_ENDED_RUNS:
            del self._ended[next(iter(self._ended))]

    def _raise_fence(self, pod_key: str, token: int) -> None:
        # Taken out first, so that the dict's order is that of the last change.
        self._fences[pod_key] = max(self._fences.pop(pod_key, 0), token)
        if len(self._fences) > KEPT_FENCES:
            del self._fences[next(iter(self._fences))]

    def problem(self) -> str:
        return ""

    def standby(self) -> str:
        return ""

    def may_start(self) -> bool:
        return True

    async def interrupt(self, seconds: float) -> int:  # noqa: ARG002 (there is no machine under simulated pods)
        return 0

    async def close(self) -> None:
        self._closed = True
        self._wake.set()
        self._wake_readers()

    # -- logs ------------------------------------------------------------------------------------------------------

    async def logs(self, request: LogsRequest) -> AsyncIterator[Sequence[LogLine]]:
        run = self._find(request)
        lines = [line for line in run.log if request.since is None or line.at >= request.since]
        if request.tail_lines is not None:
            lines = lines[len(lines) - min(request.tail_lines, len(lines)) :]
        given = len(run.log)
        if lines:
            yield lines
        if not request.follow:
            return
        news = asyncio.Event()
        self._readers.add(news)
        try:
            while run.live or given < len(run.log):
                news.clear()
                fresh, given = run.log[given:], len(run.log)
                if fresh:
                    yield fresh
                elif not self._closed:
                    await news.wait()
                else:
                    return
        finally:
            self._readers.discard(news)

    def _find(self, request: LogsRequest) -> _Run:
        kept = {
            token: run
            for runs in (self._ended, self._runs)
            for token in self._tokens(request.pod_key, runs)
            if (run := runs[request.pod_key, token]).pod.workload_id == request.workload_id
        }
        return kept[which_run(request, {token: run.pod.pod for token, run in kept.items()})]

    def _tokens(self, pod_key: str, runs: dict[tuple[str, int], _Run]) -> list[int]:
        if runs is self._runs:
            return sorted(self._by_key.get(pod_key, ()))
        return [token for key, token in runs if key == pod_key]

    # -- time ------------------------------------------------------------------------------------------------------

    def _at(self, seconds: float, run: _Run, step: Step) -> None:
        due = self._clock.monotonic() + seconds
        if step == "kill":
            due = run.kill_at = min(due, run.kill_at if run.kill_at is not None else due)
        heapq.heappush(self._due, (due, next(self._count), run.pod.pod_key, run.pod.token, step))
        self._wake.set()

    def _advance(self) -> None:
        """Do what is due by now. A deadline of a run that has ended meanwhile does nothing."""
        now = self._clock.monotonic()
        while self._due and self._due[0][0] <= now:
            _, _, key, token, step = heapq.heappop(self._due)
            run = self._runs.get((key, token))
            if run is None or not run.live:
                continue
            if step == "look":
                self._look(run)
                self._news.append(run.seen)
                self._at(max(run.saves_seconds, CHECKPOINT_LOOK_SECONDS), run, "look")
            elif step == "run":
                self._set(run, "running")
                if run.saves_seconds:
                    self._look(run)
                    self._at(max(run.saves_seconds, CHECKPOINT_LOOK_SECONDS), run, "look")
                if run.runtime_seconds is None:
                    self._say(run, "stdout", "simulated: runs until it is told to end")
                    continue
                self._say(run, "stdout", f"simulated: runs for {run.runtime_seconds:g} s, then exits {run.exit_code}")
                self._at(run.runtime_seconds, run, "finish")
            elif step == "finish":
                self._end(run, run.exit_code)
            else:
                self._end(run, KILLED_EXIT_CODE)

    def _end(self, run: _Run, exit_code: int) -> None:
        self._look(run)
        self._say(run, "stdout", f"simulated: exits {exit_code}")
        if run.stopping and exit_code in (KILLED_EXIT_CODE, TERMINATED_EXIT_CODE):
            self._set(run, "stopped", exit_code=exit_code, reason="stopped")
        elif exit_code == 0:
            self._set(run, "succeeded", exit_code=0)
        else:
            self._set(run, "failed", exit_code=exit_code, reason="exit_code")

    def _set(
        self, run: _Run, kind: PodFactKind, *, exit_code: int | None = None, reason: str = "", message: str = ""
    ) -> None:
        now = self._clock.now()
        started_at = now if kind == "running" else run.seen.started_at
        run.seen = replace(
            run.seen, kind=kind, at=now, exit_code=exit_code, reason=reason, message=message, started_at=started_at
        )
        if not run.live and run.holds:
            self._hold(run, -1)
        self._news.append(run.seen)
        self._wake.set()
        self._wake_readers()

    def _say(self, run: _Run, stream: str, text: str) -> None:
        run.log = [*run.log, LogLine(at=self._clock.now(), stream=stream, text=text)]
        self._wake_readers()

    def _wake_readers(self) -> None:
        for reader in self._readers:
            reader.set()

    # -- capacity --------------------------------------------------------------------------------------------------

    def _of(self, pod_key: str, up_to: int) -> Sequence[_Run]:
        return [self._runs[pod_key, token] for token in sorted(self._by_key.get(pod_key, ())) if token <= up_to]

    def _gpu_memory(self, pod: RunPod) -> int:
        node = self._nodes[pod.node_name]
        if pod.gpu_memory_bytes:
            return pod.gpu_memory_bytes * len(pod.devices)
        return sum(share.milli * node.facts.gpu_memory_bytes // WHOLE_GPU_MILLI for share in pod.devices)

    def _admit(self, pod: RunPod) -> str | None:
        """Why the node will not take the pod, as a kubelet would say; the second barrier behind the node aggregate."""
        node = self._nodes.get(pod.node_name)
        if node is None:
            return f"the simulated cluster has no node {pod.node_name!r}"
        facts = node.facts
        if node.cpu_milli + pod.cpu_milli > facts.cpu_milli:
            return f"node {pod.node_name!r} has {facts.cpu_milli - node.cpu_milli} milli of CPU left"
        if node.memory_bytes + pod.memory_bytes > facts.memory_bytes:
            return f"node {pod.node_name!r} has {facts.memory_bytes - node.memory_bytes} bytes of memory left"
        if node.pods >= facts.max_pods:
            return f"node {pod.node_name!r} takes at most {facts.max_pods} pods"
        for each in pod.extended:
            left = facts.extended.get(each.resource, 0) - node.extended.get(each.resource, 0)
            if each.amount > left:
                return f"node {pod.node_name!r} has {max(left, 0)} of {each.resource} left"
        for share in pod.devices:
            if share.device >= facts.gpu_count:
                return f"node {pod.node_name!r} has no device {share.device}"
            if node.device_milli[share.device] + share.milli > WHOLE_GPU_MILLI:
                left = WHOLE_GPU_MILLI - node.device_milli[share.device]
                return f"device {share.device} of node {pod.node_name!r} has {left} thousandths left"
        return None

    def _hold(self, run: _Run, sign: int) -> None:
        node = self._nodes[run.pod.node_name]
        node.cpu_milli += sign * run.pod.cpu_milli
        node.memory_bytes += sign * run.pod.memory_bytes
        node.pods += sign
        for each in run.pod.extended:
            node.extended[each.resource] = node.extended.get(each.resource, 0) + sign * each.amount
        for share in run.pod.devices:
            node.device_milli[share.device] += sign * share.milli
        run.holds = sign > 0


def _declared(nodes: Sequence[SimulatedNodes]) -> dict[str, NodeFacts]:
    return {name: _facts(name, alike) for alike in nodes for name in alike.names}


def _node(facts: NodeFacts) -> _Node:
    return _Node(facts=facts, device_milli=[0] * facts.gpu_count)


def _facts(name: str, alike: SimulatedNodes) -> NodeFacts:
    return NodeFacts(
        cpu_milli=alike.cpu_milli,
        memory_bytes=alike.memory_bytes,
        gpu_count=alike.gpu_count,
        gpu_model=alike.gpu_model,
        gpu_memory_bytes=alike.gpu_memory_bytes,
        labels=all_labels(name, alike),
        taints=alike.taints,
        extended=alike.extended,
        stand_in=True,
    )


def _held(pod: RunPod) -> RunPod:
    """What is kept of it: nothing runs here, and who has thousands of pods may have made each of them large."""
    return replace(
        pod,
        arguments=(),
        environment={},
        environment_from=(),
        node_terms=None,
        tolerations=(),
        labels={},
        annotations={},
    )


def _seen(pod: RunPod, kind: PodFactKind, at: datetime) -> ObservedPod:
    return ObservedPod(
        pod_key=pod.pod_key,
        token=pod.token,
        workload_id=pod.workload_id,
        pod=pod.pod,
        kind=kind,
        at=at,
        node_name=pod.node_name,
    )


def _runtime_seconds(pod: RunPod) -> float | None:
    if pod.endless and RUNTIME_ANNOTATION not in pod.annotations:
        return None
    return _number(pod, RUNTIME_ANNOTATION, DEFAULT_RUNTIME_SECONDS)


def _saves_seconds(pod: RunPod) -> float:
    """0 where it has no place for what it saves, too."""
    if checkpoint_of(pod.volumes) is None or CHECKPOINT_ANNOTATION not in pod.annotations:
        return 0.0
    number = _number(pod, CHECKPOINT_ANNOTATION, 0.0)
    if not LEAST_CHECKPOINT_SECONDS <= number <= MOST_CHECKPOINT_SECONDS:
        raise ValueError(
            f"annotation {CHECKPOINT_ANNOTATION}: {number:g} is not a time between saves "
            f"({LEAST_CHECKPOINT_SECONDS:g} to {MOST_CHECKPOINT_SECONDS:,.0f} s)"
        )
    return number


def _exit_code(pod: RunPod) -> int:
    number = _number(pod, EXIT_CODE_ANNOTATION, 0)
    if number != int(number) or number > MAX_EXIT_CODE:
        raise ValueError(f"annotation {EXIT_CODE_ANNOTATION}: {number:g} is not an exit code (0 to 255)")
    return int(number)


def _number(pod: RunPod, annotation: str, default: float) -> float:
    given = pod.annotations.get(annotation)
    if given is None:
        return default
    try:
        number = float(given)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise ValueError(f"annotation {annotation}: {given!r} is not a number of 0 or more")
    return number
