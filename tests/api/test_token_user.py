"""Pods that run as the user whom the token names that submits them (S022, R23)."""

import secrets
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from muster.cli.submission import request_of
from tests.support.api import Served

V1 = "/api/v1"
FROM_TOKEN = {"image": "python:3.13", "security": {"uidGidSource": "fromIdpToken"}}


@pytest.fixture(scope="module")
def admin(served: Served) -> Iterator[httpx.Client]:
    with served.client() as client:
        yield client


@pytest.fixture(scope="module")
def cluster(admin: httpx.Client) -> str:
    made = admin.post(f"{V1}/clusters", json={"name": f"k-{secrets.token_hex(4)}", "kind": "kubernetes"})
    assert made.status_code == 202, made.text
    return made.json()["id"]


@pytest.fixture
def submit(served: Served, admin: httpx.Client, cluster: str) -> Callable[..., httpx.Response]:
    """As somebody whose token has these claims, too."""

    def send(claims: dict[str, Any], path: str = "trainings", **body: Any) -> httpx.Response:
        request = served.training(**{"clusterId": cluster, "spec": FROM_TOKEN, **body})
        return admin.post(
            f"{V1}/workloads/{path}",
            json=request,
            headers={"Authorization": f"Bearer {served.token('admin', claims=claims)}"},
        )

    return send


@pytest.mark.parametrize("groups", [[10, "20"], "10, 20"], ids=["a list", "a text"])
def test_pods_run_as_the_user_and_groups_of_the_token(
    submit: Callable[..., httpx.Response], admin: httpx.Client, groups: Any
) -> None:
    made = submit({"uid": 1001, "gid": "1002", "groups": groups})
    assert made.status_code == 202, made.text
    security = admin.get(f"{V1}/workloads/trainings/{made.json()['workloadId']}").json()["spec"]["security"]
    told = (security["uidGidSource"], security["runAsUid"], security["runAsGid"], security["supplementalGroups"])
    assert told == ("fromIdpToken", 1001, 1002, "10,20")


def test_who_submits_it_again_runs_it_as_themselves(submit: Callable[..., httpx.Response], admin: httpx.Client) -> None:
    first = submit({"uid": 1001, "gid": 1002, "groups": [7]}).json()
    again = request_of(admin.get(f"{V1}/workloads/{first['workloadId']}").json())
    assert "runAsUid" not in again["spec"]["security"]  # type: ignore[index]
    second = submit({"uid": 2001, "gid": 2002}, spec=again["spec"])
    assert second.status_code == 202, second.text
    security = second.json()["spec"]["security"]
    assert (security["runAsUid"], security["runAsGid"], security["supplementalGroups"]) == (2001, 2002, "")


def test_a_master_has_its_own_source(submit: Callable[..., httpx.Response]) -> None:
    body = {
        "spec": {"image": "python:3.13", "distributedFramework": "PyTorch", "numWorkers": 1},
        "masterSpec": FROM_TOKEN,
    }
    made = submit({"uid": 5, "gid": 6}, "distributed", **body)
    assert made.status_code == 202, made.text
    assert made.json()["masterSpec"]["security"]["runAsUid"] == 5
    assert made.json()["spec"]["security"]["runAsUid"] is None


@pytest.mark.parametrize(
    ("claims", "told"),
    [
        ({}, "the claim uid of your token is missing"),
        ({"uid": 1}, "the claim gid of your token is missing"),
        ({"uid": -1, "gid": 1}, "the claim uid of your token is not a whole number from 0 to 2147483647"),
        ({"uid": True, "gid": 1}, "the claim uid of your token is not a whole number"),
        ({"uid": "root", "gid": 1}, "the claim uid of your token is not a whole number"),
        ({"uid": 1, "gid": 2**31}, "the claim gid of your token is not a whole number"),
        ({"uid": 1, "gid": 1, "groups": ["staff"]}, "the claim groups of your token is not a list of up to 100 whole"),
        ({"uid": 1, "gid": 1, "groups": list(range(101))}, "the claim groups of your token is not a list of up to 100"),
        ({"uid": 1, "gid": 1, "groups": {"a": 1}}, "the claim groups of your token is not a list of up to 100"),
    ],
)
def test_a_claim_that_is_missing_or_unfit_is_named(
    submit: Callable[..., httpx.Response], claims: dict[str, Any], told: str
) -> None:
    answer = submit(claims, name="")
    assert answer.status_code == 400, answer.text
    issues = {issue["field"]: issue["details"] for issue in answer.json()["complianceIssues"]}
    assert set(issues) == {"name", "spec.security.uidGidSource"}
    assert issues["spec.security.uidGidSource"].startswith(told)


def test_root_of_a_token_is_refused_where_the_pod_must_not_be_root(submit: Callable[..., httpx.Response]) -> None:
    spec = {"image": "python:3.13", "security": {"uidGidSource": "fromIdpToken", "runAsNonRoot": True}}
    answer = submit({"uid": 0, "gid": 0}, spec=spec)
    assert [issue["field"] for issue in answer.json()["complianceIssues"]] == ["spec.security.uidGidSource"]


def test_a_service_account_is_nobody(served: Served, admin: httpx.Client, cluster: str) -> None:
    name = f"ci-{secrets.token_hex(4)}"
    made = admin.post(
        f"{V1}/service-accounts", json={"name": name, "projectId": served.project, "roleName": "researcher"}
    )
    assert made.status_code == 202, made.text
    request = served.training(clusterId=cluster, spec=FROM_TOKEN)
    answer = admin.post(
        f"{V1}/workloads/trainings", json=request, headers={"Authorization": f"Bearer {made.json()['token']}"}
    )
    assert answer.status_code == 400
    assert "no person's" in answer.json()["complianceIssues"][0]["details"]
