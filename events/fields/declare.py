"""What a field is declared with: a section to stand in, and what the type alone does not say. Data."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import msgspec


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a request may give for a value of this type. The stored value is never held to it: a limit that becomes
    narrower must not make an old event unreadable.
    """

    format: str = ""
    """As OpenAPI calls it; `int32` and `int64` bring their bounds."""
    least: float | None = None
    most: float | None = None
    shortest: int | None = None
    """Characters, or items of a list."""
    longest: int | None = None
    pattern: str = ""
    words: str = ""
    """What the pattern says, after the value's name; without them the pattern is only shown, and a rule checks it."""
    or_null: bool = False
    """Whether null stands for the default where the type itself has no null."""
    not_null: bool = False
    """Whether a request may not say null, though it may of the other fields of the section."""
    hides_options: bool = False
    """Whether OpenAPI leaves out which words are possible, as the contract does."""
    shows_default: bool = False
    """Whether OpenAPI says the default also where null stands for it, as the contract does."""
    hides_default: bool = False
    """Whether OpenAPI leaves out the default, as the contract does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What else is to be said of a field; the sentence for people is the docstring below it."""

    rows: str
    """Rows of the requirements that it fulfils."""
    unit: str = ""
    flag: str = ""
    """Of the command that submits; empty where the field has none of its own."""
    aliases: tuple[str, ...] = ()
    """Short and second names of the flag."""
    key: str = ""
    """Of a list: the field of an item that no two items may share."""
    later: bool = False
    """Whether it may be changed after submission."""
    in_force: bool = True
    """Whether anything of Muster acts on it yet. Where not, answers list it in `notYetInForce` if it is given."""
    not_for: tuple[str, ...] = ()
    """Kinds of workload that have the field, since the contract does, and refuse it by a rule: no flag gives it."""
    example: str = ""
    """Given to who left out a mandatory field."""
    instead: Mapping[str, str] = MappingProxyType({})
    """Of a choice: what is said of a word that people give and that is none, in place of the one that looks like it."""
    between: tuple[float, float] | None = None
    """(more than, at most): what a rule says of its range, where the contract's schema says less."""


class Body(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The fields of a request. One without a default must be given; null is taken where the type has it."""

    TITLE: ClassVar[str] = ""
    """Heading of these fields in help and forms; those of an item or of an object stand under their holder's."""
    PARTS: ClassVar[tuple[type["Body"], ...]] = ()
    """The sections that `joined` made it from."""
    TEXTS: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """What fields do, by their names in Python, where the class has no source to say it."""


class Section(Body, frozen=True, kw_only=True):
    """Fields of a spec, as they are stored: every one with its value. In a request any of them may be absent or null,
    which means the default; one without a default is then missing.
    """


class Item(Section, frozen=True, kw_only=True, omit_defaults=True):
    """An object within a list of a spec. Its defaults mean "nothing" and stay what they are, so they are not stored."""


def joined(
    name: str,
    module: str,
    *sections: type[Section],
    without: AbstractSet[str] = frozenset(),
    defaults: Mapping[str, Any] = MappingProxyType({}),
    optional: bool = False,
) -> Any:
    """A struct with the fields of all sections side by side, as they stand in JSON: structs do not combine as bases.

    Args:
        without: fields, by their names in Python, that it does not have.
        defaults: fields whose default is another one here, or that have one here only.
        optional: whether also fields without a default may be left out; they are null then.
    """
    fields = [
        ((field.name, field.type | None, None) if optional else (field.name, field.type))
        if field.required and field.name not in defaults
        else (field.name, field.type, defaults.get(field.name, field.default))
        for section in sections
        for field in msgspec.structs.fields(section)
        if field.name not in without
    ]
    return msgspec.defstruct(
        name, fields, bases=(Section,), module=module, namespace={"PARTS": sections}, frozen=True, kw_only=True
    )
