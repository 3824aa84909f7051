"""The processes that watch the runs of this machine, one a run: how they are started, found again and ended, and what
is learnt from them.
"""

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec
import structlog

from events.cluster_protocol import SealedValues
from events.workload.commands import PodWarning
from services.agent.backends.interface import BackendError
from services.agent.backends.local import shim
from services.agent.backends.local.environment import LocalMachine, run_mark
from services.agent.backends.local.leftovers import kill_left
from services.agent.backends.local.ports import address_of
from services.agent.backends.local.readiness import watch_readiness
from services.agent.backends.local.run_folder import ExitFile, ProcessFile, RunFolder, StopFile, started
from services.agent.backends.local.runs import Run, Runs, now
from services.agent.backends.local.volumes import own_variables

PACKAGES: Final = str(Path(shim.__file__).parents[4])
SHIM: Final = (
    "import sys; sys.path.append(sys.argv[1]); from services.agent.backends.local import shim; "
    "shim.main(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))"
)
"""Only the standard library and our own packages: what else is installed costs time to be looked through."""
STATUS_FD: Final = 3
"""Where a shim finds the pipe that it closes once the command runs: the first after the standard streams."""
SECRET_FD: Final = 4
"""Where it finds what its commands get of credentials: in memory alone, for they may stand on no disk."""
FORCE_SECONDS: Final = shim.KILL_SECONDS + shim.DRAIN_SECONDS + 3
"""How long after a grace period a shim may need; then it is killed itself, and what it left is cleaned up."""
SHIM_SECONDS: Final = 5.0
"""How long a shim that holds its lock may take to say who it is."""
NOT_READY: Final = "not_ready"

log = structlog.get_logger(__name__)


