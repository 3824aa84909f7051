"""The page on backups, command by command: of a `muster up` that runs, of one that is stopped, and into a new one."""

import contextlib
import json
import re
import threading
from collections.abc import Generator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue

import pytest

from development.ports import free_port
from development.stack import Stack

pytestmark = [pytest.mark.faults, pytest.mark.timeout(400)]
SECONDS = 150
"""A command that starts a server of its own, on a busy machine."""

PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "backup.md"


@pytest.fixture
def stack(server_folder: Path) -> Iterator[Stack]:
    stack = Stack(server_folder / "backed-up")
    yield stack
    stack.close()


@pytest.fixture
def second(server_folder: Path) -> Iterator[Stack]:
    stack = Stack(server_folder / "restored")
    yield stack
    stack.close()


@contextlib.contextmanager
def listening(port: int, told: Queue[bytes]) -> Generator[None]:
    """A receiver of webhooks there, which takes everything."""

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.put(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(204)
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", port), Receiver)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def commands(name: str) -> list[list[str]]:
    """Those of the page that call `muster NAME`."""
    found = re.findall(rf"^    muster ({name} .*?)(?:  +#.*)?$", PAGE.read_text(), flags=re.MULTILINE)
    assert found, name
    return [one.split() for one in found]


def test_a_backup_of_what_runs_or_is_stopped_is_restored_and_everything_is_there(
    stack: Stack, second: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "backup.key").write_text("a passphrase of tests\n")
    stack.start()
    api = stack.api()
    # Nobody listens there yet: what is to be posted waits.
    receiver = free_port()
    made = stack.muster("webhook", "create", "-p", "default", f"http://127.0.0.1:{receiver}/")
    assert made.returncode == 0, made.stderr
    finished = api.submit("finished", command="true")["workloadId"]
    api.wait(finished, "Completed")
    head = ""
    for words in commands("backup"):
        ran = stack.muster(*(head if word == '"$HEAD"' else word for word in words), timeout_seconds=SECONDS)
        assert ran.returncode == 0, ran.stderr
        if "--verify" not in words:
            (head,) = re.findall(r"^Head: +(\S+)$", ran.stdout, flags=re.MULTILINE)
    token = (stack.data_dir / "secrets" / "token").read_text()
    refused = stack.muster(
        "restore",
        "backups/muster",
        "--key-file",
        "backup.key",
        "--data-dir",
        str(stack.data_dir),
        timeout_seconds=SECONDS,
    )
    assert (refused.returncode, "is in use by process" in refused.stderr) == (1, True)
    stack.stop()

    stopped = stack.muster("backup", "backups/muster", "--key-file", "backup.key", timeout_seconds=SECONDS)
    assert stopped.returncode == 0, stopped.stderr
    refused = stack.muster(
        "restore",
        "backups/muster",
        "--key-file",
        "backup.key",
        "--data-dir",
        str(stack.data_dir),
        timeout_seconds=SECONDS,
    )
    assert (refused.returncode, "there is an installation already" in refused.stderr) == (1, True)
    wrong = stack.muster("backup", "backups/muster", "--key-file", "/dev/null", timeout_seconds=SECONDS)
    assert wrong.returncode == 1
    assert "is not the one that this backup was made with" in wrong.stderr

    (restore,) = commands("restore")
    ran = second.muster(
        *restore[: restore.index("--data-dir")], "--data-dir", str(second.data_dir), timeout_seconds=SECONDS
    )
    assert ran.returncode == 0, ran.stderr
    told: Queue[bytes] = Queue()
    with listening(receiver, told):
        second.start()
        types: set[str] = set()
        while not types >= {"WorkloadSubmitted", "WorkloadCompleted", "HistoryLost"}:
            types.add(json.loads(told.get(timeout=SECONDS))["type"].split(".")[1])
    api = second.api()
    assert api.training(finished)["actualPhase"] == "Completed"
    api.wait(api.submit("after", command="true")["workloadId"], "Completed")
    verified = second.muster("log", "verify")
    assert verified.returncode == 0, verified.stderr
    assert second.muster("--token", token, "project", "list").returncode == 0
    events = second.muster("log", "list", "--type", "LogRestored", "-o", "json")
    assert '"LogRestored"' in events.stdout, events.stderr
    second.stop()
