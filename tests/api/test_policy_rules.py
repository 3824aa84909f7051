"""Rules of policies on merged specs: tables of good and bad cases, and what holds for any of them.

Requirement rows: S083, C20, R37.
"""

from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from events.asset_specs import spec_node
from events.policy import Policy
from events.workload.kinds import KINDS
from services.api.check import FaultyCreation, check_creation
from services.api.issues import Issue
from services.api.merge import Layer, merged
from services.api.policies_in_force import rules_of
from services.api.policy_rules import Subject, broken, layer_of

type Json = dict[str, Any]
TRAINING: Final = spec_node("Training")
A, A2, B = {"name": "a", "value": "1"}, {"name": "a", "value": "2"}, {"name": "b", "value": "3"}
A_GONE: Final = {"name": "a", "exclude": True}


def policy(rules: Json, defaults: Json | None = None, *, project: str = "") -> Policy:
    return Policy(policy_id="p", workload_type="Training", project_id=project, defaults=defaults or {}, rules=rules)


def found(policies: list[Policy], spec: Json, template: Json | None = None) -> list[Issue]:
    """What the policies forbid of a training."""
    kind = KINDS["Training"]
    below = [layer_of(one) for one in policies]
    above = [] if template is None else [Layer(source="template", name="t", spec=template)]
    request = Layer(source="request", name="", spec={"image": "i"} | spec)
    whole = merged(TRAINING, [*below, *above, request])
    checked = check_creation(kind.creation, {"name": "n", "projectId": "p", "clusterId": "c", "spec": whole.spec})
    assert not isinstance(checked, FaultyCreation), checked.issues
    ordered, distributed = checked.order()
    subject = Subject(
        whole=whole,
        below={one.scope: merged(TRAINING, below[: index + 1]) for index, one in enumerate(policies)},
        form=kind.shown(kind.with_defaults(ordered), distributed),
        prefix="spec",
    )
    return [*broken(rules_of("Training", policies), subject, TRAINING)]


def told(issues: list[Issue]) -> list[tuple[str, str | None]]:
    return [(issue.field.removeprefix("spec."), issue.rule) for issue in issues]


