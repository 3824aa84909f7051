"""Policies over HTTP, and what they make of workloads that are submitted and changed.

Requirement rows: S014, S083, C12, C20, R7, R37.
"""

import secrets
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import httpx
import pytest

from events.asset_specs import spec_node
from services.api.lent import lent
from services.api.merge import Layer, merged
from tests.support.api import Served

V1 = "/api/v1"
CREDENTIALS = f"{V1}/asset/credentials"
KINDS = ("trainings", "distributed", "workspaces", "inferences")
NEVER = "00000000-0000-8000-8000-000000000000"
type Json = dict[str, Any]
type Set = Callable[..., httpx.Response]


@pytest.fixture(scope="module")
def admin(served: Served) -> Iterator[httpx.Client]:
    with served.client() as client:
        yield client


@pytest.fixture
def alice(served: Served) -> Iterator[httpx.Client]:
    with served.client("alice") as client:
        yield client


@pytest.fixture
def policy(admin: httpx.Client) -> Iterator[Set]:
    """Sets a policy, of trainings in the tenant where nothing else is said; those that were set are gone afterwards."""
    there: list[tuple[str, Json]] = []

    def put(
        rules: Json | None = None, defaults: Json | None = None, *, kind: str = "trainings", project: str = ""
    ) -> httpx.Response:
        query = where(project)
        there.append((kind, query))
        body = {"defaults": defaults or {}, "rules": rules or {}}
        answer = admin.put(f"{V1}/policies/{kind}", params=query, json=body)
        assert answer.status_code == 202, answer.text
        return answer

    yield put
    for kind, query in there:
        admin.delete(f"{V1}/policies/{kind}", params=query)


def where(project: str = "") -> Json:
    return {"scope": "project", "projectId": project} if project else {"scope": "tenant"}


def issues(answer: httpx.Response) -> dict[str, tuple[str | None, str]]:
    assert answer.status_code == 400, answer.text
    return {one["field"]: (one.get("rule"), one["details"]) for one in answer.json()["complianceIssues"]}


def rules_of(answer: httpx.Response) -> dict[str, str | None]:
    return {field: rule for field, (rule, _) in issues(answer).items()}


def body(served: Served, spec: Json | None = None, **more: Any) -> Json:
    return served.training(**more) | {"spec": {"image": "i"} | (spec or {})}


def submit(client: httpx.Client, request: Json, kind: str = "trainings", **options: Any) -> httpx.Response:
    return client.post(f"{V1}/workloads/{kind}", json=request, **options)


