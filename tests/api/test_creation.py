"""What is wrong with a creation because of what there is, in one answer with what is wrong with its fields."""

import secrets
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.api import Served

V1 = "/api/v1"
TRAININGS = f"{V1}/workloads/trainings"


@pytest.fixture(scope="module")
def admin(served: Served) -> Iterator[httpx.Client]:
    with served.client() as client:
        yield client


@pytest.fixture(scope="module")
def alice(served: Served) -> Iterator[httpx.Client]:
    with served.client("alice") as client:
        yield client


@pytest.fixture(scope="module")
def taken(served: Served, alice: httpx.Client) -> str:
    body = served.training()
    assert alice.post(TRAININGS, json=body).status_code == 202
    return body["name"]


def add_pool(admin: httpx.Client, served: Served, name: str) -> None:
    pool = {"clusterId": served.cluster, "name": name, "labelKey": "pool", "labelValue": name}
    assert admin.post(f"{V1}/node-pools", json=pool).status_code == 202


def wrong(answer: httpx.Response) -> set[str]:
    assert answer.status_code == 400, answer.text
    issues: list[dict[str, Any]] = answer.json()["complianceIssues"]
    return {issue["field"] for issue in issues}


FROM_A_SECRET = {"name": "A", "secret": {"name": "wandb", "key": "token"}}


def test_a_taken_name_the_clusters_kind_its_pools_and_the_fields_are_told_in_one_answer(
    served: Served, alice: httpx.Client, taken: str
) -> None:
    spec = {
        "image": None,
        "backoffLimit": 500,
        "completions": "many",
        "environmentVariables": [FROM_A_SECRET],
        "nodePools": ["default", "no-such-pool"],
    }
    answer = alice.post(TRAININGS, json=served.training(name=taken, spec=spec))
    assert wrong(answer) == {
        "name",
        "spec.image",
        "spec.backoffLimit",
        "spec.completions",
        "spec.environmentVariables[0].secret",
        "spec.nodePools[1]",
    }


@pytest.mark.parametrize(
    ("more", "fields"),
    [
        ({"backoffLimit": 500}, {"name", "spec.backoffLimit"}),
        ({"environmentVariables": [FROM_A_SECRET]}, {"name", "spec.environmentVariables[0].secret"}),
        ({"nodePools": ["no-such-pool"]}, {"name", "spec.nodePools[0]"}),
        ({}, {"name"}),
    ],
    ids=["with a field", "with the cluster's kind", "with a pool", "alone"],
)
def test_a_taken_name_is_told_beside_whatever_else_is_wrong(
    served: Served, alice: httpx.Client, taken: str, more: dict[str, Any], fields: set[str]
) -> None:
    """C21: 400 with the field."""
    answer = alice.post(TRAININGS, json=served.training(name=taken, spec=more))
    assert wrong(answer) == fields


def test_a_name_that_cannot_be_taken_or_is_wrong_itself_is_not_told_as_taken(
    served: Served, alice: httpx.Client, taken: str
) -> None:
    spec = {"backoffLimit": 500}
    prefix = alice.post(TRAININGS, json=served.training(name=taken, useGivenNameAsPrefix=True, spec=spec))
    assert wrong(prefix) == {"spec.backoffLimit"}
    nowhere = alice.post(TRAININGS, json=served.training(name=taken, projectId="nowhere", spec=spec))
    assert wrong(nowhere) == {"projectId", "spec.backoffLimit"}
    nameless = alice.post(TRAININGS, json=served.training(name=5, spec={"nodePools": ["no-such-pool"]}))
    assert wrong(nameless) == {"name", "spec.nodePools[0]"}


def test_who_may_not_read_a_project_does_not_learn_which_names_it_has(served: Served, taken: str) -> None:
    with served.client("stranger") as stranger:
        answer = stranger.post(TRAININGS, json=served.training(name=taken, spec={"backoffLimit": 500}))
        assert wrong(answer) == {"spec.backoffLimit"}


