"""The simulated cluster that the other tests stand on does to nodes and pods what a kubelet and controllers do."""

import contextlib
import http.client
import time
from pathlib import Path
from typing import Any

import pytest
from kubernetes_asyncio import client, config

from development.kubernetes.control_plane import ControlPlane
from development.kubernetes.simulated.programs import ToolsMissingError, find_tools
from tests.kubernetes.simulated import NUMBERS, PODS, SIMULATION, Pods, stream, until

pytestmark = pytest.mark.kubernetes


@pytest.fixture
def pods(control_plane: ControlPlane) -> Pods:
    return Pods(control_plane)


def test_a_pod_runs_until_it_is_deleted_and_then_ends_by_sigterm_and_goes(pods: Pods) -> None:
    name = pods.create()
    status = pods.until_phase(name, "Running")["status"]
    (container,) = status["containerStatuses"]
    assert (container["name"], container["ready"]) == ("main", True)
    assert container["state"]["running"]["startedAt"]

    pods.delete(name)

    until(lambda: pods.is_gone(name))


@pytest.mark.parametrize(("code", "phase", "reason"), [("0", "Succeeded", "Completed"), ("3", "Failed", "Error")])
def test_a_pod_ends_after_its_runtime_with_its_exit_code(pods: Pods, code: str, phase: str, reason: str) -> None:
    name = pods.create(runtime_seconds="1", exit_code=code)
    terminated = pods.ended(name, phase)
    assert (terminated["exitCode"], terminated["reason"]) == (int(code), reason)
    assert terminated["startedAt"] < terminated["finishedAt"]


def test_the_end_of_a_deleted_pod_stays_visible_until_its_finalizer_is_taken_off(pods: Pods) -> None:
    name = pods.create(finalizer=True)
    pods.until_phase(name, "Running")

    pods.delete(name)

    assert pods.ended(name)["exitCode"] == 143
    settled = until(lambda: pod if (pod := pods.read(name))["metadata"]["deletionGracePeriodSeconds"] == 0 else None)
    time.sleep(1)
    assert pods.read(name)["metadata"]["resourceVersion"] == settled["metadata"]["resourceVersion"], "nothing loops"
    pods.plane.admin("PATCH", f"{PODS}/{name}", {"metadata": {"finalizers": None}})
    assert pods.is_gone(name)


def test_settling_a_deletion_moves_its_time_behind_the_end_of_the_pod(pods: Pods) -> None:
    """What a backend must know: when the deletion was asked for can no longer be read from a pod that is settled."""
    name = pods.create(finalizer=True, settle_seconds="2")
    pods.until_phase(name, "Running")
    pods.delete(name, grace_seconds=1)
    finished = pods.ended(name)["finishedAt"]
    settled = until(lambda: pod if (pod := pods.read(name))["metadata"]["deletionGracePeriodSeconds"] == 0 else None)
    assert settled["metadata"]["deletionTimestamp"] > finished


def test_a_pod_that_ended_by_itself_keeps_that_end_when_it_is_deleted(pods: Pods) -> None:
    name = pods.create(finalizer=True, runtime_seconds="0")
    pods.until_phase(name, "Succeeded")
    pods.delete(name)
    time.sleep(0.5)
    assert pods.ended(name, "Succeeded")["exitCode"] == 0
    assert pods.read(name)["metadata"]["deletionGracePeriodSeconds"] == 0


def test_a_pod_that_ignores_sigterm_is_killed_when_its_grace_period_is_over(pods: Pods) -> None:
    name = pods.create(finalizer=True, ignore_term="true")
    pods.until_phase(name, "Running")
    pods.delete(name, grace_seconds=1)
    assert pods.read(name)["status"]["phase"] == "Running"
    assert pods.ended(name)["exitCode"] == 137


def test_a_second_deletion_shortens_the_grace_period(pods: Pods) -> None:
    name = pods.create(finalizer=True, ignore_term="true")
    pods.until_phase(name, "Running")
    pods.delete(name, grace_seconds=3600)
    pods.delete(name, grace_seconds=1)
    assert pods.ended(name)["exitCode"] == 137


def test_a_pod_that_is_deleted_without_grace_is_killed_and_stays_for_its_finalizer(pods: Pods) -> None:
    name = pods.create(finalizer=True)
    pods.until_phase(name, "Running")
    pods.delete(name, grace_seconds=0)
    assert pods.ended(name)["exitCode"] == 137


