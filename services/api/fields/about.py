"""What a field of the registry says about itself, the types that fields are made of, and the list of all fields."""

import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetJsonSchemaHandler, WithJsonSchema
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

QUANTITY_PATTERN: Final = r"^([+]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$"
"""The contract's pattern; the real parser is stricter where this lets nonsense through (C9)."""


NAME_PATTERN: Final = r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$"
PREFIX_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
OBJECT_NAME_PATTERN: Final = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"


class FieldsModel(BaseModel):
    """A group of request fields: camelCase on the wire, nothing converted, nothing unknown."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """The metadata of one field, carried in its `Annotated`."""

    label: str
    """As a form shows it."""
    help: str
    """One or two sentences in our own words: what it does, its default, its range."""
    section: str
    """Of the form."""
    row: str
    """Rows of the requirements that it fulfils."""
    unit: str = ""
    flag: str = ""
    """Of `muster training submit`; empty where the field has none of its own."""
    options: tuple[str, ...] = ()
    """What a text may be, where the contract's schema leaves it open."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core)
        told: JsonSchemaValue = {"title": self.label, "description": self.help}
        marks = {"section": self.section, "row": self.row, "unit": self.unit, "flag": self.flag}
        told["x-muster"] = {key: value for key, value in marks.items() if value}
        # Beside a reference OpenAPI 3.0 reads nothing else.
        return {"allOf": [schema], **told} if "$ref" in schema else schema | told


def _without_nulls(items: list[Any]) -> list[Any]:
    return [item for item in items if item is not None]


MAX_LIST_ITEMS: Final = 1000
"""The contract's maxItems, everywhere."""

type Int32 = Annotated[int, Field(ge=-(2**31), le=2**31 - 1), WithJsonSchema({"type": "integer", "format": "int32"})]
type Int64 = Annotated[int, Field(ge=-(2**63), le=2**63 - 1), WithJsonSchema({"type": "integer", "format": "int64"})]
type NaturalInt32 = Annotated[
    int, Field(ge=0, le=2**31 - 1), WithJsonSchema({"type": "integer", "format": "int32", "minimum": 0})
]
type NaturalInt64 = Annotated[
    int, Field(ge=0, le=2**63 - 1), WithJsonSchema({"type": "integer", "format": "int64", "minimum": 0})
]
type NaturalNumber = Annotated[float, Field(ge=0), WithJsonSchema({"type": "number", "format": "double", "minimum": 0})]
type Quantity = Annotated[
    str, Field(max_length=63), WithJsonSchema({"type": "string", "maxLength": 63, "pattern": QUANTITY_PATTERN})
]
type Uuid = Annotated[str, WithJsonSchema({"type": "string", "format": "uuid"})]
type ItemName = Annotated[str, Field(min_length=1, max_length=63)]
type ItemsOf[T] = Annotated[list[T | None], Field(max_length=MAX_LIST_ITEMS), AfterValidator(_without_nulls)]
"""A list as the contract has them: at most a thousand items, and a null among them is no item."""

FieldKind = Literal["text", "integer", "number", "boolean", "choice", "list", "quantity"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldEntry:
    """One field of the registry, for flags and reference pages."""

    path: str
    """As in complianceIssues, such as `spec.labels[].name`."""
    type: FieldKind
    options: tuple[str, ...]
    """Of a choice."""
    about: About

    @property
    def label(self) -> str:
        return self.about.label

    @property
    def help(self) -> str:
        return self.about.help

    @property
    def flag(self) -> str:
        return self.about.flag

    @property
    def row(self) -> str:
        return self.about.row


def listed_fields(model: type[FieldsModel], prefix: str = "") -> Iterator[FieldEntry]:
    """Every field of a model and of the models in it, in their order."""
    for name, info in model.model_fields.items():
        path = f"{prefix}{info.alias or name}"
        about = next((mark for mark in info.metadata if isinstance(mark, About)), None)
        kind, options, inner = _shape(info.annotation)
        if about is not None:
            yield FieldEntry(path=path, type=kind, options=about.options or options, about=about)
        if inner is not None:
            yield from listed_fields(inner, f"{path}[]." if kind == "list" else f"{path}.")


def _shape(annotation: Any) -> tuple[FieldKind, tuple[str, ...], type[FieldsModel] | None]:
    """(kind, options of a choice, the model inside) of a field's type."""
    if annotation is Quantity:
        return "quantity", (), None
    origin = get_origin(annotation)
    if origin is Annotated:
        return _shape(get_args(annotation)[0])
    if origin in {Union, types.UnionType}:
        return _shape(next(part for part in get_args(annotation) if part is not types.NoneType))
    if origin is ItemsOf or origin is list:
        _, _, inner = _shape(get_args(annotation)[0])
        return "list", (), inner
    if origin is Literal:
        return "choice", get_args(annotation), None
    if hasattr(annotation, "__value__"):
        return _shape(annotation.__value__)
    if isinstance(annotation, type) and issubclass(annotation, FieldsModel):
        return "text", (), annotation
    kinds: dict[Any, FieldKind] = {int: "integer", float: "number", bool: "boolean"}
    return kinds.get(annotation, "text"), (), None