def test_a_pool_that_the_cluster_does_not_have_is_refused_with_those_that_it_has(
    served: Served, admin: httpx.Client, alice: httpx.Client
) -> None:
    """S039."""
    add_pool(admin, served, "a100")
    answer = alice.post(TRAININGS, json=served.training(spec={"nodePools": ["a100", "no-such-pool"]}))
    assert wrong(answer) == {"spec.nodePools[1]"}
    (issue,) = answer.json()["complianceIssues"]
    assert issue["rule"] == "options"
    assert "'no-such-pool'" in issue["details"]
    assert "a100, default" in issue["details"]
    body = served.training(spec={"nodePools": ["a100", "default"]})
    assert alice.post(TRAININGS, json=body).status_code == 202


def test_a_pool_can_be_named_as_soon_as_it_was_made(served: Served, admin: httpx.Client, alice: httpx.Client) -> None:
    for _ in range(5):
        name = f"p-{secrets.token_hex(3)}"
        add_pool(admin, served, name)
        answer = alice.post(TRAININGS, json=served.training(spec={"nodePools": [name]}))
        assert answer.status_code == 202, answer.text


def test_a_repeated_creation_is_answered_as_the_first_although_its_pool_has_gone(
    served: Served, admin: httpx.Client, alice: httpx.Client
) -> None:
    name = f"p-{secrets.token_hex(3)}"
    add_pool(admin, served, name)
    body, key = served.training(spec={"nodePools": [name]}), {"Idempotency-Key": f"k-{name}"}
    first = alice.post(TRAININGS, json=body, headers=key)
    assert first.status_code == 202
    assert admin.delete(f"{V1}/node-pools/{served.cluster}/{name}").status_code == 202
    again = alice.post(TRAININGS, json=body, headers=key)
    assert (again.status_code, again.json()) == (202, first.json())
    assert wrong(alice.post(TRAININGS, json=body)) == {"name", "spec.nodePools[0]"}
    assert alice.delete(f"{TRAININGS}/{first.json()['workloadId']}").status_code == 202
    anew = alice.post(TRAININGS, json=served.training(name=body["name"]))
    assert anew.status_code == 202, anew.text
    again = alice.post(TRAININGS, json=body, headers=key)
    assert (again.status_code, again.json()) == (202, first.json())


@pytest.mark.parametrize(
    ("path", "body", "fields"),
    [
        (
            "/org-unit/projects",
            {"name": "third", "gpuQuota": "many", "nodePools": ["default", "default"]},
            {"name", "gpuQuota", "nodePools[1]"},
        ),
        ("/org-unit/projects", {"name": " third", "gpuQuota": -1}, {"name", "gpuQuota"}),
        (
            "/org-unit/projects",
            {"gpuQuota": -1, "nodePools": ["default", "default"]},
            {"name", "gpuQuota", "nodePools[1]"},
        ),
        (
            "/clusters",
            {"name": "second", "kind": "kubernetes", "simulatedNodes": [{"cpuCores": 1, "memoryBytes": 1}], "bogus": 1},
            {"name", "simulatedNodes", "simulatedNodes[0]", "bogus"},
        ),
        (
            "/node-pools",
            {"clusterId": "nowhere", "name": "default", "labelKey": "-", "labelValue": "-", "bogus": 1},
            {"clusterId", "name", "labelKey", "labelValue", "bogus"},
        ),
    ],
    ids=["a project's name is taken", "a project", "a project without a name", "a cluster's name is taken", "a pool"],
)
def test_projects_clusters_and_pools_are_told_of_everything_at_once(
    admin: httpx.Client, path: str, body: dict[str, Any], fields: set[str]
) -> None:
    admin.post(f"{V1}/org-unit/projects", json={"name": "third"})
    admin.post(f"{V1}/clusters", json={"name": "second", "kind": "kubernetes"})
    assert wrong(admin.post(f"{V1}{path}", json=body)) == fields


def test_who_may_make_no_projects_does_not_learn_their_names(admin: httpx.Client, alice: httpx.Client) -> None:
    admin.post(f"{V1}/org-unit/projects", json={"name": "third"})
    assert wrong(alice.post(f"{V1}/org-unit/projects", json={"name": "third", "gpuQuota": -1})) == {"gpuQuota"}
