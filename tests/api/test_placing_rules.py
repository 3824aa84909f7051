"""Bad submissions of what a pod needs and where it may run, and everything that is said about them. Pure: no server."""

from typing import Any

import msgspec
import pytest

from events.workload.kinds.training import template
from events.workload.spec import with_defaults
from services.api.check import FaultyCreation, check_training
from services.api.not_yet import not_yet_in_force
from tests.api.test_rules import found, request

AFFINITY = "spec.nodeAffinityRequired.nodeSelectorTerms"
Faults = set[tuple[str, str | None]]


def expressions(*given: Any) -> dict[str, Any]:
    """A node affinity of one term."""
    return {"nodeAffinityRequired": {"nodeSelectorTerms": [{"matchExpressions": list(given)}]}}


def tolerations(**given: Any) -> dict[str, Any]:
    """One toleration that is whole, changed."""
    return {"tolerations": [{"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"} | given]}


def extended(*given: Any) -> dict[str, Any]:
    return {"compute": {"extendedResources": list(given)}}


MANY = {"key": "a", "operator": "Exists"}
ONE = f"{AFFINITY}[0].matchExpressions[0]"
TOLERATION = "spec.tolerations[0]"
EXTENDED = "spec.compute.extendedResources"
BAD_PLACING: list[tuple[str, dict[str, Any], Faults]] = [
    ("S040 no label value", {"nodeType": "a b"}, {("spec.nodeType", None)}),
    ("S040 empty", {"nodeType": ""}, {("spec.nodeType", "min")}),
    ("R14 In without values", expressions({"key": "a", "operator": "In"}), {(f"{ONE}.values", "required")}),
    (
        "R14 NotIn without values",
        expressions({"key": "a", "operator": "NotIn", "values": []}),
        {(f"{ONE}.values", "required")},
    ),
    (
        "R14 Exists with values",
        expressions({"key": "a", "operator": "Exists", "values": ["b"]}),
        {(f"{ONE}.values", "canAdd")},
    ),
    (
        "R14 DoesNotExist with values",
        expressions({"key": "a", "operator": "DoesNotExist", "values": ["b"]}),
        {(f"{ONE}.values", "canAdd")},
    ),
    (
        "R14 Gt with a word",
        expressions({"key": "a", "operator": "Gt", "values": ["many"]}),
        {(f"{ONE}.values", "required")},
    ),
    (
        "R14 Lt with two numbers",
        expressions({"key": "a", "operator": "Lt", "values": ["1", "2"]}),
        {(f"{ONE}.values", "required")},
    ),
    ("R14 Gt with none", expressions({"key": "a", "operator": "Gt"}), {(f"{ONE}.values", "required")}),
    (
        "R14 Gt beyond 64 bits",
        expressions({"key": "a", "operator": "Gt", "values": ["9223372036854775808"]}),
        {(f"{ONE}.values", "required")},
    ),
    ("R14 no label key", expressions({"key": "-", "operator": "Exists"}), {(f"{ONE}.key", None)}),
    (
        "R14 no label value, with the index of the request",
        {
            "nodeAffinityRequired": {
                "nodeSelectorTerms": [
                    None,
                    {"matchExpressions": [None, {"key": "a", "operator": "In", "values": ["fine", "b c"]}]},
                ]
            }
        },
        {(f"{AFFINITY}[1].matchExpressions[1].values[1]", None)},
    ),
    (
        "R14 what the schema says",
        expressions({"operator": "Is", "values": None}),
        {(f"{ONE}.key", "required"), (f"{ONE}.operator", "options"), (f"{ONE}.values", "required")},
    ),
    (
        "R15 more than the scheduler compares",
        {"nodeAffinityRequired": {"nodeSelectorTerms": [{"matchExpressions": [MANY] * 501}] * 2}},
        {(AFFINITY, "max")},
    ),
    ("R15 nothing at all", {"nodeAffinityRequired": {}}, {(AFFINITY, "required")}),
    ("R15 no terms", {"nodeAffinityRequired": {"nodeSelectorTerms": []}}, {(AFFINITY, "required")}),
    ("R15 empty terms alone", {"nodeAffinityRequired": {"nodeSelectorTerms": [None, {}]}}, {(AFFINITY, "required")}),
    ("R15 null terms", {"nodeAffinityRequired": {"nodeSelectorTerms": None}}, {(AFFINITY, "required")}),
    (
        "R16 both are mandatory",
        {"podAffinity": {}},
        {("spec.podAffinity.type", "required"), ("spec.podAffinity.key", "required")},
    ),
    ("R16 without a key", {"podAffinity": {"type": "Required"}}, {("spec.podAffinity.key", "required")}),
    ("R16 without a type", {"podAffinity": {"key": "zone", "type": None}}, {("spec.podAffinity.type", "required")}),
    ("R16 no label key", {"podAffinity": {"type": "Preferred", "key": "a b"}}, {("spec.podAffinity.key", None)}),
    (
        "R17 all are mandatory",
        {"tolerations": [{}]},
        {
            (f"{TOLERATION}.key", "required"),
            (f"{TOLERATION}.operator", "required"),
            (f"{TOLERATION}.effect", "required"),
        },
    ),
    ("R17 an empty key", tolerations(key=""), {(f"{TOLERATION}.key", "required")}),
    ("R17 no key of a taint", tolerations(key="a b"), {(f"{TOLERATION}.key", None)}),
    ("R17 C6 value with Exists", tolerations(value="ml"), {(f"{TOLERATION}.value", "canAdd")}),
    ("R17 C6 Equal without value", tolerations(operator="Equal"), {(f"{TOLERATION}.value", "required")}),
    ("R17 no value of a taint", tolerations(operator="Equal", value="a b"), {(f"{TOLERATION}.value", None)}),
    (
        "R17 Equals as the form says it",
        tolerations(operator="Equals", value="a"),
        {(f"{TOLERATION}.operator", "options")},
    ),
    ("R17 seconds without NoExecute", tolerations(seconds=5), {(f"{TOLERATION}.seconds", "canAdd")}),
    ("R17 seconds with Any", tolerations(effect="Any", seconds=5), {(f"{TOLERATION}.seconds", "canAdd")}),
    ("R17 no seconds", tolerations(effect="NoExecute", seconds=0), {(f"{TOLERATION}.seconds", "min")}),
    ("R17 more than ever", tolerations(effect="NoExecute", seconds=10**12), {(f"{TOLERATION}.seconds", "max")}),
    ("R37 an exclude without a name", {"tolerations": [{"exclude": True}]}, {(f"{TOLERATION}.name", "required")}),
    (
        "R37 one name twice",
        {"tolerations": [tolerations(name="a")["tolerations"][0]] * 2},
        {("spec.tolerations[1].name", None)},
    ),
    (
        "R36 without resource and quantity",
        extended({}),
        {(f"{EXTENDED}[0].resource", "required"), (f"{EXTENDED}[0].quantity", "required")},
    ),
    ("R36 twice", extended(*[{"resource": "a/b", "quantity": "1"}] * 2), {(f"{EXTENDED}[1].resource", None)}),
    ("S037 a GPU", extended({"resource": "nvidia.com/gpu", "quantity": "1"}), {(f"{EXTENDED}[0].resource", None)}),
    ("S037 memory", extended({"resource": "memory", "quantity": "1"}), {(f"{EXTENDED}[0].resource", None)}),
    (
        "S037 a resource of Kubernetes",
        extended({"resource": "kubernetes.io/x", "quantity": "1"}),
        {(f"{EXTENDED}[0].resource", None)},
    ),
    ("S037 half of one", extended({"resource": "a/b", "quantity": "0.5"}), {(f"{EXTENDED}[0].quantity", "min")}),
    ("S037 one and a half", extended({"resource": "a/b", "quantity": "1.5"}), {(f"{EXTENDED}[0].quantity", "step")}),
    ("S037 none", extended({"resource": "a/b", "quantity": "0"}), {(f"{EXTENDED}[0].quantity", "min")}),
    ("S037 no quantity", extended({"resource": "a/b", "quantity": "1.2.3"}), {(f"{EXTENDED}[0].quantity", None)}),
    ("S037 too many", extended({"resource": "a/b", "quantity": "8Ei"}), {(f"{EXTENDED}[0].quantity", None)}),
    ("S037 far too many", extended({"resource": "a/b", "quantity": "4Ei"}), {(f"{EXTENDED}[0].quantity", "max")}),
    ("S050 a word", {"terminateAfterPreemption": "yes"}, {("spec.terminateAfterPreemption", None)}),
    (
        "all at once",
        {"nodeType": "a b", **tolerations(value="x"), "podAffinity": {"key": "k"}},
        {("spec.nodeType", None), (f"{TOLERATION}.value", "canAdd"), ("spec.podAffinity.type", "required")},
    ),
]


