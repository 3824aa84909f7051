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
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, assert_never

import msgspec
import structlog

from events.cluster import StorageClass
from events.cluster_protocol import (
    LogLine,
    LogsRequest,
    ObservedNode,
    RunPod,
    SealedValues,
    SessionOpen,
    SourceToLookAt,
    UsageSample,
    WantedCluster,
)
from events.node import NodeFacts
from events.workload.commands import PodWarning
from events.workload.volumes import LOCAL_CLASS, ClaimedFolder, ClonedFolder, ConfigFiles, NodeFolder
from services.agent.backends.interface import (
    NO_VALUES,
    BackendError,
    ClusterSettings,
    HeldClaims,
    NoWayError,
    Observation,
    Picture,
    Way,
)
from services.agent.backends.local.checkpoints import newest_file
from services.agent.backends.local.claims import Claims
from services.agent.backends.local.config_files import ConfigFolders
from services.agent.backends.local.environment import LocalMachine
from services.agent.backends.local.files import Fences
from services.agent.backends.local.gpus import Gpus, open_gpus
from services.agent.backends.local.kept_logs import KeptLogs
from services.agent.backends.local.mpi import Meetings
from services.agent.backends.local.run_folder import ExitFile, RunFolder, StopFile, ended
from services.agent.backends.local.runs import WORK, Run, Runs, now, own_folders
from services.agent.backends.local.saved import SavedWork
from services.agent.backends.local.shims import Shims
from services.agent.backends.local.starts import Starts
from services.agent.backends.local.usage import UsageMeter
from services.agent.backends.local.volumes import FOLDER, own_volumes
from services.agent.backends.local.ways import Attach, Exec, Place, PortForward
from services.agent.backends.reach import server_of, unreachable
from services.agent.code import CodeSource

ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
"""The machine's name for it, and Kubernetes'."""
LOCK_SECONDS: Final = 5.0
"""How long an agent waits for its predecessor to let go of the folder."""
END_MARGIN_SECONDS: Final = 1.0
"""Of the time for an interruption: what is kept back for killing and for writing down the ends."""
DEVICE_LOST: Final = "device_lost"

log = structlog.get_logger(__name__)


