"""What pods wrote, followed while they run and kept after they are gone.

Kubernetes gives the output and the errors of a container as one stream: every line is said to be `stdout`. At most so
many pods are followed at once, the first to run; what the others wrote is fetched when somebody asks for it, and at
their end. All of it is best effort: a log that a node cannot give is no reason to hold anything up.

Folders: `<pod key>/<token>` with `run.json` and the log's files, from the first answer of the run's node on.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Final

import msgspec
import structlog

from events.cluster_protocol import LogLine, LogsRequest
from events.workload.pod import PodRef
from services.agent.backends.interface import LogsUnavailableError
from services.agent.backends.kubernetes.act.objects import MAIN
from services.agent.backends.kubernetes.client import NOT_FOUND, ApiError, KubeClient
from services.agent.backends.kubernetes.read.stored_log import StoredLog
from services.agent.backends.local.files import delete_old_logs
from services.agent.backends.local.log_file import read_log
from services.agent.backends.which_run import which_run

START_AFTER_SECONDS: Final = 5.0
"""How long a pod runs until it is followed: short ones are read once, at their end."""
STARTS_PER_SECOND: Final = 20.0
"""How fast following begins: each is a connection, and a call of a node."""
ANSWER_BYTES: Final = 4 * 1024 * 1024
"""How much one answer may hold: it bounds the memory that one line without an end can take."""
READS: Final = 16
"""Answers that are fetched whole at once; waiting for slow nodes may not take all calls of the agent."""
READ_SECONDS: Final = 8.0
"""For all that is missing of one log, at its end or when somebody asks."""
SILENT_SECONDS: Final = 300.0
"""After that long without a line a pod is asked for anew: its connection may be dead."""
FIRST_PAUSE_SECONDS: Final = 1.0
"""Before a node is asked again that did not answer; doubled each time."""
LAST_PAUSE_SECONDS: Final = 60.0
CLEAN_SECONDS: Final = 3600.0
"""How often logs that are too old or too many are looked for."""


log = structlog.get_logger(__name__)


class LoggedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run, and the object that it has."""

    pod_key: str
    token: int
    workload_id: str
    pod: PodRef
    namespace: str
    name: str


class _Entry:
    """A run that is not over."""

    def __init__(self, run: LoggedRun, due: float) -> None:
        self.run = run
        self.due = due
        """When to begin to follow."""
        self.stored: StoredLog | None = None
        self.task: asyncio.Task[None] | None = None
        """That follows it."""
        self.readers = 0
        """Requests that are being answered."""
        self.caught_up = asyncio.Event()
        """All that there was when following began is stored, or could not be had."""
        self.problem = ""
        """Why its log could not be had the last time."""
        self.heard = False
        """Whether there were new lines since the last pause."""


