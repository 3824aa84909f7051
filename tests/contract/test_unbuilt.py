"""Every field of the contract that is not built: its default is taken, anything else is refused by name. Made from the
contract, so that none is forgotten.
"""

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from services.api.check import FaultyCreation, check_training
from services.api.issues import MAX_ISSUES
from services.api.unbuilt import UNBUILT_FIELDS, Default, instead_of
from tests.contract.schema import Schema, plain
from tests.contract.test_openapi import CONTRACT, body_of

CREATION: Schema = plain(
    body_of(CONTRACT["paths"]["/api/v1/workloads/trainings"]["post"]["requestBody"], CONTRACT), CONTRACT
)


def schema_of(path: str) -> Schema:
    schema = CREATION
    for part in path.replace("[]", ".[]").split("."):
        schema = schema if not part else schema["items"] if part == "[]" else schema["properties"][part]
    return schema


def leaves(path: str, default: Default, schema: Schema) -> Iterator[tuple[str, Default, Schema]]:
    """Each field with a default of its own, the fields of objects among them."""
    if not isinstance(default, dict):
        yield path, default, schema
        return
    assert default.keys() == schema["properties"].keys(), path
    yield path, {}, schema
    for name, inner in default.items():
        yield from leaves(f"{path}.{name}", inner, schema["properties"][name])


LEAVES = [
    leaf
    for parent, fields in UNBUILT_FIELDS.items()
    for name, default in fields.items()
    for leaf in leaves(f"{parent}.{name}".lstrip("."), default, schema_of(parent)["properties"][name])
]


def sample(schema: Schema, default: Default) -> Any:
    """What the contract allows and is not the default."""
    match schema["type"]:
        case "boolean":
            return not default
        case "integer":
            return 5
        case "array":
            return [sample(schema["items"], None)]
        case "object":
            return {name: sample(inner, None) for name, inner in schema["properties"].items()}
        case _:
            return next(word for word in schema.get("enum", ["x"]) if word != default)


ITEMS: dict[str, dict[str, Any]] = {
    "imagePullSecrets[]": {"name": "a"},
    "relatedUrls[]": {"url": "https://a.example", "type": "wandb"},
    "configMapVolume[]": {"configMap": "a", "mountPath": "/a"},
    "emptyDirVolume[]": {"path": "/a"},
    "git[]": {"repository": "https://a.example/b", "path": "/a"},
    "hostPath[]": {"path": "/a", "mountPath": "/a"},
    "nfs[]": {"server": "a", "path": "/a", "mountPath": "/a"},
    "pvc[]": {"path": "/a", "claimInfo": {"size": "1Gi"}},
    "secretVolume[]": {"secret": "a", "mountPath": "/a"},
}
"""With what their rules want."""


def creation(path: str, value: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"name": "n", "projectId": "p", "clusterId": "c", "spec": {"image": "python:3.13"}}
    holder = body
    *parents, last = path.split(".")
    for part in parents:
        if part.endswith("[]"):
            item = copy.deepcopy(ITEMS.get(part, {"name": "A"}))
            holder[part.removesuffix("[]")] = [item]
            holder = item
        else:
            holder = holder.setdefault(part, {})
    holder[last] = value
    return body


@pytest.mark.parametrize(("path", "default", "schema"), LEAVES, ids=[leaf[0] for leaf in LEAVES])
def test_a_default_is_taken_as_if_it_were_not_there_and_anything_else_is_refused_by_name(
    path: str, default: Default, schema: Schema
) -> None:
    without = check_training(creation(path, None))
    assert not isinstance(without, FaultyCreation), "null is absent"
    if default is not None:
        taken = check_training(creation(path, default))
        assert not isinstance(taken, FaultyCreation), taken
        assert taken.spec == without.spec
    refused = check_training(creation(path, sample(schema, default)))
    assert isinstance(refused, FaultyCreation)
    shown = path.replace("[]", "[0]")
    assert all(issue.field == shown or issue.field.startswith(f"{shown}.") for issue in refused.issues)
    assert all("not built yet" in issue.details for issue in refused.issues)


def test_the_contracts_own_defaults_are_those_that_are_taken() -> None:
    told = {path: (schema["default"], default) for path, default, schema in LEAVES if "default" in schema}
    assert all(theirs == ours for theirs, ours in told.values()), told


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("spec.storage.pvc[].dataSharing", True, "muster datasource data-volume create); or leave it out"),
    ],
)
def test_what_is_not_built_says_what_would_do_instead(path: str, value: Any, words: str) -> None:
    """S056: who shares data between projects is told how that goes here."""
    refused = check_training(creation(path, value))
    assert isinstance(refused, FaultyCreation)
    (issue,) = refused.issues
    assert words in issue.details
    assert instead_of(path.replace("spec", "masterSpec", 1)) == instead_of(path) != ""


@pytest.mark.parametrize(
    ("spec", "fields"),
    [
        ({"terminateAfterPreemption": False, "ports": [], "storage": {}}, set()),
        ({"ports": [None], "storage": {"pvc": [], "git": None}, "security": {}, "probes": {}}, set()),
        ({"terminateAfterPreemption": 0}, {"spec.terminateAfterPreemption"}),
        ({"terminateAfterPreemption": "false"}, {"spec.terminateAfterPreemption"}),
        ({"ports": {}}, {"spec.ports"}),
        ({"storage": []}, {"spec.storage"}),
        ({"security": True}, {"spec.security"}),
        (
            {
                "storage": {
                    "s3": [],
                    "pvc": [None, {"path": "/a", "claimInfo": {"size": "1Gi"}, "dataSharing": True}],
                    "nonsense": [],
                }
            },
            {"spec.storage.pvc[1].dataSharing", "spec.storage.nonsense"},
        ),
    ],
)
def test_what_asks_for_something_is_named_and_what_asks_for_nothing_passes(
    spec: dict[str, Any], fields: set[str]
) -> None:
    checked = check_training({"name": "n", "projectId": "p", "clusterId": "c", "spec": {"image": "i", **spec}})
    assert {issue.field for issue in (checked.issues if isinstance(checked, FaultyCreation) else ())} == fields


def test_a_fault_behind_more_defaults_than_are_told_in_one_answer_is_found() -> None:
    labels = [{"name": f"l{number}", "exclude": False} for number in range(2 * MAX_ISSUES)]
    checked = check_training(
        {"name": "n", "projectId": "p", "clusterId": "c", "spec": {"image": "i", "labels": labels, "zzz": 1}}
    )
    assert isinstance(checked, FaultyCreation)
    assert [issue.field for issue in checked.issues] == ["spec.zzz"]
