"""What pods of the local cluster can reach of this machine, and what they cannot: one printed the signing key."""

import ctypes
import json
import os
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from services.agent.backends.local import isolation, shim
from tests.agent.given import PYTHON
from tests.support.namespaces import without_namespaces

CAP_SYS_ADMIN = 21


def without_rights() -> None:
    """As root of a container, or nearly as somebody who is not root: namespaces take a user namespace then."""
    ctypes.CDLL(None).prctl(isolation.PR_CAPBSET_DROP, CAP_SYS_ADMIN, 0, 0, 0)


class Machine:
    """Folders as `muster up` has them, and a pod that is run there by its shim."""

    def __init__(self, folder: Path, prepare: Callable[[], None] | None) -> None:
        self.data = folder / "data"
        self.key = self.data / "keys" / "local.json"
        self.program = folder / "program"
        self.checkout = folder / "checkout"
        self.examples = self.checkout / "examples"
        self.own = folder / "own"
        self.run = self.data / "local" / "c1" / "pods" / "k" / "1"
        for path in (self.key.parent, self.program, self.examples, self.own, self.run / "work"):
            path.mkdir(parents=True)
        self.key.write_text("the signing key")
        (self.program / "service.py").write_text("pass")
        (self.checkout / "Makefile").write_text("up:")
        self._prepare = prepare

    def pod(
        self,
        script: str,
        *,
        working_dir: Path | None = None,
        python: bool = False,
        volumes: Sequence[dict[str, Any]] = (),
    ) -> tuple[str, dict[str, Any]]:
        """Run it to its end: what it printed, and the record of its end."""
        arguments = [PYTHON, "-S", "-c", script] if python else ["/bin/sh", "-c", script]
        what = {
            "arguments": arguments,
            "environment": {"PATH": os.defpath},
            "working_dir": str(working_dir or self.run / "work"),
            "log_max_bytes": 1_000_000,
            "isolation": {
                "hidden": [str(self.data)],
                "read_only": [str(self.program)],
                "closed": [str(self.checkout)],
                "kept": [str(self.run / "work")],
                "volumes": list(volumes),
            },
        }
        shim.write_record(str(self.run), "run.json", {"shim": what})
        for name in ("exit.json", "stop.json", "log"):
            (self.run / name).unlink(missing_ok=True)
        program = f"from services.agent.backends.local import shim; shim.main({str(self.run)!r}, -1)"
        subprocess.run([PYTHON, "-c", program], preexec_fn=self._prepare, check=True, timeout=60)
        lines = (self.run / "log").read_text().splitlines()
        output = "\n".join(line.split(" ", 3)[3] for line in lines)
        return output, json.loads((self.run / "exit.json").read_text())


@pytest.fixture(params=["as we are", "in a user namespace"])
def machine(tmp_path: Path, request: pytest.FixtureRequest) -> Machine:
    return Machine(tmp_path, without_rights if request.param == "in a user namespace" else None)


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Path]:
    """A program of the same user outside, that would do what it is asked over a socket."""
    path = tmp_path / "own.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        yield path


def test_a_pod_finds_neither_the_data_folder_nor_the_signing_key(machine: Machine) -> None:
    output, end = machine.pod(f"ls -A {machine.data}; cat {machine.key}")
    assert output.splitlines()[0] == "local"
    assert "the signing key" not in output
    assert end["exit_code"] == 1


def test_of_its_own_run_a_pod_sees_its_working_folder_alone_and_keeps_what_it_writes_there(machine: Machine) -> None:
    output, end = machine.pod("echo result > made; pwd; ls -A ..")
    assert output.splitlines() == [str(machine.run / "work"), "work"]
    assert end["exit_code"] == 0
    assert (machine.run / "work" / "made").read_text() == "result\n"


def test_a_pod_sees_no_process_but_its_own(machine: Machine) -> None:
    output, _ = machine.pod("echo /proc/[0-9]*")
    assert {int(path.removeprefix("/proc/")) for path in output.split()} <= {1, 2, 3}


def test_a_pod_cannot_reach_what_its_first_process_was_before(machine: Machine) -> None:
    output, _ = machine.pod("ls /proc/1/cwd/ /proc/1/root/ /proc/1/fd/; cat /proc/1/root/" + str(machine.key))
    assert "the signing key" not in output
    assert "muster" not in output


def test_a_pod_has_no_capability_and_gets_none(machine: Machine) -> None:
    output, _ = machine.pod("grep -E '^(Cap|NoNewPrivs)' /proc/self/status")
    found = dict(line.split(":\t") for line in output.splitlines())
    assert found.pop("NoNewPrivs") == "1"
    assert len(found) == 5
    assert set(found.values()) == {"0" * 16}


