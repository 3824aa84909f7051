"""From the bytes of a request body to a JSON object, or to a sentence that says what is wrong with them. Pure."""

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final, cast

import msgspec

from services.api.issues import MAX_ISSUES, Issue

MAX_BODY_BYTES: Final = 512 * 1024
"""A command's record must fit one message of the log (architecture.md section 3)."""
MAX_LARGE_BODY_BYTES: Final = 16 * 1024 * 1024
"""Of a batch, each of whose items is a body of its own."""
MAX_JSON_DEPTH: Final = 32
"""The deepest body that the contract allows has nine levels."""

_TOO_DEEP: Final = f"is nested deeper than {MAX_JSON_DEPTH} levels"
_NUL_ESCAPE: Final = b"\\u0000"


class BadBodyError(Exception):
    """The body is no JSON object; the message says why, and what would be."""

    def __init__(self, details: str, field: str = "") -> None:
        """`field`: the path of what is wrong; empty where it is the body itself."""
        super().__init__(details)
        self.field: str = field


def read_object(body: bytes) -> dict[str, Any]:
    """The JSON object in a body.

    Raises BadBodyError: malformed JSON, not UTF-8, numbers that no double or 64-bit integer holds, halves of
    surrogate pairs, more than MAX_JSON_DEPTH levels, a key that stands twice in one object, or no object.
    """
    if not body.strip():
        raise BadBodyError("is empty; send a JSON object")
    try:
        value = msgspec.json.decode(body)
    except UnicodeDecodeError:
        raise BadBodyError("is not UTF-8") from None
    except RecursionError:
        raise BadBodyError(_TOO_DEEP) from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise BadBodyError(f"is not JSON: {str(error).removeprefix('JSON is malformed: ')}") from None
    if _is_too_deep(body, value):
        raise BadBodyError(_TOO_DEEP)
    if not isinstance(value, dict):
        raise BadBodyError("is JSON but not an object; send {…}")
    if colons(body) != msgspec.json.encode(value).count(b":"):
        raise BadBodyError("stands there twice; leave one of them out", _twice(body))
    return cast("dict[str, Any]", value)


def colons(text: bytes) -> int:
    """How many colons the texts and keys of JSON have once they are read, and how many stand behind its keys.

    A key that stands twice is read once, and so is one of its colons. To count them is a tenth of the work that reading
    is; to look at every key would be more than all of it.
    """
    plain = text.count(b":")
    if b"\\u003" not in text:
        return plain
    escapes = text.replace(rb"\\", b"")  # each backslash that is left begins an escape
    return plain + escapes.count(rb"\u003a") + escapes.count(rb"\u003A")


def _twice(body: bytes) -> str:
    """The path of a key that stands twice in one object of this JSON, which has one."""
    found: dict[int, tuple[dict[str, Any], str]] = {}
    """By identity, with the object itself, so that no other one takes its identity."""

    def whole(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            seen: set[str] = set()
            found[id(made)] = made, next(key for key, _ in pairs if key in seen or seen.add(key))
        return made

    value = json.loads(body, object_pairs_hook=whole, parse_int=str, parse_float=str)
    # Those that stand in a value that was dropped itself are not met here; what dropped it is.
    path, inside = next((path, one) for path, one in _objects("", value) if id(one) in found)
    key = found[id(inside)][1]
    return f"{path}.{key}" if path else key


def _objects(path: str, value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object in a value, with where it stands."""
    if isinstance(value, dict):
        found = cast("dict[str, Any]", value)
        yield path, found
        for key, inner in found.items():
            yield from _objects(f"{path}.{key}" if path else key, inner)
    elif isinstance(value, list):
        for index, inner in enumerate(cast("list[Any]", value)):
            yield from _objects(f"{path}[{index}]", inner)


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


def _inside(value: Any) -> Iterable[Any]:
    """Of an object or a list."""
    return cast("Iterable[Any]", value.values() if isinstance(value, dict) else value)


def _is_too_deep(body: bytes, value: Any) -> bool:
    # Nearly every body has fewer brackets than levels are allowed, those in texts included.
    if body.count(b"{") + body.count(b"[") <= MAX_JSON_DEPTH:
        return False
    level: list[Any] = [value]
    for _ in range(MAX_JSON_DEPTH):
        level = [inner for one in level for inner in _inside(one) if isinstance(inner, dict | list)]
        if not level:
            return False
    return True
