"""This machine as a cluster of one node: really runs each pod's command, by one shim per pod (shim.py).

For development: requests and limits of CPU and memory are recorded and not enforced, images are not pulled, and pods
share this machine's network and its user's files, but not Muster's (isolation.py). Linux only. Everything lives under
one data folder that one agent holds locked.
"""

import asyncio
import contextlib
import fcntl
import os
import platform
import shutil
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, assert_never

import msgspec
import structlog

from events.cluster import StorageClass
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
from events.phases import NO_CLAIM, NO_COMMAND, NODE_PORT_TAKEN
from events.workload.commands import PodWarning
from events.workload.pod import PodRef, PortAddress
from events.workload.volumes import LOCAL_CLASS, ClaimedFolder, ClonedFolder, NodeFolder, checkpoint_of
from services.agent.backends.interface import (
    BAD_CODE,
    LIVE_KINDS,
    NO_CREDENTIALS,
    NO_VALUES,
    BackendError,
    ClusterSettings,
    HeldClaims,
    LogsUnavailableError,
    NoWayError,
    Observation,
    Picture,
    Way,
)
from services.agent.backends.local import shim
from services.agent.backends.local.checkpoints import MOST_ENTRIES, NOT_WHOLE, Newest, newest_file
from services.agent.backends.local.claims import ClaimError, Claims
from services.agent.backends.local.environment import LocalMachine, held_devices, pod_environment, run_mark
from services.agent.backends.local.files import Fences, delete_old_logs, with_copies
from services.agent.backends.local.gpus import Gpus, NoSuchDeviceError, choose, open_gpus
from services.agent.backends.local.leftovers import kill_left
from services.agent.backends.local.log_file import read_log
from services.agent.backends.local.mpi import TEMPORARY, Meetings, is_server
from services.agent.backends.local.ports import (
    PortTakenError,
    address_of,
    choose_ports,
    held_ports,
    moved_ports,
    port_variables,
)
from services.agent.backends.local.program import program_of
from services.agent.backends.local.readiness import watch_readiness
from services.agent.backends.local.run_folder import (
    ExitFile,
    LaidVolume,
    ProcessFile,
    RunFile,
    RunFolder,
    ShimRun,
    StopFile,
    ended,
    started,
)
from services.agent.backends.local.usage import UsageMeter
from services.agent.backends.local.volumes import (
    FOLDER,
    VOLUME,
    impossible_volume,
    laid_volumes,
    own_variables,
    own_volumes,
    preparations,
    untouched_folders,
)
from services.agent.backends.local.ways import Attach, Exec, Place, PortForward
from services.agent.backends.privileged import NOT_PRIVILEGED, beyond_baseline
from services.agent.backends.reach import server_of, unreachable
from services.agent.backends.sources import NO_SUCH_SOURCE, missing_sources
from services.agent.backends.which_run import which_run
from services.agent.code import CodeSource

ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
"""The machine's name for it, and Kubernetes'."""
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
LOCK_SECONDS: Final = 5.0
"""How long an agent waits for its predecessor to let go of the folder."""
SHIM_SECONDS: Final = 5.0
"""How long a shim that holds its lock may take to say who it is."""
CLEAN_SECONDS: Final = 3600.0
"""How often logs that are too old or too many are looked for."""
END_MARGIN_SECONDS: Final = 1.0
"""Of the time for an interruption: what is kept back for killing and for writing down the ends."""
DEVICE_LOST: Final = "device_lost"
NOT_READY: Final = "not_ready"
WORK: Final = "work"
HOME: Final = "home"
"""Folders of a run."""

log = structlog.get_logger(__name__)


class _Run(msgspec.Struct, kw_only=True):
    pod: RunPod
    folder: RunFolder
    seen: ObservedPod
    pid_fd: int | None = None
    """Of the shim; None once it is gone."""
    shim_pid: int = 0
    devices: dict[int, str] = {}
    """Names of the devices that it holds, by their number on this node."""
    ports: tuple[PortAddress, ...] = ()
    """Those that it has of this machine."""
    status_fd: int | None = None
    refused: bool = False
    """Whether it is never started."""
    asking: asyncio.Task[None] | None = None
    """Asks whether it is ready."""
    force: asyncio.TimerHandle | None = None

    @property
    def live(self) -> bool:
        return self.seen.kind in LIVE_KINDS


