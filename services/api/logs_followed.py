"""Logs that are followed: every run that began according to the log of events, each from its first line to its last.

What a look at the workload shows is not enough: a run may begin and end between two looks. So each look reads the
commits since the one before. An agent, NATS or a log that is away for a while is asked again, from the place that was
reached.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from datetime import datetime
from typing import Final

import msgspec

from events.aggregate import WORKLOAD, Chain
from events.cluster_protocol import LogsRequest
from events.ids import key_of_id
from events.phases import FINISHED, DesiredPhase, PodPhase
from events.workload.life import WorkloadCreated
from events.workload.pod import (
    PodFailed,
    PodId,
    PodInterrupted,
    PodRef,
    PodRunning,
    PodStarting,
    PodStopped,
    PodSucceeded,
    pod_id,
)
from events.workload.state import Workload
from services.api.errors import ApiError
from services.api.kinds import load_workload
from services.api.log_lines import AgentError, Asked, Place, told
from services.runtime.log.store import LogUnavailableError

LOOK_SECONDS: Final = 0.5
"""How often a follower looks what began."""
MAX_FOLLOWED_PODS: Final = 100
"""Runs whose lines one request mixes; the others wait for their turn."""
WAITING_PIECES: Final = 4
"""Pieces that wait for a slow reader before the agents are slowed down."""
FIRST_PAUSE_SECONDS: Final = 0.2
LAST_PAUSE_SECONDS: Final = 2.0
"""Before an agent is asked again that could not tell; doubled each time."""
PATIENCE_SECONDS: Final = 30.0
"""How long an agent is waited for that is away when the run is over: several times what a restart takes."""

_ENDED: Final = (PodSucceeded, PodFailed, PodInterrupted, PodStopped)
_BEGAN: Final = (PodStarting, PodRunning, *_ENDED)
"""Events of a run of which there may be a log."""


class _Runs:
    """What began, what goes on, and what is over, as far as the log was read."""

    def __init__(self, asked: Asked, chain: Chain[Workload], wanted: PodId | None) -> None:
        self._asked = asked
        self._wanted = wanted
        self._state = chain.state
        self._seq = chain.version
        self._met: set[PodRef] = set()
        self.ran: set[PodRef] = set()
        self.waiting = deque[PodRef]()
        """Those that nobody reads yet, in the order in which they began."""
        for run in running(chain.state, wanted):
            self._meet(run)

    def _meet(self, run: PodRef) -> None:
        if run not in self._met and self._wanted in {None, pod_id(run)}:
            self._met.add(run)
            self.waiting.append(run)

    async def look(self) -> None:
        """Read on. Raises LogUnavailableError, ApiError."""
        call, workload_id = self._asked.call, self._asked.state.workload_id
        chain = await load_workload(call, workload_id, creation=True)
        if chain.version > self._seq:
            key = key_of_id(workload_id) or ""
            commits = call.api.store.commits(WORKLOAD, key, after_seq=self._seq, until_seq=chain.version)
            async with aclosing(commits) as pages:
                async for page in pages:
                    for commit in page:
                        self._take(commit.events)
                        self._seq = commit.seq
        self._state = chain.state

    def _take(self, events: tuple[object, ...]) -> None:
        for event in events:
            if isinstance(event, _BEGAN):
                self._meet(event.pod)
            # Of a run whose process began there must be a log.
            if isinstance(event, (PodRunning, PodSucceeded)) or (
                isinstance(event, (PodFailed, PodStopped)) and event.exit_code is not None
            ):
                self.ran.add(event.pod)

    def goes_on(self, run: PodRef) -> bool:
        pod = self._state.pods.get(pod_id(run))
        return pod is not None and pod.phase is not PodPhase.PENDING and pod.is_run(run)

    def is_over(self) -> bool:
        """Whether no run can come any more: an end, a stop, or a pod that succeeded."""
        state, wanted = self._state, self._wanted
        if self.waiting or running(state, wanted):
            return False
        if state.phase in FINISHED or state.desired is not DesiredPhase.RUNNING:
            return True
        return wanted is not None and has_run(state, wanted) and wanted not in state.pods


class _Reading:
    """The runs that are read now."""

    def __init__(self, asked: Asked, runs: _Runs) -> None:
        self._asked = asked
        self._runs = runs
        self.pieces: asyncio.Queue[bytes] = asyncio.Queue(maxsize=WAITING_PIECES)
        self._newest: dict[PodId, asyncio.Task[None]] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self._look_at = 0.0

    def begin(self) -> None:
        """Read what began, as far as there is room; what broke a reading breaks this one."""
        for task in [task for task in self.tasks if task.done()]:
            self.tasks.remove(task)
            task.result()
        while self._runs.waiting and len(self.tasks) < MAX_FOLLOWED_PODS:
            run = self._runs.waiting.popleft()
            task = asyncio.create_task(self._read(run, self._newest.get(pod_id(run))))
            self._newest[pod_id(run)] = task
            self.tasks.add(task)

    async def _read(self, run: PodRef, before: asyncio.Task[None] | None) -> None:
        if before is not None:  # the same pod's run before this one is told first
            await asyncio.wait({before})
        request = self._asked.request(pod_id(run), run, follow=True)
        pieces = _patient(self._asked, self._runs, request, run)
        async for piece in told(self._asked, pieces):
            await self.pieces.put(piece)

    async def next_piece(self) -> bytes | None:
        """None where none comes within LOOK_SECONDS, and after that time at the latest: then it is time to look."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._look_at:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._look_at):
                    return await self.pieces.get()
        self._look_at = loop.time() + LOOK_SECONDS
        return None

    async def end(self) -> None:
        tasks = [*self.tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def followed(asked: Asked, chain: Chain[Workload], wanted: PodId | None) -> AsyncGenerator[bytes]:
    """Lines of every run from now on, in the order in which they come, until no run can come any more."""
    runs = _Runs(asked, chain, wanted)
    before = _ended_before(asked, wanted)
    if since := asked.call.values["since"]:
        before = await _ended_since(asked, chain, since, wanted)
    for pod, request in before:
        async for piece in told(asked, _once(asked, pod, request)):
            yield piece
    reading = _Reading(asked, runs)
    try:
        while True:
            reading.begin()
            while (piece := await reading.next_piece()) is not None:
                yield piece
            if await _looked(runs) and runs.is_over() and not reading.tasks and reading.pieces.empty():
                return
    finally:
        await reading.end()


async def _looked(runs: _Runs) -> bool:
    """Whether the log answered."""
    try:
        await runs.look()
    except (LogUnavailableError, ApiError):
        return False
    return True


async def _patient(asked: Asked, runs: _Runs, request: LogsRequest, run: PodRef) -> AsyncIterator[bytes]:
    """One run to its end. Raises AgentError where it is over, and not all of its log can be had."""
    loop = asyncio.get_running_loop()
    place, pause, give_up = Place(), FIRST_PAUSE_SECONDS, 0.0
    while True:
        try:
            async for piece in asked.lines(request, pod_id(run), place):
                pause, give_up = FIRST_PAUSE_SECONDS, 0.0
                yield piece
        except AgentError as error:
            if not runs.goes_on(run):
                if error.no_such_run and run not in runs.ran:
                    return  # it ended before it could write
                give_up = give_up or loop.time() + PATIENCE_SECONDS
                if error.no_such_run or loop.time() >= give_up:
                    raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, LAST_PAUSE_SECONDS)
        else:
            return


