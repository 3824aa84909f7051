"""Ports and exposed URLs end to end on one machine: a real `muster up`, its proxy, a program that serves."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from development.stack import Api, Stack, running, until

pytestmark = pytest.mark.e2e
EXAMPLE = Path("examples") / "served.yaml"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running(tmp_path_factory.mktemp("up")) as stack:
        yield stack


@pytest.fixture(scope="module")
def api(stack: Stack) -> Api:
    return stack.api()


def asked(url: str, **headers: str) -> httpx.Response:
    """As a browser would, which knows that every name below localhost is this machine."""
    parts = urlsplit(url)
    target = f"http://127.0.0.1:{parts.port}{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
    return httpx.get(target, headers={"host": parts.netloc, **headers}, timeout=60)


def connections(api: Api, workload_id: str) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in api.get(f"/workloads/{workload_id}/connections")["connections"]}


def served(api: Api, name: str) -> str:
    (row,) = api.get("/workloads", filterBy=f"name=={name}")["workloads"]
    return row["id"]


def test_the_example_serves_by_its_url_and_by_its_node_port(stack: Stack, api: Api) -> None:
    """S028, S029, S030, S031, S033."""
    told = stack.muster("workspace", "submit", "-f", str(EXAMPLE))
    assert told.returncode == 0, told.stderr
    workload = served(api, "served")
    found = until(lambda: found if (found := connections(api, workload))["files"]["ready"] else None, 60)
    assert (found["files"]["connectionType"], found["direct"]["connectionType"]) == ("ExternalUrl", "NodePort")
    url, direct = found["files"]["address"], found["direct"]["address"]
    assert urlsplit(url).hostname == f"served-8888-{workload.replace('-', '')[:12]}.localhost"
    assert until(lambda: "Directory listing" in _text(f"http://{direct}") or None, 60)
    assert asked(url).status_code == 401
    assert "Directory listing" in asked(url, authorization=f"Bearer {stack.token('bea')}").text
    link = stack.muster("workspace", "open", "served", "--no-browser").stdout.strip()
    signed_in = asked(link)
    assert (signed_in.status_code, signed_in.headers["location"]) == (303, "/")
    cookie = signed_in.headers["set-cookie"].partition(";")[0]
    assert "Directory listing" in asked(url, cookie=cookie).text
    assert asked(link).status_code == 400
    shown = stack.muster("workspace", "describe", "served").stdout
    assert url in shown
    listed = stack.muster("workload", "connections", "served")
    assert direct in listed.stdout, listed.stderr
    assert stack.muster("workspace", "delete", "served").returncode == 0
    until(lambda: asked(url, cookie=cookie).status_code == 401 or None, 60)


def _text(url: str) -> str:
    try:
        return httpx.get(url, timeout=60).text
    except httpx.HTTPError:
        return ""


def test_flags_say_who_may_open_it_and_a_taken_address_or_node_port_is_told(stack: Stack, api: Api) -> None:
    """S028, S030, S096, R11."""
    submit = ("workspace", "submit")
    words = ("-i", "x", "--command", "--", "python3", "-c", "import time; time.sleep(60)")
    domain = urlsplit(_domain(stack)).netloc
    mine = f"container=80,url=http://mine.{domain},authusers=ann;bea"
    told = stack.muster(*submit, "mine", "--external-url", mine, *words)
    assert told.returncode == 0, told.stderr
    spec = api.get(f"/workloads/{served(api, 'mine')}")["spec"]
    assert spec["exposedUrls"][0]["authorizedUsers"] == ["ann", "bea"]
    again = stack.muster(*submit, "again", "--external-url", mine, *words)
    assert again.returncode == 6, again.stderr
    assert "another workload has the address 'mine'" in again.stderr
    stranger = stack.muster(*submit, "group", "--external-url", "container=80,authgroups=research", *words)
    assert "you are a member of none of them" in stranger.stderr
    with _some_node_port() as taken:
        port = f"container=80,service-type=NodePort,external={taken.getsockname()[1]}"
        assert stack.muster("training", "submit", "taken", "--port", port, *words).returncode == 0
        ended = api.wait(served(api, "taken"), "Failed")
    assert ended["actualPhase"] == "Failed"
    (row,) = api.get("/workloads", filterBy="name==taken")["workloads"]
    assert row["phaseReason"] == "node_port_taken"
    assert "is in use" in row["phaseMessage"]


def _some_node_port() -> socket.socket:
    """That somebody listens on."""
    for number in range(32_700, 32_768):
        with contextlib.suppress(OSError):
            return socket.create_server(("127.0.0.1", number))
    raise AssertionError("no node port is free")


def _domain(stack: Stack) -> str:
    """Where this one's proxy is."""
    return f"http://localhost:{json.loads((stack.data_dir / 'ports.json').read_text())['proxy']}"


ECHO = """
import os, socket, sys
server = socket.create_server(("127.0.0.1", int(os.environ["MUSTER_PORT_7000"])))
print("ready", flush=True)
while True:
    connection, _ = server.accept()
    while data := connection.recv(65536):
        print("heard", len(data), flush=True)
        connection.sendall(data[::-1])
    connection.close()
"""


