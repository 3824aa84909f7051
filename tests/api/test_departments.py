"""Departments, and the projects that stand in them.

Requirement rows: S008, S013, S039, S040, S076.
"""

import secrets
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from events.department import DEFAULT_DEPARTMENT_ID
from tests.support.api import Served

V1 = "/api/v1"
DEPARTMENTS = f"{V1}/org-unit/departments"
PROJECTS = f"{V1}/org-unit/projects"


@pytest.fixture
def admin(served: Served) -> Iterator[httpx.Client]:
    with served.client() as client:
        yield client


def fresh(word: str) -> str:
    return f"{word}-{secrets.token_hex(4)}"


def made(admin: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    answer = admin.post(path, json={"name": fresh("d"), **body})
    assert answer.status_code == 202, answer.text
    return answer.json()


def issues(answer: httpx.Response) -> dict[str, str]:
    assert answer.status_code == 400, answer.text
    return {issue["field"]: issue["details"] for issue in answer.json()["complianceIssues"]}


def test_a_department_is_made_read_listed_changed_and_deleted(admin: httpx.Client) -> None:
    department = made(admin, DEPARTMENTS, nodePools=["default"])
    one = f"{DEPARTMENTS}/{department['id']}"
    shown = admin.get(one).json()
    assert (shown["name"], shown["nodePools"], shown["isDefault"]) == (department["name"], ["default"], False)
    assert admin.put(one, json={"nodeTypes": ["dgx"]}).status_code == 202
    assert (admin.get(one).json()["nodePools"], admin.get(one).json()["nodeTypes"]) == ([], ["dgx"])
    for query in ({"search": department["name"].upper()}, {"name": department["name"]}):  # S013
        listed = admin.get(DEPARTMENTS, params=query).json()
        assert [d["id"] for d in listed["departments"]] == [department["id"]]
    assert admin.delete(one).status_code == 202
    assert admin.get(one).status_code == 404
    assert made(admin, DEPARTMENTS, name=department["name"])["id"] != department["id"], "the name is free"


def test_a_list_of_departments_and_of_their_projects_has_pages(admin: httpx.Client) -> None:
    word = fresh("page")
    names = [made(admin, DEPARTMENTS, name=f"{word}-{number}")["name"] for number in range(3)]
    first = admin.get(DEPARTMENTS, params={"search": word, "limit": 2}).json()
    rest = admin.get(DEPARTMENTS, params={"search": word, "limit": 2, "offset": first["next"]}).json()
    assert [d["name"] for d in first["departments"] + rest["departments"]] == names
    assert (first["next"], rest["next"]) == (2, None)
    inside = made(admin, DEPARTMENTS)["id"]
    ids = [made(admin, PROJECTS, departmentId=inside)["id"] for _ in range(3)]
    page = admin.get(PROJECTS, params={"departmentId": inside, "limit": 2}).json()
    more = admin.get(PROJECTS, params={"departmentId": inside, "limit": 2, "offset": page["next"]}).json()
    assert {p["id"] for p in page["projects"] + more["projects"]} == set(ids)
    assert (page["next"], more["next"]) == (2, None)


def test_a_taken_name_is_answered_with_one_that_is_free(admin: httpx.Client, served: Served) -> None:
    name = fresh("taken")
    for path in (DEPARTMENTS, PROJECTS):
        for given in (name, f"{name}-2"):
            made(admin, path, name=given)
        assert f"such as '{name}-3'" in issues(admin.post(path, json={"name": name}))["name"]
    nodes = [{"count": 1, "cpuCores": 1, "memoryBytes": 1}]
    cluster = {"name": name, "kind": "simulated", "simulatedNodes": nodes}
    assert admin.post(f"{V1}/clusters", json=cluster).status_code == 202
    assert f"such as '{name}-2'" in issues(admin.post(f"{V1}/clusters", json=cluster))["name"]
    assert "'default-2'" in issues(admin.post(DEPARTMENTS, json={"name": "default"}))["name"]


def test_every_project_stands_in_one_department_and_can_be_moved(admin: httpx.Client, served: Served) -> None:
    before = admin.get(f"{PROJECTS}/{served.project}").json()
    assert (before["departmentId"], before["departmentName"]) == (DEFAULT_DEPARTMENT_ID, "default")
    department = made(admin, DEPARTMENTS)
    project = made(admin, PROJECTS, departmentId=department["id"])
    one = f"{PROJECTS}/{project['id']}"
    assert admin.get(one).json()["departmentName"] == department["name"]
    assert admin.get(f"{DEPARTMENTS}/{department['id']}").json()["projects"] == 1
    refused = admin.delete(f"{DEPARTMENTS}/{department['id']}")
    assert (refused.status_code, refused.json()["details"]) == (409, "department_not_empty")
    assert project["name"] in refused.json()["message"]
    assert admin.put(one, json={"gpuQuota": 3}).status_code == 202
    assert admin.get(one).json()["departmentId"] == department["id"], "settings alone move nothing"
    moment = admin.get(one).headers["X-Log-Sequence"]
    assert admin.put(one, json={"gpuQuota": 3, "departmentId": DEFAULT_DEPARTMENT_ID}).status_code == 202
    assert admin.get(one).json()["departmentName"] == "default"
    assert admin.get(one, params={"as_of": moment}).json()["departmentId"] == department["id"]
    then = admin.get(f"{DEPARTMENTS}/{department['id']}", params={"as_of": moment}).json()
    assert then["projects"] == 1
    assert admin.delete(f"{DEPARTMENTS}/{department['id']}").status_code == 202
    told = issues(admin.put(one, json={"departmentId": department["id"]}))
    assert "there is no department" in told["departmentId"]


def test_the_default_department_has_settings_and_stays(admin: httpx.Client) -> None:
    one = f"{DEPARTMENTS}/{DEFAULT_DEPARTMENT_ID}"
    assert admin.get(one).json()["isDefault"] is True
    assert admin.put(one, json={"nodePools": ["default"]}).status_code == 202
    try:
        assert admin.get(one).json()["nodePools"] == ["default"]
    finally:
        assert admin.put(one, json={}).status_code == 202
    refused = admin.delete(one)
    assert (refused.status_code, refused.json()["details"]) == (409, "default_department")
    listed = admin.get(DEPARTMENTS, params={"name": "default"}).json()["departments"]
    assert [d["isDefault"] for d in listed] == [True]


def test_who_reads_a_project_reads_its_department_and_only_administrators_change_one(
    admin: httpx.Client, served: Served
) -> None:
    hidden = made(admin, DEPARTMENTS)
    made(admin, PROJECTS, departmentId=hidden["id"])
    with served.client("alice") as alice:
        assert [d["name"] for d in alice.get(DEPARTMENTS).json()["departments"]] == ["default"]
        assert alice.get(f"{DEPARTMENTS}/{hidden['id']}").status_code == 404
        assert alice.get(f"{DEPARTMENTS}/{DEFAULT_DEPARTMENT_ID}").status_code == 200
        assert alice.post(DEPARTMENTS, json={"name": fresh("d")}).status_code == 403
        assert alice.put(f"{DEPARTMENTS}/{DEFAULT_DEPARTMENT_ID}", json={}).status_code == 403
        assert alice.delete(f"{DEPARTMENTS}/{hidden['id']}").status_code == 403


def test_the_workloads_table_has_a_column_for_the_department_and_a_filter(admin: httpx.Client, served: Served) -> None:
    """S076."""
    department = made(admin, DEPARTMENTS)
    project = made(admin, PROJECTS, departmentId=department["id"])
    sent = admin.post(f"{V1}/workloads/trainings", json=served.training() | {"projectId": project["id"]})
    assert sent.status_code == 202, sent.text
    row = admin.get(f"{V1}/workloads/{sent.json()['workloadId']}").json()
    assert (row["departmentId"], row["departmentName"]) == (department["id"], department["name"])
    for query in (f"departmentId=={department['id']}", f"departmentName=={department['name']}"):
        rows: list[dict[str, Any]] = []
        for _ in range(1_000):
            rows = admin.get(f"{V1}/workloads", params={"filterBy": query, "sortBy": "departmentName"}).json()[
                "workloads"
            ]
            if rows:
                break
            time.sleep(0.05)
        assert [each["id"] for each in rows] == [sent.json()["workloadId"]]
        assert rows[0]["departmentName"] == department["name"]


def test_where_node_types_are_set_a_workload_must_name_one_of_them(admin: httpx.Client, served: Served) -> None:
    """S040: of the project, and of its department."""
    department = made(admin, DEPARTMENTS, nodeTypes=["dgx", "hgx"])
    project = made(admin, PROJECTS, departmentId=department["id"], nodeTypes=["dgx"])

    def submit(**spec: Any) -> httpx.Response:
        body = served.training()
        return admin.post(
            f"{V1}/workloads/trainings", json=body | {"projectId": project["id"], "spec": body["spec"] | spec}
        )

    assert "is required in department" in issues(submit())["spec.nodeType"]
    assert "possible are dgx" in issues(submit(nodeType="hgx"))["spec.nodeType"]
    assert submit(nodeType="dgx").status_code == 202
    assert admin.put(f"{PROJECTS}/{project['id']}", json={"nodeTypes": []}).status_code == 202
    assert "in department" in issues(submit(nodeType="cpu"))["spec.nodeType"]
    assert submit(nodeType="hgx").status_code == 202


def test_settings_that_cannot_be_are_refused_by_name(admin: httpx.Client) -> None:
    body = {"name": " odd", "nodePools": ["nope", "nope"], "nodeTypes": ["a", "a", ""]}
    for path in (DEPARTMENTS, PROJECTS):
        assert issues(admin.post(path, json=body)).keys() == {
            "name",
            "nodePools[0]",
            "nodePools[1]",
            "nodeTypes[1]",
            "nodeTypes[2]",
        }


def eventually(admin: httpx.Client, path: str, params: dict[str, Any], key: str, wanted: set[str]) -> None:
    found: set[str] = set()
    for _ in range(1_000):
        found = {row["meta"]["id"] for row in admin.get(path, params=params).json()[key]}
        if found == wanted:
            return
        time.sleep(0.05)
    assert found == wanted


def test_a_policy_of_a_department_holds_in_its_projects_between_the_tenant_s_and_theirs(
    admin: httpx.Client, served: Served
) -> None:
    department = made(admin, DEPARTMENTS)
    project = made(admin, PROJECTS, departmentId=department["id"])["id"]
    policies = f"{V1}/policies/trainings"
    where = {"scope": "department", "departmentId": department["id"]}
    own = {"defaults": {"category": "research", "priorityClass": "medium"}, "rules": {"parallelism": {"max": 2}}}
    assert admin.put(policies, params=where, json=own).status_code == 202
    narrow = {"defaults": {"category": "vision"}, "rules": {"completions": {"max": 3}}}
    assert admin.put(policies, params={"scope": "project", "projectId": project}, json=narrow).status_code == 202

    def submit(place: str, **spec: Any) -> httpx.Response:
        body = served.training()
        return admin.post(f"{V1}/workloads/trainings", json=body | {"projectId": place, "spec": body["spec"] | spec})

    sent = submit(project)
    assert sent.status_code == 202, sent.text
    one = f"{V1}/workloads/trainings/{sent.json()['workloadId']}"
    told = admin.get(one, params={"explain": True}).json()
    assert (told["spec"]["category"], told["spec"]["priorityClass"]) == ("vision", "medium")
    assert told["setBy"]["spec.category"] == "project policy"
    assert told["setBy"]["spec.priorityClass"] == "department policy"
    broken = issues(submit(project, parallelism=4, completions=4))
    assert "the department's policy" in broken["spec.parallelism"]
    assert "the project's policy" in broken["spec.completions"]
    assert submit(served.project, parallelism=4, completions=4).status_code == 202, "another department"
    assert admin.get(policies, params=where).json()["meta"]["departmentId"] == department["id"]
    rehearsed = admin.post(f"{policies}:rehearse", params=where, json={"rules": {"image": {"options": ["other"]}}})
    assert rehearsed.status_code == 200, rehearsed.text
    admin.put(f"{PROJECTS}/{project}", json={"departmentId": DEFAULT_DEPARTMENT_ID})
    moved = submit(project, parallelism=3, completions=3)
    assert moved.status_code == 202, "where it stands now, the policy does not hold"
    assert admin.delete(policies, params=where).status_code == 202
    assert admin.get(policies, params=where).status_code == 404
    with served.client("alice") as alice:
        assert alice.put(policies, params=where, json=own).status_code == 403
        assert alice.get(policies, params=where).status_code == 404
    assert "departmentId" in issues(admin.get(policies, params={"scope": "department"}))
    assert "departmentId" in issues(admin.get(policies, params={"scope": "tenant", "departmentId": department["id"]}))


def test_an_asset_of_a_department_is_for_the_projects_that_stand_in_it(admin: httpx.Client, served: Served) -> None:
    department = made(admin, DEPARTMENTS)
    project = made(admin, PROJECTS, departmentId=department["id"])["id"]
    path, name = f"{V1}/asset/environment", fresh("env")
    meta = {"name": name, "scope": "department", "departmentId": department["id"]}
    body = {"meta": meta, "spec": {"image": "python:3.13"}}
    answer = admin.post(path, json=body)
    assert answer.status_code == 202, answer.text
    asset = answer.json()["meta"]
    assert asset["departmentId"] == department["id"]
    eventually(admin, path, {"name": name, "projectId": project}, "environments", {asset["id"]})
    eventually(admin, path, {"name": name, "departmentId": department["id"]}, "environments", {asset["id"]})
    eventually(admin, path, {"name": name, "projectId": served.project}, "environments", set())
    chosen = {"assets": {"environmentId": asset["id"]}}
    training = served.training() | chosen
    assert admin.post(f"{V1}/workloads/trainings", json=training | {"projectId": project}).status_code == 202
    other = issues(admin.post(f"{V1}/workloads/trainings", json=training))
    assert "is of another department" in other["assets.environmentId"]
    with served.client("alice") as alice:
        eventually(alice, path, {"name": name}, "environments", set())
        assert alice.get(f"{path}/{asset['id']}").status_code == 404
        assert alice.post(path, json=body).status_code == 403
    wrong = issues(admin.post(path, json={"meta": {"name": name, "scope": "department"}, "spec": {}}))
    assert "is given where scope is department" in wrong["meta.departmentId"]
    changed = admin.put(f"{path}/{asset['id']}", json={"spec": {"image": "python:3.14"}})
    assert changed.status_code == 202, changed.text
    assert admin.delete(f"{path}/{asset['id']}").status_code == 202


def test_a_node_pool_is_made_once_read_changed_and_kept_while_a_department_names_it(
    admin: httpx.Client, served: Served
) -> None:
    """S039."""
    pool = {"clusterId": served.cluster, "name": fresh("fast"), "labelKey": "gpu", "labelValue": "h100"}
    one = f"{V1}/node-pools/{served.cluster}/{pool['name']}"
    assert admin.get(one).status_code == 404
    assert admin.post(f"{V1}/node-pools", json=pool).status_code == 202
    assert admin.post(f"{V1}/node-pools", json=pool).status_code == 202, "it is so already"
    assert admin.get(one).json()["labelValue"] == "h100"
    other = issues(admin.post(f"{V1}/node-pools", json=pool | {"labelValue": "a100"}))
    assert f"such as '{pool['name']}-2'" in other["name"]
    label = {"labelKey": "gpu", "labelValue": "a100"}
    assert admin.put(one, json=label).status_code == 202
    assert admin.get(one).json()["labelValue"] == "a100"
    assert "default is the pool" in issues(admin.put(f"{V1}/node-pools/{served.cluster}/default", json=label))["name"]
    assert "name" in issues(admin.put(f"{V1}/node-pools/{served.cluster}/-odd-", json=label))
    department = made(admin, DEPARTMENTS, nodePools=[pool["name"]])
    used = admin.delete(one)
    assert (used.status_code, used.json()["details"]) == (409, "node_pool_in_use")
    assert f"department {department['name']} names" in used.json()["message"]
    assert admin.put(f"{DEPARTMENTS}/{department['id']}", json={}).status_code == 202
    assert admin.delete(one).status_code == 202
    with served.client("alice") as alice:
        assert alice.get(f"{V1}/node-pools/{served.cluster}/default").json()["labelKey"] is None
        assert alice.put(one, json=label).status_code == 403


def test_quotas_and_limits_of_a_department_and_a_project_are_kept_and_what_cannot_be_is_refused_by_name(
    admin: httpx.Client,
) -> None:
    quotas = [{"nodePool": "default", "gpuQuota": 2, "gpuLimit": 4.5, "overQuotaWeight": None}]
    settings = {"gpuQuota": 3, "gpuLimit": 6, "nodePoolQuotas": quotas}
    for path in (DEPARTMENTS, PROJECTS):
        one = f"{path}/{made(admin, path, **settings)['id']}"
        found = admin.get(one).json()
        assert (found["gpuQuota"], found["gpuLimit"], found["nodePoolQuotas"]) == (3, 6, quotas)
        assert admin.put(one, json={"gpuLimit": 7}).status_code == 202
        found = admin.get(one).json()
        assert (found["gpuQuota"], found["gpuLimit"], found["nodePoolQuotas"]) == (None, 7, [])
        odd = [{"nodePool": "default", "gpuQuota": 5, "gpuLimit": 4}, {"nodePool": "default"}, {"nodePool": "nope"}]
        wrong = issues(admin.put(one, json={"gpuQuota": 2, "gpuLimit": 1, "nodePoolQuotas": odd}))
        assert wrong.keys() == {
            "gpuQuota",
            "nodePoolQuotas[0].gpuQuota",
            "nodePoolQuotas[1].nodePool",
            "nodePoolQuotas[2].nodePool",
        }
        weights = {"overQuotaWeight": 2, "nodePoolQuotas": [{"nodePool": "default", "overQuotaWeight": 0.5}]}
        assert admin.put(one, json=weights).status_code == 202
        found = admin.get(one).json()
        assert (found["overQuotaWeight"], found["nodePoolQuotas"][0]["overQuotaWeight"]) == (2, 0.5)
        assert admin.put(one, json={"minimumRuntimeSeconds": 600}).status_code == 202
        assert admin.get(one).json()["minimumRuntimeSeconds"] == 600
        assert admin.get(one).json()["clusterLostSeconds"] is None
        assert admin.put(one, json={"clusterLostSeconds": 1800}).status_code == 202
        assert admin.get(one).json()["clusterLostSeconds"] == 1800
        odd = {
            "clusterLostSeconds": 604801,
            "minimumRuntimeSeconds": 604801,
            "overQuotaWeight": -1,
            "nodePoolQuotas": [{"nodePool": "default", "overQuotaWeight": 1001}],
        }
        refused = issues(admin.put(one, json=odd))
        own = {"clusterLostSeconds", "minimumRuntimeSeconds", "overQuotaWeight"}
        assert refused.keys() == {*own, "nodePoolQuotas[0].overQuotaWeight"}


def test_the_kinds_of_workloads_are_told_with_the_priority_that_policies_give_them(
    admin: httpx.Client, served: Served
) -> None:
    """S045: per kind, of the tenant, of a department and of a project."""

    def told(**query: Any) -> dict[str, tuple[str, str]]:
        kinds = admin.get(f"{V1}/workload-types", params=query).json()["workloadTypes"]
        return {kind["name"]: (kind["priorityClass"], kind["preemptibility"]) for kind in kinds}

    department = made(admin, DEPARTMENTS)
    project = made(admin, PROJECTS, departmentId=department["id"])["id"]
    where = {"scope": "department", "departmentId": department["id"]}
    high = {"defaults": {"priorityClass": "very-high"}}
    assert admin.put(f"{V1}/policies/trainings", params=where, json=high).status_code == 202
    soft = {"defaults": {"preemptibility": "preemptible"}}
    own = {"scope": "project", "projectId": project}
    assert admin.put(f"{V1}/policies/workspaces", params=own, json=soft).status_code == 202
    assert told()["Training"] == ("low", "preemptible")
    assert told(projectId=project) == told() | {
        "Training": ("very-high", "non-preemptible"),
        "Workspace": ("high", "preemptible"),
    }
    sent = admin.post(f"{V1}/workloads/trainings", json=served.training() | {"projectId": project})
    assert sent.json()["spec"]["priorityClass"] == "very-high", sent.text
    with served.client("alice") as alice:
        assert alice.get(f"{V1}/workload-types", params={"projectId": project}).status_code == 404