@pytest.mark.parametrize(
    ("spec", "expected"), [case[1:] for case in BAD_PLACING], ids=[case[0] for case in BAD_PLACING]
)
def test_each_fault_of_a_field_that_places_is_told_with_its_field_and_rule(
    spec: dict[str, Any], expected: Faults
) -> None:
    assert found(request(**spec)) == expected


GOOD_PLACING: list[tuple[str, dict[str, Any]]] = [
    ("S040", {"nodeType": "DGX-A100"}),
    ("R14 In", expressions({"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a", ""]})),
    ("R14 NotIn", expressions({"key": "a", "operator": "NotIn", "values": ["b"]})),
    ("R14 Exists", expressions({"key": "a", "operator": "Exists"}, {"key": "b", "operator": "Exists", "values": []})),
    ("R14 DoesNotExist", expressions({"key": "a", "operator": "DoesNotExist"})),
    ("R14 Gt", expressions({"key": "a", "operator": "Gt", "values": ["-4"]})),
    ("R14 Lt", expressions({"key": "a", "operator": "Lt", "values": ["9223372036854775807"]})),
    (
        "R15 an empty term beside another",
        {
            "nodeAffinityRequired": {
                "nodeSelectorTerms": [{}, {"matchExpressions": [{"key": "a", "operator": "Exists"}]}]
            }
        },
    ),
    ("R16 Required", {"podAffinity": {"type": "Required", "key": "rack"}}),
    ("R16 Preferred", {"podAffinity": {"type": "Preferred", "key": "topology.kubernetes.io/zone"}}),
    ("R17 Exists", tolerations()),
    ("R17 C6 Equal", tolerations(operator="Equal", value="ml")),
    ("R17 Equal to the empty value", tolerations(operator="Equal", value="")),
    ("R17 Any", tolerations(effect="Any")),
    ("R17 seconds", tolerations(effect="NoExecute", seconds=1)),
    ("R37 two of one key", {"tolerations": tolerations()["tolerations"] * 2}),
    ("R36", extended({"resource": "rdma/hca", "quantity": "1"}, {"resource": "a.b/c", "quantity": "1k"})),
    ("nulls", {"nodeType": None, "nodeAffinityRequired": None, "podAffinity": None, "tolerations": [None]}),
    ("S050", {"terminateAfterPreemption": True}),
]


