"""What the generated types have in common, and how JSON becomes one of them."""

from abc import ABCMeta
from collections.abc import Mapping
from datetime import datetime
from html import escape
from typing import Any

import msgspec


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A thing of the API. Fields that are not known here are ignored. None: there is nothing, or it was not told."""

    def _repr_html_(self) -> str:
        """A table of what it holds, for notebooks."""
        held = ((name, getattr(self, name)) for name in self.__struct_fields__)
        rows = (
            f"<tr><th>{escape(name)}</th><td style='text-align:left'>{escape(_text(value))}</td></tr>"
            for name, value in held
            if value not in (None, msgspec.UNSET, [])
        )
        return f"<table>{''.join(rows)}</table>"


class _Null:
    """Written as null."""

    def __repr__(self) -> str:
        return "NULL"


NULL: Any = _Null()
"""In any field of a request: null. It clears what a policy, a template or an asset sets; None leaves the field out."""


def encoded(value: object) -> bytes:
    """As JSON."""
    return msgspec.json.encode(value, enc_hook=_write_null)


def _write_null(value: object) -> None:
    if not isinstance(value, _Null):
        raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def _text(value: object) -> str:
    return value.isoformat(sep=" ", timespec="seconds") if isinstance(value, datetime) else str(value)


def one_of(name: str, tag: str, members: Mapping[str, type[Model]], other: type[Model]) -> type:
    """The class of a union whose members a field of JSON tells apart. What is newer than this client is an `other`."""

    def read(given: dict[str, Any]) -> Model:
        return msgspec.convert(given, members.get(given[tag], other), dec_hook=_read_union)

    union: Any = ABCMeta(name, (), {"read": staticmethod(read)})
    for member in (*members.values(), other):
        union.register(member)
    return union


def _read_union(union: Any, given: Any) -> Model:
    return union.read(given)


def decoded[T](content: bytes | str, answer: type[T]) -> T:
    """JSON as one of the types. Raises msgspec.ValidationError."""
    return msgspec.json.decode(content, type=answer, dec_hook=_read_union)
