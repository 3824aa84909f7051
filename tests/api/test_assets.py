"""Environments, compute resources and templates over HTTP, and workloads that are made from them.

Requirement rows: S009, S013, S015, S034, R7, R22, R39.
"""

import secrets
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.api import Served

V1 = "/api/v1"
ENVIRONMENTS, COMPUTE, TEMPLATES = f"{V1}/asset/environment", f"{V1}/asset/compute", f"{V1}/workload-templates"
TRAININGS, WORKSPACES, DISTRIBUTED = (f"{V1}/workloads/{kind}" for kind in ("trainings", "workspaces", "distributed"))
INFERENCES = f"{V1}/workloads/inferences"
NEVER = "00000000-0000-8000-8000-000000000000"


@pytest.fixture(scope="module")
def admin(served: Served) -> Iterator[httpx.Client]:
    with served.client() as client:
        yield client


@pytest.fixture
def alice(served: Served) -> Iterator[httpx.Client]:
    with served.client("alice") as client:
        yield client


def fresh(word: str = "a") -> str:
    return f"{word}-{secrets.token_hex(4)}"


def made(client: httpx.Client, path: str, spec: dict[str, Any], **meta: Any) -> dict[str, Any]:
    body = {"meta": {"name": fresh(), "scope": "tenant", **meta}, "spec": spec}
    if path == TEMPLATES:
        body["meta"].setdefault("workloadType", "Training")
    answer = client.post(path, json=body)
    assert answer.status_code == 202, answer.text
    return answer.json()


def id_of(asset: dict[str, Any]) -> str:
    return asset["meta"]["id"]


def issues(answer: httpx.Response) -> dict[str, str]:
    assert answer.status_code == 400, answer.text
    return {issue["field"]: issue["details"] for issue in answer.json()["complianceIssues"]}


