"""Schemas of what the API is sent, as OpenAPI 3.0 has them, made from the declarations. Pure."""

from collections.abc import Iterable
from typing import Any, Final

from events.fields.declare import Body
from events.fields.node import Kind, Node, tree
from events.fields.texts import help_of, label_of
from services.api.schemas import Schema, ref

_TYPES: Final[dict[Kind, str]] = {
    "text": "string",
    "choice": "string",
    "integer": "integer",
    "number": "number",
    "boolean": "boolean",
    "list": "array",
    "object": "object",
    "map": "object",
}


def body_schemas(bodies: Iterable[type[Body]]) -> dict[str, Schema]:
    """The bodies and every object within them, by their names."""
    found: dict[str, Schema] = {}
    for body in bodies:
        node = tree(body)
        for field in (node, *node.walk()):
            one = field.item or field
            if one.struct is not None:
                found.setdefault(one.struct.__name__, _object(one))
    return found


def _object(node: Node) -> Schema:
    schema: Schema = {"type": "object", "properties": {one.name: _field(one) for one in node.fields}}
    if required := [one.name for one in node.fields if one.mandatory and not one.nullable and not one.limits.not_null]:
        schema["required"] = required
    return schema | {"additionalProperties": False}


def _field(node: Node) -> Schema:
    schema = _value(node) | {"description": help_of(node)}
    if about := node.about:
        marks = {
            "section": node.section,
            "row": about.rows,
            "unit": about.unit,
            "flag": about.flag,
            "later": about.later,
        }
        schema["title"] = label_of(node)
        schema["x-muster"] = {key: value for key, value in marks.items() if value}
    shown = node.limits.shows_default or not (node.nullable or node.limits.hides_default)
    # A field that must be left out or given has null for its default, and no null.
    if shown and not node.mandatory and node.default is not None:
        schema["default"] = list(node.default) if node.kind == "list" else node.default
    return schema


def _value(node: Node) -> Schema:
    """What a value may be. Beside a reference OpenAPI 3.0 reads nothing else."""
    null: Schema = {"nullable": True} if node.nullable else {}
    if node.struct is not None:
        return {"allOf": [ref(node.struct.__name__)], **null} if node.owner or null else ref(node.struct.__name__)
    limits = node.limits
    said: dict[str, Any] = {"format": limits.format, "pattern": limits.pattern}
    told: dict[str, Any] = {}
    match node.kind:
        case "text":
            told = {"minLength": limits.shortest, "maxLength": limits.longest}
        case "map":
            told = {"minProperties": limits.shortest, "maxProperties": limits.longest}
        case "list":
            told = {"minItems": limits.shortest, "maxItems": limits.longest}
        case "integer" | "number":
            told = {"minimum": limits.least, "maximum": limits.most}
        case _:
            pass
    schema: Schema = {"type": _TYPES[node.kind]}
    schema |= {key: value for key, value in said.items() if value}
    schema |= {key: value for key, value in told.items() if value is not None}
    if node.options and not limits.hides_options:
        schema["enum"] = list(node.options)
    if node.item is not None:
        schema["additionalProperties" if node.kind == "map" else "items"] = _value(node.item)
    return schema | null
