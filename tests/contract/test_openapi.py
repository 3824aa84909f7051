"""The served OpenAPI against the contract of the five Trainings endpoints (S086 to S093).

Muster's document may have less (fields that are not built yet, all of them named) and more (the statuses of
CONTRACT_EXTENSIONS, headers of its own, descriptions), and differs in nothing else.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from events.fields.node import tree
from events.fields.texts import help_of
from events.workload.fields.creation import TrainingCreation
from services.api.openapi import CONTRACT_EXTENSIONS
from services.api.unbuilt import UNBUILT_FIELDS
from tests.contract.schema import Schema, plain, resolved, served_document

CONTRACT: Schema = json.loads((Path(__file__).parent / "trainings-2.24.contract.json").read_text())
OURS = frozenset(
    {
        "spec.checkpoint",
        "spec.code",
        "spec.preStop",
        "spec.storage.git[].secretRef.userCredential",
        "spec.storage.s3[].userCredential",
        "spec.sweep",
        "assets",
    }
)
"""Fields that the contract does not have: each can be left out."""
OURS_IN_ANSWERS = frozenset({"notYetInForce", "setBy"})
"""Likewise of answers."""
ENDPOINTS = [(path, method) for path, methods in CONTRACT["paths"].items() for method in methods]


@pytest.fixture(params=ENDPOINTS, ids=lambda endpoint: f"{endpoint[1]} {endpoint[0]}")
def operations(request: pytest.FixtureRequest) -> tuple[Schema, Schema]:
    path, method = request.param
    return CONTRACT["paths"][path][method], served_document()["paths"][path][method]


def test_the_served_document_is_valid_openapi() -> None:
    from openapi_spec_validator import validate

    validate(served_document())


def test_operations_have_the_contracts_names(operations: tuple[Schema, Schema]) -> None:
    contract, served = operations
    assert served["operationId"] == contract["operationId"]


def test_path_parameters_are_the_contracts(operations: tuple[Schema, Schema]) -> None:
    """S091. Beside them, only what can be left out: the extensions that make repeats and order safe, and that
    ask for the past.
    """
    contract, served = operations
    wanted = [resolved(parameter, CONTRACT) for parameter in contract.get("parameters", [])]
    assert [p for p in served.get("parameters", []) if p["in"] == "path"] == wanted
    more = [p for p in served.get("parameters", []) if p["in"] != "path"]
    assert {p["name"] for p in more} <= {
        *("Idempotency-Key", "If-Match", "X-Log-Sequence", "min_seq", "as_of", "explain")
    }
    assert not any(p.get("required") for p in more)


def test_statuses_are_the_contracts_and_the_named_extensions(operations: tuple[Schema, Schema]) -> None:
    contract, served = operations
    assert set(contract["responses"]) <= set(served["responses"])
    assert {int(status) for status in set(served["responses"]) - set(contract["responses"])} <= CONTRACT_EXTENSIONS


def test_bodies_of_answers_are_the_contracts(operations: tuple[Schema, Schema]) -> None:
    contract, served = operations
    for status, response in contract["responses"].items():
        wanted = plain(body_of(response, CONTRACT), CONTRACT)
        answered = plain(body_of(served["responses"][status], served_document()), served_document())
        spec = wanted.get("properties", {}).pop("spec", None)
        if spec is not None:
            assert_subset("spec", answered["properties"].pop("spec"), spec)
        for name in OURS_IN_ANSWERS:
            answered.get("properties", {}).pop(name, None)
        assert answered == wanted, status


PATH = "/api/v1/workloads/trainings"


def both() -> tuple[Schema, Schema]:
    return CONTRACT, served_document()


def test_every_supported_field_has_the_contracts_constraints() -> None:
    wanted, served = (plain(body_of(of["paths"][PATH]["post"]["requestBody"], of), of) for of in both())
    assert served["required"] == wanted["required"]
    assert_subset("", served, wanted)


def test_every_other_field_of_the_contract_is_named_as_not_built() -> None:
    wanted, served = (plain(body_of(of["paths"][PATH]["post"]["requestBody"], of), of) for of in both())
    missing: dict[str, set[str]] = {}
    collect_missing("", served, wanted, missing)
    assert missing == {path: set(names) for path, names in UNBUILT_FIELDS.items()}


def test_every_field_of_a_training_tells_people_what_it_is() -> None:
    for field in tree(TrainingCreation).walk():
        assert help_of(field).endswith("."), field.path
        assert field.path == "spec" or (field.about is not None and field.about.rows), field.path


def body_of(holder: Schema, within: Schema) -> Schema:
    return resolved(holder, within)["content"]["application/json"]["schema"]


def assert_subset(path: str, served: Schema, wanted: Schema) -> None:
    """Equal constraints, for the properties that are there."""
    rest = {key: value for key, value in served.items() if key not in {"properties", "items"}}
    assert rest == {key: value for key, value in wanted.items() if key not in {"properties", "items"}}, path
    for name, inner in served.get("properties", {}).items():
        if f"{path}.{name}".removeprefix(".") in OURS:
            continue
        assert name in wanted["properties"], f"{path}.{name} is not in the contract"
        assert_subset(f"{path}.{name}", inner, wanted["properties"][name])
    if "items" in served:
        assert_subset(f"{path}[]", served["items"], wanted["items"])


def collect_missing(path: str, served: Schema, wanted: Schema, found: dict[str, set[str]]) -> None:
    properties: dict[str, Any] = served.get("properties", {})
    for name, inner in wanted.get("properties", {}).items():
        if name not in properties:
            found.setdefault(path, set()).add(name)
        else:
            collect_missing(f"{path}.{name}" if path else name, properties[name], inner, found)
    if "items" in served:
        collect_missing(f"{path}[]", served["items"], wanted["items"], found)
