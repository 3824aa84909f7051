"""Fields of the contract that Muster does not carry out yet, each with its default: what leaving it out means.

The default is taken, because it asks for nothing; anything else is refused by name, never ignored. Tests hold this and
the models together against the contract.
"""

import re
from collections.abc import Iterator
from typing import Any, Final, cast

from events.fields.node import Node

type Default = bool | str | list[Any] | dict[str, Default] | None
"""None: no value says the same as nothing. A list is empty. An object has a default for each of its fields."""

INSTEAD: Final = {
    "spec.storage.pvc[].dataSharing": (
        "it says nobody to share with: make the claim, and then a data volume of it with those who may use it "
        "(muster datasource data-volume create)"
    ),
}
"""What does the same, or nearly, where something does."""

UNBUILT_FIELDS: Final[dict[str, dict[str, Default]]] = {
    "spec.storage.pvc[]": {"dataSharing": False},
}
"""By the path of their object."""


_MASTER: Final = re.compile(r"^masterSpec\b")


def unbuilt_fields(node: Node) -> dict[str, Default]:
    """The fields of this object that are not built, of any kind. A master's are those of a spec."""
    return UNBUILT_FIELDS.get(_MASTER.sub("spec", node.path), {})


def instead_of(path: str) -> str:
    """Of a field that is not built, with or without numbers of items; empty where nothing does."""
    plain = re.sub(r"\[\d+\]", "[]", _MASTER.sub("spec", path))
    return next((words for field, words in INSTEAD.items() if plain == field or plain.startswith(f"{field}[")), "")


def asked_for(path: str, given: Any, default: Default) -> Iterator[tuple[str, Default]]:
    """Paths in `given` that ask for what is not built, each with the default that would ask for nothing."""
    match given:
        case None:
            return
        case dict() if isinstance(default, dict):
            for name, inner in cast("dict[str, Any]", given).items():
                if name in default:
                    yield from asked_for(f"{path}.{name}", inner, default[name])
                else:
                    yield f"{path}.{name}", None
        case list() if isinstance(default, list) and all(item is None for item in cast("list[Any]", given)):
            return  # a null in a list is no item
        case _:
            # False is 0 to Python.
            if type(given) is not type(default) or given != default:
                yield path, default
