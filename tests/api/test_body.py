"""Bytes that are no request, and how each is told so. Pure."""

import contextlib
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.api.body import MAX_JSON_DEPTH, BadBodyError, read_object, unfit_texts

BAD = {
    "empty": b"",
    "spaces": b"  \n",
    "cut off": b'{"a": ',
    "a list": b"[]",
    "a number": b"5",
    "NaN": b'{"a": NaN}',
    "Infinity": b'{"a": -Infinity}',
    "a number that no double holds": b'{"a": 1e400}',
    "an integer of five thousand digits": b'{"a": ' + b"1" * 5000 + b"}",
    "half a surrogate pair": b'{"a": "\\ud800"}',
    "the other half": b'{"a": "\\udc00"}',
    "a surrogate in UTF-8": b'{"a": "\xed\xa0\x80"}',
    "not UTF-8": b'{"a": "\xff"}',
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf{}",
    "a raw control character": b'{"a": "\x01"}',
    "two objects": b"{} {}",
    "a hundred thousand brackets": b"[" * 100_000,
    "deep lists": b'{"a":' + b"[" * 40 + b"]" * 40 + b"}",
    "deep objects": b'{"a":' * 40 + b"1" + b"}" * 40,
}


@pytest.mark.parametrize("body", BAD.values(), ids=BAD.keys())
def test_a_body_that_is_no_object_is_refused_in_one_sentence(body: bytes) -> None:
    with pytest.raises(BadBodyError) as refused:
        read_object(body)
    assert len(str(refused.value)) < 200


def test_brackets_in_texts_are_not_depth() -> None:
    body = b'{"a": "' + b"[{" * 500 + b'\\"[[["}'
    assert read_object(body)["a"].startswith("[{")


def test_the_deepest_body_that_is_read_has_its_levels() -> None:
    levels = MAX_JSON_DEPTH - 1
    assert read_object(b'{"a":' + b"[" * levels + b"]" * levels + b"}")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"name": "a", "name": "a"}', "name"),
        (b'{"a": [{"b": 1}, {"c": {"d": 1, "e": ":", "d": 2}}]}', "a[1].c.d"),
        (rb'{"a": 1, "\u0061": 2}', "a"),
        (rb'{"a": "\u003a", "a": "\u003A"}', "a"),
        (rb'{"a": "\\u003a", "b": {"c": "\\\u003a", "c": 1}}', "b.c"),
        (b'{"a": {"b": 1, "b": 2}, "a": {"c": 1, "c": 2}, "d": 1}', "a"),
        (b'{"a": {"b": 1, "b": 2}, "a": 1}', "a"),
        (b'{"a": 123456789012345678, "": {"b": 1, "b": 1.5e3}}', "b"),
    ],
)
def test_a_key_that_stands_twice_in_one_object_is_refused_with_its_path(body: bytes, field: str) -> None:
    with pytest.raises(BadBodyError, match="stands there twice") as refused:
        read_object(body)
    assert refused.value.field == field


TEXTS = st.text(alphabet='a:u03"\\\n', max_size=8)
VALUES = st.recursive(
    TEXTS | st.integers(min_value=-5, max_value=5) | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(TEXTS, VALUES, max_size=4), st.booleans())
def test_colons_in_texts_are_no_keys(value: dict[str, Any], escaped: bool) -> None:
    body = msgspec.json.encode(value)
    if escaped:  # every colon in a text, however it is written; those behind keys are the only ones with a quote before
        body = b"".join(
            part.replace(b":", rb"\u003a") if number % 2 else part
            for number, part in enumerate(re.split(rb'("(?:[^"\\]|\\.)*")', body))
        )
    assert read_object(body) == value


def test_nul_characters_are_found_wherever_they_stand() -> None:
    body = rb'{"a\u0000": 1, "b": ["x", {"c": "y\u0000"}], "d": "\\u0000"}'
    fields = [issue.field for issue in unfit_texts(body, read_object(body))]
    assert fields == ["'a\\x00'", "b[1].c"]


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(body: bytes) -> None:
    with contextlib.suppress(BadBodyError):
        read_object(body)
