"""Schemas of OpenAPI 3.0, made plain: for comparing two of them, and for validating answers."""

import json
from datetime import datetime
from functools import cache
from typing import Any
from uuid import UUID

from jsonschema import Draft202012Validator, FormatChecker

from services.api.application import OPERATIONS
from services.api.openapi import document

Schema = dict[str, Any]
TOLD = {"description", "title", "example"}
"""What says something to people and nothing to programs."""


@cache
def served_document() -> Schema:
    """The document, as it is served: made when a test asks for it, since each process of a run collects all modules."""
    return json.loads(json.dumps(document(OPERATIONS)))


def resolved(schema: Schema, document: Schema) -> Schema:
    """The schema a reference leads to."""
    while "$ref" in schema:
        target: Any = document
        for part in schema["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        schema = target
    return schema


def plain(schema: Schema, document: Schema) -> Schema:
    """Without references, allOf and words; patterns that check nothing are left out."""
    schema = resolved(schema, document)
    merged: Schema = {}
    for part in (*schema.get("allOf", ()), {key: value for key, value in schema.items() if key != "allOf"}):
        flat = part if part is not schema and "allOf" not in part and "$ref" not in part else None
        for key, value in (flat if flat is not None else plain(part, document)).items():
            if key == "properties":
                merged.setdefault("properties", {}).update(value)
            elif key == "required":
                merged["required"] = sorted({*merged.get("required", ()), *value})
            elif key not in TOLD and not key.startswith("x-") and (key, value) != ("pattern", ".*"):
                merged[key] = value
    if "properties" in merged:
        merged["properties"] = {name: plain(inner, document) for name, inner in merged["properties"].items()}
        merged.setdefault("type", "object")
    if "items" in merged:
        merged["items"] = plain(merged["items"], document)
    if "enum" in merged:
        # A length beside a list of words checks nothing.
        merged.pop("minLength", None)
    if merged.get("additionalProperties") is False:
        del merged["additionalProperties"]
    return merged


def validator(schema: Schema, document: Schema) -> Draft202012Validator:
    """A validator that reads `nullable` and the formats as OpenAPI 3.0 means them."""
    return Draft202012Validator(_with_null(plain(schema, document)), format_checker=_FORMATS)


def _with_null(schema: Schema) -> Schema:
    schema = {key: value for key, value in schema.items() if key != "nullable"} | (
        {"type": [schema["type"], "null"]} if schema.get("nullable") and "type" in schema else {}
    )
    if "enum" in schema and isinstance(schema.get("type"), list):
        schema["enum"] = [*schema["enum"], None]
    if "properties" in schema:
        schema["properties"] = {name: _with_null(inner) for name, inner in schema["properties"].items()}
    if "items" in schema:
        schema["items"] = _with_null(schema["items"])
    return schema


_FORMATS = FormatChecker(formats=())


@_FORMATS.checks("uuid", raises=ValueError)
def _is_uuid(value: object) -> bool:
    return not isinstance(value, str) or str(UUID(value)) == value


@_FORMATS.checks("date-time", raises=ValueError)
def _is_time(value: object) -> bool:
    return not isinstance(value, str) or (datetime.fromisoformat(value) is not None and value.endswith("Z"))
