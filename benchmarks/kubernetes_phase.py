"""One stretch of the benchmark on a cluster without pods: its story is told, and its pods are gone afterwards."""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Generator
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec
import psutil

from benchmarks.kubernetes_watch import Counts, read_story
from development.kubernetes.checker import Event
from development.kubernetes.control_plane import ControlPlane
from services.agent.backends.kubernetes.act.objects import TERMINAL_PHASES
from services.agent.backends.kubernetes.read.view import name_of

POLL_SECONDS = 0.1
REST_SECONDS = 3.0
"""For what the programs still do when the last pod is gone."""


class Times(msgspec.Struct, kw_only=True):
    """Of one pod, as the watch brought them, in seconds since the epoch; 0: never."""

    created: float
    """As the API server noted it down."""
    running: float = 0.0
    ended: float = 0.0
    gone: float = 0.0
    token: int = 0
    """Of the run; 0 where it is not Muster's."""


class _ObjectRef(msgspec.Struct, frozen=True):
    name: str
    namespace: str


class _ResponseStatus(msgspec.Struct, frozen=True):
    code: int


class _Note(msgspec.Struct, frozen=True, rename="camel"):
    """Of the API server, about one call that it has answered."""

    stage_timestamp: datetime
    object_ref: _ObjectRef
    response_status: _ResponseStatus


class Story:
    """What the API server says of all pods, from the moment at which this is made."""

    def __init__(self, plane: ControlPlane, file: Path) -> None:
        self.counts = Counts()
        self._plane = plane
        self._file = file
        plan = {"kubeconfig": str(plane.kubeconfig()), "file": str(file)}
        self._process = start("benchmarks.kubernetes_watch", plan)
        self._read()

    def _read(self) -> None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the watch ended"
        self.counts = msgspec.json.decode(line, type=Counts)

    def wait(self, timeout_seconds: float, **least: int) -> None:
        """Until so many pods are `created`, `running`, `ended` or `gone`."""
        deadline = time.monotonic() + timeout_seconds
        while any(getattr(self.counts, name) < count for name, count in least.items()):
            assert time.monotonic() < deadline, f"{least} not reached after {timeout_seconds:.0f} s: {self.counts}"
            self._read()

    def history(self) -> list[Event]:
        """All of it, as the independent checker reads it; nodes did not change meanwhile."""
        nodes = self._plane.admin("GET", "/api/v1/nodes")["items"]
        found = [Event(0, "nodes", "LISTED", node) for node in nodes]
        for _, change in read_story(self._file):
            pod = msgspec.json.decode(change.object)
            found.append(Event(int(pod["metadata"]["resourceVersion"]), "pods", change.type, pod))
        return found

    def times(self) -> dict[str, Times]:
        """By uid."""
        created = self._created()
        found: dict[str, Times] = {}
        for at, change in read_story(self._file):
            pod = change.pod()
            if (times := found.get(pod.metadata.uid)) is None:
                token = int(pod.metadata.labels.token or 0)
                times = found[pod.metadata.uid] = Times(created=created[name_of(pod)], token=token)
            if pod.status.phase == "Running":
                times.running = times.running or at
            if pod.status.phase in TERMINAL_PHASES:
                times.ended = times.ended or at
            if change.type == "DELETED":
                times.gone = at
        return found

    def _created(self) -> dict[tuple[str, str], float]:
        """By namespace and name."""
        with self._plane.cluster.audit_log.open("rb") as lines:
            notes = [msgspec.json.decode(line, type=_Note) for line in lines]
        made = [note for note in notes if note.response_status.code == HTTPStatus.CREATED]
        # Of several with one name, the last: the name was free before.
        return {(note.object_ref.namespace, note.object_ref.name): note.stage_timestamp.timestamp() for note in made}

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def story(plane: ControlPlane, file: Path) -> Generator[Story]:
    told = Story(plane, file)
    try:
        yield told
    finally:
        told.close()


def start(module: str, plan: dict[str, Any]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", module, json.dumps(plan)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )


def result(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """What a process that was started has to say."""
    out, _ = process.communicate()
    assert process.returncode == 0, f"{process.args} failed"
    return json.loads(out)


def rate(moments: list[float]) -> float:
    """Per second, from the first to the last."""
    return (len(moments) - 1) / (max(moments) - min(moments))


class CpuClock:
    """What each process has used since this was made."""

    def __init__(self, processes: dict[str, psutil.Process]) -> None:
        self._processes = processes
        self._before = self._now()

    def used(self) -> dict[str, float]:
        return {name: now - self._before[name] for name, now in self._now().items()}

    def _now(self) -> dict[str, float]:
        return {name: _cpu_seconds(process) for name, process in self._processes.items()}


def _cpu_seconds(process: psutil.Process) -> float:
    total = 0.0
    for member in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = member.cpu_times()
            # Of children that ended, too: Postgres has one per connection.
            total += times.user + times.system + times.children_user + times.children_system
    return total
