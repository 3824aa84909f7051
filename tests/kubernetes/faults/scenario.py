"""One way of breaking things, told as: a load, what is done to it and how often, and what must hold when it is over."""

import asyncio
import contextlib
import json
import random
import time
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from development.checker.log import check
from development.checker.records import POD_ENDS, parse, run_name
from development.kubernetes.checker import TERMINAL, Recorder, check_all
from development.kubernetes.simulated.admin import AdminError
from development.kubernetes.simulated.kubelets import SHOWN
from development.kubernetes.stack import KubernetesStack
from development.servers import EVERYTHING
from development.stack import until
from services.projector.verify import Difference, verify
from services.runtime.log.jetstream import JetStreamEventStore
from services.runtime.nats.connection import connect
from tests.kubernetes.faults.load import Load
from tests.support.load import Onlooker

FOREIGN_PODS: Final = 20
FOREIGN_NODES: Final = ("node-0", "node-1")
FOREIGN_NAMESPACE: Final = "muster-default"
"""Where our own pods are, too."""
REST_SECONDS: Final = 240.0


@dataclass
class Row:
    """What stands in the table at the end."""

    name: str
    count: int = 0
    violations: int | None = None
    """None: the scenario did not come to its end."""
    workloads: int = 0
    acts: int = 0
    runs: int = 0
    events: int = 0
    seconds: float = 0.0
    remark: str = ""

    def __str__(self) -> str:
        violations = "not finished" if self.violations is None else self.violations
        return (
            f"{self.name:<52}{self.count:>6}{violations:>13}{self.workloads:>11}{self.acts:>7}{self.runs:>7}"
            f"{self.events:>9}{self.seconds:>8.0f}  {self.remark}"
        )


HEAD: Final = (
    f"{'fault':<52}{'count':>6}{'violations':>13}{'workloads':>11}{'acts':>7}{'runs':>7}{'events':>9}{'seconds':>8}"
)


@dataclass
class World:
    """A stack, its witness, and foreign pods that nobody may touch."""

    stack: KubernetesStack
    recorder: Recorder
    rows: list[Row]
    chance: random.Random
    """What the scenario that runs draws by."""
    acknowledged: dict[str, str] = field(default_factory=dict[str, str])
    """Of all scenarios so far: one log holds them all."""
    foreign: dict[str, Any] = field(default_factory=dict[str, Any])
    """Foreign pods by name, as they were when they ran."""
    runs: int = 0
    """Objects of ours up to the end of the last scenario."""
    events: int = 0
    """Of the API server's history up to then."""

    @contextlib.contextmanager
    def scenario(self, name: str, *, per_second: float = 3.0, urls: Sequence[str] = ()) -> Generator[tuple[Row, Load]]:
        """A load, running; afterwards everything that was acknowledged has to end, and nothing may be wrong."""
        row, began = Row(name), time.monotonic()
        self.rows.append(row)
        own = random.Random(self.chance.random())
        load = Load(self.stack, f"f{len(self.rows)}x", own, per_second=per_second, urls=urls)
        onlooker = Onlooker(
            [self.stack.client(), *(self.stack.client(url=url) for url in urls)],
            random.Random(self.chance.random()),
            "onlooker",
            made=lambda: list(load.acknowledged.values()),
        )
        load.start()
        onlooker.start()
        try:
            try:
                yield row, load
            finally:
                onlooker.stop()
                load.stop()
                self.acknowledged |= load.acknowledged
            assert onlooker.problems == []
            self._rest(load)
            self._check(row, load)
        except Exception as error:
            # Now, and not when everything is over: a full run takes most of an hour.
            print(f"\n{name}: {error}", flush=True)
            raise
        finally:
            row.seconds = time.monotonic() - began
            print(f"\n{HEAD}\n{row}", flush=True)

    def _rest(self, load: Load) -> None:
        stack = self.stack
        until(lambda: load.known() >= len(load.acknowledged), 60, lambda: f"{load.known()} are known")
        until(lambda: load.unfinished() == 0, REST_SECONDS, lambda: json.dumps(load.waiting(), indent=1) + self._said())
        until(lambda: not self._left(), 90, lambda: f"still there: {self._left()}{self._said()}")
        until(self._all_released, 30, lambda: "reservations are held in the log, or pods live there")

        # What the agent does last is let go of what the scenario broke.
        assert all(agent.alive for agent in stack.agents[:1]), stack.agents[0].said()
        assert stack.cluster_sync.alive, stack.cluster_sync.said()

    def _all_released(self) -> bool:
        report = check(self.stack.read_log())
        return not report.left_reserved and not report.left_live

    def _left(self) -> list[str]:
        """Objects of ours; empty also where the API server must be asked again."""
        try:
            pods = [pod for pod in self.stack.pods() if pod["metadata"]["name"] not in self.foreign]
            there = (*pods, *self.stack.reservations(), *self.stack.shared())
        except (OSError, AdminError) as error:
            return [f"the API server does not answer: {error}"]
        return [each["metadata"]["name"] for each in there]

    def _said(self) -> str:
        """What the programs said last, and what the API server has: whether they or the kubelets are late."""
        stack = self.stack
        programs = [one for one in (*stack.agents, stack.cluster_sync) if one.process]
        said = {one.name: one.said() for one in programs} | {"kwok": stack.plane.logs("kwok")[-2000:]}
        try:
            pods = [f"{pod['metadata']['name']} {pod['status']['phase']}" for pod in stack.pods()]
        except (OSError, AdminError) as error:
            pods = [f"the API server does not answer: {error}"]
        return "".join(f"\n--- {name}\n{words}" for name, words in (said | {"pods": "\n".join(pods)}).items())

    def _check(self, row: Row, load: Load) -> None:
        before = dict(self.foreign)
        row.workloads, row.acts = len(load.acknowledged), load.acts
        row.violations = 1
        found = check_all(self.stack, self.recorder, self.acknowledged, complete=True)
        row.runs, row.events = len(found.server.runs) - self.runs, found.server.events - self.events
        self.runs, self.events = len(found.server.runs), found.server.events
        assert foreign_pods(self.stack) == before, "somebody touched pods that are not ours"
        assert (differences := asyncio.run(_verify(self.stack))) == [], differences[:10]
        row.violations = 0