# -- the policies themselves -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_one_lives_from_its_setting_to_its_deletion(admin: httpx.Client, served: Served, kind: str) -> None:
    path, query = f"{V1}/policies/{kind}", where(served.project)
    given = {"defaults": {"category": None, "priorityClass": "low"}, "rules": {"compute": {"blocked": True}}}
    assert admin.get(path, params=query).status_code == 404
    assert admin.delete(path, params=query).status_code == 404
    answer = admin.put(path, params=query, json=given)
    assert answer.status_code == 202, answer.text
    read = admin.get(path, params=query)
    assert read.json() == answer.json()
    found = read.json()
    assert {name: found[name] for name in given} == given, "it is kept with its nulls"
    meta = found["meta"]
    assert (meta["scope"], meta["projectId"], meta["setBy"]) == ("project", served.project, "admin")
    version = read.headers["x-version"]
    again = admin.put(path, params=query, json=given)
    assert again.json() == answer.json(), "what changes nothing is no change"
    assert admin.put(path, params=query, json={}).json()["rules"] == {}
    then = admin.get(path, params=query | {"as_of": version})
    assert then.status_code == 200, (then.text, then.headers, version)
    assert then.json()["rules"] == given["rules"]
    assert admin.delete(path, params=query).status_code == 202
    assert admin.get(path, params=query).status_code == 404
    assert admin.get(path, params=query | {"as_of": version}).status_code == 200


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({}, "scope"),
        ({"scope": "department"}, "departmentId"),
        ({"scope": "department", "departmentId": NEVER}, "departmentId"),
        ({"scope": "cluster"}, "scope"),
        ({"scope": "project"}, "projectId"),
        ({"scope": "tenant", "projectId": NEVER}, "projectId"),
        ({"scope": "project", "projectId": NEVER}, "projectId"),
    ],
)
def test_a_place_that_is_none_is_refused(admin: httpx.Client, query: Json, field: str) -> None:
    answer = admin.put(f"{V1}/policies/trainings", params=query, json={})
    assert field in issues(answer)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rules": {"image": {"min": 3}}}, {"rules.image.min": "no rule of a text"}),
        ({"rules": {"tty": {"options": [True]}}}, {"rules.tty.options": "no rule of a field that is true or false"}),
        ({"rules": {"compute": {"required": True}}}, {"rules.compute.required": "possible are blocked, locked"}),
        ({"rules": {"completions": {"max": "3"}}}, {"rules.completions.max": "whole number"}),
        ({"rules": {"completions": {"min": 3, "max": 2}}}, {"rules.completions.max": "at least min"}),
        ({"rules": {"completions": {"step": 0}}}, {"rules.completions.step": "at least 1"}),
        ({"rules": {"compute": {"cpuCoreRequest": {"step": 0}}}}, {"rules.compute.cpuCoreRequest.step": "more than 0"}),
        (
            {"rules": {"compute": {"cpuMemoryRequest": {"min": "1.2.3"}}}},
            {"rules.compute.cpuMemoryRequest.min": "must be a quantity"},
        ),
        (
            {"rules": {"compute": {"cpuMemoryRequest": {"max": "9" * 4000}}}},
            {"rules.compute.cpuMemoryRequest.max": "at most 63 characters, got 4000"},
        ),
        ({"rules": {"priorityClass": {"options": ["hig"]}}}, {"rules.priorityClass.options[0]": "very-low"}),
        ({"rules": {"priorityClass": {"options": ["low", "hig"]}}}, {"rules.priorityClass.options[1]": "very-low"}),
        (
            {"defaults": {"labels": [None, {"name": "a b"}, None]}},
            {"defaults.labels[1].name": "is no Kubernetes key"},
        ),
        ({"rules": {"category": {"options": []}}}, {"rules.category.options": "must not be empty"}),
        ({"rules": {"labels": {"lockedItems": ["a"]}}}, {"rules.labels.lockedItems[0]": "add it there"}),
        (
            {"rules": {"category": {"required": True, "blocked": True}}},
            {"rules.category.required": "contradicts blocked"},
        ),
        ({"rules": {"imag": {"required": True}}}, {"rules.imag": "did you mean 'image'"}),
        ({"defaults": {"imag": "x"}}, {"defaults.imag": "did you mean 'image'"}),
        ({"defaults": {"code": "0" * 64}}, {"defaults.code": "unknown"}),
        ({"defaults": {"image": "a b"}}, {"defaults.image": "space"}),
        ({"defaults": {"numWorkers": 2}}, {"defaults.numWorkers": "unknown"}),
        # a default that the rules beside it forbid
        (
            {"defaults": {"completions": 3}, "rules": {"completions": {"max": 2}}},
            {"defaults.completions": "must be at most 2"},
        ),
        ({"rule": {}}, {"rule": "did you mean 'rules'"}),
    ],
)
def test_what_does_not_fit_is_refused_by_name(admin: httpx.Client, given: Json, said: dict[str, str]) -> None:
    found = issues(admin.put(f"{V1}/policies/trainings", params=where(), json=given))
    assert found.keys() == said.keys()
    for field, words in said.items():
        assert words in found[field][1], found[field]


def test_a_default_that_the_tenant_forbids_is_refused(admin: httpx.Client, served: Served, policy: Set) -> None:
    policy({"completions": {"max": 2}, "category": {"canEdit": False}}, {"category": "x"})
    given = {"defaults": {"completions": 3, "category": "y"}}
    found = issues(admin.put(f"{V1}/policies/trainings", params=where(served.project), json=given))
    assert {field: rule for field, (rule, _) in found.items()} == {
        "defaults.completions": "max",
        "defaults.category": "canEdit",
    }
    assert "the tenant's policy" in found["defaults.completions"][1]


def test_one_that_is_too_large_is_refused(admin: httpx.Client) -> None:
    variables = [{"name": f"V{n}", "value": "x" * 9_000} for n in range(8)]
    answer = admin.put(
        f"{V1}/policies/trainings", params=where(), json={"defaults": {"environmentVariables": variables}}
    )
    assert "65,536" in issues(answer)["body"][1]


# -- and credentials -------------------------------------------------------------------------------------------------