def request(served: Served, spec: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Of a workload that says no more than that."""
    body = served.training(**more)
    return body | {"spec": spec or {}}


# -- the assets themselves -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "spec"),
    [
        (ENVIRONMENTS, {"image": "i", "command": None, "environmentVariables": [{"name": "A", "value": "1"}]}),
        (COMPUTE, {"compute": {"cpuCoreRequest": 1, "gpuRequestType": "portion"}, "nodeType": "big"}),
        (TEMPLATES, {"priorityClass": "high", "labels": [{"name": "a", "value": "b"}], "completions": None}),
    ],
)
def test_an_asset_is_made_read_changed_and_deleted(admin: httpx.Client, path: str, spec: dict[str, Any]) -> None:
    asset = made(admin, path, spec)
    one = f"{path}/{id_of(asset)}"
    read = admin.get(one)
    assert read.json() == asset
    assert (asset["spec"], asset["meta"]["createdBy"], asset["meta"]["changedAt"]) == (spec, "admin", None)
    before = read.headers["x-version"]
    changed = admin.put(one, json={"spec": {}}, headers={"If-Match": before})
    assert changed.status_code == 202, changed.text
    assert (changed.json()["spec"], changed.json()["meta"]["changedAt"] is not None) == ({}, True)
    assert admin.get(one).json() == changed.json()
    assert admin.get(one, params={"as_of": before}).json()["spec"] == spec
    assert admin.put(one, json={"spec": spec}, headers={"If-Match": before}).status_code == 412
    assert admin.delete(one).status_code == 202
    assert admin.get(one).status_code == 404
    assert admin.delete(one).status_code == 404
    assert admin.get(one, params={"as_of": before}).json()["spec"] == spec
    other = next(p for p in (ENVIRONMENTS, COMPUTE) if p != path)
    assert admin.get(f"{other}/{id_of(asset)}").status_code == 404, "an id is of its kind"


def test_a_taken_name_is_refused_with_one_that_is_free(admin: httpx.Client, served: Served) -> None:
    name = fresh()
    made(admin, COMPUTE, {}, name=name)
    made(admin, COMPUTE, {}, name=f"{name}-2")
    body = {"meta": {"name": name, "scope": "tenant"}, "spec": {}}
    assert f"{name}-3" in issues(admin.post(COMPUTE, json=body))["meta.name"]
    made(admin, COMPUTE, {}, name=name, scope="project", projectId=served.project)
    made(admin, COMPUTE, {}, name=name, scope="cluster", clusterId=served.cluster)
    made(admin, ENVIRONMENTS, {}, name=name)


@pytest.mark.parametrize(
    ("meta", "spec", "fields"),
    [
        ({"scope": "department"}, {}, {"meta.departmentId"}),
        ({"scope": "department", "departmentId": NEVER}, {}, {"meta.departmentId"}),
        ({"departmentId": NEVER}, {}, {"meta.departmentId"}),
        ({"scope": "project"}, {}, {"meta.projectId"}),
        ({"scope": "project", "projectId": NEVER}, {}, {"meta.projectId"}),
        ({"scope": "cluster", "clusterId": NEVER}, {}, {"meta.clusterId"}),
        ({"projectId": NEVER}, {}, {"meta.projectId"}),
        ({"name": " x"}, {}, {"meta.name"}),
        ({"name": ""}, {}, {"meta.name"}),
        ({}, {"priorityClass": "high"}, {"spec.priorityClass"}),
        ({}, {"code": "0" * 64}, {"spec.code"}),
        ({}, {"image": 5, "tty": "x"}, {"spec.image", "spec.tty"}),
        ({}, {"image": "a b"}, {"spec.image"}),
        ({}, {"environmentVariables": [{"name": "A"}, {"name": "A"}]}, {"spec.environmentVariables[1].name"}),
        ({}, {"workloadTypes": ["Nonsense"]}, {"spec.workloadTypes[0]"}),
        ({}, {"overrideUidGidInWorkspace": True}, {"spec.overrideUidGidInWorkspace"}),
        ({}, {"security": {"runAsUid": 5, "uidGidSource": "fromTheImage"}}, {"spec.security.runAsUid"}),
        ({"scope": "department"}, {"image": "a b"}, {"meta.departmentId", "spec.image"}),
    ],
)
def test_all_that_is_wrong_with_an_environment_is_told_at_once(
    admin: httpx.Client, meta: dict[str, Any], spec: dict[str, Any], fields: set[str]
) -> None:
    body = {"meta": {"name": fresh(), "scope": "tenant", **meta}, "spec": spec}
    assert issues(admin.post(ENVIRONMENTS, json=body)).keys() == fields


@pytest.mark.parametrize(
    ("workload_type", "spec", "fields"),
    [
        ("Workspace", {"completions": 2}, {"spec.completions"}),
        ("Training", {"completions": 2, "parallelism": 3}, {"spec.parallelism"}),
        ("Training", {"parallelism": 3}, set()),  # how many completions there are, the whole says
        ("Distributed", {"numWorkers": 0}, {"spec.numWorkers"}),
        ("Nonsense", {}, {"meta.workloadType"}),
        ("Training", {"assets": {"environmentId": NEVER}}, {"spec.assets.environmentId"}),
        ("Training", {"assets": {"datasourceIds": ["x"]}}, {"spec.assets.datasourceIds[0]"}),
    ],
)
def test_a_template_has_the_fields_of_its_kind(
    admin: httpx.Client, workload_type: str, spec: dict[str, Any], fields: set[str]
) -> None:
    body = {"meta": {"name": fresh(), "scope": "tenant", "workloadType": workload_type}, "spec": spec}
    answer = admin.post(TEMPLATES, json=body)
    assert (issues(answer).keys() if fields else answer.status_code) == (fields or 202), answer.text


def test_name_and_scope_stay_as_they_are(admin: httpx.Client, served: Served) -> None:
    asset = made(admin, ENVIRONMENTS, {})
    one = f"{ENVIRONMENTS}/{id_of(asset)}"
    own = {name: asset["meta"][name] for name in ("name", "scope")}
    assert admin.put(one, json={"meta": own, "spec": {}}).status_code == 202
    other = {"name": "other", "scope": "project", "projectId": served.project}
    assert issues(admin.put(one, json={"meta": other, "spec": {}})).keys() == {
        "meta.name",
        "meta.scope",
        "meta.projectId",
    }


def test_lists_are_searched_filtered_and_paged(admin: httpx.Client, alice: httpx.Client, served: Served) -> None:
    word = secrets.token_hex(4)
    tenant = [made(admin, ENVIRONMENTS, {}, name=f"{word}-{n}") for n in range(3)]
    ours = made(admin, ENVIRONMENTS, {}, name=f"{word}-p", scope="project", projectId=served.project)
    hidden = made(admin, ENVIRONMENTS, {}, name=f"{word}-o", scope="project", projectId=served.made["other"])
    gone = made(admin, ENVIRONMENTS, {}, name=f"{word}-g")
    last = admin.delete(f"{ENVIRONMENTS}/{id_of(gone)}").headers["x-log-sequence"]

    def listed(client: httpx.Client, **query: Any) -> list[str]:
        answer = client.get(ENVIRONMENTS, params={"search": word.upper(), "min_seq": last, **query})
        assert answer.status_code == 200, answer.text
        return [id_of(one) for one in answer.json()["environments"]]

    everybodys = [id_of(one) for one in tenant]
    assert listed(alice) == [*everybodys, id_of(ours)]
    assert listed(admin) == [*everybodys, id_of(hidden), id_of(ours)]
    assert listed(admin, projectId=served.project) == [*everybodys, id_of(ours)]
    assert listed(admin, scope="project") == [id_of(hidden), id_of(ours)]
    assert listed(admin, name=f"{word}-1") == [everybodys[1]]
    assert listed(admin, limit=2) == everybodys[:2]
    assert listed(admin, limit=2, offset=2) == [everybodys[2], id_of(hidden)]
    before = admin.get(f"{ENVIRONMENTS}/{id_of(tenant[2])}").headers["x-version"]
    answer = admin.get(ENVIRONMENTS, params={"search": word, "as_of": before})
    assert [id_of(one) for one in answer.json()["environments"]] == everybodys


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("Training", ["any", "training"]), ("Workspace", ["any", "workspace"]), ("Distributed", ["any"])],
)
@pytest.mark.parametrize("path", [ENVIRONMENTS, TEMPLATES])
def test_s015_a_kind_is_offered_what_is_for_it(admin: httpx.Client, path: str, kind: str, expected: list[str]) -> None:
    word = secrets.token_hex(4)
    if path == TEMPLATES:
        expected = [name for name in expected if name != "any"]
        for of in ("Training", "Workspace"):
            last = made(admin, path, {}, name=f"{word}-{of.lower()}", workloadType=of)
    else:
        made(admin, path, {}, name=f"{word}-any")
        made(admin, path, {"workloadTypes": ["Training"]}, name=f"{word}-training")
        last = made(admin, path, {"workloadTypes": ["Workspace", "Inference"]}, name=f"{word}-workspace")
    seen = admin.get(f"{path}/{id_of(last)}").headers["x-version"]
    answer = admin.get(path, params={"search": word, "workloadType": kind, "min_seq": seen})
    assert answer.status_code == 200, answer.text
    (found,) = (value for value in answer.json().values() if isinstance(value, list))
    assert [one["meta"]["name"] for one in found] == [f"{word}-{name}" for name in expected]


def test_of_two_writers_one_gets_the_name_and_one_version(admin: httpx.Client, served: Served) -> None:
    body = {"meta": {"name": fresh(), "scope": "tenant"}, "spec": {}}
    answers: list[int] = []

    def write() -> None:
        with served.client() as client:
            answers.append(client.post(COMPUTE, json=body).status_code)

    writers = [threading.Thread(target=write) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert sorted(answers) == [202, 400, 400, 400]


def test_a_repeated_request_makes_one_asset(admin: httpx.Client) -> None:
    body = {"meta": {"name": fresh(), "scope": "tenant"}, "spec": {"image": "i"}}
    key = {"Idempotency-Key": secrets.token_hex(8)}
    first, second = (admin.post(ENVIRONMENTS, json=body, headers=key) for _ in range(2))
    assert (first.status_code, second.status_code) == (202, 202)
    assert first.json() == second.json()
    one = f"{ENVIRONMENTS}/{id_of(first.json())}"
    gone = {"Idempotency-Key": secrets.token_hex(8)}
    assert [admin.delete(one, headers=gone).status_code for _ in range(2)] == [202, 202]


def test_what_happened_to_an_asset_is_in_the_log_the_audit_and_the_difference(
    admin: httpx.Client, alice: httpx.Client, served: Served
) -> None:
    name = fresh()
    hidden = made(admin, TEMPLATES, {}, scope="project", projectId=served.made["other"])
    asset = made(admin, TEMPLATES, {"image": "i"}, name=name)
    one = admin.get(f"{TEMPLATES}/{id_of(asset)}")
    start = int(one.headers["x-version"]) - 1
    admin.delete(f"{TEMPLATES}/{id_of(asset)}")
    (record,) = admin.get(f"{V1}/audit", params={"limit": 1}).json()["records"]
    assert (record["command"], record["target"]) == ("DeleteAsset", id_of(asset))
    told = [one for one in alice.get(f"{V1}/diff", params={"from": start}).json()["events"] if one["about"] == "asset"]
    assert [(one["name"], one["type"]) for one in told] == [(name, "AssetCreated"), (name, "AssetDeleted")]
    newest = {"order": "desc", "limit": 1, "type": "AssetCreated"}
    commits = admin.get(f"{V1}/events", params=newest).json()["events"]
    assert commits[0]["events"][0]["data"]["spec"] == {"image": "i"}
    assert id_of(hidden) not in alice.get(f"{V1}/diff", params={"from": start - 1}).text


# -- what is made from them ------------------------------------------------------------------------------------------


def test_the_example_of_the_docs_holds(admin: httpx.Client, served: Served) -> None:
    import yaml

    page = (Path(__file__).parents[2] / "docs/concepts/assets.md").read_text()
    told = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])
    word = secrets.token_hex(4)
    environment = made(admin, ENVIRONMENTS, told["environment"], name=f"python {word}")
    compute = made(admin, COMPUTE, told["compute"], name=f"small {word}")
    template = made(admin, TEMPLATES, told["template"], name=f"nightly {word}")
    assets = {"environmentId": id_of(environment), "computeId": id_of(compute)}
    body = request(served, told["request"], templateId=id_of(template), assets=assets)
    answer = admin.post(TRAININGS, json=body)
    assert answer.status_code == 202, answer.text
    read = admin.get(f"{TRAININGS}/{answer.json()['workloadId']}", params={"explain": "true"}).json()
    assert read["spec"] == answer.json()["spec"]
    for field, value in told["together"].items():
        held = read["spec"][field]
        assert (
            held | value if isinstance(value, dict) else [*map(_bare, held)] if isinstance(value, list) else held
        ) == (held if isinstance(value, dict) else value), field
    for field, who in told["setBy"].items():
        assert read["setBy"][field].removesuffix(f" {word}") == who, field


def _bare(item: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if value not in (None, False)}


def test_history_says_what_it_was_made_from_and_no_later_change_matters(admin: httpx.Client, served: Served) -> None:
    environment = made(admin, ENVIRONMENTS, {"image": "one"})
    template = made(admin, TEMPLATES, {"assets": {"environmentId": id_of(environment)}, "backoffLimit": 3})
    workload = admin.post(TRAININGS, json=request(served, templateId=id_of(template))).json()
    version = int(admin.get(f"{ENVIRONMENTS}/{id_of(environment)}").headers["x-version"])
    admin.put(f"{ENVIRONMENTS}/{id_of(environment)}", json={"spec": {"image": "two"}})
    admin.delete(f"{TEMPLATES}/{id_of(template)}")
    read = admin.get(f"{TRAININGS}/{workload['workloadId']}").json()
    assert (read["spec"]["image"], read["spec"]["backoffLimit"]) == ("one", 3)
    assert "setBy" not in read
    history = admin.get(f"{V1}/workloads/{workload['workloadId']}/history").json()["records"]
    made_from = history[0]["details"]["madeFrom"]
    assert made_from["environment"] == {
        "id": id_of(environment),
        "name": environment["meta"]["name"],
        "version": version,
    }
    assert made_from["setBy"] == {"environment": ["image"], "template": ["backoffLimit"]}


def test_a_repeated_request_is_answered_from_what_there_was(admin: httpx.Client, served: Served) -> None:
    environment = made(admin, ENVIRONMENTS, {"image": "one"})
    body = request(served, assets={"environmentId": id_of(environment)})
    key = {"Idempotency-Key": secrets.token_hex(8)}
    first = admin.post(TRAININGS, json=body, headers=key)
    admin.put(f"{ENVIRONMENTS}/{id_of(environment)}", json={"spec": {"image": "two"}})
    changed = admin.post(TRAININGS, json=body, headers=key)
    admin.delete(f"{ENVIRONMENTS}/{id_of(environment)}")
    gone = admin.post(TRAININGS, json=body, headers=key)
    assert first.status_code == 202, first.text
    assert first.json() == changed.json() == gone.json()


def test_a_change_of_the_workload_is_told_as_the_requests(admin: httpx.Client, served: Served) -> None:
    template = made(admin, TEMPLATES, {"image": "i", "priorityClass": "medium", "backoffLimit": 2})
    workload = admin.post(TRAININGS, json=request(served, templateId=id_of(template))).json()
    one = f"{V1}/workloads/{workload['workloadId']}"
    called = f"template {template['meta']['name']}"
    explained = admin.get(one, params={"explain": "true"}).json()["setBy"]
    assert (explained["spec.priorityClass"], explained["spec.backoffLimit"]) == (called, called)
    assert admin.patch(one, json={"priorityClass": "high"}).status_code == 202
    explained = admin.get(one, params={"explain": "true"}).json()["setBy"]
    assert (explained["spec.priorityClass"], explained["spec.backoffLimit"]) == ("request", called)


@pytest.mark.parametrize(
    ("path", "workload_type", "spec"),
    [
        (TRAININGS, "Training", {"completions": 2}),
        (WORKSPACES, "Workspace", {"allowOverQuota": True}),
        (DISTRIBUTED, "Distributed", {"distributedFramework": "JAX", "numWorkers": 3}),
        (INFERENCES, "Inference", {"nodePools": ["default"], "priorityClass": "low"}),
    ],
)
def test_every_kind_is_made_from_assets(
    admin: httpx.Client, served: Served, path: str, workload_type: str, spec: dict[str, Any]
) -> None:
    environment = made(admin, ENVIRONMENTS, {"image": "e", "workloadTypes": [workload_type]})
    template = made(admin, TEMPLATES, {**spec, "image": "t"}, workloadType=workload_type)
    own = {"servingPort": {"container": 8000}} if workload_type == "Inference" else {}
    body = request(served, own, templateId=id_of(template), assets={"environmentId": id_of(environment)})
    answer = admin.post(path, json=body)
    assert answer.status_code == 202, answer.text
    read = admin.get(f"{path}/{answer.json()['workloadId']}", params={"explain": "true"}).json()
    assert read["spec"] | spec | {"image": "e"} == read["spec"]
    called = f"template {template['meta']['name']}"
    assert {read["setBy"][f"spec.{field}"] for field in spec} == {called}


def test_unsuitable_assets_are_refused_by_name(admin: httpx.Client, alice: httpx.Client, served: Served) -> None:
    other = made(admin, ENVIRONMENTS, {"image": "i"}, scope="project", projectId=served.made["other"])
    cluster = admin.post(f"{V1}/clusters", json={"name": fresh("c"), "kind": "kubernetes"}).json()["id"]
    elsewhere = made(admin, COMPUTE, {}, scope="cluster", clusterId=cluster)
    gone = made(admin, COMPUTE, {})
    admin.delete(f"{COMPUTE}/{id_of(gone)}")
    workspaces = made(admin, ENVIRONMENTS, {"image": "i", "workloadTypes": ["Workspace"]})
    of_workspaces = made(admin, TEMPLATES, {"image": "i"}, workloadType="Workspace")
    for field, more, said in (
        ("assets.environmentId", {"assets": {"environmentId": id_of(other)}}, "of another project"),
        ("assets.computeId", {"assets": {"computeId": id_of(elsewhere)}}, "of another cluster"),
        ("assets.computeId", {"assets": {"computeId": id_of(gone)}}, "was deleted"),
        ("assets.environmentId", {"assets": {"environmentId": id_of(workspaces)}}, "is for Workspace"),
        ("templateId", {"templateId": id_of(of_workspaces)}, "is for Workspace"),
        ("templateId", {"templateId": NEVER}, "there is no template"),
        ("templateId", {"templateId": id_of(workspaces)}, "there is no template"),
        ("assets.computeId", {"assets": {"computeId": "nonsense"}}, "there is no compute resource"),
        ("assets.datasourceIds[0]", {"assets": {"datasourceIds": [NEVER]}}, "there is no data source"),
        ("templateId", {"templateId": 5}, "must be a text"),
    ):
        found = issues(admin.post(TRAININGS, json=request(served, {"image": "i"}, **more)))
        assert found.keys() == {field}, found
        assert said in found[field]
    hidden = issues(alice.post(TRAININGS, json=request(served, {"image": "i"}, assets={"environmentId": id_of(other)})))
    assert "there is no environment" in hidden["assets.environmentId"]


def test_what_an_asset_sets_is_told_with_the_asset_and_what_the_request_sets_at_its_place(
    admin: httpx.Client, served: Served
) -> None:
    template = made(admin, TEMPLATES, {"labels": [{"name": "a"}], "parallelism": 3, "nodePools": ["nowhere"]})
    labels = [None, {"name": "b", "value": "no value!"}]
    found = issues(admin.post(TRAININGS, json=request(served, {"labels": labels}, templateId=id_of(template))))
    name = template["meta"]["name"]
    assert found.keys() == {"spec.image", "spec.labels[1].value", "spec.parallelism", "spec.nodePools[0]"}
    assert f"(template {name} sets it)" in found["spec.parallelism"]
    assert f"(template {name} sets it)" in found["spec.nodePools[0]"]
    assert "sets it" not in found["spec.labels[1].value"]


def test_of_an_object_that_an_asset_alone_sets_the_asset_is_told(admin: httpx.Client, served: Served) -> None:
    """S023: a container's security, on a cluster that runs no images."""
    environment = made(admin, ENVIRONMENTS, {"image": "i", "security": {"runAsNonRoot": True}})
    told = f"(environment {environment['meta']['name']} sets it)"
    for own, expected in ({}, True), ({"security": {"readOnlyRootFilesystem": True}}, False):
        body = request(served, own, assets={"environmentId": id_of(environment)})
        found = issues(admin.post(TRAININGS, json=body))
        assert found.keys() == {"spec.security"}
        assert found["spec.security"].endswith(told) == expected, found


def test_an_image_comes_from_somewhere(admin: httpx.Client, served: Served) -> None:
    """R7."""
    template = made(admin, TEMPLATES, {"image": "t"})
    assert admin.post(TRAININGS, json=request(served, templateId=id_of(template))).status_code == 202
    for spec in ({"image": None}, {"image": ""}):
        found = issues(admin.post(TRAININGS, json=request(served, spec, templateId=id_of(template))))
        assert found.keys() == {"spec.image"}


@pytest.mark.parametrize(
    ("security", "override", "taken"),
    [
        ({"uidGidSource": "custom", "runAsUid": 1}, True, True),
        ({"uidGidSource": "custom", "runAsUid": 1}, None, False),
        (None, None, False),
    ],
)
def test_a_request_changes_users_only_where_the_environment_lets_it(
    admin: httpx.Client, served: Served, security: dict[str, Any] | None, override: bool | None, taken: bool
) -> None:
    """R22."""
    cluster = admin.post(f"{V1}/clusters", json={"name": fresh("k"), "kind": "kubernetes"}).json()["id"]
    spec = {"image": "i", "security": security, "overrideUidGidInWorkspace": override}
    environment = made(admin, ENVIRONMENTS, spec)
    own = {"security": {"runAsUid": 7} | ({} if security else {"uidGidSource": "custom"})}
    body = request(served, own, clusterId=cluster, assets={"environmentId": id_of(environment)})
    answer = admin.post(TRAININGS, json=body)
    if taken:
        assert answer.json()["spec"]["security"]["runAsUid"] == 7, answer.text
    else:
        assert issues(answer).keys() == {"spec.security.runAsUid"}


def test_null_takes_away_what_a_template_chooses(admin: httpx.Client, served: Served) -> None:
    environment = made(admin, ENVIRONMENTS, {"image": "e"})
    other = made(admin, ENVIRONMENTS, {"image": "o"})
    template = made(admin, TEMPLATES, {"assets": {"environmentId": id_of(environment)}})
    for assets, image in ((None, "e"), ({"environmentId": id_of(other)}, "o"), ({"environmentId": None}, None)):
        answer = admin.post(TRAININGS, json=request(served, templateId=id_of(template), assets=assets))
        if image is None:
            assert issues(answer).keys() == {"spec.image"}
        else:
            assert answer.json()["spec"]["image"] == image


def test_assets_of_a_deleted_project_are_gone(admin: httpx.Client) -> None:
    project = admin.post(f"{V1}/org-unit/projects", json={"name": fresh("p")}).json()["id"]
    asset = made(admin, COMPUTE, {}, scope="project", projectId=project)
    deadline = time.monotonic() + 60
    while (gone := admin.delete(f"{V1}/org-unit/projects/{project}")).status_code != 202:
        assert time.monotonic() < deadline
    assert admin.get(f"{COMPUTE}/{id_of(asset)}").status_code == 404
    listed = admin.get(COMPUTE, params={"name": asset["meta"]["name"], "min_seq": gone.headers["x-log-sequence"]})
    assert listed.json()["computeResources"] == []


def test_nulls_among_items_move_no_index(admin: httpx.Client) -> None:
    term = {"matchExpressions": [None, {"key": "zone", "operator": "In"}, None]}
    spec = {"nodeAffinityRequired": {"nodeSelectorTerms": [None, None, term]}}
    answer = admin.post(COMPUTE, json={"meta": {"name": fresh(), "scope": "tenant"}, "spec": spec})
    assert set(issues(answer)) == {"spec.nodeAffinityRequired.nodeSelectorTerms[2].matchExpressions[1].values"}
