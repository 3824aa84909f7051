"""Programs of users on a real `muster up`: the README of the Python client, and the examples that read events."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from muster_client import Muster, TrainingCreation, TrainingSpec

from development.stack import Stack, training, until
from tests.support.lacking import lacking
from tests.support.python_client import installed

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
README = ROOT / "clients" / "python" / "README.md"
EXAMPLES = ROOT / "examples"

OUTPUT = {
    "Submit, and wait": r"45\nsum Completed 0\n",
    "If something goes wrong": r"spec\.image \(required\): .*\nlarge is still Pending after 2 s: .*GPU.*\n",
    "Lists": r"(large Deleting 0\.0\n)?sum Completed 0\.0\n\S+ True\n[12]\n",
    "Events": r"listened-\d+ completed\n",
    "With `await`": r"(?s).*\b(sum|large|listened-\d+) .*\n",
}
"""What the program in each section prints."""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    stack = Stack(tmp_path_factory.mktemp("up"))
    # A listener learns at each beat that nothing has happened.
    stack.environment["MUSTER_EVENT_STREAM_HEARTBEAT_SECONDS"] = "1"
    try:
        yield stack.start()
        stack.stop()
    finally:
        stack.close()


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(tmp_path_factory.mktemp("client"))


@pytest.fixture
def environment(stack: Stack) -> dict[str, str]:
    """As the README has it set. Nothing of the checkout is found there."""
    words = re.findall(r"^    export MUSTER_TOKEN=\$\(muster (.*)\)$", README.read_text(), re.MULTILINE)
    made = stack.muster(*words[0].split())
    assert made.returncode == 0, made.stderr
    return {"PATH": os.environ["PATH"], "MUSTER_URL": stack.url, "MUSTER_TOKEN": made.stdout.strip()}


def programs() -> dict[str, str]:
    """By the heading above it."""
    sections = re.split(r"^## ", README.read_text(), flags=re.MULTILINE)[1:]
    found = {section.partition("\n")[0]: re.findall(r"```python\n(.*?)```", section, re.DOTALL) for section in sections}
    return {heading: program for heading, [program] in ((h, p) for h, p in found.items() if p)}


def test_every_example_of_the_readme_does_what_it_says(
    stack: Stack, python: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    examples = programs()
    assert list(examples) == list(OUTPUT)
    api = stack.api()
    for heading, program in examples.items():
        command = [str(python), "-I", "-c", program]
        with subprocess.Popen(
            command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as run:
            if heading == "Events":
                _happen(stack, run)
            told, wrong = run.communicate(timeout=60)
        assert run.returncode == 0, wrong
        assert re.fullmatch(OUTPUT[heading], told), (heading, told)
    # Nothing was submitted twice.
    assert api.get("/workloads/count", filterBy="name==sum")["count"] == 1


def _happen(stack: Stack, listening: "subprocess.Popen[str]") -> None:
    """Workloads complete, one after the other, until the program has heard of one."""
    api, number = stack.api(), 0
    project, cluster = api.project(), api.cluster("local")

    def heard() -> bool:
        nonlocal number
        number += 1
        body = training(f"listened-{number}", project, cluster, command="/bin/true")
        assert api.http.post("/workloads/trainings", json=body).status_code == 202
        try:
            listening.wait(1)
        except subprocess.TimeoutExpired:
            return False
        return True

    until(heard, 60)


def test_what_is_deleted_as_soon_as_it_completes_has_completed(stack: Stack, environment: dict[str, str]) -> None:
    spec = TrainingSpec(image="x", command="/bin/true", auto_deletion_time_after_completion_seconds=0)
    with Muster(stack.url, environment["MUSTER_TOKEN"]) as muster:
        project, cluster = muster.project("default").id, muster.cluster("local").id
        made = muster.submit(TrainingCreation(name="brief", project_id=project, cluster_id=cluster, spec=spec))
        muster.wait(made.id, "Deleted", timeout_seconds=60)
        assert muster.wait(made.id, timeout_seconds=1).deleted_at is not None


class Chat:
    """An incoming webhook, which keeps what it was told."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.refuses = 0
        """How many posts it does not take."""
        chat = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                text = json.loads(self.rfile.read(int(self.headers["content-length"])))["text"]
                chat.refuses -= 1
                if chat.refuses < 0:
                    chat.texts.append(text)
                self.send_response(500 if chat.refuses >= 0 else 200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def chat() -> Iterator[Chat]:
    chat = Chat()
    yield chat
    chat.close()


@contextlib.contextmanager
def program(
    *command: object, cwd: Path | None = None, environment: dict[str, str] | None = None
) -> Generator["subprocess.Popen[str]"]:
    """Runs until the end of the block, and is killed then."""
    words = [str(word) for word in command]
    with subprocess.Popen(
        words, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_chat_is_told_once_of_what_completes_fails_or_waits_whatever_is_killed(
    stack: Stack, python: Path, environment: dict[str, str], tmp_path: Path, chat: Chat
) -> None:
    api, state = stack.api(), tmp_path / "state.json"
    notify = (python, "-I", EXAMPLES / "notify" / "notify.py", state)
    given = environment | {"CHAT_URL": chat.url, "WAIT_SECONDS": "3600"}
    chat.refuses = 1
    with program(*notify, environment=given):
        until(state.exists, 60)
        api.submit("told-good", command="/bin/true")
        api.submit("told-bad", command="/bin/false", backoffLimit=0)
        until(lambda: len(chat.texts) == 2, 60, lambda: str(chat.texts))
    with program(*notify, environment=given | {"WAIT_SECONDS": "2"}):
        large = api.submit("told-large", command="/bin/true", compute={"gpuDevicesRequest": 64})["workloadId"]
        until(lambda: len(chat.texts) == 3, 60, lambda: str(chat.texts))
    api.submit("told-later", command="/bin/true")
    with program(*notify, environment=given):
        until(lambda: len(chat.texts) == 4, 60, lambda: str(chat.texts))
    with program(*notify, environment=given):
        api.submit("told-last", command="/bin/true")
        until(lambda: len(chat.texts) == 5, 60, lambda: str(chat.texts))
    api.act("delete", large)
    first, then = sorted(chat.texts[:3]), chat.texts[3:]
    assert re.fullmatch(
        r"told-bad failed: .+\n?told-good completed\n?told-large waits for \S+ h: .*64 GPUs.*", "".join(first)
    )
    assert then == ["told-later completed", "told-last completed"]


def subscription(stack: Stack, name: str, file: Path) -> None:
    made = stack.muster("subscription", "create", "-p", "default", "--name", name, "-o", "json")
    assert made.returncode == 0, made.stderr
    file.write_text(made.stdout)


def printed(process: "subprocess.Popen[str]", last: str) -> list[str]:
    """The first two words of each line, until those."""
    assert process.stdout is not None
    lines: list[str] = []
    while not lines or lines[-1] != last:
        line = process.stdout.readline()
        assert line, process.stderr and process.stderr.read()
        lines.append(" ".join(line.split()[:2]))
    return lines


def test_a_subscriber_of_plain_nats_prints_each_event_of_its_project_once(stack: Stack, tmp_path: Path) -> None:
    file = tmp_path / "subscription.json"
    subscription(stack, "printer", file)
    told: list[str] = []
    for name in ("printed-1", "printed-2"):
        # It goes on where it was; what it had not acknowledged when it was killed comes again, and first.
        stack.api().submit(name, command="/bin/true")
        with program(sys.executable, "-I", EXAMPLES / "subscriber" / "subscriber.py", file) as process:
            own = printed(process, f"muster.WorkloadCompleted.v1 {name}")
        assert own.count(f"muster.WorkloadSubmitted.v1 {name}") == 1
        told += [line for line in own if line not in told]
    names = [line.split()[-1] for line in told]
    assert names == sorted(names)


def lines_of(language: str) -> str:
    """What docs/concepts/subscribing.md shows in it."""
    page = (ROOT / "docs" / "concepts" / "subscribing.md").read_text()
    (block,) = re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)
    return block


def test_the_lines_for_python_read_events(stack: Stack, tmp_path: Path) -> None:
    subscription(stack, "in-python", tmp_path / "chat.json")
    stack.api().submit("read-in-python", command="/bin/true")
    with program(sys.executable, "-I", "-c", lines_of("python"), cwd=tmp_path) as process:
        assert '"name":"read-in-python"' in first_submitted(process)


def test_the_lines_for_node_read_events(stack: Stack, tmp_path: Path) -> None:
    if shutil.which("npm") is None or shutil.which("node") is None:
        lacking("Node and npm are not installed")
    for name in ("package.json", "package-lock.json"):
        shutil.copy(ROOT / "tests" / "clients" / "node" / name, tmp_path)
    install = ("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=2", "--fetch-timeout=10000")
    installed = subprocess.run(install, cwd=tmp_path, capture_output=True, text=True, check=False)
    if installed.returncode != 0:
        lacking(f"the npm registry is not reached: {installed.stderr[-300:]}")
    (tmp_path / "subscriber.mjs").write_text(lines_of("js"))
    subscription(stack, "in-node", tmp_path / "chat.json")
    stack.api().submit("read-in-node", command="/bin/true")
    with program("node", "subscriber.mjs", cwd=tmp_path) as process:
        assert '"name":"read-in-node"' in first_submitted(process)


def first_submitted(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("muster.WorkloadSubmitted.v1 "), line or (process.stderr and process.stderr.read())
    return line