@pytest.fixture
def credential(alice: httpx.Client, served: Served) -> Iterator[str]:
    """One of alice's."""
    meta = {"name": f"cred-{secrets.token_hex(4)}", "scope": "project", "projectId": served.project}
    answer = alice.post(CREDENTIALS, json={"meta": meta, "spec": {"kind": "generic-secret", "data": {"TOKEN": "x"}}})
    assert answer.status_code == 202, answer.text
    yield meta["name"]
    alice.delete(f"{CREDENTIALS}/{answer.json()['meta']['id']}")


def test_a_policy_names_no_credential_of_whoever_submits(admin: httpx.Client, served: Served) -> None:
    git = {"name": f"code-{secrets.token_hex(4)}", "scope": "project", "projectId": served.project}
    login = {"name": "git", "userCredential": True, "authenticationMethod": "password"}
    source = {"repository": "https://example.com/r.git", "path": "/code", "secretRef": login}
    answer = admin.post(f"{V1}/asset/datasource/git", json={"meta": git, "spec": source})
    assert answer.status_code == 202, answer.text
    variable = {"name": "T", "userCredential": {"name": "wandb", "key": "k"}}
    secret = {"name": "registry", "userCredential": True}
    for query in (where(), where(served.project)):
        refused = admin.put(
            f"{V1}/policies/trainings",
            params=query,
            json={"defaults": {"environmentVariables": [variable], "imagePullSecrets": [secret]}},
        )
        assert set(issues(refused)) == {
            "defaults.environmentVariables[0].userCredential",
            "defaults.imagePullSecrets[0].userCredential",
        }
    imposing = {"imposedAssets": [answer.json()["meta"]["id"]]}
    refused = admin.put(f"{V1}/policies/trainings", params=where(served.project), json=imposing)
    assert "credential of whoever submits" in issues(refused)["imposedAssets[0]"][1]


def test_what_a_project_s_policy_sets_to_run_finds_no_values_of_who_submits(
    served: Served, alice: httpx.Client, policy: Set, credential: str
) -> None:
    """Given a policy that could read values of everybody's who submits there."""
    tap = [{"name": "LD_PRELOAD", "value": "/tap.so"}]
    policy(defaults={"command": "tap", "environmentVariables": tap}, project=served.project)
    own = [{"name": "T", "userCredential": {"name": credential, "key": "TOKEN"}}]
    assert submit(alice, body(served)).status_code == 202, "without values it is a default as any other"
    told = issues(submit(alice, body(served, {"environmentVariables": own})))
    assert set(told) == {"spec.command", "spec.environmentVariables[0]"}
    assert "(project policy sets it)" in told["spec.command"][1]
    said = {"command": "mine", "environmentVariables": [*own, {"name": "LD_PRELOAD", "exclude": True}]}
    assert submit(alice, body(served, said)).status_code == 202
    policy(project=served.project)
    policy(defaults={"command": "python train.py"})
    assert submit(alice, body(served, {"environmentVariables": own})).status_code == 202, "the tenant's may"


def test_a_model_that_a_project_s_policy_sets_is_not_served_with_values_of_who_submits() -> None:
    """A model may bring code of its own."""
    layers = [
        Layer(source="project policy", name="", spec={"model": {"name": "somebody/model"}}),
        Layer(source="request", name="", spec={"model": {"credential": {"name": "mine"}}}),
    ]
    whole = merged(spec_node("Inference"), layers)
    found = lent(["spec.model.credential.name"], {"spec": whole, "masterSpec": None})
    assert [one.field for one in found] == ["spec.model.name"]


# -- what they make of a submission ----------------------------------------------------------------------------------


def test_defaults_come_below_all_else_and_are_explained(admin: httpx.Client, served: Served, policy: Set) -> None:
    label = {"name": "team", "value": "all"}
    policy(defaults={"image": "tenant", "category": "t", "labels": [label, {"name": "x", "value": "1"}]})
    policy(defaults={"category": "p", "backoffLimit": 2}, project=served.project)
    request = served.training() | {"spec": {"backoffLimit": None, "labels": [{"name": "x", "exclude": True}]}}
    answer = submit(admin, request)
    assert answer.status_code == 202, answer.text
    one = f"{V1}/workloads/trainings/{answer.json()['workloadId']}"
    read = admin.get(one, params={"explain": True}).json()
    spec = read["spec"]
    assert (spec["image"], spec["category"], spec["backoffLimit"]) == ("tenant", "p", 6)
    assert spec["labels"] == [label]
    assert {name: read["setBy"][f"spec.{name}"] for name in ("image", "category", "backoffLimit", "labels[0]")} == {
        "image": "tenant policy",
        "category": "project policy",
        "backoffLimit": "request",
        "labels[0]": "tenant policy",
    }
    admin.delete(f"{V1}/policies/trainings", params=where())
    assert admin.get(one, params={"explain": True}).json()["spec"] == spec, "a workload keeps what it was made with"
    assert "spec.image" in issues(submit(admin, request | {"name": f"n-{secrets.token_hex(4)}"}))


