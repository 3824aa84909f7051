"""From the bytes of a request body to a JSON object, or to a sentence that says what is wrong with them. Pure."""

import re
from typing import Any, Final, cast

import msgspec

from services.api.issues import MAX_ISSUES, Issue

MAX_BODY_BYTES: Final = 512 * 1024
"""A command's record must fit one message of the log (architecture.md section 3)."""
MAX_LARGE_BODY_BYTES: Final = 16 * 1024 * 1024
"""Of a batch, each of whose items is a body of its own."""
MAX_JSON_DEPTH: Final = 32
"""The deepest body that the contract allows has nine levels."""

_STRINGS_AND_BRACKETS: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[{]|[\]}]', re.DOTALL)
_NUL_ESCAPE: Final = b"\\u0000"


class BadBodyError(Exception):
    """The body is no JSON object; the message says why, and what would be."""


def read_object(body: bytes) -> dict[str, Any]:
    """The JSON object in a body.

    Raises BadBodyError: malformed JSON, not UTF-8, numbers that no double or 64-bit integer holds, halves of
    surrogate pairs, more than MAX_JSON_DEPTH levels, or no object.
    """
    if not body.strip():
        raise BadBodyError("is empty; send a JSON object")
    if _too_deep(body):
        raise BadBodyError(f"is nested deeper than {MAX_JSON_DEPTH} levels")
    try:
        value = msgspec.json.decode(body)
    except UnicodeDecodeError:
        raise BadBodyError("is not UTF-8") from None
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise BadBodyError(f"is not JSON: {str(error).removeprefix('JSON is malformed: ')}") from None
    if not isinstance(value, dict):
        raise BadBodyError("is JSON but not an object; send {…}")
    return cast("dict[str, Any]", value)


def unfit_texts(body: bytes, data: dict[str, Any]) -> list[Issue]:
    """Texts with a NUL character, wherever they stand: neither a process nor Postgres can hold one."""
    if _NUL_ESCAPE not in body:
        return []
    issues: list[Issue] = []
    _walk("", data, issues)
    return issues


def _walk(path: str, value: Any, issues: list[Issue]) -> None:
    if len(issues) >= MAX_ISSUES:
        return
    if isinstance(value, str) and "\x00" in value:
        issues.append(Issue(field=path, details="contains a NUL character, which is not allowed"))
    elif isinstance(value, dict):
        for key, inner in value.items():  # pyright: ignore[reportUnknownVariableType] - JSON objects have text keys
            name = str(key)  # pyright: ignore[reportUnknownArgumentType]
            inside = f"{path}.{name}" if path else name
            if "\x00" in name:
                issues.append(Issue(field=ascii(inside), details="contains a NUL character in its name"))
            _walk(inside, inner, issues)
    elif isinstance(value, list):
        for index, inner in enumerate(value):  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]
            _walk(f"{path}[{index}]", inner, issues)


def _too_deep(body: bytes) -> bool:
    # Nearly every body has fewer brackets than levels are allowed, strings included.
    if body.count(b"{") + body.count(b"[") <= MAX_JSON_DEPTH:
        return False
    depth = 0
    for token in _STRINGS_AND_BRACKETS.finditer(body):
        first = token[0][0]
        if first in b"[{":
            depth += 1
            if depth > MAX_JSON_DEPTH:
                return True
        elif first in b"]}":
            depth -= 1
    return False
