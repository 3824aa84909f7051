"""An independent witness of what happens on an API server, and what must hold of all that it saw.

`Recorder` watches pods and nodes as administrator, from the first moment, over connections of its own; whatever breaks,
it goes on at the version where it was. `check_history` then goes through every event in the order of the server's own
versions, and `check_all` holds that against the raw log. Nothing here is shared with the services.
"""

import asyncio
import contextlib
import functools
import http.client
import itertools
import json
import ssl
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, Protocol, Self
from urllib.parse import urlsplit

from development.checker.calls import check_calls
from development.checker.log import LogChecker, Report, check_log
from development.kubernetes.control_plane import ControlPlane
from development.kubernetes.stack import KubernetesStack
from development.servers import EVERYTHING
from development.stack_check import SHOWN, check_rows, read_both, wanted_of

AGAIN_SECONDS: Final = 0.05
SILENCE_SECONDS: Final = 90
"""The server sends a bookmark every minute or so."""
TERMINAL: Final = frozenset({"Succeeded", "Failed"})
MARKER: Final = "recorder-marker"
OUR_MANAGER: Final = "muster-agent"
"""How the API server calls who wrote with the agent's client, in an object's `managedFields`."""
_NUMBERS: Final = itertools.count()

type Object = dict[str, Any]


@dataclass(frozen=True)
class Event:
    version: int
    kind: str
    """`pods` or `nodes`."""
    type: str
    """`ADDED`, `MODIFIED`, `DELETED`; `LISTED` for what was there already; `WHOLE` after a gap: all that there is."""
    object: Object
    """With `WHOLE`, `uids` of all objects."""


