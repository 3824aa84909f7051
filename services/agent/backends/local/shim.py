"""Runs one pod's command on this machine, and writes down what became of it. A process of its own for each.

It outlives the agent: it keeps the pod's log, carries out a stop with its grace period, kills everything that the
command started, and leaves `exit.json`. Standard library only, and little of it: its start is part of every pod's.

A run's folder holds: `run.json` (what to run), `lock` (held while the shim lives), `shim.json` and `started.json` (who
runs), `stop.json` (written by the agent, then SIGTERM), `exit.json` (the end), `log` and `log.1`.
"""

# ruff: noqa: PTH105, PTH108, PTH110, PTH118, PTH123, PTH208, S606
# pathlib takes longer to import than everything else here together; there is no shell to start.

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import select
import signal
import time

from services.agent.backends.local import isolation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
"""Linux prctl(2): orphans below the shim become its children, so that nothing a command starts gets out of sight."""
READ_BYTES = 65536
"""One read of a pipe: a Linux pipe's whole capacity."""
PIECE_BYTES = 16384
"""Longer lines are kept in pieces, so that output without a newline needs no memory; as Kubernetes' runtimes do."""
DRAIN_SECONDS = 2.0
"""How long output is still read once every process is gone; only a descriptor passed to a stranger lasts longer."""
KILL_SECONDS = 10.0
"""How long a process may take to die of SIGKILL before it is left (it then hangs in the kernel)."""
DEFAULT_GRACE_SECONDS = 5.0
"""Grace after a SIGTERM that came without `stop.json`: the machine is going down."""
ABANDONED = "abandoned"
"""A file by which an agent says, holding the lock, that no shim may start this run any more."""
PREPARE_LOOK_MS = 1000.0
"""How often it is looked at how large that is which is prepared."""
RECORD_TRIES = 60
"""How often the exit record is tried, once a second, where the disk is full; then the agent finds the run lost."""