def test_all_that_breaks_a_rule_is_told_at_once(admin: httpx.Client, served: Served, policy: Set) -> None:
    policy(
        {
            "compute": {"gpuDevicesRequest": {"max": 2}, "cpuMemoryRequest": {"min": "1Gi"}},
            "priorityClass": {"options": ["low"]},
            "category": {"required": True},
            "tolerations": {"blocked": True},
            "environmentVariables": {"lockedItems": ["HF"], "canAdd": False},
        },
        {"environmentVariables": [{"name": "HF", "value": "1"}]},
    )
    policy({"completions": {"max": 1}}, project=served.project)
    spec = {
        "compute": {"gpuDevicesRequest": 3, "cpuMemoryRequest": "512Mi"},
        "priorityClass": "high",
        "completions": 2,
        "tolerations": [{"key": "k", "operator": "Exists", "effect": "Any"}],
        "environmentVariables": [{"name": "A", "value": "1"}, {"name": "HF", "exclude": True}],
        "tty": "x",
    }
    found = issues(submit(admin, body(served, spec)))
    assert {field: rule for field, (rule, _) in found.items()} == {
        "spec.tty": None,
        "spec.compute.gpuDevicesRequest": "max",
        "spec.compute.cpuMemoryRequest": "min",
        "spec.priorityClass": "options",
        "spec.category": "required",
        "spec.completions": "max",
        "spec.tolerations[0]": "blocked",
        "spec.environmentVariables[0]": "canAdd",
        "spec.environmentVariables[1]": "locked",
    }
    assert "the project's policy" in found["spec.completions"][1]


def test_a_template_is_held_to_them_and_named(admin: httpx.Client, served: Served, policy: Set) -> None:
    meta = {"name": f"t-{secrets.token_hex(4)}", "scope": "tenant", "workloadType": "Training"}
    made = admin.post(f"{V1}/workload-templates", json={"meta": meta, "spec": {"completions": 5}}).json()
    policy({"completions": {"max": 2}})
    request = body(served, templateId=made["meta"]["id"])
    found = issues(submit(admin, request))
    assert f"template {meta['name']} sets it" in found["spec.completions"][1]
    assert submit(admin, request | {"spec": {"image": "i", "completions": 2}}).status_code == 202


def test_a_master_takes_defaults_and_keeps_to_rules(admin: httpx.Client, served: Served, policy: Set) -> None:
    limits = {"compute": {"gpuDevicesRequest": {"max": 1}}}
    policy(limits, {"image": "all", "category": "c"}, kind="distributed")
    request: Json = served.training() | {"spec": {"distributedFramework": "PyTorch"}, "masterSpec": {"args": "x"}}
    answer = submit(admin, request, "distributed")
    assert answer.status_code == 202, answer.text
    assert answer.json()["masterSpec"]["image"] == "all"
    request["masterSpec"] = {"compute": {"gpuDevicesRequest": 2}}
    request["name"] += "-2"
    assert rules_of(submit(admin, request, "distributed")) == {"masterSpec.compute.gpuDevicesRequest": "max"}


def test_a_policy_holds_for_its_kind_and_its_project(admin: httpx.Client, served: Served, policy: Set) -> None:
    other = served.made["other"]
    policy({"category": {"required": True}}, project=other)
    policy({"category": {"required": True}}, kind="workspaces")
    assert submit(admin, body(served)).status_code == 202
    assert rules_of(submit(admin, body(served), "workspaces")) == {"spec.category": "required"}
    assert rules_of(submit(admin, body(served, projectId=other))) == {"spec.category": "required"}


