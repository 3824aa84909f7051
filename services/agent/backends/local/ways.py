"""Ways into pods of this machine: a command beside the pod's own process (`exec`), what that process writes (`attach`),
the ports on which processes of the pod listen (`port-forward`).
"""

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import socket
import struct
import sys
import termios
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from events.channels import END, FRAME_BYTES, RESIZE, STDERR, STDIN, STDOUT
from events.cluster_protocol import LogLine, LogsRequest, ObservedPod, SessionOpen
from events.codec import UNDECODABLE
from events.workload.pod import PortAddress
from services.agent.backends.interface import LIVE_KINDS, LogsUnavailableError, NoWayError, WayEnd
from services.agent.backends.local import inside, shim
from services.agent.backends.local.environment import LOOPBACK
from services.agent.backends.local.run_folder import ProcessFile, RunFile
from services.runtime.forwarding import Forwarding, RefusedError

PACKAGES: Final = str(Path(inside.__file__).parents[4])
INSIDE: Final = (
    "import sys; sys.path.append(sys.argv[1]); from services.agent.backends.local import inside; "
    "inside.main(int(sys.argv[2]), int(sys.argv[3]))"
)
CONTROL_FD: Final = 3
COMMAND_FD: Final = 4
READ_BYTES: Final = FRAME_BYTES - 1
"""Of output in one frame, behind the byte that says which it is."""
START_SECONDS: Final = 10.0
WORD_BYTES: Final = 64 * 1024
LOOK_SECONDS: Final = 0.2
"""How often it is looked whether the pod is still there."""
LINGER_SECONDS: Final = 2.0
"""What is said within this time of the pod's end is still passed on."""
MOST_SIZE: Final = 10_000
"""Columns or rows of a terminal."""
_SIGKILL: Final = -signal.SIGKILL
POD_ENDED: Final = "pod_ended"


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """The run of a pod that a way leads into."""

    file: RunFile
    begun: ProcessFile
    shim_pid: int
    ports: tuple[PortAddress, ...]
    seen: Callable[[], ObservedPod]
    """The run as it is now."""

    @property
    def live(self) -> bool:
        return self.seen().kind in LIVE_KINDS

    async def over(self, *, seconds: float = float("inf")) -> bool:
        """Whether the run is over, waited for so long at most."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + seconds
        while self.live and loop.time() < give_up:
            await asyncio.sleep(LOOK_SECONDS)
        return not self.live


def size_of(frame: bytes) -> tuple[int, int] | None:
    """(columns, rows) of a terminal; None for what is no size of one."""
    try:
        said = msgspec.json.decode(frame[1:], type=dict[str, int])
    except UNDECODABLE:
        return None
    columns, rows = said.get("columns", 0), said.get("rows", 0)
    return (columns, rows) if 0 < columns <= MOST_SIZE and 0 < rows <= MOST_SIZE else None


class Exec:
    """A command that runs in the pod."""

    def __init__(self, place: Place, control: socket.socket) -> None:
        self._place = place
        self._control = control
        self._outputs: list[tuple[int, asyncio.StreamReader, asyncio.BaseTransport]] = []
        self._stdin: asyncio.StreamWriter | None = None
        self._terminal: _Terminal | None = None
        self._end = WayEnd()

    @classmethod
    async def start(cls, request: SessionOpen, place: Place) -> "Exec":
        """Raises NoWayError."""
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        way = cls(place, ours)
        try:
            await way._spawn(request, its)
            async with asyncio.timeout(START_SECONDS):
                await way._begun()
        except TimeoutError:
            await way.close()
            raise NoWayError("not_started", f"the command did not start within {START_SECONDS:.0f} s") from None
        except OSError as error:
            await way.close()
            raise NoWayError("not_started", f"this machine could not start it: {error.strerror}") from error
        except BaseException:
            await way.close()
            raise
        return way

    async def _begun(self) -> None:
        """Until the command runs. Raises NoWayError."""
        said, terminal = await self._word()
        if terminal >= 0:
            self._terminal = _Terminal(terminal)
            said, _ = await self._word()
        if "started" not in said:
            raise NoWayError(str(said.get("error", "not_started")), str(said.get("message", "it ended at once")))

    async def _spawn(self, request: SessionOpen, control: socket.socket) -> None:
        """Raises OSError."""
        theirs: list[int] = [control.detach()]
        try:
            stdin = stdout = stderr = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            theirs.append(stdin)
            if not request.tty:
                for channel in (STDOUT, STDERR):
                    read, write = os.pipe2(os.O_CLOEXEC)
                    theirs.append(write)
                    await self._read(channel, read)
                stdout, stderr = theirs[-2:]
                if request.stdin:
                    stdin, write = os.pipe2(os.O_CLOEXEC)
                    theirs.append(stdin)
                    await self._write(write)
            command = _in_memory(self._command(request))
            theirs.append(command)
            sources = (stdin, stdout, stderr, theirs[0], command)
            # Above all that they are now, so that none is overwritten before its turn.
            above = max(sources) + 1
            os.posix_spawn(  # noqa: ASYNC221 (as with shims: it takes no time)
                sys.executable,
                [sys.executable, "-I", "-S", "-B", "-c", INSIDE, PACKAGES, str(CONTROL_FD), str(COMMAND_FD)],
                {"LANG": "C.UTF-8"},
                file_actions=[
                    *((os.POSIX_SPAWN_DUP2, source, above + at) for at, source in enumerate(sources)),
                    *((os.POSIX_SPAWN_DUP2, above + at, at) for at in range(len(sources))),
                    *((os.POSIX_SPAWN_CLOSE, above + at) for at in range(len(sources))),
                ],
                setsid=True,
                setsigmask=[],
                setsigdef=[signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE],
            )
        finally:
            for descriptor in theirs:
                os.close(descriptor)

    def _command(self, request: SessionOpen) -> dict[str, Any]:
        """As inside.Command reads it."""
        begun, run = self._place.begun, self._place.file.shim
        first = None if begun.first is None or run.isolation is None else begun.first
        return {
            "arguments": request.command,
            "environment": run.environment,
            "working_dir": run.working_dir,
            "session_id": request.session_id,
            "terminal": request.tty,
            "columns": min(max(request.columns, 0), MOST_SIZE),
            "rows": min(max(request.rows, 0), MOST_SIZE),
            "main": msgspec.to_builtins(begun),
            "first": None if first is None else msgspec.to_builtins(first),
        }

    async def _read(self, channel: int, descriptor: int) -> None:
        reader = asyncio.StreamReader(limit=READ_BYTES)
        file = os.fdopen(descriptor, "rb", 0)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
        self._outputs.append((channel, reader, transport))

    async def _write(self, descriptor: int) -> None:
        file = os.fdopen(descriptor, "wb", 0)
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, file)
        self._stdin = asyncio.StreamWriter(transport, protocol, None, loop)

    async def _word(self) -> tuple[dict[str, Any], int]:
        """What comes next from the process in between, and the terminal that came with it (-1: none). Nothing once it
        is gone.
        """
        loop = asyncio.get_running_loop()
        await _ready(self._control, loop.add_reader, loop.remove_reader)
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, WORD_BYTES, 1)
        except OSError:
            return {}, -1
        return json.loads(data) if data else {}, descriptors[0] if descriptors else -1

    async def frames(self) -> AsyncIterator[bytes]:
        """What it writes, until it has ended; then everything that it left is dead."""
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(1)
        readers: list[tuple[int, asyncio.StreamReader | _Terminal]]
        readers = [(channel, reader) for channel, reader, _ in self._outputs]
        if self._terminal is not None:
            readers = [(STDOUT, self._terminal)]
        reading = [asyncio.create_task(_pump(channel, reader, queue)) for channel, reader in readers]
        watching = asyncio.create_task(self._let_go_with_pod())
        ended = asyncio.create_task(self._word())
        try:
            left = len(reading)
            while left:
                piece = await queue.get()
                if piece is None:
                    left -= 1
                else:
                    yield piece
            said, _ = await ended
            await self._note_end(said.get("exit_code"))
        finally:
            tasks: list[asyncio.Task[Any]] = [*reading, watching, ended]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _note_end(self, exit_code: int | None) -> None:
        code = exit_code if exit_code is None or exit_code >= 0 else 128 - exit_code
        # With the pod, the kernel kills all that is in it; the word that the pod is over comes a moment later.
        if (exit_code is None or exit_code == _SIGKILL) and await self._place.over(seconds=LINGER_SECONDS):
            self._end = WayEnd(POD_ENDED, "the pod ended", code)
        else:
            self._end = WayEnd("ended" if code is not None else "failed", "", code)

    async def _let_go_with_pod(self) -> None:
        await self._place.over()
        await asyncio.sleep(LINGER_SECONDS)
        self._let_go()

    async def take(self, frame: bytes) -> None:
        match frame[0]:
            case n if n == STDIN and self._terminal is not None:
                await self._terminal.write(frame[1:])
            case n if n == STDIN and self._stdin is not None:
                with contextlib.suppress(OSError):
                    self._stdin.write(frame[1:])
                    await self._stdin.drain()
            case n if n == END and self._stdin is not None:
                self._stdin.close()
            case n if n == RESIZE and self._terminal is not None and (size := size_of(frame)) is not None:
                self._terminal.resize(*size)
            case _:
                pass

    def end(self) -> WayEnd:
        return self._end

    async def close(self) -> None:
        """The process in between notices, and ends what the command started."""
        for _, _, transport in self._outputs:
            transport.close()
        if self._stdin is not None:
            self._stdin.transport.abort()
        if self._terminal is not None:
            self._terminal.close()
        self._let_go()
        self._control.close()

    def _let_go(self) -> None:
        """Also where somebody still waits for a word: a loop keeps a socket open for as long as that."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)


