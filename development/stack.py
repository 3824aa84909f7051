"""A real `muster up` in a process tree of its own: started, spoken to over HTTP, killed in parts or whole."""

import contextlib
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Generator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Self

import httpx
import psutil

from development.limits import UNLIMITED_ENVIRONMENT
from development.ports import free_port
from development.recording import History, Recording

Part = Literal["control", "workers", "nats", "postgres"]
PARTS: tuple[Part, ...] = ("control", "workers", "nats", "postgres")

ENDED = frozenset({"Completed", "Failed"})
TRY_AGAIN_SECONDS = 60
"""How long 503 is taken for an answer to repeat, as clients do."""


class Stack:
    """One data folder and the `muster up` that serves it."""

    def __init__(self, folder: Path, *options: str, program: Sequence[str] = ("muster.cli.main", "up")) -> None:
        """`program`: the module that is run, and its first arguments."""
        self.program = program
        self.folder = folder
        self.data_dir = folder / "data"
        self.port = free_port()
        self.options = options
        self.python = sys.executable
        self.started_in: Path | None = None
        """The folder in which it is started; None: ours."""
        self.process: subprocess.Popen[str] | None = None
        self.output: list[str] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        self.apis: list[Api] = []
        self.history = History()
        """Every request of every `api` of this stack."""
        self.environment = os.environ | {
            **UNLIMITED_ENVIRONMENT,
            "XDG_CONFIG_HOME": str(folder / "config"),
            "MUSTER_DATA_DIR": str(self.data_dir),
            "NO_COLOR": "1",
        }

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, timeout_seconds: float = 180) -> Self:
        """Start it and wait for its `ready` line. Raises AssertionError with its output where it does not come."""
        self.launch()
        return self.await_ready(timeout_seconds)

    def launch(self) -> subprocess.Popen[str]:
        """Start it."""
        command = [sys.executable, "-P", "-m", *self.program, "--data-dir", str(self.data_dir)]
        self.process = subprocess.Popen(
            [*command, "--port", str(self.port), *self.options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.environment,
            cwd=self.started_in,
            start_new_session=True,
        )
        self._lines = queue.Queue()
        threading.Thread(target=self._read, args=(self.process, self._lines), daemon=True).start()
        return self.process

    def await_ready(self, timeout_seconds: float) -> Self:
        """Wait for the `ready` line of what was launched. Raises AssertionError with its output."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            with contextlib.suppress(queue.Empty):
                line = self._lines.get(timeout=max(deadline - time.monotonic(), 0.01))
                assert line is not None, "muster up ended:\n" + "".join(self.output[-60:])
                if line.startswith("ready http"):
                    return self
                continue
            raise AssertionError("muster up is not ready:\n" + "".join(self.output[-60:]))

    def _read(self, process: subprocess.Popen[str], lines: "queue.Queue[str | None]") -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self.output.append(line)
                lines.put(line)
        lines.put(None)

    def stop(self, timeout_seconds: float = 60) -> None:
        """SIGTERM, as a person's Ctrl-C would; asserts that nothing stays behind."""
        if self.process is None or self.process.poll() is not None:
            return
        everything = self.tree()
        self.process.terminate()
        self.process.wait(timeout_seconds)
        alive = psutil.wait_procs(everything, timeout=30)[1]
        for process in alive:
            with contextlib.suppress(psutil.Error):
                process.kill()
        assert not alive, f"left behind: {alive}"

    def tree(self) -> list[psutil.Process]:
        """The supervisor and everything below it."""
        assert self.process is not None
        with contextlib.suppress(psutil.NoSuchProcess):
            supervisor = psutil.Process(self.process.pid)
            return [supervisor, *supervisor.children(recursive=True)]
        return []

    def part(self, name: Part) -> psutil.Process | None:
        """A child of the supervisor, or None while it is down."""
        for process in self.tree()[1:]:
            with contextlib.suppress(psutil.Error):
                command = " ".join(process.cmdline())
                mine = process.ppid() == self.tree()[0].pid
                if mine and _is_part(name, process.name(), command):
                    return process
        return None

    def kill(self, name: Part) -> bool:
        """SIGKILL one part; False where it is down already."""
        process = self.part(name)
        if process is None:
            return False
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
        if name == "postgres":
            self.history.tables_went_back()
        return True

    def kill_everything(self) -> None:
        """SIGKILL the whole tree, running pods and all, as a lost machine would."""
        processes = self.tree()
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGSTOP)
        for process in [*processes, *self.tree()]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        assert self.process is not None
        self.process.wait(60)
        psutil.wait_procs(processes, timeout=60)
        self.history.tables_went_back()

    def close(self) -> None:
        """End whatever still runs, and forget the data."""
        for process in self.tree():
            with contextlib.suppress(psutil.Error):
                process.kill()
        if self.process is not None:
            self.process.wait(60)
        for api in self.apis:
            api.http.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def muster(self, *arguments: str, timeout_seconds: float = 60) -> subprocess.CompletedProcess[str]:
        """The command line, with the context that `up` wrote."""
        return subprocess.run(
            [sys.executable, "-m", "muster.cli.main", *arguments],
            capture_output=True,
            text=True,
            env=self.environment,
            timeout=timeout_seconds,
            check=False,
        )

    def token(self, user: str, role: str = "researcher", project: str = "default") -> str:
        made = self.muster("token", "create", "--user", user, "--role", role, "--project", project)
        assert made.returncode == 0, made.stderr
        return made.stdout.strip()

    def api(self, token: str | None = None, *, url: str | None = None) -> "Api":
        """As the context's user, or who has the token; by another api than that of `up` where `url` says so."""
        config = tomllib.loads((self.folder / "config" / "muster" / "config.toml").read_text())
        context = config["contexts"][config["current"]]
        api = Api(url or self.url, token or context["token"], self.history)
        self.apis.append(api)
        return api


