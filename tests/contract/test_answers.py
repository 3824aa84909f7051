"""Every answer of the five endpoints, good and bad, against the contract's own schema of it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.api.openapi import CONTRACT_EXTENSIONS
from tests.contract.schema import Schema, resolved, validator
from tests.support.api import Served

CONTRACT: Schema = json.loads((Path(__file__).parent / "trainings-2.24.contract.json").read_text())
TRAININGS = "/api/v1/workloads/trainings"
NOBODY = "00000000-0000-8000-8000-000000000000"

FULL_SPEC: dict[str, Any] = {
    "image": "python:3.13",
    "command": "python -c 'print(1)'",
    "args": "--epochs 3",
    "workingDir": "/srv",
    "environmentVariables": [{"name": "A", "value": "b", "description": "c"}, None],
    "compute": {
        "cpuCoreRequest": 0.5,
        "cpuCoreLimit": 1,
        "cpuMemoryRequest": "512Mi",
        "cpuMemoryLimit": "1Gi",
        "gpuDevicesRequest": 2,
        "gpuRequestType": "portion",
        "gpuPortionRequest": 0.25,
        "gpuPortionLimit": 0.5,
        "largeShmRequest": True,
        "extendedResources": [{"resource": "rdma/hca", "quantity": "2"}],
    },
    "nodePools": ["default"],
    "nodeType": "a100",
    "nodeAffinityRequired": {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}]
    },
    "podAffinity": {"type": "Preferred", "key": "topology.kubernetes.io/zone"},
    "tolerations": [
        {"name": "ours", "operator": "Equal", "key": "dedicated", "value": "ml", "effect": "NoExecute", "seconds": 60}
    ],
    "terminateAfterPreemption": True,
    "priorityClass": "high",
    "preemptibility": "preemptible",
    "completions": 5,
    "parallelism": 2,
    "backoffLimit": 0,
    "terminationGracePeriodSeconds": 0,
    "autoDeletionTimeAfterCompletionSeconds": 0,
    "labels": [{"name": "team", "value": "vision"}],
    "annotations": [{"name": "simulation.muster.dev/runtime-seconds", "value": "1"}],
    "category": "Train",
    "createHomeDir": True,
    "imagePullPolicy": None,
    "imagePullSecrets": [],
    "relatedUrls": [{"url": "https://wandb.example/run/7", "type": "wandb", "name": "run 7"}],
    "security": {
        "capabilities": [],
        "hostIpc": False,
        "hostNetwork": False,
        "readOnlyRootFilesystem": False,
        "runAsNonRoot": False,
        "runAsUid": None,
        "supplementalGroups": "",
        "uidGidSource": "fromTheImage",
    },
    "stdin": False,
    "tty": False,
    "exposedUrls": [{"container": 8888, "authorizedUsers": ["ann"], "toolType": "jupyter-notebook", "name": "lab"}],
    "ports": [{"container": 6006, "serviceType": "ClusterIP", "toolName": "TensorBoard"}],
    "restartPolicy": "OnFailure",
    "probes": {"readiness": {"periodSeconds": 5, "handler": {"httpGet": {"port": 80, "path": "/healthz"}}}},
    "storage": {
        "configMapVolume": [],
        "emptyDirVolume": [{"name": "scratch", "path": "/scratch", "medium": "Memory", "sizeLimit": "1Gi"}],
        "git": [{"repository": "https://git.example.com/team/code", "branch": "main", "path": "/src"}],
        "hostPath": [],
        "nfs": [],
        "pvc": [
            {
                "path": "/data",
                "ephemeral": True,
                "claimInfo": {
                    "size": "10Gi",
                    "accessModes": {"readWriteOnce": True, "readOnlyMany": False, "readWriteMany": True},
                    "volumeMode": "Filesystem",
                    "addedAttrValues": [],
                },
            },
            {"path": "/more", "existingPvc": True, "claimName": "more", "readOnly": True},
        ],
        "s3": [],
        "secretVolume": [],
        "dataVolume": [],
    },
}


@pytest.fixture(scope="module")
def alice(served: Served) -> Iterator[httpx.Client]:
    with served.client("alice") as client:
        yield client


def check(answer: httpx.Response, path: str, method: str) -> Any:
    """The body, held against the contract; a status of the named extensions is held against the contract's Error."""
    responses = CONTRACT["paths"][path][method]["responses"]
    status = str(answer.status_code)
    assert status in responses or answer.status_code in CONTRACT_EXTENSIONS, answer.text
    response = resolved(responses.get(status, {"$ref": "#/components/responses/500InternalServerError"}), CONTRACT)
    schema = response["content"]["application/json"]["schema"]
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    validator(schema, CONTRACT).validate(body)
    if answer.status_code >= 400:
        assert body["code"] == answer.status_code
        assert set(body) <= {"code", "message", "details", "complianceIssues"}
    return body


def set_in(spec: Any) -> Any:
    """Without what is unset, which the effective spec names as null."""
    match spec:
        case dict():
            return {name: set_in(value) for name, value in spec.items() if value is not None}
        case list():
            return [set_in(value) for value in spec]
        case _:
            return spec


def create(client: httpx.Client, served: Served, **more: Any) -> Any:
    return check(client.post(TRAININGS, json=served.training(**more)), TRAININGS, "post")