class LocalBackend:
    def __init__(self, machine: LocalMachine, code: CodeSource, open_gpus: Callable[[int], Gpus] = open_gpus) -> None:
        self._machine = machine
        self._code = code
        self._open_gpus = open_gpus
        self._root = machine.data_dir
        self._node_name = socket.gethostname()
        self._runs: dict[tuple[str, int], _Run] = {}
        self._news: asyncio.Queue[Observation] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._lock_fd = -1
        self._claims = Claims(self._root / "claims")
        self._meetings = Meetings(self._root / "mpi")
        self._gpus: Gpus
        self._fences: Fences
        self._usage: UsageMeter
        self._boot_id = shim.boot_id()

    async def open(self) -> "LocalBackend":
        """Take the folder, and find the pods that an earlier agent started. Raises BackendError."""
        for folder in ("pods", "settled"):
            (self._root / folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        await self._lock()
        self._gpus = self._open_gpus(self._machine.stand_in_gpus)
        self._usage = UsageMeter(self._gpus)
        self._fences = Fences(self._root / "fences")
        self._claims.open()
        self._spawn(asyncio.to_thread(self._claims.clear))
        for path in sorted((self._root / "pods").glob("*/*")):
            await self._adopt(RunFolder(path))
        await asyncio.to_thread(self._meetings.clear, {run.pod.workload_id for run in self._runs.values()})
        self._spawn(self._clean_up())
        self._spawn(self._look_at_checkpoints())
        return self

    async def _lock(self) -> None:
        self._lock_fd = os.open(self._root / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        give_up = asyncio.get_running_loop().time() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if asyncio.get_running_loop().time() > give_up:
                    os.close(self._lock_fd)
                    raise BackendError(f"another agent holds {self._root}: stop it first") from None
                await asyncio.sleep(0.1)
            else:
                return

    # -- what is there ---------------------------------------------------------------------------------------------

    def follow(self, cluster: WantedCluster) -> bool:  # noqa: ARG002 (what it is stands in its settings)
        return False

    async def list_all(self) -> Picture:
        while not self._news.empty():
            self._news.get_nowait()
        await asyncio.to_thread(self._gpus.look)
        self._warn_of_lost_devices()
        node = ObservedNode(name=self._node_name, facts=self._facts())
        return Picture(pods=tuple(run.seen for run in self._runs.values()), nodes=(node,))

    def _warn_of_lost_devices(self) -> None:
        working = {gpu.name for gpu in self._gpus.devices}
        for run in self._runs.values():
            lost = [f"device {number} is {name}" for number, name in run.devices.items() if name not in working]
            if run.live and lost and all(told.reason != DEVICE_LOST for told in run.seen.warnings):
                message = f"{', '.join(lost)}, and does not work any more"
                warning = PodWarning(reason=DEVICE_LOST, message=message, at=_now())
                run.seen = msgspec.structs.replace(run.seen, warnings=(*run.seen.warnings, warning))

    async def watch(self) -> AsyncIterator[Sequence[Observation]]:
        while True:
            news = [await self._news.get()]
            while not self._news.empty():
                news.append(self._news.get_nowait())
            yield news

    def fences(self) -> Mapping[str, int]:
        return self._fences.tokens

    async def look(self, source: SourceToLookAt) -> str:
        """At claims, paths of this machine, and servers of repositories. What this cluster does not have is refused."""
        match source.volume:
            case ClaimedFolder(claim=claim, new=None) if source.project_id:
                there = await asyncio.to_thread(self._claims.has, source.project_id, claim)
                return "" if there else f"the project has no claim {claim} here"
            case NodeFolder(path=path):
                return f"this machine has no {path}" if await asyncio.to_thread(_is_missing, path) else ""
            case ClonedFolder() as volume if (server := server_of(volume)) is not None:
                return await unreachable(*server, own=True)
            case _:
                return ""

    async def settings(self) -> ClusterSettings:
        return ClusterSettings(storage_classes=(StorageClass(name=LOCAL_CLASS, default=True),))

    async def usage(self) -> Sequence[UsageSample]:
        running = [
            (run.pod, run.seen, run.shim_pid, tuple(run.devices.values()))
            for run in self._runs.values()
            if run.seen.kind == "running"
        ]
        return await asyncio.to_thread(self._usage.sample, running) if running else []

    def _facts(self) -> NodeFacts:
        devices = self._gpus.devices
        return NodeFacts(
            cpu_milli=self._machine.cpu_milli,
            memory_bytes=self._machine.memory_bytes,
            gpu_count=len(devices),
            gpu_model=devices[0].model if devices else "",
            gpu_memory_bytes=devices[0].memory_bytes if devices else 0,
            labels=_labels(self._node_name),
            stand_in=self._gpus.stand_in and bool(devices),
        )

    # -- starting --------------------------------------------------------------------------------------------------

    async def apply(self, pod: RunPod, values: SealedValues = NO_VALUES) -> None:
        if (pod.pod_key, pod.token) in self._runs:
            return
        if pod.token < self._fences.tokens.get(pod.pod_key, 0):
            raise BackendError(f"run {pod.token} of {pod.pod_key} may not be started any more")
        folder = RunFolder(self._root / "pods" / pod.pod_key / str(pod.token))
        seen = self._starting(pod)
        run = _Run(pod=pod, folder=folder, seen=seen)
        try:
            self._fences.raise_to(pod.pod_key, pod.token)
            for name in (*_own_folders(pod), *own_volumes(pod)):
                (folder.path / name).mkdir(parents=True, exist_ok=True)
            problem = await self._code.bring(self._machine.cluster_id, pod, folder.path / WORK) if pod.code else ""
            refusal = self._refusal(run)
            if problem and refusal is None:
                refusal = ExitFile(ended_at=_now().timestamp(), kind="failed", reason=BAD_CODE, message=problem)
            refusal = refusal or self._claim(pod) or self._take_ports(run)
            seen = run.seen
            run.refused = refusal is not None
            # From here on nothing waits: the folder is not taken away by a run that is forgotten meanwhile.
            self._meetings.prepare(pod)
            self._write_run(run)
            self._runs[pod.pod_key, pod.token] = run
            if refusal is not None:
                self._end(run, folder.write_exit(refusal))
                return
            self._start_shim(run, values)
        except OSError as error:
            self._runs.pop((pod.pod_key, pod.token), None)
            raise BackendError(f"pod {pod.pod_key}: {error}") from error
        self._news.put_nowait(seen)

    def _what_is_run(self, pod: RunPod) -> str:
        """What a person must know of a run here, where neither image nor limits act."""
        program = (
            "it waits for mpirun with a program of Muster's"
            if is_server(pod)
            else program_of(pod.arguments, pod_environment(pod, self._machine, ()))
        )
        image = f"image {pod.image!r} is recorded, not pulled{': ' if program else ''}{program}"
        return f"{image}; CPU and memory limits are not enforced here"

    def _starting(self, pod: RunPod) -> ObservedPod:
        return ObservedPod(
            pod_key=pod.pod_key,
            token=pod.token,
            workload_id=pod.workload_id,
            pod=pod.pod,
            kind="starting",
            at=_now(),
            node_name=self._node_name,
            note=self._what_is_run(pod),
        )

    def _write_run(self, run: _Run) -> None:
        pod, gpus = run.pod, {gpu.name: gpu for gpu in self._gpus.devices}
        work, isolation = str(run.folder.path / WORK), self._machine.isolation
        own = tuple(str(run.folder.path / name) for name in _own_folders(pod))
        if isolation is not None:
            hidden = with_copies(isolation.hidden)
            isolation = msgspec.structs.replace(
                isolation,
                hidden=hidden,
                kept=(*own, *self._meetings.kept(pod)),
                volumes=() if run.refused else self._laid(run, work),
                untouched=untouched_folders(pod, self._machine.home),
            )
        environment = pod_environment(
            pod,
            self._machine,
            [gpus[name] for name in run.devices.values()],
            home=str(run.folder.path / HOME) if pod.container.home else "",
            more=port_variables(pod, run.ports) | self._meetings.variables(pod),
        )
        if isolation is not None:
            work = self._meetings.work(pod) or work
        what = ShimRun(
            arguments=self._meetings.arguments(pod),
            environment=environment,
            prepare=preparations(pod, run.folder.path, environment),
            working_dir=work if pod.code else pod.working_dir or work,
            log_max_bytes=self._machine.log_max_bytes,
            stop_by=pod.stop_by,
            isolation=isolation,
        )
        content: dict[str, object] = msgspec.to_builtins(RunFile(pod=pod, shim=what))
        shim.write_record(str(run.folder.path), "run.json", content)

    def _laid(self, run: _Run, work: str) -> tuple[LaidVolume, ...]:
        pod = run.pod
        own = laid_volumes(pod, run.folder.path, lambda claim: self._claims.folder_of(pod, claim))
        return (*self._meetings.laid(pod, work, str(run.folder.path / TEMPORARY)), *own)

    def _refusal(self, run: _Run) -> ExitFile | None:
        """Why this run cannot be started here, as its end; else it holds its devices."""
        now, pod = _now().timestamp(), run.pod
        if pod.node_name != self._node_name:
            message = f"this cluster's only node is {self._node_name!r}, not {pod.node_name!r}"
            return ExitFile(ended_at=now, kind="refused", reason="no_such_node", message=message)
        numbers = [share.device for share in pod.devices]
        held = {number: name for other in self._runs.values() if other.live for number, name in other.devices.items()}
        try:
            names = choose(numbers, held, [gpu.name for gpu in self._gpus.devices])
        except NoSuchDeviceError as error:
            return ExitFile(ended_at=now, kind="refused", reason="no_such_device", message=str(error))
        if not self._meetings.arguments(pod):
            message = (
                f"the local cluster pulls no images, so it cannot know the entry point of {pod.image!r}: "
                "give it a command, which stands behind the flags: -- program"
            )
            return ExitFile(ended_at=now, kind="failed", reason=NO_COMMAND, message=message)
        if pod.no_credentials:
            return ExitFile(ended_at=now, kind="failed", reason=NO_CREDENTIALS, message=pod.no_credentials)
        if message := missing_sources(pod, "local"):
            return ExitFile(ended_at=now, kind="failed", reason=NO_SUCH_SOURCE, message=message)
        if message := beyond_baseline(pod):
            return ExitFile(ended_at=now, kind="failed", reason=NOT_PRIVILEGED, message=message)
        if message := impossible_volume(pod, isolated=self._machine.isolation is not None):
            return ExitFile(ended_at=now, kind="failed", reason=VOLUME, message=message)
        run.devices = dict(zip(numbers, names, strict=True))
        return None

    def _take_ports(self, run: _Run) -> ExitFile | None:
        """Have its ports, or say as its end which it cannot have."""
        others = [other for other in self._runs.values() if other.live]
        held = {port.port for other in others for port in other.ports} | self._machine.own_ports
        same = [other for other in others if other.pod.workload_id == run.pod.workload_id]
        try:
            run.ports = choose_ports(run.pod, held, {port.port for other in same for port in other.ports})
        except PortTakenError as error:
            return ExitFile(ended_at=_now().timestamp(), kind="failed", reason=NODE_PORT_TAKEN, message=str(error))
        if moved := moved_ports(run.ports):
            run.seen = msgspec.structs.replace(run.seen, note=f"{run.seen.note}; {moved}")
        return None

    def _claim(self, pod: RunPod) -> ExitFile | None:
        """Have its claims there, or say as its end why they cannot be. Raises OSError."""
        try:
            self._claims.ensure(pod)
        except ClaimError as error:
            return ExitFile(ended_at=_now().timestamp(), kind="failed", reason=NO_CLAIM, message=str(error))
        return None

    def _start_shim(self, run: _Run, values: SealedValues) -> None:
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
        self._watch_shim(run, pid)

    def _watch_shim(self, run: _Run, pid: int) -> None:
        run.shim_pid = pid
        run.pid_fd = os.pidfd_open(pid)
        asyncio.get_running_loop().add_reader(run.pid_fd, self._on_shim_gone, run)

    async def _adopt(self, folder: RunFolder) -> None:
        """Find out what became of a run that an earlier agent started."""
        file = folder.read_run()
        if file is None:
            await self._put_aside(folder)
            return
        pod = file.pod
        seen = self._starting(pod)
        ports = held_ports(pod, file.shim.environment)
        if moved := moved_ports(ports):
            seen = msgspec.structs.replace(seen, note=f"{seen.note}; {moved}")
        devices = held_devices(pod, file.shim.environment)
        run = _Run(pod=pod, folder=folder, seen=seen, devices=devices, ports=ports)
        if begun := folder.read_started():
            self._begun(run, begun.at)
        self._runs[pod.pod_key, pod.token] = run
        if exit_file := folder.read_exit():
            self._end(run, exit_file)
        elif self._shim_lives(folder):
            await self._watch_adopted(run)
        else:
            await self._lose(run)

    async def _put_aside(self, folder: RunFolder) -> None:
        """A run of which nobody can say any more what it is, as after a disk lost its file: none of it may live on."""
        pod_key, token = folder.path.parts[-2:]
        if not (folder.path / "run.json").exists():
            # Nothing was started yet: the shim comes after run.json.
            shutil.rmtree(folder.path, ignore_errors=True)
            return
        begun = folder.read_started()
        give_up = asyncio.get_running_loop().time() + SHIM_SECONDS
        while self._shim_lives(folder) and asyncio.get_running_loop().time() < give_up:
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

    async def _watch_adopted(self, run: _Run) -> None:
        give_up = asyncio.get_running_loop().time() + SHIM_SECONDS
        while (shim_file := run.folder.read_shim()) is None and asyncio.get_running_loop().time() < give_up:
            await asyncio.sleep(0.02)
        if shim_file is None:
            await self._after_shim(run)
            return
        try:
            self._watch_shim(run, shim_file.pid)
        except ProcessLookupError:
            await self._after_shim(run)
            return
        if run.seen.kind == "starting":
            self._spawn(self._await_start(run))
        if stop := run.folder.read_stop():
            self._force_after(run, stop.grace_seconds)

    async def _await_start(self, run: _Run) -> None:
        """An adopted shim tells only the agent that started it; look for its record instead."""
        while run.live and run.seen.kind == "starting":
            self._read_started(run)
            await asyncio.sleep(0.05)

    def _shim_lives(self, folder: RunFolder) -> bool:
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

    # -- what happens ----------------------------------------------------------------------------------------------

    def _on_status(self, run: _Run) -> None:
        assert run.status_fd is not None
        asyncio.get_running_loop().remove_reader(run.status_fd)
        os.close(run.status_fd)
        run.status_fd = None
        self._read_started(run)

    def _read_started(self, run: _Run) -> None:
        begun = run.folder.read_started()
        if begun is not None and run.seen.kind == "starting":
            self._begun(run, begun.at)
            self._news.put_nowait(run.seen)

    def _begun(self, run: _Run, at: float) -> None:
        """Its process runs; whether it is ready may have to be asked."""
        probe = run.pod.readiness
        run.seen = msgspec.structs.replace(started(run.seen, at), ready=probe is None, address=address_of(run.ports))
        if probe is not None:
            own = {port.container: port.port for port in run.ports}
            probe = msgspec.structs.replace(probe, port=own.get(probe.port, probe.port))
            run.asking = self._spawn(watch_readiness(probe, lambda ready, why: self._is_ready(run, ready, why)))

    def _is_ready(self, run: _Run, ready: bool, why: str) -> None:  # noqa: FBT001 (what watch_readiness says)
        if not run.live:
            return
        warnings = run.seen.warnings
        if not ready and all(told.reason != NOT_READY for told in warnings):
            warnings = (*warnings, PodWarning(reason=NOT_READY, message=f"it is not ready any more: {why}", at=_now()))
        run.seen = msgspec.structs.replace(run.seen, ready=ready, warnings=warnings, at=_now())
        self._news.put_nowait(run.seen)

    def _on_shim_gone(self, run: _Run) -> None:
        assert run.pid_fd is not None
        asyncio.get_running_loop().remove_reader(run.pid_fd)
        os.close(run.pid_fd)
        run.pid_fd = None
        with contextlib.suppress(ChildProcessError):
            os.waitpid(run.shim_pid, os.WNOHANG)
        self._read_started(run)
        if exit_file := run.folder.read_exit():
            self._end(run, exit_file)
        else:
            self._spawn(self._after_shim(run))

    async def _after_shim(self, run: _Run) -> None:
        if exit_file := run.folder.read_exit():
            self._end(run, exit_file)
            return
        await self._lose(run)

    async def _lose(self, run: _Run) -> None:
        """The shim died without a word: kill what it left, and only then say that the run is over."""
        begun = run.folder.read_started()
        left = await self._kill_left(run.pod.pod_key, run.pod.token, begun)
        stop = run.folder.read_stop()
        kind = stop.kind if stop else "interrupted"
        reason = "lost" if stop is None else "stopped" if kind == "stopped" else "shutdown"
        restarted = begun is not None and begun.boot_id != self._boot_id
        message = "the machine was restarted" if restarted else "the process that watched it was killed"
        exit_file = ExitFile(
            ended_at=_now().timestamp(),
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
        self._end(run, exit_file)

    def _end(self, run: _Run, exit_file: ExitFile) -> None:
        if run.force is not None:
            run.force.cancel()
        folder = None if run.refused else self._checkpoint_folder(run.pod)
        if folder is None:
            self._over(run, exit_file)
        else:
            self._spawn(self._over_after_look(run, folder, exit_file))

    async def _over_after_look(self, run: _Run, folder: Path, exit_file: ExitFile) -> None:
        """What it saved last counts, and it may have done so a moment ago."""
        self._saved(run, await asyncio.to_thread(newest_file, folder))
        self._over(run, exit_file)

    def _over(self, run: _Run, exit_file: ExitFile) -> None:
        run.seen = ended(run.seen, exit_file)
        if run.asking is not None:
            run.asking.cancel()
        self._usage.forget(run.pod)
        self._news.put_nowait(run.seen)

    # -- what is saved ---------------------------------------------------------------------------------------------

    def _checkpoint_folder(self, pod: RunPod) -> Path | None:
        claim = checkpoint_of(pod.volumes)
        with contextlib.suppress(ClaimError):
            return None if claim is None else self._claims.folder_of(pod, claim)
        return None

    async def _look_at_checkpoints(self) -> None:
        while True:
            await asyncio.sleep(self._machine.look_at_checkpoints_seconds)
            running: dict[Path, list[_Run]] = {}
            for run in self._runs.values():
                if run.seen.kind == "running" and (folder := self._checkpoint_folder(run.pod)) is not None:
                    running.setdefault(folder, []).append(run)
            for folder, runs in running.items():
                newest = await asyncio.to_thread(newest_file, folder)
                for run in runs:
                    if run.live and self._saved(run, newest):
                        self._news.put_nowait(run.seen)

    def _saved(self, run: _Run, newest: Newest) -> bool:
        """Note what was found in its checkpoint folder; whether that is news."""
        before, warnings = run.seen, run.seen.warnings
        if not newest.whole and all(told.reason != NOT_WHOLE for told in warnings):
            message = (
                f"its checkpoint folder holds more than {MOST_ENTRIES:,} files, or is very deep: newer ones may have "
                "been overlooked, so its work at risk may be less than is shown"
            )
            warnings = (*warnings, PodWarning(reason=NOT_WHOLE, message=message, at=_now()))
        # A file may say any time; one that is still to come was changed by now.
        at = run.seen.checkpoint_at if newest.at is None else datetime.fromtimestamp(min(newest.at, time.time()), UTC)
        run.seen = msgspec.structs.replace(run.seen, checkpoint_at=at, warnings=warnings)
        return run.seen != before

    # -- stopping --------------------------------------------------------------------------------------------------

    def lacking(self) -> Sequence[tuple[str, int]]:
        return ()

    async def delete(self, pod_key: str, token: int, grace_seconds: int) -> None:
        self._raise_fence(pod_key, token + 1)
        for run in self._of(pod_key, token):
            if run.live:
                self._ask_to_end(run, StopFile(kind="stopped", grace_seconds=grace_seconds))

    async def is_there(self, pod_key: str, token: int) -> bool:
        return any(run.pod.token == token for run in self._of(pod_key, token))

    async def claims(self) -> Sequence[HeldClaims]:
        return [held for held in self._claims.held() if not self._lives(held.workload_id)]

    async def remove_claims(self, workload_id: str, *, ephemeral_only: bool) -> None:
        if self._lives(workload_id):
            return
        # As an API server does: a claim of a workload that is gone stays while a pod of another one uses it.
        in_use = {folder for run in self._runs.values() if run.live for folder in self._claims.folders_of(run.pod)}
        try:
            for folder in self._claims.remove(workload_id, ephemeral_only=ephemeral_only, in_use=in_use):
                log.info("claim_deleted", workload=workload_id)
                self._spawn(asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True))
        except OSError as error:
            raise BackendError(f"claims of workload {workload_id}: {error}") from error

    def _lives(self, workload_id: str) -> bool:
        return any(run.live and run.pod.workload_id == workload_id for run in self._runs.values())

    def problem(self) -> str:
        return ""

    def standby(self) -> str:
        return ""

    def may_start(self) -> bool:
        return True

    async def interrupt(self, seconds: float) -> int:
        """End all pods for a shutdown; they count as interrupted, and may run again."""
        live = [run for run in self._runs.values() if run.live]
        grace = max(seconds - END_MARGIN_SECONDS, 0)
        for run in live:
            self._ask_to_end(run, StopFile(kind="interrupted", grace_seconds=min(run.pod.grace_seconds, grace)))
        deadline = asyncio.get_running_loop().time() + seconds
        while any(run.live for run in live) and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)
        for run in live:
            if run.live:
                self._kill_shim(run)
        return len(live)

    def _ask_to_end(self, run: _Run, stop: StopFile) -> None:
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

    def _force_after(self, run: _Run, grace_seconds: float) -> None:
        if run.force is not None:
            run.force.cancel()
        loop = asyncio.get_running_loop()
        run.force = loop.call_later(grace_seconds + FORCE_SECONDS, self._kill_shim, run)

    def _kill_shim(self, run: _Run) -> None:
        """Its command dies with it, and what is left is found by its mark."""
        if run.pid_fd is not None:
            log.warning(
                "shim_killed", pod=run.pod.pod_key, token=run.pod.token, reason="it did not end its pod in time"
            )
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(run.pid_fd, signal.SIGKILL)

    async def forget(self, pod_key: str, token: int) -> None:
        self._raise_fence(pod_key, token + 1)
        for run in self._of(pod_key, token):
            if run.live:
                continue
            target = self._root / "settled" / pod_key / str(run.pod.token)
            try:
                target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                run.folder.path.rename(target)
            except OSError as error:
                raise BackendError(f"pod {pod_key}: {error}") from error
            run.folder = RunFolder(target)
            del self._runs[pod_key, run.pod.token]
            with contextlib.suppress(OSError):
                (self._root / "pods" / pod_key).rmdir()
            # A pod's own folders go with the pod, as a container's files do.
            for name in (*_own_folders(run.pod), FOLDER):
                self._spawn(asyncio.to_thread(shutil.rmtree, target / name, ignore_errors=True))
            if run.pod.mpi is not None:
                self._leave_meeting(run.pod.workload_id)

    def _leave_meeting(self, workload_id: str) -> None:
        if any(run.pod.workload_id == workload_id for run in self._runs.values()):
            return
        with contextlib.suppress(OSError):  # it is tried again when the agent starts
            if (left := self._meetings.leave(workload_id)) is not None:
                self._spawn(asyncio.to_thread(shutil.rmtree, left, ignore_errors=True))

    def _raise_fence(self, pod_key: str, token: int) -> None:
        try:
            self._fences.raise_to(pod_key, token)
        except OSError as error:
            raise BackendError(f"pod {pod_key}: {error}") from error

    def _of(self, pod_key: str, up_to: int) -> Sequence[_Run]:
        return [run for (key, token), run in self._runs.items() if key == pod_key and token <= up_to]

    async def close(self) -> None:
        for run in self._runs.values():
            for descriptor in (run.pid_fd, run.status_fd):
                if descriptor is not None:
                    asyncio.get_running_loop().remove_reader(descriptor)
                    os.close(descriptor)
            run.pid_fd = run.status_fd = None
            if run.force is not None:
                run.force.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._fences.close()
        self._gpus.close()
        os.close(self._lock_fd)

    # -- ways in -----------------------------------------------------------------------------------------------------

    async def open_way(self, request: SessionOpen) -> Way:
        run = self._runs.get((request.pod_key, request.token))
        begun = None if run is None else run.folder.read_started()
        file = None if run is None else run.folder.read_run()
        if run is None or not run.live or begun is None or file is None or run.pod.workload_id != request.workload_id:
            raise NoWayError("pod_not_running", "this run of the pod is not there, or not any more")
        place = Place(file=file, begun=begun, shim_pid=run.shim_pid, ports=run.ports, seen=lambda: run.seen)
        match request.kind:
            case "exec":
                return await Exec.start(request, place)
            case "attach":
                return Attach(request, place, self.logs)
            case "port-forward":
                return PortForward(request, place)
            case _:
                assert_never(request.kind)

    # -- logs ------------------------------------------------------------------------------------------------------

    async def logs(self, request: LogsRequest) -> AsyncIterator[Sequence[LogLine]]:
        token, opened = self._open_run(request)
        try:
            run = self._runs.get((request.pod_key, token))
            running = None if run is None or not request.follow else lambda: run.live
            log = Path(f"/proc/self/fd/{opened}/log")
            lines = read_log(log, tail_lines=request.tail_lines, since=request.since, running=running)
            async for batch in lines:
                yield batch
        finally:
            os.close(opened)

    def _open_run(self, request: LogsRequest) -> tuple[int, int]:
        """The token of the newest run that the request means, and its folder, opened: it is moved when the run is
        settled, and what is read then must not depend on where it lies. Raises LogsUnavailableError.
        """
        folders = self._kept_runs(request)
        token = which_run(request, {token: pod for token, (pod, _) in folders.items()})
        with contextlib.suppress(FileNotFoundError):
            return token, os.open(folders[token][1], os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        # Moved in this very moment, which happens once.
        settled = self._root / "settled" / request.pod_key / str(token)
        try:
            return token, os.open(settled, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise LogsUnavailableError("this log was deleted a moment ago", no_such_run=True) from None

    def _kept_runs(self, request: LogsRequest) -> dict[int, tuple[PodRef, Path]]:
        """By token: a pod key is shared by all incarnations of a workload's name."""
        runs: dict[int, tuple[PodRef, Path]] = {}
        # In the order in which a run is moved: one that is moved meanwhile is found there.
        for part in ("pods", "settled"):
            for path in (self._root / part / request.pod_key).glob("*"):
                file = RunFolder(path).read_run()
                if file is not None and file.pod.workload_id == request.workload_id:
                    runs[file.pod.token] = (file.pod.pod, path)
        return runs

    async def _clean_up(self) -> None:
        while True:
            machine = self._machine
            count = await asyncio.to_thread(
                delete_old_logs, self._root / "settled", machine.log_retention_seconds, machine.logs_total_max_bytes
            )
            if count:
                log.info("old_logs_deleted", runs=count)
            await asyncio.sleep(CLEAN_SECONDS)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _in_memory(what: Mapping[str, object]) -> int:
    """A file descriptor from which this can be read; of no file system. Raises OSError."""
    descriptor = os.memfd_create("muster-run", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "wb", closefd=False) as file:
        file.write(msgspec.json.encode(what))
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _own_folders(pod: RunPod) -> tuple[str, ...]:
    """Of a run: where it starts, its home where it has one of its own, and what MPI needs."""
    return (WORK, *((HOME,) if pod.container.home else ()), *((TEMPORARY,) if pod.mpi is not None else ()))


def _labels(name: str) -> dict[str, str]:
    """As a kubelet labels its node."""
    machine = platform.machine().lower()
    return {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": ARCHITECTURES.get(machine, machine),
    }


def _now() -> datetime:
    return datetime.now(UTC)


def _is_missing(path: str) -> bool:
    """Whether nothing is there for sure: what this user may not see may be there."""
    try:
        Path(path).stat()
    except FileNotFoundError:
        return True
    except OSError:
        pass
    return False