class _Terminal:
    """Our end of a terminal: not every event loop takes one for a pipe."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        os.set_blocking(descriptor, False)

    async def read(self, most: int) -> bytes:
        """Nothing, once nobody has its other end open any more."""
        loop = asyncio.get_running_loop()
        while self._descriptor >= 0:
            try:
                return os.read(self._descriptor, most)
            except BlockingIOError:
                await _ready(self._descriptor, loop.add_reader, loop.remove_reader)
            except OSError:
                break
        return b""

    async def write(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        while data and self._descriptor >= 0:
            try:
                data = data[os.write(self._descriptor, data) :]
            except BlockingIOError:
                await _ready(self._descriptor, loop.add_writer, loop.remove_writer)
            except OSError:
                return

    def resize(self, columns: int, rows: int) -> None:
        with contextlib.suppress(OSError):
            fcntl.ioctl(self._descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


async def _ready(descriptor: int | socket.socket, add: Callable[..., Any], remove: Callable[[Any], Any]) -> None:
    """Until the loop says that it can be read, or written."""
    there = asyncio.get_running_loop().create_future()
    add(descriptor, lambda: there.done() or there.set_result(None))
    try:
        await there
    finally:
        remove(descriptor)


async def _pump(channel: int, reader: "asyncio.StreamReader | _Terminal", queue: "asyncio.Queue[bytes | None]") -> None:
    head = bytes((channel,))
    with contextlib.suppress(OSError):
        while piece := await reader.read(READ_BYTES):
            await queue.put(head + piece)
    await queue.put(None)


def _in_memory(command: dict[str, Any]) -> int:
    """A file descriptor from which this can be read; of no file system. Raises OSError."""
    descriptor = os.memfd_create("muster-way", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "wb", closefd=False) as file:
        file.write(msgspec.json.encode(command))
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


class Attach:
    """What the pod's own process writes from now on. It was started with nothing to read, so nothing can be typed."""

    def __init__(
        self, request: SessionOpen, place: Place, logs: Callable[[LogsRequest], AsyncIterator[Sequence[LogLine]]]
    ) -> None:
        if request.stdin or request.tty:
            raise NoWayError(
                "no_stdin", "processes of pods of the local cluster read nothing; attach without -i and -t, to see it"
            )
        self._place = place
        self._logs = logs
        self._request = LogsRequest(
            workload_id=request.workload_id,
            pod_key=request.pod_key,
            pod=place.file.pod.pod,
            follow=True,
            tail_lines=0,
        )
        self._end = WayEnd(POD_ENDED, "the pod ended")

    async def frames(self) -> AsyncIterator[bytes]:
        try:
            async for lines in self._logs(self._request):
                for piece in _pieces(lines):
                    yield piece
        except LogsUnavailableError as error:
            self._end = WayEnd("failed", str(error))
            return
        await self._place.over(seconds=LINGER_SECONDS)
        self._end = WayEnd(POD_ENDED, "the pod ended", self._place.seen().exit_code)

    async def take(self, frame: bytes) -> None:
        pass

    def end(self) -> WayEnd:
        return self._end

    async def close(self) -> None:
        pass