class LocalBackend:
    def __init__(self, machine: LocalMachine, code: CodeSource, open_gpus: Callable[[int], Gpus] = open_gpus) -> None:
        self._machine = machine
        self._code = code
        self._open_gpus = open_gpus
        self._root = machine.data_dir
        self._node_name = socket.gethostname()
        self._runs = Runs()
        self._lock_fd = -1
        self._claims = Claims(self._root / "claims")
        self._config_folders = ConfigFolders(self._root)
        self._meetings = Meetings(self._root / "mpi")
        self._gpus: Gpus
        self._fences: Fences
        self._usage: UsageMeter
        self._starts: Starts
        self._shims = Shims(machine, self._runs, self._end)
        self._saved = SavedWork(self._runs, self._claims, machine.look_at_checkpoints_seconds)
        self._logs = KeptLogs(machine, self._runs)

    async def open(self) -> "LocalBackend":
        """Take the folder, and find the pods that an earlier agent started. Raises BackendError."""
        for folder in ("pods", "settled"):
            (self._root / folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        await self._lock()
        self._gpus = self._open_gpus(self._machine.stand_in_gpus)
        self._usage = UsageMeter(self._gpus)
        self._fences = Fences(self._root / "fences")
        self._claims.open()
        self._runs.spawn(asyncio.to_thread(self._claims.clear))
        self._starts = Starts(
            self._machine,
            self._node_name,
            self._runs,
            claims=self._claims,
            config_folders=self._config_folders,
            meetings=self._meetings,
            gpus=self._gpus,
        )
        for path in sorted((self._root / "pods").glob("*/*")):
            await self._adopt(RunFolder(path))
        await asyncio.to_thread(self._meetings.clear, {run.pod.workload_id for run in self._runs.all()})
        self._runs.spawn(self._logs.clean_up())
        self._runs.spawn(self._saved.look())
        return self

    async def _adopt(self, folder: RunFolder) -> None:
        """Find out what became of a run that an earlier agent started."""
        file = folder.read_run()
        if file is None:
            await self._shims.put_aside(folder)
        else:
            await self._shims.find(self._starts.found_again(file, folder))

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
        while not self._runs.news.empty():
            self._runs.news.get_nowait()
        await asyncio.to_thread(self._gpus.look)
        self._warn_of_lost_devices()
        node = ObservedNode(name=self._node_name, facts=self._facts())
        return Picture(pods=tuple(run.seen for run in self._runs.all()), nodes=(node,))

    def _warn_of_lost_devices(self) -> None:
        working = {gpu.name for gpu in self._gpus.devices}
        for run in self._runs.all():
            lost = [f"device {number} is {name}" for number, name in run.devices.items() if name not in working]
            if run.live and lost and all(told.reason != DEVICE_LOST for told in run.seen.warnings):
                message = f"{', '.join(lost)}, and does not work any more"
                warning = PodWarning(reason=DEVICE_LOST, message=message, at=now())
                run.seen = msgspec.structs.replace(run.seen, warnings=(*run.seen.warnings, warning))

    async def watch(self) -> AsyncIterator[Sequence[Observation]]:
        while True:
            news = [await self._runs.news.get()]
            while not self._runs.news.empty():
                news.append(self._runs.news.get_nowait())
            yield news

    def fences(self) -> Mapping[str, int]:
        return self._fences.tokens

    async def look(self, source: SourceToLookAt) -> str:
        """At claims, ConfigMaps, Secrets, paths of this machine, and servers of repositories. What else there is, this
        cluster does not have, and it is refused.
        """
        match source.volume:
            case ClaimedFolder(claim=claim, new=None) if source.project_id:
                there = await asyncio.to_thread(self._claims.has, source.project_id, claim)
                return "" if there else f"the project has no claim {claim} here"
            case ConfigFiles(object_name=name) as files if source.project_id:
                there = await asyncio.to_thread(self._config_folders.has, source.project_id, files)
                return "" if there else f"the project has no {'Secret' if files.secret else 'ConfigMap'} {name} here"
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
            for run in self._runs.all()
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
        if (pod.pod_key, pod.token) in self._runs.by_key:
            return
        if pod.token < self._fences.tokens.get(pod.pod_key, 0):
            raise BackendError(f"run {pod.token} of {pod.pod_key} may not be started any more")
        folder = RunFolder(self._root / "pods" / pod.pod_key / str(pod.token))
        run = Run(pod=pod, folder=folder, seen=self._starts.starting(pod))
        try:
            self._fences.raise_to(pod.pod_key, pod.token)
            for name in (*own_folders(pod), *own_volumes(pod)):
                (folder.path / name).mkdir(parents=True, exist_ok=True)
            problem = await self._code.bring(self._machine.cluster_id, pod, folder.path / WORK) if pod.code else ""
            refusal = self._starts.refusal(run, problem)
            run.refused = refusal is not None
            # From here on nothing waits: the folder is not taken away by a run that is forgotten meanwhile.
            self._meetings.prepare(pod)
            self._starts.write(run)
            self._runs.by_key[pod.pod_key, pod.token] = run
            if refusal is not None:
                self._end(run, folder.write_exit(refusal))
                return
            self._shims.start(run, values)
        except OSError as error:
            self._runs.by_key.pop((pod.pod_key, pod.token), None)
            raise BackendError(f"pod {pod.pod_key}: {error}") from error
        self._runs.tell(run)

    # -- their ends ------------------------------------------------------------------------------------------------

    def _end(self, run: Run, exit_file: ExitFile) -> None:
        if run.force is not None:
            run.force.cancel()
        folder = None if run.refused else self._saved.folder_of(run.pod)
        if folder is None:
            self._over(run, exit_file)
        else:
            self._runs.spawn(self._over_after_look(run, folder, exit_file))

    async def _over_after_look(self, run: Run, folder: Path, exit_file: ExitFile) -> None:
        """What it saved last counts, and it may have done so a moment ago."""
        self._saved.note(run, await asyncio.to_thread(newest_file, folder))
        self._over(run, exit_file)

    def _over(self, run: Run, exit_file: ExitFile) -> None:
        run.seen = ended(run.seen, exit_file)
        if run.asking is not None:
            run.asking.cancel()
        self._usage.forget(run.pod)
        self._runs.tell(run)

    # -- stopping --------------------------------------------------------------------------------------------------

    def lacking(self) -> Sequence[tuple[str, int]]:
        return ()

    async def delete(self, pod_key: str, token: int, grace_seconds: int) -> None:
        self._raise_fence(pod_key, token + 1)
        for run in self._runs.of(pod_key, token):
            if run.live:
                self._shims.ask_to_end(run, StopFile(kind="stopped", grace_seconds=grace_seconds))

    async def is_there(self, pod_key: str, token: int) -> bool:
        return any(run.pod.token == token for run in self._runs.of(pod_key, token))

    async def claims(self) -> Sequence[HeldClaims]:
        return [held for held in self._claims.held() if not self._runs.lives(held.workload_id)]

    async def remove_claims(self, workload_id: str, *, ephemeral_only: bool) -> None:
        if self._runs.lives(workload_id):
            return
        # As an API server does: a claim of a workload that is gone stays while a pod of another one uses it.
        in_use = {folder for run in self._runs.all() if run.live for folder in self._claims.folders_of(run.pod)}
        try:
            for folder in self._claims.remove(workload_id, ephemeral_only=ephemeral_only, in_use=in_use):
                log.info("claim_deleted", workload=workload_id)
                self._runs.spawn(asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True))
        except OSError as error:
            raise BackendError(f"claims of workload {workload_id}: {error}") from error

    def problem(self) -> str:
        return ""

    def standby(self) -> str:
        return ""

    def may_start(self) -> bool:
        return True

    async def interrupt(self, seconds: float) -> int:
        """End all pods for a shutdown; they count as interrupted, and may run again."""
        live = [run for run in self._runs.all() if run.live]
        grace = max(seconds - END_MARGIN_SECONDS, 0)
        for run in live:
            self._shims.ask_to_end(run, StopFile(kind="interrupted", grace_seconds=min(run.pod.grace_seconds, grace)))
        deadline = asyncio.get_running_loop().time() + seconds
        while any(run.live for run in live) and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)
        for run in live:
            if run.live:
                self._shims.kill(run)
        return len(live)

    async def forget(self, pod_key: str, token: int) -> None:
        self._raise_fence(pod_key, token + 1)
        for run in self._runs.of(pod_key, token):
            if run.live:
                continue
            target = self._root / "settled" / pod_key / str(run.pod.token)
            try:
                target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                run.folder.path.rename(target)
            except OSError as error:
                raise BackendError(f"pod {pod_key}: {error}") from error
            run.folder = RunFolder(target)
            del self._runs.by_key[pod_key, run.pod.token]
            with contextlib.suppress(OSError):
                (self._root / "pods" / pod_key).rmdir()
            # A pod's own folders go with the pod, as a container's files do.
            for name in (*own_folders(run.pod), FOLDER):
                self._runs.spawn(asyncio.to_thread(shutil.rmtree, target / name, ignore_errors=True))
            if run.pod.mpi is not None:
                self._leave_meeting(run.pod.workload_id)

    def _leave_meeting(self, workload_id: str) -> None:
        if any(run.pod.workload_id == workload_id for run in self._runs.all()):
            return
        with contextlib.suppress(OSError):  # it is tried again when the agent starts
            if (left := self._meetings.leave(workload_id)) is not None:
                self._runs.spawn(asyncio.to_thread(shutil.rmtree, left, ignore_errors=True))

    def _raise_fence(self, pod_key: str, token: int) -> None:
        try:
            self._fences.raise_to(pod_key, token)
        except OSError as error:
            raise BackendError(f"pod {pod_key}: {error}") from error

    async def close(self) -> None:
        self._shims.leave()
        await self._runs.close()
        self._fences.close()
        self._gpus.close()
        os.close(self._lock_fd)

    # -- ways in -----------------------------------------------------------------------------------------------------

    async def open_way(self, request: SessionOpen) -> Way:
        run = self._runs.by_key.get((request.pod_key, request.token))
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

    def logs(self, request: LogsRequest) -> AsyncIterator[Sequence[LogLine]]:
        return self._logs.read(request)


def _labels(name: str) -> dict[str, str]:
    """As a kubelet labels its node."""
    machine = platform.machine().lower()
    return {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": ARCHITECTURES.get(machine, machine),
    }


def _is_missing(path: str) -> bool:
    """Whether nothing is there for sure: what this user may not see may be there."""
    try:
        Path(path).stat()
    except FileNotFoundError:
        return True
    except OSError:
        pass
    return False
