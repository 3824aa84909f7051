"""The served OpenAPI document says of every value what it is: a client that is generated from it is typed."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from events.codec import REGISTRY
from services.api.application import OPERATIONS
from services.api.check import check
from tests.contract.schema import Schema, served_document


def schemas(where: str, part: Any) -> Iterator[tuple[str, Schema]]:
    """Every schema in a part of the document that is one, and in it."""
    yield where, part
    for name, inner in part.get("properties", {}).items():
        yield from schemas(f"{where}.{name}", inner)
    for key in ("items", "additionalProperties"):
        if isinstance(part.get(key), dict):
            yield from schemas(f"{where}[]", part[key])
    for key in ("allOf", "oneOf", "anyOf"):
        for option in part.get(key, ()):
            yield from schemas(where, option)


def contents() -> Iterator[tuple[str, Schema]]:
    for path, methods in served_document()["paths"].items():
        for method, described in methods.items():
            holders = [
                *described["responses"].values(),
                *([described["requestBody"]] if "requestBody" in described else []),
            ]
            for holder in holders:
                for media, content in holder["content"].items():
                    yield f"{method} {path} {media}", content["schema"]


@cache
def whole() -> list[tuple[str, Schema]]:
    """Every schema there is, with where it stands."""
    named = served_document()["components"]["schemas"].items()
    return [found for where, schema in (*named, *contents()) for found in schemas(where, schema)]


def test_every_schema_says_what_the_value_is() -> None:
    """Nothing is any value but the value of any field, and no object is any object."""
    vague = [
        where
        for where, schema in whole()
        if not schema.keys() & {"$ref", "allOf", "oneOf", "type"}
        or (schema.get("type") == "object" and not schema.keys() & {"properties", "additionalProperties", "allOf"})
        or schema.get("additionalProperties") is True
    ]
    assert vague == ["JsonValue"]


def test_every_reference_leads_somewhere() -> None:
    known = {f"#/components/schemas/{name}" for name in served_document()["components"]["schemas"]}
    assert {schema["$ref"] for _, schema in whole() if "$ref" in schema} <= known


@pytest.mark.parametrize(
    ("schema", "field", "enumeration"),
    [
        ("Workload", "phase", "Phase"),
        ("Workload", "actualPhase", "Phase"),
        ("Workload", "desiredPhase", "DesiredPhase"),
        ("Workload", "phaseReason", "PhaseReason"),
        ("WorkloadRow", "phase", "Phase"),
        ("Pod", "phase", "RunPhase"),
        ("Commit", "aggregate", "Aggregate"),
        ("AuditEntry", "command", "CommandName"),
    ],
)
def test_phases_and_codes_are_enumerations_with_a_name(schema: str, field: str, enumeration: str) -> None:
    described = served_document()["components"]["schemas"][schema]["properties"][field]
    assert {"$ref": f"#/components/schemas/{enumeration}"} in (described, *described.get("allOf", ()))
    assert served_document()["components"]["schemas"][enumeration]["enum"]


def test_a_workload_is_one_object_with_all_fields_of_its_row_and_of_the_contract() -> None:
    schema = served_document()["components"]["schemas"]
    whole = schema["Workload"]["properties"]
    of_some_kinds = schema["DistributedTraining"]["properties"].keys() | {"kubernetesType"}
    assert whole.keys() == schema["WorkloadRow"]["properties"].keys() | of_some_kinds
    assert schema["Training1"]["properties"].keys() < of_some_kinds


def test_every_event_has_a_form_of_its_own_in_the_log() -> None:
    (union,) = (served_document()["components"]["schemas"]["Commit"]["properties"]["events"]["items"],)
    assert union["discriminator"]["propertyName"] == "type"
    assert union["discriminator"]["mapping"].keys() == {name for name, _ in REGISTRY}


def test_every_field_of_an_answer_says_what_it_is() -> None:
    """But those that are in a form of an event: what needs no word there has none in the page of events either."""
    silent = [
        f"{name}.{field}"
        for name, schema in served_document()["components"]["schemas"].items()
        if not name.endswith(("Data", "Event", "Record", "Fields", "Request"))
        for field, inner in schema.get("properties", {}).items()
        if "description" not in inner
    ]
    assert silent == []


@pytest.mark.parametrize("operation", [op for op in OPERATIONS if op.body is not None], ids=lambda op: op.id)
def test_every_body_has_an_example_that_is_a_body(operation: Any) -> None:
    checked = check(operation.body, operation.example)
    assert not isinstance(checked, list), checked