def test_a_repeated_request_is_answered_as_the_first_time(admin: httpx.Client, served: Served, policy: Set) -> None:
    policy(defaults={"image": "i1", "category": "c"})
    request, key = served.training() | {"spec": {}}, {"Idempotency-Key": secrets.token_hex(8)}
    first = submit(admin, request, headers=key)
    assert first.status_code == 202, first.text
    policy({"completions": {"min": 2}}, {"image": "i2"})
    assert submit(admin, request, headers=key).json() == first.json()
    admin.delete(f"{V1}/policies/trainings", params=where())
    again = submit(admin, request, headers=key)
    assert (again.status_code, again.json()) == (202, first.json())


def test_a_change_of_a_living_workload_is_held_to_the_policy_of_now(
    admin: httpx.Client, served: Served, policy: Set
) -> None:
    made = submit(admin, body(served)).json()["workloadId"]
    policy({"priorityClass": {"options": ["low", "medium"]}, "completions": {"min": 5}})
    one = f"{V1}/workloads/{made}"
    refused = admin.patch(one, json={"priorityClass": "high"})
    assert rules_of(refused) == {"priorityClass": "options"}
    assert admin.patch(one, json={"priorityClass": "medium"}).status_code == 202
    for act in ("suspend", "resume"):
        assert admin.post(f"{V1}/workloads/trainings/{made}/{act}").status_code == 202
    assert admin.delete(f"{V1}/workloads/trainings/{made}").status_code == 202


def test_tolerations_and_topology_are_on_until_a_policy_blocks_them(
    admin: httpx.Client, served: Served, policy: Set
) -> None:
    spec = {
        "tolerations": [{"key": "k", "operator": "Exists", "effect": "Any"}],
        "podAffinity": {"type": "Preferred", "key": "zone"},
    }
    assert submit(admin, body(served, spec)).status_code == 202
    policy({"tolerations": {"blocked": True}, "podAffinity": {"blocked": True}})
    assert set(rules_of(submit(admin, body(served, spec))).values()) == {"blocked"}
    assert submit(admin, body(served)).status_code == 202


# -- who may ---------------------------------------------------------------------------------------------------------


def test_a_project_admin_can_only_make_it_stricter(served: Served, admin: httpx.Client, policy: Set) -> None:
    policy({"completions": {"max": 2}, "category": {"canEdit": False}})
    policy(
        {"completions": {"max": 9}, "category": {"canEdit": True}, "backoffLimit": {"max": 1}}, project=served.project
    )
    spec = {"completions": 3, "category": "x", "backoffLimit": 2}
    assert rules_of(submit(admin, body(served, spec))) == {
        "spec.completions": "max",
        "spec.category": "canEdit",
        "spec.backoffLimit": "max",
    }


def test_researchers_read_policies_and_set_none(alice: httpx.Client, served: Served, policy: Set) -> None:
    policy()
    policy(project=served.project)
    policy(project=served.made["other"])
    path = f"{V1}/policies/trainings"
    for query in (where(), where(served.project)):
        assert alice.get(path, params=query).status_code == 200
        assert alice.put(path, params=query, json={}).status_code == 403
        assert alice.delete(path, params=query).status_code == 403
    other = where(served.made["other"])
    assert alice.get(path, params=other).status_code == 404
    assert alice.put(path, params=other, json={}).status_code == 404


def test_whoever_may_not_read_there_learns_nothing_of_its_policies(
    alice: httpx.Client, served: Served, policy: Set
) -> None:
    other = served.made["other"]
    policy({"category": {"options": ["secret"], "required": True}}, project=other)
    refused = submit(alice, body(served, projectId=other))
    assert rules_of(refused) == {"projectId": None}
    assert "secret" not in refused.text
    assert submit(alice, body(served, {"category": "secret"}, projectId=other)).status_code == 403


# -- rehearsal -------------------------------------------------------------------------------------------------------