async def _verify(stack: KubernetesStack) -> list[Difference]:
    """As `muster log verify`: whether every row that is shown follows from the log."""
    nc = await connect(stack.nats.settings(EVERYTHING), EVERYTHING)
    try:
        return await verify(JetStreamEventStore(nc), stack.postgres.url(), lambda *_: None)
    finally:
        await nc.close()


def live_pods(stack: KubernetesStack, workloads: Iterable[str]) -> dict[str, Any]:
    """Pods of these workloads that have not ended, by uid."""
    ids = set(workloads)
    return {
        pod["metadata"]["uid"]: pod
        for pod in stack.pods()
        if pod["metadata"]["labels"].get("muster.dev/workload") in ids and pod["status"]["phase"] not in TERMINAL
    }


def ends_in_log(stack: KubernetesStack) -> dict[str, list[dict[str, Any]]]:
    """Events by which runs ended, by `workload id/pod set-index/attempt.try`."""
    ids: dict[str, str] = {}
    ends: dict[str, list[dict[str, Any]]] = {}
    for record in map(parse, stack.read_log()):
        for event in record.fields["events"] if record.kind == "workload" else ():
            if event["type"] == "WorkloadCreated":
                ids[record.key] = event["data"]["workload_id"]
            elif event["type"] in POD_ENDS:
                ends.setdefault(run_name(ids[record.key], event["data"]["pod"]), []).append(event)
    return ends


def foreign_pods(stack: KubernetesStack) -> dict[str, Any]:
    """All that somebody could have done to the foreign pods, by name. Their status is kwok's and Kubernetes' own."""
    path = f"/api/v1/namespaces/{FOREIGN_NAMESPACE}/pods"
    pods = stack.plane.admin("GET", path, labelSelector="somebody=else")["items"]
    return {pod["metadata"]["name"]: _touched(pod["metadata"]) for pod in pods}


def _touched(metadata: dict[str, Any]) -> dict[str, Any]:
    versions = {"resourceVersion", "managedFields"}
    spec_writers = [entry["manager"] for entry in metadata["managedFields"] if "subresource" not in entry]
    # The stand-in for kubelets, restarted, is shown every pod by an annotation of the tests' own control plane.
    annotations = {key: value for key, value in metadata.get("annotations", {}).items() if key != SHOWN}
    touched = {key: value for key, value in metadata.items() if key not in versions}
    return touched | {"writers": spec_writers, "annotations": annotations}


def make_foreign_pods(stack: KubernetesStack) -> dict[str, Any]:
    """Named as ours are, some with labels that look like ours, on nodes that ours use; one has a GPU."""
    with contextlib.suppress(AdminError):
        stack.plane.admin("POST", "/api/v1/namespaces", {"metadata": {"name": FOREIGN_NAMESPACE}})
    for number in range(FOREIGN_PODS):
        limits = {"cpu": "100m", "memory": "64Mi", **({"nvidia.com/gpu": "1"} if number == 0 else {})}
        labels = {"somebody": "else", "app.kubernetes.io/name": f"f{number}x-gpu-{number}"}
        if number % 4 == 1:
            labels |= {"muster.dev/pod-key": f"abcdefghij{number:02}-main-0", "muster.dev/token": str(number)}
        pod = {
            "metadata": {"name": f"f{number}x-gpu-{number}-abcdefghij{number:02}-main-0", "labels": labels},
            "spec": {
                "nodeName": FOREIGN_NODES[number % len(FOREIGN_NODES)],
                "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "main", "image": "theirs", "resources": {"limits": limits}}],
            },
        }
        stack.plane.admin("POST", f"/api/v1/namespaces/{FOREIGN_NAMESPACE}/pods", pod)

    def all_run() -> bool:
        pods = stack.plane.admin("GET", f"/api/v1/namespaces/{FOREIGN_NAMESPACE}/pods", labelSelector="somebody=else")
        return [pod["status"]["phase"] for pod in pods["items"]] == ["Running"] * FOREIGN_PODS

    until(all_run, 60, lambda: "the foreign pods do not run")
    return foreign_pods(stack)
