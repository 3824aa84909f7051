"""Strategies made from the structs themselves: what their decoders take, however little sense it makes."""

import random
import types
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from enum import Enum
from functools import cache
from typing import Annotated, Any, Literal, TypeAliasType, Union, get_args, get_origin

import hypothesis.strategies as st
import msgspec

NUMBERS = (0, 0, 1, 1, 2, 3, 8, 1000, 2**20, -1, 2**31, 2**62, 2**63 - 1, 2**63, -(2**63), 2**80, -(2**80))
FLOATS = (0.0, 0.5, 1.0, 8.0, -1.0, 1e300)
LONG = random.Random(1).randbytes(1_500).hex()
"""No server makes it much shorter, so no index takes it."""
TEXTS = (
    "",
    LONG,
    LONG + "x",
    "a",
    "b",
    "a b",
    "main",
    "\x00",
    'quote"',
    "..",
    "a.b",
    "1Gi",
    "default",
    "é\U0001f600" * 3,
    "x" * 300,
)
RAWS = (msgspec.Raw(b"{}"), msgspec.Raw(b"[1e400]"), msgspec.Raw(b"null"))
VALUES: tuple[Any, ...] = (None, True, 0, -1.5, "", "a", "\x00", [], [{}], ["a", None], {}, {"name": "a", "x": [1]})
"""Of JSON."""
MOMENTS = (
    datetime(2026, 1, 1, 12, tzinfo=UTC),
    datetime(2026, 1, 1, 12, 0, 9, 250, tzinfo=timezone(-timedelta(hours=23, minutes=59))),
    datetime(2026, 1, 1),  # noqa: DTZ001 (of no zone, on purpose)
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(1, 1, 3, tzinfo=UTC),
    datetime(9999, 12, 29, tzinfo=UTC),
    datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-14))),
)


def of_struct(struct: type[Any], given: dict[str, Sequence[Any]]) -> st.SearchStrategy[Any]:
    """Instances of it. Fields of the names in `given` mostly have one of those values."""
    return _struct(struct, tuple((name, tuple(values)) for name, values in given.items()))


type _Given = tuple[tuple[str, tuple[Any, ...]], ...]


@cache
def _struct(struct: type[Any], given: _Given) -> st.SearchStrategy[Any]:
    known = dict(given)
    fields: dict[str, st.SearchStrategy[Any]] = {}
    for field in msgspec.structs.fields(struct):
        whatever = _of(field.type, given)
        if isinstance(field.default, msgspec.Struct) or (isinstance(field.default, str) and field.default):
            whatever = st.one_of(st.just(field.default), whatever)  # few texts are a quantity
        values = known.get(field.name)
        fields[field.name] = whatever if values is None else _mostly(st.sampled_from(values), whatever)

    @st.composite
    def build(draw: st.DrawFn) -> Any:
        made = {name: draw(strategy) for name, strategy in fields.items()}
        try:
            return struct(**made)
        except ValueError:
            return None  # what its decoder does not take either

    return build().filter(lambda made: made is not None)


def _mostly(usual: st.SearchStrategy[Any], odd: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.integers(0, 15).flatmap(lambda n: odd if n == 15 else usual)


def _of(type_: Any, given: _Given) -> st.SearchStrategy[Any]:
    origin, arguments = get_origin(type_), get_args(type_)
    if origin is Annotated:
        return _of(arguments[0], given)
    if isinstance(origin, TypeAliasType):
        return _of(origin.__value__[arguments], given)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (Union, types.UnionType):
        return st.one_of([_of(one, given) for one in arguments])
    if origin is tuple:
        return st.lists(_of(arguments[0], given), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(_of(arguments[0], given), _of(arguments[1], given), max_size=2)
    if isinstance(type_, type) and issubclass(type_, msgspec.Struct):
        return _struct(type_, given)
    if isinstance(type_, type) and issubclass(type_, Enum):
        return st.sampled_from(list(type_))
    if type_ is Any:
        return st.sampled_from(VALUES)
    simple: dict[Any, st.SearchStrategy[Any]] = {
        int: st.sampled_from(NUMBERS),
        float: st.sampled_from(FLOATS),
        str: st.sampled_from(TEXTS),
        bytes: st.sampled_from((b"", b"\x00", b"[]")),
        bool: st.booleans(),
        msgspec.Raw: st.sampled_from(RAWS),
        datetime: _mostly(st.sampled_from(MOMENTS[:2]), st.sampled_from(MOMENTS)),
        date: st.sampled_from((date.min, date(2026, 1, 1), date.max)),
        type(None): st.none(),
    }
    return simple[type_]