OF_VALUES: Final[list[tuple[Json, Json, list[tuple[str, str]]]]] = [
    ({"completions": {"min": 2}}, {"completions": 2}, []),
    ({"completions": {"min": 2}}, {}, [("completions", "min")]),  # the kind's default holds in the end
    ({"completions": {"max": 2}}, {"completions": 3}, [("completions", "max")]),
    ({"completions": {"min": 1, "step": 2}}, {"completions": 5}, []),
    ({"completions": {"min": 1, "step": 2}}, {"completions": 4}, [("completions", "step")]),
    ({"compute": {"cpuCoreRequest": {"step": 0.1}}}, {"compute": {"cpuCoreRequest": 0.3}}, []),
    (
        {"compute": {"cpuCoreRequest": {"step": 0.1}}},
        {"compute": {"cpuCoreRequest": 0.35}},
        [("cpuCoreRequest", "step")],
    ),
    ({"compute": {"cpuCoreRequest": {"step": 1e-30}}}, {"compute": {"cpuCoreRequest": 1e6}}, []),
    ({"compute": {"cpuMemoryRequest": {"max": "1Gi"}}}, {"compute": {"cpuMemoryRequest": "1024Mi"}}, []),
    (
        {"compute": {"cpuMemoryRequest": {"max": "1Gi"}}},
        {"compute": {"cpuMemoryRequest": "1025Mi"}},
        [("cpuMemoryRequest", "max")],
    ),
    ({"compute": {"cpuMemoryRequest": {"options": ["1Gi"]}}}, {"compute": {"cpuMemoryRequest": "1024Mi"}}, []),
    ({"compute": {"gpuPortionRequest": {"max": 0.5}}}, {}, []),  # what is not there has no bound
    ({"compute": {"gpuPortionRequest": {"required": True}}}, {}, [("gpuPortionRequest", "required")]),
    ({"category": {"required": True}}, {"category": ""}, [("category", "required")]),
    ({"labels": {"required": True}}, {}, [("labels", "required")]),
    ({"labels": {"required": True}}, {"labels": [A]}, []),
    ({"priorityClass": {"options": ["high"]}}, {}, [("priorityClass", "options")]),
    ({"priorityClass": {"options": ["high"]}}, {"priorityClass": "high"}, []),
    ({"nodePools": {"options": ["a", "b"]}}, {"nodePools": ["b", "c"]}, [("nodePools", "options")]),
    ({"tty": {"options": None, "required": True}}, {}, []),
    (
        {"completions": {"max": 1}, "compute": {"gpuDevicesRequest": {"max": 0}}, "image": {"options": ["j"]}},
        {"completions": 2, "compute": {"gpuDevicesRequest": 1}},
        [("completions", "max"), ("gpuDevicesRequest", "max"), ("image", "options")],
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", OF_VALUES)
def test_values_are_held_to_bounds(case: tuple[Json, Json, list[tuple[str, str]]]) -> None:
    rules, spec, wrong = case
    issues = told(found([policy(rules)], spec))
    assert sorted((field.rpartition(".")[2], rule or "") for field, rule in issues) == sorted(wrong)


LOCKED, FIXED, CLOSED, BLOCKED = {"locked": True}, {"canEdit": False}, {"canAdd": False}, {"blocked": True}
OF_LAYERS: Final[list[tuple[Json, Json, Json, list[tuple[str, str]]]]] = [
    # one value: equal is equal, also as a quantity
    ({"category": FIXED}, {"category": "x"}, {}, []),
    ({"category": FIXED}, {"category": "x"}, {"category": "x"}, []),
    ({"category": FIXED}, {"category": "x"}, {"category": "y"}, [("category", "canEdit")]),
    ({"category": FIXED}, {"category": "x"}, {"category": None}, [("category", "canEdit")]),
    ({"category": LOCKED}, {}, {"category": "y"}, [("category", "locked")]),
    ({"category": LOCKED}, {}, {"category": None}, []),
    ({"category": {"canEdit": True}}, {"category": "x"}, {"category": "y"}, []),
    (
        {"compute": {"cpuMemoryRequest": FIXED}},
        {"compute": {"cpuMemoryRequest": "1Gi"}},
        {"compute": {"cpuMemoryRequest": "1024Mi"}},
        [],
    ),
    # what is there anyway may be said again, as a workload does that is submitted again
    ({"category": BLOCKED}, {"category": "x"}, {"category": "x"}, []),
    ({"category": BLOCKED}, {}, {"category": ""}, []),
    ({"category": BLOCKED}, {}, {"category": "y"}, [("category", "blocked")]),
    ({"category": BLOCKED}, {"category": "x"}, {"category": None}, [("category", "blocked")]),
    ({"category": BLOCKED}, {}, {"category": None}, []),
    # a whole object
    ({"security": LOCKED}, {}, {"security": {"runAsNonRoot": True}}, [("security.runAsNonRoot", "locked")]),
    (
        {"security": LOCKED},
        {"security": {"runAsNonRoot": True}},
        {"security": None},
        [("security.runAsNonRoot", "locked")],
    ),
    ({"security": LOCKED}, {"security": {"runAsNonRoot": True}}, {"security": {}}, []),
    ({"compute": BLOCKED}, {}, {"compute": {"cpuCoreRequest": 1}}, [("compute.cpuCoreRequest", "blocked")]),
    ({"compute": BLOCKED}, {}, {"compute": {}}, []),
    ({"podAffinity": BLOCKED}, {}, {"podAffinity": {"type": "Required", "key": "k"}},
     [("podAffinity.type", "blocked"), ("podAffinity.key", "blocked")]),
    ({"storage": BLOCKED}, {}, {"storage": {"nfs": [{"server": "s", "path": "/e", "mountPath": "/n"}]}},
     [("storage.nfs[0]", "blocked")]),
    # a list that is one value
    ({"nodePools": CLOSED}, {"nodePools": ["a", "b"]}, {"nodePools": ["b"]}, []),
    ({"nodePools": CLOSED}, {"nodePools": ["a", "b"]}, {"nodePools": ["b", "c"]}, [("nodePools", "canAdd")]),
    ({"nodePools": FIXED}, {"nodePools": ["a", "b"]}, {"nodePools": ["b"]}, [("nodePools", "canEdit")]),
    # a list that is merged item by item
    ({"labels": CLOSED}, {"labels": [A]}, {"labels": [A2]}, []),
    ({"labels": CLOSED}, {"labels": [A]}, {"labels": [A_GONE]}, []),
    ({"labels": CLOSED}, {"labels": [A]}, {"labels": [B]}, [("labels[1]", "canAdd")]),
    ({"labels": CLOSED}, {"labels": [A]}, {"labels": None}, []),
    ({"labels": FIXED}, {"labels": [A]}, {"labels": [B]}, []),
    ({"labels": FIXED}, {"labels": [A]}, {"labels": [A]}, []),
    ({"labels": FIXED}, {"labels": [A]}, {"labels": [A2]}, [("labels[0]", "canEdit")]),
    ({"labels": FIXED}, {"labels": [A]}, {"labels": [A_GONE]}, [("labels[0]", "canEdit")]),
    ({"labels": FIXED}, {"labels": [A]}, {"labels": None}, [("labels", "canEdit")]),
    ({"labels": LOCKED}, {"labels": [A]}, {"labels": [A2, B]}, [("labels[0]", "locked"), ("labels[1]", "locked")]),
    ({"labels": LOCKED}, {"labels": [A]}, {"labels": []}, []),
    ({"labels": BLOCKED}, {"labels": [A]}, {"labels": [B]}, [("labels[1]", "blocked")]),
    ({"labels": {"lockedItems": ["a"]}}, {"labels": [A, B]}, {"labels": [{"name": "b", "exclude": True}]}, []),
    ({"labels": {"lockedItems": ["a"]}}, {"labels": [A, B]}, {"labels": [A_GONE]}, [("labels[0]", "locked")]),
    ({"labels": {"lockedItems": ["a"]}}, {"labels": [A]}, {"labels": None}, [("labels", "locked")]),
    ({"tolerations": BLOCKED}, {}, {"tolerations": [{"key": "k", "operator": "Exists", "effect": "Any"}]},
     [("tolerations[0]", "blocked")]),
]  # fmt: skip


@pytest.mark.parametrize("case", OF_LAYERS)
def test_what_stands_above_a_policy_is_held_to_it(case: tuple[Json, Json, Json, list[tuple[str, str]]]) -> None:
    rules, defaults, spec, wrong = case
    assert told(found([policy(rules, defaults)], spec)) == wrong
    assert told(found([policy(rules, defaults)], {}, template=spec)) == wrong


@pytest.mark.parametrize(
    ("tenant", "project", "value", "scope"),
    [
        ({"max": 4}, {"max": 2}, 3, "project"),
        ({"max": 2}, {"max": 4}, 3, "tenant"),
        ({"max": 2}, {"max": 2}, 3, "tenant"),
        ({"min": 2}, {"min": 4}, 3, "project"),
        ({"min": 4}, {"min": 2}, 3, "tenant"),
        ({"options": [1, 2]}, {"options": [2, 3]}, 3, "tenant"),
        ({"options": [1, 2]}, {"options": [2, 3]}, 1, "project"),
        ({"step": 2}, {"step": 3}, 4, "project"),
        ({"canEdit": True}, {"canEdit": False}, 4, "project"),
        ({"canEdit": False}, {"canEdit": True}, 4, "tenant"),
        ({}, {"blocked": True}, 4, "project"),
    ],
)
def test_the_stricter_policy_wins_and_is_named(tenant: Json, project: Json, value: int, scope: str) -> None:
    policies = [policy({"completions": tenant}), policy({"completions": project}, project="p")]
    (issue,) = found(policies, {"completions": value})
    assert f"the {scope}'s policy" in issue.details


def test_a_project_changes_no_default_that_the_tenant_fixed() -> None:
    policies = [policy({"category": FIXED}, {"category": "x"}), policy({}, {"category": "y"}, project="p")]
    assert told(found(policies, {})) == [("category", "canEdit")]
    assert told(found(policies, {"category": "x"})) == []


def test_a_project_fixes_its_own_default_above_the_tenants() -> None:
    policies = [policy({}, {"category": "x"}), policy({"category": FIXED}, {"category": "y"}, project="p")]
    assert told(found(policies, {})) == []
    assert told(found(policies, {"category": "x"})) == [("category", "canEdit")]


def test_a_bound_says_what_was_given_and_what_would_do() -> None:
    (issue,) = found([policy({"completions": {"max": 2}})], {"completions": 3})
    assert issue.details == "must be at most 2 by the tenant's policy, got 3"


def test_the_page_says_what_happens() -> None:
    page = (Path(__file__).parents[2] / "docs/concepts/policies.md").read_text()
    told = yaml.safe_load(page.partition("checks these lines -->\n```yaml\n")[2].partition("```")[0])
    tenant, project = told["tenant"], told["project"]
    policies = [
        policy(tenant["rules"], tenant["defaults"]),
        policy(project["rules"], project["defaults"], project="p"),
    ]
    issues = found(policies, told["request"])
    assert {issue.field: {"rule": issue.rule, "details": issue.details} for issue in issues} == told["issues"]