def rehearsed(client: httpx.Client, query: Json, kind: str = "trainings", **given: Json) -> Json:
    answer = client.post(f"{V1}/policies/{kind}:rehearse", params=query, json=given)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_rehearsal_says_what_would_have_been_refused_and_changed(
    admin: httpx.Client, served: Served, policy: Set
) -> None:
    project = admin.post(f"{V1}/org-unit/projects", json={"name": f"p-{secrets.token_hex(4)}"}).json()["id"]
    policy(defaults={"category": "c1"}, project=project)
    made = [
        submit(admin, body(served, spec, projectId=project)) for spec in ({}, {"completions": 3}, {"category": "m"})
    ]
    plain, large, own = (answer.json()["workloadId"] for answer in made)
    deleted = admin.delete(f"{V1}/workloads/trainings/{large}")
    seen = {"min_seq": deleted.headers["x-log-sequence"]}
    assert admin.get(f"{V1}/workloads", params=seen).status_code == 200
    query = where(project)
    found = rehearsed(
        admin, query, defaults={"category": "c2", "labels": [{"name": "a"}]}, rules={"completions": {"max": 2}}
    )
    assert (found["lookedAt"], found["refused"], found["changed"]) == (3, 1, 2)
    told = {one["workloadId"]: one for one in found["workloads"]}
    assert [issue["rule"] for issue in told[large]["issues"]] == ["max"]
    assert told[plain]["changed"] == ["spec.category", "spec.labels"]
    assert told[own]["changed"] == ["spec.labels"], "what the request set stays"
    assert any("refused are not in the log" in gap for gap in found["gaps"])
    again = rehearsed(admin, query, defaults={"category": "c1"})
    assert (again["refused"], again["changed"]) == (0, 0), "the policy that there was"
    first = rehearsed(admin, query | {"limit": 1}, rules={"completions": {"max": 2}})
    assert (first["lookedAt"], first["gaps"][0]) == (1, "only the newest 1 are looked at; there are older ones")
    assert admin.get(f"{V1}/policies/trainings", params=query).json()["defaults"] == {"category": "c1"}
    nowhere = rehearsed(admin, where(), rules={"image": {"options": ["j"]}})
    assert nowhere["refused"] >= 3


def test_a_rehearsal_refuses_nothing_of_which_an_empty_list_was_sent(
    admin: httpx.Client, served: Served, policy: Set
) -> None:
    """As every resubmission sends it of what there was none of. Requirement rows: S014."""
    project = admin.post(f"{V1}/org-unit/projects", json={"name": f"p-{secrets.token_hex(4)}"}).json()["id"]
    query, team = where(project), {"name": "team", "value": "vision"}
    given: Json = {"defaults": {"labels": [team]}, "rules": {"labels": {"lockedItems": ["team"]}}}
    empty = submit(admin, body(served, {"labels": []}, projectId=project))
    assert empty.status_code == 202, empty.text
    one = f"{V1}/workloads/trainings/{empty.json()['workloadId']}"
    assert admin.get(one, params={"explain": True}).json()["setBy"]["spec.labels"] == "default", "it says nothing"
    seen = {"min_seq": empty.headers["x-log-sequence"]}
    assert admin.get(f"{V1}/workloads", params=seen).status_code == 200
    found = rehearsed(admin, query, **given)
    assert (found["lookedAt"], found["refused"], found["changed"]) == (1, 0, 1)
    assert found["workloads"][0]["changed"] == ["spec.labels"]
    policy(**given, project=project)
    again = submit(admin, body(served, {"labels": []}, projectId=project))
    assert (again.status_code, again.json()["spec"]["labels"]) == (202, [team]), "so it is as rehearsed"
    policy(defaults={"labels": [team]}, project=project)
    cleared = submit(admin, body(served, {"labels": None}, projectId=project))
    assert cleared.json()["spec"]["labels"] == []
    seen = {"min_seq": cleared.headers["x-log-sequence"]}
    assert admin.get(f"{V1}/workloads", params=seen).status_code == 200
    told = {row["workloadId"]: row for row in rehearsed(admin, query, **given)["workloads"]}
    assert [issue["rule"] for issue in told[cleared.json()["workloadId"]]["issues"]] == ["locked"], "it was cleared"


def test_a_rehearsal_looks_at_masters_and_at_the_other_policy(admin: httpx.Client, served: Served, policy: Set) -> None:
    project = admin.post(f"{V1}/org-unit/projects", json={"name": f"p-{secrets.token_hex(4)}"}).json()["id"]
    request = served.training(projectId=project) | {
        "spec": {"image": "i", "distributedFramework": "PyTorch"},
        "masterSpec": {"image": "m", "compute": {"gpuDevicesRequest": 2}},
    }
    answer = submit(admin, request, "distributed")
    assert admin.get(f"{V1}/workloads", params={"min_seq": answer.headers["x-log-sequence"]}).status_code == 200
    rules: Json = {"compute": {"gpuDevicesRequest": {"max": 1}}}
    (one,) = rehearsed(admin, where(project), "distributed", rules=rules)["workloads"]
    assert [issue["field"] for issue in one["issues"]] == ["masterSpec.compute.gpuDevicesRequest"]
    policy(rules, kind="distributed")
    assert rehearsed(admin, where(project), "distributed")["refused"] == 1
    wrong = admin.post(f"{V1}/policies/trainings:rehearse", params=where(), json={"rules": {"imag": {}}})
    assert "rules.imag" in issues(wrong)


