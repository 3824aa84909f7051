"""How a column is declared: once, as the annotation of a field of its row (projections/*/rows.py).

Its table, filter, order, JSON, OpenAPI, CSV and the command line follow from the declaration. Pure, and light: the
command line reads it.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from inspect import get_annotations
from typing import Annotated, Any, ClassVar, Final, Literal, get_args, get_origin

import msgspec

Type = Literal["text", "integer", "number", "flag", "time", "texts", "integers", "json"]
"""Of its values in SQL: a json is text in its row."""
Shown = Literal["always", "wide", "csv"]
"""Where the command line shows it unasked: in every table, with `-o wide`, or with `-o csv` only."""


@dataclass(frozen=True, slots=True)
class Public:
    """What people see of a column: rows of the API, filters, order, exports and tables of the command line."""

    name: str
    """Of the API, in camelCase. Where the column ends in `_milli`, the API gives whole units."""
    heading: str
    help: str
    """A sentence."""
    shown: Shown = "wide"
    place: int = 50
    """Among the columns that are shown as widely; the lowest first, and those of one place as declared."""
    empty_is_null: bool = False
    """Whether the API says null for an empty text."""
    searched: bool = False
    """Whether `search` looks into it."""
    values: Collection[str] = ()
    """Where it has only these: an enumeration has a name of its own in the OpenAPI document."""
    ranks: Mapping[str, int] = field(default_factory=dict[str, int])
    """Names for some of its whole numbers, in filters."""
    aliases: tuple[str, ...] = ()
    """Further names in filters and orders."""
    synonyms: Mapping[str, str] = field(default_factory=dict[str, str])
    """Other words for some of its values, in filters that ask whether it is equal."""
    only_asked_for: bool = False
    """Whether it only filters and sorts, and is no part of rows and exports."""


@dataclass(frozen=True, slots=True)
class Column[S]:
    """One column of the rows that are made of a state S."""

    value: Callable[[S], object] | None = None
    """Of a state; None where it is made otherwise."""
    key: bool = False
    """Whether it is part of the table's primary key."""
    type: Type = "text"
    """As the annotation says, but for json, which is text there."""
    null: bool = False
    """As the annotation says."""
    public: Public | None = None
    """Beside the column in the annotation; None where nobody sees it as it is."""
    name: str = ""
    """Of the field."""
    often: bool = False
    """Whether it changes again and again, or row-level security goes by it. Rows of the past have such a column for
    themselves; all others stand there together, and only where one of them changed."""
    stored: bool = True
    """Whether the table has it; one that is joined, or worked out by the query, is declared as a ClassVar."""

    @property
    def in_thousandths(self) -> bool:
        return self.name.endswith("_milli")


class Folded[S](msgspec.Struct, frozen=True):
    """An aggregate as one of its commits left it: what most rows are made of."""

    key: str
    """Of its subject in the log."""
    version: int
    """Sequence of that commit."""
    state: S


_TYPES: Final[dict[Any, Type]] = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "flag",
    datetime: "time",
    tuple[str, ...]: "texts",
    tuple[int, ...]: "integers",
}


@cache
def columns_of(row: type) -> tuple[Column[Any], ...]:
    """The columns of a row's type, in order of declaration."""
    return tuple(_columns(row))


def public_columns(row: type) -> tuple[tuple[Column[Any], Public], ...]:
    """Those that rows of the API have, in order of declaration."""
    return tuple((c, c.public) for c in columns_of(row) if c.public is not None and not c.public.only_asked_for)


def _columns(row: type) -> Iterator[Column[Any]]:
    for name, annotation in get_annotations(row).items():
        if get_origin(annotation) is ClassVar:
            yield replace(getattr(row, name), name=name, stored=False)
            continue
        kind, *said = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
        by_type: dict[type, Any] = {type(one): one for one in said}
        declared: Column[Any] = by_type.get(Column, Column[Any]())
        public: Public | None = by_type.get(Public)
        null = type(None) in get_args(kind)
        if null:
            (kind,) = (part for part in get_args(kind) if part is not type(None))
        type_ = declared.type if declared.type == "json" else _TYPES[kind]
        yield replace(declared, public=public, name=name, type=type_, null=null)


def row_maker[S, R](row: type[R], _: type[S]) -> Callable[[S], R]:
    """What makes the row of a state, each column by its value."""
    values = [(column.name, column.value) for column in columns_of(row) if column.stored and column.value is not None]

    def make(state: S) -> R:
        return row(**{name: value(state) for name, value in values})

    return make
