"""Runs one command in a pod that runs: in its namespaces, with no more rights than its process has. A process of its
own for each, between the agent and the command.

It ends the command, with everything that this started, once the agent lets go of it or is gone. Where the pod has
namespaces of its own, the kernel ends the command with the pod; where it has none, the agent does. Standard library
only, as the shim.
"""

# ruff: noqa: PTH116, PTH123
# pathlib takes longer to import than everything else here together.

import contextlib
import ctypes
import fcntl
import json
import os
import select
import signal
import socket
import struct
import termios
import time

from services.agent.backends.local import isolation, shim

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MARK = "MUSTER_SESSION_ID"
"""Variable by which everything that the command started is found."""
KILL_ROUNDS = 50
"""How often what is left is looked for and killed, 0.1 s apart, until nothing is found."""
DRAIN_SECONDS = 0.2
"""How long what the command started may go on after it: what it said last is passed on by then."""


class Command(shim.Command):
    def __init__(self, fields: "Any") -> None:
        super().__init__(fields)
        self.session_id: str = fields["session_id"]
        self.terminal: bool = fields["terminal"]
        self.columns: int = fields["columns"]
        self.rows: int = fields["rows"]
        self.main: dict[str, int] = fields["main"]
        """The pod's own process."""
        self.first: dict[str, int] | None = fields["first"]
        """Of its PID namespace; None: it has none of its own."""


def join(first: int) -> isolation.Cell:
    """Have all children from now on be born where the pod's are. Raises OSError."""
    folder = f"/proc/{first}/ns"
    cell = isolation.Cell(first)
    if os.stat(f"{folder}/user").st_ino != os.stat("/proc/self/ns/user").st_ino:
        enter(f"{folder}/user")
    enter(f"{folder}/pid")
    return cell


def enter(path: str) -> None:
    namespace = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    os.setns(namespace)
    os.close(namespace)


def lives(process: "dict[str, int]") -> bool:
    there = shim.process(process["pid"])
    return there is not None and there.start_ticks == process["start_ticks"] and there.state != b"Z"


def environment_of(command: Command) -> dict[str, str]:
    """As the pod's own process has it: what that got of credentials stands in no file."""
    known = dict(command.environment)
    with contextlib.suppress(OSError), open(f"/proc/{command.main['pid']}/environ", "rb") as file:
        for entry in file.read().split(b"\0"):
            name, equals, value = entry.partition(b"=")
            if name and equals:
                known.setdefault(os.fsdecode(name), os.fsdecode(value))
    if command.terminal:
        known.setdefault("TERM", "xterm-256color")
    return known | {MARK: command.session_id}


def terminal(control: socket.socket, columns: int, rows: int) -> tuple[int, int, int]:
    """A terminal of the pod's own, whose other end goes to the agent; the command is who controls it."""
    ours, its = os.openpty()
    if columns and rows:
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    fcntl.ioctl(its, termios.TIOCSCTTY, 0)
    socket.send_fds(control, [b'{"terminal": true}'], [ours])
    os.close(ours)
    return its, its, its


def left(session_id: str, leader: int) -> set[int]:
    """Processes that the command started, itself included, and that live."""
    mark = f"{MARK}={session_id}".encode()
    found: set[int] = set()
    for pid, entry in shim.process_table().items():
        if entry.state == b"Z" or pid == os.getpid():
            continue
        if entry.session == leader:
            found.add(pid)
            continue
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            if mark in file.read().split(b"\0"):
                found.add(pid)
    return found


def kill_left(session_id: str, leader: int) -> None:
    for _ in range(KILL_ROUNDS):
        if not left(session_id, leader):
            return
        shim.kill_found(lambda: left(session_id, leader))
        time.sleep(0.1)


def wait(control: socket.socket, pid: int) -> int | None:
    """The command's status as waitpid(2) has it; None where the agent let go of it first."""
    process = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(process, select.POLLIN)
    poll.register(control, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == process:
                return os.waitpid(pid, 0)[1]
            if not control.recv(1):
                return None


def cell_of(command: Command) -> isolation.Cell | None:
    """The pod's namespaces, where it has its own. Raises StartError."""
    if not lives(command.main) or (command.first is not None and not lives(command.first)):
        raise shim.StartError(None, "pod_not_running", "the pod has ended")
    try:
        return None if command.first is None else join(command.first["pid"])
    except OSError as error:
        raise shim.StartError(None, "not_started", f"the pod cannot be entered: {error.strerror}") from error


def tell(control: socket.socket, **said: object) -> None:
    with contextlib.suppress(OSError):
        control.send(json.dumps(said).encode())


def main(control_fd: int, command_fd: int) -> None:
    control = socket.socket(fileno=control_fd)
    control.set_inheritable(False)
    with os.fdopen(command_fd, "rb") as file:
        command = Command(json.loads(file.read()))
    ctypes.CDLL(None).prctl(shim.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    command.environment = environment_of(command)
    try:
        cell = cell_of(command)
        streams = (lambda: terminal(control, command.columns, command.rows)) if command.terminal else lambda: (0, 1, 2)
        pid = shim.start_command(command, cell, streams)
    except shim.StartError as error:
        tell(control, error=error.reason, message=str(error), exit_code=error.exit_code)
        return
    # What only the command has open ends with it.
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    tell(control, started=pid)
    status = wait(control, pid)
    if status is not None:
        time.sleep(DRAIN_SECONDS if left(command.session_id, pid) else 0)
    kill_left(command.session_id, pid)
    tell(control, exit_code=None if status is None else os.waitstatus_to_exitcode(status))
