"""`muster policy`: what is asked, sent, shown and refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.shapes import Ran, Reply, Request, ShapeServer

type Muster = Callable[..., Ran]
TENANT, PROJECT = {"scope": ["tenant"]}, {"scope": ["project"], "projectId": ["p-1"]}


def row(scope: str = "tenant") -> dict[str, Any]:
    return {
        "meta": {
            "workloadType": "Training",
            "scope": scope,
            "projectId": None if scope == "tenant" else "p-1",
            "setBy": "ann",
            "setAt": "2026-01-02T03:04:05Z",
        },
        "defaults": {"priorityClass": "low", "compute": {"cpuCoreRequest": 1}},
        "rules": {"compute": {"gpuDevicesRequest": {"max": 2}}, "tolerations": {"blocked": True}},
    }


def there_is(api: ShapeServer, *scopes: str) -> None:
    """Policies of trainings."""

    def found(request: Request) -> Reply:
        (scope,) = request.query["scope"]
        if scope in scopes and request.path.endswith("trainings"):
            return Reply(body=row(scope))
        return Reply(404, {"code": 404, "message": "there is no policy", "details": "not_found"})

    for kind in ("trainings", "distributed", "workspaces", "inferences"):
        api.on("GET", f"/policies/{kind}", found)


def test_lists_say_what_is_set_and_ruled(api: ShapeServer, muster: Muster) -> None:
    there_is(api, "tenant", "project")
    ran = muster("policy", "list", "-p", "default")
    assert ran.code == 0, ran.err
    assert "priorityClass, compute.cpuCoreRequest" in ran.out
    assert "compute.gpuDevicesRequest (max), tolerations (blocked)" in ran.out
    assert [asked.query for asked in api.asked("GET", "/policies/trainings")] == [TENANT, PROJECT]
    assert len(muster("policy", "list", "-o", "json").json()) == 1


def test_one_is_described_and_set_again_as_it_is_shown(api: ShapeServer, muster: Muster, tmp_path: Path) -> None:
    there_is(api, "tenant")
    told = muster("policy", "describe", "trainings")
    assert "max: 2" in told.out
    file = tmp_path / "policy.yaml"
    file.write_text(muster("policy", "describe", "trainings", "-o", "yaml").out)
    api.on("PUT", "/policies/trainings", Reply(202, row()))
    ran = muster("policy", "set", "trainings", "-f", str(file), "-p", "default")
    assert ran.code == 0, ran.err
    (sent,) = api.asked("PUT", "/policies/trainings")
    assert (sent.body, sent.query) == ({name: row()[name] for name in ("defaults", "rules")}, PROJECT)


def test_what_is_not_there_is_said(api: ShapeServer, muster: Muster) -> None:
    there_is(api)
    assert "no policies" in (ran := muster("policy", "list")).out + ran.err
    ran = muster("policy", "describe", "trainings", "-p", "default")
    assert ran.code == 3, ran.err
    assert "there is no policy for trainings of project default" in ran.err


def test_one_is_deleted(api: ShapeServer, muster: Muster) -> None:
    api.on("DELETE", "/policies/workspaces", Reply(202, {"code": 202, "message": "deleted"}))
    assert muster("policy", "delete", "workspaces", "-y").code == 0
    (asked,) = api.asked("DELETE", "/policies/workspaces")
    assert asked.query == TENANT


def test_of_one_that_is_not_there_the_deletion_says_which_and_no_code(api: ShapeServer, muster: Muster) -> None:
    gone = {"code": 404, "message": "there is no policy for Training of this scope", "details": "not_found"}
    api.on("DELETE", "/policies/trainings", Reply(404, gone))
    ran = muster("policy", "delete", "trainings", "-y")
    assert ran.code == 3
    assert ran.err.startswith("muster: there is no policy for trainings that holds everywhere\n  → muster policy set")


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (("describe", "training"), "did you mean 'trainings'"),
        (("describe", "servers"), "trainings, distributed, workspaces, inferences"),
    ],
)
def test_a_kind_that_is_none_is_refused(api: ShapeServer, muster: Muster, typed: tuple[str, ...], said: str) -> None:
    ran = muster("policy", *typed)
    assert ran.code == 2, ran.err
    assert said in ran.err
    assert api.requests == []


def test_a_file_that_holds_no_policy_is_refused(api: ShapeServer, muster: Muster, tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("rule: {}\n")
    ran = muster("policy", "set", "trainings", "-f", str(file))
    assert ran.code == 2, ran.err
    assert "unknown field 'rule'" in ran.err
    assert api.asked("PUT", "/policies/trainings") == []


def evaluation(*issues: dict[str, Any]) -> dict[str, Any]:
    common = {"default": None, "locked": False, "required": False, "issues": []}
    fields = [
        common | {"field": "spec.image", "value": "a", "setBy": "request", "required": True},
        common | {"field": "spec.category", "value": "x", "setBy": "tenant policy", "locked": True, "options": ["x"]},
        common | {"field": "spec.tolerations", "value": None, "setBy": "default", "locked": True, "blocked": True},
        common | {"field": "spec.tty", "value": False, "setBy": "default"},
        common | {"field": "spec.completions", "value": 3, "setBy": "request", "max": 2, "issues": [*issues]},
    ]
    return {"accepted": not issues, "fields": fields, "issues": [*issues], "notYetInForce": []}


def test_a_dry_run_on_the_server_is_a_table_of_what_would_be(api: ShapeServer, muster: Muster) -> None:
    api.on("POST", "/workloads/trainings:evaluate", Reply(body=evaluation()))
    ran = muster("training", "submit", "hello", "-i", "a", "--dry-run=server")
    assert ran.code == 0, ran.err
    assert "spec.category" in ran.out
    assert "locked, options x" in ran.out
    assert next(line.split() for line in ran.out.splitlines() if "tolerations" in line)[-1] == "blocked"
    assert "spec.tty" not in ran.out, "what nobody set or restricts is left out"
    assert "INSTRUCTIONS" not in ran.out, "nobody gave any"
    assert "it would be accepted" in ran.err
    (sent,) = api.asked("POST", "/workloads/trainings:evaluate")
    assert sent.body["spec"]["image"] == "a"
    assert api.asked("POST", "/workloads/trainings") == []
    assert muster("training", "submit", "hello", "-i", "a", "--dry-run=server", "-o", "json").json() == evaluation()


def test_s021_instructions_on_a_variable_are_shown(api: ShapeServer, muster: Muster) -> None:
    variable = {"field": "spec.environmentVariables[0]", "value": {"name": "LR", "value": ""}, "setBy": "environment e"}
    told = evaluation()
    told["fields"].append(told["fields"][0] | variable | {"instructions": "a learning rate, between 0 and 1"})
    api.on("POST", "/workloads/trainings:evaluate", Reply(body=told))
    ran = muster("training", "submit", "hello", "-i", "a", "--dry-run=server")
    assert ran.code == 0, ran.err
    (line,) = (line for line in ran.out.splitlines() if "environmentVariables" in line)
    assert line.endswith("a learning rate, between 0 and 1")


def test_a_dry_run_on_the_server_says_on_which_cluster_it_would_run(api: ShapeServer, muster: Muster) -> None:
    placed = {"podSet": "main", "cluster": "lab", "node": "n0", "nodePool": "default", "pods": 1, "gpus": 2}
    outlook = {"outcome": "runs", "placed": [placed], "moreNodes": 0, "waitingPods": 0, "kept": []}
    api.on("POST", "/workloads/trainings:evaluate", Reply(body=evaluation() | {"placement": outlook}))
    ran = muster("training", "submit", "hello", "-i", "a", "--dry-run=server")
    assert "1 pod of main would run on n0 of lab, with 2 GPU" in ran.err


def test_a_dry_run_that_would_be_refused_says_all_that_is_wrong(api: ShapeServer, muster: Muster) -> None:
    issue = {"field": "spec.completions", "details": "must be at most 2 by the tenant's policy, got 3", "rule": "max"}
    api.on("POST", "/workloads/trainings:evaluate", Reply(body=evaluation(issue)))
    ran = muster("training", "submit", "hello", "-i", "a", "--runs", "3", "--dry-run=server")
    assert ran.code == 6, ran.err
    assert "max 2" in ran.out
    assert "spec.completions (--runs): must be at most 2 by the tenant's policy, got 3" in ran.err
    assert muster("training", "submit", "hello", "-i", "a", "--dry-run=nowhere").code == 2


def test_a_rehearsal_says_what_would_differ_and_what_was_not_looked_at(
    api: ShapeServer, muster: Muster, tmp_path: Path
) -> None:
    common = {"projectId": "p-1", "createdAt": "2026-01-02T03:04:05Z", "workloadId": "w"}
    issue = {"field": "spec.completions", "details": "must be at most 2", "rule": "max"}
    workloads = [
        common | {"name": "large", "issues": [issue], "changed": []},
        common | {"name": "plain", "issues": [], "changed": ["spec.category"]},
    ]
    told = {"lookedAt": 7, "refused": 1, "changed": 1, "workloads": workloads, "gaps": ["only the newest 7"]}
    api.on("POST", "/policies/trainings:rehearse", Reply(body=told))
    file = tmp_path / "policy.yaml"
    file.write_text("rules: {completions: {max: 2}}\n")
    ran = muster("policy", "rehearse", "trainings", "-f", str(file), "-p", "default", "--limit", "7")
    assert ran.code == 0, ran.err
    assert "spec.completions: must be at most 2" in ran.out
    assert "spec.category" in ran.out
    assert "of 7 workloads 1 would be refused, 1 changed" in ran.err
    assert "only the newest 7" in ran.err
    (sent,) = api.asked("POST", "/policies/trainings:rehearse")
    assert (sent.body, sent.query) == ({"rules": {"completions": {"max": 2}}}, PROJECT | {"limit": ["7"]})