def _pieces(lines: Sequence[LogLine]) -> list[bytes]:
    """Lines as frames, as few as they fit into, in their order."""
    frames: list[bytearray] = []
    for line in lines:
        channel = STDERR if line.stream == "stderr" else STDOUT
        data = f"{line.text}\n".encode("utf-8", "replace")
        for at in range(0, len(data), READ_BYTES):
            piece = data[at : at + READ_BYTES]
            if not frames or frames[-1][0] != channel or len(frames[-1]) + len(piece) > FRAME_BYTES:
                frames.append(bytearray((channel,)))
            frames[-1] += piece
    return [bytes(frame) for frame in frames]


class PortForward(Forwarding):
    """Connections to ports on which processes of the pod listen. All pods of this machine share its loopback with
    Muster and everybody else: so it is looked at whose each port is, and nobody else's is reached.
    """

    def __init__(self, request: SessionOpen, place: Place) -> None:
        super().__init__()
        self._place = place
        self._allowed = frozenset(request.ports)
        self._watching = asyncio.create_task(self._end_with_pod())

    async def _end_with_pod(self) -> None:
        await self._place.over()
        self.stop()

    async def connect(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Raises RefusedError."""
        if port not in self._allowed:
            raise RefusedError(f"port {port} is none of those that the session was opened for")
        own = next((one.port for one in self._place.ports if one.container == port), port)
        host = await asyncio.to_thread(listening_host, own, self._place)
        if not host:
            told = f"port {port}" if own == port else f"port {port}, which is {own} on this machine,"
            raise RefusedError(f"no process of the pod listens on {told}")
        try:
            return await asyncio.open_connection(host, own)
        except OSError as error:
            raise RefusedError(f"port {own}: {error.strerror}") from error

    def end(self) -> WayEnd:
        return WayEnd("ended") if self._place.live else WayEnd(POD_ENDED, "the pod ended")

    async def close(self) -> None:
        self._watching.cancel()
        await super().close()


_LISTEN: Final = "0A"
"""State of a socket in /proc/net/tcp (linux/include/net/tcp_states.h)."""
_HOSTS: Final = {
    "0100007F": LOOPBACK,
    "00000000": LOOPBACK,
    "00000000000000000000000000000000": LOOPBACK,
    "00000000000000000000000001000000": "::1",
    "0000000000000000FFFF00000100007F": LOOPBACK,
}
"""By the address that one listens on, as the kernel writes it: where this machine reaches it."""


def listening_host(port: int, place: Place) -> str:
    """Where a process of the pod listens on this port; empty where none does. Blocks for some milliseconds."""
    sockets = _listeners(port)
    if not sockets:
        return ""
    table = shim.process_table()
    root = place.begun.first.pid if place.begun.first is not None else place.begun.pid
    pids = {root, *shim.descendants(place.shim_pid, table, shim.children_of(table))} - {place.shim_pid}
    for pid in pids:
        with contextlib.suppress(OSError):
            folder = f"/proc/{pid}/fd"
            for name in os.listdir(folder):  # noqa: PTH208 (a process may have thousands)
                with contextlib.suppress(OSError):
                    if (host := sockets.get(os.readlink(f"{folder}/{name}"))) is not None:  # noqa: PTH115
                        return host
    return ""


def _listeners(port: int) -> dict[str, str]:
    """Hosts by the name that a listening socket has among a process's descriptors."""
    found: dict[str, str] = {}
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"/proc/net/{table}", encoding="ascii") as file:  # noqa: PTH123
            for line in file.read().splitlines()[1:]:
                fields = line.split()
                address, _, its_port = fields[1].partition(":")
                if fields[3] == _LISTEN and int(its_port, 16) == port and address in _HOSTS:
                    found[f"socket:[{fields[9]}]"] = _HOSTS[address]
    return found