def test_labels_of_a_living_workload_are_held_to_the_policy_of_now(
    admin: httpx.Client, served: Served, policy: Set
) -> None:
    old = {"name": "old", "value": "1"}
    made = submit(admin, body(served, {"labels": [old]})).json()["workloadId"]
    team = {"name": "team", "value": "all"}
    policy({"labels": {"lockedItems": ["team"], "canAdd": False}}, {"labels": [team]})
    one = f"{V1}/workloads/{made}"
    assert admin.patch(one, json={"labels": [old, team]}).status_code == 202, "what was there stays, and the policy's"
    found = rules_of(admin.patch(one, json={"labels": [old, {"name": "team", "value": "mine"}, {"name": "new"}]}))
    assert found == {"labels[1]": "locked", "labels[2]": "canAdd"}
    assert rules_of(admin.patch(one, json={"labels": [old]})) == {"labels": "locked"}


def test_items_of_a_batch_are_held_to_policies(admin: httpx.Client, served: Served, policy: Set) -> None:
    policy({"completions": {"max": 2}}, {"category": "c"})
    items = [{"kind": "Training"} | body(served, {"completions": count}) for count in (1, 3)]
    answer = admin.post(f"{V1}/workloads:batch", json={"items": items})
    assert answer.status_code == 202, answer.text
    assert '"max"' in answer.text
    assert "the tenant's policy" in answer.text
    named = admin.get(f"{V1}/workloads", params={"filterBy": f"name=={items[0]['name']}"} | seen(answer))
    (row,) = named.json()["workloads"]
    read = admin.get(f"{V1}/workloads/{row['id']}").json()
    assert read["spec"]["category"] == "c"


def seen(answer: httpx.Response) -> Json:
    return {"min_seq": answer.headers["x-log-sequence"]} if "x-log-sequence" in answer.headers else {}


# -- imposed data sources ------------------------------------------------------------------------------------------

SOURCES = f"{V1}/asset/datasource"


def source(admin: httpx.Client, kind: str, spec: dict[str, Any], **meta: Any) -> tuple[str, str]:
    """(id, name)."""
    name = f"imposed-{secrets.token_hex(4)}"
    made = admin.post(f"{SOURCES}/{kind}", json={"meta": {"name": name, "scope": "tenant"} | meta, "spec": spec})
    assert made.status_code == 202, made.text
    return made.json()["meta"]["id"], name


@pytest.fixture
def place(admin: httpx.Client) -> str:
    made = admin.post(f"{V1}/org-unit/projects", json={"name": f"imposed-{secrets.token_hex(4)}"})
    assert made.status_code == 202, made.text
    return made.json()["id"]


def impose(admin: httpx.Client, place: str, *ids: str, kind: str = "trainings", **more: Any) -> httpx.Response:
    query = {"scope": "project", "projectId": place}
    return admin.put(f"{V1}/policies/{kind}", params=query, json={"imposedAssets": [*ids], **more})


def faults_of(answer: httpx.Response) -> list[tuple[str, str | None]]:
    assert answer.status_code == 400, answer.text
    return [(issue["field"], issue.get("rule")) for issue in answer.json()["complianceIssues"]]