class _Watch:
    """One kind of object, for ever, in a thread; raw lines go to a file, and are read when somebody asks."""

    def __init__(self, plane: ControlPlane, kind: str, folder: Path) -> None:
        self.gaps = 0
        """Times that the server could not say what had happened since the last version."""
        self._plane = plane
        self._kind = kind
        self._file = folder / f"{kind}.jsonl"
        self._last = b""
        self._listed = ""
        self._stop = threading.Event()
        self._connection: http.client.HTTPSConnection | None = None
        self._list()
        self._thread = threading.Thread(target=self._run, name=f"recorder-{kind}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        connection = self._connection
        if connection is not None and connection.sock is not None:
            with contextlib.suppress(OSError):
                connection.sock.shutdown(2)
        self._thread.join(10)

    def events(self) -> Iterator[Event]:
        with self._file.open("rb") as file:
            for line in file:
                told = json.loads(line)
                if told["type"] in {"ADDED", "MODIFIED", "DELETED", "LISTED", "WHOLE"}:
                    version = int(told["object"]["metadata"]["resourceVersion"])
                    yield Event(version, self._kind, told["type"], told["object"])

    def said(self, text: str) -> bool:
        return text.encode() in self._file.read_bytes()

    def _run(self) -> None:
        with self._file.open("ab", buffering=0) as file:
            while not self._stop.is_set():
                with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                    self._follow(file)
                time.sleep(AGAIN_SECONDS)

    def _follow(self, file: Any) -> None:
        version = json.loads(self._last)["object"]["metadata"]["resourceVersion"] if self._last else self._listed
        self._connection = self._connect()
        with (
            contextlib.closing(self._connection),
            self._ask(f"?watch=true&allowWatchBookmarks=true&resourceVersion={version}") as answer,
        ):
            while line := answer.readline():
                if not line.endswith(b"\n"):
                    return  # cut in the middle
                if line.startswith(b'{"type":"ERROR"') or answer.status == http.HTTPStatus.GONE:
                    if json.loads(line).get("object", {}).get("code") == http.HTTPStatus.GONE or answer.status == 410:
                        self.gaps += 1
                        self._last = b""
                        self._list()
                    return
                if answer.status != http.HTTPStatus.OK:
                    return
                file.write(line)
                self._last = line

    def _list(self) -> None:
        self._connection = self._connect()
        with contextlib.closing(self._connection), self._ask("") as answer:
            told = json.loads(answer.read())
        self._listed = told["metadata"]["resourceVersion"]
        with self._file.open("ab") as file:
            for each in told["items"]:
                file.write(json.dumps({"type": "LISTED", "object": each}).encode() + b"\n")
            uids = [each["metadata"]["uid"] for each in told["items"]]
            whole = {"metadata": {"resourceVersion": self._listed}, "uids": uids}
            file.write(json.dumps({"type": "WHOLE", "object": whole}).encode() + b"\n")

    def _connect(self) -> http.client.HTTPSConnection:
        tls = ssl.create_default_context(cafile=str(self._plane.ca_file))
        return http.client.HTTPSConnection(urlsplit(self._plane.url).netloc, timeout=SILENCE_SECONDS, context=tls)

    def _ask(self, query: str) -> http.client.HTTPResponse:
        assert self._connection is not None
        headers = {"Authorization": f"Bearer {self._plane.admin_token}"}
        self._connection.request("GET", f"/api/v1/{self._kind}{query}", headers=headers)
        return self._connection.getresponse()


class Recorder:
    """Records from its making until `stop`."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._folder = tempfile.TemporaryDirectory(prefix="recorder-")
        self._pods, self._nodes = (_Watch(plane, kind, Path(self._folder.name)) for kind in ("pods", "nodes"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._pods.stop()
        self._nodes.stop()
        self._folder.cleanup()

    @property
    def gaps(self) -> int:
        """Stretches of the history that nobody can tell any more (a real 410)."""
        return self._pods.gaps + self._nodes.gaps

    def history(self, timeout_seconds: float = 60) -> list[Event]:
        """Everything up to now, in the order of the server's versions."""
        self._catch_up(timeout_seconds)
        events = [*self._nodes.events(), *self._pods.events()]
        return sorted(events, key=lambda event: event.version)

    def _catch_up(self, timeout_seconds: float) -> None:
        """Until a pod that is made now was seen."""
        name = f"{MARKER}-{next(_NUMBERS)}"
        path = "/api/v1/namespaces/default/pods"
        spec = {"schedulerName": "none", "containers": [{"name": "main", "image": "none"}]}
        self._plane.admin("POST", path, {"metadata": {"name": name}, "spec": spec})
        try:
            deadline = time.monotonic() + timeout_seconds
            while not self._pods.said(name):
                assert time.monotonic() < deadline, "the recorder does not follow"
                time.sleep(AGAIN_SECONDS)
        finally:
            self._plane.admin("DELETE", f"{path}/{name}", gracePeriodSeconds=0)


# -- what must hold of the API server's history ------------------------------------------------------------------------


@dataclass
class Witness:
    """What was found. `violations` empty is the only pass."""

    violations: list[str] = field(default_factory=list[str])
    events: int = 0
    runs: dict[str, Object] = field(default_factory=dict[str, Object])
    """By uid, the last that was seen of each pod of ours."""
    left: list[str] = field(default_factory=list[str])
    """Objects of ours that are there at the end, reservation pods among them."""
    most_gpus: int = 0
    """Devices in use at once, at most."""


class _Books:
    def __init__(self, foreign_may_go: Collection[str]) -> None:
        self.witness = Witness()
        self._foreign_may_go = foreign_may_go
        self._pods: dict[tuple[str, str], Object] = {}
        self._nodes: dict[str, Object] = {}
        self._uid_of_run: dict[tuple[str, str], str] = {}
        self._where = ""

    def feed(self, event: Event) -> None:
        self.witness.events += 1
        self._where = f"at version {event.version}"
        if event.type == "WHOLE":
            self._whole(event)
        elif event.kind == "nodes":
            name = event.object["metadata"]["name"]
            if event.type == "DELETED":
                self._nodes.pop(name, None)
            else:
                self._nodes[name] = event.object
        elif not event.object["metadata"]["name"].startswith(MARKER):
            self._pod(event)

    def _whole(self, event: Event) -> None:
        """What is not among these went in a gap of the history."""
        uids = set(event.object["uids"])
        known: dict[Any, Object] = self._nodes if event.kind == "nodes" else self._pods
        for each in [each for each, object_ in known.items() if object_["metadata"]["uid"] not in uids]:
            del known[each]

    def finish(self) -> Witness:
        self.witness.left = sorted(f"{ns}/{name}" for (ns, name), pod in self._pods.items() if _ours(pod))
        return self.witness

    def _wrong(self, text: str) -> None:
        self.witness.violations.append(f"{self._where}: {text}")

    def _pod(self, event: Event) -> None:
        pod, place = event.object, _place(event.object)
        before = self._pods.get(place)
        if event.type == "DELETED":
            self._pods.pop(place, None)
        else:
            self._pods[place] = pod
        if not _ours(pod):
            self._foreign(event, before)
            return
        if _key(pod):
            if pod["metadata"]["uid"] not in self.witness.runs:
                self._once(pod)
            self.witness.runs[pod["metadata"]["uid"]] = pod
        if event.type == "ADDED":
            self._alone(pod)
            self._fits(pod)
        elif event.type == "DELETED" and "muster.dev/gpu-reservation" in pod["metadata"]["labels"]:
            users = [_name(other) for other in self._live() if pod["metadata"]["name"] in _shared(other)]
            if users:
                self._wrong(f"{_name(pod)} is gone while {users} share its device")

    def _foreign(self, event: Event, before: Object | None) -> None:
        meta = event.object["metadata"]
        if any(entry["manager"] == OUR_MANAGER for entry in meta.get("managedFields", [])):
            self._wrong(f"{_name(event.object)} is not ours, and we wrote to it")
        going = event.type == "DELETED" or "deletionTimestamp" in meta
        was_going = before is not None and "deletionTimestamp" in before["metadata"]
        if going and not was_going and meta["name"] not in self._foreign_may_go:
            self._wrong(f"{_name(event.object)} is not ours, and somebody deleted it")

    def _once(self, pod: Object) -> None:
        run, uid = (_key(pod), pod["metadata"]["labels"]["muster.dev/token"]), pod["metadata"]["uid"]
        first = self._uid_of_run.setdefault(run, uid)
        if first != uid:
            self._wrong(f"run {run} was made twice: {first} and {uid}")

    def _alone(self, pod: Object) -> None:
        key = _key(pod)
        others = [_name(one) for one in self._live() if key and _key(one) == key]
        if len(others) > 1:
            self._wrong(f"{len(others)} live pods of rank {key}: {others}")

    def _live(self) -> Iterator[Object]:
        return (pod for pod in self._pods.values() if pod.get("status", {}).get("phase") not in TERMINAL)

    def _fits(self, pod: Object) -> None:
        """After one of ours came: whether its node has room for all that lives there."""
        name = pod["spec"].get("nodeName", "")
        node = self._nodes.get(name)
        if node is None:
            self._wrong(f"{_name(pod)} was made on node {name!r}, which is not there")
            return
        there = [each for each in self._live() if each["spec"].get("nodeName") == name]
        has = node["status"]["allocatable"]
        for resource in ("cpu", "memory", "nvidia.com/gpu"):
            asked = sum((_requested(each, resource) for each in there), Decimal(0))
            if asked > _quantity(has.get(resource, "0")) and _requested(pod, resource):
                self._wrong(f"node {name} has {has.get(resource, '0')} {resource}, and {asked} are requested")
        if len(there) > int(has.get("pods", "110")):
            self._wrong(f"node {name} takes {has['pods']} pods, and has {len(there)}")
        for reservation in _shared(pod):
            self._shares(reservation, there)
        gpus = sum(int(_requested(each, "nvidia.com/gpu")) for each in self._live())
        self.witness.most_gpus = max(self.witness.most_gpus, gpus)

    def _shares(self, reservation: str, there: Sequence[Object]) -> None:
        if all(pod["metadata"]["name"] != reservation for pod in there):
            self._wrong(f"a device is shared that {reservation} does not hold")
        users = [pod for pod in there if reservation in _shared(pod)]
        total = sum((Decimal(_environment(pod)["GPU_PORTION"]) for pod in users), Decimal(0))
        if total > 1:
            self._wrong(f"{total} of the device of {reservation} are given out: {[_name(pod) for pod in users]}")


def _ours(pod: Object) -> bool:
    return "muster.dev/cluster" in pod["metadata"].get("labels", {})


def _key(pod: Object) -> str:
    return str(pod["metadata"].get("labels", {}).get("muster.dev/pod-key", ""))


def _place(pod: Object) -> tuple[str, str]:
    return pod["metadata"]["namespace"], pod["metadata"]["name"]


def _name(pod: Object) -> str:
    labels = pod["metadata"].get("labels", {})
    run = f" (token {labels['muster.dev/token']})" if "muster.dev/token" in labels else ""
    return "/".join(_place(pod)) + run


def _shared(pod: Object) -> list[str]:
    """Names of the reservation pods whose devices it shares."""
    told = pod["metadata"].get("annotations", {}).get("muster.dev/reservations", "")
    return [name for name in told.split(",") if name]


def _environment(pod: Object) -> dict[str, str]:
    return {one["name"]: one.get("value", "") for one in pod["spec"]["containers"][0].get("env", [])}


def _requested(pod: Object, resource: str) -> Decimal:
    each = (one.get("resources", {}).get("requests", {}).get(resource, "0") for one in pod["spec"]["containers"])
    return sum(map(_quantity, each), Decimal(0))


_UNITS: Final = {
    "m": Decimal("0.001"),
    **{unit: Decimal(1000) ** power for power, unit in enumerate(("k", "M", "G", "T", "P"), start=1)},
    **{unit: Decimal(1024) ** power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi"), start=1)},
}


@functools.cache
def _quantity(text: str) -> Decimal:
    number = text.rstrip("kMGTPim")
    return Decimal(number) * _UNITS.get(text[len(number) :], Decimal(1))


def check_history(events: Sequence[Event], *, foreign_may_go: Collection[str] = ()) -> Witness:
    """Names in `foreign_may_go`: pods of others that the test itself deletes."""
    books = _Books(foreign_may_go)
    for event in events:
        books.feed(event)
    return books.finish()


# -- the same beside the log -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """What both witnesses saw."""

    log: Report
    server: Witness


class Recording(Protocol):
    """Whoever wrote down what the API server said."""

    def history(self) -> Sequence[Event]: ...


def check_all(
    stack: KubernetesStack,
    recorder: Recording,
    acknowledged: Mapping[str, str],
    *,
    foreign_may_go: Collection[str] = (),
    at_rest: bool = True,
    complete: bool = False,
) -> Found:
    """Assert that neither the log, the answers, the tables nor the API server's history shows anything wrong, and that
    they tell the same.

    `acknowledged`: id of every workload that was answered with 202, by name. With `at_rest`, that all of them have
    ended, and that nothing of ours is left anywhere. `complete`: only the stack's clients commanded workloads.
    """
    log, wrong = asyncio.run(check_log_and_answers(stack, at_rest=at_rest, complete=complete))
    log.acknowledged(acknowledged)
    report = log.report
    witness = check_history(recorder.history(), foreign_may_go=foreign_may_go)
    wrong = [*report.violations, *wrong, *witness.violations, *_differences(log, witness, at_rest=at_rest)]
    if at_rest:
        wrong += [f"{name} never ended" for name, id_ in acknowledged.items() if id_ not in report.over]
        wrong += [f"{name} was not let go" for name in witness.left]
        wrong += [f"{each['metadata']['name']} was left" for each in stack.shared()]
        if report.left_reserved or report.left_live:
            wrong.append(f"the log holds {report.left_reserved} reservations and {report.left_live} live pods")
    assert wrong == [], f"{len(wrong)} violations:\n" + "\n".join(text[:SHOWN] for text in wrong[:20])
    return Found(report, witness)


async def check_log_and_answers(
    stack: KubernetesStack, *, at_rest: bool, complete: bool
) -> tuple[LogChecker, list[str]]:
    calls = stack.history.calls()
    settings = stack.nats.settings(EVERYTHING, postgres_url=stack.postgres.url())
    messages, tables = await read_both(settings, EVERYTHING)
    log = check_log(messages)
    wrong = [*check_calls(calls, log, complete=complete), *check_rows(messages, tables, log)]
    if at_rest:
        wrong += await wanted_of(settings, log, EVERYTHING)
    return log, wrong


def _differences(log: LogChecker, witness: Witness, *, at_rest: bool) -> Iterator[str]:
    """Every object was bound in the log, where the log says, and ended there exactly once, and as it did."""
    bound = {run: node for workload in log.workloads.values() for run, node in workload.nodes.items()}
    ends = {run: how for workload in log.workloads.values() for run, how in workload.ends.items()}
    seen: Counter[str] = Counter()
    for uid, pod in witness.runs.items():
        labels = pod["metadata"]["labels"]
        run = f"{labels['muster.dev/workload']}/" + "{}-{}/{}.{}".format(
            *(labels[f"muster.dev/{part}"] for part in ("pod-set", "index", "attempt", "try"))
        )
        seen[run] += 1
        if seen[run] > 1:
            yield f"{run} was made twice; the second is {uid}"
        if bound.get(run) != pod["spec"]["nodeName"]:
            yield f"{run} was made on {pod['spec']['nodeName']}, and the log has it on {bound.get(run)}"
        if at_rest and run not in ends:
            yield f"{run} has no end in the log"
        phase = pod["status"].get("phase")
        if ends.get(run) == "PodSucceeded" and phase != "Succeeded":
            yield f"{run} succeeded, says the log; the last that the API server had of it was {phase}"
    for run, how in ends.items():
        if how == "PodSucceeded" and run not in seen:
            yield f"{run} succeeded, says the log, and was never made"