@pytest.mark.parametrize("spec", [spec for _, spec in GOOD_PLACING], ids=[name for name, _ in GOOD_PLACING])
def test_a_field_that_places_is_taken(spec: dict[str, Any]) -> None:
    checked = check_training(request(**spec))
    assert not isinstance(checked, FaultyCreation), checked


def test_an_item_that_says_exclude_is_left_out_and_needs_only_its_name() -> None:
    """R37. Until something sets defaults for lists, there is nothing else that it could leave out."""
    dropped, kept = {"name": "a", "exclude": True}, {"key": "k", "operator": "Exists", "effect": "Any"}
    checked = check_training(
        request(
            tolerations=[dropped, kept],
            **extended({"resource": "a/b", "exclude": True}, {"resource": "c/d", "quantity": "2"}),
        )
    )
    assert not isinstance(checked, FaultyCreation), checked
    stored = with_defaults(checked.spec)
    assert [toleration.key for toleration in stored.tolerations] == ["k"]
    assert [item.resource for item in stored.compute.extended_resources] == ["c/d"]
    asked = template(stored).request
    assert [(each.resource, each.amount) for each in asked.extended] == [("c/d", 2)]
    assert [each.key for each in asked.tolerated] == ["k"]


OTHER_LISTS: dict[str, tuple[str, dict[str, Any]]] = {
    "labels": ("name", {"name": "b", "value": "x"}),
    "annotations": ("name", {"name": "b", "value": "x"}),
    "environmentVariables": ("name", {"name": "b", "value": "x"}),
    "imagePullSecrets": ("name", {"name": "b"}),
    "relatedUrls": ("name", {"name": "b", "url": "https://a.example", "type": "wandb"}),
    "exposedUrls": ("name", {"name": "b", "container": 80}),
    "ports": ("name", {"name": "b", "container": 80, "serviceType": "ClusterIP"}),
}


@pytest.mark.parametrize("field", OTHER_LISTS)
def test_so_is_one_of_every_other_list(field: str) -> None:
    """S075, R37."""
    key, kept = OTHER_LISTS[field]
    checked = check_training(request(**{field: [{key: "a", "exclude": True}, kept]}))
    assert not isinstance(checked, FaultyCreation), checked
    stored = msgspec.to_builtins(with_defaults(checked.spec))[field]
    assert [(item[key], item.get("exclude", False)) for item in stored] == [("b", False)]


def test_nothing_of_what_places_is_listed_as_not_yet_in_force() -> None:
    """S044."""
    given = tolerations(effect="NoExecute", seconds=5)
    checked = check_training(request(terminateAfterPreemption=True, **given))
    assert not isinstance(checked, FaultyCreation), checked
    assert not_yet_in_force(checked.spec) == ()
