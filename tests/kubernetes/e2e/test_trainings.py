"""Trainings on a real API server, with their pods as they should be at each step (issue section 2.1)."""

import json
from itertools import pairwise

import pytest

from development.kubernetes.checker import Recorder
from development.kubernetes.stack import AGENT_NAMESPACE, KubernetesStack, archive_of
from development.stack import Api, until
from tests.kubernetes.e2e.looks import (
    environment,
    gone,
    label,
    lives,
    most_at_once,
    the_pod,
    the_pods,
    told,
    uid,
)

pytestmark = pytest.mark.kubernetes

GPU = "nvidia.com/gpu"
HALF = {"gpuDevicesRequest": 1, "gpuRequestType": "portion", "gpuPortionRequest": 0.5}
DEVICE_BYTES = 81920 * 2**20


def test_the_readmes_training_is_a_pod_that_runs_completes_and_is_let_go(stack: KubernetesStack, api: Api) -> None:
    """S004, S086, S087; the README's own line, on this cluster."""
    runtime = "simulation.muster.dev/runtime-seconds=2"
    command = ["python3", "-c", "print(sum(i * i for i in range(10**7)))"]
    options = ["-i", "python:3.13", "--cluster", stack.cluster, "--annotation", runtime]
    made = json.loads(stack.muster("training", "submit", "hello", *options, "-o", "json", "--", *command))
    key = stack.acknowledged["hello"] = made["workloadId"]
    pod = the_pod(stack, key)
    (row,) = api.get(f"/workloads/{key}/pods")["pods"]
    meta, spec = pod["metadata"], pod["spec"]
    (container,) = spec["containers"]
    assert meta["name"].startswith("hello-")
    assert meta["name"].endswith("-main-0")
    assert (label(pod, "attempt"), label(pod, "try"), label(pod, "cluster")) == ("1", "0", stack.cluster_id)
    assert meta["finalizers"] == ["muster.dev/observed"]
    assert spec["nodeName"] == row["node"]
    assert (spec["schedulerName"], spec["restartPolicy"]) == ("muster", "Never")
    assert (container["image"], container.get("args")) == ("python:3.13", command)
    until(lambda: api.training(key)["actualPhase"] == "Running", 60)
    api.wait(key, "Completed")
    gone(stack, key)
    assert "succeeded" in stack.muster("workload", "history", "hello")


def test_a_failing_one_is_tried_again_in_a_new_object_of_the_same_name_once_the_former_was_let_go(
    stack: KubernetesStack, recorder: Recorder, api: Api
) -> None:
    """S071."""
    made = stack.submit("fails", runtime_seconds=0.2, simulation={"exit-code": "7"}, backoffLimit=2)
    key = made["workloadId"]
    api.wait(key, "Failed")
    gone(stack, key)
    tries = lives(recorder.history(), key)
    assert [label(pod, "try") for pod, _, _ in tries] == ["0", "1", "2"]
    assert len({pod["metadata"]["name"] for pod, _, _ in tries}) == 1
    assert len({uid(pod) for pod, _, _ in tries}) == 3
    for (_, _, went), (_, came, _) in pairwise(tries):
        assert 0 < went < came
    types = [record["type"] for record in api.history(key)]
    assert (types.count("PodFailed"), types[-1]) == (3, "WorkloadFailed")
    assert "exit code 7" in told(stack, key, "WorkloadFailed")


def test_five_completions_with_parallelism_two_are_never_three_pods_at_once(
    stack: KubernetesStack, recorder: Recorder, api: Api
) -> None:
    """S061, S062: by the API server's own history."""
    made = stack.submit("five", runtime_seconds=0.5, completions=5, parallelism=2)
    api.wait(made["workloadId"], "Completed")
    gone(stack, made["workloadId"])
    events = recorder.history()
    runs = [pod for pod, _, _ in lives(events, made["workloadId"])]
    assert sorted(environment(pod)["JOB_COMPLETION_INDEX"] for pod in runs) == ["0", "1", "2", "3", "4"]
    assert all(pod["status"]["phase"] == "Succeeded" for pod in runs)
    assert most_at_once(events, made["workloadId"]) == 2


