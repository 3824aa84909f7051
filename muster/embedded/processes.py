"""A small supervisor: starts children in order, waits until each is ready, restarts what dies, takes all of it down.

It knows nothing of what its children do, and imports next to nothing: it lives as long as they, and its memory counts.
Children run in sessions of their own, so that a Ctrl-C reaches the supervisor alone, which then stops them in order.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from muster.embedded import linux

PYTHON: Final = (sys.executable, "-P")
"""What runs programs of Muster: without the folder in which we were started on its path, where anybody's `json.py` may
stand, a pod's too.
"""
FIRST_RESTART_SECONDS: Final = 0.2
"""A crash is over before anybody notices…"""
LAST_RESTART_SECONDS: Final = 5.0
"""…and one that repeats costs little."""
WELL_SECONDS: Final = 60.0
"""Who ran that long starts again from the short wait."""
START_ATTEMPTS: Final = 5
"""A child that never became ready and ended this often will not: better to say so than to go on."""
READY_POLL_SECONDS: Final = 0.1
"""Each look costs some CPU, of which a machine on which a start takes long has little."""
DENIED: Final = 4
"""Exit code of a child that calls the API, where it may not do what it is there for."""
READY_SECONDS: Final = 60.0
"""From the start of a child, or from its last sign of progress, until it must be ready, on a slow and busy machine."""
PROGRESS_SECONDS: Final = 5.0
"""How often a child that is not ready is asked how far it is."""
KILL_SECONDS: Final = 1.0
"""The kernel ends a killed process at once, unless a disk holds it up; then we do not wait for it."""
KILL_POLL_SECONDS: Final = 0.01
LOG_BYTES: Final = 10 * 1024 * 1024
"""Above this a log file is put aside, and the one that was put aside before is gone: at most twice this per child."""
LOG_CHECK_SECONDS: Final = 5.0
LOG_TAIL_BYTES: Final = 16 * 1024
LOG_TAIL_LINES: Final = 12
"""What is shown of a log when its child failed to start."""


class StartError(Exception):
    """A child could not be started, or did not become ready; the message says which, and shows the end of its log."""


class AskedToStopError(Exception):
    """We were asked to stop while still starting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One child: what it runs, how it is known to be ready, how it is asked to end."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    ready: Callable[[int], Awaitable[bool]] | None = None
    """Whether the child, given by its process id, serves. None: it is ready once it runs."""
    progress: Callable[[], Awaitable[str]] | None = None
    """What a child that is not ready is doing; as long as the answer changes, it is waited for."""
    waits_for_go: bool = False
    """It prepares, then waits for a line on its standard input before it touches anything."""
    first_word: str = "go"
    """That line until it was ready once; `go` from then on."""
    hopeless: int | None = None
    """The exit code by which it says that it would end so at every start."""
    stop_signal: signal.Signals = signal.SIGTERM
    user: linux.User | None = None
    keep_fds: tuple[int, ...] = ()
    """File descriptors that it inherits."""


class Family:
    """The processes that we started, told apart from orphans that came to us; what they say goes into log files."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self._ours: set[int] = set()
        self._being_started = 0

    async def spawn(self, spec: Spec) -> asyncio.subprocess.Process:
        """Start a child once. Whoever calls this also calls `wait`."""
        log_fd = os.open(self.log_path(spec), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._being_started += 1
        try:
            process = await asyncio.create_subprocess_exec(
                *spec.argv,
                env=dict(spec.env),
                stdin=asyncio.subprocess.PIPE if spec.waits_for_go else asyncio.subprocess.DEVNULL,
                stdout=log_fd,
                stderr=log_fd,
                start_new_session=True,
                pass_fds=spec.keep_fds,
                # Safe here: the supervisor has one thread.
                preexec_fn=linux.child_setup(spec.user),
            )
            self._ours.add(process.pid)
            return process
        finally:
            self._being_started -= 1
            os.close(log_fd)

    async def wait(self, process: asyncio.subprocess.Process) -> int:
        """Its exit code; the number of the signal, negative, where one ended it."""
        code = await process.wait()
        self._ours.discard(process.pid)
        return code

    async def run_once(
        self, spec: Spec, *, timeout_seconds: float = READY_SECONDS, passing: Container[int | None] = (0,)
    ) -> int | None:
        """Run a child that does one thing and ends; its exit code, one of `passing`. Raises StartError where it fails
        or takes too long.
        """
        process = await self.spawn(spec)
        try:
            async with asyncio.timeout(timeout_seconds):
                code = await self.wait(process)
        except TimeoutError:
            code = None
        finally:
            if process.returncode is None:
                process.kill()
                await self.wait(process)
        if code not in passing:
            reason = f"took longer than {timeout_seconds:.0f} s" if code is None else describe_end(code)
            raise StartError(f"{spec.name} {reason}; the end of its log:\n{self.log_tail(spec)}")
        return code

    @contextlib.asynccontextmanager
    async def collecting_orphans(self) -> AsyncGenerator[None]:
        """Collect adopted children when they end, so that none stays a zombie."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self._collect)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGCHLD)

    def _collect(self) -> None:
        if self._being_started:
            return  # one of ours is not known by its number yet; the next child that ends brings us here again
        for pid in linux.children_of_this_process():
            if pid not in self._ours:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    def log_path(self, spec: Spec) -> Path:
        return self.logs / f"{spec.name}.log"

    def log_tail(self, spec: Spec) -> str:
        """The name of a child's log and its last lines, indented."""
        path = self.log_path(spec)
        try:
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - LOG_TAIL_BYTES))
                lines = file.read().decode("utf-8", "replace").splitlines()
        except OSError:
            lines = []
        shown = [f"  {line[:400]}" for line in lines[-LOG_TAIL_LINES:]] or ["  (nothing)"]
        return "\n".join([f"  {path}:", *shown])

    async def rotate_logs(self) -> None:
        """Put log files aside that have grown, for ever. Children append: an emptied file goes on from its start."""
        while True:
            await asyncio.sleep(LOG_CHECK_SECONDS)
            for path in self.logs.glob("*.log"):
                # A full disk may not end this: it is then that what can be emptied must be.
                with contextlib.suppress(OSError):
                    if path.stat().st_size > LOG_BYTES:
                        _put_aside(path)