def test_a_creation_and_its_reading_are_training1(served: Served, alice: httpx.Client) -> None:
    """S086, S087."""
    made = create(alice, served, spec=FULL_SPEC)
    read = alice.get(f"{TRAININGS}/{made['workloadId']}")
    assert check(read, f"{TRAININGS}/{{workloadId}}", "get") == made
    assert made["createdBy"] == "alice"
    assert made["actualPhase"] == "Creating"
    assert made["notYetInForce"] == []
    given = {key: value for key, value in FULL_SPEC.items() if value is not None}
    given["environmentVariables"] = given["environmentVariables"][:1]
    assert set_in(made["spec"]) == set_in(given)


def test_defaults_stand_in_the_effective_spec(served: Served, alice: httpx.Client) -> None:
    """C1, C3, C15, R19."""
    spec = create(alice, served)["spec"]
    assert (spec["backoffLimit"], spec["autoDeletionTimeAfterCompletionSeconds"]) == (6, 2_592_000)
    assert (spec["priorityClass"], spec["preemptibility"]) == ("low", "preemptible")
    assert (spec["completions"], spec["parallelism"]) == (1, 1)


def test_a_prefix_gets_a_suffix_and_the_asked_name_is_kept(served: Served, alice: httpx.Client) -> None:
    """S011, R38."""
    made = create(alice, served, useGivenNameAsPrefix=True)
    assert made["name"].startswith(f"{made['requestedName']}-")
    again = create(alice, served)
    assert again["name"] == again["requestedName"]


@pytest.mark.parametrize("verb", ["suspend", "resume", "delete"])
def test_actions_answer_with_http_response_also_where_it_already_is_so(
    served: Served, alice: httpx.Client, verb: str
) -> None:
    """S088, S089, S090, C21."""
    made = create(alice, served)
    for _ in range(2):
        answer = act(alice, verb, made["workloadId"])
        assert answer.status_code == 202
        assert check_act(answer, verb)["code"] == 202


def act(client: httpx.Client, verb: str, workload_id: str) -> httpx.Response:
    if verb == "delete":
        return client.delete(f"{TRAININGS}/{workload_id}")
    return client.post(f"{TRAININGS}/{workload_id}/{verb}")


def check_act(answer: httpx.Response, verb: str) -> Any:
    path = f"{TRAININGS}/{{workloadId}}"
    return check(answer, path, "delete") if verb == "delete" else check(answer, f"{path}/{verb}", "post")


def test_a_deleted_training_is_still_read_with_its_time(served: Served, alice: httpx.Client) -> None:
    made = create(alice, served)
    assert act(alice, "delete", made["workloadId"]).status_code == 202
    gone = check(alice.get(f"{TRAININGS}/{made['workloadId']}"), f"{TRAININGS}/{{workloadId}}", "get")
    assert gone["deletedAt"]
    assert gone["desiredPhase"] == "Deleted"
    refused = act(alice, "resume", made["workloadId"])
    assert (refused.status_code, check_act(refused, "resume")["details"]) == (409, "workload_deleted")


def test_refused_creations_are_submission_errors(served: Served, alice: httpx.Client) -> None:
    """S083, S092, C21."""
    good = served.training()
    assert alice.post(TRAININGS, json=good).status_code == 202
    for body, fields in (
        (good, {"name"}),
        (served.training(projectId="nope"), {"projectId"}),
        (served.training(clusterId=NOBODY), {"clusterId"}),
        (
            served.training(projectId="nope", clusterId="nope", spec={"image": ""}),
            {"projectId", "clusterId", "spec.image"},
        ),
        ({}, {"name", "projectId", "clusterId", "spec.image"}),
        ([], {"body"}),
    ):
        answer = alice.post(TRAININGS, json=body)
        issues = check(answer, TRAININGS, "post")["complianceIssues"]
        assert answer.status_code == 400
        assert {issue["field"] for issue in issues} == fields


def test_errors_of_every_endpoint_have_the_contracts_form(served: Served, alice: httpx.Client) -> None:
    """S085, S092, C21."""
    made = create(alice, served)
    hers = made["workloadId"]
    with served.client(None) as nobody, served.client("vic") as viewer, served.client("stranger") as stranger:
        assert check(nobody.post(TRAININGS, json={}), TRAININGS, "post")["code"] == 401
        assert check(viewer.post(TRAININGS, json=served.training()), TRAININGS, "post")["code"] == 403
        assert check(stranger.post(TRAININGS, json=served.training()), TRAININGS, "post")["code"] == 403
        for verb in ("suspend", "resume", "delete"):
            assert check_act(act(nobody, verb, hers), verb)["code"] == 401
            assert check_act(act(viewer, verb, hers), verb)["code"] == 403
            assert check_act(act(stranger, verb, hers), verb)["code"] == 404
            assert check_act(act(alice, verb, NOBODY), verb)["code"] == 404
            assert check_act(act(alice, verb, "not-a-uuid"), verb)["code"] == 404
        for client, workload_id, status in (
            (nobody, hers, 401),
            (viewer, hers, 200),
            (stranger, hers, 404),
            (alice, NOBODY, 404),
            (alice, "not-a-uuid", 404),
        ):
            answer = client.get(f"{TRAININGS}/{workload_id}")
            check(answer, f"{TRAININGS}/{{workloadId}}", "get")
            assert answer.status_code == status