class PodLogs:
    def __init__(
        self,
        client: KubeClient,
        folder: Path,
        *,
        max_bytes: int,
        retention_seconds: float,
        total_max_bytes: int,
        followers: int = 200,
    ) -> None:
        self._client = client
        self._folder = folder
        self._max_bytes = max_bytes
        self._retention_seconds = retention_seconds
        self._total_max_bytes = total_max_bytes
        self._followers = followers
        self._live: dict[str, _Entry] = {}
        """By pod key: its newest run."""
        self._waiting: dict[str, _Entry] = {}
        """To be followed, in the order in which they began to run."""
        self._followed: set[str] = set()
        """Pod keys that hold one of the followers; who is followed for a reader's sake holds none."""
        self._changed = asyncio.Event()
        self._reads = asyncio.Semaphore(READS)
        self._jobs: list[asyncio.Task[None]] = []

    async def open(self) -> "PodLogs":
        """Begin; what an earlier agent stored is found. Raises OSError where the folder cannot be made."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._jobs = [asyncio.create_task(job) for job in (self._follow_waiting(), self._clean_up())]
        return self

    async def close(self) -> None:
        """Stop following; files stay."""
        tasks = [*self._jobs, *(entry.task for entry in self._live.values() if entry.task is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for entry in self._live.values():
            _close(entry)
        self._live.clear()

    # -- what is there -------------------------------------------------------------------------------------------------

    def running(self, run: LoggedRun) -> None:
        """The run's containers run; may repeat, and costs nothing then. Earlier runs of the pod key are over."""
        known = self._live.get(run.pod_key)
        if known is not None:
            if known.run.token >= run.token:
                return
            self._drop(known)
        entry = _Entry(run, _now() + START_AFTER_SECONDS)
        self._live[run.pod_key] = self._waiting[run.pod_key] = entry
        self._changed.set()

    async def finish(self, run: LoggedRun) -> None:
        """Fetch what is missing at the end of a run, before its object is released; bounded in time and bytes, and
        never fails: a log that cannot be had is no error. Called again, it stores nothing twice.
        """
        known = self._live.get(run.pod_key)
        entry = known if known is not None and known.run.token == run.token else _Entry(run, 0.0)
        await _stop(entry)
        try:
            async with asyncio.timeout(READ_SECONDS):
                await self._fetch(entry)
        except (ApiError, OSError, TimeoutError) as error:
            log.debug("log_incomplete", pod=run.name, reason=str(error))
        finally:
            self._drop(entry)

    def _drop(self, entry: _Entry) -> None:
        """It is over: readers that follow it come to their end."""
        key = entry.run.pod_key
        if entry.task is not None:
            entry.task.cancel()
        _close(entry)
        if self._live.get(key) is entry:
            del self._live[key]
            self._waiting.pop(key, None)
            self._followed.discard(key)
            self._changed.set()

    # -- following -----------------------------------------------------------------------------------------------------

    async def _follow_waiting(self) -> None:
        while True:
            entry = next(iter(self._waiting.values()), None)
            if entry is None or len(self._followed) >= self._followers:
                self._changed.clear()
                await self._changed.wait()
            elif entry.due > _now():
                await asyncio.sleep(entry.due - _now())
            else:
                del self._waiting[entry.run.pod_key]
                self._followed.add(entry.run.pod_key)
                self._start(entry)
                await asyncio.sleep(1 / STARTS_PER_SECOND)

    def _start(self, entry: _Entry) -> None:
        if entry.task is None:
            entry.task = asyncio.create_task(self._follow(entry))

    async def _follow(self, entry: _Entry) -> None:
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                if not entry.caught_up.is_set():
                    async with asyncio.timeout(READ_SECONDS):
                        await self._fetch(entry)
                    entry.problem = ""
                    entry.caught_up.set()
                await self._stream(entry)
            except ApiError as error:
                if error.status == NOT_FOUND:
                    self._drop(entry)
                    return
                entry.problem = error.message
            except (OSError, TimeoutError) as error:
                entry.problem = str(error) or "its node did not answer in time"
            entry.caught_up.set()
            # An end in order is no end for sure: what stands between us and the node may have been restarted.
            pause = FIRST_PAUSE_SECONDS if entry.heard else min(pause * 2, LAST_PAUSE_SECONDS)
            entry.heard = False
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 (jitter)

    async def _stream(self, entry: _Entry) -> None:
        """Follow to the end of the stream. Raises ApiError, OSError."""
        stored = self._stored(entry)
        while True:
            stored.begin()
            size, new = 0, 0
            stream = self._client.line_batches(
                _path(entry.run), silence_seconds=SILENT_SECONDS, follow="true", **_query(stored)
            )
            try:
                async with aclosing(stream) as batches:
                    async for lines in batches:
                        size += sum(map(len, lines)) + len(lines)
                        # One byte too many is the end that a line did not have: it was cut, and comes again.
                        new += stored.take(lines if size <= ANSWER_BYTES or not new else lines[:-1])
                        entry.heard |= bool(new)
            except ApiError as error:
                if error.reason != "Silence":
                    raise
                continue
            if size < ANSWER_BYTES:
                return
            if not new:
                stored.skip_second()

    async def _fetch(self, entry: _Entry) -> None:
        """What there is now and is not stored. Raises ApiError, OSError."""
        size = 0
        while size < self._max_bytes:
            stored = self._stored(entry) if self._folder_of(entry.run).exists() else None
            async with self._reads:
                answer = await self._client.read(_path(entry.run), **_query(stored))
            stored = self._stored(entry)
            lines = answer.split(b"\n")
            # Empty after the last line's end. Where the answer is cut, the rest comes with the next one.
            if not lines[-1] or (len(answer) >= ANSWER_BYTES and len(lines) > 1):
                lines.pop()
            stored.begin()
            new = stored.take(lines)
            size += len(answer)
            if len(answer) < ANSWER_BYTES:
                return
            if not new:
                stored.skip_second()

    def _stored(self, entry: _Entry) -> StoredLog:
        if entry.stored is None:
            folder = self._folder_of(entry.run)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (folder / "run.json").write_bytes(msgspec.json.encode(entry.run))
            entry.stored = StoredLog(folder / "log", self._max_bytes)
        return entry.stored

    def _folder_of(self, run: LoggedRun) -> Path:
        return self._folder / run.pod_key / str(run.token)

    # -- reading -------------------------------------------------------------------------------------------------------

    async def logs(self, request: LogsRequest) -> AsyncGenerator[Sequence[LogLine]]:
        """As Backend.logs. Raises LogsUnavailableError."""
        entry = self._live.get(request.pod_key)
        kept = self._kept(request)
        runs = {run.token: run.pod for run in kept.values()}
        if entry is not None and entry.run.workload_id == request.workload_id:
            runs[entry.run.token] = entry.run.pod
        token = which_run(request, runs)
        if entry is None or entry.run.token != token or entry.run.workload_id != request.workload_id:
            (path,) = [path for path, run in kept.items() if run.token == token]
            lines = read_log(path / "log", tail_lines=request.tail_lines, since=request.since, running=None)
            async for batch in lines:
                yield batch
            return
        entry.readers += 1
        if entry.problem:
            # Its node may answer by now, and the next turn may be a minute away.
            self._leave(entry)
        self._start(entry)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(READ_SECONDS):
                    await entry.caught_up.wait()
            path = self._folder_of(entry.run) / "log"
            if entry.problem and not request.follow and not path.exists():
                raise LogsUnavailableError(f"the cluster does not give the log of {entry.run.name}: {entry.problem}")
            lines = read_log(
                path,
                tail_lines=request.tail_lines,
                since=request.since,
                running=(lambda: self._live.get(request.pod_key) is entry) if request.follow else None,
            )
            async for batch in lines:
                yield batch
        finally:
            entry.readers -= 1
            self._on_reader_gone(entry)

    def _on_reader_gone(self, entry: _Entry) -> None:
        if not entry.readers and entry.run.pod_key not in self._followed:
            self._leave(entry)

    def _leave(self, entry: _Entry) -> None:
        if entry.task is not None:
            entry.task.cancel()
            entry.task = None
        entry.caught_up.clear()
        entry.problem = ""

    def _kept(self, request: LogsRequest) -> dict[Path, LoggedRun]:
        """Runs of the pod and workload that have something stored: a pod key is shared by all workloads of a name."""
        found: dict[Path, LoggedRun] = {}
        for path in (self._folder / request.pod_key).glob("*"):
            with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):
                run = msgspec.json.decode((path / "run.json").read_bytes(), type=LoggedRun)
                if run.workload_id == request.workload_id:
                    found[path] = run
        return found

    async def _clean_up(self) -> None:
        while True:
            await asyncio.sleep(CLEAN_SECONDS)
            live = {self._folder_of(entry.run) for entry in self._live.values()}
            count = await asyncio.to_thread(
                delete_old_logs, self._folder, self._retention_seconds, self._total_max_bytes, keep=live
            )
            if count:
                log.info("old_logs_deleted", runs=count)


def _path(run: LoggedRun) -> str:
    return f"/api/v1/namespaces/{run.namespace}/pods/{run.name}/log"


def _query(stored: StoredLog | None) -> dict[str, str]:
    query = {"container": MAIN, "timestamps": "true", "limitBytes": str(ANSWER_BYTES)}
    since = stored.since() if stored is not None else None
    return query | {"sinceTime": since} if since is not None else query


async def _stop(entry: _Entry) -> None:
    if entry.task is not None:
        entry.task.cancel()
        await asyncio.gather(entry.task, return_exceptions=True)
        entry.task = None


def _close(entry: _Entry) -> None:
    if entry.stored is not None:
        entry.stored.close()
        entry.stored = None


def _now() -> float:
    return asyncio.get_running_loop().time()