def _is_part(name: Part, program: str, command: str) -> bool:
    match name:
        case "control" | "workers":
            return "muster.embedded.process" in command and command.rstrip().endswith(name)
        case "nats":
            return "nats-server" in program or "nats-server" in command.split(" ", 1)[0]
        case "postgres":
            return program.startswith("postgres")


class Api:
    """The HTTP API as a program would use it, each request sent once: who breaks something beside it asks again."""

    def __init__(self, url: str, token: str, history: History) -> None:
        self.http = httpx.Client(
            base_url=f"{url}/api/v1",
            headers={"Authorization": f"Bearer {token}"},
            timeout=60,
            trust_env=False,
            transport=Recording(history, token),
        )

    def get(self, path: str, **query: Any) -> Any:
        give_up = time.monotonic() + TRY_AGAIN_SECONDS
        while (answer := self.http.get(path, params=query)).status_code == 503 and time.monotonic() < give_up:
            time.sleep(1)  # as the answer says
        assert answer.status_code == 200, (answer.status_code, answer.text)
        return answer.json()

    def cluster(self, name: str) -> str:
        return next(c["id"] for c in self.get("/clusters")["clusters"] if c["name"] == name)

    def project(self, name: str = "default") -> str:
        return next(p["id"] for p in self.get("/org-unit/projects")["projects"] if p["name"] == name)

    def submit(self, name: str, *, cluster: str = "local", **spec: Any) -> dict[str, Any]:
        body = training(name, self.project(), self.cluster(cluster), **spec)
        answer = self.http.post("/workloads/trainings", json=body)
        assert answer.status_code == 202, (answer.status_code, answer.text)
        return answer.json()

    def training(self, workload_id: str) -> dict[str, Any]:
        return self.get(f"/workloads/trainings/{workload_id}")

    def act(self, verb: Literal["suspend", "resume", "delete"], workload_id: str) -> httpx.Response:
        if verb == "delete":
            return self.http.delete(f"/workloads/trainings/{workload_id}")
        return self.http.post(f"/workloads/trainings/{workload_id}/{verb}")

    def wait(self, workload_id: str, *phases: str, timeout_seconds: float = 60) -> dict[str, Any]:
        """Wait for one of the phases; an end that is none of them fails at once."""

        def reached() -> dict[str, Any] | None:
            seen = self.training(workload_id)
            if seen["actualPhase"] in phases:
                return seen
            assert seen["actualPhase"] not in ENDED, f"ended as {seen['actualPhase']}: {self.story(workload_id)}"
            return None

        return until(reached, timeout_seconds, lambda: f"not {phases}: {self.story(workload_id)}")

    def history(self, workload_id: str) -> list[dict[str, Any]]:
        return self.get(f"/workloads/{workload_id}/history", limit=500)["records"]

    def story(self, workload_id: str) -> list[str]:
        return [f"{record['type']}: {record['message']}" for record in self.history(workload_id)]

    def logs(self, workload_id: str) -> str:
        answer = self.http.get(f"/workloads/{workload_id}/logs")
        assert answer.status_code == 200, answer.text
        return answer.text


def training(name: str, project_id: str, cluster_id: str, **spec: Any) -> dict[str, Any]:
    """A creation request; `python` in the spec stands for a command of this interpreter."""
    if "python" in spec:
        spec["command"] = sys.executable
        spec["args"] = f"-c '{spec.pop('python')}'"
    return {"name": name, "projectId": project_id, "clusterId": cluster_id, "spec": {"image": "python:3.13", **spec}}


def until[T](probe: Callable[[], T | None], timeout_seconds: float, why: Callable[[], str] = lambda: "") -> T:
    """The first answer of `probe` that is neither None nor False."""
    deadline = time.monotonic() + timeout_seconds
    while time.monotonic() < deadline:
        found = probe()
        if found is not None and found is not False:
            return found
        time.sleep(0.05)
    raise AssertionError(f"still not so after {timeout_seconds} s: {why()}")


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


@contextlib.contextmanager
def running(folder: Path, *options: str) -> Generator[Stack]:
    with served(Stack(folder, *options)) as stack:
        yield stack


@contextlib.contextmanager
def served(stack: Stack) -> Generator[Stack]:
    """From its start to its end, after which nothing of it is left."""
    try:
        yield stack.start()
        stack.stop()
    finally:
        stack.close()
