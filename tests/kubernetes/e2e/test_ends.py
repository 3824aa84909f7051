"""Pods that do not simply end by themselves: told in words in the workload's history, and what follows."""

import pytest

from development.kubernetes.checker import Recorder
from development.kubernetes.stack import KubernetesStack
from development.stack import Api, until
from tests.kubernetes.e2e.looks import gone, label, lives, the_pod, told, uid

pytestmark = pytest.mark.kubernetes


def test_out_of_memory_is_a_failure_that_spends_a_retry(stack: KubernetesStack, api: Api) -> None:
    compute = {"cpuMemoryRequest": "1Gi", "cpuMemoryLimit": "2Gi"}
    simulation = {"end-reason": "OOMKilled"}
    key = stack.submit("oom", runtime_seconds=0.2, simulation=simulation, compute=compute, backoffLimit=1)["workloadId"]
    api.wait(key, "Failed")
    assert [record["type"] for record in api.history(key)].count("PodFailed") == 2
    assert told(stack, key, "PodFailed", "out of memory", "limit of 2Gi", "ask for a higher memory limit")
    assert told(stack, key, "WorkloadFailed", "137", "backoff limit 1")
    gone(stack, key)


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Evicted", ["its node ran short of memory or disk"]),
        ("OutOfnvidia.com/gpu", ["has not enough nvidia.com/gpu left", "placed again"]),
        ("UnexpectedAdmissionError", ["could not give the pod its devices", "placed again"]),
        ("NodeAffinity", ["does not have the labels", "placed again"]),
    ],
)
def test_an_evicted_or_refused_pod_is_placed_again_and_spends_no_retry(
    stack: KubernetesStack, recorder: Recorder, api: Api, reason: str, words: list[str]
) -> None:
    """Whatever the backoff limit: the second comes at once, later ones ever more slowly."""
    name = f"ends-{reason.lower().replace('.', '-').replace('/', '-')}"
    key = stack.submit(name, runtime_seconds=0.2, simulation={"end-reason": reason}, backoffLimit=0)["workloadId"]
    assert told(stack, key, "PodInterrupted", *words)
    until(lambda: [r["type"] for r in api.history(key)].count("PodInterrupted") >= 2, 60)
    assert api.training(key)["actualPhase"] != "Failed"
    assert api.act("delete", key).status_code == 202
    until(lambda: api.training(key).get("deletedAt"), 60)
    gone(stack, key)
    tries = [label(pod, "try") for pod, _, _ in lives(recorder.history(), key)]
    assert tries == [str(number) for number in range(len(tries))]
    assert len(tries) >= 2


@pytest.mark.parametrize(
    ("reason", "message", "words"),
    [
        (
            "ErrImagePull",
            "manifest unknown",
            ["image cannot be pulled", "manifest unknown", "check the image's name"],
        ),
        ("ImagePullBackOff", 'Back-off pulling image "x": not found', ["its image cannot be pulled", "not found"]),
        ("CreateContainerConfigError", 'secret "nope" not found', ["cannot be set up", 'secret "nope" not found']),
    ],
)
def test_a_pod_that_cannot_begin_says_why_once_and_waits(
    stack: KubernetesStack, api: Api, reason: str, message: str, words: list[str]
) -> None:
    simulation = {"waiting-reason": reason, "waiting-message": message}
    key = stack.submit(f"waits-{reason.lower()}", simulation=simulation)["workloadId"]
    assert told(stack, key, "PodWarned", *words)
    assert api.training(key)["actualPhase"] == "Initializing"
    warnings = [record["message"] for record in api.history(key) if record["type"] == "PodWarned"]
    assert len(warnings) == 1
    assert api.act("delete", key).status_code == 202
    until(lambda: api.training(key).get("deletedAt"), 60)
    gone(stack, key)


@pytest.mark.parametrize("grace_seconds", [30, 0], ids=["kubectl-delete", "kubectl-delete-force"])
def test_a_pod_that_somebody_deletes_is_a_fact_and_runs_again_as_a_new_object(
    stack: KubernetesStack, recorder: Recorder, api: Api, grace_seconds: int
) -> None:
    key = stack.submit(f"by-hand-{grace_seconds}", runtime_seconds=None, backoffLimit=0)["workloadId"]
    first = the_pod(stack, key)
    until(lambda: api.training(key)["actualPhase"] == "Running", 60)
    path = f"/api/v1/namespaces/{stack.namespace}/pods/{first['metadata']['name']}"
    stack.plane.admin("DELETE", path, gracePeriodSeconds=grace_seconds)
    assert told(stack, key, "PodInterrupted", "deleted by somebody else, not by Muster")

    def second() -> bool:
        pods = stack.pods(key)
        return [uid(pod) for pod in pods] != [uid(first)] and bool(pods) and pods[0]["status"]["phase"] == "Running"

    until(second, 20, lambda: str(api.story(key)))
    ((_, _, went), (again, came, _)) = lives(recorder.history(), key)
    assert 0 < went < came
    assert label(again, "try") == "1"
    until(lambda: api.training(key)["actualPhase"] == "Running", 60)
    assert api.act("delete", key).status_code == 202
    gone(stack, key)


def test_a_pod_whose_finalizer_somebody_takes_off_and_which_vanishes_is_a_fact_too(
    stack: KubernetesStack, api: Api
) -> None:
    """Nobody can see its end then; it is still one end, and one new try."""
    key = stack.submit("unhooked", runtime_seconds=None)["workloadId"]
    first = the_pod(stack, key)
    until(lambda: api.training(key)["actualPhase"] == "Running", 60)
    path = f"/api/v1/namespaces/{stack.namespace}/pods/{first['metadata']['name']}"
    stack.plane.admin("PATCH", path, {"metadata": {"finalizers": []}})
    stack.plane.admin("DELETE", path, gracePeriodSeconds=0)
    assert told(stack, key, "PodInterrupted")
    until(lambda: [p for p in stack.pods(key) if uid(p) != uid(first) and p["status"]["phase"] == "Running"], 60)
    assert api.act("delete", key).status_code == 202
    gone(stack, key)
    assert [record["type"] for record in api.history(key)].count("PodInterrupted") == 1