def _put_aside(path: Path) -> None:
    aside = path.with_suffix(".log.1")
    try:
        shutil.copyfile(path, aside)
    except OSError:
        aside.unlink(missing_ok=True)
    os.truncate(path, 0)


class Child:
    """One child that is kept running until it is told to stop."""

    def __init__(self, spec: Spec, family: Family, say: Callable[[str], None]) -> None:
        self.spec = spec
        self._family = family
        self.ready = asyncio.Event()
        self.failed = asyncio.Event()
        self._say = say
        self._said_at_end = ""
        self._stopping = False
        self._go = not spec.waits_for_go
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Its process id while it runs."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    def start(self) -> None:
        """Start it, and start it again whenever it ends."""
        self._keeper = asyncio.create_task(self._keep(), name=self.spec.name)

    def go(self) -> None:
        """Let it begin, now and after every restart."""
        self._go = True
        self._send_go()

    async def wait_ready(self, stop: asyncio.Event) -> None:
        """Wait until it serves. Raises StartError where it does not, AskedToStopError where `stop` is set first."""
        events = [asyncio.ensure_future(event.wait()) for event in (self.ready, self.failed, stop)]
        told, deadline = "", time.monotonic() + READY_SECONDS
        try:
            while not any(event.done() for event in events) and time.monotonic() < deadline:
                await asyncio.wait(events, timeout=PROGRESS_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                doing = "" if self.spec.progress is None else await self.spec.progress()
                if doing not in {"", told} and not self.ready.is_set():
                    self._say(f"  {self.spec.name}: {doing}")
                    told, deadline = doing, time.monotonic() + READY_SECONDS
        finally:
            for waiting in events:
                waiting.cancel()
        if self.ready.is_set():
            return
        if stop.is_set():
            raise AskedToStopError
        reason = self._said_at_end if self.failed.is_set() else f"was not ready after {READY_SECONDS:.0f} s"
        raise StartError(f"{self.spec.name} {reason}; the end of its log:\n{self._family.log_tail(self.spec)}")

    async def stop(self, grace_seconds: float) -> None:
        """Ask it to end; end it where it has not after the grace period."""
        self._stopping = True
        process = self._process
        if process is not None and process.returncode is None:
            await self._end(process, grace_seconds)
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)

    async def restart(self, grace_seconds: float, down: Callable[[], None] = lambda: None) -> None:
        """Have it end, do something while it is down, and have it started again as after a crash."""
        process = self._process
        if process is not None and process.returncode is None:
            await self._end(process, grace_seconds)
            down()  # a crash is followed by a pause, so nothing was started yet

    async def _end(self, process: asyncio.subprocess.Process, grace_seconds: float) -> None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(self.spec.stop_signal)
        try:
            async with asyncio.timeout(grace_seconds):
                await process.wait()
        except TimeoutError:
            self._say(f"{self.spec.name} did not end within {grace_seconds:.1f} s: killed")
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _keep(self) -> None:
        wait_seconds = FIRST_RESTART_SECONDS
        failures = 0
        while True:
            started = time.monotonic()
            code = await self._run_once()
            if self._stopping:
                return
            if not self.ready.is_set():
                failures += 1
                if failures == START_ATTEMPTS or code == self.spec.hopeless:
                    self._said_at_end = "ended at every start" if code != self.spec.hopeless else describe_end(code)
                    self.failed.set()
                    return
            if time.monotonic() - started > WELL_SECONDS:
                wait_seconds = FIRST_RESTART_SECONDS
            self._say(f"{self.spec.name} {describe_end(code)}: starting it again in {wait_seconds:.1f} s")
            await asyncio.sleep(wait_seconds)
            wait_seconds = min(wait_seconds * 2, LAST_RESTART_SECONDS)

    async def _run_once(self) -> int:
        process = await self._family.spawn(self.spec)
        self._process = process
        self._send_go()
        watcher = asyncio.create_task(self._watch_ready(process.pid))
        try:
            return await self._family.wait(process)
        finally:
            watcher.cancel()

    async def _watch_ready(self, pid: int) -> None:
        while self.spec.ready is not None and not await self.spec.ready(pid):
            await asyncio.sleep(READY_POLL_SECONDS)
        self.ready.set()

    def _send_go(self) -> None:
        process = self._process
        if not self.spec.waits_for_go or not self._go or process is None or process.stdin is None:
            return
        if not process.stdin.is_closing():
            word = "go" if self.ready.is_set() else self.spec.first_word
            process.stdin.write(f"{word}\n".encode())
            process.stdin.close()


def kill_leftovers() -> list[int]:
    """End and collect everything below us that still runs, by process id. Answers what was there.

    Only when nobody waits for children of their own any more.
    """
    found: list[int] = []
    deadline = time.monotonic() + KILL_SECONDS
    while time.monotonic() < deadline:
        pids = linux.descendants_of_this_process()
        found += [pid for pid in pids if pid not in found]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            break
        time.sleep(KILL_POLL_SECONDS)
    return found


def describe_end(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def say(text: str) -> None:
    """Talk goes to stderr."""
    print(f"muster: {text}", file=sys.stderr, flush=True)
