"""Inferences on Kubernetes: replicas follow what comes through a proxy that stands among their pods, from none and to
none again. The pods of kwok run no programs, so one answers at all of their addresses
(development/kubernetes/pod_network.py).

Requirement rows: S002, S027, S067 to S069.
"""

import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from development.kubernetes.checker import Recorder
from development.kubernetes.pod_network import POD_PORT, PodNetwork
from development.kubernetes.simulated.programs import POD_NETWORK
from development.kubernetes.stack import SIMULATION, KubernetesStack, lasting_port
from development.stack import until
from tests.kubernetes.e2e.looks import Object, environment, gone, label, most_at_once, the_pods, uid

pytestmark = pytest.mark.kubernetes

PATIENCE_SECONDS = 60
CLIENTS = 8
FROM_ZERO: dict[str, Any] = {
    "maxReplicas": 3,
    "metric": "concurrency",
    "metricThreshold": 2,
    "scaleToZeroRetentionSeconds": 60,
}


@pytest.fixture(scope="module")
def proxy(watched: tuple[KubernetesStack, Recorder]) -> Iterator[httpx.Client]:
    """Asks, as `admin`, the proxy that stands beside the pods and serves this cluster alone."""
    stack, _ = watched
    port, nats = lasting_port(), urlsplit(stack.nats.url).port
    assert nats is not None
    beside = stack.second(
        "proxy", proxy_cluster=stack.cluster_id, proxy_pod_networks=POD_NETWORK, proxy_port=port, proxy_host="127.0.0.1"
    )
    with PodNetwork(stack.folder / "pods", into=[port, beside.health_port], out=[nats]) as network:
        beside.within = network
        beside.start()
        headers = {"authorization": stack.api.http.headers["authorization"]}
        limits = httpx.Limits(max_connections=2 * CLIENTS)
        base = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=base, headers=headers, timeout=60, trust_env=False, limits=limits) as client:
            yield client
        beside.stop()


class Inference:
    """One that serves at POD_PORT."""

    def __init__(
        self, stack: KubernetesStack, name: str, autoscaling: dict[str, Any], simulation: dict[str, str], **spec: Any
    ) -> None:
        self.stack = stack
        annotations = [{"name": f"{SIMULATION}/{key}", "value": value} for key, value in simulation.items()]
        body = {
            "name": name,
            "projectId": stack.api.project(),
            "clusterId": stack.cluster_id,
            "spec": {
                "image": "serves",
                "servingPort": {"container": POD_PORT},
                "autoscaling": autoscaling,
                "annotations": annotations,
                **spec,
            },
        }
        answer = stack.api.http.post("/workloads/inferences", json=body)
        assert answer.status_code == 202, answer.text
        self.id: str = answer.json()["workloadId"]

    @property
    def row(self) -> dict[str, Any]:
        return self.stack.api.get(f"/workloads/{self.id}")

    @property
    def connection(self) -> dict[str, Any]:
        (one,) = self.stack.api.get(f"/workloads/{self.id}/connections")["connections"]
        return one

    def has(self, replicas: int, phase: str = "Running", reason: str | None = None) -> list[Object]:
        """Its pods on the API server, once there are so many, the control plane says the same, and all of them run."""

        def reached() -> list[Object] | None:
            row, pods = self.row, self.stack.pods(self.id)
            there = [pod["status"].get("phase") for pod in pods] == ["Running"] * replicas
            said = (row["phase"], row["runningPods"], row["phaseReason"]) == (phase, replicas, reason)
            return pods if there and said else None

        return until(reached, PATIENCE_SECONDS, lambda: f"{self.row}: {self.stack.api.story(self.id)}")

    def act(self, verb: str) -> None:
        answer = self.stack.api.http.post(f"/workloads/inferences/{self.id}/{verb}")
        assert answer.status_code == 202, answer.text

    def delete(self) -> None:
        """And nothing is left of it."""
        assert self.stack.api.http.delete(f"/workloads/inferences/{self.id}").status_code == 202
        gone(self.stack, self.id)
        until(lambda: not self.stack.shared(), 20, lambda: str(self.stack.shared()))

    def ask(self, proxy: httpx.Client, path: str) -> tuple[int, str]:
        """Status, and the address that answered."""
        host = urlsplit(self.connection["address"]).netloc
        answer = proxy.get(path, headers={"host": host})
        return answer.status_code, answer.text.partition(" answers")[0]


type Submit = Callable[..., Inference]


@pytest.fixture
def submit(stack: KubernetesStack) -> Iterator[Submit]:
    """Submits one; what a test leaves behind is deleted."""
    made: list[Inference] = []

    def submit(
        name: str, autoscaling: dict[str, Any], *, simulation: dict[str, str] | None = None, **spec: Any
    ) -> Inference:
        made.append(Inference(stack, name, autoscaling, simulation or {}, **spec))
        return made[-1]

    yield submit
    for inference in made:
        if stack.pods(inference.id):
            inference.delete()


@contextmanager
def asked_all_the_time(inference: Inference, proxy: httpx.Client) -> Generator[set[tuple[int, str]]]:
    """By so many clients that each waits for its answer: what they were answered so far."""
    stop, answers = threading.Event(), set[tuple[int, str]]()
    host = urlsplit(inference.connection["address"]).netloc

    def ask() -> None:
        while not stop.is_set():
            answer = proxy.get("/slow", headers={"host": host})
            answers.add((answer.status_code, answer.text.partition(" answers")[0]))

    with ThreadPoolExecutor(CLIENTS) as clients:
        asking = [clients.submit(ask) for _ in range(CLIENTS)]
        try:
            yield answers
        finally:
            stop.set()
        for one in asking:
            one.result()