async def _once(asked: Asked, pod: PodId, request: LogsRequest) -> AsyncIterator[bytes]:
    """A run that was over before; what is not kept any more is passed over. Raises AgentError."""
    try:
        async for piece in asked.lines(request, pod, Place()):
            yield piece
    except AgentError as error:
        if not error.no_such_run:
            raise


def _ended_before(asked: Asked, wanted: PodId | None) -> list[tuple[PodId, LogsRequest]]:
    """The newest runs of pods that have none now. One that waits to run again is asked for the run before that, by its
    number: the next may have begun by the time when the agent answers.
    """
    going_on = {pod_id(run) for run in running(asked.state, wanted)}
    requests: list[tuple[PodId, LogsRequest]] = []
    for pod in started_pods(asked.state) if wanted is None else [wanted]:
        if pod in going_on or not has_run(asked.state, pod):
            continue
        request, waits = asked.request(pod, None, follow=False), asked.state.pods.get(pod)
        if waits is not None and waits.try_:
            request = msgspec.structs.replace(request, attempt=waits.attempt, try_=waits.try_ - 1)
        elif waits is not None:
            request = msgspec.structs.replace(request, attempt=waits.attempt - 1)
        requests.append((pod, request))
    return requests


async def _ended_since(
    asked: Asked, chain: Chain[Workload], since: datetime, wanted: PodId | None
) -> list[tuple[PodId, LogsRequest]]:
    """Every run that has ended since then, by the log: whoever asks again after an interruption misses none."""
    key = key_of_id(asked.state.workload_id) or ""
    while True:
        ended: dict[PodRef, None] = {}
        commits = asked.call.api.store.commits(WORKLOAD, key, after_seq=0, until_seq=chain.version)
        try:
            async with aclosing(commits) as pages:
                async for page in pages:
                    for event in (event for commit in page for event in commit.events):
                        if isinstance(event, WorkloadCreated):
                            ended.clear()  # what came before was another of this name
                        elif isinstance(event, _ENDED) and event.at >= since and wanted in {None, pod_id(event.pod)}:
                            ended[event.pod] = None
        except LogUnavailableError:
            await asyncio.sleep(LOOK_SECONDS)
        else:
            return [(pod_id(run), asked.request(pod_id(run), run, follow=False)) for run in ended]


def started_pods(state: Workload) -> list[PodId]:
    """Pods that ever had a node, in order."""
    return [(name, index) for name, progress in sorted(state.progress.items()) for index in range(progress.next_index)]


def has_run(state: Workload, pod: PodId) -> bool:
    progress = state.progress.get(pod[0])
    return progress is not None and pod[1] < progress.next_index


def running(state: Workload, wanted: PodId | None) -> list[PodRef]:
    """Runs that may still write."""
    return [
        PodRef(pod_set=name, index=index, attempt=pod.attempt, try_=pod.try_)
        for (name, index), pod in sorted(state.pods.items())
        if pod.phase is not PodPhase.PENDING and (wanted is None or wanted == (name, index))
    ]
