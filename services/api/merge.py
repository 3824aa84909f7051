"""Layers of a spec made into one: what a template, assets and a request say, each before those below it (R39). Pure.

A layer is JSON as it was given, in which absent, null and a value are three things: absent leaves what stands below,
null clears it, a value takes its place. Objects are merged field by field. A list whose items have a key (the one that
is declared, or a name) is merged item by item: an item goes before the one below that has its key, in its place, and
others follow at the end. Such an item may say `exclude`; the kind's defaults then drop it. A volume, whose key is its
path, is also excluded by its name. Every other list is a value.

Policies are the lowest layers: that of the tenant, then that of the department, then that of the project.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count, repeat
from operator import itemgetter
from typing import Any, cast

from events.fields.node import Node, item_key
from events.workload.made_from import Source
from services.api.issues import PATH_STEPS

type Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """What one of those who set fields says."""

    source: Source
    name: str
    """Of the asset; empty for the request."""
    spec: Mapping[str, Any]

    @property
    def called(self) -> str:
        """As answers call it."""
        return f"{self.source} {self.name}" if self.name else self.source


@dataclass(frozen=True, slots=True)
class Place:
    """Where a merged value comes from."""

    layer: Layer
    path: str
    """In that layer's own spec."""


type Item = tuple[Any, Layer, int, str]
"""(an item, whose it is, its index in the same list of that layer, its key or an empty text). A plain tuple: there are
thousands, and anything else would cost more than the merge.
"""
type Origin = Place | dict[str, Origin] | list[Item]
"""Of a value that was taken whole, of an object's fields, or of a list's items."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """The spec of all layers together."""

    spec: Json
    origin: dict[str, Origin]
    """By field; of every field that some layer gave."""

    def place(self, path: str) -> tuple[Place, str] | None:
        """Where the value at a path such as `labels[2].name` comes from, and its path there; None where no layer gave
        it.
        """
        here: Origin | None = self.origin
        last = 0
        for step in PATH_STEPS.finditer(path):
            if isinstance(here, Place):
                break
            index, name = step.groups()
            if isinstance(here, dict):
                here = here.get(name or "")
            elif isinstance(here, list):
                here = _place_of(here, path[:last], index)
            last = step.end()
        return (here, f"{here.path}{path[last:]}") if isinstance(here, Place) else None

    def at(self, path: str) -> Origin | None:
        """Where the field at a path such as `security.runAsUid` comes from, or the object that was taken whole with it;
        None where no layer gave either.
        """
        here: Origin | None = self.origin
        for name in path.split("."):
            if not isinstance(here, dict):
                break
            here = here.get(name)
        return here

    def within(self, path: str) -> list[Layer]:
        """Who gave what an object at a path such as `security` has, each once."""
        here: Origin | None = self.origin
        for name in path.split("."):
            here = here.get(name) if isinstance(here, dict) else None
        found: dict[int, Layer] = {id(layer): layer for layer in _layers(here)}
        return [*found.values()]


def _layers(origin: Origin | None) -> Iterator[Layer]:
    if isinstance(origin, Place):
        yield origin.layer
    elif isinstance(origin, dict):
        for below in origin.values():
            yield from _layers(below)
    elif origin is not None:
        yield from (layer for _, layer, _, _ in origin)


def _place_of(items: list[Item], path: str, index: str | None) -> Place | None:
    if index is None or int(index) >= len(items):
        return None
    _, layer, own, _ = items[int(index)]
    return Place(layer, f"{path}[{own}]")


def merged(node: Node, layers: Sequence[Layer]) -> Merged:
    """Args: node, the spec's; layers, the lowest first."""
    whole = Merged(spec={}, origin={})
    for layer in layers:
        whole = _object(node, whole, layer.spec, layer, "")
    return whole


def alone(node: Node, layer: Layer) -> Merged:
    """What one layer says, where there is no other: as it is, and lists as values."""

    def origin_of(node: Node, spec: Mapping[str, Any], path: str) -> dict[str, Origin]:
        found: dict[str, Origin] = {}
        for name, value in spec.items():
            field, here = node.by_name.get(name), f"{path}.{name}" if path else name
            if field is not None and field.kind == "object" and isinstance(value, dict):
                found[name] = origin_of(field, cast("Json", value), here)
            else:
                found[name] = Place(layer, here)
        return found

    return Merged(spec=dict(layer.spec), origin=origin_of(node, layer.spec, ""))


def _object(node: Node, below: Merged, above: Mapping[str, Any], layer: Layer, path: str) -> Merged:
    values, origins = {**below.spec}, {**below.origin}
    for name, value in above.items():
        here = f"{path}.{name}" if path else name
        field, under = node.by_name.get(name), values.get(name)
        if field is not None and field.kind == "object" and isinstance(value, dict):
            held = origins.get(name)
            known = (
                Merged(spec=cast("Json", under), origin=held) if isinstance(held, dict) else Merged(spec={}, origin={})
            )
            inner = _object(field, known, cast("Json", value), layer, here)
            values[name], origins[name] = inner.spec, inner.origin
        elif field is not None and isinstance(value, list) and (key := item_key(field)) is not None:
            held = origins.get(name)
            items = _items(key, held if isinstance(held, list) else [], cast("list[Any]", value), layer)
            values[name], origins[name] = [item[0] for item in items], items
        else:
            values[name], origins[name] = value, Place(layer, here)
    return Merged(spec=values, origin=origins)


def _items(key: str, below: list[Item], above: list[Any], layer: Layer) -> list[Item]:
    """The items in order. Nulls among them are no items."""
    given = _keyed(above, key, below)
    names = _names(given, key)
    items: list[Item] = [*zip(given, repeat(layer), count(), names)]
    if "" in names:
        items = [item for item in items if item[0] is not None]
    if not below:
        return items
    known = {item[3] for item in below} - {""}
    # Of several with one name the first, which goes before those below.
    replacing = {item[3]: item for item in reversed(items) if item[3] in known}
    added = [item for item in items if replacing.get(item[3]) is not item]
    return [replacing.get(item[3], item) for item in below] + added


def _keyed(given: list[Any], key: str, below: list[Item]) -> list[Any]:
    """The items; those that are excluded by their name alone with the key of what they drop: that of a volume is its
    path.
    """
    if key == "name" or not any(isinstance(item, dict) and cast("Json", item).get("exclude") for item in given):
        return given
    keys: dict[str, str] = {}
    for item, _, _, own in below:
        keys.setdefault(_name(item, "name"), own)

    def keyed(item: Any) -> Any:
        if not isinstance(item, dict) or not cast("Json", item).get("exclude") or _name(item, key):
            return item  # pyright: ignore[reportUnknownVariableType] - JSON
        name = _name(item, "name")
        named = keys.get(name, "") if name else ""
        return cast("Json", item) | {key: named} if named else item  # pyright: ignore[reportUnknownVariableType] - JSON

    return [keyed(item) for item in given]


def _names(items: list[Any], key: str) -> list[str]:
    """In one go where every item has a name, as nearly all have: a call for each would double the cost of the merge."""
    with suppress(TypeError, KeyError):
        names = [*map(itemgetter(key), items)]
        if {*map(type, names)} <= {str}:
            return names
    return [_name(item, key) for item in items]


def _name(item: Any, key: str) -> str:
    value = cast("Json", item).get(key) if isinstance(item, dict) else None
    return value if isinstance(value, str) else ""
