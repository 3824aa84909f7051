"""What a workload meets on the cluster: Secrets, ConfigMaps, logs, the administrator's settings, others' pods."""

from typing import Any

import pytest

from development.kubernetes.stack import AGENT_NAMESPACE, KubernetesStack
from development.stack import Api, until
from events.ids import workload_key
from tests.kubernetes.e2e.looks import FOREIGN, environment, gone, the_pod, told, uid

pytestmark = pytest.mark.kubernetes

CONFIG_MAPS = f"/api/v1/namespaces/{AGENT_NAMESPACE}/configmaps"


def test_variables_from_secrets_config_maps_and_the_pod_are_references_in_its_manifest(
    stack: KubernetesStack, api: Api
) -> None:
    """S020, R8, R9: no value passes through the log or the agent."""
    variables = [
        {"name": "PLAIN", "value": "1"},
        {"name": "TOKEN", "secret": {"name": "wandb", "key": "token"}},
        {"name": "RATE", "configMap": {"name": "settings", "key": "rate"}},
        {"name": "ADDRESS", "podFieldRef": {"path": "status.podIP"}},
    ]
    key = stack.submit("variables", runtime_seconds=1, environmentVariables=variables)["workloadId"]
    told_it = environment(the_pod(stack, key))
    assert told_it["PLAIN"] == "1"
    assert told_it["TOKEN"]["secretKeyRef"] == {"name": "wandb", "key": "token"}
    assert told_it["RATE"]["configMapKeyRef"] == {"name": "settings", "key": "rate"}
    assert told_it["ADDRESS"]["fieldRef"]["fieldPath"] == "status.podIP"
    api.wait(key, "Completed")


def test_logs_are_read_while_it_runs_and_after_the_pod_is_gone(stack: KubernetesStack, api: Api) -> None:
    """S091."""
    key = stack.submit("talks", runtime_seconds=3)["workloadId"]
    the_pod(stack, key)
    until(lambda: "second line" in api.logs(key), 60)
    api.wait(key, "Completed")
    gone(stack, key)
    kept = api.logs(key)
    for line in ("first line", "second line", "a line on stderr"):
        assert kept.count(line) == 1, kept


def test_the_clusters_own_config_map_turns_ownership_protection_on_and_off(stack: KubernetesStack, api: Api) -> None:
    """S084, C14."""
    alice, bob = stack.grant("alice"), stack.grant("bob")
    settings = {"metadata": {"name": "muster-agent"}, "data": {"workloadOwnershipProtection": "true"}}
    stack.plane.admin("POST", CONFIG_MAPS, settings)
    try:
        until(lambda: stack.cluster_row()["ownershipProtection"], 20, lambda: str(stack.cluster_row()))
        assert stack.cluster_row()["ownershipProtectionSource"] == "cluster"
        key = stack.submit("hers", api=alice, runtime_seconds=None)["workloadId"]
        alice.wait(key, "Running")
        for verb in ("suspend", "delete"):
            refused = bob.act(verb, key)
            assert (refused.status_code, "not_owner" in refused.text) == (403, True), refused.text
        assert alice.act("suspend", key).status_code == 202
        assert api.act("resume", key).status_code == 202, "an administrator may override"
        stack.plane.admin("PATCH", f"{CONFIG_MAPS}/muster-agent", {"data": {"workloadOwnershipProtection": "false"}})
        until(lambda: not stack.cluster_row()["ownershipProtection"], 20, lambda: str(stack.cluster_row()))
        assert bob.act("delete", key).status_code == 202
        gone(stack, key)
    finally:
        stack.plane.admin("DELETE", f"{CONFIG_MAPS}/muster-agent")


def foreign_pod(stack: KubernetesStack, name: str, node: str, **requests: str) -> dict[str, Any]:
    """A pod of somebody else, named as ours are, in the namespace of ours, and as Pod Security wants it there."""
    container = {
        "name": "main",
        "image": "python:3.13",
        "resources": {"requests": requests, "limits": requests},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    security = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    spec = {"nodeName": node, "restartPolicy": "Never", "containers": [container], "securityContext": security}
    path = f"/api/v1/namespaces/{stack.namespace}/pods"
    return stack.plane.admin("POST", path, {"metadata": {"name": name}, "spec": spec})


def read(stack: KubernetesStack, name: str) -> dict[str, Any] | None:
    pods = stack.plane.admin("GET", f"/api/v1/namespaces/{stack.namespace}/pods", fieldSelector=f"metadata.name={name}")
    return next(iter(pods["items"]), None)


def take_away(stack: KubernetesStack, name: str) -> None:
    stack.plane.admin("DELETE", f"/api/v1/namespaces/{stack.namespace}/pods/{name}", gracePeriodSeconds=0)
    until(lambda: read(stack, name) is None, 60)


def test_twenty_pods_of_others_with_our_kind_of_names_are_left_alone_and_take_room(
    stack: KubernetesStack, api: Api
) -> None:
    ours = stack.submit("first-of-all", runtime_seconds=0.2)["workloadId"]  # makes the namespace
    api.wait(ours, "Completed")
    names = sorted(FOREIGN)
    node = stack.node_names[0]
    for number, name in enumerate(names):
        foreign_pod(stack, name, node, **({"nvidia.com/gpu": "1"} if number < stack.gpus else {"cpu": "100m"}))

    def settled() -> dict[str, str] | None:
        pods = [pod for name in names if (pod := read(stack, name)) is not None]
        running = [pod for pod in pods if pod["status"]["phase"] == "Running"]
        versions = {uid(pod): pod["metadata"]["resourceVersion"] for pod in running}
        return versions if len(versions) == len(names) else None

    before = until(settled, 20)
    until(lambda: _foreign_gpus(api, stack, node) == stack.gpus, 20, lambda: str(api.get("/nodes")))
    keys = [
        stack.submit(f"beside-{n}", runtime_seconds=1, compute={"gpuDevicesRequest": 1})["workloadId"] for n in range(4)
    ]
    for key in keys:
        api.wait(key, "Completed")
        placed = [pod["node"] for pod in api.get(f"/workloads/{key}/pods")["pods"]]
        assert node not in placed, "its devices are all in use by others"
    assert settled() == before, "somebody wrote to them"
    for name in names:
        stack.plane.admin("DELETE", f"/api/v1/namespaces/{stack.namespace}/pods/{name}", gracePeriodSeconds=0)
    until(lambda: _foreign_gpus(api, stack, node) == 0, 60)


def _foreign_gpus(api: Api, stack: KubernetesStack, name: str) -> int:
    nodes = api.get("/nodes", clusterId=stack.cluster_id)["nodes"]
    return next(node["foreign"]["gpus"] for node in nodes if node["name"] == name)


def test_a_workload_whose_pod_name_is_taken_says_so_and_runs_once_it_is_free(stack: KubernetesStack, api: Api) -> None:
    name = "taken"
    object_name = f"{name}-{workload_key(api.project(), name)}-main-0"
    FOREIGN.add(object_name)
    theirs = foreign_pod(stack, object_name, stack.node_names[1])
    key = stack.submit(name, runtime_seconds=1)["workloadId"]
    assert told(stack, key, "PodInterrupted", "not Muster's", f"{stack.namespace}/{object_name}", "delete it")
    still = read(stack, object_name)
    assert still is not None
    assert uid(still) == uid(theirs)
    take_away(stack, object_name)
    api.wait(key, "Completed", timeout_seconds=40)
    gone(stack, key)
