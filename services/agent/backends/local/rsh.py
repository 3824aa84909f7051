"""How the launcher of an MPI training starts programs in its workers on this machine: as `ssh` does between machines.

`rsh.py FOLDER serve WORKER` is what a worker runs. `rsh.py FOLDER run [OPTIONS] WORKER COMMAND…` is the agent that
`mpirun` calls: the command runs in the worker, by its shell, with our standard streams; its exit code becomes ours.

They meet at a socket in the workload's folder, which no other pod sees, so nobody needs a key. Standard library only,
and run as a file: it is not part of the program that made it.
"""

# ruff: noqa: PTH103, PTH108, PTH118, S606
# pathlib takes longer to import than everything else here together.

import array
import contextlib
import os
import re
import select
import signal
import socket
import struct
import sys
import time

CONNECT_SECONDS = 60.0
"""For a worker that is about to start, or runs again."""
CONNECT_PAUSE_SECONDS = 0.1
HANG_UP_SECONDS = 5.0
"""Between asking a command to end whose caller is gone, and killing it."""
REQUEST_SECONDS = 10.0
MOST_SESSIONS = 1_024
MOST_COMMAND_BYTES = 4 * 1024 * 1024
"""Beyond what Linux passes to a program."""
CANNOT_CONNECT = 255
"""Exit code where the command could not run, or nobody knows how it ended; as ssh's."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
OPTIONS_WITH_VALUE = "BbcDEeFIiJLlmOopQRSWw"
"""Of ssh: with these the next word is their value, and no host."""
WORKER = re.compile(r"[a-z]{1,20}-[0-9]{1,9}\Z")
LENGTH = struct.Struct("!I")


class UsageError(Exception):
    pass


# -- in a worker -------------------------------------------------------------------------------------------------------


def serve(folder: str, name: str) -> int:
    """Run what launchers ask for, until we are asked to end."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(folder, name))
    listener = socket.socket(socket.AF_UNIX)
    # Paths of sockets are short, and that of the folder may not be.
    came_from = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    os.chdir(folder)
    listener.bind(name)
    listener.listen(MOST_SESSIONS)
    os.fchdir(came_from)
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    asked_to_end: list[int] = []
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.signal(signal.SIGTERM, lambda number, _frame: asked_to_end.append(number))
    sys.stdout.write(f"{name} waits for mpirun\n")
    sys.stdout.flush()
    sessions: set[int] = set()
    poll = select.poll()
    poll.register(woken, select.POLLIN)
    poll.register(listener, select.POLLIN)
    while not asked_to_end or sessions:
        ready = {descriptor for descriptor, _ in poll.poll()}
        if woken in ready:
            os.read(woken, 4096)
        sessions -= {pid for pid in sessions if os.waitpid(pid, os.WNOHANG)[0]}
        if listener.fileno() in ready and not asked_to_end:
            accept(listener, sessions)
    return 128 + asked_to_end[0]


def accept(listener: socket.socket, sessions: "set[int]") -> None:
    connection, _ = listener.accept()
    if len(sessions) >= MOST_SESSIONS:
        connection.close()
        return
    pid = os.fork()
    if pid:
        sessions.add(pid)
        connection.close()
        return
    code = 1
    try:
        listener.close()
        signal.set_wakeup_fd(-1)
        session(connection)
        code = 0
    except Exception as error:  # noqa: BLE001 (nothing may return into the caller's code in this process)
        sys.stderr.write(f"a command of mpirun was lost: {error}\n")
        sys.stderr.flush()
    finally:
        os._exit(code)


