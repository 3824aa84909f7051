"""Values made from the structs themselves: what their decoders take, however little sense it makes."""

import random
import types
from collections.abc import Callable, Sequence
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


type _Maker = Callable[[random.Random], Any]
type _Given = tuple[tuple[str, tuple[Any, ...]], ...]


class _Misfit(ValueError):
    """No decoder takes it, whatever else is tried."""


def of_struct(struct: type[Any], given: dict[str, Sequence[Any]]) -> st.SearchStrategy[Any]:
    """Instances of it. Fields of the names in `given` mostly have one of those values.

    Made from a number that Hypothesis draws, and not drawn part by part: an event can have some three hundred parts,
    and most of a test's time went into drawing them.
    """
    make = _struct(struct, tuple((name, tuple(values)) for name, values in given.items()))
    return st.integers(0, 2**32 - 1).map(lambda seed: make(random.Random(seed)))


@cache
def _struct(struct: type[Any], given: _Given) -> _Maker:
    known = dict(given)
    fields: list[tuple[str, _Maker]] = []
    for field in msgspec.structs.fields(struct):
        maker = _of(field.type, given)
        if isinstance(field.default, msgspec.Struct) or (isinstance(field.default, str) and field.default):
            maker = _one_of([_one_of_these((field.default,)), maker])  # few texts are a quantity
        values = known.get(field.name)
        fields.append((field.name, maker if values is None else _mostly(_one_of_these(values), maker)))

    def make(source: random.Random) -> Any:
        for _ in range(100):
            try:
                return struct(**{name: maker(source) for name, maker in fields})
            except ValueError:
                continue  # what its decoder does not take either
        raise _Misfit(struct.__name__)

    return make


def _one_of_these(values: Sequence[Any]) -> _Maker:
    return lambda source: source.choice(values)


def _one_of(makers: Sequence[_Maker]) -> _Maker:
    return lambda source: source.choice(makers)(source)


def _mostly(usual: _Maker, odd: _Maker) -> _Maker:
    return lambda source: (usual if source.randrange(16) else odd)(source)


def _of(type_: Any, given: _Given) -> _Maker:
    origin, arguments = get_origin(type_), get_args(type_)
    if origin is Annotated:
        return _of(arguments[0], given)
    if isinstance(origin, TypeAliasType):
        return _of(origin.__value__[arguments], given)
    if origin is Literal:
        return _one_of_these(arguments)
    if origin in (Union, types.UnionType):
        return _one_of([_of(one, given) for one in arguments])
    if origin is tuple:
        item = _of(arguments[0], given)
        return lambda source: tuple(item(source) for _ in range(source.randrange(4)))
    if origin is dict:
        name, value = (_of(argument, given) for argument in arguments)
        return lambda source: {name(source): value(source) for _ in range(source.randrange(3))}
    if isinstance(type_, type) and issubclass(type_, msgspec.Struct):
        return _struct(type_, given)
    if isinstance(type_, type) and issubclass(type_, Enum):
        return _one_of_these(list(type_))
    if type_ is Any:
        return _one_of_these(VALUES)
    simple: dict[Any, Sequence[Any]] = {
        int: NUMBERS,
        float: FLOATS,
        str: TEXTS,
        bytes: (b"", b"\x00", b"[]"),
        bool: (False, True),
        msgspec.Raw: RAWS,
        date: (date.min, date(2026, 1, 1), date.max),
        type(None): (None,),
    }
    if type_ is datetime:
        return _mostly(_one_of_these(MOMENTS[:2]), _one_of_these(MOMENTS))
    return _one_of_these(simple[type_])
