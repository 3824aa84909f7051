"""The files of one run on this machine: what the agent writes for its shim, and how it reads what the shim left.

Folders: `pods/<pod key>/<token>` while the run matters, `settled/...` once its end stands in the log (logs stay there).
"""

from datetime import UTC, datetime
from pathlib import Path
from signal import Signals
from typing import Literal

import msgspec

from events.cluster_protocol import ObservedPod, RunPod
from events.workload.commands import PodFactKind
from events.workload.pod_sets import StopBy
from services.agent.backends.local import shim


class LaidVolume(msgspec.Struct, frozen=True, kw_only=True):
    """As isolation.Volume."""

    kind: Literal["own", "node", "memory"]
    target: str
    source: str = ""
    read_only: bool = False
    most_bytes: int = 0


class Isolation(msgspec.Struct, frozen=True, kw_only=True):
    """What the pods of this machine do not see, or cannot change (isolation.py). Absolute paths of folders."""

    hidden: tuple[str, ...] = ()
    read_only: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()
    """Nothing new can be made in them; their folders are as they are outside."""
    kept: tuple[str, ...] = ()
    """Below a hidden one, and there all the same."""
    volumes: tuple[LaidVolume, ...] = ()
    untouched: tuple[str, ...] = ()
    """In these and below, no folder is made for a volume."""


class Preparation(msgspec.Struct, frozen=True, kw_only=True):
    """A command that runs before the pod's own, where and as that does."""

    arguments: tuple[str, ...]
    environment: dict[str, str]
    working_dir: str
    seconds: float
    """How long it may take."""
    folder: str
    """What it fills, as seen from outside."""
    most_bytes: int
    """How large that may become."""
    reason: str
    """Of the run, where it fails."""
    what: str
    """That is done, in words."""


class ShimRun(msgspec.Struct, frozen=True, kw_only=True):
    """What the shim needs to know."""

    arguments: tuple[str, ...]
    environment: dict[str, str]
    working_dir: str
    log_max_bytes: int
    prepare: tuple[Preparation, ...] = ()
    stop_by: StopBy | None = None
    isolation: Isolation | None = None
    """None: the command runs among all other processes of this machine, and sees what they see."""


class RunFile(msgspec.Struct, frozen=True, kw_only=True):
    """`run.json`."""

    pod: RunPod
    shim: ShimRun


class StopFile(msgspec.Struct, frozen=True, kw_only=True):
    """`stop.json`: who asked, and how long the command may take."""

    kind: Literal["stopped", "interrupted"]
    grace_seconds: float


class ProcessFile(msgspec.Struct, frozen=True, kw_only=True):
    """`shim.json` and `started.json`."""

    pid: int
    start_ticks: int
    boot_id: str
    at: float = 0.0
    """Unix seconds; when the command began."""
    first: "ProcessFile | None" = None
    """Of the command's PID namespace, where it has one; all that is in it ends with this process."""


class ExitFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`exit.json`: how the run ended. Written by the shim, or by the agent where there is no shim any more."""

    ended_at: float
    started_at: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    stop: StopFile | None = None
    reason: str = ""
    message: str = ""
    kind: PodFactKind | None = None
    """Set where the exit code does not say it."""


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def log(self) -> Path:
        return self.path / "log"

    def read_run(self) -> RunFile | None:
        return _read(self.path / "run.json", RunFile)

    def read_stop(self) -> StopFile | None:
        return _read(self.path / "stop.json", StopFile)

    def read_exit(self) -> ExitFile | None:
        return _read(self.path / "exit.json", ExitFile)

    def write_exit(self, exit_file: ExitFile) -> ExitFile:
        content: dict[str, object] = msgspec.to_builtins(exit_file)
        shim.write_record(str(self.path), "exit.json", content, durable=True)
        return exit_file

    def read_shim(self) -> ProcessFile | None:
        return _read(self.path / "shim.json", ProcessFile)

    def read_started(self) -> ProcessFile | None:
        return _read(self.path / "started.json", ProcessFile)


def _read[T](path: Path, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
        return None


def started(pod: ObservedPod, at: float) -> ObservedPod:
    return msgspec.structs.replace(pod, kind="running", at=_time(at), started_at=_time(at), message="")


def ended(pod: ObservedPod, exit_file: ExitFile) -> ObservedPod:
    """What the run's end means. An end that was asked for counts as asked for, whatever the exit code."""
    kind, reason, message = _meaning(exit_file)
    code = exit_file.exit_code
    if exit_file.signal is not None:
        code = 128 + exit_file.signal
    began = exit_file.started_at
    return msgspec.structs.replace(
        pod,
        kind=kind,
        at=_time(exit_file.ended_at),
        exit_code=code,
        reason=reason,
        message=message,
        started_at=pod.started_at if began is None else _time(began),
        ready=True,
    )


def _meaning(exit_file: ExitFile) -> tuple[PodFactKind, str, str]:
    if exit_file.kind is not None:
        return exit_file.kind, exit_file.reason, exit_file.message
    if exit_file.stop is not None:
        if exit_file.stop.kind == "stopped":
            return "stopped", "stopped", exit_file.message
        return "interrupted", "shutdown", "the machine or Muster on it was shut down"
    if exit_file.signal is not None:
        name = _signal_name(exit_file.signal)
        hint = "; perhaps the machine ran out of memory" if name == "SIGKILL" else ""
        return "failed", "signal", f"ended by {name}, which Muster did not send{hint}"
    if exit_file.exit_code == 0:
        return "succeeded", "", ""
    return "failed", exit_file.reason or "exit_code", exit_file.message


def _signal_name(number: int) -> str:
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"


def _time(unix_seconds: float) -> datetime:
    return datetime.fromtimestamp(unix_seconds, UTC)
