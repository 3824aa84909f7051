"""Messages as their schema has them, and the same spoiled in every way that somebody else's bytes can be."""

import json
import types
from collections.abc import Sequence
from typing import Any, Final, TypeAliasType, Union, get_args, get_origin

import hypothesis.strategies as st
import msgspec

from tests.support.fuzz import of_struct

DEEP: Final = 10_000
_MARK: Final = "@@here@@"
_ODD: Final = (
    b"9223372036854775808",
    b"-9223372036854775809",
    b"9" * 5_000,
    b"-1",
    b"1e400",
    b"1e308",
    b"0.5",
    b"NaN",
    b"Infinity",
    b"null",
    b"true",
    b"{}",
    b"[]",
    b"[null]",
    b'""',
    b'"\\u0000"',
    b'"\\ud800"',
    b'"\xff\xfe"',
    b'"..\\/..\\/..\\/etc\\/passwd"',
    b'"a.b.>"',
    b'"0001-01-01T00:00:00+14:00"',
    b'"9999-12-31T23:59:59-14:00"',
    b'"2026-01-01T00:00:00"',
    b'"' + b"x" * 2**20 + b'"',
    b'"' + b"\\u0000" * 1_000 + b'"',
    b"[" * DEEP + b"]" * DEEP,
    b'{"a":' * DEEP + b"1" + b"}" * DEEP,
)
"""In the place of a value."""
_WHOLE: Final = (b"", b" ", b"\x00", b"\xff", b"{", b"nul", *_ODD)
HEADERS: Final = (
    None,
    {},
    {"Status": "100"},
    {"Status": "408"},
    {"Status": "503"},
    {"Status": "\x00"},
    {"Status": "999", "Description": "x" * 5_000},
    {"Description": ""},
    {"Nats-Sequence": "no number"},
)


def messages(type_: Any, **likely: Sequence[Any]) -> st.SearchStrategy[bytes]:
    """Of a struct or a union of them, as JSON: mostly spoiled, now and then as they should be."""
    wholes = [of_struct(struct, likely) for struct in structs(type_)]

    @st.composite
    def build(draw: st.DrawFn) -> bytes:
        fields = _plain(draw(st.one_of(wholes)))
        match draw(st.sampled_from(["whole", "value", "value", "value", "less", "more", "twice", "bytes", "cut"])):
            case "value":
                odd = draw(st.sampled_from(_ODD))
                return _dumped(_put(draw, fields, _MARK)).replace(f'"{_MARK}"'.encode(), odd)
            case "less":
                return _dumped(_without_one(draw, fields))
            case "more":
                return _dumped(fields | {draw(st.text(max_size=5)): "?"})
            case "twice":
                once = _dumped(fields)
                return once[:-1] + b"," + once[1:] if len(once) > len("{}") else once + once
            case "bytes":
                return draw(st.one_of(st.sampled_from(_WHOLE), st.binary(max_size=40)))
            case "cut":
                once = _dumped(fields)
                return once[: draw(st.integers(0, len(once)))] + draw(st.sampled_from((b"", b"\xff", b"}}}}", b"\x00")))
            case _:
                return _dumped(fields)

    return build()


def packed(type_: Any) -> st.SearchStrategy[bytes]:
    """The same as MessagePack, of a struct if one is given: any of its values, any other values, and any bytes."""
    values = st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(max_size=9)),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
        max_leaves=8,
    )
    deep = st.sampled_from((b"\x91" * DEEP + b"\x90", b"\x81\xa1a" * DEEP + b"\x80", b"", b"\xc1", b"\xd6\xff\xff\xff"))
    made = [of_struct(struct, {}).map(_packed) for struct in structs(type_)] if type_ is not None else []
    return st.one_of([*made, values.map(msgspec.msgpack.encode), st.binary(max_size=40), deep])


def _packed(value: Any) -> bytes:
    try:
        return msgspec.msgpack.encode(value)
    except (OverflowError, ValueError):
        return b""


def structs(type_: Any) -> list[type[msgspec.Struct]]:
    """That a type stands for."""
    if isinstance(type_, TypeAliasType):
        return structs(type_.__value__)
    if get_origin(type_) in (Union, types.UnionType):
        return [struct for one in get_args(type_) for struct in structs(one)]
    return [type_]


def _plain(value: Any) -> Any:
    if isinstance(value, msgspec.Raw):
        return json.loads(bytes(value))
    if isinstance(value, msgspec.Struct):
        info = value.__struct_config__
        tag = {} if info.tag is None else {info.tag_field or "type": info.tag}
        fields = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        return tag | {said: _plain(getattr(value, name)) for said, name in fields}
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    return msgspec.to_builtins(value)


def _dumped(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=True).encode()


def _put(draw: st.DrawFn, value: Any, odd: Any) -> Any:
    """The value with another one somewhere in it."""
    if isinstance(value, dict) and value:
        key = draw(st.sampled_from(sorted(value)))
        return value | {key: _put(draw, value[key], odd)}
    if isinstance(value, list) and value:
        return [_put(draw, value[0], odd), *value[1:]]
    return odd


def _without_one(draw: st.DrawFn, value: dict[str, Any]) -> dict[str, Any]:
    if not value:
        return value
    gone = draw(st.sampled_from(sorted(value)))
    return {name: one for name, one in value.items() if name != gone}
