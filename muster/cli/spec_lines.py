"""The fields of a spec as lines of text: leaves by their paths, and items of lists as the flags of submit take them."""

from collections.abc import Iterator
from typing import Final

from muster.cli.output import plain_text
from muster.cli.values import Json, Row, rows_of, text_of

_SHOWN_VALUES: Final = 10
"""Of one parameter of a sweep."""
_PAIR: Final = frozenset({"name", "value", "description"})


def lines_of(value: Row, prefix: str = "") -> list[tuple[str, str]]:
    """(path, text) of each. Items of which one says more than NAME=VALUE have a line each."""
    lines: list[tuple[str, str]] = []
    for key, below in value.items():
        path = f"{prefix}{key}"
        match below:
            case dict():
                lines += lines_of(below, f"{path}.")
            case list() if below and isinstance(below[0], dict):
                items = rows_of(value, key)
                if any(_says_more(item) for item in items):
                    lines += [(f"{path}[{index}]", as_typed(item)) for index, item in enumerate(items)]
                else:
                    joint = " or " if key == "nodeSelectorTerms" else ", "
                    lines.append((path, joint.join(map(_item, items))))
            case _:
                lines.append((path, plain_text(below)))
    return lines


def as_typed(item: Row) -> str:
    """An item of a list as its flag takes it."""
    return ",".join(_fields(item))


def _says_more(item: Row) -> bool:
    short = item.keys() <= _PAIR or "resource" in item or "matchExpressions" in item
    return not short and not isinstance(item.get("values"), list)


def _item(entry: Row) -> str:
    if "matchExpressions" in entry:
        return " and ".join(map(_expression, rows_of(entry, "matchExpressions"))) or "(no expression)"
    if "resource" in entry:
        return f"{text_of(entry, 'resource')}={text_of(entry, 'quantity')}"
    if isinstance(swept := entry.get("values"), list):
        shown = [plain_text(value) for value in swept[:_SHOWN_VALUES]]
        more = len(swept) - len(shown)
        return f"{text_of(entry, 'name')}={','.join(shown)}{f',… ({more} more)' if more > 0 else ''}"
    if entry.keys() == {"name"}:
        return text_of(entry, "name")
    return f"{text_of(entry, 'name')}={text_of(entry, 'value')}"


def _expression(entry: Row) -> str:
    values = entry.get("values")
    told = " " + ",".join(map(plain_text, values)) if isinstance(values, list) and values else ""
    return f"{text_of(entry, 'key')} {text_of(entry, 'operator')}{told}"


def _fields(entry: Row, prefix: str = "") -> Iterator[str]:
    """As FIELD=VALUE, without what is not set. Of an item itself false is no default; of an object in it mostly."""
    for name, value in entry.items():
        if isinstance(value, dict):
            yield from _fields(value, f"{prefix}{name}.")
        elif value not in (None, "", []) and not (prefix and value is False):
            yield f"{prefix}{name}={_value(value)}"


def _value(value: Json) -> str:
    if isinstance(value, list):
        return ";".join(map(plain_text, value))
    return str(value).lower() if isinstance(value, bool) else plain_text(value)
