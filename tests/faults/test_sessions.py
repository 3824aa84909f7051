"""kill -9 of whatever carries a session, while a command and a forwarded port are open: whoever has them is told within
seconds, what the command started is dead, the history says that they are over, and the next one opens.
"""

import contextlib
import socket
import subprocess
from collections.abc import Iterator
from typing import Final, Literal
from uuid import uuid4

import psutil
import pytest

from development.stack import Stack, until
from tests.support.second import Second, second

pytestmark = pytest.mark.faults

Victim = Literal["api", "control", "workers"]
"""An api alone; the api with the services that decide; the agent of the cluster, with those that follow the log."""
VICTIMS: Final[tuple[Victim, ...]] = ("api", "control", "workers")
UNREACHABLE: Final = 9
TOLD_SECONDS: Final = 30.0
"""For a client to end: 12 until the api misses the agent, and what this machine takes for it."""
CLOSED_SECONDS: Final = 150.0
"""For cluster_sync to close in the history what nobody has any more: 80 from the opening on, and its own restart."""
ECHO: Final = """
import os, socket
server = socket.create_server(("127.0.0.1", int(os.environ["MUSTER_PORT_7000"])))
print("ready", flush=True)
while True:
    connection, _ = server.accept()
    while data := connection.recv(65536):
        connection.sendall(data[::-1])
    connection.close()
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stack, Second]]:
    stack = Stack(tmp_path_factory.mktemp("sessions")).start()
    try:
        options = ("-i", "x", "--port", "container=7000,service-type=ClusterIP", "--command", "--wait=running")
        made = stack.muster("workspace", "submit", "inside", *options, "--", "python3", "-c", ECHO)
        assert made.returncode == 0, made.stderr
        with second(stack, "api") as (other,):
            yield stack, other
        stack.stop()
    finally:
        stack.close()


class Sessions:
    """A command that reads and a port, both of them open, as two programs of a person have them."""

    def __init__(self, stack: Stack, url: str) -> None:
        self.stack = stack
        self.url = url
        self.token = stack.muster("token", "show").stdout.strip()
        self.mark = f"held-{uuid4().hex}"
        command = f"echo up; sleep 3601 & cat; : {self.mark}"
        self.exec = self._begun("exec", "inside", "-i", "--", "sh", "-c", command, self.mark)
        self.forward = self._begun("port-forward", "inside", ":7000")
        assert self.exec.stdout is not None
        assert self.forward.stderr is not None
        assert self.exec.stdout.readline() == b"up\n"
        line = self.forward.stderr.readline().decode()
        assert line.endswith("leads to port 7000 of main-0\n"), line
        self.connection = socket.create_connection(("127.0.0.1", int(line.split()[0].rpartition(":")[2])), timeout=20)
        self.connection.sendall(b"abc")
        assert self.connection.recv(3) == b"cba"
        assert self.processes()

    def _begun(self, *words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [self.stack.python, "-P", "-m", "muster.cli.main", "--url", self.url, *words],
            env=self.stack.environment | {"MUSTER_TOKEN": self.token},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def processes(self) -> list[psutil.Process]:
        """What the command started and did not yet end, in the pod."""
        found: list[psutil.Process] = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
                if words[:2] == ["sh", "-c"] and self.mark in words:
                    found += [process, *process.children(recursive=True)]
        return found

    def told(self) -> list[tuple[int, str]]:
        """Exit codes and last words of both."""
        ends: list[tuple[int, str]] = []
        for process in (self.exec, self.forward):
            process.wait(TOLD_SECONDS)
            assert process.stderr is not None
            ends.append((process.returncode, process.stderr.read().decode().strip()))
        return ends

    def close(self) -> None:
        self.connection.close()
        for process in (self.exec, self.forward):
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.mark.parametrize("victim", VICTIMS)
def test_whoever_is_killed_the_sessions_end_within_seconds_and_new_ones_open(
    stack: tuple[Stack, Second], victim: Victim, rounds: int, request: pytest.FixtureRequest
) -> None:
    up, other = stack
    short: bool = request.config.option.short
    for _ in range(1 if short else max(1, rounds // 4)):
        sessions = Sessions(up, other.url if victim == "api" else up.url)
        try:
            held = sessions.processes()
            if victim == "api":
                other.kill()
            else:
                assert up.kill(victim)
            for code, words in sessions.told():
                assert (code, "muster: the session is over: " in words) == (UNREACHABLE, True), words
                assert "Traceback" not in words
            with contextlib.suppress(ConnectionError):
                assert sessions.connection.recv(1) == b""
            until(lambda sessions=sessions: not sessions.processes(), TOLD_SECONDS)
            assert psutil.wait_procs(held, timeout=TOLD_SECONDS)[1] == []
        finally:
            sessions.close()
        other.wait_ready()

        def opens() -> bool:
            return up.muster("exec", "inside", "--", "true").returncode == 0

        until(opens, 90)
    # The pod was never touched, and what was left open by whoever died is closed by whoever did not.
    if not short:
        until(lambda: not _open(up), CLOSED_SECONDS, lambda: str(_open(up)))
        verified = up.muster("log", "verify", timeout_seconds=120)
        assert verified.returncode == 0, verified.stdout + verified.stderr


def _open(stack: Stack) -> set[str]:
    """Sessions of the workload that the history does not say are over."""
    api = stack.api()
    (row,) = api.get("/workloads", filterBy="name==inside")["workloads"]
    records = api.get(f"/workloads/{row['id']}/history", limit=500)["records"]
    assert [one for one in records if one["type"].startswith("PodFailed")] == []
    opened, closed = (
        {one["details"]["sessionId"] for one in records if one["type"] == type_}
        for type_ in ("SessionOpened", "SessionClosed")
    )
    return opened - closed