class StartError(Exception):
    """The command could not be started: (exit code as a shell gives it, reason, message)."""

    def __init__(self, exit_code: int | None, reason: str, message: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.reason = reason


# -- records and processes (the agent uses these, too) ----------------------------------------------------------------


def write_record(directory: str, name: str, record: dict[str, object], *, durable: bool = False) -> None:
    """Write a small JSON file whole or not at all; `durable`: also through a loss of power."""
    path = os.path.join(directory, name)
    temporary = f"{path}.{os.getpid()}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        left = memoryview(json.dumps(record).encode())
        while left:  # what a nearly full disk takes may be a part; the next part is refused
            left = left[os.write(descriptor, left) :]
        if durable:
            os.fsync(descriptor)
    except OSError:
        os.unlink(temporary)  # on a full disk, every try would leave one
        raise
    finally:
        os.close(descriptor)
    os.replace(temporary, path)
    if durable:
        folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def read_record(directory: str, name: str) -> dict[str, object] | None:
    try:
        with open(os.path.join(directory, name), "rb") as file:
            return json.loads(file.read())
    except (FileNotFoundError, ValueError):
        return None


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


class Process:
    """One line of the process table."""

    __slots__ = ("cpu_ticks", "parent", "pid", "rss_pages", "session", "start_ticks", "state")

    def __init__(self, pid: int, fields: list[bytes]) -> None:
        # Fields of /proc/<pid>/stat after the name, counted from the state (proc_pid_stat(5), field 3).
        self.pid = pid
        self.state = fields[0]
        self.parent = int(fields[1])
        self.session = int(fields[3])
        self.cpu_ticks = sum(map(int, fields[11:15]))
        """Of the process and of the children it has waited for."""
        self.start_ticks = int(fields[19])
        self.rss_pages = int(fields[21])


def process(pid: int) -> Process | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return Process(pid, text[text.rindex(b")") + 2 :].split())


def process_table() -> dict[int, Process]:
    found = (process(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {entry.pid: entry for entry in found if entry is not None}


def identity(pid: int) -> dict[str, object]:
    """Pid and start time: together they name a process for as long as the machine is up."""
    entry = process(pid)
    return {"pid": pid, "start_ticks": entry.start_ticks if entry else 0, "boot_id": boot_id()}


def children_of(table: dict[int, Process]) -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for entry in table.values():
        children.setdefault(entry.parent, []).append(entry.pid)
    return children


def descendants(root: int, table: dict[int, Process], children: dict[int, list[int]]) -> list[int]:
    """Everything below a process, itself not included; zombies left out."""
    found: list[int] = []
    reached = [root]
    while reached:
        below = children.get(reached.pop(), [])
        reached.extend(below)
        found.extend(pid for pid in below if table[pid].state != b"Z")
    return found


def below(root: int) -> set[int]:
    table = process_table()
    return set(descendants(root, table, children_of(table)))


def send_signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def kill_found(find: "Callable[[], set[int]]") -> None:
    """SIGKILL for everything that `find` finds. First all are stopped until no new ones come, so that a command that
    forks faster than it is killed does not get away.
    """
    stopped: set[int] = set()
    while fresh := find() - stopped:
        for pid in fresh:
            send_signal(pid, signal.SIGSTOP)
        stopped |= fresh
    for pid in stopped:
        send_signal(pid, signal.SIGKILL)


def kill_below(root: int) -> None:
    kill_found(lambda: below(root))


# -- the log -----------------------------------------------------------------------------------------------------------


class Log:
    """The pod's output as Kubernetes' runtimes keep it: `<RFC 3339 time> stdout|stderr F|P <text>` per line, P for a
    piece of a line that goes on. Two files of at most half the size each. A full disk loses lines, never the pod.
    """

    def __init__(self, directory: str, max_bytes: int) -> None:
        self._path = os.path.join(directory, "log")
        self._half_bytes = max(max_bytes // 2, PIECE_BYTES)
        self._open_lines = {b"stdout": b"", b"stderr": b""}
        self._file = self._open()
        self._size = os.fstat(self._file).st_size
        self._last = b""

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def _now(self) -> bytes:
        """Never before the last line's: a reader goes on by the time that it has come to, also where a clock is set."""
        self._last = max(self._last, _timestamp())
        return self._last

    def take(self, stream: bytes, chunk: bytes) -> None:
        lines = (self._open_lines[stream] + chunk).split(b"\n")
        self._open_lines[stream] = lines.pop()
        prefix = b"%s %s " % (self._now(), stream)
        out = [_whole_line(prefix, line) for line in lines]
        rest = self._open_lines[stream]
        while len(rest) >= PIECE_BYTES:
            out.append(b"%sP %s\n" % (prefix, rest[:PIECE_BYTES]))
            rest = rest[PIECE_BYTES:]
        self._open_lines[stream] = rest
        self._write(b"".join(out))

    def say(self, text: str) -> None:
        """A line of our own among the pod's, also where the pod is in the middle of one."""
        self._write(b"%s stderr F muster: %s\n" % (self._now(), text.encode()))

    def close(self) -> None:
        """What was never ended by a newline is a line, too."""
        for stream, rest in self._open_lines.items():
            if rest:
                self._write(b"%s %s F %s\n" % (self._now(), stream, rest))
        os.close(self._file)

    def _write(self, data: bytes) -> None:
        """Whole lines, to the brim of each file: how much is kept must not depend on how the output came."""
        with contextlib.suppress(OSError):
            while data:
                room = self._half_bytes - self._size
                cut = len(data) if len(data) <= room else data.rfind(b"\n", 0, max(room, 0)) + 1
                if not cut and self._size:
                    self._rotate()
                    continue
                # A line larger than a file has one of its own.
                cut = cut or data.find(b"\n") + 1
                self._size += os.write(self._file, data[:cut])
                data = data[cut:]

    def _rotate(self) -> None:
        os.replace(self._path, f"{self._path}.1")
        os.close(self._file)
        self._file = self._open()
        self._size = 0


def _whole_line(prefix: bytes, line: bytes) -> bytes:
    if len(line) <= PIECE_BYTES:
        return b"%sF %s\n" % (prefix, line)
    pieces = [line[at : at + PIECE_BYTES] for at in range(0, len(line), PIECE_BYTES)]
    return b"".join(b"%sP %s\n" % (prefix, piece) for piece in pieces[:-1]) + b"%sF %s\n" % (prefix, pieces[-1])


def _timestamp() -> bytes:
    now = time.time_ns()
    return b"%s.%09dZ" % (time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now // 10**9)).encode(), now % 10**9)


# -- the run -----------------------------------------------------------------------------------------------------------


class Command:
    """Something to run."""

    def __init__(self, fields: "Any") -> None:
        self.arguments: list[str] = fields["arguments"]
        self.environment: dict[str, str] = fields["environment"]
        self.working_dir: str = fields["working_dir"]


class Preparation(Command):
    """One of `prepare` in the same (run_folder.Preparation)."""

    def __init__(self, fields: "Any") -> None:
        super().__init__(fields)
        self.seconds: float = fields["seconds"]
        self.folder: str = fields["folder"]
        self.most_bytes: int = fields["most_bytes"]
        self.reason: str = fields["reason"]
        self.what: str = fields["what"]


class What(Command):
    """The part `shim` of `run.json` (run_folder.ShimRun)."""

    def __init__(self, fields: "Any") -> None:
        super().__init__(fields)
        self.prepare = [Preparation(each) for each in fields.get("prepare", ())]
        self.log_max_bytes: int = fields["log_max_bytes"]
        self.isolation: dict[str, Any] | None = fields["isolation"]
        by: dict[str, Any] = fields.get("stop_by") or {}
        self.stop_signal: str = by.get("signal", "")
        """In the place of SIGTERM."""
        self.stop_arguments: list[str] = by.get("arguments", [])
        """Of a command that runs before SIGTERM."""


def cell_for(run: "What") -> "isolation.Cell | None":
    """The namespaces that the command is to run in, where it is to have its own. Raises StartError."""
    if run.isolation is None:
        return None
    try:
        folders = dict(run.isolation)
        volumes = [isolation.Volume(**volume) for volume in folders.pop("volumes", ())]
        return isolation.enter(isolation.Walls(volumes=volumes, **folders))
    except isolation.VolumeError as error:
        raise StartError(None, "no_volume" if error.for_ever else "volume", str(error)) from error
    except (isolation.IsolationError, OSError) as error:
        raise StartError(None, "not_isolated", f"this machine cannot shut the pod off from Muster: {error}") from error


def quiet(out: int, err: int) -> "Callable[[], tuple[int, int, int]]":
    """Streams of a command that is given nothing to read."""
    return lambda: (os.open(os.devnull, os.O_RDONLY), out, err)


def start_command(run: Command, cell: "isolation.Cell | None", streams: "Callable[[], tuple[int, int, int]]") -> int:
    """Start the command in a session of its own; its pid. Raises StartError with what execve(2) said.

    Args:
        streams: what it reads and writes; opened where it runs.
    """
    arguments, environment, working_dir = run.arguments, run.environment, run.working_dir
    libc = ctypes.CDLL(None)
    # Of a child in a PID namespace, a parent outside has no number.
    shim = 0 if cell else os.getpid()
    told, tell = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        step = "prepare"
        try:
            os.setsid()
            if cell is not None:
                step = "isolate"
                cell.join()
                isolation.give_up_rights()
            # The command dies with its shim; what it started itself is found by its mark (leftovers.py).
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != shim:
                os._exit(1)
            step = "prepare"
            for target, source in enumerate(streams()):
                os.dup2(source, target)
            step = "chdir"
            os.chdir(working_dir)
            step = "exec"
            for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
            os.execvpe(arguments[0], arguments, environment)
        except BaseException as error:  # noqa: BLE001 (nothing may return into the shim's own code in this process)
            number = error.errno if isinstance(error, OSError) else 0
            os.write(tell, json.dumps([step, number, str(error)]).encode())
        os._exit(127)
    os.close(tell)
    with os.fdopen(told, "rb") as answer:
        said = answer.read()
    if said:
        os.waitpid(pid, 0)
        raise _start_error(said, arguments[0], working_dir)
    return pid


def _start_error(said: bytes, command: str, working_dir: str) -> StartError:
    step, number, text = json.loads(said)
    text = os.strerror(number) if number else text
    if step == "isolate":
        return StartError(None, "not_isolated", f"this machine cannot shut the pod off from Muster: {text}")
    if step == "chdir":
        return StartError(None, "working_dir", f"cannot enter the working directory {working_dir!r}: {text}")
    if step == "exec" and number == errno.ENOENT:
        return StartError(127, "command_not_found", f"command not found on this machine: {command!r}")
    if step == "exec" and number in (errno.ENOEXEC, errno.EACCES):
        return StartError(126, "not_executable", f"not executable on this machine: {command!r} ({text})")
    return StartError(None, "start_failed", f"could not start {command!r}: {text}")


class Shim:
    """Waits for the command's end, and for somebody to ask for it."""

    def __init__(self, directory: str, run: "What") -> None:
        self._directory = directory
        self._run = run
        self._log = Log(directory, run.log_max_bytes)
        self._poll = select.poll()
        self._streams: dict[int, bytes] = {}
        self._woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll.register(self._woken, select.POLLIN)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._main = 0
        self._status: int | None = None
        self._cell: isolation.Cell | None = None
        self._runs = False
        """Whether it is the pod's own command that runs, and not one that comes before it."""
        self._before_end = 0
        """Process of the command that runs before SIGTERM."""
        self._stop: dict[str, object] | None = None
        self._kill_at: float | None = None
        self._term_received = False

    def on_term(self, _number: int, _frame: object) -> None:
        self._term_received = True

    def stop_requested(self) -> dict[str, object] | None:
        return read_record(self._directory, "stop.json")

    def run(self, status_fd: int) -> dict[str, object]:
        """Run the command to its end; the record of it."""
        if early := self.stop_requested():
            return {"stop": early, "ended_at": time.time()}
        out, err = self._pipe(b"stdout"), self._pipe(b"stderr")
        try:
            cell = self._cell = cell_for(self._run)
            for preparation in self._run.prepare:
                if (end := self._prepare(preparation, cell, out, err)) is not None:
                    return end
            self._main, self._runs = start_command(self._run, cell, quiet(out, err)), True
        except StartError as error:
            return {
                "ended_at": time.time(),
                "exit_code": error.exit_code,
                "reason": error.reason,
                "message": str(error),
            }
        finally:
            os.close(out)
            os.close(err)
        started_at = time.time()
        first = identity(cell.init_pid) if cell is not None else None
        write_record(self._directory, "started.json", identity(self._main) | {"at": started_at, "first": first})
        tell(status_fd)
        while self._status is None:
            self._turn(self._wait_ms())
        ended_at = time.time()
        self._end_all()
        record: dict[str, object] = {"started_at": started_at, "ended_at": ended_at}
        if os.WIFSIGNALED(self._status):
            record["signal"] = os.WTERMSIG(self._status)
        else:
            record["exit_code"] = os.WEXITSTATUS(self._status)
        if self._stop is not None:
            record["stop"] = self._stop
        return record

    def _prepare(
        self, preparation: Preparation, cell: "isolation.Cell | None", out: int, err: int
    ) -> "dict[str, object] | None":
        """Run what comes before the command; the record of the end that this is, where it is one. Raises StartError."""
        self._main = start_command(preparation, cell, quiet(out, err))
        give_up, beyond = time.monotonic() + preparation.seconds, ""
        while self._status is None:
            self._turn(min(self._wait_ms() or PREPARE_LOOK_MS, PREPARE_LOOK_MS))
            if not beyond and time.monotonic() >= give_up:
                beyond = f"it took longer than {preparation.seconds:.0f} s"
            elif not beyond and size_of(preparation.folder) > preparation.most_bytes:
                beyond = f"it became larger than {preparation.most_bytes} bytes"
            if beyond:
                kill_below(os.getpid())
        code = os.waitstatus_to_exitcode(self._status)
        if code == 0 and self._stop is None and not beyond:
            self._status = None
            return None
        ended_at = time.time()
        self._end_all()
        if self._stop is not None:
            return {"ended_at": ended_at, "stop": self._stop}
        why = beyond or f"exit code {code}; its log says why"
        return {
            "ended_at": ended_at,
            "reason": preparation.reason,
            "message": f"this machine could not {preparation.what}: {why}",
        }

    def _pipe(self, stream: bytes) -> int:
        read, write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read, False)
        self._streams[read] = stream
        self._poll.register(read, select.POLLIN)
        return write

    def _wait_ms(self) -> float | None:
        return None if self._kill_at is None else max(self._kill_at - time.monotonic(), 0) * 1000 + 1

    def _turn(self, wait_ms: float | None) -> None:
        for descriptor, _ in self._poll.poll(wait_ms):
            if descriptor == self._woken:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._woken, READ_BYTES)
            else:
                self._read(descriptor)
        self._reap()
        if self._term_received:
            self._term_received = False
            self._begin_stop()
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._kill_at = None
            self._before_end = 0  # killed with all else, it is followed by nothing
            if self._tells:
                self._log.say("the grace period is over: killed")
            kill_below(os.getpid())

    def _read(self, descriptor: int) -> None:
        try:
            chunk = os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            return
        if chunk:
            self._log.take(self._streams[descriptor], chunk)
            return
        self._poll.unregister(descriptor)
        del self._streams[descriptor]
        os.close(descriptor)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self._main:
                    self._status = status
                elif pid == self._before_end:
                    self._before_end = 0
                    code = os.waitstatus_to_exitcode(status)
                    how = f"signal {-code}" if code < 0 else f"exit code {code}"
                    self._terminate(f"its preStop command ended with {how}")

    def _begin_stop(self) -> None:
        """SIGTERM to the command's group, or what the workload has in its place; SIGKILL to all after the grace period.
        A later stop can only shorten it.
        """
        if self._status is not None:
            return
        asked = self.stop_requested() or {"kind": "interrupted", "grace_seconds": DEFAULT_GRACE_SECONDS}
        grace = asked["grace_seconds"]
        assert isinstance(grace, int | float)
        kill_at = time.monotonic() + grace
        if self._stop is None:
            self._stop = asked
            self._kill_at = kill_at
            self._ask(grace)
        elif self._kill_at is not None:
            self._kill_at = min(self._kill_at, kill_at)

    @property
    def _tells(self) -> bool:
        """Whether the pod's log says how it is ended."""
        return self._runs and bool(self._run.stop_signal or self._run.stop_arguments)

    def _ask(self, grace: float) -> None:
        """The command to end by itself."""
        if not self._tells or grace <= 0:
            self._signal(signal.SIGTERM)
        elif name := self._run.stop_signal:
            self._log.say(f"told to end: {name} sent; killed in {grace:g} s unless it ends before")
            # Not to its group, as SIGTERM: processes that it started would die of a signal that they do not know, and
            # on Kubernetes the first process alone gets it.
            send_signal(self._main, signal.Signals[name])
        else:
            self._run_before_end(grace)

    def _run_before_end(self, grace: float) -> None:
        run = self._run
        self._log.say(f"told to end: its preStop command runs; killed in {grace:g} s unless it ends before")
        command = Command(
            {"arguments": run.stop_arguments, "environment": run.environment, "working_dir": run.working_dir}
        )
        out, err = self._pipe(b"stdout"), self._pipe(b"stderr")
        try:
            self._before_end = start_command(command, self._cell, quiet(out, err))
        except StartError as error:
            self._terminate(f"its preStop command could not be started: {error}")
        finally:
            os.close(out)
            os.close(err)

    def _terminate(self, why: str) -> None:
        if self._status is None:
            self._log.say(f"{why}; SIGTERM sent")
            self._signal(signal.SIGTERM)

    def _signal(self, number: int) -> None:
        """To the command's group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._main, number)

    def _end_all(self) -> None:
        """A pod ends with its command: what it left behind is killed, what it wrote is kept."""
        give_up = time.monotonic() + KILL_SECONDS
        while below(os.getpid()) and time.monotonic() < give_up:
            kill_below(os.getpid())
            self._turn(20)
        give_up = time.monotonic() + DRAIN_SECONDS
        while self._streams and time.monotonic() < give_up:
            self._turn(100)
        self._log.close()


def size_of(folder: str) -> int:
    """Bytes of the files in it, at any depth; of what is just going away nothing."""
    size = 0
    folders = [folder]
    while folders:
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as found:
            for entry in found:
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    else:
                        size += entry.stat(follow_symlinks=False).st_size
    return size


def tell(status_fd: int) -> None:
    """Wake the agent that started us: the closed pipe says that there is something new to read."""
    if status_fd >= 0:
        with contextlib.suppress(OSError):
            os.close(status_fd)


def main(directory: str, status_fd: int, secret_fd: int = -1) -> None:
    """Args: secret_fd, where further variables of its commands are read, which no file may hold; -1: there are none."""
    if status_fd >= 0:
        os.set_inheritable(status_fd, False)
    lock = os.open(os.path.join(directory, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    if any(os.path.exists(os.path.join(directory, name)) for name in ("exit.json", ABANDONED)):
        # An agent that came back before us took this run for lost: too late to start it.
        return
    write_record(directory, "shim.json", identity(os.getpid()))
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    run = read_record(directory, "run.json")
    assert run is not None, "the agent writes run.json before it starts a shim"
    what = What(run["shim"])
    if secret_fd >= 0:
        with os.fdopen(secret_fd, "rb") as secret:
            more = json.loads(secret.read())
        what.environment |= more["environment"]
        for preparation, variables in zip(what.prepare, more["prepare"], strict=True):
            preparation.environment |= variables
    shim = Shim(directory, what)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.signal(signal.SIGTERM, shim.on_term)
    # The agent starts us with SIGTERM blocked, so that one that comes early waits for its handler.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    record = shim.run(status_fd)
    for _ in range(RECORD_TRIES):
        try:
            write_record(directory, "exit.json", record, durable=True)
        except OSError:
            time.sleep(1)
        else:
            return