class Shims:
    def __init__(self, machine: LocalMachine, runs: Runs, over: Callable[[Run, ExitFile], None]) -> None:
        """Args: over, is called once with the end of each run."""
        self._machine = machine
        self._root = machine.data_dir
        self._runs = runs
        self._over = over
        self._boot_id = shim.boot_id()

    # -- starting and finding them -----------------------------------------------------------------------------------

    def start(self, run: Run, values: SealedValues) -> None:
        told, tell = os.pipe2(os.O_CLOEXEC)
        prepare = own_variables(run.pod, values)
        secret = _in_memory({"environment": values.environment, "prepare": prepare})
        folder = str(run.folder.path)
        output = str(run.folder.path / "shim.err")
        try:
            pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", "-B", "-c", SHIM, PACKAGES, folder, str(STATUS_FD), str(SECRET_FD)],
                {"LANG": "C.UTF-8"},
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 1, output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                    (os.POSIX_SPAWN_DUP2, tell, STATUS_FD),
                    (os.POSIX_SPAWN_DUP2, secret, SECRET_FD),
                ],
                setsid=True,
                # A stop that comes before the shim listens waits for it, instead of killing it.
                setsigmask=[signal.SIGTERM],
                setsigdef=[signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD],
            )
        except OSError:
            os.close(told)
            raise
        finally:
            os.close(tell)
            os.close(secret)
        run.status_fd = told
        asyncio.get_running_loop().add_reader(told, self._on_status, run)
        self._watch(run, pid)

    def _watch(self, run: Run, pid: int) -> None:
        run.shim_pid = pid
        run.pid_fd = os.pidfd_open(pid)
        asyncio.get_running_loop().add_reader(run.pid_fd, self._on_shim_gone, run)

    async def find(self, run: Run) -> None:
        """Find out what became of a run that an earlier agent started."""
        if begun := run.folder.read_started():
            self._begun(run, begun.at)
        self._runs.by_key[run.pod.pod_key, run.pod.token] = run
        if exit_file := run.folder.read_exit():
            self._over(run, exit_file)
        elif self._lives(run.folder):
            await self._watch_adopted(run)
        else:
            await self._lose(run)

    async def put_aside(self, folder: RunFolder) -> None:
        """A run of which nobody can say any more what it is, as after a disk lost its file: none of it may live on."""
        pod_key, token = folder.path.parts[-2:]
        if not (folder.path / "run.json").exists():
            # Nothing was started yet: the shim comes after run.json.
            shutil.rmtree(folder.path, ignore_errors=True)
            return
        begun = folder.read_started()
        give_up = asyncio.get_running_loop().time() + SHIM_SECONDS
        while self._lives(folder) and asyncio.get_running_loop().time() < give_up:
            watcher = folder.read_shim()
            there = None if watcher is None else shim.process(watcher.pid)
            if watcher is not None and there is not None and there.start_ticks == watcher.start_ticks:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(watcher.pid, signal.SIGKILL)
            await asyncio.sleep(0.05)
        left = await self._kill_left(pod_key, token, begun)
        log.error("run_unreadable", pod=pod_key, token=token, processes_killed=left, kept="settled")
        target = self._root / "settled" / pod_key / token
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.path.rename(target)

    async def _kill_left(self, pod_key: str, token: int | str, begun: ProcessFile | None) -> int:
        """End what a run without its shim left; how many processes that were."""
        session = begun if begun is not None and begun.boot_id == self._boot_id else None
        return await asyncio.to_thread(kill_left, run_mark(self._machine, pod_key, token), session)

    async def _watch_adopted(self, run: Run) -> None:
        give_up = asyncio.get_running_loop().time() + SHIM_SECONDS
        while (shim_file := run.folder.read_shim()) is None and asyncio.get_running_loop().time() < give_up:
            await asyncio.sleep(0.02)
        if shim_file is None:
            await self._after_shim(run)
            return
        try:
            self._watch(run, shim_file.pid)
        except ProcessLookupError:
            await self._after_shim(run)
            return
        if run.seen.kind == "starting":
            self._runs.spawn(self._await_start(run))
        if stop := run.folder.read_stop():
            self._force_after(run, stop.grace_seconds)

    async def _await_start(self, run: Run) -> None:
        """An adopted shim tells only the agent that started it; look for its record instead."""
        while run.live and run.seen.kind == "starting":
            self._read_started(run)
            await asyncio.sleep(0.05)

    def _lives(self, folder: RunFolder) -> bool:
        """A shim holds its lock for as long as it lives. Where none does, none may start any more."""
        lock = os.open(folder.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            (folder.path / shim.ABANDONED).touch()
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False

    # -- what happens to them ----------------------------------------------------------------------------------------

    def _on_status(self, run: Run) -> None:
        assert run.status_fd is not None
        asyncio.get_running_loop().remove_reader(run.status_fd)
        os.close(run.status_fd)
        run.status_fd = None
        self._read_started(run)

    def _read_started(self, run: Run) -> None:
        begun = run.folder.read_started()
        if begun is not None and run.seen.kind == "starting":
            self._begun(run, begun.at)
            self._runs.tell(run)

    def _begun(self, run: Run, at: float) -> None:
        """Its process runs; whether it is ready may have to be asked."""
        probe = run.pod.readiness
        run.seen = msgspec.structs.replace(started(run.seen, at), ready=probe is None, address=address_of(run.ports))
        if probe is not None:
            own = {port.container: port.port for port in run.ports}
            probe = msgspec.structs.replace(probe, port=own.get(probe.port, probe.port))
            run.asking = self._runs.spawn(watch_readiness(probe, lambda ready, why: self._is_ready(run, ready, why)))

    def _is_ready(self, run: Run, ready: bool, why: str) -> None:  # noqa: FBT001 (what watch_readiness says)
        if not run.live:
            return
        warnings = run.seen.warnings
        if not ready and all(told.reason != NOT_READY for told in warnings):
            warnings = (*warnings, PodWarning(reason=NOT_READY, message=f"it is not ready any more: {why}", at=now()))
        run.seen = msgspec.structs.replace(run.seen, ready=ready, warnings=warnings, at=now())
        self._runs.tell(run)

    def _on_shim_gone(self, run: Run) -> None:
        assert run.pid_fd is not None
        asyncio.get_running_loop().remove_reader(run.pid_fd)
        os.close(run.pid_fd)
        run.pid_fd = None
        with contextlib.suppress(ChildProcessError):
            os.waitpid(run.shim_pid, os.WNOHANG)
        self._read_started(run)
        if exit_file := run.folder.read_exit():
            self._over(run, exit_file)
        else:
            self._runs.spawn(self._after_shim(run))

    async def _after_shim(self, run: Run) -> None:
        if exit_file := run.folder.read_exit():
            self._over(run, exit_file)
            return
        await self._lose(run)

    async def _lose(self, run: Run) -> None:
        """The shim died without a word: kill what it left, and only then say that the run is over."""
        begun = run.folder.read_started()
        left = await self._kill_left(run.pod.pod_key, run.pod.token, begun)
        stop = run.folder.read_stop()
        kind = stop.kind if stop else "interrupted"
        reason = "lost" if stop is None else "stopped" if kind == "stopped" else "shutdown"
        restarted = begun is not None and begun.boot_id != self._boot_id
        message = "the machine was restarted" if restarted else "the process that watched it was killed"
        exit_file = ExitFile(
            ended_at=now().timestamp(),
            started_at=begun.at if begun else None,
            kind=kind,
            reason=reason,
            message=message,
        )
        log.warning("run_lost", pod=run.pod.pod_key, token=run.pod.token, processes_killed=left, reason=message)
        try:
            run.folder.write_exit(exit_file)
        except OSError as error:
            log.warning("exit_not_recorded", pod=run.pod.pod_key, error=str(error))
        self._over(run, exit_file)

    # -- ending them -------------------------------------------------------------------------------------------------

    def ask_to_end(self, run: Run, stop: StopFile) -> None:
        asked = run.folder.read_stop()
        if asked is not None:
            # Who asked first decides what it counts as; whoever asks later can only shorten the time.
            stop = StopFile(kind=asked.kind, grace_seconds=min(asked.grace_seconds, stop.grace_seconds))
        content: dict[str, object] = msgspec.to_builtins(stop)
        try:
            shim.write_record(str(run.folder.path), "stop.json", content)
        except OSError as error:
            raise BackendError(f"pod {run.pod.pod_key}: {error}") from error
        if run.pid_fd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(run.pid_fd, signal.SIGTERM)
        self._force_after(run, stop.grace_seconds)

    def _force_after(self, run: Run, grace_seconds: float) -> None:
        if run.force is not None:
            run.force.cancel()
        loop = asyncio.get_running_loop()
        run.force = loop.call_later(grace_seconds + FORCE_SECONDS, self.kill, run)

    def kill(self, run: Run) -> None:
        """Its command dies with it, and what is left is found by its mark."""
        if run.pid_fd is not None:
            log.warning(
                "shim_killed", pod=run.pod.pod_key, token=run.pod.token, reason="it did not end its pod in time"
            )
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(run.pid_fd, signal.SIGKILL)

    def leave(self) -> None:
        """Look at them no more: they and their runs go on."""
        for run in self._runs.all():
            for descriptor in (run.pid_fd, run.status_fd):
                if descriptor is not None:
                    asyncio.get_running_loop().remove_reader(descriptor)
                    os.close(descriptor)
            run.pid_fd = run.status_fd = None
            if run.force is not None:
                run.force.cancel()


def _in_memory(what: Mapping[str, object]) -> int:
    """A file descriptor from which this can be read; of no file system. Raises OSError."""
    descriptor = os.memfd_create("muster-run", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "wb", closefd=False) as file:
        file.write(msgspec.json.encode(what))
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