def test_two_pods_at_once_find_each_other_by_a_headless_service_that_goes_with_them(
    stack: KubernetesStack, api: Api
) -> None:
    made = stack.submit("pair", runtime_seconds=3, completions=2, parallelism=2, compute={"gpuDevicesRequest": 1})
    key = made["workloadId"]
    pods = the_pods(stack, key, 2)
    (service,) = stack.services()
    name = service["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None"
    assert [pod["spec"]["hostname"] for pod in pods] == ["main-0", "main-1"]
    for pod in pods:
        assert pod["spec"]["subdomain"] == environment(pod)["MUSTER_SERVICE"] == name
        assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    api.wait(key, "Completed")
    gone(stack, key)
    until(lambda: not stack.services(), 60)


def test_two_halves_share_one_device_through_one_reservation_that_goes_with_the_last(
    stack: KubernetesStack, api: Api
) -> None:
    """S036: and a whole device is never given to somebody else meanwhile."""
    first, second = (stack.submit(f"half-{n}", runtime_seconds=None, compute=HALF)["workloadId"] for n in (1, 2))
    pods = [the_pod(stack, key) for key in (first, second)]
    (holder,) = stack.reservations()
    device = holder["metadata"]["annotations"]["muster.dev/visible-devices"]
    assert holder["spec"]["containers"][0]["resources"]["limits"][GPU] == "1"
    for pod in pods:
        assert pod["spec"]["nodeName"] == holder["spec"]["nodeName"]
        assert GPU not in pod["spec"]["containers"][0]["resources"].get("limits", {})
        assert pod["metadata"]["annotations"]["muster.dev/reservations"] == holder["metadata"]["name"]
        told_it = environment(pod)
        assert (told_it["NVIDIA_VISIBLE_DEVICES"], told_it["GPU_PORTION"]) == (device, "0.5")
        assert int(told_it["GPU_MEMORY_LIMIT_BYTES"]) == DEVICE_BYTES // 2
    assert api.act("delete", first).status_code == 202
    gone(stack, first)
    assert api.act("suspend", second).status_code == 202
    api.wait(second, "Stopped")
    gone(stack, second)
    until(lambda: not stack.reservations(), 60)
    assert api.act("resume", second).status_code == 202
    again = the_pod(stack, second)
    (anew,) = stack.reservations()
    assert uid(anew) != uid(holder)
    assert environment(again)["NVIDIA_VISIBLE_DEVICES"] == anew["metadata"]["annotations"]["muster.dev/visible-devices"]
    assert api.act("delete", second).status_code == 202
    until(lambda: not stack.reservations(), 60)


def test_one_of_the_two_keeps_the_device_when_the_other_goes(stack: KubernetesStack, api: Api) -> None:
    first, second = (stack.submit(f"share-{n}", runtime_seconds=None, compute=HALF)["workloadId"] for n in (1, 2))
    pods = [the_pod(stack, key) for key in (first, second)]
    (holder,) = stack.reservations()
    assert api.act("delete", first).status_code == 202
    gone(stack, first)
    # A third takes the place of the first, on the same device.
    third = stack.submit("share-3", runtime_seconds=None, compute=HALF)["workloadId"]
    pod = the_pod(stack, third)
    assert environment(pod)["NVIDIA_VISIBLE_DEVICES"] == environment(pods[1])["NVIDIA_VISIBLE_DEVICES"]
    assert [uid(one) for one in stack.reservations()] == [uid(holder)]
    for key in (second, third):
        assert api.act("delete", key).status_code == 202
        gone(stack, key)


def test_code_goes_along_and_its_pods_share_it_until_the_last_has_ended(stack: KubernetesStack, api: Api) -> None:
    """S025."""
    digest = stack.send_code(archive_of({"train.py": b"print('hello')\n" * 100_000}))
    made = stack.submit("coded", runtime_seconds=None, code=digest, completions=2, parallelism=2)["workloadId"]
    mounted: set[str] = set()
    for pod in the_pods(stack, made, 2):
        (volume,) = (each["projected"] for each in pod["spec"]["volumes"] if "projected" in each)
        mounted |= {each["configMap"]["name"] for each in volume["sources"]}
    assert len(mounted) == 3
    until(lambda: {each["metadata"]["name"] for each in stack.code_maps()} == mounted, 60)
    assert api.act("delete", made).status_code == 202
    gone(stack, made)
    until(lambda: not stack.code_maps(), 20, lambda: str(stack.code_maps()))


def test_an_image_that_cannot_unpack_code_is_why_the_workload_failed(stack: KubernetesStack, api: Api) -> None:
    digest = stack.send_code(archive_of({"train.py": b"print('hello')\n"}))
    simulation = {"init-exit-code": "81", "init-message": "the image has no tar"}
    made = stack.submit("no-tar", runtime_seconds=1, simulation=simulation, code=digest, backoffLimit=0)["workloadId"]
    api.wait(made, "Failed")
    assert told(stack, made, "PodFailed", "the image has no tar", "use an image that has sh, cat, sha256sum and tar")
    gone(stack, made)


def test_a_share_by_gpu_memory_is_told_to_the_pod_in_bytes(stack: KubernetesStack, api: Api) -> None:
    compute = {"gpuDevicesRequest": 1, "gpuRequestType": "memory", "gpuMemoryRequest": "20Gi", "gpuMemoryLimit": "30Gi"}
    key = stack.submit("by-memory", runtime_seconds=1, compute=compute)["workloadId"]
    pod = the_pod(stack, key)
    told_it = environment(pod)
    assert told_it["GPU_MEMORY_LIMIT_BYTES"] == str(30 * 2**30)
    assert (told_it["GPU_PORTION"], told_it["GPU_PORTION_LIMIT"]) == ("0.25", "0.375")
    assert told_it["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"0={30 * 1024}M"
    api.wait(key, "Completed")


def test_suspend_ends_the_pod_resume_makes_another_and_delete_leaves_nothing(
    stack: KubernetesStack, recorder: Recorder, api: Api
) -> None:
    """S088 to S090, S096, C17."""
    made = stack.submit("long", runtime_seconds=None, compute={"gpuDevicesRequest": 2, "cpuCoreRequest": 0.5})
    key = made["workloadId"]
    first = the_pod(stack, key)
    assert first["spec"]["containers"][0]["resources"]["limits"][GPU] == "2"
    until(lambda: api.training(key)["actualPhase"] == "Running", 60)
    assert api.act("suspend", key).status_code == 202
    api.wait(key, "Stopped")
    gone(stack, key)
    assert api.act("resume", key).status_code == 202
    second = the_pod(stack, key)
    assert (label(second, "attempt"), second["metadata"]["name"]) == ("2", first["metadata"]["name"])
    assert uid(second) != uid(first)
    assert api.act("delete", key).status_code == 202
    until(lambda: api.training(key).get("deletedAt"), 60)
    gone(stack, key)
    # Each was asked to end with its grace period, before its object went.
    for pod, _, went in lives(recorder.history(), key):
        assert went
        assert pod["metadata"]["deletionTimestamp"]
        assert pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 143
    again = stack.submit("long", runtime_seconds=0.2)
    assert again["workloadId"] != key
    api.wait(again["workloadId"], "Completed")


def test_a_pod_that_does_not_listen_is_ended_after_its_grace_period(stack: KubernetesStack, api: Api) -> None:
    key = stack.submit(
        "deaf", runtime_seconds=None, simulation={"ignore-term": "true"}, terminationGracePeriodSeconds=2
    )["workloadId"]
    until(lambda: api.training(key)["actualPhase"] == "Running", 60)
    assert api.act("suspend", key).status_code == 202
    api.wait(key, "Stopped")
    assert told(stack, key, "PodStopped")
    gone(stack, key)


def test_a_workload_is_deleted_by_itself_when_it_is_due(stack: KubernetesStack, api: Api) -> None:
    """S072."""
    made = stack.submit("short", runtime_seconds=0.2, autoDeletionTimeAfterCompletionSeconds=2)
    until(lambda: api.training(made["workloadId"]).get("deletedAt"), 60)
    gone(stack, made["workloadId"])


def test_what_is_shared_and_what_is_whole_lie_beside_each_other_up_to_the_last_device(
    stack: KubernetesStack, api: Api
) -> None:
    """More than there is waits, and runs when there is room; the witness holds every moment to the nodes' capacity."""
    keys = [
        stack.submit(f"whole-{n}", runtime_seconds=2, compute={"gpuDevicesRequest": 2})["workloadId"] for n in range(9)
    ]
    keys += [stack.submit(f"part-{n}", runtime_seconds=2, compute=HALF)["workloadId"] for n in range(6)]
    for key in keys:
        api.wait(key, "Completed", timeout_seconds=60)
    until(lambda: not stack.reservations(), 60)
    assert stack.plane.admin("GET", f"/api/v1/namespaces/{AGENT_NAMESPACE}/pods")["items"] == []
