"""Credentials on Kubernetes, by an agent with the rights of deploy/kubernetes, and by one that is killed at its worst.

Requirement rows: S018, S020, S057, R10.
"""

import base64
import json
import signal
from typing import Any

import pytest

from development.kubernetes.stack import KubernetesStack
from development.stack import Api, until
from tests.kubernetes.e2e.looks import environment, gone, the_pod

pytestmark = pytest.mark.kubernetes

MARK, NEXT = "canary-51be07-token", "canary-c20d19-after-the-change"
REGISTRY = {"url": "https://registry.example.com", "username": "ann", "password": "canary-9a44e1-registry"}
CODE = {
    "ssh-privatekey": "-----BEGIN OPENSSH PRIVATE KEY-----\ncanary-77d2ac-key\n-----END OPENSSH PRIVATE KEY-----\n",
    "known_hosts": "canary-04be9f.example.com ssh-ed25519 AAAA\n",
}
BY_SSH = {"name": "code", "userCredential": True, "authenticationMethod": "ssh-key"}
NEEDS: dict[str, Any] = {
    "environmentVariables": [{"name": "TOKEN", "userCredential": {"name": "k8s", "key": "token"}}],
    "imagePullSecrets": [{"name": "pull", "userCredential": True}],
    "storage": {"git": [{"repository": "git@git.example.com:code", "path": "/src", "secretRef": BY_SSH}]},
}
HANGS = {"waiting-reason": "ContainerCreating"}
"""As a pod does until its Secret is there; of what lies on a node, the simulated one knows nothing."""


def token_of(secret: dict[str, Any]) -> str:
    return base64.b64decode(secret["data"]["variable.TOKEN"]).decode()


@pytest.fixture(scope="module", autouse=True)
def credentials(watched: tuple[KubernetesStack, object]) -> str:
    """Id of the one with the token."""
    api = watched[0].api
    place = {"scope": "project", "projectId": api.project()}
    made = ""
    of_all = (("pull", "docker-registry", REGISTRY), ("code", "generic-secret", CODE))
    for name, kind, data in (*of_all, ("k8s", "generic-secret", {"token": MARK})):
        body = {"meta": {"name": name, **place}, "spec": {"kind": kind, "data": data}}
        answer = api.http.post("/asset/credentials", json=body)
        assert answer.status_code == 202, answer.text
        made = answer.json()["meta"]["id"]
    return made


def test_values_are_in_the_secret_of_a_pod_and_in_nothing_else_and_a_change_reaches_the_next_one(
    stack: KubernetesStack, api: Api, credentials: str
) -> None:
    first = stack.submit("needs", runtime_seconds=None, **NEEDS)["workloadId"]
    pod = the_pod(stack, first)
    (secret,) = stack.secrets()
    assert environment(pod)["TOKEN"]["secretKeyRef"]["name"] == secret["metadata"]["name"]
    assert pod["spec"]["imagePullSecrets"] == [{"name": secret["metadata"]["name"]}]
    assert token_of(secret) == MARK
    (clone,) = pod["spec"]["initContainers"]
    references = {one["name"]: one["valueFrom"]["secretKeyRef"] for one in clone["env"] if "valueFrom" in one}
    values = {name: base64.b64decode(secret["data"][one["key"]]).decode() for name, one in references.items()}
    assert values == {"MUSTER_GIT_KEY": CODE["ssh-privatekey"], "MUSTER_GIT_KNOWN_HOSTS": CODE["known_hosts"]}
    assert not environment(pod).keys() & values.keys(), "the pod's own container has none of it"
    changed = {"spec": {"kind": "generic-secret", "data": {"token": NEXT}}}
    assert api.http.put(f"/asset/credentials/{credentials}", json=changed).status_code == 202
    second = stack.submit("needs-later", runtime_seconds=None, **NEEDS)["workloadId"]
    the_pod(stack, second)
    assert sorted(map(token_of, stack.secrets())) == [MARK, NEXT], "a pod that runs keeps what it has"
    for kind in ("pods", "events", "configmaps", "services"):
        assert "canary-" not in json.dumps(stack.plane.admin("GET", f"/api/v1/{kind}")), kind
    for log in stack.folder.rglob("*.log"):
        assert b"canary-" not in log.read_bytes(), log
    for said in (api.history(first), api.training(first), api.get("/events"), api.get("/asset/credentials")):
        assert "canary-" not in json.dumps(said)
    for workload in (first, second):
        assert api.act("delete", workload).status_code == 202
        gone(stack, workload)
    until(lambda: not stack.secrets(), 60)


@pytest.mark.parametrize("point", ["pod_created", "secret_made"])
def test_an_agent_that_dies_between_a_pod_and_its_secret_leaves_nothing_when_the_workload_is_deleted(
    stack: KubernetesStack, api: Api, point: str
) -> None:
    agent = stack.agents[0]
    agent.stop()
    agent.start(wait=False, MUSTER_FAILPOINT=point)
    key = stack.submit(f"dies-at-{point}", runtime_seconds=None, simulation=HANGS, **NEEDS)["workloadId"]
    assert agent.wait_ended() == -signal.SIGKILL, agent.said()
    assert len(stack.pods(key)) == 1
    assert len(stack.secrets()) == (point == "secret_made")
    agent.start()
    (secret,) = until(lambda: stack.secrets() or None, 30, agent.said)
    assert [owner["uid"] for owner in secret["metadata"]["ownerReferences"]] == [stack.pods(key)[0]["metadata"]["uid"]]
    assert api.act("delete", key).status_code == 202
    gone(stack, key)
    assert stack.secrets() == []