def addresses(pods: list[Object]) -> set[str]:
    return {pod["status"]["podIP"] for pod in pods}


def test_replicas_follow_what_comes_through_the_proxy_beside_them_from_none_to_three_and_back(
    stack: KubernetesStack, recorder: Recorder, proxy: httpx.Client, submit: Submit
) -> None:
    """S068, S069: the first request starts the first replica and waits for it; no request is lost."""
    probe = {"readiness": {"handler": {"httpGet": {"path": "/health", "port": POD_PORT}}}}
    inference = submit("chat", FROM_ZERO, compute={"gpuDevicesRequest": 1}, probes=probe)
    inference.has(0, reason="scaled_to_zero")
    assert inference.connection["ready"], "the next request starts a replica"
    status, first = inference.ask(proxy, "/first")
    (pod,) = inference.has(1)
    assert (status, {first}) == (200, addresses([pod]))
    (container,) = pod["spec"]["containers"]
    assert environment(pod)["PORT"] == str(POD_PORT)
    assert container["readinessProbe"]["httpGet"] == {"path": "/health", "port": POD_PORT, "scheme": "HTTP"}
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert (label(pod, "pod-set"), label(pod, "attempt")) == ("replica", "1")
    # The proxy goes to the pods themselves: nothing of the cluster stands before them.
    assert stack.services() == []
    with asked_all_the_time(inference, proxy) as answers:
        three = addresses(inference.has(3))
        assert first in three
        until(lambda: {address for _, address in answers} == three, 30, lambda: f"{answers} of {three}")
    assert {status for status, _ in answers} == {200}
    inference.has(0, reason="scaled_to_zero")
    assert most_at_once(recorder.history(), inference.id) == FROM_ZERO["maxReplicas"]
    story = "\n".join(stack.api.story(inference.id))
    assert "1 request waiting while there was no replica: 1 replica (was 0)" in story
    assert "requests at once over 1 replica, target 2" in story
    assert "no request for 1 minute: 0 replicas" in story
    status, again = inference.ask(proxy, "/again")
    (other,) = inference.has(1)
    assert (status, {again}) == (200, addresses([other]))
    assert uid(other) != uid(pod)
    assert int(label(other, "index")) >= FROM_ZERO["maxReplicas"], "the index of a replica that went is used no more"
    inference.delete()


def test_replicas_are_not_there_for_requests_before_their_image_is_and_leave_nothing(
    stack: KubernetesStack, proxy: httpx.Client, submit: Submit
) -> None:
    """S027: nobody is sent to a pod whose container waits; what waits forever goes with the deletion."""
    two = {"minReplicas": 2, "maxReplicas": 2}
    hangs = {"waiting-reason": "ImagePullBackOff", "waiting-message": "Back-off pulling image serves"}
    inference = submit("hangs", two, simulation=hangs)
    pods = the_pods(stack, inference.id, 2, "Pending")
    assert {label(pod, "index") for pod in pods} == {"0", "1"}
    until(lambda: "pulling" in str(inference.row), 30, lambda: f"{inference.row}: {stack.api.story(inference.id)}")
    assert inference.row["phase"] != "Running"
    # Its answer would be known now if a replica were asked; the client does not wait for one that never comes.
    with pytest.raises(httpx.ReadTimeout):
        proxy.get("/early", headers={"host": urlsplit(inference.connection["address"]).netloc}, timeout=2)
    assert len(stack.pods(inference.id)) == 2, "who waits for replicas that are to come starts no more of them"
    inference.delete()


def test_a_replica_that_ends_is_run_again_and_suspension_ends_all_until_it_is_resumed(
    stack: KubernetesStack, submit: Submit
) -> None:
    """R26: however often, an inference neither completes nor fails by it."""
    inference = submit("ends", {"minReplicas": 2, "maxReplicas": 2})
    before = inference.has(2)
    victim = before[0]
    path = f"/api/v1/namespaces/{stack.namespace}/pods/{victim['metadata']['name']}"
    stack.plane.admin("DELETE", path, gracePeriodSeconds=0)
    until(lambda: uid(victim) not in {uid(pod) for pod in stack.pods(inference.id)}, 60)
    after = inference.has(2)
    assert uid(before[1]) in {uid(pod) for pod in after}, "the other one goes on"
    assert {label(pod, "index") for pod in after} == {"0", "1"}
    inference.act("suspend")
    gone(stack, inference.id)
    until(lambda: inference.row["phase"] == "Stopped", 20, lambda: str(inference.row))
    inference.act("resume")
    resumed = inference.has(2)
    assert {label(pod, "attempt") for pod in resumed} == {"2"}
    inference.delete()


@pytest.mark.parametrize("point", ["pod_created", "pod_deleted", "finalizer_removed"])
def test_an_agent_that_dies_while_replicas_come_or_go_leaves_as_many_as_the_load_asks_for(
    stack: KubernetesStack, proxy: httpx.Client, submit: Submit, point: str
) -> None:
    agent = stack.agents[0]
    inference = submit(f"dies-at-{point.replace('_', '-')}", FROM_ZERO)
    inference.has(0, reason="scaled_to_zero")
    agent.stop()
    agent.start(wait=False, MUSTER_FAILPOINT=point)
    with ThreadPoolExecutor(1) as clients:
        asked = clients.submit(inference.ask, proxy, "/first")
        agent.wait_ended()
        agent.start()
        status, _ = asked.result(60)
    assert status == 200
    inference.has(0, reason="scaled_to_zero")
    inference.delete()
