"""Service accounts over HTTP: a token is shown once, works until it is ended, and is listed with the day of its use."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from development.stack import until
from tests.support.api import Served, report_node

ACCOUNTS = "/api/v1/service-accounts"
TRAININGS = "/api/v1/workloads/trainings"


@pytest.fixture(scope="module")
def admin(served: Served) -> Iterator[httpx.Client]:
    with served.client() as client:
        yield client


def made(admin: httpx.Client, served: Served, name: str, **more: Any) -> dict[str, Any]:
    answer = admin.post(ACCOUNTS, json={"name": name, "projectId": served.project, "roleName": "researcher"}, **more)
    assert answer.status_code == 202, answer.text
    return answer.json()


def with_token(served: Served, token: str) -> httpx.Client:
    client = served.client(None)
    client.headers["Authorization"] = f"Bearer {token}"
    return client


def test_a_token_is_shown_once_and_listed_by_the_day_of_its_use_alone(served: Served, admin: httpx.Client) -> None:
    token = made(admin, served, "once")["token"]
    path = f"{ACCOUNTS}/{served.project}/once"
    assert admin.get(path).json()["lastUsed"] is None
    with with_token(served, token) as program:
        me = program.get("/api/v1/me").json()
        assert (me["issuer"], me["subject"]) == ("muster", "service-account:default/once")
        assert program.post(TRAININGS, json=served.training()).json()["createdBy"] == me["subject"]
    today = datetime.now(UTC).date().isoformat()
    assert until(lambda: admin.get(path).json()["lastUsed"], 60) == today
    listed = admin.get(ACCOUNTS, params={"projectId": served.project})
    events = admin.get("/api/v1/events", params={"order": "desc", "type": "ServiceAccountCreated"})
    everything = listed.text + events.text + admin.get("/api/v1/audit").text
    assert token not in everything
    assert "tokenHash" not in everything
    assert (
        len(admin.get("/api/v1/events", params={"order": "desc", "type": "ServiceAccountUsed"}).json()["events"]) == 1
    )


def test_a_creation_that_comes_again_makes_no_second_token(served: Served, admin: httpx.Client) -> None:
    headers = {"Idempotency-Key": "account-again"}
    first, again = (made(admin, served, "again", headers=headers) for _ in range(2))
    assert first["token"]
    assert again["token"] is None
    assert "rotate" in again["message"]
    with with_token(served, first["token"]) as program:
        assert program.get("/api/v1/me").status_code == 200


@pytest.mark.parametrize("end", ["rotate", "delete", "role"])
def test_the_next_request_after_the_end_is_401(served: Served, admin: httpx.Client, end: str) -> None:
    name = f"ends-by-{end}"
    token, path = made(admin, served, name)["token"], f"{ACCOUNTS}/{served.project}/{name}"
    rule = {"subjectId": f"service-account:default/{name}", "roleName": "researcher"}
    rule |= {"scopeType": "project", "scopeId": served.project}
    with with_token(served, token) as program:
        assert program.get("/api/v1/me").status_code == 200
        ended = {
            "rotate": lambda: admin.post(f"{path}/rotate"),
            "delete": lambda: admin.delete(path),
            "role": lambda: admin.delete("/api/v1/authorization/access-rules", params=rule),
        }[end]()
        assert ended.status_code == 202, ended.text
        refused = program.get("/api/v1/me")
        assert (refused.status_code, refused.json()["details"]) == (401, "not_authenticated")
        assert program.post(TRAININGS, json=served.training()).status_code == 401
    if end == "rotate":
        with with_token(served, ended.json()["token"]) as program:
            assert program.get("/api/v1/me").status_code == 200


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "Has Space", "roleName": "viewer"}, "name"),
        ({"name": "ok", "roleName": "project-admin"}, "roleName"),
        ({"name": "ok", "roleName": "administrator"}, "roleName"),
    ],
)
def test_what_no_account_can_be_is_refused_by_field(
    served: Served, admin: httpx.Client, body: dict[str, str], field: str
) -> None:
    answer = admin.post(ACCOUNTS, json=body | {"projectId": served.project})
    assert answer.status_code == 400
    assert [issue["field"] for issue in answer.json()["complianceIssues"]] == [field]


def test_a_cordoned_node_says_who_and_since_when_and_the_pool_counts_it(served: Served, admin: httpx.Client) -> None:
    cluster = admin.post("/api/v1/clusters", json={"name": "marked", "kind": "kubernetes"}).json()["id"]
    report_node(served, cluster, "node.one")
    path = f"/api/v1/nodes/{cluster}/node.one"
    assert "already" not in admin.post(f"{path}/cordon").json()["message"]
    assert "already" in admin.post(f"{path}/cordon").json()["message"]

    def node() -> dict[str, Any]:
        (found,) = admin.get("/api/v1/nodes", params={"clusterId": cluster}).json()["nodes"] or [{}]
        return found

    assert until(lambda: node().get("cordonedBy"), 60) == "admin"
    assert node()["schedulable"] is False
    assert node()["cordonedByCluster"] is False
    assert admin.post(f"{path}/uncordon").status_code == 202
    assert until(lambda: node()["cordonedBy"] is None, 60)
    assert admin.post(f"/api/v1/nodes/{cluster}/none/cordon").status_code == 404
    (pool,) = admin.get("/api/v1/node-pools", params={"clusterId": cluster}).json()["nodePools"]
    assert (pool["name"], pool["nodes"]) == ("default", 1)


def test_a_deleted_project_is_gone_from_lists_with_its_roles_and_its_name_is_free(
    served: Served, admin: httpx.Client
) -> None:
    project = admin.post("/api/v1/org-unit/projects", json={"name": "short"}).json()["id"]
    body = {"name": "ci", "projectId": project, "roleName": "viewer"}
    token = admin.post(ACCOUNTS, json=body).json()["token"]
    living = admin.post(TRAININGS, json=served.training(projectId=project)).json()["workloadId"]
    refused = admin.delete(f"/api/v1/org-unit/projects/{project}")
    assert (refused.status_code, refused.json()["details"]) == (409, "project_not_empty")
    assert "1 workload lives in the project" in refused.json()["message"]
    assert admin.delete(f"{TRAININGS}/{living}").status_code == 202
    assert admin.delete(f"/api/v1/org-unit/projects/{project}").status_code == 202
    assert admin.get(f"/api/v1/org-unit/projects/{project}").status_code == 404
    assert admin.get(f"/api/v1/workloads/{living}/history").status_code == 200
    with with_token(served, token) as program:
        assert program.get("/api/v1/me").status_code == 401
    assert admin.post("/api/v1/org-unit/projects", json={"name": "short"}).status_code == 202
