"""Schemas of OpenAPI 3.0 from the structs of answers: msgspec's JSON Schema, said in the older dialect. Pure."""

import ast
import inspect
import textwrap
from collections.abc import Iterable
from enum import Enum
from functools import cache
from types import ModuleType
from typing import Any, Final, cast

import msgspec

from services.api.shown_events import camel

type Schema = dict[str, Any]

REF_TEMPLATE: Final = "#/components/schemas/{name}"
SHOWS: Final = "SHOWS"
"""A struct that is made from another one names it so: descriptions stand there."""


BESIDE: Final = "SCHEMA"
"""What a struct adds to its schema."""


def ref(name: str) -> Schema:
    return {"$ref": REF_TEMPLATE.format(name=name)}


def answer_schemas(structs: Iterable[type[msgspec.Struct]]) -> dict[str, Schema]:
    """By name, those of these structs and of all that they are made of."""
    kinds = list(dict.fromkeys(structs))
    _, components = msgspec.json.schema_components(kinds, ref_template=REF_TEMPLATE)
    seen: set[type] = set()
    found = {named.__name__: named for kind in kinds for named in _named(msgspec.inspect.type_info(kind), seen)}
    schemas: dict[str, Schema] = {}
    for name, schema in components.items():
        schemas[name] = _dialect(schema)
        owner = found.get(name)
        if owner is not None and issubclass(owner, Enum):
            schemas[name]["enum"] = [word.value for word in owner]  # msgspec gives them by alphabet
        elif owner is not None and issubclass(owner, msgspec.Struct):
            schemas[name] |= getattr(owner, BESIDE, {})
            _describe(schemas[name], owner)
    return schemas


def _named(info: object, seen: set[type]) -> Iterable[type]:
    """Every struct and every enumeration inside a type."""
    match info:
        case msgspec.inspect.EnumType():
            yield info.cls
        case msgspec.inspect.StructType():
            if info.cls not in seen:
                seen.add(info.cls)
                yield info.cls
                for field in info.fields:
                    yield from _named(field.type, seen)
        case msgspec.inspect.UnionType(types=parts):
            for part in parts:
                yield from _named(part, seen)
        case msgspec.inspect.ListType() | msgspec.inspect.VarTupleType():
            yield from _named(info.item_type, seen)
        case msgspec.inspect.DictType():
            yield from _named(info.value_type, seen)
        case msgspec.inspect.Metadata():
            yield from _named(info.type, seen)
        case _:
            pass


def _dialect(schema: Schema) -> Schema:
    """The same in OpenAPI 3.0: null is a mark beside a type, one word is a list of one, and nothing stands beside a
    reference.
    """
    said = {
        key: _inside(key, value) for key, value in schema.items() if key not in {"title", "default"} and value != []
    }
    if "const" in said:
        said["enum"] = [said.pop("const")]
    if "enum" in said and "type" not in said:
        said["type"] = "integer" if all(isinstance(word, int) for word in said["enum"]) else "string"
    options: list[Schema] = said.pop("anyOf", [])
    others = [option for option in options if option.get("type") != "null"]
    if len(others) == 1:
        (other,) = others
        said = {"allOf": [other], **said} if "$ref" in other else other | said
    elif others:
        said["oneOf"] = others
    if len(others) < len(options):
        said["nullable"] = True
    if "$ref" in said and len(said) > 1:
        said = {"allOf": [{"$ref": said.pop("$ref")}], **said}
    return said


def _inside(key: str, value: Any) -> Any:
    match key, value:
        case ("properties", dict()):
            return {name: _dialect(inner) for name, inner in cast("dict[str, Schema]", value).items()}
        case ("items" | "additionalProperties", dict()):
            return _dialect(cast("Schema", value))
        case ("anyOf" | "allOf", list()):
            return [
                option if option == {"type": "null"} else _dialect(option) for option in cast("list[Schema]", value)
            ]
        case _:
            return value


def _describe(schema: Schema, struct: type[msgspec.Struct]) -> None:
    """Give each property the docstring of its field."""
    told = docstrings(struct)
    wire = dict(zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True))
    for name, text in told.items():
        inner = schema.get("properties", {}).get(wire.get(name, camel(name)))
        if inner is not None and "description" not in inner:
            described = {"allOf": [{"$ref": inner.pop("$ref")}]} if "$ref" in inner else {}
            inner.update(described | {"description": text})


def docstrings(struct: type) -> dict[str, str]:
    """What stands below the fields of a class and of those that it is made from."""
    found: dict[str, str] = {}
    for owner in reversed(struct.__mro__):
        shown = owner.__dict__.get(SHOWS)
        if shown is not None:
            found |= docstrings(shown)
            continue
        module = inspect.getmodule(owner)
        if module is not None and owner.__module__ != "builtins":
            found |= _of_module(module).get(owner.__name__, {})
    return found


@cache
def _of_module(module: ModuleType) -> dict[str, dict[str, str]]:
    """By class, what stands below its fields; nothing where the source is away."""
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(module))).body
    except (OSError, TypeError):
        return {}
    return {item.name: dict(_below_fields(item)) for item in body if isinstance(item, ast.ClassDef)}


def _below_fields(owner: ast.ClassDef) -> Iterable[tuple[str, str]]:
    for item, after in zip(owner.body, owner.body[1:], strict=False):
        match item, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, " ".join(text.split())
            case _:
                pass
    for item in owner.body:
        # A field that is given in another way: by a property.
        if isinstance(item, ast.FunctionDef) and (text := ast.get_docstring(item)):
            yield item.name, " ".join(text.split())
