"""The tree of fields that is read from their declarations, and the type that a request is checked against. Pure."""

import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAliasType, Union, get_args, get_origin

import msgspec

from events.fields.at_once import Lines
from events.fields.declare import About, Body, Limits, Section

Kind = Literal["text", "integer", "number", "boolean", "choice", "list", "object", "map"]
"""A map has names of anybody's, and a value of one kind for each."""

_KINDS: Final[dict[Any, Kind]] = {str: "text", int: "integer", float: "number", bool: "boolean"}
_WITHIN: Final = {"int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1)}
_MAX_DOUBLE: Final = 1.7976931348623157e308
"""Beyond are only infinities, which no JSON holds."""
_NO_LIMITS: Final = Limits()


EACH: Final = "*"


class Patterned(NamedTuple):
    """A pattern of a text that each item of a list has."""

    way: tuple[str, ...]
    """Names of the fields that lead to the list, EACH for every item of a list or value of a map on the way; none where
    the node is that list."""
    name: str
    """Of the text in each item."""
    pattern: Lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One field, or the items of a list (whose name is empty)."""

    name: str
    """On the wire."""
    attribute: str
    """In Python."""
    path: str
    """As in complianceIssues, such as `spec.labels[].name`."""
    kind: Kind
    limits: Limits
    about: About | None
    section: str
    """Heading under which it stands."""
    owner: type[Body] | None
    """The class that declares it; its docstring stands there."""
    struct: type[Body] | None
    """The class of an object."""
    options: tuple[str, ...] = ()
    """Of a choice."""
    default: Any = None
    mandatory: bool = False
    """Whether nothing else takes its place where it is left out."""
    nullable: bool = False
    """Whether a request may say null."""
    fields: tuple["Node", ...] = ()
    """Of an object."""
    item: "Node | None" = None
    """Of a list or a map."""
    by_name: dict[str, "Node"] = field(default_factory=dict[str, "Node"])
    request: Any = None
    """The type that a request's value must have; msgspec checks it, but for the patterns of items' texts."""
    patterns: tuple["Patterned", ...] = ()
    """Those of texts of items below, which are looked for in all items at once."""

    def walk(self) -> Iterator["Node"]:
        """Every field below, in the order of the declarations."""
        for node in self.fields:
            yield node
            yield from node.walk()
        if self.item is not None:
            yield from self.item.walk()


@cache
def tree(body: type[Body]) -> Node:
    """The request with these fields, as the object that it is."""
    return _node(body, name="", attribute="", path="", section=body.TITLE, owner=None)


@cache
def _declared(body: type[Body]) -> dict[str, msgspec.structs.FieldInfo]:
    """By name. One class is a part of many bodies, and to read its annotations takes longest of all."""
    return {found.name: found for found in msgspec.structs.fields(body)}


def _fields(body: type[Body], path: str, section: str) -> Iterator[Node]:
    own = _declared(body)
    for part in body.PARTS or (body,):
        for found in (own[name] for name in part.__struct_fields__ if name in own):
            yield _node(
                found.type,
                name=found.encode_name,
                attribute=found.name,
                path=f"{path}.{found.encode_name}" if path else found.encode_name,
                section=part.TITLE or section,
                owner=part,
                default=None if found.required else found.default,
                mandatory=found.required,
                nullable=issubclass(part, Section),
            )


def _node(
    annotation: Any,
    *,
    name: str,
    attribute: str,
    path: str,
    section: str,
    owner: type[Body] | None,
    default: Any = None,
    mandatory: bool = False,
    nullable: bool = False,
) -> Node:
    marks: list[object] = []
    base, null = _bare(annotation, marks)
    limits = next((mark for mark in marks if isinstance(mark, Limits)), _NO_LIMITS)
    kind, options, struct, fields, item = _shape(base, path, section, nullable=nullable)
    return Node(
        name=name,
        attribute=attribute,
        path=path,
        kind=kind,
        limits=limits,
        about=next((mark for mark in marks if isinstance(mark, About)), None),
        section=section,
        owner=owner,
        struct=struct,
        options=options,
        default=default,
        mandatory=mandatory,
        nullable=(null or nullable or limits.or_null) and not limits.not_null,
        fields=fields,
        item=item,
        by_name={one.name: one for one in fields},
        request=_request(base, kind, limits, fields, item),
        patterns=tuple(_patterns(kind, fields, item)),
    )


def _patterns(kind: Kind, fields: tuple[Node, ...], item: Node | None) -> Iterator[Patterned]:
    for one in fields:
        yield from (found._replace(way=(one.name, *found.way)) for found in one.patterns)
    if item is None:
        return
    yield from (found._replace(way=(EACH, *found.way)) for found in item.patterns)
    for one in item.fields if kind == "list" else ():
        if one.kind == "text" and (pattern := _pattern(one.limits)) is not None:
            yield Patterned((), one.name, Lines(pattern.removeprefix("^").removesuffix(r"\Z")))


def _bare(annotation: Any, marks: list[object]) -> tuple[Any, bool]:
    """(the type itself, whether null is one of its values); what is said beside it goes into `marks`."""
    null = False
    while True:
        origin = get_origin(annotation)
        if isinstance(origin, TypeAliasType):
            annotation = origin.__value__[get_args(annotation)]
        elif isinstance(annotation, TypeAliasType):
            annotation = annotation.__value__
        elif origin is Annotated:
            annotation, *more = get_args(annotation)
            marks += more
        elif origin in {Union, types.UnionType}:
            null = True
            (annotation,) = (part for part in get_args(annotation) if part is not types.NoneType)
        else:
            return annotation, null


def _shape(
    base: Any, path: str, section: str, *, nullable: bool
) -> tuple[Kind, tuple[str, ...], type[Body] | None, tuple[Node, ...], Node | None]:
    """(kind, options, class, fields, item) of a type."""
    origin = get_origin(base)
    if origin is Literal:
        return "choice", get_args(base), None, (), None
    if origin is tuple:
        inner = get_args(base)[0]
        # A null among the objects of a section's list is no item.
        null = nullable and isinstance(inner, type) and issubclass(inner, Body)
        item = _node(inner, name="", attribute="", path=f"{path}[]", section=section, owner=None, nullable=null)
        return "list", (), None, (), item
    if origin is dict:
        return (
            "map",
            (),
            None,
            (),
            _node(get_args(base)[1], name="", attribute="", path=f"{path}.*", section=section, owner=None),
        )
    if isinstance(base, type) and issubclass(base, Body):
        return "object", (), base, tuple(_fields(base, path, base.TITLE or section)), None
    return _KINDS[base], (), None, (), None


def _request(base: Any, kind: Kind, limits: Limits, fields: tuple[Node, ...], item: Node | None) -> Any:
    """The type of a value in a request, with its limits."""
    least, most = bounds(kind, limits)
    match kind:
        case "text":
            return _text(limits, _pattern(limits))
        case "integer" | "number":
            return Annotated[base, msgspec.Meta(ge=least, le=most)] if (least, most) != (None, None) else base
        case "list":
            assert item is not None
            one = item.request if item.struct is None else _struct(item.struct, item.fields, patterns=False)
            inner = one | None if item.nullable else one
            return Annotated[list[inner], msgspec.Meta(min_length=limits.shortest, max_length=limits.longest)]
        case "map":
            assert item is not None
            named = dict[str, item.request]
            return Annotated[named, msgspec.Meta(min_length=limits.shortest, max_length=limits.longest)]
        case "object":
            return _struct(base, fields, patterns=True)
        case "choice" | "boolean":
            return base


_structs: Final[dict[tuple[type[Body], bool], Any]] = {}
"""By class, and whether texts are held to their patterns. One class is a part of many bodies, and to make a type takes
as long as a small request.
"""


def _struct(of: type[Body], fields: tuple[Node, ...], *, patterns: bool) -> Any:
    """The type of an object. Args: patterns, whether it holds texts to theirs, which takes longest of all."""
    if (made := _structs.get((of, patterns))) is None:
        made = _structs[of, patterns] = _made_struct(of, fields, patterns=patterns)
    return made


def _made_struct(of: type[Body], fields: tuple[Node, ...], *, patterns: bool) -> Any:
    types_ = [one.request if patterns or one.kind != "text" else _text(one.limits, None) for one in fields]
    return msgspec.defstruct(
        of.__name__,
        [
            (one.attribute, type_) if one.mandatory else (one.attribute, type_ | None if one.nullable else type_, None)
            for one, type_ in zip(fields, types_, strict=True)
        ],
        kw_only=True,
        forbid_unknown_fields=True,
        rename="camel",
    )


def _text(limits: Limits, pattern: str | None) -> Any:
    return Annotated[str, msgspec.Meta(min_length=limits.shortest, max_length=limits.longest, pattern=pattern)]


def _pattern(limits: Limits) -> str | None:
    """What a text is held to; without words a rule does it."""
    return limits.pattern.removesuffix("$") + r"\Z" if limits.words else None


def bounds(kind: Kind, limits: Limits) -> tuple[float | None, float | None]:
    """(least, most) that a number may be, by its limits and by its format."""
    least, most = _WITHIN.get(limits.format, (-_MAX_DOUBLE, _MAX_DOUBLE) if kind == "number" else (None, None))
    return least if limits.least is None else limits.least, most if limits.most is None else limits.most


def item_key(field: Node) -> str | None:
    """What tells the items of a list from each other; None where they are not merged one by one."""
    if field.kind != "list" or field.item is None or field.item.struct is None:
        return None
    key = field.about.key if field.about is not None and field.about.key else "name"
    return key if key in field.item.by_name else None
