"""MPI trainings on Kubernetes: launcher and workers find each other by a host file, and are let in by keys that lie in
the Secrets of their pods and nowhere else, whoever is killed meanwhile.

Requirement row: S063.
"""

import base64
import json
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from development.kubernetes.stack import SIMULATION, KubernetesStack
from development.stack import until
from tests.kubernetes.e2e.looks import Object, gone, label, the_pods

pytestmark = pytest.mark.kubernetes

WORKERS = 2
PODS = WORKERS + 1
HANGS = {"waiting-reason": "ContainerCreating"}
"""As a pod does until its Secret is there; of what lies on a node, the simulated one knows nothing."""


class Training:
    """One with MPI, of a launcher and workers that run until they are ended."""

    def __init__(
        self, stack: KubernetesStack, name: str, simulation: dict[str, str] | None = None, **spec: Any
    ) -> None:
        self.stack = stack
        annotations = [{"name": f"{SIMULATION}/{key}", "value": value} for key, value in (simulation or {}).items()]
        own = {"image": "mpi", "annotations": annotations}
        body = {
            "name": name,
            "projectId": stack.api.project(),
            "clusterId": stack.cluster_id,
            "spec": {**own, "distributedFramework": "MPI", "numWorkers": WORKERS, **spec},
            "masterSpec": {**own, "command": "mpirun train"},
        }
        answer = stack.api.http.post("/workloads/distributed", json=body)
        assert answer.status_code == 202, answer.text
        self.id: str = answer.json()["workloadId"]

    def act(self, verb: str) -> None:
        answer = self.stack.api.http.post(f"/workloads/distributed/{self.id}/{verb}")
        assert answer.status_code == 202, answer.text

    def delete(self) -> None:
        assert self.stack.api.http.delete(f"/workloads/distributed/{self.id}").status_code == 202
        gone(self.stack, self.id)
        until(lambda: not self.stack.secrets(), 20, lambda: str(names_of(self.stack.secrets())))

    def secrets(self) -> list[Object]:
        """Of its pods, once each has one."""

        def found() -> list[Object] | None:
            there = {owner["uid"] for secret in self.stack.secrets() for owner in secret["metadata"]["ownerReferences"]}
            pods = self.stack.pods(self.id)
            complete = len(pods) == PODS and there == {pod["metadata"]["uid"] for pod in pods}
            return self.stack.secrets() if complete else None

        return until(found, 30, lambda: f"{names_of(self.stack.secrets())}: {self.stack.agents[0].said()}")


type Submit = Callable[..., Training]


@pytest.fixture
def submit(stack: KubernetesStack) -> Iterator[Submit]:
    """Submits one; what a test leaves behind is deleted."""
    made: list[Training] = []

    def submit(name: str, **more: Any) -> Training:
        made.append(Training(stack, name, **more))
        return made[-1]

    yield submit
    for training in made:
        if stack.pods(training.id):
            if not stack.agents[0].alive:
                stack.agents[0].start()
            training.delete()


def names_of(objects: list[Object]) -> list[str]:
    return [each["metadata"]["name"] for each in objects]


def files(secret: Object) -> dict[str, str]:
    return {name.partition(".")[2]: base64.b64decode(text).decode() for name, text in secret["data"].items()}


def public_keys(secrets: list[Object]) -> set[str]:
    """Of all; each is the one that its Secret lets in."""
    found = [files(secret) for secret in secrets]
    assert all(each["authorized_keys"] == each["id_ed25519.pub"] for each in found)
    return {each["id_ed25519.pub"] for each in found}


def test_launcher_and_workers_share_a_pair_that_nothing_else_has_and_the_next_attempt_has_another(
    stack: KubernetesStack, submit: Submit
) -> None:
    training = submit("pair")
    pods = the_pods(stack, training.id, PODS)
    secrets = training.secrets()
    (first,) = public_keys(secrets)
    for pod in pods:
        (mount,) = [one for one in pod["spec"]["containers"][0]["volumeMounts"] if one["name"] == "ssh"]
        (volume,) = [one for one in pod["spec"]["volumes"] if one["name"] == "ssh"]
        assert mount["mountPath"] == "/root/.ssh"
        assert volume["secret"]["defaultMode"] == 0o600
        assert {"id_ed25519", "id_rsa", "authorized_keys"} <= {one["path"] for one in volume["secret"]["items"]}
        (own,) = [one for one in secrets if one["metadata"]["ownerReferences"][0]["uid"] == pod["metadata"]["uid"]]
        assert volume["secret"]["secretName"] == own["metadata"]["name"]
    (launcher,) = [pod for pod in pods if label(pod, "pod-set") == "master"]
    service = launcher["spec"]["subdomain"]
    hosts = "".join(f"worker-{index}.{service} slots=1\n" for index in range(WORKERS))
    assert launcher["metadata"]["annotations"]["muster.dev/mpi-hostfile"] == hosts
    assert {pod["spec"]["hostname"] for pod in pods} == {"master-0", "worker-0", "worker-1"}
    private = [line for line in files(secrets[0])["id_ed25519"].splitlines() if not line.startswith("-----")]
    told = json.dumps(
        [
            *(stack.plane.admin("GET", f"/api/v1/{kind}") for kind in ("pods", "events", "configmaps", "services")),
            stack.api.history(training.id),
            stack.api.get(f"/workloads/distributed/{training.id}"),
            stack.api.get("/events"),
        ]
    )
    logs = b"".join(log.read_bytes() for log in stack.folder.rglob("*.log"))
    stored = b"".join(path.read_bytes() for path in (stack.folder / "nats").rglob("*") if path.is_file())
    # The first line has what any such key begins with.
    for line in private[1:]:
        encoded = base64.b64encode(line.encode())[:-4]
        assert line not in told
        assert not [part for part in (line.encode(), encoded) if part in logs or part in stored]
    training.act("suspend")
    until(lambda: not stack.pods(training.id) and not stack.secrets(), 30)
    training.act("resume")
    the_pods(stack, training.id, PODS)
    (second,) = public_keys(training.secrets())
    assert first != second
    training.delete()


@pytest.mark.parametrize("point", ["pod_created", "secret_made"])
def test_whoever_dies_between_two_pods_of_an_attempt_leaves_them_with_one_pair_and_nothing_after_the_deletion(
    stack: KubernetesStack, submit: Submit, point: str
) -> None:
    """The agent dies with the first pod, or its Secret, made; cluster_sync dies before it tells the rest."""
    agent = stack.agents[0]
    agent.stop()
    agent.start(wait=False, MUSTER_FAILPOINT=point)
    training = submit(point.replace("_", "-"), simulation=HANGS, sshAuthMountPath="/keys")
    assert agent.wait_ended() == -signal.SIGKILL, agent.said()
    before = stack.secrets()
    assert bool(before) == (point == "secret_made")
    assert stack.cluster_sync.kill()
    stack.cluster_sync.start()
    agent.start()
    after = training.secrets()
    assert len(public_keys([*before, *after])) == 1
    assert len(after) == PODS
    training.delete()


def test_a_training_with_a_folder_of_keys_of_its_own_gets_none_and_has_no_secret(
    stack: KubernetesStack, submit: Submit
) -> None:
    storage = {"secretVolume": [{"secret": "mpi-ssh", "mountPath": "/root/.ssh"}]}
    training = submit("own-keys", storage=storage)
    pods = the_pods(stack, training.id, PODS)
    assert stack.secrets() == []
    for pod in pods:
        assert [one["name"] for one in pod["spec"]["volumes"] if one["name"] == "ssh"] == []
    training.delete()