def begun(stack: Stack, *words: str, **streams: Any) -> subprocess.Popen[bytes]:
    """One that goes on, beside the test."""
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [stack.python, "-P", "-m", "muster.cli.main", *words]
    return subprocess.Popen[bytes](command, env=stack.environment, start_new_session=True, **pipes | streams)


def _echoed(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as there:
        there.sendall(b"abc")
        there.shutdown(socket.SHUT_WR)
        return there.makefile("rb").read()


def test_a_command_a_shell_an_attachment_and_a_port_lead_into_a_pod_and_the_history_tells_who(
    stack: Stack, api: Api
) -> None:
    """What is typed and written goes through whole; exit codes are passed on; a terminal is one, and is set back."""
    submit = (
        "workspace",
        "submit",
        "inside",
        "-i",
        "x",
        "--port",
        "container=7000,service-type=ClusterIP",
        "--command",
        "--wait=running",
    )
    told = stack.muster(*submit, "--", "python3", "-c", ECHO)
    assert told.returncode == 0, told.stderr
    workload = served(api, "inside")

    blob = bytes(range(256)) * 2000
    with begun(stack, "exec", "inside", "-i", "--", "sh", "-c", "cat; echo over >&2; exit 7") as ran:
        out, err = ran.communicate(blob, timeout=60)
    assert (ran.returncode, out == blob, err) == (7, True, b"over\n")
    assert stack.muster("exec", "inside", "--", "no-such-program").returncode == 127
    assert stack.muster("exec", "inside", "--pod", "main-1", "--", "true").returncode == 6

    ours, its = os.openpty()
    before = termios.tcgetattr(its)
    with begun(stack, "bash", "inside", stdin=its, stdout=its, stderr=its) as shell:
        os.write(ours, b"tty && stty size && echo $MUSTER_WORKLOAD_NAME; exit 3\n")
        assert shell.wait(60) == 3
    written = os.read(ours, 65536)
    assert (b"/dev/pts/" in written, b"inside\r\n" in written) == (True, True), written
    assert termios.tcgetattr(its) == before
    os.close(ours)
    os.close(its)

    attached = begun(stack, "attach", "inside")
    forwarding = begun(stack, "port-forward", "inside", ":7000", stderr=subprocess.PIPE)
    with attached, forwarding:
        assert forwarding.stderr is not None
        line = forwarding.stderr.readline().decode()
        assert line.endswith("leads to port 7000 of main-0\n")
        here = int(line.split()[0].rpartition(":")[2])
        seen = attached.stdout
        assert seen is not None
        # Until whoever is attached sees it: that session opens beside this one.
        until(lambda: (_echoed(here) == b"cba" and select.select([seen], [], [], 0.5)[0]) or None, 60)
        assert seen.readline() == b"heard 3\n"
        forwarding.send_signal(signal.SIGINT)
        assert forwarding.wait(60) == 130
        assert stack.muster("workspace", "delete", "inside").returncode == 0
        attached.wait(60)

    def closed() -> list[dict[str, Any]] | None:
        events = api.get(f"/workloads/{workload}/history", limit=200)["records"]
        opened = [one for one in events if one["type"] == "SessionOpened"]
        ended = [one for one in events if one["type"] == "SessionClosed"]
        return [*opened, *ended] if len(opened) == len(ended) == 5 else None

    told = "\n".join(one["message"] for one in until(closed, 30))
    assert "runs 'bash' in run 1 of pod main-0 with a terminal" in told
    assert "reaches port 7000 of run 1 of pod main-0" in told
    assert "is over with exit code 7 (ended); 500Ki in, 500Ki out" in told
    assert all(words in told for words in ("runs 'no-such-program'", "is attached to", "(command not found)"))


def test_a_submission_attaches_once_it_runs_and_ends_with_it(stack: Stack) -> None:
    """As Run:ai's `--attach`: what the process writes, and nothing else on stdout but the row."""
    talks = "import time\nwhile True: print('still here', flush=True); time.sleep(0.2)"
    line = (
        "training",
        "submit",
        "shown",
        "-i",
        "x",
        "--attach",
        "--no-headers",
        "--command",
        "--",
        "python3",
        "-c",
        talks,
    )
    with begun(stack, *line) as attached:
        assert attached.stdout is not None
        assert attached.stdout.readline().split()[0] == b"shown"
        assert attached.stdout.readline() == b"still here\n"
        assert stack.muster("training", "delete", "shown", "-y").returncode == 0
        attached.stdout.read()
        assert attached.wait(60) != 0


@pytest.mark.parametrize(("program", "code"), [("echo quick", 0), ("echo quick; exit 3", 8)])
def test_a_submission_that_attaches_misses_nothing_of_what_a_short_program_writes(
    stack: Stack, program: str, code: int
) -> None:
    line = (
        "training",
        "submit",
        "--name-prefix",
        "short",
        "-i",
        "x",
        "--backoff-limit",
        "0",
        "--attach",
        "--no-headers",
    )
    ran = stack.muster(*line, "--command", "--", "sh", "-c", program, timeout_seconds=240)
    row, *written = ran.stdout.splitlines()
    assert row.startswith("short"), ran.stdout
    assert (written, ran.returncode) == (["quick"], code), ran.stderr
