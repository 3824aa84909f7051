"""Layers of a spec made into one: what a template, assets and a request say, each before those below it (R39). Pure.

A layer is JSON as it was given, in which absent, null and a value are three things: absent leaves what stands below,
null clears it, a value takes its place. Objects are merged field by field. A list whose items have a key (the one that
is declared, or a name) is merged item by item: an item goes before the one below that has its key, in its place, and
others follow at the end. Such an item may say `exclude`; the kind's defaults then drop it. A volume, whose key is its
path, is also excluded by its name. Every other list is a value.

Policies are the lowest layers: that of the tenant, then that of the department, then that of the project.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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


type Origin = Place | dict[str, Origin] | list[Place]
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
                here = here[int(index)] if index is not None and int(index) < len(here) else None
            last = step.end()
        return (here, f"{here.path}{path[last:]}") if isinstance(here, Place) else None


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
            known = list(zip(cast("list[Any]", under), held, strict=True)) if isinstance(held, list) else []
            items = [*_items(key, known, cast("list[Any]", value), layer, here)]
            values[name], origins[name] = [item for item, _ in items], [place for _, place in items]
        else:
            values[name], origins[name] = value, Place(layer, here)
    return Merged(spec=values, origin=origins)


def _items(
    key: str, below: list[tuple[Any, Place]], above: list[Any], layer: Layer, path: str
) -> Iterator[tuple[Any, Place]]:
    """The items in order, each with where it comes from. Nulls among them are no items."""
    given = [
        (_keyed(item, key, below), Place(layer, f"{path}[{index}]"))
        for index, item in enumerate(above)
        if item is not None
    ]
    replacing: dict[str, tuple[Any, Place]] = {}
    known = {name for item, _ in below if (name := _name(item, key))}
    added: list[tuple[Any, Place]] = []
    for item, place in given:
        name = _name(item, key)
        if name in known and name not in replacing:
            replacing[name] = (item, place)
        else:
            added.append((item, place))
    for item, place in below:
        yield replacing.get(_name(item, key), (item, place))
    yield from added


def _keyed(item: Any, key: str, below: list[tuple[Any, Place]]) -> Any:
    """An item that is excluded by its name alone, with the key of the one that it drops: a volume's key is its path."""
    if key == "name" or not isinstance(item, dict) or not cast("Json", item).get("exclude") or _name(item, key):
        return item  # pyright: ignore[reportUnknownVariableType] - JSON
    name = _name(item, "name")
    named = next((_name(one, key) for one, _ in below if name and _name(one, "name") == name), "")
    return cast("Json", item) | {key: named} if named else item  # pyright: ignore[reportUnknownVariableType] - JSON


def _name(item: Any, key: str) -> str:
    value = cast("Json", item).get(key) if isinstance(item, dict) else None
    return value if isinstance(value, str) else ""