def test_every_workload_has_them_and_no_request_drops_or_changes_one(
    served: Served, admin: httpx.Client, place: str
) -> None:
    corpus, name = source(admin, "pvc", {"existingPvc": True, "claimName": "corpus", "path": "/corpus"})
    answer = impose(admin, place, corpus)
    assert answer.status_code == 202, answer.text
    assert answer.json()["imposedAssets"] == [corpus]

    def submitted(*volumes: dict[str, Any], **more: Any) -> httpx.Response:
        asked = served.training(name=f"w-{secrets.token_hex(4)}", projectId=place) | more
        asked["spec"] = {"image": "i", "storage": {"pvc": [*volumes]}}
        return admin.post(f"{V1}/workloads/trainings", json=asked)

    claim = {"name": name, "path": "/corpus", "existingPvc": True, "claimName": "corpus"}
    for made in (submitted(), submitted(claim), submitted(assets={"datasourceIds": [corpus]})):
        assert made.status_code == 202, made.text
        path = f"{V1}/workloads/{made.json()['workloadId']}"
        found = admin.get(path, params={"explain": "true"}).json()
        (volume,) = found["spec"]["storage"]["pvc"]
        assert (volume["name"], volume["path"], volume["claimName"]) == (name, "/corpus", "corpus")
        assert found["dataSources"] == [f"{name}=pvc"]
    assert admin.get(path, params={"explain": "true"}).json()["setBy"]["spec.storage.pvc[0]"] != "request"
    told = submitted().json()["workloadId"]
    explained = admin.get(f"{V1}/workloads/{told}", params={"explain": "true"}).json()["setBy"]
    assert explained["spec.storage.pvc[0]"] == "project policy"
    for volume in (
        {"path": "/corpus", "exclude": True},
        {"name": name, "exclude": True},
        {"name": "mine", "path": "/corpus", "existingPvc": True, "claimName": "mine"},
    ):
        assert faults_of(submitted(volume)) == [("spec.storage.pvc[0]", "locked")]

    assert admin.delete(f"{SOURCES}/pvc/{corpus}").status_code == 202
    refused = submitted()
    assert faults_of(refused) == [("projectId", None)]
    assert "which was deleted" in refused.text
    assert impose(admin, place).status_code == 202
    assert submitted().status_code == 202


def test_a_data_source_of_a_cluster_is_imposed_there_alone(served: Served, admin: httpx.Client, place: str) -> None:
    made = admin.post(f"{V1}/clusters", json={"name": f"imposed-{secrets.token_hex(4)}", "kind": "kubernetes"})
    other = made.json()["id"]
    there, name = source(
        admin, "nfs", {"server": "nfs", "path": "/e", "mountPath": "/e"}, scope="cluster", clusterId=other
    )
    assert impose(admin, place, there).status_code == 202
    for cluster, expected in ((other, [name]), (served.cluster, [])):
        asked = served.training(projectId=place, clusterId=cluster)
        asked["spec"] = {"image": "i"}
        found = admin.post(f"{V1}/workloads/trainings:evaluate", json=asked).json()
        assert found["accepted"], found["issues"]
        volumes = [one["value"] for one in found["fields"] if one["field"].startswith("spec.storage.nfs[")]
        assert [volume["name"] for volume in volumes] == expected


def test_what_cannot_be_imposed_is_refused_by_name(served: Served, admin: httpx.Client, place: str) -> None:
    spec = {"mountPath": "/e", "path": "/e", "server": "nfs"}
    nfs, name = source(admin, "nfs", spec)
    same, _ = source(admin, "nfs", spec)
    foreign, _ = source(admin, "nfs", spec, scope="project", projectId=served.made["project"])
    compute = admin.post(
        f"{V1}/asset/compute", json={"meta": {"name": f"c-{secrets.token_hex(4)}", "scope": "tenant"}, "spec": {}}
    ).json()["meta"]["id"]
    never = "00000000-0000-8000-8000-000000000000"
    for ids in ((never,), ("",), (str(UUID(int=0)),), ("x" * 300,), (compute,), (foreign,)):
        assert faults_of(impose(admin, place, *ids)) == [("imposedAssets[0]", None)]
    assert faults_of(impose(admin, place, nfs, same)) == [("imposedAssets[1]", None)]
    assert faults_of(impose(admin, place, nfs, kind="inferences")) == [("imposedAssets[0]", None)]
    assert faults_of(impose(admin, place, *[nfs] * 11))[0][0] == "imposedAssets"
    blocked: Json = {"rules": {"storage": {"nfs": {"canAdd": False}}}}
    assert impose(admin, place, nfs, **blocked).status_code == 202
    rehearsed = admin.post(
        f"{V1}/policies/trainings:rehearse",
        params={"scope": "project", "projectId": place},
        json={"imposedAssets": [nfs]},
    )
    assert rehearsed.status_code == 200, rehearsed.text
    assert any("imposed" in gap for gap in rehearsed.json()["gaps"])
    assert name