def test_a_pod_that_cannot_get_its_image_hangs_with_the_reason_and_a_warning(pods: Pods) -> None:
    name = pods.create(finalizer=True, waiting_reason="ErrImagePull", waiting_message="no such image")

    def waiting() -> dict[str, Any] | None:
        statuses = pods.read(name)["status"].get("containerStatuses")
        return statuses and statuses[0]["state"]["waiting"]

    assert until(waiting) == {"reason": "ErrImagePull", "message": "no such image"}
    assert pods.read(name)["status"]["phase"] == "Pending"
    query = {"fieldSelector": f"involvedObject.name={name},type=Warning"}
    events = until(lambda: pods.plane.admin("GET", "/api/v1/namespaces/default/events", **query)["items"])
    assert events[0]["reason"] == "Failed"

    pods.delete(name)

    assert pods.ended(name)["reason"] == "ContainerStatusUnknown"


def test_a_pod_whose_image_is_there_at_last_runs(pods: Pods) -> None:
    name = pods.create(waiting_reason="ImagePullBackOff")
    until(lambda: pods.read(name)["status"].get("containerStatuses"))
    pods.plane.admin("PATCH", f"{PODS}/{name}", {"metadata": {"annotations": {f"{SIMULATION}/waiting-reason": None}}})
    pods.until_phase(name, "Running")


def test_a_pod_runs_out_of_memory(pods: Pods) -> None:
    terminated = pods.ended(pods.create(end_reason="OOMKilled"))
    assert (terminated["reason"], terminated["exitCode"]) == ("OOMKilled", 137)


def test_a_pod_is_evicted_by_its_node(pods: Pods) -> None:
    status = pods.until_phase(pods.create(end_reason="Evicted", runtime_seconds="0.5"), "Failed")["status"]
    assert status["reason"] == "Evicted"
    assert "DisruptionTarget" in [condition["type"] for condition in status["conditions"]]


@pytest.mark.parametrize("reason", ["OutOfcpu", "OutOfnvidia.com/gpu", "NodeAffinity", "UnexpectedAdmissionError"])
def test_a_pod_is_refused_by_its_node_and_has_no_containers(pods: Pods, reason: str) -> None:
    status = pods.until_phase(pods.create(end_reason=reason), "Failed")["status"]
    assert status["reason"] == reason
    assert "containerStatuses" not in status


def test_pods_that_hold_a_device_say_which(pods: Pods) -> None:
    names = [pods.create(labels={"muster.dev/gpu-reservation": "0"}) for _ in range(2)]
    device = "muster.dev/visible-devices"
    devices = {
        until(lambda name=name: pods.read(name)["metadata"].get("annotations", {}).get(device)) for name in names
    }
    assert len(devices) == 2


def test_the_log_of_a_container_is_read_and_followed(pods: Pods) -> None:
    name = pods.create()
    pods.until_phase(name, "Running")
    assert "first line" in pods.plane.admin("GET", f"{PODS}/{name}/log", container="main")
    with contextlib.closing(stream(pods.plane, f"{PODS}/{name}/log?follow=true")) as lines:
        assert b"first line" in next(lines)
        with pods.plane.container_log.open("a") as log:
            log.write("2026-01-01T00:00:01.000000000Z stdout F written while it was followed\n")
        assert any(b"written while it was followed" in line for line in lines)


@pytest.mark.anyio
async def test_a_client_with_a_service_accounts_token_may_do_what_its_role_says(control_plane: ControlPlane) -> None:
    name = f"reader-{next(NUMBERS)}"
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    control_plane.apply(
        [
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": "default"}},
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRole",
                "metadata": {"name": name},
                "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}],
            },
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": name},
                "roleRef": role,
                "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "default"}],
            },
        ]
    )
    token = control_plane.service_account_token("default", name)
    configuration = client.Configuration()
    await config.load_kube_config(str(control_plane.kubeconfig(token)), client_configuration=configuration)
    async with client.ApiClient(configuration) as api:
        core = client.CoreV1Api(api)
        await core.list_node()
        with pytest.raises(client.ApiException) as refused:
            await core.list_namespaced_pod("default")
        assert refused.value.status == http.client.FORBIDDEN


def test_missing_programs_are_named_with_what_would_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setenv("MUSTER_KUBE_TOOLS", str(tmp_path))
    with pytest.raises(ToolsMissingError, match="make kube-tools"):
        find_tools()