def session(connection: socket.socket) -> None:
    """One command, from its request to its answer."""
    connection.settimeout(REQUEST_SECONDS)
    command, streams = receive(connection)
    asked_to_end: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: asked_to_end.append(number))
    pid = start(command, streams)
    ended = os.pidfd_open(pid)
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    poll = select.poll()
    for descriptor in (ended, woken, connection.fileno()):
        poll.register(descriptor, select.POLLIN)
    kill_at: float | None = None
    while True:
        wait = None if kill_at is None else max(kill_at - time.monotonic(), 0) * 1000 + 1
        ready = {descriptor for descriptor, _ in poll.poll(wait)}
        if ended in ready:
            break
        if woken in ready:
            os.read(woken, 4096)
        if asked_to_end:
            asked_to_end.clear()
            send_signal(pid, signal.SIGTERM)
        if connection.fileno() in ready:
            asked = heard(connection)
            for number in asked:
                send_signal(pid, number)
            if not asked:
                poll.unregister(connection)
                send_signal(pid, signal.SIGTERM)
                kill_at = time.monotonic() + HANG_UP_SECONDS
        if kill_at is not None and time.monotonic() >= kill_at:
            kill_at = None
            send_signal(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    with contextlib.suppress(OSError):
        connection.sendall(bytes((code,)))


def heard(connection: socket.socket) -> bytes:
    """Signals to be passed on; empty where the caller is gone."""
    try:
        return connection.recv(64)
    except OSError:
        return b""


def receive(connection: socket.socket) -> "tuple[str, list[int]]":
    """(command, the caller's standard streams). Raises OSError, ValueError."""
    room = array.array("i", (0, 0, 0))
    data, carried, _, _ = connection.recvmsg(LENGTH.size, socket.CMSG_LEN(len(room) * room.itemsize))
    streams = array.array("i")
    for level, kind, content in carried:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            streams.frombytes(content[: len(content) - len(content) % streams.itemsize])
    while 0 < len(data) < LENGTH.size:
        data += connection.recv(LENGTH.size - len(data))
    if len(data) != LENGTH.size or len(streams) != len(room):
        raise ValueError("the request breaks off")
    (length,) = LENGTH.unpack(data)
    if length > MOST_COMMAND_BYTES:
        raise ValueError(f"the command has {length} bytes; at most {MOST_COMMAND_BYTES} are possible")
    parts: list[bytes] = []
    while length:
        part = connection.recv(min(length, 65536))
        if not part:
            raise ValueError("the request breaks off")
        parts.append(part)
        length -= len(part)
    return os.fsdecode(b"".join(parts)), list(streams)


def start(command: str, streams: "list[int]") -> int:
    """The command in a session of its own, by the shell; its pid."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            for number in (*SIGNALS, signal.SIGCHLD, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            for target, source in enumerate(streams):
                os.dup2(source, target)
            for source in streams:
                os.close(source)
            shell = ["/bin/sh", "-c", command] if command else ["/bin/sh"]
            os.execv(shell[0], shell)
        finally:
            os._exit(127)
    for descriptor in streams:
        os.close(descriptor)
    return pid


def send_signal(pid: int, number: int) -> None:
    with contextlib.suppress(OSError, ValueError):
        os.killpg(pid, number)


# -- in the launcher ---------------------------------------------------------------------------------------------------


def run(folder: str, words: "list[str]") -> int:
    """Run a command in a worker, as ssh would; its exit code. Raises UsageError."""
    worker, command = understood(words)
    if not WORKER.match(worker):
        raise UsageError(f"no worker is called {worker!r}; they are called worker-0, worker-1 and so on")
    connection = connect(folder, worker)
    if connection is None:
        sys.stderr.write(f"{worker} does not answer: no such worker runs\n")
        return CANNOT_CONNECT
    for number in SIGNALS:
        signal.signal(number, lambda number, _frame: tell(connection, number))
    content = os.fsencode(command)
    with contextlib.suppress(OSError):
        socket.send_fds(connection, [LENGTH.pack(len(content))], [0, 1, 2])
        connection.sendall(content)
        if code := connection.recv(1):
            return code[0]
    sys.stderr.write(f"{worker} is gone, and nobody knows how its command ended\n")
    return CANNOT_CONNECT


def understood(words: "list[str]") -> "tuple[str, str]":
    """(host, command): words of a command are joined, as ssh does. Raises UsageError."""
    host, left = "", list(words)
    while left:
        word = left.pop(0)
        if word == "--":
            continue
        if word.startswith("-") and len(word) > 1:
            letter = next((at for at, each in enumerate(word[1:], 1) if each in OPTIONS_WITH_VALUE), 0)
            if letter == len(word) - 1 and left:
                left.pop(0)
        elif not host:
            host = word.rpartition("@")[2]
        else:
            left.insert(0, word)
            break
    if not host:
        raise UsageError("usage: rsh [OPTIONS] WORKER COMMAND…")
    return host, " ".join(left)


def connect(folder: str, worker: str) -> "socket.socket | None":
    """None where it does not listen in time."""
    give_up = time.monotonic() + CONNECT_SECONDS
    came_from = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    os.chdir(folder)
    try:
        while True:
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(worker)
            except OSError:
                connection.close()
            else:
                return connection
            if time.monotonic() >= give_up:
                return None
            time.sleep(CONNECT_PAUSE_SECONDS)
    finally:
        os.fchdir(came_from)
        os.close(came_from)


def tell(connection: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):
        connection.send(bytes((number,)))


def main() -> int:
    folder, verb, *words = sys.argv[1:]
    try:
        return serve(folder, words[0]) if verb == "serve" else run(folder, words)
    except UsageError as error:
        sys.stderr.write(f"{error}\n")
        return CANNOT_CONNECT


if __name__ == "__main__":
    sys.exit(main())