@pytest.mark.parametrize(
    "way",
    [
        "umount {data}",
        "umount -l /",
        "mount -t tmpfs x {data}/..",
        "unshare -rm umount {data}",
        "unshare -rm umount -R {data}",
        "unshare -rmpf --mount-proc cat /proc/1/root/{key}",
        "nsenter -t 1 -m cat {key}",
        "chroot / cat {key}",
        "mknod disk b 8 0",
        "cat /dev/vda /dev/sda",
        "echo x > /proc/sys/kernel/core_pattern",
        "echo x > /proc/sysrq-trigger",
        "touch /etc/cron.d/x",
    ],
)
def test_ways_out_are_closed(machine: Machine, way: str) -> None:
    way = way.format(data=machine.data, key=machine.key)
    output, end = machine.pod(f"{way} && cat {machine.key}")
    assert end["exit_code"] != 0, output
    assert "the signing key" not in output


@pytest.mark.parametrize(
    "change",
    [
        "touch {program}/service.py",
        "touch {program}/new.py",
        "mv {program} {program}2",
        "touch {checkout}/sitecustomize.py",
        "mkdir {checkout}/uvloop",
        "echo up: > {checkout}/Makefile",
        "mv {checkout}/examples {checkout}/uvloop",
        "mv {checkout} {checkout}2",
    ],
)
def test_a_pod_cannot_have_muster_run_what_it_writes(machine: Machine, change: str) -> None:
    """The program's folders, and a checkout, which stands on Python's path."""
    output, end = machine.pod(change.format(program=machine.program, checkout=machine.checkout))
    assert end["exit_code"] != 0, output


@pytest.mark.parametrize("folder", ["{data}/..", "{data}/../..", "{program}/.."])
def test_a_pod_cannot_move_away_what_the_next_pod_must_not_see(machine: Machine, folder: str) -> None:
    """The next pod would hide what stands in its place by then, and see the signing key under another name."""
    path = os.path.normpath(folder.format(data=machine.data, program=machine.program))
    output, end = machine.pod(f"mv {path} {path}.away && echo moved && mv {path}.away {path}")
    assert (output.splitlines()[-1:], end["exit_code"]) != (["moved"], 0)
    assert machine.key.exists()


def test_a_pod_works_in_its_users_own_folder_as_that_user(machine: Machine) -> None:
    output, end = machine.pod("id -u; echo result > made", working_dir=machine.own)
    assert (output, end["exit_code"]) == (str(os.getuid()), 0)
    assert (machine.own / "made").read_text() == "result\n"
    assert (machine.own / "made").stat().st_uid == os.getuid()


def test_a_pod_works_in_the_folders_of_a_checkout(machine: Machine) -> None:
    output, end = machine.pod("echo result > made", working_dir=machine.examples)
    assert (output, end["exit_code"]) == ("", 0)
    assert (machine.examples / "made").read_text() == "result\n"


def test_a_pod_cannot_ask_a_program_outside_over_its_socket(machine: Machine, listener: Path) -> None:
    script = f"import socket; socket.socket(socket.AF_UNIX).connect({str(listener)!r})"
    output, end = machine.pod(script, python=True)
    assert end["exit_code"] == 1
    assert "Error" in output


def test_a_pod_has_the_network_terminals_and_memory_to_share(machine: Machine) -> None:
    script = (
        "import os, multiprocessing.synchronize, socket, tempfile\n"
        "multiprocessing.Lock()\n"
        "os.openpty()\n"
        "tempfile.TemporaryFile(dir='/dev/shm').write(b'x')\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "socket.create_connection(server.getsockname())\n"
        "open('/dev/null', 'w').write('x'); open('/dev/urandom', 'rb').read(1)\n"
    )
    output, end = machine.pod(script, python=True)
    assert end["exit_code"] == 0, output


def test_what_a_pod_leaves_behind_ends_with_it(machine: Machine) -> None:
    """Also what has left its session, and what ignores signals."""
    mark = f"sleep 61{os.getpid()}"
    _, end = machine.pod(f"trap '' TERM; setsid {mark} & ({mark} &) ; exit 3")
    assert end["exit_code"] == 3
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert mark not in running


def test_the_kernel_is_asked_whether_it_can_be_done() -> None:
    probe = [PYTHON, "-m", "services.agent.backends.local.isolation"]
    allowed = subprocess.run(probe, capture_output=True, text=True, check=False, timeout=60)
    assert (allowed.returncode, allowed.stdout) == (0, "")


def test_a_kernel_that_refuses_is_named_and_the_pod_does_not_run(tmp_path: Path) -> None:
    """Given one that allows no more namespaces, when a pod starts, then it has failed, and says why."""

    machine = Machine(tmp_path, without_namespaces())
    output, end = machine.pod("echo started")
    assert (output, end["exit_code"], end["reason"]) == ("", None, "not_isolated")
    assert "namespaces" in end["message"]
