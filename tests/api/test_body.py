"""Bytes that are no request, and how each is told so. Pure."""

import contextlib

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


def test_nul_characters_are_found_wherever_they_stand() -> None:
    body = rb'{"a\u0000": 1, "b": ["x", {"c": "y\u0000"}], "d": "\\u0000"}'
    fields = [issue.field for issue in unfit_texts(body, read_object(body))]
    assert fields == ["'a\\x00'", "b[1].c"]


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(body: bytes) -> None:
    with contextlib.suppress(BadBodyError):
        read_object(body)
